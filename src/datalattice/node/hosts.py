"""Hosts: the replicas of a node, and the streams on which they talk to peers.

A `Host` is one replica with its replicator, its lane and its ledger of peers. `Hosts` is the table
of hosts by (protocol, store id). The lattice is always in it and uses the main stream of every
connection. Other replicas may be added and removed while the node runs. Such a replica has one
stream on each multiplexed connection, if both sides admit each other.

When a connection is made, the side that dialled opens a stream for each of its replicas. Later the
side that adds a replica opens one, or the side whose replica has changed and may admit the peer
now. If a peer lacks the replica, or its replica refuses this node, it resets the stream in both
cases; after that only the peer may open one. If both sides open one at the same time, the dialler's
stays.

Source: docs/node.md "Further replicas"; docs/protocol.md "Several streams".

Length: the table and the streams of its replicas change together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from datalattice.errors import Backpressure, StoreClosed, UsageError
from datalattice.node.connection import Connection
from datalattice.node.lanes import Done, Lane, LaneAction, LanePool
from datalattice.node.observe import Observer
from datalattice.sync import Absorbed, Effects, Note, Peer, Regard, Replica, Replicator, Sender
from datalattice.wire import (
    LATTICE,
    MAIN_STREAM,
    PROTOCOL_BYTES_MAX,
    STORE_ID_BYTES_MAX,
    Framing,
)

PUBLISH_TIMEOUT_S: Final = 10.0  # for the last publication of a replica that is closed

FAULTY_MAX: Final = 3  # replicas whose rules a peer breaks: each ends a stream, the third the link

OFFER_AGAIN_S: Final = 0.25  # a changed replica is offered to more peers at most this often

R = TypeVar("R", bound=Replica, covariant=True)  # noqa: PLC0105
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who is at the other end of a connection.

    dialled:    this node made the connection.
    public_key: the key proved by the transport or a challenge, None without a proof.
    pinned:     the key that the peer has to prove before anything else, None for any.
    sender:     what its messages are charged to: its key, else where it comes from.
    is_wanted:  the operator named it as a peer.
    is_known:   the operator named it as a peer or in `allow`.
    """

    connection: str
    dialled: bool
    public_key: bytes | None
    pinned: bytes | None
    sender: Sender
    is_wanted: bool
    is_known: bool


class PeerLedger:
    """A replica's records about its peers, used in its lane. This class keeps none."""

    def introduce(self, who: PeerIdentity) -> None:
        """Note who a peer is, before anything else of its connection, and when that changes."""

    def leave(self, connection: str) -> None:
        """Note that a connection has ended."""

    def wait_ms(self, connection: str) -> int:
        """Return how long the next message of a connection has to wait."""
        return 0


CarryOut = Callable[["Host[Replica]", Effects], None]
"""Carries out the effects of a replicator, on the event loop."""


