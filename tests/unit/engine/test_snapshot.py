"""A table stream restores all or nothing."""

from __future__ import annotations

import io

import pytest

from datalattice.engine import MemoryEngine, export_tables, restore_tables
from datalattice.errors import BadFormat, StoreVersion, UsageError


def filled() -> MemoryEngine:
    engine = MemoryEngine(("a", "b"))
    with engine.write() as txn:
        txn.put_many("a", [(b"%d" % i, b"v" * i) for i in range(30)])
        txn.put("b", b"k", b"")
    return engine


def contents(engine: MemoryEngine) -> dict[str, list[tuple[bytes, bytes]]]:
    with engine.read() as view:
        return {name: list(view.scan(name)) for name in engine.tables}


def stream() -> bytes:
    out = io.BytesIO()
    assert export_tables(filled(), out.write) == 31
    return out.getvalue()


def test_restoring_gives_the_same_tables() -> None:
    target = MemoryEngine(("a", "b"))
    with target.write() as txn:
        txn.put("b", b"old", b"gone afterwards")
    assert restore_tables(target, io.BytesIO(stream()).read) == 31
    assert contents(target) == contents(filled())


def test_any_damage_is_refused_and_nothing_changes() -> None:
    good = stream()
    target = MemoryEngine(("a", "b"))
    with target.write() as txn:
        txn.put("a", b"own", b"kept")
    before = contents(target)
    for i in range(len(good)):
        damaged = good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :]
        with pytest.raises((BadFormat, StoreVersion, UsageError)):
            restore_tables(target, io.BytesIO(damaged).read)
    for length in range(0, len(good), 7):
        with pytest.raises(BadFormat, match="cut short"):
            restore_tables(target, io.BytesIO(good[:length]).read)
    assert contents(target) == before


def test_a_newer_version_is_named() -> None:
    with pytest.raises(StoreVersion, match="version 2"):
        restore_tables(MemoryEngine(("a",)), io.BytesIO(b"DLTS\x02").read)


def test_a_table_that_is_not_here_is_named() -> None:
    with pytest.raises(UsageError, match="'b'"):
        restore_tables(MemoryEngine(("a",)), io.BytesIO(stream()).read)
