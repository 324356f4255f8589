"""Actions on databases: keys that hold values, hashes, sets, sorted sets, lists or counters."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from datalattice.actions.action import GET, POST, ActionKind, ActionRequest, action
from datalattice.actions.common import OWN_NAME, PAGE, RESUME_NUMBER
from datalattice.actions.formats import CELL_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message

_DATABASE = "lattice/kv/{owner}/{database}"


class DatabaseInfo(Message, name="datalattice.v1.DatabaseInfo"):
    """A database and the number of its live keys."""

    database: Annotated[str, Field(1)] = ""
    keys: Annotated[int, Field(2, "uint64")] = 0


class DatabaseList(Message, name="datalattice.v1.DatabaseList"):
    """Databases, in the order of their names."""

    databases: Annotated[tuple[DatabaseInfo, ...], Field(1)] = ()


@action(
    "kv.databases", ActionKind.QUERY, "r", "lattice/kv/{owner}", GET("/databases"), is_tool=True
)
class ListDatabases(ActionRequest[DatabaseList], name="datalattice.v1.ListDatabasesRequest"):
    """List the databases of an owner, with the number of keys of each."""

    owner: Annotated[str, Field(1)] = OWN_NAME


class KeyEntry(Message, name="datalattice.v1.KeyEntry"):
    """A key and its content as one value.

    type: value, hash, set, zset, list or counter; "" for a deleted key. ttl_ms: milliseconds until
    it expires. resume: in a stream.
    """

    key: Annotated[str, Field(1)] = ""
    type: Annotated[str, Field(2)] = ""
    value: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None
    ttl_ms: Annotated[int | None, Field(4, "int64")] = None
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


# `{key...}`: a key may contain slashes.
@action(
    "kv.get",
    ActionKind.QUERY,
    "r",
    _DATABASE,
    GET("/databases/{database}/keys/{key...}"),
    is_tool=True,
)
class GetKey(ActionRequest[KeyEntry], name="datalattice.v1.GetKeyRequest"):
    """Return the type and content of a key of a database. Raises: NoSuchPath: no such key."""

    database: Annotated[str, Field(1)] = ""
    key: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN_NAME


class KeyPage(Message, name="datalattice.v1.KeyPage"):
    """Keys in order. has_more: more follow; ask again with the last key as `after`."""

    entries: Annotated[tuple[KeyEntry, ...], Field(1)] = ()
    has_more: Annotated[bool, Field(2)] = False


# Pages by the last key: keys written meanwhile neither repeat an entry nor drop one.
@action(
    "kv.range", ActionKind.QUERY, "r", _DATABASE, GET("/databases/{database}/keys"), is_tool=True
)
class ReadKeys(ActionRequest[KeyPage], name="datalattice.v1.ReadKeysRequest"):
    """Return the keys that begin with `prefix`, with their content, in order, `count` at most.

    If `has_more` is true, ask again with the last key received as `after`.
    """

    database: Annotated[str, Field(1)] = ""
    prefix: Annotated[str, Field(2)] = ""
    after: Annotated[str, Field(3)] = ""
    count: Annotated[int, Field(4, "uint32")] = PAGE
    owner: Annotated[str, Field(5)] = OWN_NAME


class KeyOperation(IntEnum):
    """The operation of a write on its key."""

    # The numbers are part of the wire format: a further operation gets a number of its own.
    SET = 0
    DELETE = 1
    INCR = 2
    HSET = 3
    HDEL = 4
    SADD = 5
    SREM = 6
    ZADD = 7
    ZREM = 8
    LPUSH = 9
    RPUSH = 10
    LPOP = 11
    RPOP = 12
    EXPIRE = 13
    PERSIST = 14


class KeyWrite(Message, name="datalattice.v1.KeyWrite"):
    """One write.

    value: SET: the new value; HSET: the value of `field`; of sets and lists: the member or element.
    amount: INCR: the number to add, 1 when absent. score: of ZADD. ttl_ms: of SET and EXPIRE.
    """

    key: Annotated[str, Field(1)] = ""
    operation: Annotated[KeyOperation, Field(2)] = KeyOperation.SET
    value: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None
    field: Annotated[str, Field(4)] = ""
    score: Annotated[float | None, Field(5)] = None
    ttl_ms: Annotated[int | None, Field(6, "int64")] = None
    amount: Annotated[int | None, Field(7, "int64")] = None


class WriteResults(Message, name="datalattice.v1.Written"):
    """The result of each write, in order; nil for SET."""

    results: Annotated[tuple[Value, ...], Field(1, codec=CELL_FORMAT)] = ()


# ONCE: a repeated INCR, LPUSH or LPOP would change the result.
@action(
    "kv.write",
    ActionKind.ONCE,
    "w",
    _DATABASE,
    POST("/databases/{database}/writes"),
    is_tool=True,
)
class WriteKeys(ActionRequest[WriteResults], name="datalattice.v1.WriteKeysRequest"):
    """Write to keys of a database as one: all writes or none. On disk when it returns.

    Each write has a key and an operation. set, lpush, rpush, sadd, srem and zrem need `value`, hset
    `field` and `value`, hdel `field`, zadd `value` and `score`, expire `ttl_ms`; incr: `amount`.
    Raises: WrongType: a key holds another type.
    """

    database: Annotated[str, Field(1)] = ""
    writes: Annotated[tuple[KeyWrite, ...], Field(2)] = ()
    owner: Annotated[str, Field(3)] = OWN_NAME


@action("kv.watch", ActionKind.STREAM, "r", _DATABASE, GET("/databases/{database}/watch"))
class WatchKeys(ActionRequest[KeyEntry], name="datalattice.v1.WatchKeysRequest"):
    """Return each change of the keys that begin with a prefix, from now on.

    Several changes of a key between two reads of the stream are one change. resume: of the last
    change received: the changes since then come first. Raises: StaleToken: the state of the
    database at that change is no longer kept.
    """

    database: Annotated[str, Field(1)] = ""
    prefix: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN_NAME
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""
