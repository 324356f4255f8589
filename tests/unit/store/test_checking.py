"""Check and heal on files: each flipped bit, cut or lost file is found, repaired, or refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from datalattice.cells import (
    Index,
    Map,
    Value,
    Vector,
    branch_hashes,
    encode,
    missing,
    novelty,
    references,
    same,
    value_hash,
)
from datalattice.crypto import SeededEntropy, sha3_256
from datalattice.errors import BadFormat, Corruption, StoreError
from datalattice.store import (
    PRIVATE_KEY,
    CellFetcher,
    CellStore,
    CheckReport,
    Damage,
    Healing,
    heal_store,
    open_damaged,
)
from datalattice.store.log.packing import locate
from datalattice.testing.malformed import cells_of, value_from_cells, with_cell

FOLDER = "store"
LONG = "a text that is too long to stand inside its parent " * 4


def value(start: int = 0, count: int = 40) -> Map:
    return Map.of([(f"key {n}", f"text {n} ".ljust(180, "z")) for n in range(start, start + count)])


def filled(path: Path, commits: int = 6) -> Value:
    """Make a store with several commits in several segments, and return its root."""
    root = Map.of({})
    with CellStore.open(path, segment_bytes=8_192, entropy=SeededEntropy(1)) as store:
        for number in range(commits):
            for key, text in value(number * 10, 10).entries():
                root = root.put(key, text)
            store.commit(root)
        store.put(value(1_000, 3))
    return root


class Supply:
    """Another store that has everything."""

    def __init__(self, path: Path) -> None:
        self._store = CellStore.open(path, read_only=True)
        self.asked: list[bytes] = []

    def __call__(self, hashes: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
        self.asked += hashes
        for hash in hashes:
            encoding = self._store.get_encoding(hash)
            if encoding is not None:
                yield hash, encoding

    def close(self) -> None:
        self._store.close()


@pytest.fixture(name="pair")
def fixture_pair(tmp_path: Path) -> tuple[Path, Path, Value]:
    """Return (a store to be damaged, a whole copy of it, their root)."""
    whole = tmp_path / "whole"
    filled(whole)
    shutil.copytree(whole, tmp_path / FOLDER)
    with CellStore.open(tmp_path / FOLDER):  # makes the index of the copy
        pass
    with CellStore.open(whole):
        pass
    return tmp_path / FOLDER, whole, value(0, 60)


def segments(path: Path) -> list[Path]:
    return sorted((path / "segments").iterdir())


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def check(path: Path) -> CheckReport:
    with CellStore.open(path, read_only=True) as store:
        return store.check()


def heal(path: Path, whole: Path | None = None) -> Healing:
    supply = None if whole is None else Supply(whole)
    try:
        with open_damaged(path) as store:
            return heal_store(store, None if supply is None else CellFetcher(store, supply))
    finally:
        if supply is not None:
            supply.close()


def test_a_store_that_is_whole(pair: tuple[Path, Path, Value]) -> None:
    path, _, root = pair
    seen: list[tuple[int, int]] = []
    with CellStore.open(path) as store:
        report = store.check(lambda done, total: seen.append((done, total)))
        assert report.is_clean
        assert report.scars == ()
        assert report.wanted == ()
        assert report.packs == 7
        assert report.segments == len(segments(path)) > 2
        assert report.cells > 60
        assert report.size_bytes == sum(file.stat().st_size for file in segments(path))
        assert seen == sorted(seen)
        assert seen[-1][1] == report.size_bytes
        assert store.check() == report
        store.commit(value(5_000))
        assert store.check().is_clean, "also before the index is written"
        assert same(store.load(sha3_256(encode(root))), root)
    assert check(path).is_clean


def test_an_empty_store(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "s") as store:
        assert store.check().is_clean
        store.commit(1)
        assert store.check().is_clean


@pytest.mark.timeout(200)
def test_every_flipped_bit_is_found_and_healed(pair: tuple[Path, Path, Value]) -> None:
    path, whole, root = pair
    entropy = SeededEntropy(7)
    for file in segments(path):
        size = file.stat().st_size
        chosen = {0, 20, 43, 44, 60, 100, 140, size - 1}
        chosen |= {int.from_bytes(entropy.bytes(4), "big") % size for _ in range(3)}
        for offset in sorted(chosen):
            flip(file, offset, offset % 8)
            report = check(path)
            found = [*report.damage, *report.scars]
            assert found, f"{file.name} at {offset} of {size}"
            assert all(one.file == str(file) for one in found)
            assert min(one.offset for one in found) <= offset
            done = heal(path, whole)
            assert done.report.is_clean, f"{file.name} at {offset}: {done}"
            with CellStore.open(path) as store:
                assert same(store.root(), root)
                assert missing(store.root()) == []
            shutil.rmtree(path / "segments")
            shutil.copytree(whole / "segments", path / "segments")
            shutil.copy(whole / "end", path / "end")
            shutil.rmtree(path / "index")
            with CellStore.open(path) as store:
                assert store.check().is_clean


def cut(data: bytes) -> bytes:
    return data[: len(data.rstrip(b"\0")) * 2 // 3]


def emptied(_: bytes) -> bytes:
    return b""


def erased(data: bytes) -> bytes:
    return bytes(len(data))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("change", [cut, emptied, erased, None], ids=lambda c: c and c.__name__)
def test_a_cut_or_lost_segment_is_found_and_healed(
    pair: tuple[Path, Path, Value], number: int, change: Callable[[bytes], bytes] | None
) -> None:
    path, whole, root = pair
    file = segments(path)[number]
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    report = check(path)
    assert not report.is_clean
    assert any(one.file == str(file) for one in report.damage)
    for one in report.missing:
        if one.below_root:
            with CellStore.open(path, read_only=True) as store:
                assert one.above[0] == store.root_hash()
                assert one.hash in branch_hashes(store.get_encoding(one.above[-1]) or b"")
    alone = heal(path)
    assert not alone.report.is_clean, "its cells are nowhere else"
    assert set(alone.report.wanted) <= set(report.wanted)
    done = heal(path, whole)
    assert done.report.is_clean
    assert done.fetched > 0
    with CellStore.open(path) as store:
        assert same(store.root(), root)
        assert missing(store.root()) == []
        assert store.damage == ()
    shutil.rmtree(path / "index")
    with CellStore.open(path) as store:  # the log alone says the same
        assert same(store.root(), root)
        assert missing(store.root()) == []
        assert all(store.announced(hash) for hash, _, _ in novelty(value(0, 60)))


def test_what_is_private_need_not_be_announced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    own, shared, more = value(0), value(1_000), value(2_000)
    root = Index.of([(PRIVATE_KEY, own), ("data", shared), ("more", more)])
    with CellStore.open(path) as store:
        unserved = {hash for hash, _, _ in novelty(shared)}
        store.commit(root, announced=[more])
        segment, offset, _ = locate(store.location_of(novelty(own)[0][0]))
    with (path / "segments" / f"{segment:08d}.seg").open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff")  # so that the root is followed
    with CellStore.open(path) as store:
        report = store.check()
        assert report.damage
        assert set(report.unserved) == unserved


def test_damage_is_told_where_it_is(pair: tuple[Path, Path, Value]) -> None:
    path, _, root = pair
    with CellStore.open(path) as store:
        (hash,) = [h for h, data, _ in novelty(root) if b"text 33 " in data][:1]
        chain = [value_hash(root), hash]
        place = locate(store._index.find(hash))
    file = path / "segments" / f"{place[0]:08d}.seg"
    flip(file, place[1] + 20)
    report = check(path)
    assert [one for one in report.damage if one.hash == hash] == [
        Damage(str(file), place[1], "the cell does not fit its hash", hash)
    ]
    assert report.missing == (), "it is here, if in a sad state"
    assert report.endangered, "others of its pack are whole"
    assert report.useless == ()
    with CellStore.open(path) as store:
        told: list[Damage] = []
        store.on_damage = told.append
        with pytest.raises(Corruption, match=re.escape(f"{file} at byte {place[1]}: cell 0x")):
            store.load(hash)
        assert [one.hash for one in told] == [hash]
        assert store.damage == tuple(told)
        report = store.check()
        assert [one.hash for one in report.damage if one.hash] == [hash], "though given up"
        store.heal([])
        data = next(data for found, data, _ in novelty(root) if found == hash)
        assert store.heal([(hash, data)]) == 1
        assert store.damage == ()
        assert encode(store.load(hash)) == data
    assert len(chain) == 2


def test_what_the_index_lacks_is_found_in_the_log(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "s") as store:
        inner = Vector.of([LONG + "inner"])
        root = Map.of([("a", Vector.of([inner, LONG + "b"])), ("c", LONG + "c")])
        store.commit(root)
        gone = value_hash(inner[0])
        store.discard([gone])
        report = store.check()
        assert [hash for hash, _ in report.endangered] == [gone]
        assert (report.damage, report.missing) == ((), ()), "its bytes are still in the log"
        assert heal_store(store).report.is_clean
        assert missing(store.root()) == []


def test_cells_of_old_values_that_nobody_has_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with CellStore.open(path) as store:
        store.commit(Vector.of([LONG + "old", LONG + "older"]))
        top = store.root_hash()
        store.commit(Vector.of([LONG + "new"]))
        segment, offset, _ = locate(store._index.find(value_hash(LONG + "old")))
        assert top is not None
    flip(path / "segments" / f"{segment:08d}.seg", offset + 30)
    with CellStore.open(path) as store:
        report = store.check()
        assert report.useless == (value_hash(LONG + "old"),)
        assert report.wanted == ()
        done = heal_store(store, CellFetcher(store, lambda _: ()))
        assert done.report.is_clean
        assert done.forgotten >= 1
        assert not store.has(value_hash(LONG + "old"))
        assert not store.has(top), "what needs it is forgotten with it"
        store.commit(Vector.of([LONG + "old"]))
        assert store.check().is_clean


def test_wrong_cells_change_nothing(pair: tuple[Path, Path, Value]) -> None:
    path, whole, root = pair
    segments(path)[1].unlink()
    supply = Supply(whole)

    def lies(hashes: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
        for number, (hash, encoding) in enumerate(supply(hashes)):
            yield hash, encoding[:-1] + bytes([encoding[-1] ^ 1])
            yield sha3_256(b"other"), b"other"
            if number % 2:
                yield hash, encoding
                yield hash, encoding

    with CellStore.open(path) as store:
        before = store.check()
        with pytest.raises(BadFormat, match="a cell has the hash 0x"):
            store.heal([(before.wanted[0], encode(root))])
        with pytest.raises(BadFormat):
            store.heal([(sha3_256(encode(5) + b"!"), encode(5) + b"!")])
        assert store.check() == before
        liar = CellFetcher(store, lies)
        heal_store(store, liar)
        assert liar.refused > 0
        assert heal_store(store, CellFetcher(store, supply)).report.is_clean
        assert same(store.root(), root)
    supply.close()


def test_a_flipped_bit_in_the_description_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    filled(path, 1)
    good = (path / "STORE").read_bytes()
    for offset in range(len(good)):
        for bit in range(8):
            flip(path / "STORE", offset, bit)
            with pytest.raises(StoreError, match=re.escape(str(path))):
                CellStore.open(path).close()
            (path / "STORE").write_bytes(good)


def test_a_flipped_bit_in_the_state_of_the_index_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "s"
    root = filled(path, 1)
    good = (path / "index.state").read_bytes()
    for offset in range(0, len(good), 3):
        flip(path / "index.state", offset, offset % 8)
        with CellStore.open(path) as store:
            assert same(store.root(), root)
            assert store.check().is_clean


def test_checks_and_heals_beside_a_writer(pair: tuple[Path, Path, Value]) -> None:
    path, _, _ = pair
    with CellStore.open(path) as writer, CellStore.open(path, read_only=True) as reader:
        for number in range(20):
            writer.commit(Vector.of([f"{LONG}{number}"]))
            assert reader.check().is_clean
            reader.refresh()
        assert reader.check().is_clean


def test_cells_that_are_whole_and_do_not_fit_together_are_named(tmp_path: Path) -> None:
    """What an earlier version took in unchecked."""
    top, below = cells_of(Map.of([(f"{n}".ljust(150), n) for n in range(60)]))
    blob = b"b" * 200
    below[value_hash(blob)] = encode(blob)
    bad = value_from_cells(*with_cell(top, below, references(top)[0], encode(blob)))
    with CellStore.open(tmp_path / "store") as store:
        store.commit(Vector.of([bad, Vector.of(range(700)), "x" * 200]))
        report = store.check()
        assert report.is_clean
        assert [hash for hash, _ in report.unsound] == [value_hash(bad)]
        store.commit(Vector.of([Vector.of(range(700)), "x" * 200]), contains=False)
        assert [hash for hash, _ in store.check().unsound] == [value_hash(bad)]
    with CellStore.open(tmp_path / "sound") as store:
        store.commit(
            Vector.of([Map.of([(n, "x" * 150) for n in range(600)]), Vector.of(range(70))])
        )
        assert store.check().unsound == ()
