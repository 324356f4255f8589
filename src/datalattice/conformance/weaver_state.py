"""State vectors of Weaver: heads, batches, the order of a log, protobuf payloads, snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any, Final, NamedTuple

from datalattice.clock import Hlc, SystemClock
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_fields,
    as_hex,
    as_int,
    as_list,
    expect,
)
from datalattice.conformance.registry import register_titled
from datalattice.crypto import KeyPair, blake3
from datalattice.engine import MemoryEngine, WriteTxn
from datalattice.protobuf import FieldInfo, Message
from datalattice.weaver import (
    LOG_TABLES,
    STATE_TABLES,
    DeleteOp,
    HeadReader,
    HeadTable,
    HeadValue,
    IntentionLog,
    KvMachine,
    KvPayload,
    LogMachine,
    Machine,
    Op,
    Operation,
    Overlay,
    PlainLayer,
    PutOp,
    ReadRequest,
    ReadResponse,
    SnapshotRefused,
    State,
    UniversalOp,
    written_by,
)

_KEY: Final = b"key"


class _Store(NamedTuple):
    """An empty store in memory, within a transaction."""

    txn: WriteTxn
    log: IntentionLog
    state: State
    key: KeyPair


@contextmanager
def _store(machine: Machine, store_id: bytes = bytes(16)) -> Iterator[_Store]:
    key = KeyPair(bytes(32))
    log = IntentionLog(store_id, key, SystemClock())
    state = State(store_id, PlainLayer(machine), log)
    with MemoryEngine(STATE_TABLES + LOG_TABLES).write() as txn:
        yield _Store(txn, log, state, key)


# --- heads --------------------------------------------------------------------------------------


def _run_lww(fields: Fields) -> None:
    """Check heads and winner in every listed order, and in all other legal ones."""
    fields.only("name", "note", "ops", "apply_orders", "expect", "rust_head_differs")
    ops = _head_ops(fields.array("ops"))
    wanted = fields.fields("expect")
    wanted.only("heads", "value", "tombstone", "conflicted")
    listed = [[as_int(index, "order") for index in order] for order in fields.need("apply_orders")]
    rows = set()
    # The listed orders may repeat an operation, which a permutation never does.
    for order in listed + list(_legal_orders(ops)):
        state = Overlay()
        table = HeadTable(state, {op.hash: op for op in ops}.__getitem__, written_by)
        for place, index in enumerate(order):
            op = ops[index]
            winner = table.apply(_KEY, op, written_by(op.payload)[_KEY])
            # A repeated operation changes nothing, so it has no winner.
            expect(f"order {order}: a repeat", index in order[:place], winner is None)
        found = HeadReader(state).inspect(_KEY)
        heads = [as_hex(head, "heads") for head in wanted.array("heads")]
        expect(f"order {order}: heads", heads, list(found.heads))
        expect(f"order {order}: value", _value(wanted), found.value)
        expect(f"order {order}: tombstone", wanted.truth("tombstone"), found.tombstone)
        # Two heads: the loser is kept, and readers may ask for it.
        conflicted = HeadReader(state).get_with_conflict(_KEY)[1]
        expect(f"order {order}: conflicted", wanted.truth("conflicted"), conflicted)
        rows.add(state.get(_KEY))
    expect("different rows of all orders", 1, len(rows))  # the same row in every order


def _value(fields: Fields) -> bytes | None:
    return None if fields.need("value") is None else fields.hex("value")


def _head_ops(given: list[Any]) -> list[Op]:
    heights: dict[bytes, int] = {}
    ops = []
    for each in given:
        fields = as_fields(each, "ops")
        fields.only("id", "hash", "author", "hlc", "deps", "kind", "value")
        author = fields.hex("author")
        # "Ops of one author are listed in the order of its chain."
        heights[author] = heights.get(author, 0) + 1
        wall, counter = as_list(fields.need("hlc"), "hlc", 2)
        deps = tuple(sorted(as_hex(dep, "deps") for dep in fields.array("deps")))
        ops.append(
            Op(
                fields.hex("hash"),
                KvPayload((_operation(_KEY, fields),)).encode(),
                Hlc(as_int(wall, "wall"), as_int(counter, "counter")),
                author,
                deps,
                height=heights[author],
            )
        )
    return ops


def _operation(key: bytes, fields: Fields) -> Operation:
    """Return a put or delete of a key, as `kind` and `value` say."""
    kind, value = fields.text("kind"), _value(fields)
    if kind not in {"put", "delete"} or (kind == "put") != (value is not None):
        raise Mismatch(f"an operation is a put with a value or a delete without, got {kind!r}")
    return Operation(delete=DeleteOp(key)) if value is None else Operation(put=PutOp(key, value))


def _legal_orders(ops: list[Op]) -> Iterator[list[int]]:
    """Yield the orders in which dependencies come first, and an author's operations in turn."""
    before = [
        {
            index
            for index, other in enumerate(ops)
            if other.hash in op.deps or (other.author == op.author and other.height < op.height)
        }
        for op in ops
    ]
    for order in permutations(range(len(ops))):
        if all(before[index] <= set(order[:place]) for place, index in enumerate(order)):
            yield list(order)


# --- machines -----------------------------------------------------------------------------------


