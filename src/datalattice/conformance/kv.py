"""Database vectors: recorded sequences of operations, and the exchange of signed replicas."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from datalattice.apps.kv import Database, KVEntryLattice, KVStoreLattice
from datalattice.cells import Map, Set, Signed, Value
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    expect,
)
from datalattice.conformance.notation import (
    expect_cell,
    need_cell,
    need_cells,
    plain_type,
    read_cell,
    register_lattice_type,
)
from datalattice.conformance.registry import register_kind
from datalattice.conformance.sequences import (
    SEQUENCE_FIELDS,
    STEP_FIELDS,
    Perform,
    SequenceRun,
    operation,
    returned,
    returned_cell,
)
from datalattice.crypto import KeyPair
from datalattice.errors import WrongType

WRONG_TYPE: Final = "wrongtype"


class _Databases(SequenceRun[Database]):
    """One sequence on databases."""

    what = "a database"
    fields = ("clock",)

    def perform(self, step: Fields) -> None:
        name = step.text("op")
        # Before the operation: expiry and stamps depend on the time of the step.
        self.clock.time_ms = step.integer("clock")
        # `wrongtype:OP` records that OP refuses a key of another type.
        refused = name.removeprefix(WRONG_TYPE + ":")
        if refused != name:
            self._refuse(refused, step)
        else:
            super().perform(step)

    def _refuse(self, name: str, step: Fields) -> None:
        """Check that an operation refuses a key of another type and changes nothing."""
        step.only(*STEP_FIELDS, "clock", "key")
        expect("returns", WRONG_TYPE, step.need("returns"))
        if name not in _REFUSING:
            known = ", ".join(sorted(_REFUSING))
            raise Mismatch(f"unknown operation {name!r}; known: {known}")
        method, arguments, _ = _CALLS[name]
        database = self.on(step)
        before = database.cursor.get()
        try:
            got = method(database, step.text("key"), *(_SAMPLES[one] for one in arguments))
        except WrongType as error:
            expect("the error's first word", "WRONGTYPE", str(error).split(" ", 1)[0])
            # By identity: a refused write must not even make an equal value.
            if database.cursor.get() is not before:
                raise Mismatch("the refused operation changed the database") from error
            return
        raise Mismatch(f"expected a WRONGTYPE error, got {got!r}")

    @operation("replica", silent=True)
    def create(self, step: Fields) -> None:
        replica = step.text("replica")
        self.add(step, "on", Database.create(replica=replica, clock=self.clock))

    @operation("from", silent=True)
    def merge(self, step: Fields) -> None:
        self.on(step).merge(self.on(step, "from"))

    @operation()
    def gc(self, step: Fields) -> None:
        returned(step, self.on(step).gc(0))

    @operation()
    def keys(self, step: Fields) -> None:
        returned_cell(step, Set.of(list(self.on(step))))

    @operation("key", "value", "ttl", silent=True)
    def set(self, step: Fields) -> None:
        # Vectors count milliseconds, the database seconds.
        ttl = None if step.get("ttl") is None else step.integer("ttl") / 1_000
        self.on(step).set(step.text("key"), need_cell(step, "value"), ttl)

    @operation("key", "ttl")
    def expire(self, step: Fields) -> None:
        done = self.on(step).expire(step.text("key"), step.integer("ttl") / 1_000)
        # Files write 1 and 0 here, or true and false.
        wanted = step.need("returns")
        expect("returns", int(wanted) if isinstance(wanted, bool) else wanted, int(done))


def _ttl_ms(database: Database, key: str) -> int:
    """Return the milliseconds until a key expires; -1 for never, -2 if it is not live."""
    left = database.ttl(key)
    if left is not None:
        return left // timedelta(milliseconds=1)
    # As Redis answers: -1 lives for ever, -2 is not there.
    return -1 if key in database else -2


def _score(step: Fields, name: str) -> float:
    score = step.need(name)
    # True is an int in Python, and no score.
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise Mismatch(f"a score is a number, got {score!r}")
    return float(score)


def _returned_flag(step: Fields, count: object) -> None:
    returned(step, count == 1)  # the reference returns whether the field was there


def _returned_none(step: Fields, _got: object) -> None:
    if "returns" in step:
        raise Mismatch(f"{step.text('op')} returns nothing")


_READERS: Final[dict[str, Callable[[Fields, str], object]]] = {
    "amount": lambda step, name: step.integer(name) if name in step else 1,
    "field": Fields.text,
    "member": need_cell,
    "members": need_cells,
    "score": _score,
    "start": Fields.integer,
    "stop": Fields.integer,
    "value": need_cell,
    "values": need_cells,
}
"""How the arguments of operations on a key are read. A list is several arguments."""

_SAMPLES: Final[dict[str, object]] = {
    "amount": 1,
    "field": "field",
    "member": 1,
    "members": 1,
    "score": 1.0,
    "start": 0,
    "stop": -1,
    "value": 1,
    "values": 1,
}
"""Arguments for operations that must refuse their key."""

_Call = tuple[Callable[..., object], tuple[str, ...], Callable[[Fields, Any], None]]

_CALLS: Final[dict[str, _Call]] = {
    "get": (Database.get, (), returned_cell),
    "del": (Database.delete, (), returned),
    "exists": (Database.__contains__, (), returned),
    "ttl": (_ttl_ms, (), returned),
    "type": (Database.type, (), returned),
    "hset": (Database.hset, ("field", "value"), _returned_none),
    "hget": (Database.hget, ("field",), returned_cell),
    "hdel": (Database.hdel, ("field",), _returned_flag),
    "hexists": (Database.hexists, ("field",), returned),
    "hgetall": (Database.hgetall, (), returned_cell),
    "hlen": (Database.hlen, (), returned),
    "sadd": (Database.sadd, ("members",), returned),
    "srem": (Database.srem, ("members",), returned),
    "sismember": (Database.sismember, ("member",), returned),
    "smembers": (Database.smembers, (), returned_cell),
    "scard": (Database.scard, (), returned),
    "zadd": (Database.zadd, ("score", "member"), returned),
    "zrem": (Database.zrem, ("members",), returned),
    "zscore": (Database.zscore, ("member",), returned),
    "zrange": (Database.zrange, ("start", "stop"), returned_cell),
    "zcard": (Database.zcard, (), returned),
    "rpush": (Database.rpush, ("values",), returned),
    "lpush": (Database.lpush, ("values",), returned),
    "lpop": (Database.lpop, (), returned_cell),
    "rpop": (Database.rpop, (), returned_cell),
    "lrange": (Database.lrange, ("start", "stop"), returned_cell),
    "llen": (Database.llen, (), returned),
    "incr": (Database.incr, ("amount",), returned),
    "decr": (Database.decr, ("amount",), returned),
    "incrby": (Database.incr, ("amount",), returned),
    "decrby": (Database.decr, ("amount",), returned),
}
"""Operations on one key: the method, its further arguments, and how the result is compared."""

_REFUSING: Final = _CALLS.keys() - {"get", "del", "exists", "ttl", "type"}
"""Operations that refuse a key of another type; the others take every type."""


def _operation_of(call: _Call) -> Perform:
    method, arguments, compare = call

    @operation("key", *arguments)
    def perform(run: _Databases, step: Fields) -> None:
        given: list[object] = []
        for name in arguments:
            read = _READERS[name](step, name)
            # A list is several arguments, as in `SADD key a b`.
            given.extend(read if isinstance(read, list) else [read])
        compare(step, method(run.on(step), step.text("key"), *given))

    return perform


_Databases.operations.update({name: _operation_of(call) for name, call in _CALLS.items()})


def run_kv_sequence(fields: Fields) -> None:
    """Check a recorded sequence of operations on databases."""
    fields.only(*SEQUENCE_FIELDS)
    _Databases().run(fields)


# --- replicas -----------------------------------------------------------------------------------

_REPLICA_FIELDS: Final = (
    *("id", "kind", "decision", "database", "a", "b", "export_a", "export_b", "a_merges_b"),
    *("b_merges_a", "self", "forged", "forged_merged", "store_a", "store_b"),
)


def run_kv_replica(fields: Fields) -> None:
    """Check that exported replicas verify, and what merging them gives and counts."""
    fields.only(*_REPLICA_FIELDS)
    name = fields.text("database")
    first, second = (_replica(fields.fields(side), name) for side in ("a", "b"))
    exports = {side: read_cell(fields.need(side), side) for side in ("export_a", "export_b")}
    for database, side in ((first, "export_a"), (second, "export_b")):
        # The recorded store first, then our own export of it: both must be the same bytes.
        _adopt(database, exports[side], side, name)
        expect_cell(f"{side} made here", exports[side], database.export_replica())
    forged = need_cell(fields, "forged")
    merged = [("self", first, exports["export_a"]), ("forged_merged", first, forged)]
    merged += [("a_merges_b", first, exports["export_b"])]
    merged += [("b_merges_a", second, exports["export_a"])]
    for count, database, replicas in merged:
        # What is counted: replicas that changed something, forged ones never.
        expect(count, fields.integer(count), database.merge_replicas(replicas))
    for side, database in (("store_a", first), ("store_b", second)):
        expect_cell(side, read_cell(fields.need(side), side), database.store())


def _replica(side: Fields, name: str) -> Database:
    side.only("seed", "replica")
    pair = KeyPair(side.hex("seed"))
    return Database.create(name, pair, replica=side.text("replica"))


def _adopt(database: Database, export: Value, what: str, name: str) -> None:
    """Give a database the store that an export holds, after checking who signed it."""
    cell = export.get(database.owner) if isinstance(export, Map) else None
    # An unsigned export proves nothing about the merge.
    if not isinstance(cell, Signed) or not cell.verify():
        raise Mismatch(f"{what} holds nothing that its owner signed")
    expect(f"signer of {what}", database.owner, cell.public_key)
    store = cell.value.get(name) if isinstance(cell.value, Map) else None
    database.cursor.set(store)


register_lattice_type("kv-entry", plain_type(KVEntryLattice))
register_lattice_type("kv-store", plain_type(KVStoreLattice))
register_kind("kv-sequence", run_kv_sequence)
register_kind("kv-replica", run_kv_replica)
