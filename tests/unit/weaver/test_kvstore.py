"""The key-value machine: commands, queries, conflicts, batches and watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given, strategies as st

from datalattice.clock import Hlc
from datalattice.errors import BadFormat, UsageError
from datalattice.testing.machine_kit import KIT_AUTHORS, MachineReplica
from datalattice.weaver import kv
from datalattice.weaver.kv import (
    BatchRequest,
    DeleteOp,
    DeleteRequest,
    GetRequest,
    GetResponse,
    InspectRequest,
    InspectResponse,
    KeyValuePair,
    KvMachine,
    KvPayload,
    ListRequest,
    ListResponse,
    Operation,
    PutOp,
    PutRequest,
    WatchEvent,
    WatchParams,
)
from datalattice.weaver.machine import InvalidParams, Written
from datalattice.weaver.payloads import canonical_writes
from datalattice.weaver.sexpr import sexpr_text
from datalattice.weaver.tables import STATE_KEY_BYTES_MAX

A, B, C = KIT_AUTHORS[:3]


@pytest.fixture
def replica() -> MachineReplica:
    return MachineReplica(KvMachine())


def put(replica: MachineReplica, key: bytes, value: bytes, author: bytes = A) -> bytes:
    answer = replica.execute(author, "Put", PutRequest(key, value))
    assert isinstance(answer, Written)
    return answer.hash


def delete(replica: MachineReplica, key: bytes, author: bytes = A) -> None:
    replica.execute(author, "Delete", DeleteRequest(key))


def get(replica: MachineReplica, key: bytes) -> GetResponse:
    return cast("GetResponse", replica.query("Get", GetRequest(key)))


def inspect(replica: MachineReplica, key: bytes) -> InspectResponse:
    return cast("InspectResponse", replica.query("Inspect", InspectRequest(key)))


def listed(replica: MachineReplica, prefix: bytes = b"") -> tuple[KeyValuePair, ...]:
    return cast("ListResponse", replica.query("List", ListRequest(prefix))).items


def batch(replica: MachineReplica, *ops: Operation, author: bytes = A) -> None:
    replica.execute(author, "Batch", BatchRequest(ops))


def puts(key: bytes, value: bytes) -> Operation:
    return Operation(put=PutOp(key, value))


def deletes(key: bytes) -> Operation:
    return Operation(delete=DeleteOp(key))


def concurrent(replica: MachineReplica, key: bytes = b"k") -> tuple[bytes, bytes]:
    """Write a key twice, the second time without having seen the first."""
    first = replica.write(A, KvPayload((puts(key, b"a"),)).encode())
    second = replica.write(B, KvPayload((puts(key, b"b"),)).encode())
    return first.hash, second.hash


# --- put, get, delete, list ---------------------------------------------------------------------


def test_put_get_delete_list(replica: MachineReplica) -> None:
    put(replica, b"b", b"2")
    put(replica, b"a", b"1")
    put(replica, b"c", b"3")
    delete(replica, b"c")
    assert get(replica, b"a") == GetResponse(b"1", conflicted=False)
    assert get(replica, b"c") == GetResponse(None)
    assert listed(replica) == (KeyValuePair(b"a", b"1"), KeyValuePair(b"b", b"2"))


def test_list_takes_a_prefix(replica: MachineReplica) -> None:
    for key in (b"\xfe", b"\xff", b"\xffa", b"\xff\xff", b"a", b"ab", b"b"):
        put(replica, key, b"")
    assert [item.key for item in listed(replica, b"a")] == [b"a", b"ab"]
    assert [item.key for item in listed(replica, b"\xff")] == [b"\xff", b"\xffa", b"\xff\xff"]
    assert listed(replica, b"c") == ()


def test_an_empty_value_is_live(replica: MachineReplica) -> None:
    put(replica, b"k", b"")
    assert get(replica, b"k") == GetResponse(b"")
    assert listed(replica) == (KeyValuePair(b"k", b""),)


def test_deleting_a_missing_key_writes_a_tombstone(replica: MachineReplica) -> None:
    delete(replica, b"k")
    assert inspect(replica, b"k").tombstone


@pytest.mark.parametrize("name", ["Put", "Delete"])
@pytest.mark.parametrize("size", [0, STATE_KEY_BYTES_MAX + 1])
def test_commands_refuse_empty_and_long_keys(replica: MachineReplica, name: str, size: int) -> None:
    request = PutRequest(bytes(size)) if name == "Put" else DeleteRequest(bytes(size))
    with pytest.raises(UsageError, match=f"1 to 32768 bytes, got {size}"):
        replica.execute(A, name, request)
    assert replica.log.entries == []


def test_long_keys_and_values(replica: MachineReplica) -> None:
    for key in (bytes(511), bytes(512), bytes(STATE_KEY_BYTES_MAX)):
        put(replica, key, key)
        assert get(replica, key).value == key
    put(replica, b"large", bytes(1 << 20))
    assert get(replica, b"large").value == bytes(1 << 20)


def test_an_empty_key_replays(replica: MachineReplica) -> None:
    replica.write(A, KvPayload((puts(b"", b"v"),)).encode())
    assert get(replica, b"") == GetResponse(b"v")


def test_a_key_that_is_too_long_replays_and_changes_nothing(replica: MachineReplica) -> None:
    payload = KvPayload((puts(bytes(STATE_KEY_BYTES_MAX + 1), b"v"), puts(b"k", b"v"))).encode()
    replica.write(A, payload)
    assert listed(replica) == (KeyValuePair(b"k", b"v"),)


def test_kv_handle_strict_updates(replica: MachineReplica) -> None:
    first = put(replica, b"k", b"v")
    second = put(replica, b"k", b"v")
    assert first != second
    assert inspect(replica, b"k").heads == (second,)


# --- conflicts ----------------------------------------------------------------------------------


def test_get_conflict_flag_on_concurrent_writes(replica: MachineReplica) -> None:
    concurrent(replica)
    assert get(replica, b"k") == GetResponse(b"b", conflicted=True)


def test_get_conflict_flag_cleared_after_merge(replica: MachineReplica) -> None:
    concurrent(replica)
    put(replica, b"k", b"c", C)
    assert get(replica, b"k") == GetResponse(b"c", conflicted=False)


def test_get_conflict_flag_missing_key(replica: MachineReplica) -> None:
    assert get(replica, b"k") == GetResponse(None, conflicted=False)


def test_list_conflict_flag(replica: MachineReplica) -> None:
    put(replica, b"a", b"1")
    concurrent(replica)
    assert [item.conflicted for item in listed(replica)] == [False, True]


def test_inspect_missing_key(replica: MachineReplica) -> None:
    assert inspect(replica, b"k") == InspectResponse(b"k")


def test_inspect_single_head(replica: MachineReplica) -> None:
    head = put(replica, b"k", b"v")
    assert inspect(replica, b"k") == InspectResponse(
        b"k", exists=True, value=b"v", heads=(head,), head_count=1
    )


def test_inspect_tombstone(replica: MachineReplica) -> None:
    put(replica, b"k", b"v")
    delete(replica, b"k")
    found = inspect(replica, b"k")
    assert (found.exists, found.value, found.tombstone, found.head_count) == (True, None, True, 1)


def test_inspect_conflicted(replica: MachineReplica) -> None:
    first, second = concurrent(replica)
    found = inspect(replica, b"k")
    assert (found.conflicted, found.heads, found.head_count) == (True, (second, first), 2)


def test_writes_name_the_heads_that_they_replace(replica: MachineReplica) -> None:
    heads = concurrent(replica)
    delete(replica, b"k", C)
    assert replica.log.entries[-1].signed.intention.deps == tuple(sorted(heads))


# --- batch --------------------------------------------------------------------------------------


def test_batch_atomic(replica: MachineReplica) -> None:
    put(replica, b"b", b"old")
    batch(replica, puts(b"a", b"1"), deletes(b"b"), puts(b"c", b"3"))
    assert len(replica.log.entries) == 2
    assert [item.key for item in listed(replica)] == [b"a", b"c"]


def test_batch_deduplication(replica: MachineReplica) -> None:
    batch(replica, puts(b"k", b"1"), puts(b"other", b"o"), deletes(b"k"), puts(b"k", b"2"))
    payload = KvPayload.decode(replica.log.entries[0].signed.intention.payload)
    assert payload == KvPayload((puts(b"other", b"o"), puts(b"k", b"2")))
    assert get(replica, b"k").value == b"2"


def test_batch_large(replica: MachineReplica) -> None:
    batch(replica, *[puts(b"%03d" % number, b"v") for number in range(100)])
    assert len(listed(replica)) == 100
    assert len(replica.log.entries) == 1


def test_batch_empty_key_rejected(replica: MachineReplica) -> None:
    with pytest.raises(UsageError, match="a key has 1 to"):
        batch(replica, puts(b"k", b"v"), puts(b"", b"v"))


def test_batch_binary_keys(replica: MachineReplica) -> None:
    batch(replica, puts(b"\x00\xff\xfe", b"v"), puts(b"\xff", b"w"))
    assert get(replica, b"\x00\xff\xfe").value == b"v"


def test_batch_refuses_nothing_and_operations_without_kind(replica: MachineReplica) -> None:
    with pytest.raises(UsageError, match="at least one"):
        batch(replica)
    with pytest.raises(UsageError, match="a put or a delete"):
        batch(replica, Operation())


def test_batch_replaces_the_heads_of_all_its_keys(replica: MachineReplica) -> None:
    heads = {*concurrent(replica, b"k"), *concurrent(replica, b"l")}
    batch(replica, puts(b"k", b"1"), puts(b"l", b"2"), author=C)
    assert set(replica.log.entries[-1].signed.intention.deps) == heads
    assert not get(replica, b"k").conflicted


# --- watch --------------------------------------------------------------------------------------


def watched(replica: MachineReplica, params: WatchParams) -> Iterator[WatchEvent]:
    chosen = replica.machine.event_filter("watch", params)
    for message in replica.take_events():
        event = chosen(message)
        if event is not None:
            assert isinstance(event, WatchEvent)
            yield event


def test_watch_basic(replica: MachineReplica) -> None:
    put(replica, b"k", b"v")
    delete(replica, b"k")
    assert list(watched(replica, WatchParams())) == [
        WatchEvent(b"k", b"v"),
        WatchEvent(b"k", deleted=True),
    ]


def test_subscribe_stream_tombstone_should_not_resurrect(replica: MachineReplica) -> None:
    put(replica, b"k", b"v")
    delete(replica, b"k")
    assert len(list(watched(replica, WatchParams()))) == 2
    replica.project()
    assert list(watched(replica, WatchParams())) == []


def test_watch_binary_key_safety(replica: MachineReplica) -> None:
    put(replica, b"\xff\x00\n", b"v")
    assert [event.key for event in watched(replica, WatchParams(b"\xff"))] == [b"\xff\x00\n"]


def test_watch_malformed_replication_entry(replica: MachineReplica) -> None:
    chosen = replica.machine.event_filter("watch", WatchParams())
    assert chosen(Written(b"x")) is None
    bad = replica.write(A, b"\xff\xff")
    done = replica.project()
    assert done.stall is not None
    assert done.stall.hash == bad.hash
    assert isinstance(done.stall.error, BadFormat)
    assert list(watched(replica, WatchParams())) == []


def test_watch_prefix_filtering(replica: MachineReplica) -> None:
    for key in (b"user/1", b"group/1", b"user/2"):
        put(replica, key, b"v")
    keys = [event.key for event in watched(replica, WatchParams(b"user/"))]
    assert keys == [b"user/1", b"user/2"]


def test_watch_multiple_watchers(replica: MachineReplica) -> None:
    filters = [
        replica.machine.event_filter("watch", WatchParams(prefix)) for prefix in (b"", b"a", b"b")
    ]
    put(replica, b"a", b"v")
    (event,) = replica.take_events()
    assert [chosen(event) is event for chosen in filters] == [True, True, False]


def test_watch_by_a_regular_expression(replica: MachineReplica) -> None:
    for key in (b"user/1", b"user/12", b"group/1", b"\xffuser/1"):
        put(replica, key, b"v")
    events = list(watched(replica, WatchParams(pattern=r"user/\d$")))
    assert [event.key for event in events] == [b"user/1", b"\xffuser/1"]


def test_watch_by_prefix_and_pattern_needs_both(replica: MachineReplica) -> None:
    for key in (b"user/1", b"user/x", b"x/1"):
        put(replica, key, b"v")
    events = list(watched(replica, WatchParams(b"user/", r"\d")))
    assert [event.key for event in events] == [b"user/1"]


@pytest.mark.parametrize("pattern", ["(", "a{5000}", "(?P<x", r"\8"])
def test_an_invalid_pattern_is_refused(replica: MachineReplica, pattern: str) -> None:
    with pytest.raises(InvalidParams, match="is not valid"):
        replica.machine.event_filter("watch", WatchParams(pattern=pattern))


def test_a_long_pattern_is_refused(replica: MachineReplica) -> None:
    with pytest.raises(InvalidParams, match="at most 1024 bytes, got 1026"):
        replica.machine.event_filter("watch", WatchParams(pattern="ä" * 513))


def test_a_pattern_cannot_stop_the_node(replica: MachineReplica) -> None:
    chosen = replica.machine.event_filter("watch", WatchParams(pattern="(a*)*(a*)*b"))
    assert chosen(WatchEvent(b"a" * 30_000, b"")) is None


def test_without_the_package_a_pattern_names_the_extra(
    replica: MachineReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "re2", None)
    with pytest.raises(UsageError, match=r"datalattice\[regex\]"):
        replica.machine.event_filter("watch", WatchParams(pattern="a"))
    assert replica.machine.event_filter("watch", WatchParams(b"a"))(WatchEvent(b"a")) is not None
    assert "re" in sys.modules  # Python's own engine backtracks and is not a substitute


def test_a_losing_write_announces_the_winner_again(replica: MachineReplica) -> None:
    put(replica, b"k", b"winner", B)
    replica.take_events()
    replica.write(A, KvPayload((puts(b"k", b"loser"),)).encode(), stamp=Hlc(1, 0))
    assert replica.take_events() == [WatchEvent(b"k", b"winner")]


def test_events_of_a_batch_come_in_its_order(replica: MachineReplica) -> None:
    batch(replica, puts(b"b", b"1"), deletes(b"a"), puts(b"c", b"2"))
    assert replica.take_events() == [
        WatchEvent(b"b", b"1"),
        WatchEvent(b"a", deleted=True),
        WatchEvent(b"c", b"2"),
    ]


# --- payloads -----------------------------------------------------------------------------------

OPERATIONS = st.one_of(
    st.builds(puts, st.binary(max_size=1) | st.binary(max_size=200), st.binary(max_size=200)),
    st.builds(deletes, st.binary(max_size=1) | st.binary(max_size=200)),
)


def as_message(payload: bytes) -> list[tuple[bytes, bytes | None]]:
    found: dict[bytes, bytes | None] = {}
    for operation in KvPayload.decode(payload).ops:
        if operation.put is not None:
            found.pop(operation.put.key, None)
            found[operation.put.key] = operation.put.value
        elif operation.delete is not None:
            found.pop(operation.delete.key, None)
            found[operation.delete.key] = None
    return list(found.items())


def read_fast(payload: bytes) -> list[tuple[bytes, bytes | None]] | None:
    found = canonical_writes(payload)
    return None if found is None else list(found.items())


@given(st.lists(OPERATIONS, max_size=5), st.data())
def test_payloads_are_read_as_their_message(ops: list[Operation], data: st.DataObject) -> None:
    payload = KvPayload(tuple(ops)).encode()
    assert read_fast(payload) == as_message(payload)
    # One byte changed, removed or added: what is read fast is what the message says.
    damaged = bytearray(payload)
    at = data.draw(st.integers(0, len(payload)))
    damaged[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=2))
    found = read_fast(bytes(damaged))
    if found is not None:
        assert found == as_message(bytes(damaged))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\x00",  # an operation without kind
        b"\x0a\x02\x1a\x00",  # of an unknown kind
        b"\x0a\x03\x0a\x81\x00",  # a length that is written too long
        b"\x0a\x05\x0a\x03\x12\x01v\x0a\x00",  # more behind the put
        b"\x0a\x09\x0a\x07\x12\x01v\x0a\x01k\x0a",  # cut short
        b"\x12\x00",
        b"\x0a\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a",
    ],
)
def test_other_encodings_are_left_to_the_message(payload: bytes) -> None:
    assert read_fast(payload) is None


def test_another_encoding_of_a_payload_replays(replica: MachineReplica) -> None:
    # The value stands before the key.
    replica.write(A, b"\x0a\x08\x0a\x06\x12\x01v\x0a\x01k")
    assert get(replica, b"k").value == b"v"


# --- summaries ----------------------------------------------------------------------------------


def test_summaries(replica: MachineReplica) -> None:
    payload = KvPayload((puts(b"k", b"\xff"), deletes(b"gone"))).encode()
    shown = [sexpr_text(expr) for expr in replica.machine.summarize(payload)]
    assert shown == ['(put "k" ff)', '(del "gone")']
    assert replica.machine.decode_payload(payload) == KvPayload.decode(payload)
