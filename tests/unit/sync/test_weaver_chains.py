"""Gaps in an author's chain: one request fetches what is missing, from whichever peer has it."""

from __future__ import annotations

import pytest

import datalattice.sync.conversation as talk
from datalattice.clock import Hlc, SystemClock
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import GroupCommit, MemoryEngine
from datalattice.protobuf import read_varint, varint
from datalattice.sync import Offer, Part, Peer, Want, Why
from datalattice.sync.weaver import (
    CHAIN_MAX,
    CHAINS_OPEN,
    ChainGaps,
    FetchChain,
    IntentionResponse,
    PeerMessage,
    WeaverConversation,
    WeaverReplica,
)
from datalattice.weaver import (
    STORE_TABLES,
    ZERO_HASH,
    Intention,
    MissingPrev,
    NullMachine,
    SignedIntention,
    WeaverStore,
)

STORE = b"s" * 16
AUTHOR = KeyPair(bytes([9]) * 32)


def chain(length: int, author: KeyPair = AUTHOR) -> list[SignedIntention]:
    """Return an author's first intentions, the oldest first."""
    made: list[SignedIntention] = []
    for number in range(length):
        prev = made[-1].hash if made else ZERO_HASH
        stamp = Hlc(1_000 + number, 0)
        intention = Intention(author.public_key, stamp, STORE, prev, (), b"%d" % number)
        made.append(intention.sign(author))
    return made


def replica_with(signed: list[SignedIntention]) -> WeaverReplica:
    commits = GroupCommit(MemoryEngine(STORE_TABLES))
    key = KeyPair(bytes([1]) * 32)
    store = WeaverStore(commits, 1, STORE, NullMachine(), key, SystemClock())
    store.open()
    store.ingest([one.encode() for one in signed])
    return WeaverReplica(store, lambda: {AUTHOR.public_key}, SeededEntropy(1))


def served(replica: WeaverReplica, target: bytes, since: bytes = b"") -> list[bytes] | None:
    """Return the hashes of an answer, None when it is refused."""
    found: list[bytes] = []
    for reply in replica.serve(Peer("p"), FetchChain(STORE, target, since)):
        if reply.body is None:
            return None
        assert isinstance(reply.body, list)
        found += [part.hash for part in reply.body]
    return found


def test_linear_gap() -> None:
    made = chain(10)
    full, behind = replica_with(made), replica_with(made[:5])
    assert served(full, made[9].hash, made[4].hash) == [one.hash for one in reversed(made[5:])]
    parts = tuple(Part(one.hash, one.encode()) for one in made[5:])
    assert behind.absorb(Offer(None, parts), Peer("p"), asked=True).changed
    assert behind.probe.key == full.probe.key


def test_invalid_since() -> None:
    """An empty `since` is allowed, and means down to the author's first intention."""
    made = chain(CHAIN_MAX)
    replica = replica_with(made)
    assert served(replica, made[-1].hash) == [one.hash for one in reversed(made)]
    assert served(replica, made[-1].hash, b"short") is None
    assert served(replica, b"unknown") is None


def test_fork_detect() -> None:
    made, other = chain(6), chain(3, KeyPair(bytes([8]) * 32))
    replica = replica_with([*made, *other])
    assert served(replica, made[5].hash, other[1].hash) is None


@pytest.mark.parametrize("length", [CHAIN_MAX - 1, CHAIN_MAX, CHAIN_MAX + 1])
def test_limit_exceeded(length: int) -> None:
    made = chain(length + 1)
    replica = replica_with(made)
    found = served(replica, made[-1].hash, made[0].hash)
    assert (found is None) == (length > CHAIN_MAX)


def test_future_since() -> None:
    made = chain(6)
    assert served(replica_with(made), made[2].hash, made[5].hash) is None


class Asking:
    """A conversation that asks for what is missing."""

    def __init__(self, *gaps: MissingPrev) -> None:
        self.gaps = ChainGaps()
        self.gaps.add(gaps)
        self.own = WeaverConversation(Peer("p", dialled=True), STORE, self.gaps)
        self.own.send(talk.Greet(), 0)
        self.own.events()

    def ask(self, *hashes: bytes) -> list[PeerMessage]:
        self.own.send(talk.Request(Want(hashes)), 0)
        return [PeerMessage.decode(f[read_varint(f, 0)[1] :]) for f in self.own.frames()]

    def hear(self, exchange: int, body: bytes) -> list[talk.PeerEvent]:
        self.own.receive(varint(-exchange * 2 - 1) + body, 0)
        return self.own.events()


