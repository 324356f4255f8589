"""Reference: a peer that behaves like the reference node: as a script, and as a node of plain TCP.

It speaks the protocol without our extensions. This is what the reference was observed to do:

* it accepts a value only if all cells below came with it or are in its store, and fetches none;
* it answers requests on accepted connections; on dialled ones it reads only answers and
  challenges;
* it answers queries as of its last commit, with everything below; on dialled connections it
  announces bare values with the cells that are new since the commit before;
* queues merge as the public notes say: metadata of the other side wins, of two logs of one length
  its own stays, and a state is rebuilt from the four positions it knows. A join that equals neither
  side is signed with its own key, whoever the owner is.

Source: docs/protocol.md "Plain peers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from datalattice.apps.queue import QUEUE_SECTION, read_state
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    MessageCells,
    Signed,
    Value,
    Vector,
    decode,
    encode,
    is_embedded,
    join_cells,
    novelty,
    references,
    same,
    value_hash,
)
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, LimitExceeded, MissingData, UsageError
from datalattice.lattice import (
    EMPTY_CONTEXT,
    KeyedLattice,
    Lattice,
    MapLattice,
    MergeContext,
    assoc_in,
    get_in,
    root_lattice,
)
from datalattice.wire import (
    Announcement,
    Challenge,
    DataRequest,
    ErrorCode,
    FrameBuffer,
    Ping,
    Query,
    Result,
    answer_challenge,
    decode_payload,
    encode_challenge,
    encode_failure,
    encode_frame,
    encode_result,
    encode_supply,
)

_META: Final = Keyword("meta")
PARTITIONS: Final = Keyword("partitions")
_FIELDS: Final = 4  # "a state is rebuilt from the four positions it knows"
_READ_BYTES: Final = 65_536
_FRAME_BYTES_MAX: Final = 50_000_000


class ReferenceQueue(Lattice):
    """One partition as the reference merges it."""

    def zero(self) -> Value:
        return Vector.of((Vector.of(()), EMPTY_MAP, 0, 0))

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Vector) and len(value) >= _FIELDS

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the longer log, its own if both reach equally far; metadata of `other` wins."""
        if other is None or same(own, other):
            return own  # the seed's rule: own stays
        if own is None:
            return other
        assert isinstance(own, Vector)
        assert isinstance(other, Vector)
        a, b = read_state(own), read_state(other)
        start = max(a.start, b.start)
        # Both cut at the greater start.
        cut = [one.entries.drop(min(start - one.start, len(one.entries))) for one in (a, b)]
        entries = cut[1] if len(cut[1]) > len(cut[0]) else cut[0]  # of equal length its own stays
        meta = _overwritten(own[1], other[1])  # "metadata of the other side wins"
        return _one_of(Vector.of((entries, meta, max(a.stamp_ms, b.stamp_ms), start)), own, other)


class ReferenceTopic(Lattice):
    """A topic as the reference merges it: only two keys of the other side count."""

    def zero(self) -> Value:
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Index)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        # The reference checks no more than that it is an Index.
        if not isinstance(other, Index) or same(own, other):
            return own
        made = own if isinstance(own, Index) else EMPTY_INDEX
        if PARTITIONS in other:
            lattice = MapLattice(ReferenceQueue())
            mine = made.get(PARTITIONS) if PARTITIONS in made else EMPTY_MAP
            made = made.put(PARTITIONS, lattice.merge(mine, other.get(PARTITIONS), context))
        if _META in other:
            mine = made.get(_META) if _META in made else EMPTY_MAP
            made = made.put(_META, _overwritten(mine, other.get(_META)))
        return _one_of(made, own, other)


class ReferenceOwner(Lattice):
    """Owners' signed values as the reference merges them. `foreign`: owners that it signed for."""

    def __init__(self, inner: Lattice, keys: KeyPair) -> None:
        self.inner: Final = inner
        self.keys: Final = keys
        self.foreign: Final[list[Value]] = []

    def zero(self) -> Value:
        return EMPTY_MAP

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Map)

    def child(self, key: Value) -> Lattice | None:
        return _Slot(self, key)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        if not isinstance(other, Map) or same(own, other):
            return own
        made = own if isinstance(own, Map) else EMPTY_MAP
        for owner, value in other.entries():
            mine = made.get(owner) if owner in made else None
            made = made.put(owner, self.join(owner, mine, value))
        return _one_of(made, own, other)

    def join(self, owner: Value, own: Value, other: Value) -> Value:
        """Return the join of two values of one owner, signed with its own key if it is new."""
        # The one check that it makes.
        if not isinstance(other, Signed) or other.public_key != owner or not other.verify():
            return own
        if own is None or same(own, other):
            return other
        assert isinstance(own, Signed)
        joined = self.inner.merge(own.value, other.value)
        if same(joined, own.value):
            return own
        if same(joined, other.value):
            return other
        # "signed with its own key, whoever the owner is": what a good peer must prevent.
        if owner != self.keys.public_key:
            self.foreign.append(owner)
        return Signed.sign(self.keys, joined)


