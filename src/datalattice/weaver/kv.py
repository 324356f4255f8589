"""Key-value machine, `core:kvstore`: put, get, delete, list, batch, inspect and watch.

A payload is a list of operations that are applied as one; the last operation on a key counts.
Every write names the heads of its keys as dependencies, so it replaces what its author saw; writes
that did not see each other leave a conflict, which the next write to the key resolves.

Source: docs/design/weaver.md "Shipped machines".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, ClassVar, Final

from datalattice.engine import successor
from datalattice.errors import UsageError
from datalattice.protobuf import Field, Message
from datalattice.weaver.heads import TOMBSTONE, HeadReader, HeadTable
from datalattice.weaver.machine import (
    Dag,
    InvalidParams,
    Machine,
    Proposal,
    StateReader,
    StateWriter,
    Written,
    command,
    query,
    stream,
)
from datalattice.weaver.op import Op
from datalattice.weaver.payloads import canonical_writes
from datalattice.weaver.sexpr import SExpr, SymbolWord, printable
from datalattice.weaver.tables import STATE_KEY_BYTES_MAX

try:
    import re2
except ImportError:  # the extra `regex`
    re2 = None

PATTERN_BYTES_MAX: Final = 1_024
"""Longest pattern of `watch`: the time to compile one grows with its length."""


class PutOp(Message, name="lattice.kv.PutOp"):
    """Set a key."""

    key: Annotated[bytes, Field(1)] = b""
    value: Annotated[bytes, Field(2)] = b""


class DeleteOp(Message, name="lattice.kv.DeleteOp"):
    """Delete a key."""

    key: Annotated[bytes, Field(1)] = b""


class Operation(Message, name="lattice.kv.Operation"):
    """One change."""

    put: Annotated[PutOp | None, Field(1, oneof="op_type")] = None
    delete: Annotated[DeleteOp | None, Field(2, oneof="op_type")] = None


class KvPayload(Message, name="lattice.kv.KvPayload"):
    """What is signed: changes made as one."""

    ops: Annotated[tuple[Operation, ...], Field(1)] = ()


class PutRequest(Message, name="lattice.kv.PutRequest"):
    """Set `key` to `value`."""

    key: Annotated[bytes, Field(1)] = b""
    value: Annotated[bytes, Field(2)] = b""


class DeleteRequest(Message, name="lattice.kv.DeleteRequest"):
    """Delete `key`."""

    key: Annotated[bytes, Field(1)] = b""


class BatchRequest(Message, name="lattice.kv.BatchRequest"):
    """Make several changes as one."""

    ops: Annotated[tuple[Operation, ...], Field(1)] = ()


class GetRequest(Message, name="lattice.kv.GetRequest"):
    """Read `key`."""

    key: Annotated[bytes, Field(1)] = b""


class GetResponse(Message, name="lattice.kv.GetResponse"):
    """The value, absent if the key is missing or deleted."""

    value: Annotated[bytes | None, Field(1)] = None
    conflicted: Annotated[bool, Field(2)] = False


class ListRequest(Message, name="lattice.kv.ListRequest"):
    """Read all keys that begin with `prefix`."""

    prefix: Annotated[bytes, Field(1)] = b""


class KeyValuePair(Message, name="lattice.kv.KeyValuePair"):
    """One live key."""

    key: Annotated[bytes, Field(1)] = b""
    value: Annotated[bytes, Field(2)] = b""
    conflicted: Annotated[bool, Field(3)] = False


class ListResponse(Message, name="lattice.kv.ListResponse"):
    """Live keys in order."""

    items: Annotated[tuple[KeyValuePair, ...], Field(1)] = ()


class InspectRequest(Message, name="lattice.kv.InspectRequest"):
    """Read everything about `key`."""

    key: Annotated[bytes, Field(1)] = b""


class InspectResponse(Message, name="lattice.kv.InspectResponse"):
    """Value, tombstone and heads of a key; the first head is the winner."""

    key: Annotated[bytes, Field(1)] = b""
    exists: Annotated[bool, Field(2)] = False
    value: Annotated[bytes | None, Field(3)] = None
    tombstone: Annotated[bool, Field(4)] = False
    conflicted: Annotated[bool, Field(5)] = False
    heads: Annotated[tuple[bytes, ...], Field(6)] = ()
    head_count: Annotated[int, Field(7, "uint32")] = 0


class WatchParams(Message, name="lattice.kv.WatchParams"):
    """Keys to watch: those that begin with `prefix` and in which `pattern` is found."""

    prefix: Annotated[bytes, Field(1)] = b""
    pattern: Annotated[str, Field(2)] = ""


class WatchEvent(Message, name="lattice.kv.WatchEventProto"):
    """What a key holds after a write to it."""

    key: Annotated[bytes, Field(1)] = b""
    value: Annotated[bytes | None, Field(2, oneof="kind")] = None
    deleted: Annotated[bool | None, Field(3, oneof="kind")] = None


class KvMachine(Machine):
    """Keys and values as bytes, with the last writer's value and a flag for conflicts."""

    kind = "core:kvstore"
    aliases = ("kv",)
    service = "lattice.kv.KvStore"
    payload: ClassVar[type[Message] | None] = KvPayload

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        """Apply the changes of a payload; the events are the winners, in the payload's order."""
        table = HeadTable(state, dag.intention, written_by)
        events: list[Message] = []
        for key, winner in table.apply_all(op, written_by(op.payload)).items():
            value = winner.value
            events.append(
                WatchEvent(key, deleted=True) if value is None else WatchEvent(key, value)
            )
        return events

    @command
    def put(self, request: PutRequest, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Set a key."""
        # "Semantic validation belongs in the command handler before signing."
        check_kv_key(request.key)
        return _propose((Operation(put=PutOp(request.key, request.value)),), [request.key], state)

    @command
    def delete(self, request: DeleteRequest, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Delete a key, present or not."""
        check_kv_key(request.key)
        return _propose((Operation(delete=DeleteOp(request.key)),), [request.key], state)

    @command
    def batch(self, request: BatchRequest, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Make several changes as one; the last change of a key counts."""
        if not request.ops:
            raise UsageError("a batch has at least one operation")
        last: dict[bytes, Operation] = {}
        for operation in request.ops:
            changed = operation.put or operation.delete
            if changed is None:
                raise UsageError("an operation of a batch is a put or a delete")
            check_kv_key(changed.key)
            last.pop(changed.key, None)  # the kept operation stands where it was given
            last[changed.key] = operation
        return _propose(tuple(last.values()), list(last), state)

    @query
    def get(self, request: GetRequest, state: StateReader, dag: Dag) -> GetResponse:
        """Read a key."""
        value, conflicted = HeadReader(state).get_with_conflict(request.key)
        return GetResponse(value, conflicted)

    @query
    def list(self, request: ListRequest, state: StateReader, dag: Dag) -> ListResponse:
        """List the live keys that begin with a prefix."""
        rows = HeadReader(state).scan(request.prefix, successor(request.prefix))
        return ListResponse(
            tuple(
                KeyValuePair(key, value, conflicted)
                for key, value, conflicted in rows
                if value is not None  # "live keys only, key order"
            )
        )

    @query
    def inspect(self, request: InspectRequest, state: StateReader, dag: Dag) -> InspectResponse:
        """Read everything about a key: value, tombstone, conflict and heads."""
        found = HeadReader(state).inspect(request.key)
        count = len(found.heads)
        return InspectResponse(
            request.key, found.exists, found.value, found.tombstone, count > 1, found.heads, count
        )

    @stream
    def watch(self, params: WatchParams) -> Callable[[Message], WatchEvent | None]:
        """Follow the changes of keys, chosen by a prefix, a regular expression, or both."""
        prefix = params.prefix
        search = _compile(params.pattern) if params.pattern else None

        def chosen(event: Message) -> WatchEvent | None:
            if not isinstance(event, WatchEvent) or not event.key.startswith(prefix):
                return None
            return event if search is None or search(event.key) else None

        return chosen

    def summarize(self, payload: bytes) -> tuple[SExpr, ...]:
        """Return `(put "k" "v")` and `(del "k")`.

        Raises: BadFormat: it is not a payload of this machine.
        """
        return tuple(
            (SymbolWord("del"), printable(key))
            if value is None
            else (SymbolWord("put"), printable(key), printable(value))
            for key, value in _changes(payload)
        )


def written_by(payload: bytes) -> dict[bytes, bytes | None]:
    """Return the last value, or TOMBSTONE, that a payload writes to each key.

    Keys come in the order of their last operations; those that are too long are left out.
    Raises: BadFormat: it is not a payload of this machine.
    """
    # Own writes are canonical: they take one pass over the bytes, without messages.
    found = canonical_writes(payload)
    if found is None:
        found = {}
        for key, value in _changes(payload):
            found.pop(key, None)
            # Passed over here as well: both ways must give one state on every node.
            if len(key) <= STATE_KEY_BYTES_MAX:
                found[key] = value
    return found


def _changes(payload: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of every operation; an operation without kind changes nothing."""
    for operation in KvPayload.decode(payload).ops:  # "An undecodable payload fails (stall)"
        if operation.put is not None:
            yield operation.put.key, operation.put.value
        elif operation.delete is not None:
            yield operation.delete.key, TOMBSTONE


def _propose(
    ops: tuple[Operation, ...], keys: list[bytes], state: StateReader
) -> Proposal[Written]:
    """Return a write of `ops` that replaces all heads of `keys`."""
    reader = HeadReader(state)
    # "deps = union of the heads of all touched keys", so the write replaces what its author saw.
    deps = dict.fromkeys([head for key in keys for head in reader.heads(key)])
    return Proposal(KvPayload(ops).encode(), tuple(deps))


def check_kv_key(key: bytes) -> None:
    """Raise UsageError unless a key that is going to be written has an accepted length."""
    # "empty key refused" before signing; "an empty key replays"
    if not 1 <= len(key) <= STATE_KEY_BYTES_MAX:
        raise UsageError(f"a key has 1 to {STATE_KEY_BYTES_MAX} bytes, got {len(key)}")


def _compile(pattern: str) -> Callable[[bytes], Any]:
    """Return an unanchored search in bytes.

    Raises: InvalidParams: the pattern is too long or no regular expression. UsageError: the
            package for regular expressions is missing.
    """
    data = pattern.encode()
    if len(data) > PATTERN_BYTES_MAX:  # the length before the engine: compiling costs with it
        raise InvalidParams(f"a pattern has at most {PATTERN_BYTES_MAX} bytes, got {len(data)}")
    if re2 is None:
        raise UsageError(
            "watching by a pattern needs google-re2: pip install 'datalattice[regex]'; "
            "a prefix works without it"
        )
    # RE2 searches in linear time: a subscriber's pattern must not be able to stop the node.
    options = re2.Options()
    options.log_errors = False  # the error is raised here instead
    try:
        search: Callable[[bytes], Any] = re2.compile(data, options).search
    except re2.error as error:
        raise InvalidParams(f"the pattern {pattern!r} is not valid: {error}") from error
    return search
