"""Lattice codec: the node protocol between a replicator and the wire.

Requests that need the replica's content only (PING, LATTICE_QUERY) are answered here. Two
extensions ride on elements that every node of the protocol ignores when it does not know them:

    [:PING id :PEER :LP]  tell me of changes from now on, in patches if they are shorter; whoever
                          reads patches itself says so in the info of its answer. A connection that
                          never says so is a mere client
    [:PING id :PEER :LP S] the same from a node with an identity: its start ([starts](starts.py))
    [:LQ id path bytes]   send at most so many bytes of cells along: with 0 the root alone, and the
                          asker fetches what it lacks

A peer whose answer to the first has no such info knows neither: it is a plain peer, to be told
complete values and asked for its root again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from datalattice.cells import (
    Keyword,
    Map,
    Parts,
    Value,
    Vector,
    brief,
    decode_parts,
    encode,
    novelty,
    value_hash,
)
from datalattice.clock import Clock
from datalattice.crypto import KeyPair, sha3_256
from datalattice.errors import LimitExceeded, MissingData, NoSuchPath, ProtocolViolation, UsageError
from datalattice.lattice import LOCAL_KEY, KeyedLattice
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.sync.handover import HANDED_BYTES, fork_queries, is_fork_query, one_handed
from datalattice.sync.incoming import Incoming
from datalattice.sync.lattice_replica import LatticeReplica
from datalattice.sync.patch import PATCH_CELLS_MAX, cells_worth, read_patch, write_patch
from datalattice.sync.plain import PlainUpdate
from datalattice.sync.replica import Offer, Part, Probe
from datalattice.sync.session import (
    Answered,
    Bare,
    Challenged,
    Heard,
    Ignored,
    Joined,
    Left,
    Offered,
    Replied,
    Twin,
    Wanted,
)
from datalattice.sync.starts import START, TWIN, Start
from datalattice.wire import (
    PATCH_BYTES_MAX,
    REQUEST_HASHES_MAX,
    Announcement,
    Challenge,
    ErrorCode,
    Goodbye,
    Patched,
    Ping,
    Query,
    Request,
    Result,
    Unknown,
    answer_challenge,
    check_answer,
    decode_payload,
    encode_announcement,
    encode_answer,
    encode_challenge,
    encode_complete,
    encode_failure,
    encode_patched,
    encode_ping,
    encode_query,
    encode_request,
    encode_result,
    encode_supply,
    join_cells,
)

PONG: Final = "PONG"
PING_REPLIES: Final = ("pong", "timestamp")
PEER: Final = Keyword("PEER")
PATCHES: Final = Keyword("LP")
FIRST_BYTES_MAX: Final = 32_000_000
"""Bytes of cells that a node without anything asks for at once."""

ANSWER_RESERVE_BYTES: Final = 100_000
"""Room in an answer for what is not cells: the Result and lengths."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the node speaks.

    ping_reply:         "pong", or "timestamp" for peers that insist on a clock.
    strict_paths:       a query for a section that the lattice does not have is an error, not nil.
    accept_bare_values: a payload that is no message counts as the sender's root: what the reference
                        broadcasts.
    """

    ping_reply: str = "pong"
    strict_paths: bool = True
    accept_bare_values: bool = False
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def __post_init__(self) -> None:
        if self.ping_reply not in PING_REPLIES:
            choices = ", ".join(PING_REPLIES)
            raise UsageError(f"ping_reply is one of {choices}, got {self.ping_reply!r}")


class LatticeCodec:
    """Turns what lattice nodes say to each other into what a replicator understands, and back."""

    batch_max = REQUEST_HASHES_MAX

    def __init__(
        self,
        replica: LatticeReplica,
        clock: Clock,
        dialect: Dialect | None = None,
        start: Start | None = None,
    ) -> None:
        self._start = start
        self._replica = replica
        self._clock = clock
        self._dialect = dialect or Dialect()

    def decode(self, payload: bytes, peer: str) -> Heard:
        """Return what `peer` said."""
        # The replica checks the order of map keys with all else, before it stores a cell.
        limit = self._dialect.message_bytes_max
        message, parts = decode_payload(payload, None, limit, ordered=False)
        match message:
            case Ping():
                return self._ping(message)
            case Query():
                return Replied(self._query(message, peer))
            case Announcement(path, value, absent):
                return Offered(self._offer(path, value, parts, absent))
            case Patched():
                return Offered(self._unpatched(message, len(payload)))
            case Request(id, hashes, fault):
                if fault is not None:
                    return Replied(encode_failure(id, ErrorCode.ARGUMENT, fault))
                return Wanted(id, hashes)
            case Result(None, value, ErrorCode.LOAD):
                return Left(f"the peer refused: {brief(value)}")
            case Result(id, value, error, info=info, absent=absent):
                failure = None if error is None else f"{error.name}: {brief(value)}"
                return Answered(id, (value, parts, absent, info), failure)
            case Challenge():
                return Challenged(message)
            case Goodbye():
                return Left()
            case Unknown(value, reason):
                return self._unknown(value, reason, parts)

    def _ping(self, ping: Ping) -> Heard:
        reply: Value = PONG
        if self._dialect.ping_reply == "timestamp":
            reply = self._clock.now_ms()
        first = ping.extra[0] if ping.extra else None
        if first == TWIN and len(ping.extra) > 1:
            return Twin(encode_result(Result(ping.id, reply)), ping.extra[1])
        if first != PEER:
            return Replied(encode_result(Result(ping.id, reply)))
        terse = PATCHES in ping.extra
        said = ping.extra[2] if len(ping.extra) > 2 else None
        fields: list[tuple[Value, Value]] = [(PATCHES, True)] if terse else []
        if said is not None and self._start is not None:
            fields.append((START, self._start.signed))
        info = Map.of(fields) if fields else None
        return Joined(encode_result(Result(ping.id, reply, info=info)), terse, said)

    def _query(self, query: Query, peer: str) -> bytes:
        if query.fault is not None:
            return encode_failure(query.id, ErrorCode.ARGUMENT, query.fault)
        if is_fork_query(query.path):
            return self._hand_over(query, peer)
        try:
            value = self._replica.query(query.path, peer, strict=self._dialect.strict_paths)
        except NoSuchPath as error:
            return encode_failure(query.id, ErrorCode.ARGUMENT, str(error))
        return encode_answer(query.id, value, self._replica.load_encoding, self._room(query))

    def _room(self, query: Query) -> int:
        """Return how many bytes of cells may go with the answer to a query."""
        room = self._dialect.message_bytes_max - ANSWER_RESERVE_BYTES
        asked = query.extra[0] if query.extra else None
        return asked if type(asked) is int and 0 <= asked < room else room

    def _hand_over(self, query: Query, peer: str) -> bytes:
        answer = self._replica.handed(query.path[1], peer)
        made = {hash: data for hash, data, _ in novelty(answer, self._replica.store)}

        def load(hash: bytes) -> bytes | None:
            return made.get(hash) or self._replica.load_encoding(hash)

        return encode_answer(query.id, answer, load, self._room(query))

    def _unknown(self, value: Value, reason: str, parts: Parts) -> Heard:
        if isinstance(value, Vector):
            return Ignored(reason)
        offer = self._offer((), value, parts)
        return Offered(offer) if self._dialect.accept_bare_values else Bare(offer, reason)

    def _offer(
        self,
        path: tuple[Value, ...],
        value: Value,
        parts: Parts,
        absent: bytes | None = None,
        *,
        is_branch: bool = False,
    ) -> Offer:
        key = value_hash(value) if absent is None else absent
        if path:
            key = sha3_256(encode(Vector.of(path)) + key)
        return Offer(Probe(key, Incoming(path, value, parts, absent, is_branch)))

    def _unpatched(self, message: Patched, size: int) -> Offer:
        """Return what a patch says, or its hash alone where it is known or cannot be read.

        It brought the bytes of its message, whatever it stands for, and is read where it has as
        many: a few cells that repeat are a blob of any length.
        Raises: BadFormat: it is no patch.
        """
        load, patch = self._replica.load_encoding, message.patch
        base = encode(message.base) if message.absent is None else load(message.absent)
        top = Probe(message.hash, Incoming((), None, Parts(None), message.hash, sent=size))
        if load(message.hash) is not None:
            return Offer(top)
        nothing = Offer(top, unread=True)
        if base is None or len(patch) > size:
            return nothing
        limit = min(self._dialect.message_bytes_max, PATCH_BYTES_MAX)
        try:
            cells = read_patch(bytes(patch), base, load, limit, cells_worth(len(patch)))
        except (MissingData, LimitExceeded):
            return nothing
        hash, cell = cells.popitem()
        if hash != message.hash:
            return nothing
        made = join_cells(cell, cells.values())
        value, parts = decode_parts(made, None, self._dialect.message_bytes_max, ordered=False)
        return Offer(Probe(hash, Incoming((), value, parts, sent=size)))

    def parts(self, content: object, hashes: Sequence[bytes]) -> list[Part | None]:
        """Return the cells in an answer, checked against the hashes that were asked for."""
        assert isinstance(content, tuple)
        value, parts, _, _ = content
        if not isinstance(value, Vector) or len(value) != len(hashes):
            raise ProtocolViolation(
                f"the answer to a request of {len(hashes)} cells has not as many"
            )
        encodings = parts.encodings()
        found: list[Part | None] = []
        for position, hash in enumerate(hashes):
            encoding = encodings.get(hash)
            if encoding is None:
                # Embedded cells stand in the vector itself; their hash names them like any other.
                cell = _element(value, position)
                if cell is not None and value_hash(cell) != hash:
                    raise ProtocolViolation(
                        f"a cell that was not asked for instead of {hash.hex()}"
                    )
                encoding = None if cell is None else encode(cell)
            found.append(None if encoding is None else Part(hash, encoding))
        return found

    def offer(self, content: object, path: tuple[Value, ...] = ()) -> Offer | None:
        """Return the value in an answer to `ask`; nil is a node that has nothing there."""
        assert isinstance(content, tuple)
        value, parts, absent, _ = content
        if value is None and absent is None:
            return None
        return self._offer(path, value, parts, absent)

    def refuse(self, text: str) -> bytes:
        """Return the answer to a payload that is no message."""
        return encode_failure(None, ErrorCode.FORMAT, text)

    def hello(self, id: int) -> bytes:
        """Return a PING that asks to be told of changes."""
        start = () if self._start is None else (self._start.signed,)
        return encode_ping(id, PEER, PATCHES, *start)

    def welcomed(self, content: object) -> bool:
        """Return whether the info of an answer to `hello` has a word for patches."""
        assert isinstance(content, tuple)
        info = content[3]
        return isinstance(info, Map) and PATCHES in info

    def started(self, content: object) -> Value:
        """Return what the info of an answer to `hello` says of the peer's start."""
        assert isinstance(content, tuple)
        info = content[3]
        return info.get(START) if isinstance(info, Map) else None

    def twin(self, id: int, start: Start) -> bytes:
        """Return a PING that names another start of the receiver's identity."""
        return encode_ping(id, TWIN, start.signed)

    def is_plain(self, content: object) -> bool:
        """Return whether an answer to `hello` has no word of our extensions."""
        return not self.welcomed(content)

    def questions(self, *, plain: bool) -> Sequence[tuple[Value, ...]]:
        """Return the paths to query: the root, or each section where an answer could be too long.

        A plain peer answers with everything below the path, in frames of up to its own limit.
        """
        lattice = self._replica.lattice
        is_roomy = self._dialect.message_bytes_max >= MESSAGE_BYTES_MAX
        if not plain or is_roomy or not isinstance(lattice, KeyedLattice):
            return ((),)
        return tuple((key,) for key in lattice.children() if key != LOCAL_KEY)

    def ask(self, id: int, path: tuple[Value, ...] = ()) -> bytes:
        """Return a query for a path, with as few cells as the peer is able to leave out.

        A node that has nothing yet lacks everything, so it asks for much at once.
        """
        if is_fork_query(path):
            return encode_query(id, path, HANDED_BYTES)
        return encode_query(id, path, FIRST_BYTES_MAX if self._replica.is_blank else 0)

    def more_questions(self, turn: int) -> Sequence[tuple[Value, ...]]:
        """Return the queries for branches of owners whose keys are here."""
        return fork_queries(self._replica.owners, turn)

    def more(self, content: object, path: tuple[Value, ...], turn: int) -> Offer | None:
        """Return one of the branches in the answer to such a query, as stated at its slot."""
        assert isinstance(content, tuple)
        value, parts, _, _ = content
        found = one_handed(value, path[1], turn)
        if found is None:
            return None
        slot, cell, absent = found
        return self._offer(slot, cell, parts, absent, is_branch=True)

    def spell_out(self, heard: Sequence[Probe], told: Probe | None, peer: str) -> PlainUpdate:
        """Return LATTICE_VALUEs, each with all cells of its value."""
        frame_max = min(MESSAGE_BYTES_MAX, self._dialect.message_bytes_max)
        made = self._replica.spell_out(heard, told, peer, frame_max)
        payloads = tuple(
            encode_complete(piece.path, piece.value, piece.cells.values()) for piece in made.pieces
        )
        said = None if made.told is None else Probe(value_hash(made.told), made.told)
        return PlainUpdate(payloads, said, made.is_all, tuple(made.too_large))

    def push(self, offer: Offer, *, terse: bool) -> bytes:
        """Return a LATTICE_VALUE, or a LATTICE_PATCH where that is shorter."""
        assert offer.probe is not None
        value = offer.probe.data
        whole = encode_announcement((), value, [part.data for part in offer.parts])
        base = offer.base
        if not terse or base is None or not 0 < len(offer.parts) <= PATCH_CELLS_MAX:
            return whole
        cells = {part.hash: part.data for part in offer.parts}
        patch = write_patch(encode(value), cells, encode(base.data), self._replica.load_encoding)
        short = encode_patched(base.data, offer.probe.key, patch)
        return short if len(short) < len(whole) else whole

    def want(self, id: int, hashes: Sequence[bytes]) -> bytes:
        """Return a DATA_REQUEST."""
        return encode_request(id, hashes)

    def give(self, request: object, parts: Sequence[Part | None], hashes: Sequence[bytes]) -> bytes:
        """Return the answer to a DATA_REQUEST."""
        cells = [
            (hash, None if part is None else part.data)
            for hash, part in zip(hashes, parts, strict=True)
        ]
        return encode_supply(request, cells)

    def challenge(self, id: int, asker: KeyPair, token: bytes, wanted: bytes | None) -> bytes:
        """Return a CHALLENGE."""
        return encode_challenge(id, asker, token, wanted)

    def prove(self, challenge: object, own: KeyPair | None) -> bytes:
        """Return the answer to a CHALLENGE."""
        assert isinstance(challenge, Challenge)
        return answer_challenge(challenge, own)

    def challenger(self, challenge: object) -> bytes | None:
        """Return the key that signed a CHALLENGE, nil where the signature is not good."""
        assert isinstance(challenge, Challenge)
        signed = challenge.signed
        return signed.public_key if signed is not None and signed.verify() else None

    def proof(self, content: object, asker: KeyPair, token: bytes, wanted: bytes | None) -> bytes:
        """Return the public key that an answer proves."""
        assert isinstance(content, tuple)
        return check_answer(content[0], asker.public_key, token, wanted)


def _element(value: Vector, position: int) -> Value:
    """Return an element of an answer; a reference whose cell did not come along is none."""
    try:
        return value[position]
    except MissingData:
        return None