class Host(Generic[R]):
    """One replica on a node.

    in_lane: called in the lane with effects before they are carried out; returns whether a caller
             on the event loop waits for them even if there is nothing to do there.
    on_loop: called on the event loop with effects after they were carried out.
    """

    def __init__(
        self,
        name: tuple[str, bytes],
        replica: R,
        replicator: Replicator,
        on_failure: Callable[[Exception], None],
        pool: LanePool,
        *,
        ledger: PeerLedger | None = None,
        in_lane: Callable[[Effects], bool] | None = None,
        on_loop: Callable[[Effects], None] | None = None,
    ) -> None:
        self.protocol, self.store_id = name
        self.replica: Final[R] = replica
        self.ledger: Final = ledger or PeerLedger()
        self._in_lane = in_lane
        self._on_loop = on_loop
        self._closed = False
        self.lane: Final = Lane(pool, replicator, self._deliver, on_failure)

    @property
    def name(self) -> str:
        """Its protocol and store id, as text."""
        return f"{self.protocol} {self.store_id.hex()}".rstrip()

    def start(self, carry_out: CarryOut) -> None:
        """Begin to work; effects go to `carry_out`, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._outlet = carry_out
        self.lane.start()

    async def close(self) -> None:
        """Make what was written durable, finish what was submitted, and end.

        Raises: StoreError: the last writes could not be made durable.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.to_thread(self.lane.publish, PUBLISH_TIMEOUT_S)
        finally:
            await asyncio.to_thread(self.lane.stop)

    def admits(self, peer: Peer) -> bool:
        """Return whether the replica talks to a peer. In its lane."""
        return self.replica.regard(peer) is not Regard.REFUSED

    async def act(self, action: Callable[[Replicator, int], T]) -> T:
        """Return what an action in the lane returns, once its effects were carried out.

        Raises: whatever `action` raises. StoreClosed: the host was removed.
        """
        if self._closed:
            raise StoreClosed(f"{self.name} is not on this node any more")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome: list[T] = []
        fault: Exception | None = None

        def act(replicator: Replicator, now_ms: int) -> None:
            nonlocal fault
            try:
                outcome.append(action(replicator, now_ms))
            except Exception as error:  # noqa: BLE001 - raised again to the caller
                fault = error

        def done() -> None:
            if answer.done():  # the caller was cancelled
                return
            if fault is not None:
                answer.set_exception(fault)
            else:
                answer.set_result(outcome[0])

        self.lane.submit(act, done)
        return await answer

    async def ask(self, question: Callable[[R], T]) -> T:
        """Return what `question` returns for the replica, in its lane.

        Raises: whatever `question` raises.
        """
        return await self.act(lambda _replicator, _now_ms: question(self.replica))

    async def write(self, change: Callable[[R], T]) -> T:
        """Change the replica in its lane; return what `change` returns once it is durable.

        Raises: whatever `change` raises. StoreError: it could not be made durable.
        """

        def act(replicator: Replicator, now_ms: int) -> T:
            value = change(self.replica)
            replicator.publish(now_ms)
            return value

        return await self.act(act)

    def _deliver(self, effects: Effects, done: Done | None) -> None:
        is_awaited = self._in_lane is not None and self._in_lane(effects)
        # Most effects have nothing to do on the event loop, and waking it is expensive.
        if is_awaited or done is not None or not effects.is_silent:
            self._loop.call_soon_threadsafe(self._carry_out, effects, done)

    def _carry_out(self, effects: Effects, done: Done | None) -> None:
        self._outlet(self, effects)
        if self._on_loop is not None:
            self._on_loop(effects)
        if done is not None:
            done()


def connection_of(partner: str) -> str:
    """Return the id of the connection on which a partner of a replicator talks.

    A partner is one stream. On the main stream it has the id of the connection, which ends in `#`
    and a number; on another one `.` and the stream's number follow.
    """
    remote, mark, numbers = partner.rpartition("#")
    return f"{remote}{mark}{numbers.partition('.')[0]}" if mark else partner


def _partner(connection: str, stream: int) -> str:
    # Each stream has its own name: a message for one stream is never sent on a later one.
    return connection if stream == MAIN_STREAM else f"{connection}.{stream}"


@dataclass(eq=False, slots=True)
class PeerStreams:
    """A connection, and which replica talks on which of its streams.

    refused:  replicas whose stream the peer has reset; only the peer may open another.
    refusing: streams of the peer that this side is about to reset, with the names in their OPEN.
    unopened: replicas for which no more streams could be opened; offered again when one ends.
    faulty:   how many replicas have ended their stream because of what the peer sent.
    """

    connection: Connection
    who: PeerIdentity
    hosts: dict[int, Host[Replica]] = field(default_factory=dict)
    streams: dict[Host[Replica], int] = field(default_factory=dict)
    refused: set[Host[Replica]] = field(default_factory=set)
    refusing: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    unopened: set[Host[Replica]] = field(default_factory=set)
    faulty: int = 0