def _run_batch(fields: Fields) -> None:
    fields.only("name", "note", "payload", "ops", "expect")
    given = [as_fields(each, "ops") for each in fields.array("ops")]
    ops = tuple([_operation(each.hex("key"), each) for each in given])
    payload = fields.hex("payload")
    expect("payload", payload, KvPayload(ops).encode())
    expect("payload, read", KvPayload(ops), KvPayload.decode(payload))
    with _store(KvMachine()) as store:  # through the log, as on a node
        store.log.submit(store.txn, store.key, payload)
        done = store.state.project(store.txn)
        expect("stall", None, done.stall)
        rows = {key: value for key, value, _ in HeadReader(store.state.reader(store.txn)).scan()}
    wanted = [as_fields(each, "expect") for each in fields.array("expect")]
    expect("rows", {each.hex("key"): _value(each) for each in wanted}, rows)


def _run_log_order(fields: Fields) -> None:
    """Check keys and reading order for every order of arrival."""
    rust = ("keys40_rust_head", "rust_head_rejects_duplicate")
    fields.only("name", "appended", "tail", "expect", "keys44", *rust)
    ops = []
    for each in fields.array("appended"):
        entry = as_fields(each, "appended")
        content = entry.hex("content")
        stamp = Hlc(entry.integer("wall"), entry.integer("counter"))
        # The hash of the content: the file states none.
        ops.append(Op(blake3(content), content, stamp, entry.hex("author")))
    request = ReadRequest(None if fields.need("tail") is None else fields.integer("tail"))
    wanted = tuple([as_hex(each, "expect") for each in fields.array("expect")])
    machine = LogMachine()
    with _store(machine) as store:
        dag = store.state.dag(store.txn)
        # Keys are sorted by time: arrival must not show.
        for order in permutations(ops):
            table = Overlay()
            for op in order:
                machine.apply(op, table, dag)
            keys = [as_hex(each, "keys44") for each in fields.array("keys44")]
            expect("keys", keys, [key for key, _ in table.scan()])
            expect("entries", ReadResponse(wanted), machine.read(request, table, dag))


# --- protobuf -----------------------------------------------------------------------------------

_MESSAGES: Final[dict[str, type[Message]]] = {
    message.full_name: message for message in (UniversalOp, HeadValue)
}


def _run_proto(fields: Fields) -> None:
    fields.only("name", "message", "fields", "bytes", "tree")
    name = fields.text("message")
    if name not in _MESSAGES:
        raise Mismatch(f"unknown message {name!r}; known: {', '.join(_MESSAGES)}")
    data = fields.hex("bytes")
    message = _MESSAGES[name].decode(data)
    expect("tree", _plain(fields.fields("tree")), _plain(_tree(message)))
    expect("bytes", data, message.encode())


def _tree(message: Message) -> dict[str, object]:
    """Return a message by field numbers; fields that are not encoded are left out."""
    found: dict[str, object] = {}
    for field in message.declared():
        value = getattr(message, field.name)
        if field.repeated:
            if value:
                found[str(field.number)] = [_leaf(field, item) for item in value]
        # Fields with their default value are not encoded, unless the message tracks presence.
        elif value is not None and (field.presence or value):
            found[str(field.number)] = _leaf(field, value)
    return found


def _plain(tree: object) -> object:
    """Return a tree in which a list of one is its only item: files write both."""
    if isinstance(tree, dict):
        return {number: _plain(value) for number, value in tree.items()}
    if isinstance(tree, list):
        return _plain(tree[0]) if len(tree) == 1 else [_plain(value) for value in tree]
    return tree


def _leaf(field: FieldInfo, value: Any) -> object:
    if field.kind == "message":
        return _tree(value)
    if field.name == "app_data":
        # The field is bytes, and the vectors state the message in them.
        return _tree(KvPayload.decode(value))
    if isinstance(value, str):
        value = value.encode()
    return value.hex() if isinstance(value, bytes) else int(value)


# --- snapshots ----------------------------------------------------------------------------------


def _run_snapshot(fields: Fields) -> None:
    """Check the bytes of a snapshot, and restoring it: all of it, or an error and nothing."""
    sections = {"state_data": "data", "state_meta": "meta", "state_system": "system"}
    fields.only("name", "store_id", "snapshot", "error", *sections.values())
    snapshot = fields.hex("snapshot")
    rows = {table: _rows(fields.fields(name)) for table, name in sections.items()}
    error = fields.need("error")
    with _store(KvMachine(), fields.hex("store_id")) as store:
        for table in STATE_TABLES:
            # A refused restore must leave the old rows.
            store.txn.put_many(table, rows[table].items() if error is None else [(b"old", b"row")])
        before = b"".join(store.state.snapshot(store.txn))
        if error is None:
            expect("snapshot", snapshot, before)  # one snapshot for one state
        # One byte a part: the bytes alone say where a row ends.
        parts = [snapshot[at : at + 1] for at in range(len(snapshot))]
        try:
            store.state.restore(store.txn, parts)
        except SnapshotRefused as refused:
            expect("error", error, refused.reason)
            return
        expect("error", error, None)
        expect("restored", snapshot, b"".join(store.state.snapshot(store.txn)))


def _rows(fields: Fields) -> dict[bytes, bytes]:
    return {as_hex(key, "key"): as_hex(value, "value") for key, value in fields.items()}


register_titled("Head lists and last-writer-wins, one key per case", "weaver-lww", _run_lww)
register_titled(
    "KvPayload bytes and the state after applying them to an empty table as one operation",
    "weaver-kv-batch",
    _run_batch,
)
register_titled("Log store ordering", "weaver-log-order", _run_log_order)
register_titled("Protobuf payload bytes", "weaver-proto", _run_proto, comments=("p1",))
register_titled("State snapshots", "weaver-snapshot", _run_snapshot)
