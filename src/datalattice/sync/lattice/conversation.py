"""Lattice conversation: the node protocol with one peer.

    state      heard                           said                 events              next
    START      Greet, dialled, key unproved    CH                                       PROVING, or
                                                                                        GREETING
               Greet, dialled                  PING :PEER :LP S     Joined              GREETING
               Greet, accepted                                                          CLIENT
    PROVING    a good answer to CH             PING :PEER :LP S     Proved, Joined      GREETING
               a bad answer, none in time                           Fault               CLOSED
               all else but CH and BYE                              Fault
    GREETING   an answer with :LP in its info                       Met: fetches, patches
               an answer without                                    Met: nothing
               none in time                    PING again
    any        PING :PEER                      Result, :LP in info  Joined, Met
               PING; CH                        Result               ; Claimed
    any        our own key is proved           PING :TWIN S                             TWIN
    TWIN       an answer; none in time                              TwinMet, Fault      CLOSED
               all else but PING :TWIN                              Fault
    any        LV, LP                                               Offered
               a value without a message                            Bare, or Offered
               LQ, DR                                               Asked
               Result                                               Answered, and Round,
                                                                    Ended or Delivered
               not a message                   Result nil :FORMAT   Fault
               BYE, Result nil :LOAD                                Left

PROVING is a state only where a key is pinned: elsewhere the proof may come after the greeting. Two
extensions use elements that every node of the protocol ignores when it does not know them:

    [:PING id :PEER :LP]  push changes from now on, as patches where they are shorter. A peer that
                          reads patches says so in the info of its answer. On a connection that
                          never sends this nothing is pushed: it is a client's
    [:PING id :PEER :LP S] the same from a node with an identity: its start ([starts](starts.py))
    [:LQ id path bytes]   send at most `bytes` of cells along: with 0 the root alone, and the asker
                          fetches what it lacks

A peer whose answer to the first has no such info knows neither: it is a plain peer, which is sent
complete values and asked for its root again and again.

Length: one state machine; what it hands to the replica is in incoming.
"""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

