"""Database vectors: recorded sequences of operations, and the exchange of signed replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from datalattice.apps.kv import Database, KVEntryLattice, KVStoreLattice
from datalattice.cells import Map, Set, Signed, Value
from datalattice.conformance.checks import (
    expect,
    need,
    need_fields,
    need_hex,
    need_int,
    need_list,
    need_text,
    only_fields,
)
from datalattice.conformance.notation import (
    expect_cell,
    plain_type,
    read_cell,
    read_cells,
    register_lattice_type,
)
from datalattice.conformance.registry import Fields, Mismatch, register_kind
from datalattice.conformance.sequences import (
    SEQUENCE_FIELDS,
    StepClock,
    handle_of,
    new_name,
    operation_of,
    returned,
    returned_cell,
    returns_nothing,
    run_steps,
    step_fields,
)
from datalattice.crypto import KeyPair
from datalattice.errors import WrongType

WRONG_TYPE: Final = "wrongtype"


class _Run:
    """One sequence on databases."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.databases: dict[str, Database] = {}

    def states(self) -> dict[str, Value]:
        return {name: database.cursor.get() for name, database in self.databases.items()}

    def perform(self, step: Fields) -> None:
        operation = need_text(step, "op")
        self.clock.time_ms = need_int(step, "clock")
        refused = operation.removeprefix(WRONG_TYPE + ":")
        if refused != operation:
            self._refuse(refused, step)
        else:
            operation_of(_OPERATIONS, operation, "a database")(self, step)

    def on(self, step: Fields, field: str = "on") -> Database:
        return handle_of(self.databases, need_text(step, field))

    def _refuse(self, operation: str, step: Fields) -> None:
        step_fields(step, "clock", "key")
        expect("returns", WRONG_TYPE, need(step, "returns"))
        call = _REFUSED.get(operation)
        if call is None:
            raise Mismatch(f"unknown operation {operation!r}; known: {', '.join(sorted(_REFUSED))}")
        database = self.on(step)
        before = database.cursor.get()
        try:
            got = call(database, need_text(step, "key"))
        except WrongType as error:
            expect("the error's first word", "WRONGTYPE", str(error).split(" ", 1)[0])
            if database.cursor.get() is not before:
                raise Mismatch("the refused operation changed the database") from error
            return
        raise Mismatch(f"expected a WRONGTYPE error, got {got!r}")

    def create(self, step: Fields) -> None:
        step_fields(step, "clock", "replica")
        returns_nothing(step)
        name = new_name(self.databases, need_text(step, "on"))
        replica = need_text(step, "replica")
        self.databases[name] = Database.create(replica=replica, clock=self.clock)

    def fork(self, step: Fields) -> None:
        step_fields(step, "clock", "as")
        returns_nothing(step)
        name = new_name(self.databases, need_text(step, "as"))
        self.databases[name] = self.on(step).fork()

    def sync(self, step: Fields) -> None:
        step_fields(step, "clock")
        returns_nothing(step)
        self.on(step).sync()

    def merge(self, step: Fields) -> None:
        step_fields(step, "clock", "from")
        returns_nothing(step)
        self.on(step).merge(self.on(step, "from"))

    def gc(self, step: Fields) -> None:
        step_fields(step, "clock")
        returned(step, self.on(step).gc(0))

    def keys(self, step: Fields) -> None:
        step_fields(step, "clock")
        returned_cell(step, Set.of(list(self.on(step))))

    def set(self, step: Fields) -> None:
        step_fields(step, "clock", "key", "value", "ttl")
        returns_nothing(step)
        ttl_ms = None if step.get("ttl") is None else need_int(step, "ttl")
        self.on(step).set(need_text(step, "key"), _cell(step, "value"), ttl_ms)

    def expire(self, step: Fields) -> None:
        step_fields(step, "clock", "key", "ttl")
        done = self.on(step).expire(need_text(step, "key"), need_int(step, "ttl"))
        wanted = need(step, "returns")
        expect("returns", int(wanted) if isinstance(wanted, bool) else wanted, int(done))

    def hdel(self, step: Fields) -> None:
        step_fields(step, "clock", "key", "field")
        returned(step, self.on(step).hdel(need_text(step, "key"), need_text(step, "field")) == 1)

    def hset(self, step: Fields) -> None:
        step_fields(step, "clock", "key", "field", "value")
        returns_nothing(step)
        key, field = need_text(step, "key"), need_text(step, "field")
        self.on(step).hset(key, field, _cell(step, "value"))

    def zadd(self, step: Fields) -> None:
        step_fields(step, "clock", "key", "score", "member")
        score = need(step, "score")
        if isinstance(score, bool) or not isinstance(score, (int, float)):
            raise Mismatch(f"a score is a number, got {score!r}")
        member = _cell(step, "member")
        returned(step, self.on(step).zadd(need_text(step, "key"), float(score), member))


