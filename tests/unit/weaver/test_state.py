"""The state: guards, chain check, projection, stalls, rebuilding, snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from datalattice.clock import Hlc
from datalattice.crypto import blake3
from datalattice.engine import LmdbEngine, MemoryEngine, ReadTxn
from datalattice.errors import Corruption, StoreVersion, UsageError
from datalattice.protobuf import Message
from datalattice.testing.machine_kit import (
    KIT_AUTHORS,
    KIT_STORE_ID,
    MachineReplica,
    MemoryLog,
    unsigned,
)
from datalattice.weaver import state as states
from datalattice.weaver.appendlog import LogMachine
from datalattice.weaver.kv import KvMachine, KvPayload, Operation, PutOp
from datalattice.weaver.machine import Dag, Machine, StateTables, StateWriter
from datalattice.weaver.op import Op
from datalattice.weaver.snapshot import SNAPSHOT_PART_BYTES, SnapshotRefused
from datalattice.weaver.state import (
    LOG_START,
    BrokenChain,
    InvalidGenesis,
    PlainLayer,
    State,
    StoreIdMismatch,
    StoreTypeMismatch,
)
from datalattice.weaver.tables import (
    STATE_DATA,
    STATE_KEY_BYTES_MAX,
    STATE_META,
    STATE_SYSTEM,
    STATE_TABLES,
    STATE_VALUE_BYTES_MAX,
    Overlay,
)

A, B = KIT_AUTHORS[:2]


class Keeper(Machine):
    """Keeps `key=value` payloads; refuses some, after it has changed the state."""

    kind = "test:keeper"

    def __init__(self) -> None:
        self.refused = {b"bad"}
        self.applied: list[bytes] = []

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        key, _, value = op.payload.partition(b"=")
        state.put(key, value)
        self.applied.append(op.payload)
        if key in self.refused:
            raise ValueError(f"cannot apply {key!r}")
        return ()


@pytest.fixture
def replica() -> MachineReplica:
    return MachineReplica(Keeper())


# --- guards -------------------------------------------------------------------------------------


def reopened(replica: MachineReplica, machine: Machine, store_id: bytes = KIT_STORE_ID) -> State:
    state = State(store_id, PlainLayer(machine), replica.log)
    with replica.engine.write() as txn:
        state.open(txn)
    return state


def test_guards_are_written_into_an_empty_state(replica: MachineReplica) -> None:
    assert replica.rows(STATE_META) == {
        b"store_id": KIT_STORE_ID,
        b"store_type": b"test:keeper",
        b"schema_version": bytes([1, 0, 0, 0, 0, 0, 0, 0]),
    }
    reopened(replica, Keeper())


def test_another_store_or_kind_is_refused(replica: MachineReplica) -> None:
    with pytest.raises(StoreIdMismatch, match=f"belongs to store {KIT_STORE_ID.hex()}"):
        reopened(replica, Keeper(), bytes(16))
    with pytest.raises(StoreTypeMismatch, match="'test:keeper', and the machine is 'core:kvstore'"):
        reopened(replica, KvMachine())


def test_a_missing_type_is_written(replica: MachineReplica) -> None:
    with replica.engine.write() as txn:
        txn.delete(STATE_META, b"store_type")
    reopened(replica, KvMachine())
    assert replica.rows(STATE_META)[b"store_type"] == b"core:kvstore"


class NewKeeper(Keeper):
    schema = 2


def test_a_newer_schema_is_refused_and_an_older_one_rebuilt(replica: MachineReplica) -> None:
    replica.write(A, b"a=1")
    machine = NewKeeper()
    state = reopened(replica, machine)
    assert replica.rows(STATE_DATA) == {}
    with replica.engine.write() as txn:
        assert state.project(txn).applied == 1
    assert machine.applied == [b"a=1"]
    with pytest.raises(StoreVersion, match="schema 2 of test:keeper"):
        reopened(replica, Keeper())


# --- chain rules --------------------------------------------------------------------------------


def chain_error(replica: MachineReplica) -> Exception | None:
    stall = replica.project().stall
    return None if stall is None else stall.error


def test_chain_rules_compliance(replica: MachineReplica) -> None:
    first = unsigned(A, b"a=1", stamp=Hlc(1, 0))
    second = unsigned(A, b"a=2", stamp=Hlc(2, 0), prev=first.hash)
    replica.deliver(first)
    assert chain_error(replica) is None
    replica.deliver(first)  # the tip again: nothing happens, and projection goes on
    replica.deliver(second)
    assert chain_error(replica) is None
    assert replica.rows(STATE_META)[b"tip/" + A] == second.hash
    assert replica.machine.applied == [b"a=1", b"a=2"]  # type: ignore[attr-defined]


def test_a_first_operation_with_a_predecessor_is_refused(replica: MachineReplica) -> None:
    replica.deliver(unsigned(A, b"a=1", stamp=Hlc(1, 0), prev=b"\x07" * 32))
    assert isinstance(chain_error(replica), InvalidGenesis)


def test_a_broken_link_is_refused(replica: MachineReplica) -> None:
    first = unsigned(A, b"a=1", stamp=Hlc(1, 0))
    replica.deliver(first)
    replica.deliver(unsigned(A, b"a=2", stamp=Hlc(2, 0), prev=b"\x07" * 32))
    error = chain_error(replica)
    assert isinstance(error, BrokenChain)
    assert (error.expected, error.got) == (first.hash, b"\x07" * 32)
    assert replica.rows(STATE_DATA) == {b"a": b"1"}


def test_authors_have_chains_of_their_own(replica: MachineReplica) -> None:
    replica.write(A, b"a=1")
    replica.write(B, b"b=1")
    replica.write(A, b"a=2")
    assert chain_error(replica) is None


# --- projection ---------------------------------------------------------------------------------


def test_projection_stops_at_a_payload_that_cannot_be_applied(replica: MachineReplica) -> None:
    replica.write(A, b"a=1")
    bad = replica.write(A, b"bad=1")
    replica.write(B, b"b=1")
    done = replica.project()
    assert done.applied == 0
    assert done.stall is not None
    assert (done.stall.seq, done.stall.hash) == (2, bad.hash)
    assert str(done.stall.error) == "cannot apply b'bad'"
    # Nothing of the refused operation is left, not even the tip.
    assert replica.rows(STATE_DATA) == {b"a": b"1"}
    assert b"tip/" + B not in replica.rows(STATE_META)
    with replica.engine.read() as txn:
        assert replica.state.position(txn).seq == 1


def test_a_stall_is_over_when_the_machine_can_apply_the_operation(replica: MachineReplica) -> None:
    replica.write(A, b"bad=1")
    replica.write(B, b"b=1")
    replica.machine.refused.clear()  # type: ignore[attr-defined]
    done = replica.project()
    assert (done.applied, done.stall) == (2, None)
    assert replica.rows(STATE_DATA) == {b"bad": b"1", b"b": b"1"}


def test_an_acknowledgement_moves_the_tip_alone(replica: MachineReplica) -> None:
    ack = replica.write(A, b"")
    assert replica.rows(STATE_DATA) == {}
    assert replica.rows(STATE_META)[b"tip/" + A] == ack.hash
    assert replica.machine.applied == []  # type: ignore[attr-defined]


def test_projection_in_steps(replica: MachineReplica) -> None:
    for number in range(5):
        replica.log.append(
            unsigned(KIT_AUTHORS[number], b"k%d=v" % number, stamp=Hlc(number + 1, 0))
        )
    assert [replica.project(2).applied for _ in range(4)] == [2, 2, 1, 0]
    assert len(replica.rows(STATE_DATA)) == 5


def test_a_long_log_is_written_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "BATCH_BYTES", 1_000)
    replica = MachineReplica(Keeper())
    prev = bytes(32)
    for number in range(600):
        signed = unsigned(A, b"%d=%s" % (number, bytes(50)), stamp=Hlc(number + 1, 0), prev=prev)
        replica.log.append(signed)
        prev = signed.hash
    assert replica.project().applied == 600
    assert len(replica.rows(STATE_DATA)) == 600
    assert replica.rows(STATE_META)[b"tip/" + A] == prev


def test_a_store_that_fails_is_no_stall(replica: MachineReplica) -> None:
    class Broken(Keeper):
        def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
            raise Corruption("damaged page")

    state = State(KIT_STORE_ID, PlainLayer(Broken()), replica.log)
    replica.log.append(unsigned(A, b"a=1", stamp=Hlc(1, 0)))
    with pytest.raises(Corruption, match="damaged page"), replica.engine.write() as txn:
        state.project(txn)


def test_a_log_that_ends_before_its_head_is_damaged(replica: MachineReplica) -> None:
    class Cut(MemoryLog):
        def operations(self, txn: ReadTxn | None, start_seq: int, limit: int) -> Iterator[Op]:
            return iter(())

    log = Cut()
    replica.state = State(KIT_STORE_ID, PlainLayer(Keeper()), log)
    log.append(unsigned(A, b"a=1", stamp=Hlc(1, 0)))
    log.append(unsigned(B, b"b=1", stamp=Hlc(2, 0)))
    with pytest.raises(Corruption, match="no record 1, and its head says 2"):
        replica.project()


def test_a_generator_may_be_the_result_of_apply() -> None:
    class Lazy(Keeper):
        def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterator[Message]:
            yield PutOp(b"first")
            state.put(b"k", b"v")
            yield PutOp(b"second")

    replica = MachineReplica(Lazy())
    replica.write(A, b"x")
    assert replica.rows(STATE_DATA) == {b"k": b"v"}
    assert replica.take_events() == [PutOp(b"first"), PutOp(b"second")]


def test_limits_of_keys_and_values_stall_instead_of_failing_the_commit() -> None:
    class Large(Keeper):
        def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
            state.put(bytes(STATE_KEY_BYTES_MAX + 1), b"")
            return ()

    replica = MachineReplica(Large())
    replica.write(A, b"x")
    assert "keys of up to 32768 bytes" in str(chain_error(replica))


def test_a_layer_may_change_all_three_tables() -> None:
    class Layer(PlainLayer):
        def apply(self, op: Op, tables: StateTables, dag: Dag) -> Iterable[Message]:
            tables.system.put(b"name", op.payload)
            tables.meta.put(b"genesis_hash", op.hash)
            return super().apply(op, tables, dag)

    replica = MachineReplica(Keeper())
    replica.state = State(KIT_STORE_ID, Layer(Keeper()), replica.log)
    signed = replica.write(A, b"a=1")
    assert replica.rows(STATE_SYSTEM) == {b"name": b"a=1"}
    assert replica.rows(STATE_META)[b"genesis_hash"] == signed.hash
    with replica.engine.read() as txn:
        assert replica.state.system_reader(txn).get(b"name") == b"a=1"
        assert replica.state.meta_reader(txn).get(b"genesis_hash") == signed.hash


def test_readers_keep_their_view_while_the_writer_works(replica: MachineReplica) -> None:
    replica.write(A, b"a=1")
    with replica.engine.read() as txn:
        view = replica.state.reader(txn)
        replica.write(A, b"a=2")
        assert view.get(b"a") == b"1"
        assert list(view.scan()) == [(b"a", b"1")]


# --- rebuilding ---------------------------------------------------------------------------------


def test_rebuild_live_store(replica: MachineReplica) -> None:
    for number in range(3):
        replica.write(A, b"k%d=v" % number)
    before = {table: replica.rows(table) for table in STATE_TABLES}
    with replica.engine.write() as txn:
        txn.put(STATE_DATA, b"left over", b"x")
        done = replica.state.rebuild(txn)
    assert (done.applied, done.events) == (3, ())
    assert {table: replica.rows(table) for table in STATE_TABLES} == before


def test_rebuilding_stops_at_the_position_and_leaves_new_events_to_come() -> None:
    replica = MachineReplica(LogMachine())
    replica.write(A, b"old")
    replica.log.append(unsigned(B, b"new", stamp=Hlc(9, 0)))
    replica.take_events()
    with replica.engine.write() as txn:
        replica.state.rebuild(txn)
    replica.project()
    assert [event.content for event in replica.take_events()] == [b"new"]  # type: ignore[attr-defined]


def test_state_db_recovery(replica: MachineReplica) -> None:
    replica.write(A, b"a=1")
    before = replica.rows(STATE_DATA)
    replica.engine = MemoryEngine(STATE_TABLES)
    reopened(replica, Keeper())
    replica.project()
    assert replica.rows(STATE_DATA) == before


def test_a_position_of_another_log_rebuilds_without_events() -> None:
    replica = MachineReplica(LogMachine())
    replica.write(A, b"one")
    with replica.engine.write() as txn:
        txn.put(STATE_META, b"last_applied_witness", b"\x07" * 32)
        txn.put(STATE_DATA, b"left over", b"x")
    replica.take_events()
    done = replica.project()
    assert (done.applied, done.events) == (1, ())
    assert b"left over" not in replica.rows(STATE_DATA)


def test_a_position_behind_the_end_of_the_log_rebuilds(replica: MachineReplica) -> None:
    replica.write(A, b"a=1")
    replica.write(A, b"a=2")
    shorter = MemoryLog()
    shorter.append(replica.log.entries[0].signed)
    state = State(KIT_STORE_ID, PlainLayer(Keeper()), shorter)
    with replica.engine.write() as txn:
        state.project(txn)
    assert replica.rows(STATE_DATA) == {b"a": b"1"}


# --- the operations of the log ------------------------------------------------------------------


def test_a_machine_sees_the_operations_of_its_store(replica: MachineReplica) -> None:
    first = replica.write(A, b"a=1")
    second = replica.write(B, b"b=1", [first.hash])
    third = replica.write(A, b"a=2", [first.hash])
    with replica.engine.read() as txn:
        dag = replica.state.dag(txn)
        assert dag.intention(third.hash).height == 2
        assert dag.intention(second.hash).deps == (first.hash,)
        assert dag.is_ancestor(first.hash, second.hash)
        assert not dag.is_ancestor(second.hash, third.hash)
        assert dag.find_lca(second.hash, third.hash) == first.hash
        assert dag.path(first.hash, third.hash) == [third.hash]
        with pytest.raises(UsageError, match="no operation 0707"):
            dag.intention(b"\x07" * 32)


# --- overlays -----------------------------------------------------------------------------------

KEYS = st.binary(max_size=2)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)), max_size=20)


@given(CHANGES, CHANGES, KEYS, st.none() | KEYS, st.booleans())
def test_an_overlay_reads_like_a_table_with_the_changes(
    below: list[tuple[bytes, bytes | None]],
    above: list[tuple[bytes, bytes | None]],
    start: bytes,
    end: bytes | None,
    reverse: bool,
) -> None:
    model: dict[bytes, bytes] = {}
    base = Overlay()
    overlay = Overlay(base)
    for target, changes in ((base, below), (overlay, above)):
        for key, value in changes:
            if value is None:
                target.delete(key)
                model.pop(key, None)
            else:
                target.put(key, value)
                model[key] = value
    expected = [
        (key, model[key])
        for key in sorted(model, reverse=reverse)
        if key >= start and (end is None or key < end)
    ]
    assert list(overlay.scan(start, end, reverse=reverse)) == expected
    assert overlay.get(start) == model.get(start)
    base.absorb(overlay)
    assert list(base.scan(start, end, reverse=reverse)) == expected
    assert overlay.changes == {}


def test_an_overlay_takes_bytes_alone() -> None:
    with pytest.raises((UsageError, TypeError), match="bytes"):  # compiled, it is a TypeError
        Overlay().put("key", b"")  # type: ignore[arg-type]


# --- snapshots ----------------------------------------------------------------------------------


def restore(replica: MachineReplica, snapshot: bytes, size: int = 1 << 20) -> states.Restored:
    parts = [snapshot[at : at + size] for at in range(0, len(snapshot), size)]
    with replica.engine.write() as txn:
        return replica.state.restore(txn, parts)


def filled(*payloads: bytes) -> MachineReplica:
    replica = MachineReplica(Keeper())
    for payload in payloads:
        replica.write(A, payload)
    return replica


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_snapshot_restore_success(size: int) -> None:
    replica = filled(b"a=1", b"b=2")
    snapshot = replica.snapshot()
    with replica.engine.write() as txn:
        txn.delete_range(STATE_DATA)
    done = restore(replica, snapshot, size)
    assert done.fits
    assert replica.rows(STATE_DATA) == {b"a": b"1", b"b": b"2"}
    assert replica.snapshot() == snapshot
    replica.write(A, b"c=3")
    assert replica.project().stall is None


def test_snapshot_uuid_mismatch() -> None:
    replica = filled(b"a=1")
    snapshot = bytearray(replica.snapshot())
    snapshot[8] ^= 1
    with pytest.raises(SnapshotRefused, match=r"a snapshot of store 01\d+") as refused:
        restore(replica, bytes(snapshot))
    assert refused.value.reason == "store_id_mismatch"


def test_restore_overwrites_existing_data() -> None:
    replica = filled(b"a=1")
    snapshot = replica.snapshot()
    replica.write(A, b"b=2")
    restore(replica, snapshot)
    assert replica.rows(STATE_DATA) == {b"a": b"1"}
    replica.project()
    assert replica.rows(STATE_DATA) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("at", [-1, -40, 50])
def test_snapshot_checksum_failure_last_byte(at: int) -> None:
    replica = filled(b"a=" + bytes(200))
    before = replica.rows(STATE_DATA)
    snapshot = bytearray(replica.snapshot())
    snapshot[at] ^= 1
    with pytest.raises(SnapshotRefused) as refused:
        restore(replica, bytes(snapshot))
    assert refused.value.reason == "checksum_mismatch"
    assert replica.rows(STATE_DATA) == before


def test_restore_transaction_atomicity() -> None:
    replica = filled(b"a=1", b"b=2")
    before = {table: replica.rows(table) for table in STATE_TABLES}
    snapshot = replica.snapshot()
    for size in range(len(snapshot)):
        with pytest.raises(SnapshotRefused) as refused:
            restore(replica, snapshot[:size])
        assert refused.value.reason == "io"
        assert {table: replica.rows(table) for table in STATE_TABLES} == before


def sealed(body: bytes) -> bytes:
    return body + blake3(body)


def test_damage_is_reported_in_the_order_of_the_bytes() -> None:
    replica = filled(b"a=1")
    head = b"LATS" + (1).to_bytes(4, "little") + KIT_STORE_ID
    length = (1).to_bytes(8, "little")
    for snapshot, reason in (
        (b"LAT", "io"),
        (b"LATX", "invalid_magic"),
        (b"LATX" + bytes(100), "invalid_magic"),
        (b"LATS" + (2).to_bytes(4, "little"), "unsupported_version"),
        (b"LATS" + (1).to_bytes(4, "little") + bytes(16), "store_id_mismatch"),
        (head, "io"),
        (head + b"\x04", "unknown_record_type"),
        (sealed(head + b"\x01" + length + b"k" + length + b"v\x07"), "unknown_record_type"),
        (head + b"\x01" + (2**63).to_bytes(8, "little"), "io"),
        (
            head + b"\x01" + length + b"k" + (STATE_VALUE_BYTES_MAX + 1).to_bytes(8, "little"),
            "io",
        ),
        (head + b"\x00" + bytes(31), "io"),
        (head + b"\x00" + bytes(32), "checksum_mismatch"),
    ):
        with pytest.raises(SnapshotRefused) as refused:
            restore(replica, snapshot)
        assert refused.value.reason == reason


def test_bytes_behind_the_checksum_are_not_read() -> None:
    replica = filled(b"a=1")

    def parts() -> Iterator[bytes]:
        yield replica_snapshot
        raise AssertionError("read on")

    replica_snapshot = replica.snapshot()
    with replica.engine.write() as txn:
        assert replica.state.restore(txn, parts()).fits
    assert restore(replica, replica_snapshot + b"more").fits


def test_a_declared_length_allocates_nothing() -> None:
    replica = filled()
    snapshot = b"LATS" + (1).to_bytes(4, "little") + KIT_STORE_ID + b"\x01"
    snapshot += (1).to_bytes(8, "little") + b"k" + (60 << 20).to_bytes(8, "little")
    with pytest.raises(SnapshotRefused, match="cut short"):
        restore(replica, snapshot)


def test_a_snapshot_of_another_kind_is_refused() -> None:
    replica = filled()
    other = MachineReplica(KvMachine())
    with pytest.raises(StoreTypeMismatch, match="core:kvstore"):
        restore(replica, other.snapshot())


def test_a_snapshot_of_another_schema_is_dropped() -> None:
    replica = filled(b"a=1")
    newer = MachineReplica(type("Newer", (Keeper,), {"schema": 2})())
    newer.write(A, b"a=1")
    assert not restore(replica, newer.snapshot()).fits
    replica.project()
    with replica.engine.write() as txn:
        replica.state.open(txn)  # not of a schema that it refuses
    assert replica.rows(STATE_DATA) == {b"a": b"1"}


def test_a_snapshot_of_another_log_is_dropped_and_rebuilt() -> None:
    replica, other = filled(b"a=1"), MachineReplica(Keeper())
    other.write(B, b"b=2")
    assert not restore(replica, other.snapshot()).fits
    assert replica.rows(STATE_DATA) == {}
    replica.project()
    assert replica.rows(STATE_DATA) == {b"a": b"1"}


def test_a_snapshot_with_tips_that_are_not_the_logs_is_dropped() -> None:
    replica = filled(b"a=1")
    tip = b"tip/" + A
    first = replica.rows(STATE_META)[tip]
    for row, value in ((tip, b"\x07" * 32), (b"tip/" + B, first)):
        with replica.engine.write() as txn:
            txn.put(STATE_META, row, value)
        assert not restore(replica, replica.snapshot()).fits
        replica.project()
        assert replica.rows(STATE_META)[tip] == first
    replica.write(A, b"b=2")
    with replica.engine.write() as txn:  # a tip behind the position
        txn.put(STATE_META, b"last_applied_seq", (1).to_bytes(8, "big"))
        txn.put(STATE_META, b"last_applied_witness", replica.log.entries[0].content_hash)
    assert not restore(replica, replica.snapshot()).fits


def test_a_position_without_its_number_does_not_fit() -> None:
    replica = filled(b"a=1")
    with replica.engine.write() as txn:
        txn.delete(STATE_META, b"last_applied_seq")
    assert not restore(replica, replica.snapshot()).fits
    with replica.engine.read() as txn:
        assert replica.state.position(txn) == LOG_START


def test_snapshots_come_in_parts() -> None:
    replica = filled(*[b"%d=%s" % (number, bytes(1_000)) for number in range(300)])
    with replica.engine.read() as txn:
        parts = list(replica.state.snapshot(txn))
    assert len(parts) > 3
    assert all(len(part) >= SNAPSHOT_PART_BYTES for part in parts[:-1])
    restore(replica, b"".join(parts))
    assert len(replica.rows(STATE_DATA)) == 300


def test_everything_on_disk(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, STATE_TABLES)
    replica = MachineReplica(KvMachine(), engine)
    payload = KvPayload((Operation(put=PutOp(b"k", b"v")),)).encode()
    replica.write(A, payload)
    snapshot = replica.snapshot()
    engine.close()
    again = LmdbEngine(tmp_path, STATE_TABLES)
    replica.engine = again
    assert replica.snapshot() == snapshot
    assert restore(replica, snapshot).fits
    again.close()