class _Slot(Lattice):
    """One owner's value: what a path below an owner section leads to."""

    def __init__(self, owners: ReferenceOwner, owner: Value) -> None:
        self._owners = owners
        self._owner = owner

    def zero(self) -> Value:
        return None

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Signed)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        return self._owners.join(self._owner, own, other)


def _overwritten(own: Value, other: Value) -> Map:
    base = own if isinstance(own, Map) else EMPTY_MAP
    return base.put_many(list(other.entries())) if isinstance(other, Map) else base


def _one_of(made: Value, own: Value, other: Value) -> Value:
    if same(made, own):
        return own  # an operand itself where it equals the result
    return other if same(made, other) else made


@dataclass(slots=True)
class _Cells:
    """The cells of one peer, by hash; a loader of them."""

    encodings: dict[bytes, bytes] = field(default_factory=dict)

    def load(self, hash: bytes) -> Value:
        """Return a cell. Raises: MissingData: it is not here."""
        if hash not in self.encodings:
            raise MissingData([hash])
        return decode(self.encodings[hash], self)


class ReferencePeer:
    """A reference peer: its values, its answers, and the faults in what it received.

    now_ms:     its clock.
    incomplete: received values that lacked cells, which it never fetches: a good peer sends none.
    bare:       values that came without all cells below them, though the peer had these.
    """

    def __init__(self, keys: KeyPair, now_ms: Callable[[], int]) -> None:
        self.keys: Final = keys
        self._now_ms = now_ms
        self._cells = _Cells()
        self._known: set[bytes] = set()  # announced cells
        topics = MapLattice(ReferenceTopic())
        self.queues: Final = ReferenceOwner(topics, keys)
        self.lattice: Final = KeyedLattice(
            {**root_lattice().children(), QUEUE_SECTION: self.queues}
        )
        self.root: Value = self.lattice.zero()
        self.announced: Value = None
        self.incomplete: Final[list[str]] = []
        self.bare: Final[list[str]] = []
        self.values = 0
        self._id = 0
        self.proved: Final[list[bytes]] = []

    @property
    def announced_hash(self) -> bytes:
        """The hash of what it last committed."""
        return value_hash(self.announced)

    def write(self, change: Callable[[Value], Value]) -> list[bytes]:
        """Change the root and commit; return what to broadcast on dialled connections."""
        self.root = change(self.root)
        return self._commit()

    def root_sync(self) -> list[bytes]:
        """Return its periodic message on dialled connections: the root's cell only."""
        return [] if self.announced is None else [encode(self.announced)]

    def challenge(self) -> bytes:
        """Return the first message on a dialled connection."""
        self._id += 1
        # It challenges whoever it dials.
        return encode_challenge(self._id, self.keys, bytes(32), None)

    def heard(self, payload: bytes, *, accepted: bool) -> tuple[list[bytes], list[bytes]]:
        """Receive a frame; return (answers, payloads to broadcast on dialled connections).

        accepted: whether the connection was accepted, not dialled.
        """
        try:
            message, parts = decode_payload(payload)
        except (BadFormat, LimitExceeded) as error:
            # Any malformed frame gets a failure, without a request.
            return [encode_failure(None, ErrorCode.FORMAT, str(error))], []
        if isinstance(message, Challenge):
            return [answer_challenge(message, self.keys)], []
        if not accepted:  # on dialled connections it reads nothing else
            return [], []
        match message:
            case Ping(id):
                return [encode_result(Result(id, self._now_ms()))], []
            case Query(id, path):
                return self._answer(id, path), []
            case DataRequest(id, hashes):
                held = self._cells.encodings
                return [encode_supply(id, [(hash, held.get(hash)) for hash in hashes])], []
            case Announcement(path, value, absent):
                return [], self._take(path, value, parts, absent)
        return [], []

    def _answer(self, id: Value, path: tuple[Value, ...]) -> list[bytes]:
        value = get_in(self.announced, path)
        try:
            return [encode_result(Result(id, value))]
        except MissingData:
            # Silence, where a good peer would explain.
            return []  # "if some cell below the value is missing, no answer is sent at all"

    def _take(
        self, path: tuple[Value, ...], value: Value, parts: MessageCells, absent: bytes | None
    ) -> list[bytes]:
        """Merge a value at a path; return what to broadcast."""
        self.values += 1
        named = f"a value at {path!r}"
        if absent is not None:
            self.incomplete.append(named)  # it fetches nothing, so the value is lost to it
            return []
        sent = parts.encodings()
        try:
            outside = self._outside(value, sent)
        except MissingData as error:
            self.incomplete.append(f"{named}: {error}")  # the peer should have sent these cells
            return []
        if outside:
            self.bare.append(f"{named}: {outside} cells")
        self._cells.encodings.update(sent)
        other = decode(encode(value), self._cells)
        target = self.lattice.path(*path)
        try:
            if target is None:  # "wrapped back into its parent and merged there"
                key, path = path[-1:], path[:-1]  # a path that it has no lattice for
                target = self.lattice.path(*path)
                other = assoc_in(None, key, other, target)
            if target is None:
                return []
            merged = target.merge(get_in(self.root, path), other)
            self.root = assoc_in(self.root, path, merged, self.lattice)
        except (UsageError, BadFormat):
            return []  # "one bad entry spoils the message"
        return self._commit()

    def _outside(self, value: Value, sent: dict[bytes, bytes]) -> int:
        """Return how many cells below a value are not in its message.

        Raises: MissingData: one is not here either.
        """
        level = references(encode(value)) if is_embedded(value) else [value_hash(value)]
        seen: set[bytes] = set()
        count = 0
        while level:
            hash = level.pop()
            if hash in seen:
                continue
            seen.add(hash)
            encoding = sent.get(hash)
            if encoding is None:
                count += 1
                encoding = self._cells.encodings.get(hash)
            if encoding is None:
                raise MissingData([hash])
            level.extend(references(encoding))
        return count

    def _commit(self) -> list[bytes]:
        """Announce the root; return the bare value with the new cells, parents first."""
        # The same root is not announced again.
        if self.announced is not None and same(self.root, self.announced):
            return []
        cells = self._cells.encodings
        cells.update((hash, encoding) for hash, encoding, _ in novelty(self.root, self._cells))
        top, name = encode(self.root), value_hash(self.root)
        cells[name] = top
        # Decoded anew: what it has is what it can load.
        self.root = self.announced = decode(top, self._cells)
        fresh: list[bytes] = []
        level = references(top)
        while level:
            hash = level.pop()
            if hash not in self._known:  # a cell goes out once, whatever refers to it
                self._known.add(hash)
                fresh.append(cells[hash])
                level.extend(references(cells[hash]))
        return [join_cells(top, fresh)]


