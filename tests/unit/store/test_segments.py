"""Segments that are cut short, gone or unreadable under whoever reads them."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from datalattice.cells import Blob, Text, Vector, branch_hashes, encode, novelty, value_hash
from datalattice.errors import Corruption
from datalattice.store import CellStore, Damage, FileView, RealDisk
from datalattice.store.files import StoreFolder
from datalattice.store.log.packing import locate
from datalattice.store.log.segments import SegmentReader
from datalattice.store.reader import SIBLINGS_MAX

READER = """
import os, sys
from datalattice.cells import Vector, novelty
from datalattice.errors import Corruption
from datalattice.store import CellStore

value = Vector.of([f"record {n} ".ljust(3000, "x") for n in range(100)])
store = CellStore.open(sys.argv[1], cache_bytes=1)
store.commit(value)
hashes = [hash for hash, _, _ in novelty(value)]
assert all(store.get_encoding(hash) for hash in hashes)
os.truncate(sys.argv[1] + "/segments/00000001.seg", 8192)
lost = 0
for hash in hashes:
    try:
        store.get_encoding(hash)
    except Corruption as error:
        assert "the file ends before" in str(error), error
        lost += 1
print(len(hashes), lost, len(store.damage))
"""


def test_a_segment_that_is_cut_short_while_it_is_read_is_damage_and_no_death(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr}"
    cells, lost, damage = map(int, ran.stdout.split())
    assert cells - 4 <= lost == damage < cells


class WornView:
    def read(self, count: int, offset: int, /) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def is_removed(self) -> bool:
        return False


class WornDisk(RealDisk):
    def view(self, path: str) -> FileView:
        return WornView()


def test_a_sector_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    root = Vector.of(["x" * 500])
    with CellStore.open(tmp_path / "s") as store:
        store.commit(root)
    seen: list[Damage] = []
    with CellStore.open(tmp_path / "s", disk=WornDisk()) as store:
        store.on_damage = seen.append
        with pytest.raises(Corruption, match="Input/output error"):
            store.root()
        assert [one.hash for one in seen] == [store.root_hash()]
        assert not store.has(store.root_hash() or b""), "it counts as missing, so it is fetched"


class CountedView:
    """A view that counts how many there are."""

    alive = 0

    def __init__(self, view: FileView) -> None:
        self._view = view
        CountedView.alive += 1

    def __del__(self) -> None:
        CountedView.alive -= 1

    def read(self, count: int, offset: int, /) -> bytes:
        return self._view.read(count, offset)

    def is_removed(self) -> bool:
        return self._view.is_removed()


class CountingDisk(RealDisk):
    def view(self, path: str) -> FileView:
        return CountedView(super().view(path))


def test_a_reader_has_a_bounded_number_of_files_open(tmp_path: Path) -> None:
    values = [Vector.of([f"{n} {i} ".ljust(900, "x") for i in range(6)]) for n in range(10)]
    with CellStore.open(tmp_path / "s", segment_bytes=4_096) as store:
        for value in values:
            store.commit(value)
        hashes = [hash for value in values for hash, _, _ in novelty(value)]
        places = [store._index.find(hash) for hash in hashes]
    assert len({place >> 42 for place in places}) > 5
    reader = SegmentReader(StoreFolder(CountingDisk(), str(tmp_path / "s")), open_max=3)
    for _ in range(2):
        assert all(reader.read(place) for place in places)
        assert CountedView.alive == 3
    reader.drop([places[-1] >> 42])
    assert CountedView.alive == 2
    reader.forget()
    assert CountedView.alive == 0


class CallsView(CountedView):
    """A view that counts the reads."""

    reads = 0

    def read(self, count: int, offset: int, /) -> bytes:
        CallsView.reads += 1
        return super().read(count, offset)


class CallsDisk(RealDisk):
    def view(self, path: str) -> FileView:
        return CallsView(super().view(path))


BLOB = random.Random(1).randbytes(3_000_000)


def test_the_chunks_of_a_large_file_are_read_together(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "s") as store:
        store.commit(Blob.of(BLOB))
    with CellStore.open(tmp_path / "s", disk=CallsDisk()) as store:
        blob = store.root()
        assert isinstance(blob, Blob)
        CallsView.reads = 0
        assert bytes(blob) == BLOB
        # 733 chunks, and 49 nodes that are looked up one by one.
        assert CallsView.reads < 49 + 20
        for start, stop in ((0, 1), (4_095, 4_097), (1_000_000, 1_600_001), (2_999_999, 9**9)):
            assert blob.read(start, stop) == BLOB[start:stop]


@pytest.mark.parametrize("count", [SIBLINGS_MAX - 1, SIBLINGS_MAX, SIBLINGS_MAX + 1, 5_000])
def test_any_number_of_siblings_is_read_from_what_lies_between(tmp_path: Path, count: int) -> None:
    value = Vector.of([f"record {n} ".ljust(150, "x") for n in range(count)])
    with CellStore.open(tmp_path / "s") as store:
        store.commit(value)
        written = [(hash, encoding) for hash, encoding, _ in novelty(value)]
        found = store.get_cells([hash for hash, _ in written])
    assert [cell and cell.encoding() for cell in found] == [encoding for _, encoding in written]
    assert all(cell is not None and len(cell.data) > cell.end - cell.at for cell in found)


def test_a_damaged_cell_among_many_is_the_only_damage(tmp_path: Path) -> None:
    value = Vector.of([f"record {n} ".ljust(3_000, "x") for n in range(100)])
    with CellStore.open(tmp_path / "s") as store:
        store.commit(value)
        hashes = [hash for hash, _, _ in novelty(value)]
        offset = locate(store.location_of(hashes[30]))[1]
        before = store.get_encodings(hashes)
    segment = tmp_path / "s" / "segments" / "00000001.seg"
    data = bytearray(segment.read_bytes())
    data[offset + 100] ^= 1
    segment.write_bytes(data)
    with CellStore.open(tmp_path / "s") as store:
        assert store.get_encodings(hashes, verify=False)[31] == before[31]
        with pytest.raises(Corruption, match=hashes[30].hex()):
            store.get_encodings(hashes)
        assert [one.hash for one in store.damage] == [hashes[30]]
        found = store.get_encodings([*hashes, b"\0" * 32])
        assert found == [*before[:30], None, *before[31:], None], "from then on it is missing"


def test_a_run_of_cells_is_cut_where_the_file_ends(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "s") as store:
        value = Vector.of([f"{n} ".ljust(900, "x") for n in range(40)])
        store.commit(value)
        places = [store.location_of(hash) for hash, _, _ in novelty(value)]
    reader = SegmentReader(StoreFolder(RealDisk(), str(tmp_path / "s")))
    whole = reader.read_many([*places, -1, places[0]])
    assert whole == [*map(reader.read, places), None, reader.read(places[0])]
    os.truncate(tmp_path / "s" / "segments" / "00000001.seg", locate(places[20])[1] + 7)
    assert reader.read_many(places) == [*whole[:20], *[None] * (len(places) - 20)]
    assert reader.read_many([places[0] + (9 << 42)]) == [None], "there is no such segment"


def test_cells_between_two_locations_are_found_by_their_hashes(tmp_path: Path) -> None:
    one = Vector.of([f"one {n} ".ljust(900, "x") for n in range(16)])
    other = Vector.of([f"other {n} ".ljust(900, "x") for n in range(16)])
    with CellStore.open(tmp_path / "s") as store:
        store.commit(one)
        store.commit(Vector.of([one, other]))  # the header of a pack lies between them
        cells = {hash: encoding for value in (one, other) for hash, encoding, _ in novelty(value)}
        places = {hash: store.location_of(hash) for hash in cells}
        by_place = sorted(cells, key=places.__getitem__)
        shuffled = random.Random(2).sample(by_place, len(by_place))
        assert store.get_encodings(shuffled) == [cells[hash] for hash in shuffled]
    reader = SegmentReader(StoreFolder(RealDisk(), str(tmp_path / "s")))
    siblings = by_place[:17]

    def between(first: bytes, last: bytes, hashes: list[bytes]) -> list[bytes | None]:
        found = reader.read_between(places[first], places[last], len(hashes))
        assert found is not None
        return [None if cell is None else cell.encoding() for cell in found.find(hashes)]

    for first, last in ((0, 16), (16, 0)):
        found = between(siblings[first], siblings[last], siblings)
        assert found == [cells[hash] for hash in siblings]
    middle = between(siblings[4], siblings[9], siblings)
    assert middle == [cells[hash] if 4 <= i <= 9 else None for i, hash in enumerate(siblings)]
    # Behind the header of a pack no cell is found; its look-up finds it.
    over = between(by_place[0], by_place[-1], by_place)
    assert over == [cells[hash] if hash in siblings else None for hash in by_place]


def test_siblings_of_several_commits_are_read_from_few_places(tmp_path: Path) -> None:
    texts = [Text.of(f"{n} ".ljust(900, "x")) for n in range(256)]
    with CellStore.open(tmp_path / "s") as store:
        for first, stop in ((0, 90), (90, 110), (110, 256)):
            store.commit(Vector.of(texts[first:stop]))
            store.commit(Vector.of(["y" * 3_000, f"{stop}".ljust(4_000)]))  # between
    hashes, cells = [value_hash(text) for text in texts], [encode(text) for text in texts]
    with CellStore.open(tmp_path / "s", disk=CallsDisk()) as store:
        CallsView.reads = 0
        assert store.get_encodings(hashes) == cells
        assert CallsView.reads < 16
        assert store.get_encodings(hashes[::-1]) == cells[::-1]
        hashes[100] = bytes(32)
        assert store.get_encodings(hashes) == [*cells[:100], None, *cells[101:]]


@pytest.mark.parametrize("commits", [[4_096], [1_500, 4_096], [500, 3_000, 4_096]])
def test_cells_below_siblings_are_read_with_them(tmp_path: Path, commits: list[int]) -> None:
    records = [bytes([n % 256]) * 99 + n.to_bytes(4, "big") for n in range(4_096)]
    with CellStore.open(tmp_path / "s") as store:
        for stop in commits:
            store.commit(Vector.of(records[:stop]))
        root = store.root()
        cells = {hash: encoding for hash, encoding, _ in novelty(root)}
    nodes = branch_hashes(encode(root))
    leaves = [hash for node in nodes for hash in branch_hashes(cells[node])]
    assert (len(nodes), len(leaves)) == (16, 256)
    size = sum(len(cells[hash]) for hash in leaves)
    with CellStore.open(tmp_path / "s", disk=CallsDisk()) as store:

        def read(hashes: list[bytes], below: int) -> list[bytes | None]:
            return [
                None if cell is None else cell.encoding()
                for cell in store.get_cells(hashes, below=below)
            ]

        for below in (0, size, size // 100, 100 * size):
            CallsView.reads = 0
            assert read(nodes, below) == [cells[hash] for hash in nodes]
            assert read([bytes(32), *leaves], 0) == [None, *[cells[hash] for hash in leaves]]
            if below == size:
                assert CallsView.reads <= 3 * len(commits)
        read(nodes, size)
        assert store.get_encodings(nodes) == [cells[hash] for hash in nodes], "asked for again"


def test_cells_that_lie_far_apart_are_not_read_as_siblings(tmp_path: Path) -> None:
    value = Vector.of([f"{n} ".ljust(900, "x") for n in range(40)])
    with CellStore.open(tmp_path / "s") as store:
        store.commit(value)
        hashes = [hash for hash, _, _ in novelty(value)]
        places = [store.location_of(hash) for hash in hashes]
    reader = SegmentReader(StoreFolder(RealDisk(), str(tmp_path / "s")))
    by_place = sorted(zip(places, hashes, strict=True))
    two = [by_place[0][1], by_place[3][1]]  # four cells, as far as two may be apart
    found = reader.read_between(by_place[0][0], by_place[3][0], 2)
    assert found is not None
    assert None not in found.find(two)
    assert reader.read_between(by_place[0][0], by_place[4][0], 2) is None
    # Farther, if what is below them is of use as well.
    assert reader.read_between(by_place[0][0], by_place[4][0], 2, 500) is not None
    for first, last in ((-1, places[0]), (places[0], -1), (places[0], places[0] + (1 << 42))):
        assert reader.read_between(first, last, 2) is None
