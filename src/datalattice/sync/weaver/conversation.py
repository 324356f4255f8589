"""Conversation: one Weaver store and one peer on one stream of a connection between our nodes.

The reference opens a stream for each exchange. Here all exchanges of a store share one, so a frame
begins with the number of its exchange:

    frame    = exchange, message
    exchange = zigzag varint: positive for one that the sender began, negative for the receiver's;
               0: news, message is a NewsMessage
    message  = PeerMessage; empty: the exchange is refused or given up

| exchange | opened by | then | over |
|---|---|---|---|
| comparison of ranges | ReconcilePayload | ReconcilePayload in turn | SyncDone both ways |
| the same by sketches | ReconcilePayload with one | further ones in turn | SyncDone both ways |
| comparison with the log | BootstrapRequest | BootstrapResponse, next request | one with `done` |
| joining, a comparison, too | JoinRequest | JoinResponse | at once |
| fetch | FetchIntentions, FetchChain | IntentionResponse | one with `done` |

A side says SyncDone once it needs nothing more, no range of its own waits for an answer, and at
least one payload has come. The transport has proved the keys, so both sides have met at once.

Length: one state machine: every exchange of a stream begins and ends here.

Source: Weaver specification "Session", "PeerMessage"; docs/design/conversation.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Final

import datalattice.sync.conversation as talk
from datalattice.errors import BadFormat
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import Field, Message, read_varint, varint
from datalattice.sync.conduct import IGNORED, MALFORMED_FRAME, UNASKED
from datalattice.sync.reconcile import RangeMessage, SketchMessage
from datalattice.sync.replica import FETCHES, REPLICATES, Offer, Part, Peer, Probe, Reply, Want
from datalattice.sync.weaver.gaps import CHAIN_MAX, ChainGaps
from datalattice.sync.weaver.gossip import ANNOUNCED_MAX, GRAFT_MS, GossipOffer
from datalattice.sync.weaver.messages import (
    BootstrapRequest,
    BootstrapResponse,
    FetchChain,
    FetchIntentions,
    IntentionResponse,
    JoinRequest,
    JoinResponse,
    NodeMessage,
    PeerMessage,
    ReconcilePayload,
    SyncDone,
)
from datalattice.weaver import ZERO_HASH, SignedIntention

WEAVER_PROTOCOL: Final = "weaver/1"
"""Name of this protocol on a multiplexed connection."""

SKETCHES: Final = "sketches"
"""Feature of a peer that may answer ranges by sketches."""

SILENCE_MS: Final = 15_000  # "Receive timeout 15 s"
"""How long an exchange may take without a message of the peer."""

FETCH_HASHES_MAX: Final = 100_000  # "At most 100 000 hashes in a FetchIntentions"
"""Most hashes of a FetchIntentions that is sent or answered. Only within one request do intentions
come in the order of the peer's log. One that comes before its dependencies has to wait here, so all
missing ones are asked for at once."""

FETCH_LOT: Final = 1_000
"""Intentions of a fetch that are taken in together: they come 50 in a response, and a commit of 50
costs more than the intentions."""

FETCH_LOT_BYTES: Final = 1024 * 1024
"""Bytes of intentions from which a lot has fewer."""

FETCH_PART_MS: Final = 100
"""How much each intention extends the deadline of its fetch, beside a millisecond for 100 bytes: a
peer that sends one now and then would delay what others could deliver."""

FETCH_AHEAD_MS: Final = 2 * SILENCE_MS
"""How far in the future the deadline of a fetch may lie."""

FETCH_LOT_MS: Final = 1_000
"""Time after which the intentions received so far are taken in with the next response."""

SERVED_MAX: Final = 64  # each holds a reader of the store until its last reply is sent
"""Requests of the peer that may be open."""

SESSIONS_MAX: Final = 2
"""Comparisons of the peer that may be open: each holds a view of the store. An honest peer has one
open, and perhaps one that it gave up."""

_FETCHES_OPEN: Final = 4
"""Fetches of ours that may be open, apart from those of chains."""

CHAINS_OPEN: Final = 16
"""Chains of ours that may be asked for at once; further predecessors are fetched by their hash."""


class NewsMessage(Message, name="datalattice.weaver.NewsMessage"):
    """News: signed intentions or their hashes, and the state of the sender's log after them.

    fingerprint, count: empty and 0 where more news of the same change follows.
    announced:    hashes of intentions that the sender has, too.
    is_redundant: the receiver's intentions had come by another way, so hashes suffice from now on.
    """

    intentions: Annotated[tuple[bytes, ...], Field(1)] = ()
    fingerprint: Annotated[bytes, Field(2)] = b""
    count: Annotated[int, Field(3, "uint64")] = 0
    announced: Annotated[tuple[bytes, ...], Field(4)] = ()
    is_redundant: Annotated[bool, Field(5)] = False


def probe_key(fingerprint: bytes, count: int) -> bytes:
    """Return the key of the state whose log has this fingerprint and count."""
    return fingerprint + count.to_bytes(8, "big")


def probed_count(probe: Probe) -> int:
    """Return how many intentions the log of a state has."""
    return int.from_bytes(probe.key[-8:], "big")


@dataclass(slots=True)
class _Session:
    """A comparison, by which side may end it and when.

    of_ranges:     it ends with SyncDone both ways; any other ends with the peer's last response.
    is_awaited:    a payload of ours waits for an answer.
    has_payload:   the peer has sent a payload.
    needs_nothing: this side needs nothing more.
    """

    deadline_ms: int
    of_ranges: bool = True
    is_awaited: bool = False
    has_payload: bool = False
    needs_nothing: bool = False
    said_done: bool = False
    heard_done: bool = False


@dataclass(slots=True)
class _Fetch:
    """A request of ours for intentions.

    wanted: hashes that have not come; of a chain, which arrives newest first, the next one.
    since: of a chain, the intention before its oldest one; None: not a chain.
    left:  how many more intentions of the chain may arrive.
    held:  received intentions that wait for a full lot.
    end_ms: deadline that only intentions extend, not other messages of the peer.
    """

    wanted: dict[bytes, None]
    deadline_ms: int
    since: bytes | None = None
    left: int = CHAIN_MAX
    held: list[Part] = field(default_factory=list)
    held_bytes: int = 0
    held_ms: int = 0
    end_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self.end_ms = self.deadline_ms

    def hold(self, part: Part, now_ms: int) -> None:
        """Keep an intention that has come."""
        earned_ms = FETCH_PART_MS + len(part.data) // 100
        # Bounded: a peer that sent quickly could otherwise be silent for all the time it earned.
        self.end_ms = min(self.end_ms + earned_ms, now_ms + FETCH_AHEAD_MS)
        if not self.held:
            self.held_ms = now_ms
        self.held.append(part)
        self.held_bytes += len(part.data)

    def is_lot(self, now_ms: int) -> bool:
        """Return whether the held intentions make up a lot, or have waited long enough."""
        is_full = len(self.held) >= FETCH_LOT or self.held_bytes >= FETCH_LOT_BYTES
        return is_full or now_ms - self.held_ms >= FETCH_LOT_MS

    def follow(self, part: Part) -> None:
        """Expect the predecessor of an intention of the chain next."""
        self.left -= 1
        prev = SignedIntention.decode(part.data).intention.store_prev
        # The peer chooses what it answers: a chain that never meets `since` ends at its bound.
        if self.left and prev not in (self.since, ZERO_HASH):
            self.wanted[prev] = None


class WeaverConversation(talk.Outbox):
    """A conversation about one Weaver store, or about joining one; see the table above."""

    batch_max = FETCH_HASHES_MAX

    def __init__(self, peer: Peer, store_id: bytes | None, gaps: ChainGaps | None = None) -> None:
        """store_id: what all messages must name; None: any, for joining. gaps: the store's."""
        super().__init__()
        self._gaps = gaps or ChainGaps()
        self.peer = replace(peer, features=frozenset({FETCHES, REPLICATES, SKETCHES}))
        self._store_id = store_id or b""
        self._is_any = store_id is None
        self._last_exchange = 0
        self._sessions: dict[int, _Session] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._served: set[int] = set()
        self._announced: dict[bytes, int] = {}
        """Hashes that the peer announced, each with the time from which it is fetched."""

    @property
    def room(self) -> int:
        """How many requests for parts may be sent now."""
        return _FETCHES_OPEN - sum(one.since is None for one in self._fetches.values())

    @property
    def pending_count(self) -> int:
        """Requests and comparisons of ours that are not over."""
        return len(self._fetches) + sum(exchange > 0 for exchange in self._sessions)

    @property
    def deadline_ms(self) -> int | None:
        """When `expire` has something to do."""
        times = [one.deadline_ms for one in self._open().values()]
        # The first one announced is the first that is due.
        return min([*times, *islice(self._announced.values(), 1)], default=None)

    def _open(self) -> dict[int, _Session | _Fetch]:
        """Return the exchanges in which a message of the peer is awaited."""
        return {**self._sessions, **self._fetches}

    # --- what we say --------------------------------------------------------------------------

    def send(self, saying: talk.Saying, now_ms: int) -> int | None:
        """Send something; return the exchange of a comparison that awaits answers."""
        match saying:
            case talk.Greet():
                # The transport has proved both keys: no greeting is sent.
                self._events += [talk.Joined(), talk.Met(self.peer.dialled)]
            case talk.Push(offer):
                self._push(offer)
            case talk.Request(want):
                self._request(want.hashes, now_ms)
            case talk.Answer(int(exchange), reply):
                self._answer(exchange, reply)
            case talk.Compare(step):
                exchange = self._next_exchange()
                self._sessions[exchange] = _Session(now_ms + SILENCE_MS)
                self._go_on(exchange, step.say)
                return exchange
            case talk.Continue(exchange, step):
                self._go_on(exchange, step.say)
            case talk.Finish(exchange):
                self._sessions[exchange].needs_nothing = True
                self._settle(exchange)
            case talk.Deny(int(exchange)):
                self._give_up(exchange, "refused here")
        return None

    def _request(self, hashes: Sequence[bytes], now_ms: int) -> None:
        """Ask for intentions by hash, and for chains where a hash is known to end one."""
        deadline_ms = now_ms + SILENCE_MS
        room = CHAINS_OPEN - sum(one.since is not None for one in self._fetches.values())
        single = []
        for hash in hashes:
            since = self._gaps.since(hash) if room > 0 else None
            if since is None:
                single.append(hash)
                continue
            room -= 1
            exchange = self._next_exchange()
            self._fetches[exchange] = _Fetch({hash: None}, deadline_ms, since)
            chain = FetchChain(self._store_id, hash, b"" if since == ZERO_HASH else since)
            self._write(exchange, PeerMessage(fetch_chain=chain))
        if single:
            exchange = self._next_exchange()
            self._fetches[exchange] = _Fetch(dict.fromkeys(single), deadline_ms)
            request = FetchIntentions(self._store_id, tuple(single))
            self._write(exchange, PeerMessage(fetch_intentions=request))

    def _next_exchange(self) -> int:
        # Numbers are never reused: a late message of another exchange would fit.
        self._last_exchange += 1
        return self._last_exchange

    def _write(self, exchange: int, message: Message | None) -> None:
        # Zigzag keeps small numbers of both signs in one byte.
        zigzag = exchange << 1 if exchange >= 0 else (-exchange << 1) - 1
        self._frames.append(varint(zigzag) + (b"" if message is None else message.encode()))

    def _push(self, offer: Offer) -> None:
        push = NewsMessage(tuple([part.data for part in offer.parts]))
        if offer.probe is not None:
            key = offer.probe.key
            push = replace(push, fingerprint=key[:-8], count=int.from_bytes(key[-8:], "big"))
        if isinstance(offer, GossipOffer):
            push = replace(push, announced=offer.announced, is_redundant=offer.is_redundant)
        self._write(0, push)

    def _answer(self, exchange: int, reply: Reply) -> None:
        if reply.last:  # the peer may open another request
            self._served.discard(exchange)
        match reply.body:
            case JoinResponse() as body:
                self._write(exchange, PeerMessage(join_response=body))
            case BootstrapResponse() as body:
                self._write(exchange, PeerMessage(bootstrap_response=body))
            case list() as parts:
                # "unknown hashes are left out"
                found = tuple([part.data for part in parts if part is not None])
                answer = IntentionResponse(self._store_id, reply.last, found)
                self._write(exchange, PeerMessage(intention_response=answer))
            case _:
                self._write(exchange, None)

    def _go_on(self, exchange: int, said: Sequence[object]) -> None:
        session = self._sessions[exchange]
        match said:
            case [JoinRequest() as request]:
                session.of_ranges = False
                self._write(exchange, PeerMessage(join_request=request))
            case [BootstrapRequest() as request]:
                session.of_ranges = False
                self._write(exchange, PeerMessage(bootstrap_request=request))
            case _:
                ranges = tuple([one for one in said if isinstance(one, RangeMessage)])
                sketches = [one for one in said if isinstance(one, SketchMessage)]
                for sketch in sketches or (None,):
                    payload = ReconcilePayload(self._store_id, ranges)
                    self._write(exchange, NodeMessage(reconcile_payload=payload, sketch=sketch))
                    # "pending_ranges +1 when a payload with any non-done message is sent"
                    session.is_awaited = session.is_awaited or not _is_done(ranges, sketch)
                    ranges = ()

    def _settle(self, exchange: int) -> None:
        """Say SyncDone once this side is done, and end the comparison once both have said it."""
        session = self._sessions[exchange]
        is_time = session.needs_nothing and session.has_payload and not session.is_awaited
        if is_time and not session.said_done:
            session.said_done = True
            if session.of_ranges:
                self._write(exchange, PeerMessage(sync_done=SyncDone(self._store_id)))
        if session.said_done and session.heard_done:
            del self._sessions[exchange]
            self._events.append(talk.Ended(exchange))

    def _give_up(self, exchange: int, reason: str) -> None:
        """End an exchange early, and tell the peer."""
        self._write(exchange, None)
        self._over(exchange, reason)

    def _over(self, exchange: int, reason: str) -> None:
        self._served.discard(exchange)
        fetch = self._fetches.pop(exchange, None)
        # Each intention proves itself by its signature, so those that came are used all the same.
        if fetch is not None and fetch.held:
            self._deliver(fetch)
        if fetch is not None and fetch.wanted:
            # The hashes may be fetched from another peer.
            self._events.append(talk.Failed(Want(tuple(fetch.wanted))))
        if self._sessions.pop(exchange, None) is not None:
            self._events.append(talk.Ended(exchange, reason))

    # --- what the peer says -------------------------------------------------------------------

    def receive(self, payload: bytes, now_ms: int) -> None:
        """Take in a payload of the peer. What is wrong with it is a `Fault` event."""
        try:
            zigzag, at = read_varint(payload, 0)
            # Exchanges that the peer began are negative here.
            exchange = (zigzag >> 1) + 1 if zigzag & 1 else -(zigzag >> 1)
            if exchange == 0:
                self._take_push(NewsMessage.decode(payload[at:]), now_ms)
            elif at == len(payload):
                self._refused(exchange)
            else:
                self._take(exchange, NodeMessage.decode(payload[at:]), now_ms)
        except BadFormat as error:
            self._events.append(talk.Fault(MALFORMED_FRAME, str(error)))

    def _refused(self, exchange: int) -> None:
        """Note that the peer refuses an exchange, or has given it up."""
        fetch = self._fetches.get(exchange)
        if fetch is None or fetch.since is None:
            self._over(exchange, "the peer refuses or has given up")
            return
        # A chain that the peer lacks is a proper answer; it is not silent.
        del self._fetches[exchange]
        self._deliver(fetch, fetch.wanted)
        for target in fetch.wanted:
            self._gaps.refused(target)
        # "On failure: full reconciliation with the sender."
        self._events.append(talk.Doubted("a peer lacks a chain that it built on"))

    def _deliver(self, fetch: _Fetch, lacking: Iterable[bytes] = ()) -> None:
        """Report the intentions of a fetch that have come, and those that the peer lacks."""
        parts, fetch.held, fetch.held_bytes = fetch.held, [], 0
        if fetch.since is not None:
            # A chain comes newest first, and is taken in oldest first, so that little of it floats.
            parts.reverse()
        want = Want((*[part.hash for part in parts], *lacking))
        self._events += [talk.Answered(talk.Request(want)), talk.Delivered(want, tuple(parts))]

    def _take_push(self, push: NewsMessage, now_ms: int) -> None:
        if any(len(hash) != HASH_BYTES for hash in push.announced):
            raise BadFormat(f"an announced hash has {HASH_BYTES} bytes")
        probe = Probe(probe_key(push.fingerprint, push.count)) if push.fingerprint else None
        parts = self._parts(push.intentions)
        offer = GossipOffer(probe, parts, is_redundant=push.is_redundant)
        self._events.append(talk.Offered(offer))
        if len(self._announced) + len(push.announced) > ANNOUNCED_MAX:
            self._events.append(talk.Doubted(f"it announced more than {ANNOUNCED_MAX} intentions"))
            return
        # The first announcement counts: repeating it must not postpone the fetch.
        for hash in push.announced:
            self._announced.setdefault(hash, now_ms + GRAFT_MS)

    def _parts(self, envelopes: Sequence[bytes]) -> tuple[Part, ...]:
        """Return intentions as parts; one that does not decode costs itself alone."""
        parts = []
        for envelope in envelopes:
            try:
                parts.append(Part(SignedIntention.decode(envelope).hash, envelope))
            except BadFormat as error:
                self._events.append(talk.Fault(MALFORMED_FRAME, str(error)))
        return tuple(parts)

    def _take(self, exchange: int, message: NodeMessage, now_ms: int) -> None:
        for body in vars(message).values():
            # "One of": one kind is set, the others are None. A sketch comes with a ranges payload.
            if body is None or body is message.sketch or not self._is_ours(body.store_id):
                continue
            match body:
                case ReconcilePayload():
                    self._take_ranges(exchange, body.messages, message.sketch, now_ms)
                case SyncDone():
                    self._take_done(exchange, now_ms)
                case FetchIntentions():
                    self._take_request(exchange, Want(body.hashes), len(body.hashes))
                case BootstrapRequest() | FetchChain():
                    self._take_request(exchange, body)
                case JoinRequest():
                    self._take_request(exchange, body, is_open=True)
                case IntentionResponse():
                    self._take_response(exchange, body, now_ms)
                case BootstrapResponse():
                    self._take_round(exchange, body, now_ms, is_last=body.done)
                case JoinResponse():
                    self._take_round(exchange, body, now_ms, is_last=True)
        # "Unexpected kinds are ignored", and so is a message without a kind.

    def _take_done(self, exchange: int, now_ms: int) -> None:
        session = self._sessions.get(exchange)
        if session is not None and session.of_ranges:  # SyncDone in any other exchange says nothing
            session.heard_done = True
            session.deadline_ms = now_ms + SILENCE_MS
            self._settle(exchange)

    def _take_round(
        self, exchange: int, body: BootstrapResponse | JoinResponse, now_ms: int, *, is_last: bool
    ) -> None:
        """Take in a response in a comparison of ours that is not of ranges."""
        session = self._sessions.get(exchange)
        if session is None or session.of_ranges:
            # A response to an exchange of ours that is over comes late, which is no fault.
            if not 0 < exchange <= self._last_exchange:
                self._events.append(talk.Fault(UNASKED, "an answer to no request of ours"))
            return
        session.deadline_ms = now_ms + SILENCE_MS
        session.has_payload = True
        session.heard_done = is_last
        self._events.append(talk.Round(exchange, body))

    def _is_ours(self, store_id: bytes) -> bool:
        # "Inside a session each message's store id must equal the session's."
        if self._is_any or store_id == self._store_id:
            return True
        self._events.append(talk.Fault(MALFORMED_FRAME, f"a message for store {store_id.hex()}"))
        return False

    def _take_ranges(
        self,
        exchange: int,
        ranges: tuple[RangeMessage, ...],
        sketch: SketchMessage | None,
        now_ms: int,
    ) -> None:
        session = self._sessions.get(exchange)
        if session is None:
            if exchange > 0:
                return  # this side gave it up, which the peer has not read yet
            if sum(one < 0 for one in self._sessions) >= SESSIONS_MAX:
                self._write(exchange, None)  # "refused": the peer may begin again later
                return
            session = self._sessions[exchange] = _Session(0)
        if not session.of_ranges:
            self._events.append(
                talk.Fault(MALFORMED_FRAME, "ranges where a log or an answer is awaited")
            )
            self._give_up(exchange, "the peer sent ranges in another exchange")
            return
        if session.heard_done and not _is_done(ranges, sketch):
            # "After that point a payload with a non-done message is a protocol error."
            self._events.append(talk.Fault(MALFORMED_FRAME, "ranges after SyncDone"))
            self._give_up(exchange, "the peer sent ranges after SyncDone")
            return
        session.deadline_ms = now_ms + SILENCE_MS
        session.has_payload = True
        session.is_awaited = False  # "-1 when a payload arrives"
        said = ranges if sketch is None else (*ranges, sketch)
        self._events.append(talk.Round(exchange, said))

    def _take_request(
        self, exchange: int, request: object, hashes: int = 0, *, is_open: bool = False
    ) -> None:
        if exchange > 0 or exchange in self._served:  # a request inside an exchange of ours
            self._events.append(talk.Fault(IGNORED, "a request in another exchange"))
            return
        if hashes > FETCH_HASHES_MAX or len(self._served) >= SERVED_MAX:
            # Too many hashes or requests: refused, not queued without bound.
            self._write(exchange, None)
            return
        self._served.add(exchange)
        self._events.append(talk.Asked(exchange, request, is_open))

    def _take_response(self, exchange: int, response: IntentionResponse, now_ms: int) -> None:
        fetch = self._fetches.get(exchange)
        if fetch is None:
            if not 0 < exchange <= self._last_exchange:
                self._events.append(talk.Fault(UNASKED, "an answer to no request of ours"))
            return  # otherwise it is late
        # Empty responses would keep the exchange open for ever.
        if not (response.intentions or response.done):
            raise BadFormat("a response without intentions that is not the last one")
        for part in self._parts(response.intentions):
            # "Accept in a response only intentions that were asked for."
            if fetch.wanted.pop(part.hash, b"") is None:
                fetch.hold(part, now_ms)
                if fetch.since is not None:
                    fetch.follow(part)
            else:
                self._events.append(talk.Fault(UNASKED, "an intention that was not asked for"))
        fetch.deadline_ms = min(now_ms + SILENCE_MS, fetch.end_ms)
        if response.done:
            del self._fetches[exchange]
            self._deliver(fetch, fetch.wanted)
        elif fetch.held and fetch.is_lot(now_ms):
            self._deliver(fetch)

    # --- time ---------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Give up exchanges in which the peer is silent; have overdue announced hashes fetched."""
        due = [hash for hash, until_ms in self._announced.items() if until_ms <= now_ms]
        if due:
            for hash in due:
                del self._announced[hash]
            # As an offer of this peer, so that the one who announced them is asked for them.
            self._events.append(talk.Offered(GossipOffer(announced=tuple(due))))
        # `_open` is a copy: `_give_up` removes from the tables themselves.
        for exchange, one in self._open().items():
            if one.deadline_ms <= now_ms:
                self._events.append(talk.Fault("timeout", talk.NO_ANSWER))
                self._give_up(exchange, talk.NO_ANSWER)

    def excuse(self, busy_ms: int) -> None:
        """Extend all deadlines by the time for which this node read nothing."""
        for one in self._open().values():
            one.deadline_ms += busy_ms
            if isinstance(one, _Fetch):
                one.end_ms += busy_ms

    def close(self) -> None:
        """End the conversation: its open requests and comparisons fail."""
        self._fetches.clear()  # the replicator asks other peers once a connection is gone
        for exchange in list(self._sessions):
            self._over(exchange, talk.CLOSED)


class WeaverProtocol:
    """Makes conversations about one store; store_id None: those in which nodes ask to join one."""

    def __init__(self, store_id: bytes | None, gaps: ChainGaps | None = None) -> None:
        self._store_id = store_id
        self._gaps = gaps

    def converse(self, peer: Peer, pinned: bytes | None) -> WeaverConversation:
        """Return a conversation with a peer; the transport has proved its key."""
        return WeaverConversation(peer, self._store_id, self._gaps)


def _is_done(ranges: Sequence[RangeMessage], sketch: SketchMessage | None) -> bool:
    """Return whether a payload needs no answer."""
    is_last = sketch is None or sketch.hashes is not None
    return is_last and all(one.done is not None for one in ranges)