import datalattice.sync.conversation as talk
from datalattice import wire
from datalattice.cells import (
    Keyword,
    Map,
    MessageCells,
    Signed,
    Value,
    Vector,
    brief,
    encode,
    value_hash,
)
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import Entropy, KeyPair, SystemEntropy
from datalattice.errors import (
    BadFormat,
    LimitExceeded,
    MissingData,
    PeerError,
    ProtocolViolation,
    UsageError,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.sync.conduct import IGNORED, MALFORMED_FRAME, REFUSED, UNASKED
from datalattice.sync.conversation import CLOSED, NO_ANSWER, PENDING_MAX
from datalattice.sync.effects import Pace
from datalattice.sync.lattice.incoming import (
    ALIKE,
    Lookup,
    LookupResult,
    PatchedRoot,
    QueriedValue,
    Question,
    StatedRoot,
    stated,
)
from datalattice.sync.lattice.spelling import CompleteValue
from datalattice.sync.lattice.starts import START_TAG, TWIN_TAG, NodeStart, read_start
from datalattice.sync.replica import FETCHES, Offer, Part, Peer, Probe, Reply, Want

PONG: Final = "PONG"
PING_REPLIES: Final = ("pong", "timestamp")
_PEER: Final = Keyword("PEER")
READS_PATCHES: Final = Keyword("LP")

TOKEN_BYTES: Final = 32
"""Length of a challenge's token: it cannot be guessed, and none is drawn twice."""

DENIED: Final = "not for this peer"
MYSELF: Final = "at the other end is this node itself, or a copy of its folder"

ANSWER_RESERVE_BYTES: Final = 100_000
"""Room in an answer for what is not cells: the `Result` and lengths."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the node speaks.

    ping_reply:         "pong", or "timestamp" for peers that insist on a clock.
    strict_paths:       a query for a section that the lattice lacks gets an error, not nil.
    accept_bare_values: a value without a message counts as the sender's root, as the reference node
                        broadcasts it.
    message_bytes_max:  longest message that this node reads.
    """

    ping_reply: str = "pong"
    strict_paths: bool = True
    accept_bare_values: bool = False
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def __post_init__(self) -> None:
        if self.ping_reply not in PING_REPLIES:
            choices = ", ".join(PING_REPLIES)
            raise UsageError(f"ping_reply is one of {choices}, got {self.ping_reply!r}")


class LatticeProtocol:
    """What the conversations of one node have in common.

    identity: the key that this node proves to hold, and signs challenges with.
    start:    its signed start.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        dialect: Dialect | None = None,
        pace: Pace | None = None,
        identity: KeyPair | None = None,
        entropy: Entropy | None = None,
        start: NodeStart | None = None,
    ) -> None:
        self.clock: Final = clock or SystemClock()
        self.dialect: Final = dialect or Dialect()
        self.pace: Final = pace or Pace()
        self.identity: Final = identity
        self.entropy: Final = entropy or SystemEntropy()
        self.start: Final = start
        self._asker = identity

    @property
    def asker(self) -> KeyPair:
        """The key that challenges are signed with: a node without an identity makes one."""
        if self._asker is None:
            self._asker = KeyPair.generate(self.entropy)
        return self._asker

    def is_own(self, public_key: bytes | None) -> bool:
        """Return whether a key is that of this node."""
        return self.identity is not None and public_key == self.identity.public_key

    def converse(self, peer: Peer, pinned: bytes | None) -> LatticeConversation:
        """Return a conversation with a peer that has to prove the key `pinned`, if one is given."""
        return LatticeConversation(self, peer, pinned)


class LatticeConversation(talk.Outbox):
    """The node protocol with one peer; see the table above."""

    batch_max = wire.REQUEST_HASHES_MAX

    def __init__(self, node: LatticeProtocol, peer: Peer, pinned: bytes | None) -> None:
        super().__init__()
        self.peer = peer
        self._node = node
        self._pinned = pinned
        self._is_own = False  # the other end has our own key
        self._is_greeted = False  # our greeting has left
        self._is_met = False
        self._start: NodeStart | None = None  # the peer's
        self._requests = talk.Requests()
        self._last_exchange = 0
        self._open: dict[int, int] = {}  # exchange -> questions that wait for an answer

    @property
    def room(self) -> int:
        """How many requests for parts may be sent now."""
        return self._requests.room

    @property
    def pending_count(self) -> int:
        """Requests of ours that wait for an answer."""
        return len(self._requests)

    @property
    def deadline_ms(self) -> int | None:
        """When `expire` must be called, None while nothing is awaited."""
        return self._requests.deadline_ms

    # --- what we say --------------------------------------------------------------------------

    def send(self, saying: talk.Saying, now_ms: int) -> int | None:
        """Send something; return the exchange of a comparison that awaits answers."""
        match saying:
            case talk.Push(offer):
                self._frames.append(_pushed(offer))
            case talk.Request(want):
                deadline_ms = now_ms + self._node.pace.request_timeout_ms
                id = self._requests.add(saying, deadline_ms)
                self._frames.append(wire.encode_request(id, want.hashes))
            case talk.Answer(exchange, reply):
                self._frames.append(self._answer(exchange, reply))
            case talk.Compare(step):
                return self._compare(step.say, now_ms)
            case talk.Continue() | talk.Finish():
                raise AssertionError("a comparison of this protocol says all at its start")
            case talk.Greet():
                self._greet(now_ms)
            case talk.DemandProof():
                self._challenge(now_ms)
            case talk.Deny((id, _)):
                self._frames.append(wire.encode_failure(id, wire.ErrorCode.TRUST, DENIED))
            case talk.Deny(exchange):
                assert isinstance(exchange, int)
                if self._open.pop(exchange, None) is not None:
                    self._events.append(talk.Ended(exchange, DENIED))
            case talk.Refuse(text):
                self._frames.append(wire.encode_failure(None, wire.ErrorCode.FORMAT, text))
            case talk.TellTwin(start):
                assert isinstance(start, NodeStart)
                self._frames.append(
                    wire.encode_ping(self._ask(saying, now_ms), TWIN_TAG, start.signed)
                )
        return None

    def _ask(self, saying: object, now_ms: int, detail: object = None) -> int:
        return self._requests.add(saying, now_ms + self._node.pace.ask_timeout_ms, detail)

    def _greet(self, now_ms: int) -> None:
        """Ask for proof of a key that the transport did not prove; greet a peer that we dialled."""
        key, pinned = self.peer.public_key, self._pinned
        # TLS has proved another key than the address names: another node answers there.
        if pinned is not None and key not in (None, pinned):
            self._fault("untrusted", "the peer has another key than the wanted one", is_fatal=True)
            return
        if self._node.is_own(key):
            self._meet_twin(now_ms)
            return
        # A node without an identity of its own asks only for a pinned key.
        is_asker = self._node.identity is not None or pinned is not None
        if self.peer.dialled and key is None and is_asker:
            self._challenge(now_ms)
        if not self._is_unproved:
            self._hello(now_ms)

    def _hello(self, now_ms: int) -> None:
        # Only the dialler greets: the other end of an accepted connection may only want to read.
        if not self.peer.dialled or self._is_greeted:
            return
        self._is_greeted = True
        self._say_hello(now_ms)
        self._events.append(talk.Joined())

    def _say_hello(self, now_ms: int) -> None:
        # [:PING id :PEER :LP S]: a plain peer ignores what follows the id.
        start = () if self._node.start is None else (self._node.start.signed,)
        self._frames.append(
            wire.encode_ping(self._ask(talk.Greet(), now_ms), _PEER, READS_PATCHES, *start)
        )

    def _challenge(self, now_ms: int) -> None:
        asker = self._node.asker
        # "Its token is 32 random bytes, which makes old answers useless" (docs/protocol.md).
        token = self._node.entropy.bytes(TOKEN_BYTES)
        id = self._ask(talk.DemandProof(), now_ms, token)
        self._frames.append(wire.encode_challenge(id, asker, token, self._pinned))

    def _compare(self, said: Sequence[object], now_ms: int) -> int | None:
        self._last_exchange += 1
        exchange, asked = self._last_exchange, 0
        for one in said:
            if isinstance(one, StatedRoot):
                self._frames.append(_pushed(one.offer))
            elif isinstance(one, Question):
                # "Requests of ours that wait for one peer: 64" (docs/protocol.md, Limits).
                if one.is_optional and len(self._requests) >= PENDING_MAX:
                    continue
                id = self._ask(one, now_ms, exchange)
                self._frames.append(wire.encode_query(id, one.path, one.cells_bytes))
                asked += 1
        if not asked:
            return None
        self._open[exchange] = asked
        return exchange

    def _answer(self, exchange: object, reply: Reply) -> bytes:
        assert isinstance(exchange, tuple)
        id, asked = exchange
        body = reply.body
        if not isinstance(body, LookupResult):
            assert isinstance(body, list)
            found = [None if part is None else part.data for part in body]
            # "A Vector, nil for what is not here" (docs/protocol.md, Messages).
            return wire.encode_supply(id, list(zip(asked, found, strict=True)))
        if body.error is not None:
            return wire.encode_failure(id, wire.ErrorCode.ARGUMENT, body.error)
        assert body.load_all is not None
        return wire.encode_answer(id, body.value, body.load_all, asked)

    # --- what the peer says -------------------------------------------------------------------

    def receive(self, payload: bytes, now_ms: int) -> None:
        """Take in a payload of the peer. What is wrong with it is a `Fault` event."""
        dialect = self._node.dialect
        try:
            # The order of map keys is checked with all else, before a cell is stored.
            message, parts = wire.decode_payload(
                payload, None, dialect.message_bytes_max, ordered=False
            )
        except (BadFormat, LimitExceeded) as error:
            self._frames.append(wire.encode_failure(None, wire.ErrorCode.FORMAT, str(error)))
            self._blame(MALFORMED_FRAME, error)
            return
        # Where the key is pinned "nothing else is said or heard before the proof"
        # (docs/protocol.md, Identity): whoever answers at that address may be anybody.
        if self._is_unproved and not isinstance(
            message, wire.Result | wire.Challenge | wire.Goodbye
        ):
            self._fault(IGNORED, "said before the wanted key is proved")
            return
        # With our own key only starts are exchanged: a node does not replicate with itself.
        is_twin = isinstance(message, wire.Ping) and TWIN_TAG in message.extra[:1]
        if self._is_own and not is_twin and not isinstance(message, wire.Result | wire.Goodbye):
            self._fault(IGNORED, "said with our own key")
            return
        match message:
            case wire.Announcement(path, value, absent):
                self._events.append(talk.Offered(stated(path, value, parts, absent)))
            case wire.Patched():
                root = PatchedRoot(message, len(payload), dialect.message_bytes_max)
                self._events.append(talk.Offered(Offer(Probe(message.hash, root))))
            case wire.DataRequest(id, hashes, fault):
                if fault is not None:
                    self._frames.append(wire.encode_failure(id, wire.ErrorCode.ARGUMENT, fault))
                else:
                    self._events.append(talk.Asked((id, hashes), Want(hashes)))
            case wire.Query():
                self._asked(message)
            case wire.Result(None, value, wire.ErrorCode.LOAD):
                self._events.append(talk.Left(f"the peer refused: {brief(value)}"))
            case wire.Result():
                self._answered(message, parts, now_ms)
            case wire.Ping():
                self._pinged(message)
            case wire.Challenge():
                self._frames.append(wire.answer_challenge(message, self._node.identity))
                signed = message.signed
                is_signed = signed is not None and signed.verify()
                self._events.append(
                    talk.Claimed(signed.public_key if signed and is_signed else None)
                )
            case wire.Goodbye():
                self._events.append(talk.Left())
            case wire.Unknown(value, reason):
                self._unknown(value, reason, parts)

    def _unknown(self, value: Value, reason: str, parts: MessageCells) -> None:
        if isinstance(value, Vector):
            self._fault(IGNORED, reason)
            return
        # Bare values "count once the peer has proved there that it holds the same key"
        # (docs/protocol.md, Plain peers); or where the operator accepts those of all peers.
        offer = stated((), value, parts)
        is_accepted = self._node.dialect.accept_bare_values
        self._events.append(talk.Offered(offer) if is_accepted else talk.Bare(offer, reason))

    def _asked(self, query: wire.Query) -> None:
        if query.fault is not None:
            self._frames.append(wire.encode_failure(query.id, wire.ErrorCode.ARGUMENT, query.fault))
            return
        dialect = self._node.dialect
        room = dialect.message_bytes_max - ANSWER_RESERVE_BYTES
        # `[:LQ id path bytes]`: the asker may want fewer cells than a frame has room for.
        asked = query.extra[0] if query.extra else None
        room = asked if type(asked) is int and 0 <= asked < room else room
        self._events.append(talk.Asked((query.id, room), Lookup(query.path, dialect.strict_paths)))

    def _pinged(self, ping: wire.Ping) -> None:
        node, first = self._node, ping.extra[0] if ping.extra else None
        # "timestamp": some clients insist on a clock in the answer.
        reply: Value = node.clock.now_ms() if node.dialect.ping_reply == "timestamp" else PONG
        is_twin = first == TWIN_TAG and len(ping.extra) > 1
        reads_patches = first == _PEER and READS_PATCHES in ping.extra
        said = ping.extra[2] if first == _PEER and len(ping.extra) > 2 else None
        fields: list[tuple[Value, Value]] = [(READS_PATCHES, True)] if reads_patches else []
        # A start is answered with our own; other nodes of the protocol get no info.
        if node.start is not None and (is_twin or said is not None):
            fields.append((START_TAG, node.start.signed))
        info = Map.of(fields) if fields else None
        self._frames.append(wire.encode_result(wire.Result(ping.id, reply, info=info)))
        if is_twin:
            self._report_twin(ping.extra[1])
        if first != _PEER:
            return
        # A peer that asks for changes fetches what it lacks; whether it reads patches it says
        # itself (docs/protocol.md, What is sent when).
        self._learn(ALIKE if reads_patches else {FETCHES})
        self._events.append(talk.Joined())
        self._events.append(talk.Met(False, self._started(said)))

    def _learn(self, features: AbstractSet[str]) -> None:
        self._is_met = True
        self.peer = replace(self.peer, features=frozenset(features))

    def _started(self, said: Value) -> NodeStart | None:
        """Return a peer's start, once, if it is signed with the peer's proved key."""
        start = read_start(said) if self._start is None else None
        if start is None or start.public_key != self.peer.public_key:
            return None
        self._start = start
        return start

    def _meet_twin(self, now_ms: int) -> None:
        """Exchange starts with a node that has our own key, and end the conversation.

        It is this node itself, or one that runs on a copy of its folder.
        """
        self._is_own = True
        if self._node.start is None:
            self._end_own()
        else:
            self.send(talk.TellTwin(self._node.start), now_ms)

    def _end_own(self) -> None:
        # Whoever dialled learns the key, so that this address is not dialled again.
        if self.peer.dialled and self.peer.public_key is None:
            self._events.append(talk.Proved(self._node.asker.public_key))
        self._fault("myself", MYSELF, is_fatal=True)

    def _report_twin(self, said: Value) -> None:
        """Report another node with our identity, if it signed its start with that."""
        if isinstance(said, Signed) and self._node.is_own(said.public_key):
            start = read_start(said)
            if start is not None:
                self._events.append(talk.TwinMet(start))

    # --- answers ------------------------------------------------------------------------------

    def _answered(self, result: wire.Result, parts: MessageCells, now_ms: int) -> None:
        pending = self._requests.answered(result.id)
        if pending is None:
            self._fault(UNASKED, "an answer to no request of ours")
            return
        # On an error the value is its text.
        error = None if result.error is None else f"{result.error.name}: {brief(result.value)}"
        self._events.append(talk.Answered(pending.saying))
        match pending.saying:
            case talk.Request(want):
                self._events.append(
                    talk.Delivered(want, self._delivered(want, result, parts, error))
                )
            case Question(path):
                content = QueriedValue(path, result.value, parts, result.absent)
                if error is not None:
                    is_absent = result.error == wire.ErrorCode.ARGUMENT
                    text = f"the peer answered {error}"
                    content = QueriedValue(path, error=text, is_absent=is_absent)
                self._round(pending, content)
            case talk.Greet() if error is None and not self._is_own:
                self._greeted(result.info)
            case talk.TellTwin() if self._is_own:
                # Not with the answer to a greeting: the other end has not read our start by then.
                self._report_twin(_start_in(result.info))
                self._end_own()
            case talk.DemandProof():
                self._proved(pending, result.value, error, now_ms)

    def _delivered(
        self, want: Want, result: wire.Result, parts: MessageCells, error: str | None
    ) -> tuple[Part, ...]:
        if error is not None:
            return ()
        try:
            return tuple(_parts_of(result.value, parts, want.hashes))
        except PeerError as fault:
            self._blame(REFUSED, fault)
            return ()

    def _round(self, pending: talk.Pending, content: QueriedValue) -> None:
        exchange = pending.detail
        assert isinstance(exchange, int)
        if exchange not in self._open:
            return  # it was denied since
        self._events.append(talk.Round(exchange, content))
        self._open[exchange] -= 1
        if not self._open[exchange]:
            del self._open[exchange]
            self._events.append(talk.Ended(exchange))

    def _greeted(self, info: Value) -> None:
        """Learn from the answer to our greeting what the peer is able to do."""
        reads_patches = isinstance(info, Map) and READS_PATCHES in info
        known = self.peer.features if self._is_met else frozenset[str]()
        self._learn(known | ALIKE if reads_patches else known)
        self._events.append(talk.Met(True, self._started(_start_in(info))))

    def _proved(self, pending: talk.Pending, value: Value, error: str | None, now_ms: int) -> None:
        token = pending.detail
        assert isinstance(token, bytes)
        try:
            if error is not None:
                raise ProtocolViolation(f"the peer answers a challenge with {error}")
            public_key = wire.proved_key(value, self._node.asker.public_key, token, self._pinned)
        except PeerError as fault:
            self._unproved(str(fault))
            return
        # Our own key: a node that dialled itself, or a copy of its folder (docs/design/forks.md).
        if self._node.is_own(public_key):
            self._meet_twin(now_ms)
            return
        self.peer = replace(self.peer, public_key=public_key)
        self._events.append(talk.Proved(public_key))
        self._hello(now_ms)

    def _unproved(self, reason: str) -> None:
        """Go on with a peer that proves nothing, unless its key is pinned."""
        is_fatal = self._is_unproved
        self._fault("untrusted" if is_fatal else "unproved", reason, is_fatal=is_fatal)

    @property
    def _is_unproved(self) -> bool:
        """Whether a key is pinned and not proved, so that nothing else counts yet."""
        return self._pinned is not None and self.peer.public_key != self._pinned

    # --- time ---------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Give up the requests whose deadline has passed."""
        for pending in self._requests.expired(now_ms):
            saying = pending.saying
            self._fault("timeout", f"no answer to {_name_of(saying)}")
            match saying:
                case talk.Request(want):
                    self._events.append(talk.Failed(want))
                case Question(path):
                    self._round(pending, QueriedValue(path, error=NO_ANSWER))
                case talk.Greet() | talk.TellTwin() if self._is_own:
                    self._end_own()
                case talk.Greet():
                    self._say_hello(now_ms)  # without it the peer pushes no changes
                case talk.DemandProof():
                    self._unproved("the peer does not answer a challenge")

    def excuse(self, busy_ms: int) -> None:
        """Extend all deadlines by the time for which this node read nothing."""
        self._requests.excuse(busy_ms)

    def close(self) -> None:
        """End the conversation: its open requests and comparisons fail."""
        self._requests.clear()
        self._events += [talk.Ended(exchange, CLOSED) for exchange in self._open]
        self._open.clear()

    def _blame(self, kind: str, error: PeerError) -> None:
        error.peer = self.peer.connection
        self._fault(kind, str(error))

    def _fault(self, kind: str, text: str, *, is_fatal: bool = False) -> None:
        self._events.append(talk.Fault(kind, text, is_fatal))


def _pushed(offer: Offer) -> bytes:
    """Return a LATTICE_VALUE, or a LATTICE_PATCH where that is shorter."""
    assert offer.probe is not None
    value = offer.probe.data
    if isinstance(value, CompleteValue):
        return wire.encode_complete(value.path, value.value, value.cells.values())
    cells = [part.data for part in offer.parts]
    if offer.patch is None or offer.base is None:
        return wire.encode_announcement((), value, cells)
    short = wire.encode_patched(offer.base.data, offer.probe.key, offer.patch)
    # The shorter of both forms is sent. The message with the cells has a head besides them.
    if len(short) <= sum(map(len, cells)):
        return short
    whole = wire.encode_announcement((), value, cells)
    return short if len(short) < len(whole) else whole


def _parts_of(value: Value, parts: MessageCells, hashes: Sequence[bytes]) -> list[Part]:
    """Return the cells in an answer, checked against the requested hashes.

    Raises: ProtocolViolation: the answer has another length, or a cell that was not requested.
    """
    if not isinstance(value, Vector) or len(value) != len(hashes):
        raise ProtocolViolation(
            f"the answer to a request for {len(hashes)} cells has another count"
        )
    encodings = parts.encodings()
    found: list[Part] = []
    for position, hash in enumerate(hashes):
        encoding = encodings.get(hash)
        if encoding is None:
            # Embedded cells are in the vector itself; they are checked by their hash all the same.
            cell = _element(value, position)
            if cell is not None and value_hash(cell) != hash:
                raise ProtocolViolation(f"the answer has another cell in place of {hash.hex()}")
            encoding = None if cell is None else encode(cell)
        if encoding is not None:
            found.append(Part(hash, encoding))
    return found


def _element(value: Vector, position: int) -> Value:
    """Return an element of an answer, None for a reference whose cell did not come along."""
    try:
        return value[position]
    except MissingData:
        return None


def _start_in(info: Value) -> Value:
    """Return the peer's start in the info of an answer."""
    return info.get(START_TAG) if isinstance(info, Map) else None


def _name_of(saying: object) -> str:
    """Return the metric label of a request that was not answered."""
    if isinstance(saying, Question):
        return "more" if saying.is_optional else "ask"
    names = {
        talk.Request: "want",
        talk.Greet: "hello",
        talk.DemandProof: "challenge",
        talk.TellTwin: "twin",
    }
    return names[type(saying)]
