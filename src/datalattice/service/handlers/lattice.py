"""Handlers of the actions on values and on paths of the lattice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from datalattice import actions
from datalattice.cells import (
    Index,
    Map,
    Value,
    decode_message,
    encode_message,
    missing,
    to_text,
    value_hash,
)
from datalattice.client import canonical_path, kind_of, parse_path_key, value_at
from datalattice.cursors import LatticeCursor, Stream
from datalattice.errors import BadFormat, MissingData, NoSuchPath, Unauthorized, UsageError
from datalattice.lattice import replicable
from datalattice.service.registry import ServiceCall, Streamed, handles, page
from datalattice.service.resuming import not_a_position, read_token, stream_name
from datalattice.store.kept import Pin

_HASHES_MAX = 254
"""Most hashes of missing cells in one answer: as many as a request of the node protocol holds."""


@handles(actions.PutValue)
def put_value(call: ServiceCall, request: actions.PutValue) -> actions.Stored:
    """Store a value and pin it."""
    hash = value_hash(request.value)
    is_new = not call.node.has_value(hash)
    # A name from the hash: the same value stored again keeps its one pin.
    name = request.label or f"value-{hash.hex()[:16]}"
    call.node.keep(name, request.value, owner=call.caller)
    return actions.Stored(hash=hash, is_new=is_new)


@handles(actions.GetValue)
def get_value(call: ServiceCall, request: actions.GetValue) -> actions.FoundValue:
    """Return the value of a hash, or the value at a path inside it."""
    try:
        found = value_at(_shown(call, call.node.value(request.hash)), _keys(request.path))
    except MissingData as error:
        raise NoSuchPath(f"this node holds no value with the hash {request.hash.hex()}") from error
    return actions.FoundValue(value=found, hash=value_hash(found))


def _shown(call: ServiceCall, value: Value) -> Value:
    """Return the part of a value that the caller may see: of a root, all but `:local`."""
    # `:local` has the results of other callers' requests; peers never get it, either.
    return value if call.is_operator else replicable(value)


def _keys(path: str) -> list[Value]:
    return [parse_path_key(part) for part in path.split("/") if part]


@handles(actions.FindMissing)
def find_missing(call: ServiceCall, request: actions.FindMissing) -> actions.MissingCells:
    """Return the hashes of the cells below a value that the store lacks."""
    if not call.node.has_value(request.hash):
        return actions.MissingCells(missing=(request.hash,))
    return actions.MissingCells(missing=tuple(missing(call.node.value(request.hash), _HASHES_MAX)))


@handles(actions.EncodeValue)
def encode_value(call: ServiceCall, request: actions.EncodeValue) -> actions.Encoding:
    """Return the encoding of a value."""
    return actions.Encoding(data=encode_message(request.value), hash=value_hash(request.value))


@handles(actions.DecodeValue)
def decode_value(call: ServiceCall, request: actions.DecodeValue) -> actions.FoundValue:
    """Return the value of an encoding."""
    value = decode_message(request.data)
    return actions.FoundValue(value=value, hash=value_hash(value))


@handles(actions.GetPath)
def get_path(call: ServiceCall, request: actions.GetPath) -> actions.PathValue:
    """Return the value at a path."""
    keys = canonical_path(_keys(request.path))
    if not request.at:
        return _path_value(call, call.node.cursor().get(), keys)
    with call.node.as_of(request.at) as past:
        return _path_value(call, past.cursor().get(), keys)


def _path_value(call: ServiceCall, root: Value, keys: Sequence[Value]) -> actions.PathValue:
    root = _shown(call, root)
    value = value_at(root, keys)
    return actions.PathValue(value=value, hash=value_hash(value), root_hash=value_hash(root))


@handles(actions.MergePath)
def merge_path(call: ServiceCall, request: actions.MergePath) -> actions.Merged:
    """Merge a value into the value at a path."""
    keys = canonical_path(_keys(request.path))
    # A caller has no connection over which cells could be fetched, as from a peer.
    lacking = missing(request.value, _HASHES_MAX)
    if lacking:
        raise MissingData(lacking)
    cursor = call.node.cursor(*keys)
    # `merge` drops a value that does not fit, without an error.
    if cursor.lattice is not None and not cursor.lattice.check_foreign(request.value):
        raise BadFormat(
            f"a {kind_of(request.value)} cannot be merged at {request.path or 'the root'}"
        )
    # Of the root, so a merge of another caller meanwhile counts as a change, too.
    before = value_hash(call.node.cursor().get())
    cursor.merge(request.value)
    after = value_hash(call.node.cursor().get())
    return actions.Merged(root_hash=after, changed=after != before)


def _root_info(root: Value) -> actions.RootInfo:
    keys = root.keys() if isinstance(root, (Index, Map)) else ()
    return actions.RootInfo(hash=value_hash(root), sections=tuple(to_text(key) for key in keys))


@handles(actions.GetRoot)
def get_root(call: ServiceCall, request: actions.GetRoot) -> actions.RootInfo:
    """Return the root's hash and sections."""
    return _root_info(call.node.cursor().get())