class Hosts:
    """The table of a node's replicas. Lives on the event loop.

    pool: the threads of all their lanes.
    """

    def __init__(self, observer: Observer) -> None:
        self.pool: Final = LanePool()
        self._observer = observer
        self.lattice: Host[Replica]
        """The host of the node's lattice, the first that is added."""
        self._table: dict[tuple[str, bytes], Host[Replica]] = {}
        self._framings: dict[str, Framing] = {}
        self._talks: dict[str, PeerStreams] = {}
        self._streams: dict[str, tuple[PeerStreams, int]] = {}  # by partner
        self._offering: set[Host[Replica]] = set()

    # --- the table ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Host[Replica]]:
        return iter(list(self._table.values()))

    def _is_here(self, host: Host[Replica]) -> bool:
        return self._table.get((host.protocol, host.store_id)) is host

    @property
    def framings(self) -> Mapping[str, Framing]:
        """How frames are cut on the streams of each protocol; it grows with the table."""
        return MappingProxyType(self._framings)

    def add(self, host: Host[Replica], framing: Framing) -> None:
        """Add a replica, and offer it to the connected peers.

        Raises: UsageError: the name is taken or too long; or its protocol has another framing here.
        """
        name = host.protocol, host.store_id
        # A stream names its replica by (protocol, store id), so the pair must be unique.
        if name in self._table:
            raise UsageError(f"{host.name} is on this node already")
        # A stream opens with [length of the name, name in ASCII, store id], each 64 bytes at most.
        if not host.protocol.isascii() or not 0 < len(host.protocol) <= PROTOCOL_BYTES_MAX:
            most = PROTOCOL_BYTES_MAX
            raise UsageError(f"a protocol has a name of 1 to {most} ASCII characters")
        if len(host.store_id) > STORE_ID_BYTES_MAX:
            raise UsageError(f"a store id has at most {STORE_ID_BYTES_MAX} bytes")
        if self._framings.setdefault(host.protocol, framing) != framing:
            raise UsageError(f"frames of {host.protocol} are cut in another way on this node")
        self._table[name] = host
        if name == (LATTICE, b""):
            self.lattice = host
        for talk in self._talks.values():
            self._offer(host, talk)

    def remove(self, host: Host[Replica]) -> None:
        """Take a replica out of the table, and end its streams.

        Raises: UsageError: it is not there, or is the lattice.
        """
        name = host.protocol, host.store_id
        if self._table.get(name) is not host or host is self.lattice:
            raise UsageError(f"{host.name} is not a removable replica of this node")
        del self._table[name]
        for talk in self._talks.values():
            talk.refused.discard(host)
            self._hang_up(host, talk)

    # --- connections --------------------------------------------------------------------------

    def connected(self, connection: Connection, who: PeerIdentity) -> None:
        """Begin to talk on a new connection."""
        talk = self._talks[connection.id] = PeerStreams(connection, who)
        self._begin(self.lattice, talk, MAIN_STREAM, opened=who.dialled)
        if who.dialled:  # the other side opens none at first, so that the two rarely meet
            for host in self:
                self._offer(host, talk)

    def proved(self, id: str, public_key: bytes, *, is_wanted: bool) -> None:
        """Tell the replicas on a connection that its peer is one that the operator named."""
        talk = self._talks[id]
        who = talk.who = replace(
            talk.who, public_key=public_key, sender=public_key, is_wanted=is_wanted, is_known=True
        )
        for stream, host in talk.hosts.items():
            fresh = replace(who, connection=_partner(who.connection, stream))
            self._submit(host, talk, partial(_introduce, host.ledger, fresh))

    @property
    def known(self) -> set[str]:
        """The connections with peers that the operator named."""
        return {id for id, talk in self._talks.items() if talk.who.is_known}

    def disconnected(self, id: str) -> None:
        """Forget a connection that has ended."""
        talk = self._talks.pop(id)
        for stream, host in talk.hosts.items():
            self._forget(host, talk, stream)

    # --- what connections hand over (`Handler`) -----------------------------------------------

    def frame(self, connection: Connection, stream: int, payload: bytes) -> None:
        """Pass a frame to its replica."""
        talk = self._talks[connection.id]
        host = talk.hosts.get(stream)
        size, partner = len(payload), _partner(connection.id, stream)
        if host is None:  # the stream was reset here, which the peer has not read yet
            connection.handled(size, stream)
            return
        wait_ms = 0

        def receive(replicator: Replicator, now_ms: int) -> None:
            nonlocal wait_ms
            began_s = time.perf_counter()
            replicator.receive(partner, payload, now_ms)
            wait_ms = host.ledger.wait_ms(partner)
            self._observer.measure("frame", time.perf_counter() - began_s)

        def handled() -> None:
            if wait_ms:
                # A peer whose messages cost more than its share is read later, not refused.
                connection.rest(wait_ms / 1e3)
                text = f"its messages cost more than its share; it is read again in {wait_ms} ms"
                self._observer.note(Note("work-slowed", connection.id, text))
            connection.handled(size, stream)

        self._submit(host, talk, receive, handled)

    def written(self, connection: Connection, stream: int, count: int) -> None:
        """Tell a replica that frames were written."""
        talk = self._talks[connection.id]
        host = talk.hosts.get(stream)
        if host is not None:
            partner = _partner(connection.id, stream)
            self._submit(
                host, talk, lambda replicator, now: replicator.written(partner, count, now)
            )

    def opened(self, connection: Connection, stream: int, protocol: str, store_id: bytes) -> None:
        """Accept a stream that the peer opened, if its replica is here and admits the peer."""
        talk = self._talks[connection.id]
        host = self._table.get((protocol, store_id))
        if host is None or host is self.lattice:
            # Security: "the peer cannot tell which". A refusal by a replica takes a turn of its
            # lane, so this one does too: a faster answer would tell the peer which stores are here.
            talk.refusing[stream] = protocol, store_id
            refuse = partial(self._refuse_unknown, talk, stream)
            self._submit(self.lattice, talk, lambda *_: None, refuse)
            self._observer.count("streams-refused")
            return
        # Both sides decide in the same way, without a message.
        if host in talk.streams:  # both opened one at once: the dialler's stays
            if talk.who.dialled:
                connection.end_stream(stream, at_once=True)
                return
            self._hang_up(host, talk)
        self._begin(host, talk, stream, opened=False)

    def ended(self, connection: Connection, stream: int, *, is_reset: bool) -> None:
        """Note that the peer sends nothing more on a stream."""
        talk = self._talks[connection.id]
        host = talk.hosts.get(stream)
        if host is None:
            return
        # The peer lacks the replica or refuses this node, so only the peer opens the next stream.
        self._hang_up(host, talk)
        talk.refused.add(host)

    # --- effects of replicas ------------------------------------------------------------------

    def carry_out(self, host: Host[Replica], effects: Effects) -> None:
        """Send the frames of a replica, and end the streams that it ends."""
        for partner, payload in effects.sends:
            if partner in self._streams:
                talk, stream = self._streams[partner]
                talk.connection.send(payload, stream)
        is_lattice = host is self.lattice
        for partner, reason in effects.closes:
            if partner not in self._streams:
                continue
            talk, _ = self._streams[partner]
            if is_lattice:  # the main stream ends with its connection
                talk.connection.close(reason)
            else:
                self._part(host, talk, reason)
        # "And may admit a peer later"; a burst of changes offers once.
        if effects.changed and not is_lattice and host not in self._offering:
            self._offering.add(host)
            asyncio.get_running_loop().call_later(OFFER_AGAIN_S, self._offer_again, host)

    def _part(self, host: Host[Replica], talk: PeerStreams, reason: str) -> None:
        """End the stream of a replica because of what the peer sent on it."""
        self._hang_up(host, talk)
        talk.refused.add(host)
        talk.faulty += 1
        # "At the third such stream it loses the connection": one fault may be the replica's own.
        if talk.faulty >= FAULTY_MAX:
            text = f"{FAULTY_MAX} replicas have ended their streams with it, the last one: {reason}"
            talk.connection.close(text)

    def _offer_again(self, host: Host[Replica]) -> None:
        self._offering.discard(host)
        if self._is_here(host):
            host.lane.submit(_readmit)
            for talk in self._talks.values():
                if host not in talk.refused:
                    self._offer(host, talk)

    # --- streams ------------------------------------------------------------------------------

    def _offer(self, host: Host[Replica], talk: PeerStreams) -> None:
        """Open a stream for a replica, if it admits the peer."""
        # A plain link has the lattice's stream alone.
        if not talk.connection.is_multiplexed or host in talk.streams:
            return
        peer = Peer(talk.connection.id, True, talk.who.public_key)
        loop = asyncio.get_running_loop()

        def look(_replicator: Replicator, _now_ms: int) -> None:
            if host.admits(peer):
                loop.call_soon_threadsafe(self._open, host, talk)

        self._submit(host, talk, look)

    def _open(self, host: Host[Replica], talk: PeerStreams) -> None:
        connection = talk.connection
        # Host, connection and streams may have changed while the lane decided.
        is_here = self._is_here(host)
        if not is_here or self._talks.get(connection.id) is not talk or host in talk.streams:
            return
        # RESET goes before OPEN: a peer that dialled keeps its own stream while two are open, and
        # would take a later RESET of it as a refusal. Then neither side would open another.
        for stream, name in list(talk.refusing.items()):
            if name == (host.protocol, host.store_id):
                self._refuse_unknown(talk, stream)
        try:
            stream = connection.open_stream(host.protocol, host.store_id)
        except Backpressure as error:
            self._observer.note(Note("streams-full", connection.id, str(error)))
            talk.unopened.add(host)
            return
        self._begin(host, talk, stream, opened=True)

    def _begin(self, host: Host[Replica], talk: PeerStreams, stream: int, *, opened: bool) -> None:
        """Let a replica talk on a stream, if it admits the peer. `opened`: by this side."""
        talk.hosts[stream] = host
        talk.streams[host] = stream
        talk.refused.discard(host)
        partner = _partner(talk.connection.id, stream)
        self._streams[partner] = talk, stream
        who = replace(talk.who, connection=partner)
        peer = Peer(partner, opened, who.public_key)
        loop = asyncio.get_running_loop()

        def begin(replicator: Replicator, now_ms: int) -> None:
            host.ledger.introduce(who)
            if host.admits(peer):
                key, pinned = who.public_key, who.pinned
                replicator.open(partner, now_ms, outbound=opened, public_key=key, pinned=pinned)
            else:
                loop.call_soon_threadsafe(self._refuse, host, talk, stream)

        self._submit(host, talk, begin)

    def _refuse(self, host: Host[Replica], talk: PeerStreams, stream: int) -> None:
        if talk.streams.get(host) == stream:
            self._hang_up(host, talk)
            self._observer.count("streams-refused")

    @staticmethod
    def _refuse_unknown(talk: PeerStreams, stream: int) -> None:
        """Reset a stream that the peer opened for a replica that was not here then."""
        if talk.refusing.pop(stream, None) is not None:
            talk.connection.end_stream(stream, at_once=True)

    def _hang_up(self, host: Host[Replica], talk: PeerStreams) -> None:
        """Reset the stream between a replica and a peer."""
        stream = talk.streams.pop(host, None)
        if stream is not None:
            del talk.hosts[stream]
            talk.connection.end_stream(stream, at_once=True)
            self._forget(host, talk, stream)
            if talk.unopened:
                # Later, and all at once: many streams may end in a row.
                asyncio.get_running_loop().call_later(OFFER_AGAIN_S, self._offer_unopened, talk)

    def _offer_unopened(self, talk: PeerStreams) -> None:
        unopened, talk.unopened = talk.unopened, set()
        for host in unopened:
            if self._is_here(host) and host not in talk.refused:
                self._offer(host, talk)

    def _forget(self, host: Host[Replica], talk: PeerStreams, stream: int) -> None:
        partner = _partner(talk.connection.id, stream)
        del self._streams[partner]

        def closed(replicator: Replicator, now_ms: int) -> None:
            replicator.closed(partner, now_ms)
            host.ledger.leave(partner)

        self._submit(host, talk, closed)

    def _submit(
        self, host: Host[Replica], talk: PeerStreams, action: LaneAction, done: Done | None = None
    ) -> None:
        # Peers that the operator named go before strangers (docs/design/identity.md).
        host.lane.submit(action, done, stranger=not talk.who.is_known)


def _introduce(
    ledger: PeerLedger, who: PeerIdentity, _replicator: Replicator, _now_ms: int
) -> None:
    ledger.introduce(who)


def _readmit(replicator: Replicator, now_ms: int) -> None:
    replicator.settle(Absorbed(readmits=True), "", now_ms)