class ReferenceNode:
    """A reference peer that listens on loopback; `async with` runs it on the event loop."""

    def __init__(self, keys: KeyPair) -> None:
        self.peer: Final = ReferencePeer(keys, SystemClock().now_ms)
        self._made: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.heard = asyncio.Event()

    async def __aenter__(self) -> Self:
        # Loopback, any free port.
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """Where others dial it."""
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def dial(self, port: int) -> None:
        """Connect to a node, and broadcast there from now on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._made.append(writer)  # it broadcasts on dialled connections alone
        writer.write(encode_frame(self.peer.challenge()))
        task = asyncio.ensure_future(self._serve(reader, writer, accepted=False))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def write(self, change: Callable[[Value], Value]) -> None:
        """Have its user change the root, and broadcast."""
        self._broadcast(self.peer.write(change))

    def root_sync(self) -> None:
        """Send the root's cell on dialled connections."""
        self._broadcast(self.peer.root_sync())

    async def wait_until(
        self, condition: Callable[[ReferencePeer], bool], timeout_s: float
    ) -> None:
        """Return when `condition` holds. Raises: TimeoutError: it does not in time."""
        async with asyncio.timeout(timeout_s):
            while not condition(self.peer):
                self.heard.clear()  # cleared before waiting, after looking
                await self.heard.wait()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, accepted=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, accepted: bool
    ) -> None:
        self._writers.add(writer)
        buffer = FrameBuffer(_FRAME_BYTES_MAX)
        with suppress(ConnectionError):  # a peer that goes away is no fault
            while data := await reader.read(_READ_BYTES):
                buffer.feed(data)
                while (payload := buffer.next_payload()) is not None:
                    answers, broadcast = self.peer.heard(payload, accepted=accepted)
                    for answer in answers:
                        writer.write(encode_frame(answer))
                    self._broadcast(broadcast)
                    self.heard.set()
                await writer.drain()
        self._writers.discard(writer)
        if writer in self._made:
            self._made.remove(writer)
        writer.close()

    def _broadcast(self, payloads: list[bytes]) -> None:
        for writer in self._made:
            for payload in payloads:
                writer.write(encode_frame(payload))
