"""Archives: what goes out comes back whole, and nothing else comes in."""

from __future__ import annotations

import io
import struct

import pytest

from datalattice.cells import Map, Value, Vector, encode, novelty, same, value_hash
from datalattice.crypto import SeededEntropy, sha3_256
from datalattice.errors import BadFormat, DataLatticeError, MissingData, StoreVersion
from datalattice.store import (
    CellStore,
    MemoryStore,
    announce_cells,
    archive,
    export_cells,
    import_cells,
)
from datalattice.testing.disk import SimDisk


def value_of(kind: int) -> Value:
    """Return a new value: one that a store has taken belongs to that store."""
    if kind < 4:
        return (None, 5, "short", "a long text " * 2_000)[kind]
    if kind == 4:
        return Vector.of([f"{n} ".ljust(200, "x") for n in range(300)])
    return Map.of({f"k{n}": Vector.of([n, "shared " * 40]) for n in range(500)})


def new_store() -> CellStore:
    return CellStore.open("s", disk=SimDisk(1), entropy=SeededEntropy(1))


def exported(value: Value) -> bytes:
    out = io.BytesIO()
    with new_store() as store:
        root = store.commit(value).root_hash
        parts = novelty(store.load(root))
        told: list[int] = []
        count = export_cells(store, root, out.write, told.append)
        assert count == max(1, len(parts))
        assert told[-1] == count
    return out.getvalue()


def test_what_the_receiver_has_may_be_left_out() -> None:
    out = io.BytesIO()
    shared, whole = value_of(4), Vector.of([value_of(4), value_of(5)])
    with new_store() as sender, new_store() as receiver:
        receiver.commit(shared)
        root = sender.commit(whole).root_hash
        count = export_cells(sender, root, out.write, receiver=receiver)
        assert 0 < count < len(novelty(value_of(5))) + len(novelty(value_of(4)))
        top, came = import_cells(receiver, io.BytesIO(out.getvalue()).read)
        assert (top, came) == (root, count)
        assert same(receiver.load(top), Vector.of([value_of(4), value_of(5)]))
    with new_store() as other, pytest.raises(BadFormat, match="did not come before it"):
        import_cells(other, io.BytesIO(out.getvalue()).read)


@pytest.mark.parametrize("position", range(6))
def test_what_goes_out_comes_back(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = encode(value_of(position))
    data = exported(value_of(position))
    for block in (1, 3_000):
        monkeypatch.setattr(archive, "BLOCK_BYTES", block)
        assert data.startswith(b"DLAR")
        with new_store() as store:
            top, count = import_cells(store, io.BytesIO(data).read)
            assert top == value_hash(value_of(position))
            assert encode(store.load(top)) == wanted
            assert store.root_hash() is None
            assert not store.announced(top), "nothing is visible yet"
            assert count >= 1
            announce_cells(store, [top])
            assert store.announced(top)
            store.commit(store.load(top))
            assert store.check().is_clean
        data = exported(value_of(position))


def test_a_store_in_memory_takes_part() -> None:
    out = io.BytesIO()
    source, target = MemoryStore(), MemoryStore()
    root = source.commit(value_of(4)).root_hash
    export_cells(source, root, out.write)
    assert import_cells(target, io.BytesIO(out.getvalue()).read)[0] == root
    assert same(target.load(root), value_of(4))


def test_small_pieces_are_put_together() -> None:
    data = exported(value_of(4))
    stream = io.BytesIO(data)
    with new_store() as store:
        top, _ = import_cells(store, lambda count: stream.read(min(count, 7)))
        assert same(store.load(top), value_of(4))


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    data = exported(Vector.of([f"{n} ".ljust(200, "x") for n in range(5)]))
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 1 << offset % 8
        with MemoryStore() as store, pytest.raises((BadFormat, StoreVersion)) as caught:
            import_cells(store, io.BytesIO(damaged).read)
        assert "byte" in str(caught.value) or offset < 8
        assert store._root is None
        with MemoryStore() as store, pytest.raises(BadFormat, match="ends in the middle"):
            import_cells(store, io.BytesIO(data[:offset]).read)
    with MemoryStore() as store, pytest.raises(BadFormat, match="follows the end"):
        import_cells(store, io.BytesIO(data + b"x").read)


def test_what_is_not_complete_or_not_canonical_is_refused() -> None:
    value = Vector.of([f"{n} ".ljust(200, "x") for n in range(20)])
    cells = [encoding for _, encoding, _ in novelty(value)]
    for chosen, words in (
        (cells[::-1], "did not come before it"),
        (cells[1:], "did not come before it"),
        (cells[:-1], "does not have its own value"),
        ([*cells, b"\x80\x05\xff\xff"], "canonical"),
    ):
        data = framed(value_hash(value), chosen)
        with MemoryStore() as store, pytest.raises(BadFormat, match=words):
            import_cells(store, io.BytesIO(data).read)
    with MemoryStore() as store:
        assert import_cells(store, io.BytesIO(framed(value_hash(value), cells)).read)[1] == len(
            cells
        )


def framed(top: bytes, cells: list[bytes]) -> bytes:
    head = struct.pack(">4sHH32s", b"DLAR", 1, 0, top) + archive._block(cells) + bytes(8)
    return head + struct.pack(">Q32s", len(cells), sha3_256(head))


def test_other_files_are_named() -> None:
    for data, error in (
        (b"not an archive at all, but long enough for a head", BadFormat),
        (b"DLAR\0\2" + bytes(40), StoreVersion),
        (framed(bytes(32), [b"x"])[:40] + struct.pack(">II", 5, 1 << 30), BadFormat),
        (framed(bytes(32), [b"x"])[:40] + struct.pack(">II", 1 << 30, 5), BadFormat),
        (b"", BadFormat),
    ):
        with MemoryStore() as store, pytest.raises(error):
            import_cells(store, io.BytesIO(data).read)


def test_a_value_that_is_not_whole_is_not_exported() -> None:
    out = io.BytesIO()
    with new_store() as store:
        root = store.commit(value_of(4)).root_hash
        store.discard([novelty(Vector.of(["3 ".ljust(200, "x")]))[0][0]])
        with pytest.raises(MissingData):
            export_cells(store, root, out.write)
        with pytest.raises(MissingData):
            announce_cells(store, [bytes(32)])
    with MemoryStore() as target, pytest.raises(DataLatticeError):
        import_cells(target, io.BytesIO(out.getvalue()).read)


def test_announcing_goes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_ANNOUNCED_MAX", 7)
    value = Vector.of([f"{n} ".ljust(200, "x") for n in range(60)])
    hashes = [hash for hash, _, _ in novelty(value)]
    with new_store() as store:
        store.commit(Vector.of([0]))
        before = store.root_hash()
        store.put(value)
        announce_cells(store, [hashes[-1]])
        assert all(store.announced(hash) for hash in hashes)
        assert store.root_hash() == before
        assert store.check().is_clean
