"""Handlers of the actions on values and on paths of the lattice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from datalattice.actions import (
    PAGE_MAX,
    DecodeValue,
    DeletePin,
    Empty,
    EncodeValue,
    Encoding,
    FindMissing,
    FoundValue,
    GetPath,
    GetRoot,
    GetValue,
    ListPins,
    ListRoots,
    Merged,
    MergePath,
    MissingCells,
    PastRoot,
    PathValue,
    PinInfo,
    PinList,
    PutPin,
    PutValue,
    RootHistory,
    RootInfo,
    Stored,
    WatchRoot,
)
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

HASHES_MAX = 254
"""Hashes of missing cells in one answer: as many as one request of the node protocol names."""


@handles(PutValue)
def put_value(call: ServiceCall, request: PutValue) -> Stored:
    """Store a value and pin it."""
    hash = value_hash(request.value)
    is_new = not call.node.has_value(hash)
    name = request.label or f"value-{hash.hex()[:16]}"
    call.node.keep(name, request.value, owner=call.caller)
    return Stored(hash=hash, is_new=is_new)


@handles(GetValue)
def get_value(call: ServiceCall, request: GetValue) -> FoundValue:
    """Return the value of a hash, or what is inside it."""
    try:
        found = value_at(_shown(call, call.node.value(request.hash)), _keys(request.path))
    except MissingData as error:
        raise NoSuchPath(f"there is no value with the hash {request.hash.hex()} here") from error
    return FoundValue(value=found, hash=value_hash(found))


def _shown(call: ServiceCall, value: Value) -> Value:
    """Return what the caller may see of a value: of a root, not what is the node's own."""
    # `:local` has the results of other callers' requests; it is never sent to peers, either.
    return value if call.is_operator else replicable(value)


def _keys(path: str) -> list[Value]:
    return [parse_path_key(part) for part in path.split("/") if part]


@handles(FindMissing)
def find_missing(call: ServiceCall, request: FindMissing) -> MissingCells:
    """Return which cells below a value are not here."""
    if not call.node.has_value(request.hash):
        return MissingCells(missing=(request.hash,))
    return MissingCells(missing=tuple(missing(call.node.value(request.hash), HASHES_MAX)))


@handles(EncodeValue)
def encode_value(call: ServiceCall, request: EncodeValue) -> Encoding:
    """Return the encoding of a value."""
    return Encoding(data=encode_message(request.value), hash=value_hash(request.value))


@handles(DecodeValue)
def decode_value(call: ServiceCall, request: DecodeValue) -> FoundValue:
    """Return the value of an encoding."""
    value = decode_message(request.data)
    return FoundValue(value=value, hash=value_hash(value))


@handles(GetPath)
def get_path(call: ServiceCall, request: GetPath) -> PathValue:
    """Return what is at a path."""
    keys = canonical_path(_keys(request.path))
    if not request.at:
        root = _shown(call, call.node.cursor().get())
        value = value_at(root, keys)
        return PathValue(value=value, hash=value_hash(value), root_hash=value_hash(root))
    with call.node.as_of(request.at) as past:
        root = _shown(call, past.cursor().get())
        value = value_at(root, keys)
        return PathValue(value=value, hash=value_hash(value), root_hash=value_hash(root))


@handles(MergePath)
def merge_path(call: ServiceCall, request: MergePath) -> Merged:
    """Merge a value with what is at a path."""
    keys = canonical_path(_keys(request.path))
    lacking = missing(request.value, HASHES_MAX)
    if lacking:
        raise MissingData(lacking)
    cursor = call.node.cursor(*keys)
    # A merge drops what does not fit; a caller is told.
    if cursor.lattice is not None and not cursor.lattice.check_foreign(request.value):
        raise BadFormat(
            f"a {kind_of(request.value)} cannot be merged at {request.path or 'the root'}"
        )
    before = value_hash(call.node.cursor().get())
    cursor.merge(request.value)
    after = value_hash(call.node.cursor().get())
    return Merged(root_hash=after, changed=after != before)


def _root_info(root: Value) -> RootInfo:
    keys = root.keys() if isinstance(root, (Index, Map)) else ()
    return RootInfo(hash=value_hash(root), sections=tuple(to_text(key) for key in keys))


@handles(GetRoot)
def get_root(call: ServiceCall, request: GetRoot) -> RootInfo:
    """Return the root's hash and sections."""
    return _root_info(call.node.cursor().get())


@handles(WatchRoot)
def watch_root(call: ServiceCall, request: WatchRoot) -> Streamed[RootInfo]:
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
    """Each root that is new at a look; its hash is the position."""

    def __init__(self, cursor: LatticeCursor, seen: bytes | None) -> None:
        """seen: the hash of the root that was taken last."""
        super().__init__(cursor)
        self._cursor = cursor
        self._seen_hash = seen
        self._begun: Value = cursor.get() if seen is None else None

    def _fetch(self) -> list[Value]:
        root = self._cursor.get() if self._begun is None else self._begun
        self._begun = None
        before, self._seen_hash = self._seen_hash, value_hash(root)
        return [] if before == self._seen_hash else [root]

    def now(self) -> Value:
        return self._seen_hash or b""

    def after(self, items: Sequence[Value]) -> list[Value]:
        return [value_hash(root) for root in items]

    def fresh_start(self) -> str:
        return "at the present root"


@handles(ListRoots)
def list_roots(call: ServiceCall, request: ListRoots) -> RootHistory:
    """Return the roots that are remembered."""
    count = page(request.count, PAGE_MAX)
    return RootHistory(
        roots=tuple(
            PastRoot(ref=past.ref, time_ms=round(past.time.timestamp() * 1_000), hash=past.hash)
            for past in islice(call.node.history(), count)
        )
    )


def _pin_info(pin: Pin) -> PinInfo:
    return PinInfo(label=pin.name, hash=pin.root_hash)


@handles(ListPins)
def list_pins(call: ServiceCall, request: ListPins) -> PinList:
    """List the pins of the caller."""
    return PinList(pins=tuple(_pin_info(pin) for pin in call.node.pins() if _is_own(call, pin)))


def _is_own(call: ServiceCall, pin: Pin) -> bool:
    # "Pins are reference counted by owner": nobody lets go of what another one keeps.
    return call.is_operator or pin.owner == call.caller


@handles(PutPin)
def put_pin(call: ServiceCall, request: PutPin) -> PinInfo:
    """Keep a stored value."""
    if not request.label:
        raise UsageError("label: the name of a pin is not empty")
    return _pin_info(call.node.pin(request.label, request.hash, owner=call.caller))


@handles(DeletePin)
def delete_pin(call: ServiceCall, request: DeletePin) -> Empty:
    """Let go of what a pin keeps."""
    held = {pin.name: pin for pin in call.node.pins()}.get(request.label)
    if held is None:
        raise NoSuchPath(f"there is no pin {request.label!r:.80}")
    if not _is_own(call, held):
        raise Unauthorized(f"the pin {request.label!r:.80} is another caller's")
    call.node.unpin(request.label)
    return Empty()
