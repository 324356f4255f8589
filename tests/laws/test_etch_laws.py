"""Etch laws: an Etch file against a dict, under writes, label changes, reopening and collection."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from datalattice.cells import Value, Vector, decode, encode, novelty, same, value_hash
from datalattice.store.etch import (
    PERSISTED,
    STORED,
    EtchStore,
    EtchWriter,
    check_etch,
    collect_etch,
)
from datalattice.testing import strategies
from datalattice.testing.disk import SimDisk

PATH = "d/f"


def crowded_keys() -> st.SearchStrategy[bytes]:
    """Return keys that share many digits, so that chains and deep blocks come about."""
    few = st.sampled_from((0, 1, 15, 16, 17, 255))
    return st.tuples(st.sampled_from((0, 255)), few, few, few, few).map(
        lambda digits: bytes(digits) + bytes(27)
    )


class MadeUpKeys(RuleBasedStateMachine):
    """Records under keys that are no hashes, which the index does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk(1)
        self.store = EtchStore.open(PATH, disk=self.disk)
        self.model: dict[bytes, tuple[bytes, int, int]] = {}

    def teardown(self) -> None:
        self.store.close()

    @property
    def writer(self) -> EtchWriter:
        assert isinstance(self.store.file, EtchWriter)
        return self.store.file

    @rule(
        keys=st.lists(crowded_keys(), min_size=1, max_size=12),
        status=st.integers(1, 4),
        size=st.integers(1, 1_000),
    )
    def put(self, keys: list[bytes], status: int, size: int) -> None:
        for key in keys:
            new = self.writer.put(key, b"\x31\x01" + key[4:5], status, size)
            assert new == (key not in self.model)
            encoding, old, known = self.model.get(key, (b"\x31\x01" + key[4:5], 0, 0))
            highest = max(old, status)
            self.model[key] = (encoding, highest, known or (size if highest >= PERSISTED else 0))

    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = EtchStore.open(PATH, disk=self.disk)

    @rule(key=crowded_keys())
    def find(self, key: bytes) -> None:
        record = self.writer.get(key)
        assert (record is not None) == (key in self.model)
        if record is not None:
            assert (record.encoding, record.status, record.memory_size) == self.model[key]

    @rule()
    def list_all(self) -> None:
        found = {record.key: record for record in self.writer.records()}
        assert found.keys() == self.model.keys()


class Values(RuleBasedStateMachine):
    """Values committed, staged, collected; the file is without fault all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk(2)
        self.store = EtchStore.open(PATH, disk=self.disk)
        self.root: Value = None
        self.has_root = False
        self.staged: list[bytes] = []

    def teardown(self) -> None:
        self.is_whole()
        self.store.close()

    @rule(value=strategies.values(max_leaves=5), wide=st.booleans())
    def commit(self, value: Value, wide: bool) -> None:
        self.root = decode(encode(value)) if not novelty(value) else value
        if wide:
            self.root = Vector.of([value, "x" * 200, value, "y" * 5_000])
        self.store.commit(self.root)
        self.has_root = True
        assert self.store.status(value_hash(self.root)) >= PERSISTED

    @rule(value=strategies.values(max_leaves=3))
    def put(self, value: Value) -> None:
        self.store.put(value)
        assert value is None or self.store.status(value_hash(value)) >= STORED
        self.staged.append(value_hash(value))

    @rule(pins=st.data())
    def collect(self, pins: Any) -> None:
        kept = pins.draw(st.lists(st.sampled_from(self.staged))) if self.staged else []
        before = {hash: self.store.get_encoding(hash) for hash in kept}
        root = self.store.root_hash()
        self.store.close()
        collect_etch(PATH, kept, disk=self.disk)
        self.store = EtchStore.open(PATH, disk=self.disk)
        assert self.store.root_hash() == root
        assert all(self.store.get_encoding(hash) == before[hash] for hash in kept)
        self.staged = kept
        if self.has_root:
            self.root = self.store.root()

    @rule()
    def is_whole(self) -> None:
        self.store.sync()
        report = check_etch(PATH, disk=self.disk)
        assert report.is_clean, report.faults
        assert report.unreached_bytes == 0
        with EtchStore.open(PATH, read_only=True, disk=self.disk) as reader:
            assert (reader.root_hash() is not None) == self.has_root
            assert same(reader.root(), self.root)


STEPS = 12
"""Of one example: each costs some reading of half a megabyte."""

TestMadeUpKeys = MadeUpKeys.TestCase
TestMadeUpKeys.settings = settings(stateful_step_count=STEPS)
TestValues = Values.TestCase
TestValues.settings = settings(stateful_step_count=STEPS)
