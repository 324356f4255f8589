"""Engines against a sorted dictionary, with transactions that fail and reopening in between."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from datalattice.engine import (
    JOURNAL_TABLE,
    Engine,
    JournaledEngine,
    LmdbEngine,
    MemoryEngine,
    Snapshot,
    open_journal,
)

EDGES = st.builds(  # keys around the lengths at which a key is split, with few different bytes
    lambda head, length, tail: (head * 2_000)[:length] + tail,
    st.sampled_from([b"a", b"\xff", b"ab"]),
    st.sampled_from([509, 510, 511, 1_012, 1_013, 1_514, 1_515]),
    st.sampled_from([b"", b"\0", b"a", b"b", b"\xff", b"\xff\xff", bytes(600)]),
)
KEYS = st.one_of(st.binary(max_size=3), EDGES)
BOUNDS = KEYS
CHANGES = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=9))), max_size=8)
TABLE = "t"


class EngineMachine(RuleBasedStateMachine):
    """Transactions on an engine and on a dictionary give the same tables."""

    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[bytes, bytes] = {}
        self.views: list[tuple[Snapshot, dict[bytes, bytes]]] = []

    def apply(self, changes: list[tuple[bytes, bytes | None]], fail: bool) -> None:
        model = dict(self.model)
        with self.engine.write() as txn:
            for key, value in changes:
                if value is None:
                    assert txn.delete(TABLE, key) == (model.pop(key, None) is not None)
                else:
                    txn.put(TABLE, key, value)
                    model[key] = value
            assert list(txn.scan(TABLE)) == sorted(model.items())
            assert txn.count(TABLE) == len(model)
            if fail:
                raise KeyError
        self.model = model

    @rule(changes=CHANGES)
    def commit(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        self.apply(changes, fail=False)

    @rule(changes=CHANGES)
    def roll_back(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        try:
            self.apply(changes, fail=True)
        except KeyError:
            return
        raise AssertionError("the exception was swallowed")

    @rule(items=st.lists(st.tuples(KEYS, st.binary(max_size=9)), max_size=20))
    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        with self.engine.write() as txn:
            txn.put_many(TABLE, items)
        self.model.update(items)

    @rule(start=BOUNDS, end=st.one_of(st.none(), BOUNDS))
    def delete_range(self, start: bytes, end: bytes | None) -> None:
        gone = [k for k in self.model if k >= start and (end is None or k < end)]
        with self.engine.write() as txn:
            assert txn.delete_range(TABLE, start, end) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(start=BOUNDS, end=st.one_of(st.none(), BOUNDS), reverse=st.booleans())
    def scan(self, start: bytes, end: bytes | None, reverse: bool) -> None:
        wanted = sorted(
            (k, v) for k, v in self.model.items() if k >= start and (end is None or k < end)
        )
        with self.engine.read() as view:
            found = list(view.scan(TABLE, start, end, reverse=reverse))
        with self.engine.write() as txn:
            inside = list(txn.scan(TABLE, start, end, reverse=reverse))
        assert found == inside == (wanted[::-1] if reverse else wanted)

    @rule()
    def keep_a_view(self) -> None:
        if len(self.views) < 3:
            self.views.append((self.engine.read(), dict(self.model)))

    @rule()
    def check_and_drop_a_view(self) -> None:
        if self.views:
            view, model = self.views.pop(0)
            assert list(view.scan(TABLE)) == sorted(model.items())
            assert view.get_many(TABLE, list(model)) == list(model.values())
            view.close()

    @invariant()
    def shows_the_model(self) -> None:
        with self.engine.read() as view:
            assert dict(view.scan(TABLE)) == self.model
            assert view.count(TABLE) == len(self.model)

    def teardown(self) -> None:
        for view, _ in self.views:
            view.close()
        self.views.clear()
        self.engine.close()


class MemoryMachine(EngineMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = MemoryEngine((TABLE,))


class JournaledMachine(EngineMachine):
    """Two engines on one journal take turns, as two processes do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        base = LmdbEngine(self.folder, (TABLE, JOURNAL_TABLE), durable=False)
        opens = partial(open_journal, self.folder, create=True)
        # A few records fill the journal.
        self.engine, self.other = (
            JournaledEngine(base, opens, b"boot", full_bytes=200) for _ in range(2)
        )

    @rule()
    def take_turns(self) -> None:
        self.engine, self.other = self.other, self.engine

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


class LmdbMachine(EngineMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.engine = LmdbEngine(self.folder, (TABLE,), durable=False)

    @rule()
    def reopen(self) -> None:
        for view, _ in self.views:
            view.close()
        self.views.clear()
        self.engine.sync()
        self.engine.close()
        self.engine = LmdbEngine(self.folder, (TABLE,), durable=False)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


TestJournaledEngine = JournaledMachine.TestCase
TestMemoryEngine = MemoryMachine.TestCase
TestLmdbEngine = LmdbMachine.TestCase
