"""One flipped bit anywhere, a cut or a lost file: found, and healed from another store, or refused.

The tables of the index are left out: they are derived, and tests of their own damage them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import pytest

from datalattice.cells import Map, Value, missing, same, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import DataLatticeError, StoreError
from datalattice.store import CellFetcher, CellStore, heal_store, open_damaged
from datalattice.store.gc import collection
from datalattice.store.kept import KEEP_NOTHING
from datalattice.store.kept.history import SLOT_BYTES
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk

FOLDER = "store"
STRIDE = {"quick": 17, "full": 11, "long": 1}[os.environ.get("DATALATTICE_PROFILE", "quick")]
"""Every byte in the long profile, each of so many in the others."""


def text(number: int) -> str:
    return f"text {number} ".ljust(160, "x")


def opened(disk: SimDisk) -> CellStore:
    return CellStore.open(
        FOLDER,
        disk=disk,
        entropy=SeededEntropy(1),
        clock=StoppedClock(1_000_000),
        retention=KEEP_NOTHING,
        segment_bytes=4_096,
    )


def made() -> tuple[SimDisk, Value, Value]:
    """Return a disk with a store that has everything a store can have, its root and its pin."""
    disk = SimDisk(1)
    root = Map.of({})
    with opened(disk) as store:
        for number in range(12):
            root = root.put(f"key {number % 8}", text(number))
            store.commit(root)
            if number == 5:
                pinned = root
                store.pins.pin(value_hash(root), "five")
        store.put(text(100))
        store.collect(grace_ms=0)
        store.lease(store.root_hash() or b"", 3_600)
        root = root.put("last", text(200))
        store.commit(root)
        # What was committed is read through another store: it has to be whole by itself.
        whole = Map.of({key: str(value) for key, value in root.entries()})
    return disk, whole, Map.of({key: str(value) for key, value in _entries(pinned)})


def _entries(_pinned: Map) -> Iterable[tuple[str, str]]:
    return [(f"key {number}", text(number)) for number in range(6)]


class CellSupply:
    """Another store that has everything."""

    def __init__(self) -> None:
        disk, _, _ = made()
        self._store = opened(disk)

    def __call__(self, hashes: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
        for hash in hashes:
            encoding = self._store.get_encoding(hash)
            if encoding is not None:
                yield hash, encoding


def files() -> list[str]:
    disk, _, _ = made()
    names = [name for name in disk._names if not name.endswith(".new")]
    return sorted(name for name in names if disk.size(name))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred bytes be worth a collection."""
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)


def outcome(disk: SimDisk, path: str, root: Value, pinned: Value, supply: CellSupply) -> str:
    """Open, use, check and heal a damaged store; return what was seen of the damage."""
    try:
        store = open_damaged(FOLDER, disk=disk, entropy=SeededEntropy(2))
    except DataLatticeError as error:
        return f"refused: {error}" if FOLDER in str(error) else ""
    seen = ""
    try:
        report = store.check()
        if not report.is_clean or report.scars or store.damage or store.history.damage:
            seen = "reported"
        healed = heal_store(store, CellFetcher(store, supply))
        assert healed.report.is_clean, healed.report
        assert same(store.root(), root), "an older root, or another one"
        assert missing(store.root()) == []
        try:
            assert [pin.root_hash for pin in store.pins.all()] == [value_hash(pinned)]
            assert missing(store.load(value_hash(pinned))) == []
            store.pins.leases()
        except StoreError as error:
            if path not in str(error):  # it has to be named
                raise
            seen = "refused"
    finally:
        store.close()
    return seen


HARMLESS = {f"{FOLDER}/{name}" for name in ("collected", "end", "index.state", "lock", "pins.lock")}
"""Of these nothing is ever believed that could be wrong: the index is made again, the log's end is
written down several times, and the note of a collection has a checksum. The same goes for the last
entry of the history, which is the present root: it is noted again."""


def test_one_flipped_bit_anywhere_is_seen_and_healed_or_refused() -> None:
    supply = CellSupply()
    seen = dict.fromkeys(files(), 0)
    assert len(seen) >= 7, "segments, STORE, index.state, garbage, pins, history, a lease"
    for name in seen:
        disk = made()[0]
        size = disk.size(name)
        for offset in sorted({*range(0, size, STRIDE), *range(min(size, 12)), size - 1}):
            disk, root, pinned = made()
            disk.flip(name, offset, 1 << (offset % 8))
            found = outcome(disk, name, root, pinned, supply)
            is_last_entry = name.endswith("/history") and offset >= size - SLOT_BYTES
            assert found or is_last_entry or name in HARMLESS, f"{name} at {offset} of {size}"
            seen[name] += 1
    assert all(seen.values())


def test_a_cut_or_lost_file_opens_repaired_or_is_refused_by_name() -> None:
    supply = CellSupply()
    for name in files():
        disk = made()[0]
        size = disk.size(name)
        lengths = sorted({0, 1, size // 3, size // 2, size - 5, size - 1} & set(range(size)))
        for length in [*lengths, None]:
            disk, root, pinned = made()
            if length is None:
                disk.drop(name)
            else:
                disk.cut(name, length)
            outcome(disk, name, root, pinned, supply)
