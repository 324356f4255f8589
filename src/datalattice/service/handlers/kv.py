"""Handlers of the actions on databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from datalattice import actions
from datalattice.apps.kv import Batch, Database, KeyChange, shown_value
from datalattice.cells import Value, Vector, value_hash
from datalattice.cursors import RootLattice, Stream
from datalattice.errors import MissingData, NoSuchPath, StaleToken, UsageError
from datalattice.lattice import MergeContext, root_lattice, verify_did
from datalattice.service.registry import ServiceCall, Streamed, handles, page
from datalattice.service.resuming import not_a_position, read_token, stream_name


@handles(actions.ListDatabases)
def list_databases(call: ServiceCall, request: actions.ListDatabases) -> actions.DatabaseList:
    """List the databases of an owner."""
    owner = call.owner(request.owner)
    found = [
        actions.DatabaseInfo(database=name, keys=len(call.node.database(name, owner=owner)))
        for name in call.node.databases(owner=owner)
    ]
    return actions.DatabaseList(databases=tuple(found))


def _database(call: ServiceCall, name: str, owner: str) -> Database[Value]:
    return call.node.database(name, owner=call.owner(owner))


@handles(actions.GetKey)
def get_key(call: ServiceCall, request: actions.GetKey) -> actions.KeyEntry:
    """Return the type and content of a key."""
    database = _database(call, request.database, request.owner)
    found = database.entry(request.key)
    if found is None:
        raise NoSuchPath(f"database {request.database} has no key {request.key!r:.80}")
    return _entry(database, request.key, found)


def _entry(database: Database[Value], key: str, entry: Any) -> actions.KeyEntry:
    left = database.ttl(key)
    return actions.KeyEntry(
        key=key,
        type=entry.type_name,
        value=shown_value(entry),
        ttl_ms=None if left is None else left // timedelta(milliseconds=1),
    )


@handles(actions.ReadKeys)
def read_keys(call: ServiceCall, request: actions.ReadKeys) -> actions.KeyPage:
    """Return keys of a prefix, in order."""
    count = page(request.count, actions.PAGE_MAX)
    database = _database(call, request.database, request.owner)
    after = request.after
    behind = (pair for pair in database.scan(request.prefix, start=after) if pair[0] > after)
    # A scan yields long keys after all short ones; pages need one order for all keys.
    found = nsmallest(count + 1, behind, key=itemgetter(0))
    return actions.KeyPage(
        entries=tuple(_entry(database, key, entry) for key, entry in found[:count]),
        has_more=len(found) > count,
    )


_Work = Callable[[Batch[Any], actions.KeyWrite], object]


def _score(write: actions.KeyWrite) -> float:
    if write.score is None:
        raise UsageError(f"score: zadd of {write.key!r:.80} needs a score")
    return write.score


def _ttl(write: actions.KeyWrite) -> timedelta | None:
    return None if write.ttl_ms is None else timedelta(milliseconds=write.ttl_ms)


def _expire(batch: Batch[Any], write: actions.KeyWrite) -> bool:
    ttl = _ttl(write)
    if ttl is None:
        raise UsageError(f"ttl_ms: expire of {write.key!r:.80} needs a number of milliseconds")
    return batch.expire(write.key, ttl)


_WORK: Final[dict[actions.KeyOperation, _Work]] = {
    actions.KeyOperation.SET: lambda to, one: to.set(one.key, one.value, _ttl(one)),
    actions.KeyOperation.DELETE: lambda to, one: to.delete(one.key),
    actions.KeyOperation.INCR: lambda to, one: to.incr(
        one.key, 1 if one.amount is None else one.amount
    ),
    actions.KeyOperation.HSET: lambda to, one: to.hset(one.key, one.field, one.value),
    actions.KeyOperation.HDEL: lambda to, one: to.hdel(one.key, one.field),
    actions.KeyOperation.SADD: lambda to, one: to.sadd(one.key, one.value),
    actions.KeyOperation.SREM: lambda to, one: to.srem(one.key, one.value),
    actions.KeyOperation.ZADD: lambda to, one: to.zadd(one.key, _score(one), one.value),
    actions.KeyOperation.ZREM: lambda to, one: to.zrem(one.key, one.value),
    actions.KeyOperation.LPUSH: lambda to, one: to.lpush(one.key, one.value),
    actions.KeyOperation.RPUSH: lambda to, one: to.rpush(one.key, one.value),
    actions.KeyOperation.LPOP: lambda to, one: to.lpop(one.key),
    actions.KeyOperation.RPOP: lambda to, one: to.rpop(one.key),
    actions.KeyOperation.EXPIRE: _expire,
    actions.KeyOperation.PERSIST: lambda to, one: to.persist(one.key),
}


@handles(actions.WriteKeys)
def write_keys(call: ServiceCall, request: actions.WriteKeys) -> actions.WriteResults:
    """Write to keys as one."""
    if not request.writes:
        raise UsageError("writes: one or more, got none")
    unknown = [one.operation for one in request.writes if one.operation not in _WORK]
    # "All writes or none": all are checked before the first is made.
    if unknown:
        known = ", ".join(one.name.lower() for one in actions.KeyOperation)
        raise UsageError(f"operation: one of {known}, got {unknown[0]}")
    results = []
    with _database(call, request.database, request.owner).batch() as batch:
        for write in request.writes:
            results.append(_WORK[write.operation](batch, write))
    return actions.WriteResults(results=tuple(results))


@handles(actions.WatchKeys)
def watch_keys(call: ServiceCall, request: actions.WatchKeys) -> Streamed[actions.KeyEntry]:
    """Return the changes of keys."""
    owner = call.owner(request.owner)
    name = stream_name(request.action.name, owner, request.database, request.prefix)
    stream = _KeyChanges(call, owner, request.database, request.prefix)
    if request.resume:
        stream.go_on(read_token(request.resume, name))
    return Streamed(stream, _change, name=name, positions=stream, is_resumed=bool(request.resume))


class _KeyChanges(Stream[KeyChange[Value]]):
    """The changes of a database from root to root.

    A position is [root], or within the changes of one reading [former root, root, count], where
    count is the number of changes between the two that were returned. Hashes name the roots.
    """

    def __init__(self, call: ServiceCall, owner: bytes, database: str, prefix: str) -> None:
        self._node, self._owner, self._name, self._prefix = call.node, owner, database, prefix
        self._cursor = call.node.cursor()
        self._before = self._seen = self._cursor.get()
        self._taken: tuple[Value, int] = (None, 0)
        self._at(self._seen)  # refuses an invalid name before the stream begins
        super().__init__(self._cursor)

    def _at(self, root: Value) -> Database[Value]:
        """Return the database in a root."""
        cursor = RootLattice(root_lattice(), root, MergeContext(verifier=verify_did))
        return Database.at(cursor, self._owner, self._name)

    def go_on(self, position: Value) -> None:
        """Begin at a position. Raises: StaleToken: its root is not kept. UsageError."""
        parts: list[Any] = list(position) if isinstance(position, Vector) else []
        if len(parts) == 1:
            parts += [b"", 0]
        # A token is a caller's text: every part is checked.
        if [type(one) for one in parts] != [bytes, bytes, int] or parts[2] < 0:
            raise not_a_position(position)
        before, after, count = parts
        try:
            # The changes are computed from the last root of the reader, if the store keeps it.
            self._before = self._seen = self._node.value(before)
        except MissingData as error:
            raise StaleToken(
                f"the store no longer keeps the root {before.hex()}; a fresh start begins "
                f"{self.fresh_start()}"
            ) from error
        self._taken = (after, count)

    def _fetch(self) -> list[KeyChange[Value]]:
        self._before, self._seen = self._seen, self._cursor.get()
        if self._before is self._seen:
            return []
        former = self._at(self._before).store()
        changes = self._at(self._seen).changes_since(former, self._prefix)
        # The count is of the changes up to another root: send all again, with the newest values.
        if self._taken[0] != value_hash(self._seen):
            self._taken = (None, 0)
        return list(islice(changes, self._taken[1], None))

    def now(self) -> Value:
        return Vector.of([value_hash(self._seen)])

    def after(self, items: Sequence[KeyChange[Value]]) -> Iterator[Value]:
        before, seen = value_hash(self._before), value_hash(self._seen)
        taken, self._taken = self._taken[1], (None, 0)
        for number in range(taken + 1, taken + len(items)):
            yield Vector.of([before, seen, number])
        if items:
            yield self.now()

    def fresh_start(self) -> str:
        return "with the present keys (kv.range), and a stream without a token"


def _change(change: KeyChange[Value]) -> actions.KeyEntry:
    return actions.KeyEntry(key=change.key, type=change.type or "", value=change.value)
