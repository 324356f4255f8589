"""Cells from archives, stores, files and editors are checked before they are stored."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from datalattice.cells import (
    Index,
    Map,
    Value,
    Vector,
    encode,
    encode_message,
    references,
    validate,
    value_hash,
)
from datalattice.cli.paths.documents import read_layout
from datalattice.errors import BadFormat, UsageError
from datalattice.store import (
    CheckedCells,
    MemoryStore,
    Store,
    checkedcells,
    copy_cells,
    export_cells,
    import_cells,
)
from datalattice.store.etch import EtchStore
from datalattice.testing.malformed import cells_of, value_from_cells, with_cell

LONG = "x" * 150


def malformed() -> Value:
    """Return a map with a Blob in the place of its first child."""
    top, below = cells_of(Map.of([(f"{LONG}{n}", n) for n in range(60)]))
    blob = b"b" * 200
    below[value_hash(blob)] = encode(blob)
    return value_from_cells(*with_cell(top, below, references(top)[0], encode(blob)))


def poisoned(value: Value) -> MemoryStore:
    """Return a store that holds a value though it is not sound."""
    store = MemoryStore()
    store.commit(value_from_cells(*cells_of(value)))
    return store


BAD = malformed()
UNSOUND = [BAD, Vector.of([BAD, LONG]), Index.of([("k", Vector.of([BAD] * 5))])]


@pytest.mark.parametrize("value", UNSOUND, ids=repr)
def test_an_archive_with_an_unsound_cell_is_refused(value: Value) -> None:
    out = io.BytesIO()
    export_cells(poisoned(value), value_hash(value), out.write)
    out.seek(0)
    target = MemoryStore()
    with pytest.raises(BadFormat, match=f"0x{value_hash(BAD).hex()} is not sound"):
        import_cells(target, out.read)
    assert not target.has(value_hash(BAD))
    assert not target.has(value_hash(value))


@pytest.mark.parametrize("value", UNSOUND, ids=repr)
@pytest.mark.parametrize("is_archive", [True, False])
def test_unsound_cells_and_those_above_are_kept_apart_where_asked(
    value: Value, is_archive: bool
) -> None:
    source, target, apart = poisoned(value), MemoryStore(), dict[bytes, bytes]()
    if is_archive:
        out = io.BytesIO()
        export_cells(source, value_hash(value), out.write)
        out.seek(0)
        import_cells(target, out.read, apart=apart)
    else:
        copy_cells(source, value_hash(value), target, apart=apart)
    assert {value_hash(BAD), value_hash(value)} <= apart.keys()
    _, below = cells_of(value)
    for hash in below:
        assert target.has(hash) is (hash not in apart)


def test_no_more_bytes_are_kept_apart_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode(BAD))
    for limit, is_taken in ((size + 1, True), (size, True), (size - 1, False)):
        monkeypatch.setattr(checkedcells, "APART_BYTES_MAX", limit)
        door = CheckedCells(MemoryStore(), scanned=True, apart={})
        top, below = cells_of(BAD)
        door.put((hash, cell) for hash, cell in below.items())
        if is_taken:
            door.put([(value_hash(BAD), top)])
            continue
        with pytest.raises(BadFormat, match=f"more than {limit} bytes lie above"):
            door.put([(value_hash(BAD), top)])


@pytest.mark.parametrize("value", UNSOUND, ids=repr)
def test_an_unsound_cell_is_not_copied_from_another_store(value: Value, tmp_path: Path) -> None:
    cells = cells_of(value)
    with EtchStore.open(tmp_path / "a.etch") as etch:
        etch.commit(value_from_cells(*cells))
        sources: list[Store] = [poisoned(value_from_cells(*cells)), etch]
        for source in sources:
            target = MemoryStore()
            with pytest.raises(BadFormat, match="is not sound"):
                copy_cells(source, value_hash(value), target)
            assert not target.has(value_hash(BAD))


def test_what_is_sound_goes_through_every_door(tmp_path: Path) -> None:
    value = Vector.of([Map.of([(n, LONG) for n in range(60)]), Vector.of(range(700)), LONG])
    with EtchStore.open(tmp_path / "a.etch") as etch:
        etch.commit(value)
        target = MemoryStore()
        copy_cells(etch, value_hash(value), target)
        assert validate(target.load(value_hash(value))) == []
        CheckedCells(MemoryStore(), scanned=True).check_value(value)


def test_cells_in_a_file_are_checked_when_they_are_put(tmp_path: Path) -> None:
    file = tmp_path / "cells"
    file.write_bytes(encode_message(BAD))
    with pytest.raises(UsageError, match="not a canonical value"):
        read_layout(file, "cells", lambda _: None)
    file.write_bytes(encode_message(Vector.of([LONG])))
    assert read_layout(file, "cells", lambda _: None) == Vector.of([LONG])


@pytest.mark.parametrize("value", [*UNSOUND, Vector.of([Vector.of([BAD])])], ids=repr)
def test_what_an_editor_sends_is_checked(value: Value) -> None:
    store = MemoryStore()
    with pytest.raises(BadFormat, match="is not sound"):
        CheckedCells(store, scanned=True).check_value(value)


def test_a_reference_to_a_short_cell_is_refused_though_the_short_cell_is_stored() -> None:
    store = MemoryStore()
    store.put("short")
    parent = b"\x80\x02\x20" + value_hash("short") + b"\x31\x81\x00" + bytes(128)
    with pytest.raises(BadFormat, match="fits inside its parent"):
        CheckedCells(store, scanned=False).put([(bytes(32), parent)])
