"""A store against a list of its commits: deaths, power failures, refusals, readers beside it."""

from __future__ import annotations

import errno

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from datalattice.cells import Blob, Map, Value, Vector, missing, novelty, same, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import StoreError
from datalattice.limits import CHUNK_BYTES
from datalattice.store import CellStore
from datalattice.store.log import stagedspans
from datalattice.testing.disk import SimDisk, SimulatedCrash

FOLDER = "store"
LONG = "long enough to be a cell of its own " * 5
TEXTS = st.integers(0, 30).map(lambda n: f"{n} {LONG}")
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(0, 9), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5).map(Vector.of),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=4).map(
            lambda entries: Map.of(list(entries.items()))
        ),
    ),
    max_leaves=12,
)


BLOBS = st.lists(st.integers(0, 20), min_size=5, max_size=40).map(
    lambda chunks: Blob.of(b"".join(bytes([chunk]) * CHUNK_BYTES for chunk in chunks) + b"end")
)


class StoreMachine(RuleBasedStateMachine):
    """What was acknowledged is there; what was not is there as a whole or not at all."""

    def __init__(self) -> None:
        super().__init__()
        # So that small blobs are announced by where they are, as large ones.
        self.bounds = stagedspans.LARGE_BYTES, stagedspans.SPAN_CELLS_MIN
        stagedspans.LARGE_BYTES, stagedspans.SPAN_CELLS_MIN = 1, 8
        self.disk = SimDisk(1)
        self.root: Value = None
        self.has_root = False
        self.announced: set[bytes] = set()
        self.staged: dict[bytes, Value] = {}
        self.durable_stage: dict[bytes, Value] = {}
        self.store = self.open()
        self.reader: CellStore | None = None

    def open(self, *, read_only: bool = False) -> CellStore:
        return CellStore.open(
            FOLDER,
            disk=self.disk,
            entropy=SeededEntropy(1),
            segment_bytes=4_096,
            recent_entries=20,
            cache_bytes=5_000,
            read_only=read_only,
        )

    def committed(self, value: Value) -> None:
        self.root, self.has_root = value, True
        self.announced |= {hash for hash, _, _ in novelty(value)} | {value_hash(value)}
        self.durable_stage.update(self.staged)

    @rule(value=VALUES)
    def commit(self, value: Value) -> None:
        done = self.store.commit(value)
        assert done.root_hash == value_hash(value)
        self.committed(value)

    @rule(value=VALUES, right=st.booleans())
    def compare_and_set(self, value: Value, right: bool) -> None:
        expected = self.store.root_hash() if right else b"x" * 32
        done = self.store.commit(value, expected)
        assert (done is not None) == right
        if right:
            self.committed(value)

    @rule(value=VALUES)
    def grow(self, value: Value) -> None:
        """Commit a value that holds the present root, loaded from the store."""
        root = self.store.root()
        grown = root.append(value) if isinstance(root, Vector) else Vector.of([root, value])
        self.store.commit(grown)
        self.committed(grown)

    @rule(value=VALUES)
    def put(self, value: Value) -> None:
        self.store.put(value)
        self.staged[value_hash(value)] = value

    @rule(blob=BLOBS)
    def put_blob(self, blob: Value) -> None:
        self.put(blob)

    @rule(blob=BLOBS, other=VALUES)
    def commit_what_was_put(self, blob: Value, other: Value) -> None:
        for value in (blob, Vector.of([other, blob])):
            self.store.put(value)
        self.commit(Vector.of([*self.staged.values(), blob, other]))

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.durable_stage.update(self.staged)

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.durable_stage.update(self.staged)
        self.begin_again()

    @rule(power_failure=st.booleans())
    def die(self, power_failure: bool) -> None:
        self.disk.restart(power_failure=power_failure)
        self.begin_again()

    @rule(value=VALUES, steps=st.integers(1, 8), power_failure=st.booleans())
    def die_in_a_commit(self, value: Value, steps: int, power_failure: bool) -> None:
        self.disk.crash_at = self.disk.steps + steps
        try:
            self.store.commit(value)
        except SimulatedCrash:
            self.disk.restart(power_failure=power_failure)
            self.begin_again(value)
        else:
            self.disk.crash_at = None
            self.committed(value)

    @rule(value=VALUES, steps=st.integers(1, 4), code=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def fail_in_a_commit(self, value: Value, steps: int, code: int) -> None:
        self.disk.fail_at, self.disk.fail_errno = self.disk.steps + steps, code
        try:
            self.store.commit(value)
        except StoreError:
            self.store.close()
            self.disk.restart(power_failure=False)
            self.begin_again(value)
        else:
            self.disk.fail_at = None
            self.committed(value)

    def teardown(self) -> None:
        stagedspans.LARGE_BYTES, stagedspans.SPAN_CELLS_MIN = self.bounds

    def begin_again(self, attempted: Value = None) -> None:
        self.reader = None
        self.staged = {}
        self.store = self.open()
        found = self.store.root_hash()
        if found is not None and (not self.has_root or found != value_hash(self.root)):
            assert found == value_hash(attempted)
            self.committed(attempted)
        assert self.store.damage == ()

    @rule()
    def read_beside(self) -> None:
        if self.reader is None:
            self.reader = self.open(read_only=True)
        assert self.reader.root_hash() == self.store.root_hash()
        if self.has_root:
            assert same(self.reader.root(), self.root)
            assert missing(self.reader.root()) == []

    @invariant()
    def holds_the_root(self) -> None:
        assert self.store.root_hash() == (value_hash(self.root) if self.has_root else None)
        assert same(self.store.root(), self.root)
        assert missing(self.store.root()) == []

    @invariant()
    def announces_what_was_reached_and_keeps_what_was_staged(self) -> None:
        for hash in self.announced:
            assert self.store.announced(hash)
        for hash, value in (self.staged | self.durable_stage).items():
            assert same(self.store.load(hash), value)
            if hash not in self.announced:
                assert not self.store.announced(hash)


TestStore = StoreMachine.TestCase