def answer(*signed: SignedIntention, done: bool = True) -> bytes:
    response = IntentionResponse(STORE, done, tuple(one.encode() for one in signed))
    return PeerMessage(intention_response=response).encode()


def test_a_missing_predecessor_is_asked_for_as_a_chain_in_one_request() -> None:
    made = chain(6)
    other = bytes(31) + b"o"
    asking = Asking(MissingPrev(made[4].hash, made[1].hash, AUTHOR.public_key))
    first, second = asking.ask(made[4].hash, other)
    assert first.fetch_chain == FetchChain(STORE, made[4].hash, made[1].hash)
    assert second.fetch_intentions is not None
    assert second.fetch_intentions.hashes == (other,)
    (_, delivered) = asking.hear(-1, answer(made[4], made[3], made[2]))
    assert isinstance(delivered, talk.Delivered)
    assert [part.hash for part in delivered.parts] == [one.hash for one in made[2:5]]
    assert asking.own.pending_count == 1  # the other request


def test_what_lies_beyond_the_chain_is_not_taken() -> None:
    made = chain(6)
    asking = Asking(MissingPrev(made[4].hash, made[2].hash, AUTHOR.public_key))
    asking.ask(made[4].hash)
    fault, _, delivered = asking.hear(-1, answer(made[4], made[3], made[2]))
    assert isinstance(fault, talk.Fault)
    assert isinstance(delivered, talk.Delivered)
    assert [part.hash for part in delivered.parts] == [made[3].hash, made[4].hash]


def test_a_chain_has_no_more_intentions_than_may_be_asked_for() -> None:
    made = chain(CHAIN_MAX + 2)
    asking = Asking(MissingPrev(made[-1].hash, ZERO_HASH, AUTHOR.public_key))
    asking.ask(made[-1].hash)
    fault, _, delivered = asking.hear(-1, answer(*reversed(made[1:])))
    assert isinstance(fault, talk.Fault)
    assert isinstance(delivered, talk.Delivered)
    assert len(delivered.parts) == CHAIN_MAX


def test_a_chain_that_two_peers_refuse_is_fetched_by_its_last_hash() -> None:
    prev = bytes(31) + b"p"
    asking = Asking(MissingPrev(prev, ZERO_HASH, AUTHOR.public_key))
    for exchange in (1, 2):
        (message,) = asking.ask(prev)
        assert message.fetch_chain is not None
        _, delivered, doubted = asking.hear(-exchange, b"")
        assert delivered == talk.Delivered(Want((prev,)), ())
        assert isinstance(doubted, talk.Doubted)  # so the two are compared
    (message,) = asking.ask(prev)
    assert message.fetch_intentions is not None


def test_what_a_comparison_lists_is_not_asked_for_as_the_end_of_a_chain() -> None:
    made = chain(CHAIN_MAX + 3)
    full, behind = replica_with(made), replica_with(made[:1])
    newest = Part(made[-1].hash, made[-1].encode())
    behind.absorb(Offer(None, (newest,)), Peer("full"), asked=True)
    target = made[-2].hash
    assert behind.gaps.since(target) == made[0].hash  # a longer chain than anybody gives
    asking = behind.compare(Peer("full", dialled=True), Why.MEETING)
    answering = full.compare(Peer("behind"), Why.ASKED)
    assert asking is not None
    assert answering is not None
    step, needs = asking.start(), set[bytes]()
    while step.say:
        step = asking.receive(answering.receive(step.say).say)
        needs.update(step.need)
    asking.ended()
    answering.ended()
    assert needs == {one.hash for one in made[1:-1]}
    assert behind.gaps.since(target) is None


@pytest.mark.parametrize("count", [CHAINS_OPEN - 1, CHAINS_OPEN, CHAINS_OPEN + 1])
def test_so_many_chains_are_asked_for_at_once(count: int) -> None:
    prevs = [number.to_bytes(32, "big") for number in range(1, count + 1)]
    asking = Asking(*[MissingPrev(prev, ZERO_HASH, AUTHOR.public_key) for prev in prevs])
    asked = asking.ask(*prevs)
    assert sum(one.fetch_chain is not None for one in asked) == min(count, CHAINS_OPEN)
