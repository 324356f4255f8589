"""Walks that ask a source for several cells at a time."""

from __future__ import annotations

import random

import pytest

from datalattice.cells import Blob, Vector, branch_hashes, value_hash
from datalattice.errors import Corruption, MissingData
from datalattice.store import MemoryStore, children_first

VALUE = Vector.of(
    [Vector.of([f"{row} {n} ".ljust(300, "x") for n in range(16)]) for row in range(16)]
)
TOP = value_hash(VALUE)


class Source(MemoryStore):
    """Notes what it is asked for; `bad` cells are damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.put(VALUE)
        self.asked: list[list[bytes]] = []
        self.bad: set[bytes] = set()

    def fetch(self, hashes: list[bytes]) -> list[bytes | None]:
        self.asked.append(hashes)
        if not self.bad.isdisjoint(hashes):
            raise Corruption("damaged")
        return self.get_encodings(hashes)


def walked(source: Source, done: set[bytes]) -> list[bytes]:
    """Return the hashes of the cells of `VALUE` that are not done, in the order of the walk."""
    seen = set(done)
    found: list[bytes] = []
    for hash, encoding in children_first([TOP], source.fetch, seen.__contains__):
        assert seen.issuperset(branch_hashes(encoding))
        seen.add(hash)
        found.append(hash)
    return found


def test_cells_are_asked_for_together() -> None:
    source = Source()
    found = walked(source, set())
    assert len(found) == len(set(found)) == 16 * 16 + 16 + 1
    assert len(source.asked) < len(found) / 4
    assert sum(map(len, source.asked)) == len(found), "each once"


def test_where_nearly_all_is_done_little_is_read_for_nothing() -> None:
    source = Source()
    done = set(walked(source, set()))
    rows = branch_hashes(source.get_encoding(TOP) or b"")
    changed = branch_hashes(source.get_encoding(rows[7]) or b"")[3]
    source.asked.clear()
    wanted = {TOP, rows[7], changed}
    assert set(walked(source, done - wanted)) == wanted
    assert sum(map(len, source.asked)) <= len(wanted) + 2


def test_a_damaged_cell_that_is_not_needed_stops_nothing() -> None:
    source = Source()
    cells = walked(source, set())
    for damaged in [one for one in cells if not branch_hashes(source.get_encoding(one) or b"")]:
        source.bad = {damaged}
        assert set(walked(source, {damaged})) == {*cells} - {damaged}
    with pytest.raises(Corruption):
        walked(source, set())
    with pytest.raises(MissingData, match=TOP.hex()):
        list(children_first([TOP], MemoryStore().get_encodings, lambda _: False))


def test_a_read_of_a_file_names_all_chunks_that_are_missing() -> None:
    store = MemoryStore()
    data = random.Random(1).randbytes(30_000)
    blob = Blob.of(data)
    store.put(blob)
    loaded = store.load(value_hash(blob))
    assert isinstance(loaded, Blob)
    chunks = branch_hashes(loaded.encoding)
    del store._encodings[chunks[2]], store._encodings[chunks[5]]
    with pytest.raises(MissingData) as error:
        bytes(loaded)
    assert error.value.hashes == (chunks[2], chunks[5])
    assert loaded.read(0, 8_000) == data[:8_000], "what is here is read"
