"""Hundreds of stores live in one engine: sections of it, with few descriptors and little memory."""

from __future__ import annotations

import resource
from pathlib import Path

from datalattice.engine import GroupCommit, GroupTxn, LmdbEngine, section

STORES = 500
KEYS = (b"", b"k" * 511, b"k" * 512)
LARGE = 1 << 20
DESCRIPTORS_MAX = 3
MEMORY_MAX = 64 << 20


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def memory_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_500_sections_are_open_at_once(tmp_path: Path) -> None:
    before = descriptors(), memory_peak()
    engine = LmdbEngine(tmp_path, ("data", "log"), durable=False)
    group = GroupCommit(engine)
    prefixes = [number.to_bytes(4, "big") for number in range(STORES)]
    large = b"x" * LARGE

    def fill(txn: GroupTxn) -> None:
        for prefix in prefixes:
            store = section(txn, prefix)
            store.put_many("data", [(key, prefix + key) for key in KEYS])
        for prefix in prefixes[::100]:
            section(txn, prefix).put("data", b"large", large)

    group.run(fill)
    with group.read() as view:
        stores = [section(view, prefix) for prefix in prefixes]
        for prefix, store in zip(prefixes, stores, strict=True):
            assert [store.get("data", key) for key in KEYS] == [prefix + key for key in KEYS]
        assert [key for key, _ in stores[7].scan("data")] == list(KEYS)
        assert all(store.get("data", b"large") == large for store in stores[::100])
        assert sum(store.get("data", b"large") is not None for store in stores) == STORES // 100
    for prefix in prefixes:  # each store commits on its own
        group.run(lambda txn, prefix=prefix: section(txn, prefix).put("log", b"", prefix))  # type: ignore[misc]
    assert descriptors() - before[0] <= DESCRIPTORS_MAX
    assert memory_peak() - before[1] <= MEMORY_MAX
    engine.close()
    assert descriptors() <= before[0]
