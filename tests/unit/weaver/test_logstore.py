"""The log machine: order, tail, following, and entries with equal stamps."""

from __future__ import annotations

from typing import cast

import pytest

from datalattice.clock import Hlc
from datalattice.errors import UsageError
from datalattice.testing.machine_kit import KIT_AUTHORS, MachineReplica
from datalattice.weaver.appendlog import (
    AppendRequest,
    FollowParams,
    LogEvent,
    LogMachine,
    ReadRequest,
    ReadResponse,
    entries,
)
from datalattice.weaver.machine import Written
from datalattice.weaver.null import NullMachine, WriteRequest
from datalattice.weaver.sexpr import sexpr_text
from datalattice.weaver.tables import STATE_DATA

A, B = KIT_AUTHORS[:2]


@pytest.fixture
def replica() -> MachineReplica:
    return MachineReplica(LogMachine())


def append(replica: MachineReplica, content: bytes, author: bytes = A) -> bytes:
    return cast("Written", replica.execute(author, "Append", AppendRequest(content))).hash


def read(replica: MachineReplica, tail: int | None = None) -> tuple[bytes, ...]:
    return cast("ReadResponse", replica.query("Read", ReadRequest(tail))).items


def test_dispatch_log(replica: MachineReplica) -> None:
    assert len(append(replica, b"one")) == 32
    append(replica, b"two")
    assert read(replica) == (b"one", b"two")
    assert read(replica, 1) == (b"two",)


def test_tail(replica: MachineReplica) -> None:
    for number in range(5):
        append(replica, b"%d" % number)
    assert read(replica, 0) == ()
    assert read(replica, 2) == (b"3", b"4")
    assert read(replica, 100) == (b"0", b"1", b"2", b"3", b"4")


def test_entries_are_ordered_by_stamp_then_author(replica: MachineReplica) -> None:
    replica.write(B, b"late", stamp=Hlc(5, 1))
    replica.write(A, b"early", stamp=Hlc(4, 9))
    replica.write(A, b"also late", stamp=Hlc(5, 1))
    assert read(replica) == (b"early", b"also late", b"late")


def test_an_empty_payload_is_ignored(replica: MachineReplica) -> None:
    append(replica, b"")
    assert read(replica) == ()
    assert replica.take_events() == []


def test_equal_stamps_of_one_author_keep_both(replica: MachineReplica) -> None:
    replica.write(A, b"first", stamp=Hlc(5, 0))
    replica.write(A, b"second", stamp=Hlc(5, 0))
    replica.write(A, b"third", stamp=Hlc(5, 0))
    assert replica.project().stall is None
    assert sorted(read(replica)) == [b"first", b"second", b"third"]
    assert sorted(len(key) for key in replica.rows(STATE_DATA)) == [44, 76, 76]


def test_follow_gives_entries_in_the_order_of_their_arrival(replica: MachineReplica) -> None:
    chosen = replica.machine.event_filter("Follow", FollowParams())
    replica.write(A, b"late", stamp=Hlc(9, 0))
    replica.write(B, b"early", stamp=Hlc(1, 0))
    assert [chosen(event) for event in replica.take_events()] == [
        LogEvent(b"late"),
        LogEvent(b"early"),
    ]
    assert chosen(Written()) is None


def test_values_begin_with_their_length(replica: MachineReplica) -> None:
    append(replica, b"abc")
    assert list(replica.rows(STATE_DATA).values()) == [b"\x03" + bytes(7) + b"abc"]
    with replica.engine.read() as txn:
        assert [content for _, content in entries(replica.state.reader(txn))] == [b"abc"]


def test_log_persistence_and_snapshot(replica: MachineReplica) -> None:
    append(replica, b"one")
    append(replica, b"two")
    snapshot = replica.snapshot()
    with replica.engine.write() as txn:
        assert replica.state.restore(txn, [snapshot]).fits
    assert read(replica) == (b"one", b"two")
    append(replica, b"three")
    assert read(replica) == (b"one", b"two", b"three")


def test_log_summary_shows_fifty_bytes(replica: MachineReplica) -> None:
    (shown,) = replica.machine.summarize(b"x" * 60)
    assert sexpr_text(shown) == f'(append "{"x" * 50}")'


def test_the_null_machine_keeps_nothing() -> None:
    replica = MachineReplica(NullMachine())
    answer = replica.execute(A, "Write", WriteRequest(b"data"))
    assert isinstance(answer, Written)
    assert replica.rows(STATE_DATA) == {}
    assert replica.log.entries[0].signed.intention.payload == b"data"
    with pytest.raises(UsageError, match="has no stream 'watch'; it has none"):
        replica.machine.find_stream("watch")
