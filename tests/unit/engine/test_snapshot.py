"""A table stream restores all or nothing."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from datalattice.engine import (
    KEY_BYTES_MAX,
    LmdbEngine,
    MemoryEngine,
    export_tables,
    restore_tables,
)
from datalattice.errors import BadFormat, StoreVersion, UsageError


def filled() -> MemoryEngine:
    engine = MemoryEngine(("a", "b"))
    with engine.write() as txn:
        txn.put_many("a", [(b"%d" % i, b"v" * i) for i in range(30)])
        txn.put("b", b"k", b"")
        txn.put("b", b"", b"of the empty key")
    return engine


def contents(engine: MemoryEngine) -> dict[str, list[tuple[bytes, bytes]]]:
    with engine.read() as view:
        return {name: list(view.scan(name)) for name in engine.tables}


def stream() -> bytes:
    out = io.BytesIO()
    assert export_tables(filled(), out.write) == 32
    return out.getvalue()


def test_restoring_gives_the_same_tables() -> None:
    target = MemoryEngine(("a", "b"))
    with target.write() as txn:
        txn.put("b", b"old", b"gone afterwards")
    assert restore_tables(target, io.BytesIO(stream()).read) == 32
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
    with pytest.raises(StoreVersion, match="version 3"):
        restore_tables(MemoryEngine(("a",)), io.BytesIO(b"DLTS\x03").read)


def test_version_1_is_read() -> None:
    text = b"DLTS\x01T\x00\x01aE\x00\x01\x00\x00\x00\x02kvwZ"
    target = MemoryEngine(("a",))
    data = text + hashlib.sha3_256(text).digest()
    assert restore_tables(target, io.BytesIO(data).read) == 1
    assert contents(target) == {"a": [(b"k", b"vw")]}


@pytest.mark.parametrize("length", [511, KEY_BYTES_MAX])
def test_long_keys_are_in_the_stream(tmp_path: Path, length: int) -> None:
    source = LmdbEngine(tmp_path, ("a", "b"))
    with source.write() as txn:
        txn.put_many("a", [(b"k" * length, b"v"), (b"", b"w"), (b"k", b"")])
    out = io.BytesIO()
    assert export_tables(source, out.write) == 3
    target = MemoryEngine(("a", "b"))
    assert restore_tables(target, io.BytesIO(out.getvalue()).read) == 3
    assert restore_tables(source, io.BytesIO(out.getvalue()).read) == 3
    wanted = [(b"", b"w"), (b"k", b""), (b"k" * length, b"v")]
    with source.read() as view:
        assert list(view.scan("a")) == contents(target)["a"] == wanted
    source.close()


def test_a_table_that_is_not_here_is_named() -> None:
    with pytest.raises(UsageError, match="'b'"):
        restore_tables(MemoryEngine(("a",)), io.BytesIO(stream()).read)
