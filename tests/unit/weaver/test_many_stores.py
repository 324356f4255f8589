"""Hundreds of stores are open in one process: one engine, few descriptors, bounded memory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import GroupCommit, LmdbEngine
from datalattice.weaver.intention import LogLimits
from datalattice.weaver.kv import GetRequest, ListRequest, PutRequest
from datalattice.weaver.store import WeaverStore
from datalattice.weaver.stores import STORE_TABLES, Stores

STORES = 500
KEYS = (b"k", b"k" * 511, b"k" * 512)
LARGE = bytes(1 << 20)
LIMITS = LogLimits(payload_bytes=2 << 20, own_payload_bytes=2 << 20)
DESCRIPTORS_MAX = 3
MEMORY_MAX = 128 << 20


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def memory_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def get(store: WeaverStore, key: bytes) -> bytes | None:
    answer: Any = store.query("Get", GetRequest(key=key))
    value: bytes | None = answer.value
    return value


def test_500_stores_are_open_at_once(tmp_path: Path) -> None:
    before = descriptors(), memory_peak()
    engine = LmdbEngine(tmp_path, STORE_TABLES, durable=False)

    def opened() -> Stores:
        key = KeyPair(bytes(range(32)))
        return Stores(GroupCommit(engine), key, SystemClock(), SeededEntropy(15), limits=LIMITS)

    stores = opened()
    ids = [stores.create("kv", f"store {number}").id for number in range(STORES)]
    assert len(stores.opened()) == STORES
    for id in ids:
        store = stores.open(id)
        store.execute("Put", PutRequest(key=b"own", value=id))
    for id in ids[::100]:
        store = stores.open(id)
        for key in KEYS:
            store.execute("Put", PutRequest(key=key, value=b"of " + key))
        store.execute("Put", PutRequest(key=b"large", value=LARGE))
    stores.close_all()

    again = opened()
    assert len(again.open_all()) == STORES
    assert [get(store, b"own") for store in map(again.open, ids)] == ids
    for id in ids[::100]:
        store = again.open(id)
        assert [get(store, key) for key in KEYS] == [b"of " + key for key in KEYS]
        assert get(store, b"large") == LARGE
        listed: Any = store.query("List", ListRequest(prefix=b"k" * 511))
        assert [item.key for item in listed.items] == list(KEYS[1:])
    assert get(again.open(ids[1]), b"large") is None
    assert descriptors() - before[0] <= DESCRIPTORS_MAX
    assert memory_peak() - before[1] <= MEMORY_MAX
    again.close_all()
    engine.close()
    assert descriptors() <= before[0]