def _cell(step: Fields, name: str) -> Value:
    return read_cell(need(step, name), name)


def _reads(method: Callable[[Database, str], object]) -> Callable[[_Run, Fields], None]:
    """Return the step of an operation on one key that returns a plain value."""

    def perform(run: _Run, step: Fields) -> None:
        step_fields(step, "clock", "key")
        returned(step, method(run.on(step), need_text(step, "key")))

    return perform


def _reads_cell(
    method: Callable[[Database, str], Value], *positions: str
) -> Callable[[_Run, Fields], None]:
    """Return the step of an operation on one key that returns a cell."""

    def perform(run: _Run, step: Fields) -> None:
        step_fields(step, "clock", "key", *positions)
        numbers = [need_int(step, name) for name in positions]
        call: Any = method
        returned_cell(step, call(run.on(step), need_text(step, "key"), *numbers))

    return perform


def _named(method: Callable[..., Value], argument: str) -> Callable[[_Run, Fields], None]:
    """Return the step of an operation on one key and one text that returns a cell."""

    def perform(run: _Run, step: Fields) -> None:
        step_fields(step, "clock", "key", argument)
        returned_cell(step, method(run.on(step), need_text(step, "key"), need_text(step, argument)))

    return perform


def _named_plain(method: Callable[..., object], argument: str) -> Callable[[_Run, Fields], None]:
    """Return the step of an operation on one key and one text that returns a plain value."""

    def perform(run: _Run, step: Fields) -> None:
        step_fields(step, "clock", "key", argument)
        returned(step, method(run.on(step), need_text(step, "key"), need_text(step, argument)))

    return perform


def _one(method: Callable[..., object], argument: str) -> Callable[[_Run, Fields], None]:
    """Return the step of an operation on one key and one member."""

    def perform(run: _Run, step: Fields) -> None:
        step_fields(step, "clock", "key", argument)
        returned(step, method(run.on(step), need_text(step, "key"), _cell(step, argument)))

    return perform


def _many(method: Callable[..., object], argument: str) -> Callable[[_Run, Fields], None]:
    """Return the step of an operation on one key and many values that returns a number."""

    def perform(run: _Run, step: Fields) -> None:
        step_fields(step, "clock", "key", argument)
        cells = read_cells(need_list(step, argument), argument)
        returned(step, method(run.on(step), need_text(step, "key"), *cells))

    return perform


def _counts(method: Callable[[Database, str, int], int]) -> Callable[[_Run, Fields], None]:
    """Return the step of an operation that counts."""

    def perform(run: _Run, step: Fields) -> None:
        step_fields(step, "clock", "key", "amount")
        amount = need_int(step, "amount") if "amount" in step else 1
        returned(step, method(run.on(step), need_text(step, "key"), amount))

    return perform


_OPERATIONS: Final[dict[str, Callable[[_Run, Fields], None]]] = {
    "create": _Run.create,
    "fork": _Run.fork,
    "sync": _Run.sync,
    "merge": _Run.merge,
    "gc": _Run.gc,
    "keys": _Run.keys,
    "set": _Run.set,
    "get": _reads_cell(Database.get),
    "del": _reads(Database.delete),
    "exists": _reads(Database.__contains__),
    "ttl": _reads(Database.ttl),
    "type": _reads(Database.type),
    "expire": _Run.expire,
    "hset": _Run.hset,
    "hget": _named(Database.hget, "field"),
    "hdel": _Run.hdel,
    "hexists": _named_plain(Database.hexists, "field"),
    "hgetall": _reads_cell(Database.hgetall),
    "hlen": _reads(Database.hlen),
    "sadd": _many(Database.sadd, "members"),
    "srem": _many(Database.srem, "members"),
    "sismember": _one(Database.sismember, "member"),
    "smembers": _reads_cell(Database.smembers),
    "scard": _reads(Database.scard),
    "zadd": _Run.zadd,
    "zrem": _many(Database.zrem, "members"),
    "zscore": _one(Database.zscore, "member"),
    "zrange": _reads_cell(Database.zrange, "start", "stop"),
    "zcard": _reads(Database.zcard),
    "rpush": _many(Database.rpush, "values"),
    "lpush": _many(Database.lpush, "values"),
    "lpop": _reads_cell(Database.lpop),
    "rpop": _reads_cell(Database.rpop),
    "lrange": _reads_cell(Database.lrange, "start", "stop"),
    "llen": _reads(Database.llen),
    "incr": _counts(Database.incr),
    "decr": _counts(Database.decr),
    "incrby": _counts(Database.incr),
    "decrby": _counts(Database.decr),
}