@handles(actions.WatchRoot)
def watch_root(call: ServiceCall, request: actions.WatchRoot) -> Streamed[actions.RootInfo]:
    """Return each new root, the present one first."""
    name = stream_name(request.action.name)
    seen = read_token(request.resume, name) if request.resume else None
    if not isinstance(seen, bytes | None):
        raise not_a_position(seen)
    stream = _Roots(call.node.cursor(), seen)
    return Streamed(
        stream, _root_info, name=name, positions=stream, is_resumed=bool(request.resume)
    )


class _Roots(Stream[Value]):
    """The newest root at each reading; a position is its hash."""

    def __init__(self, cursor: LatticeCursor, seen: bytes | None) -> None:
        """seen: the hash of the last root that the reader got; None: begin with the present one."""
        super().__init__(cursor)
        self._cursor = cursor
        self._seen_hash = seen
        self._begun: Value = cursor.get() if seen is None else None

    def _fetch(self) -> list[Value]:
        root = self._cursor.get() if self._begun is None else self._begun
        self._begun = None
        before, self._seen_hash = self._seen_hash, value_hash(root)
        # Changes may lead back to the root that the reader has.
        return [] if before == self._seen_hash else [root]

    def now(self) -> Value:
        return self._seen_hash or b""

    def after(self, items: Sequence[Value]) -> list[Value]:
        return [value_hash(root) for root in items]

    def fresh_start(self) -> str:
        return "at the present root"


@handles(actions.ListRoots)
def list_roots(call: ServiceCall, request: actions.ListRoots) -> actions.RootHistory:
    """Return the former roots."""
    count = page(request.count, actions.PAGE_MAX)
    return actions.RootHistory(
        roots=tuple(
            actions.PastRoot(
                ref=past.ref, time_ms=round(past.time.timestamp() * 1_000), hash=past.hash
            )
            for past in islice(call.node.history(), count)
        )
    )


def _pin_info(pin: Pin) -> actions.PinInfo:
    return actions.PinInfo(label=pin.name, hash=pin.root_hash)


@handles(actions.ListPins)
def list_pins(call: ServiceCall, request: actions.ListPins) -> actions.PinList:
    """List the pins of the caller."""
    return actions.PinList(
        pins=tuple(_pin_info(pin) for pin in call.node.pins() if _is_own(call, pin))
    )


def _is_own(call: ServiceCall, pin: Pin) -> bool:
    # "Pins are reference counted by owner": no caller deletes the pins of another.
    return call.is_operator or pin.owner == call.caller


@handles(actions.PutPin)
def put_pin(call: ServiceCall, request: actions.PutPin) -> actions.PinInfo:
    """Keep a stored value."""
    if not request.label:
        raise UsageError("label is empty; a pin needs a name")
    return _pin_info(call.node.pin(request.label, request.hash, owner=call.caller))


@handles(actions.DeletePin)
def delete_pin(call: ServiceCall, request: actions.DeletePin) -> actions.Empty:
    """Delete a pin."""
    held = {pin.name: pin for pin in call.node.pins()}.get(request.label)
    if held is None:
        raise NoSuchPath(f"there is no pin {request.label!r:.80}")
    if not _is_own(call, held):
        raise Unauthorized(f"the pin {request.label!r:.80} belongs to another caller")
    call.node.unpin(request.label)
    return actions.Empty()
