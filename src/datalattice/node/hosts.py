"""Hosts: the replicas of a node, and the streams on which they talk to peers.

The table goes by protocol and store id. The lattice is always there, on the main stream of every
connection. Another replica is added and removed while the node runs; it talks on streams of its
own, one for each connection with several streams whose peer both sides admit.

Who opens them: the side that dialled, for all of its replicas, when the connection is made; and the
side that adds a replica, or whose replica has changed and may admit the peer now, later on. A peer
that has no such replica, and one whose replica does not speak to us, answer alike: they reset the
stream. Then it is theirs to open one. Where both open one at once, that of the dialler stays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from datalattice.errors import Backpressure, UsageError
from datalattice.node.connection import Connection
from datalattice.node.host import LATTICE, Acquaintance, Host, Ledger
from datalattice.node.lanes import Action, Done, LanePool
from datalattice.node.observe import Observer
from datalattice.sync import Effects, Note, Peer, Replica, Replicator
from datalattice.wire import MAIN_STREAM, PROTOCOL_BYTES_MAX, STORE_ID_BYTES_MAX, Framing

FAULTY_MAX: Final = 3
"""So many replicas that a peer offended end its connection; one alone ends its own stream."""

OFFER_AGAIN_S: Final = 0.25
"""How long after a change of a replica it is looked whether it admits more peers: once for all
changes of that time."""


def connection_of(partner: str) -> str:
    """Return the id of the connection on which a replicator's partner talks.

    A partner is one stream. On the main one it has the id of the connection, which ends in `#` and
    a number; on another one the stream stands behind that. So nothing that was said for one stream
    is sent on the next one of the same replica.
    """
    place, mark, numbers = partner.rpartition("#")
    return f"{place}{mark}{numbers.partition('.')[0]}" if mark else partner


def _partner(connection: str, stream: int) -> str:
    return connection if stream == MAIN_STREAM else f"{connection}.{stream}"


@dataclass(eq=False, slots=True)
class Talk:
    """A connection, and which replica talks on which of its streams.

    refused: replicas for which the peer is to open a stream: it reset ours.
    faulty:  how many replicas it offended.
    """

    connection: Connection
    who: Acquaintance
    hosts: dict[int, Host[Replica]] = field(default_factory=dict)
    streams: dict[Host[Replica], int] = field(default_factory=dict)
    refused: set[Host[Replica]] = field(default_factory=set)
    faulty: int = 0


class Hosts:
    """The table of a node's replicas. Lives on the event loop.

    pool: of the lanes of all of them.
    """

    def __init__(self, observer: Observer, lattice_framing: Framing) -> None:
        self.pool: Final = LanePool()
        self._observer = observer
        self._table: dict[tuple[str, bytes], Host[Replica]] = {}
        self._framings = {LATTICE: lattice_framing}
        self._talks: dict[str, Talk] = {}
        self._streams: dict[str, tuple[Talk, int]] = {}  # by partner
        self._offering: set[Host[Replica]] = set()

    # --- the table ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Host[Replica]]:
        return iter(list(self._table.values()))

    def find(self, protocol: str, store_id: bytes) -> Host[Replica] | None:
        """Return the host of a replica, None when there is none."""
        return self._table.get((protocol, store_id))

    @property
    def lattice(self) -> Host[Replica]:
        """The host of the node's lattice."""
        return self._table[LATTICE, b""]

    @property
    def framings(self) -> Mapping[str, Framing]:
        """How frames are cut on the streams of each protocol; it grows with the table."""
        return MappingProxyType(self._framings)

    def add(self, host: Host[Replica], framing: Framing) -> None:
        """Add a replica, and offer it to the peers that are connected.

        Raises: UsageError: there is one with this name, or it is too long; or its protocol is
                framed in another way here.
        """
        name = host.protocol, host.store_id
        if name in self._table:
            raise UsageError(f"{host.name} is on this node already")
        is_ascii = host.protocol.isascii()
        if not is_ascii or not 0 < len(host.protocol) <= PROTOCOL_BYTES_MAX:
            most = PROTOCOL_BYTES_MAX
            raise UsageError(f"a protocol has a name of 1 to {most} ASCII characters")
        if len(host.store_id) > STORE_ID_BYTES_MAX:
            raise UsageError(f"a store id has at most {STORE_ID_BYTES_MAX} bytes")
        if self._framings.setdefault(host.protocol, framing) != framing:
            raise UsageError(f"frames of {host.protocol} are cut in another way on this node")
        self._table[name] = host
        for talk in self._talks.values():
            self._offer(host, talk)

    def remove(self, host: Host[Replica]) -> None:
        """Take a replica out of the table, and end what it says to peers.

        Raises: UsageError: it is not there, or is the lattice.
        """
        name = host.protocol, host.store_id
        if self._table.get(name) is not host or host is self.lattice:
            raise UsageError(f"{host.name} is no replica of this node that can be removed")
        del self._table[name]
        for talk in self._talks.values():
            talk.refused.discard(host)
            self._hang_up(host, talk)

    # --- connections --------------------------------------------------------------------------

    def connected(self, connection: Connection, who: Acquaintance) -> None:
        """Have the replicas take up a connection."""
        talk = self._talks[connection.id] = Talk(connection, who)
        self._begin(self.lattice, talk, MAIN_STREAM, opened=who.dialled)
        if who.dialled:
            for host in self:
                self._offer(host, talk)

    def introduce(self, who: Acquaintance) -> None:
        """Have the replicas know who is at the other end of a connection: it is proved now."""
        talk = self._talks[who.connection]
        talk.who = who
        for stream, host in talk.hosts.items():
            fresh = replace(who, connection=_partner(who.connection, stream))
            self._submit(host, talk, partial(_introduce, host.ledger, fresh))

    def acquaintance(self, id: str) -> Acquaintance:
        """Return who is at the other end of a connection."""
        return self._talks[id].who

    @property
    def known(self) -> set[str]:
        """The connections with peers that the operator named, whose messages come first."""
        return {id for id, talk in self._talks.items() if talk.who.is_known}

    def disconnected(self, id: str) -> None:
        """Have the replicas forget a connection that has ended."""
        talk = self._talks.pop(id)
        for stream, host in talk.hosts.items():
            self._forget(host, talk, stream)

    def frame(self, connection: Connection, stream: int, payload: bytes) -> None:
        """Hand a frame to the replica that it is for."""
        talk = self._talks[connection.id]
        host = talk.hosts.get(stream)
        size, partner = len(payload), _partner(connection.id, stream)
        if host is None:  # it is over here, and the peer does not know yet
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
                self._hold_back(connection, wait_ms)
            connection.handled(size, stream)

        self._submit(host, talk, receive, handled)

    def _hold_back(self, connection: Connection, wait_ms: int) -> None:
        """Read a peer later whose messages cost more than its share."""
        connection.rest(wait_ms / 1e3)
        text = f"its messages cost more than its share; it is read again in {wait_ms} ms"
        self._observer.note(Note("work-slowed", connection.id, text))

    def written(self, connection: Connection, stream: int, count: int) -> None:
        """Tell a replica that frames have left."""
        talk = self._talks[connection.id]
        host = talk.hosts.get(stream)
        if host is not None:
            partner = _partner(connection.id, stream)
            self._submit(
                host, talk, lambda replicator, now: replicator.written(partner, count, now)
            )

    def opened(self, connection: Connection, stream: int, protocol: str, store_id: bytes) -> None:
        """Take a stream that the peer opened, if there is a replica for it that admits the peer."""
        talk = self._talks[connection.id]
        host = self.find(protocol, store_id)
        if host is None or host is self.lattice:
            # Through a lane, as a replica that refuses: the time of the answer shall not tell.
            self._submit(self.lattice, talk, _nothing, lambda: connection.reset_stream(stream))
            self._observer.count("streams-refused")
            return
        if host in talk.streams:
            if talk.who.dialled:
                connection.reset_stream(stream)
                return
            self._hang_up(host, talk)
        self._begin(host, talk, stream, opened=False)

    def ended(self, connection: Connection, stream: int) -> None:
        """Note that the peer says nothing more on a stream."""
        talk = self._talks[connection.id]
        host = talk.hosts.get(stream)
        if host is None:
            return
        self._hang_up(host, talk)
        talk.refused.add(host)

    # --- what replicas want -------------------------------------------------------------------

    def carry_out(self, host: Host[Replica], effects: Effects) -> None:
        """Send what a replica says, and end what it wants ended."""
        for partner, payload in effects.sends:
            if partner in self._streams:
                talk, stream = self._streams[partner]
                talk.connection.send(payload, stream)
        is_lattice = host is self.lattice
        for partner, reason in effects.closes:
            if partner not in self._streams:
                continue
            talk, _ = self._streams[partner]
            if is_lattice:
                talk.connection.close(reason)
            else:
                self._part(host, talk, reason)
        if effects.changed and not is_lattice and host not in self._offering:
            self._offering.add(host)
            asyncio.get_running_loop().call_later(OFFER_AGAIN_S, self._offer_again, host)

    def _part(self, host: Host[Replica], talk: Talk, reason: str) -> None:
        """End what a replica says to a peer that offended it; the peer may offend a few."""
        self._hang_up(host, talk)
        talk.refused.add(host)
        talk.faulty += 1
        if talk.faulty >= FAULTY_MAX:
            talk.connection.close(f"it offended {FAULTY_MAX} replicas, the last one: {reason}")

    def _offer_again(self, host: Host[Replica]) -> None:
        self._offering.discard(host)
        if self.find(host.protocol, host.store_id) is host:
            host.lane.submit(_readmit)
            for talk in self._talks.values():
                if host not in talk.refused:
                    self._offer(host, talk)

    # --- streams ------------------------------------------------------------------------------

    def _offer(self, host: Host[Replica], talk: Talk) -> None:
        """Open a stream for a replica, if it admits the peer."""
        if not talk.connection.is_multiplexed or host in talk.streams:
            return
        peer = Peer(talk.connection.id, True, talk.who.public_key)
        loop = asyncio.get_running_loop()

        def look(_replicator: Replicator, _now_ms: int) -> None:
            if host.admits(peer):
                loop.call_soon_threadsafe(self._open, host, talk)

        self._submit(host, talk, look)

    def _open(self, host: Host[Replica], talk: Talk) -> None:
        connection = talk.connection
        is_here = self.find(host.protocol, host.store_id) is host
        if not is_here or self._talks.get(connection.id) is not talk or host in talk.streams:
            return
        try:
            stream = connection.open_stream(host.protocol, host.store_id)
        except Backpressure as error:
            self._observer.note(Note("streams-full", connection.id, str(error)))
            return
        self._begin(host, talk, stream, opened=True)

    def _begin(self, host: Host[Replica], talk: Talk, stream: int, *, opened: bool) -> None:
        """Have a replica talk on a stream, if it admits the peer. `opened`: by this side."""
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

    def _refuse(self, host: Host[Replica], talk: Talk, stream: int) -> None:
        if talk.streams.get(host) == stream:
            self._hang_up(host, talk)
            self._observer.count("streams-refused")

    def _hang_up(self, host: Host[Replica], talk: Talk) -> None:
        """End what a replica and a peer say to each other, on a stream that is not the main one."""
        stream = talk.streams.pop(host, None)
        if stream is not None:
            del talk.hosts[stream]
            talk.connection.reset_stream(stream)
            self._forget(host, talk, stream)

    def _forget(self, host: Host[Replica], talk: Talk, stream: int) -> None:
        partner = _partner(talk.connection.id, stream)
        del self._streams[partner]

        def closed(replicator: Replicator, now_ms: int) -> None:
            replicator.closed(partner, now_ms)
            host.ledger.leave(partner)

        self._submit(host, talk, closed)

    def _submit(
        self, host: Host[Replica], talk: Talk, action: Action, done: Done | None = None
    ) -> None:
        """Have a replica do something for a connection; those that the operator knows come first.

        Decided in: docs/design/identity.md.
        """
        host.lane.submit(action, done, stranger=not talk.who.is_known)


def _introduce(ledger: Ledger, who: Acquaintance, _replicator: Replicator, _now_ms: int) -> None:
    ledger.introduce(who)


def _readmit(replicator: Replicator, now_ms: int) -> None:
    replicator.readmit(now_ms)


def _nothing(_replicator: Replicator, _now_ms: int) -> None:
    """Do nothing, in turn."""