_REFUSED: Final[dict[str, Callable[[Database, str], object]]] = {
    "hset": lambda database, key: database.hset(key, "field", 1),
    "hget": lambda database, key: database.hget(key, "field"),
    "hdel": lambda database, key: database.hdel(key, "field"),
    "hexists": lambda database, key: database.hexists(key, "field"),
    "hgetall": Database.hgetall,
    "hlen": Database.hlen,
    "sadd": lambda database, key: database.sadd(key, 1),
    "srem": lambda database, key: database.srem(key, 1),
    "sismember": lambda database, key: database.sismember(key, 1),
    "smembers": Database.smembers,
    "scard": Database.scard,
    "zadd": lambda database, key: database.zadd(key, 1.0, 1),
    "zrem": lambda database, key: database.zrem(key, 1),
    "zscore": lambda database, key: database.zscore(key, 1),
    "zrange": Database.zrange,
    "zcard": Database.zcard,
    "rpush": lambda database, key: database.rpush(key, 1),
    "lpush": lambda database, key: database.lpush(key, 1),
    "lpop": Database.lpop,
    "rpop": Database.rpop,
    "lrange": Database.lrange,
    "llen": Database.llen,
    "incr": Database.incr,
    "decr": Database.decr,
    "incrby": Database.incr,
    "decrby": Database.decr,
}


def run_kv_sequence(fields: Fields) -> None:
    """Check a recorded sequence of operations on databases."""
    only_fields(fields, SEQUENCE_FIELDS)
    run = _Run()
    run_steps(fields, run.states, run.perform)


# --- replicas -----------------------------------------------------------------------------------

_REPLICA_FIELDS: Final = (
    *("id", "kind", "decision", "database", "a", "b", "export_a", "export_b", "a_merges_b"),
    *("b_merges_a", "self", "forged", "forged_merged", "store_a", "store_b"),
)


def run_kv_replica(fields: Fields) -> None:
    """Check that exported replicas verify, and what merging them gives and counts."""
    only_fields(fields, _REPLICA_FIELDS)
    name = need_text(fields, "database")
    first, second = (_replica(need_fields(fields, side), name) for side in ("a", "b"))
    exports = {side: read_cell(need(fields, side), side) for side in ("export_a", "export_b")}
    for database, side in ((first, "export_a"), (second, "export_b")):
        _adopt(database, exports[side], side, name)
        expect_cell(f"{side} made here", exports[side], database.export_replica())
    forged = read_cell(need(fields, "forged"), "forged")
    merged = [("self", first, exports["export_a"]), ("forged_merged", first, forged)]
    merged += [("a_merges_b", first, exports["export_b"])]
    merged += [("b_merges_a", second, exports["export_a"])]
    for count, database, replicas in merged:
        expect(count, need_int(fields, count), database.merge_replicas(replicas))
    for side, database in (("store_a", first), ("store_b", second)):
        expect_cell(side, read_cell(need(fields, side), side), database.store())


def _replica(side: Fields, name: str) -> Database:
    only_fields(side, ("seed", "replica"))
    pair = KeyPair(need_hex(side, "seed"))
    return Database.create(name, pair, replica=need_text(side, "replica"))


def _adopt(database: Database, export: Value, what: str, name: str) -> None:
    """Give a database the store that an export holds, after checking who signed it."""
    cell = export.get(database.owner) if isinstance(export, Map) else None
    if not isinstance(cell, Signed) or not cell.verify():
        raise Mismatch(f"{what} holds nothing that its owner signed")
    expect(f"signer of {what}", database.owner, cell.public_key)
    store = cell.value.get(name) if isinstance(cell.value, Map) else None
    database.cursor.set(store)


register_lattice_type("kv-entry", plain_type(KVEntryLattice))
register_lattice_type("kv-store", plain_type(KVStoreLattice))
register_kind("kv-sequence", run_kv_sequence)
register_kind("kv-replica", run_kv_replica)
