"""Handlers of the actions on databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from heapq import nsmallest
from operator import itemgetter
from typing import Any, Final

from datalattice.actions import (
    PAGE_MAX,
    DatabaseInfo,
    DatabaseList,
    GetKey,
    KeyEntry,
    KeyOperation,
    KeyPage,
    KeyWrite,
    ListDatabases,
    ReadKeys,
    WatchKeys,
    WriteKeys,
    WriteResults,
)
from datalattice.apps.kv import Batch, Database, KeyChange, shown_value
from datalattice.cells import Value
from datalattice.errors import NoSuchPath, UsageError
from datalattice.service.registry import ServiceCall, Streamed, handles, page


@handles(ListDatabases)
def list_databases(call: ServiceCall, request: ListDatabases) -> DatabaseList:
    """List the databases of an owner."""
    owner = call.owner(request.owner)
    found = [
        DatabaseInfo(database=name, keys=len(call.node.database(name, owner=owner)))
        for name in call.node.databases(owner=owner)
    ]
    return DatabaseList(databases=tuple(found))


def _database(call: ServiceCall, name: str, owner: str) -> Database[Value]:
    return call.node.database(name, owner=call.owner(owner))


@handles(GetKey)
def get_key(call: ServiceCall, request: GetKey) -> KeyEntry:
    """Return what a key holds."""
    database = _database(call, request.database, request.owner)
    found = database.entry(request.key)
    if found is None:
        raise NoSuchPath(f"database {request.database} has no key {request.key!r:.80}")
    return _entry(database, request.key, found)


def _entry(database: Database[Value], key: str, entry: Any) -> KeyEntry:
    left = database.ttl(key)
    return KeyEntry(
        key=key,
        type=entry.type_name,
        value=shown_value(entry),
        ttl_ms=None if left is None else left // timedelta(milliseconds=1),
    )


@handles(ReadKeys)
def read_keys(call: ServiceCall, request: ReadKeys) -> KeyPage:
    """Return keys of a prefix, in order."""
    count = page(request.count, PAGE_MAX)
    database = _database(call, request.database, request.owner)
    behind = (pair for pair in database.scan(request.prefix) if pair[0] > request.after)
    # A scan has long keys behind the short ones: pages need one order for all.
    found = nsmallest(count + 1, behind, key=itemgetter(0))
    return KeyPage(
        entries=tuple(_entry(database, key, entry) for key, entry in found[:count]),
        has_more=len(found) > count,
    )


_Work = Callable[[Batch[Any], KeyWrite], object]


def _score(write: KeyWrite) -> float:
    if write.score is None:
        raise UsageError(f"score: zadd of {write.key!r:.80} needs one")
    return write.score


def _ttl(write: KeyWrite) -> timedelta | None:
    return None if write.ttl_ms is None else timedelta(milliseconds=write.ttl_ms)


def _expire(batch: Batch[Any], write: KeyWrite) -> bool:
    ttl = _ttl(write)
    if ttl is None:
        raise UsageError(f"ttl_ms: expire of {write.key!r:.80} needs it")
    return batch.expire(write.key, ttl)


_WORK: Final[dict[KeyOperation, _Work]] = {
    KeyOperation.SET: lambda to, one: to.set(one.key, one.value, _ttl(one)),
    KeyOperation.DELETE: lambda to, one: to.delete(one.key),
    KeyOperation.INCR: lambda to, one: to.incr(one.key, 1 if one.amount is None else one.amount),
    KeyOperation.HSET: lambda to, one: to.hset(one.key, one.field, one.value),
    KeyOperation.HDEL: lambda to, one: to.hdel(one.key, one.field),
    KeyOperation.SADD: lambda to, one: to.sadd(one.key, one.value),
    KeyOperation.SREM: lambda to, one: to.srem(one.key, one.value),
    KeyOperation.ZADD: lambda to, one: to.zadd(one.key, _score(one), one.value),
    KeyOperation.ZREM: lambda to, one: to.zrem(one.key, one.value),
    KeyOperation.LPUSH: lambda to, one: to.lpush(one.key, one.value),
    KeyOperation.RPUSH: lambda to, one: to.rpush(one.key, one.value),
    KeyOperation.LPOP: lambda to, one: to.lpop(one.key),
    KeyOperation.RPOP: lambda to, one: to.rpop(one.key),
    KeyOperation.EXPIRE: _expire,
    KeyOperation.PERSIST: lambda to, one: to.persist(one.key),
}


@handles(WriteKeys)
def write_keys(call: ServiceCall, request: WriteKeys) -> WriteResults:
    """Make writes as one."""
    if not request.writes:
        raise UsageError("writes: one or more")
    unknown = [one.operation for one in request.writes if one.operation not in _WORK]
    if unknown:
        known = ", ".join(one.name.lower() for one in KeyOperation)
        raise UsageError(f"operation: one of {known}, got {unknown[0]}")
    results = []
    with _database(call, request.database, request.owner).batch() as batch:
        for write in request.writes:
            results.append(_WORK[write.operation](batch, write))
    return WriteResults(results=tuple(results))


@handles(WatchKeys)
def watch_keys(call: ServiceCall, request: WatchKeys) -> Streamed[KeyEntry]:
    """Return the changes of keys."""
    database = _database(call, request.database, request.owner)
    return Streamed(database.watch(request.prefix), _change)


def _change(change: KeyChange[Value]) -> KeyEntry:
    return KeyEntry(key=change.key, type=change.type or "", value=change.value)
