"""A Weaver store as a replica: two of them become equal, whatever the connection does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

import datalattice.sync.conversation as talk
from datalattice.clock import Hlc, SystemClock
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import GroupCommit, MemoryEngine
from datalattice.errors import PeerError, Unfenced
from datalattice.protobuf import Message, varint
from datalattice.sync import Offer, Pace, Part, Peer, Probe, Replicator, Step, Want, Why
from datalattice.sync.reconcile import (
    SKETCH_LIMITS,
    RangeFingerprint,
    RangeMessage,
    SketchLimits,
    SketchMessage,
    SketchOpening,
)
from datalattice.sync.weaver import (
    FETCH_AHEAD_MS,
    FETCH_HASHES_MAX,
    FETCH_LOT,
    FETCH_LOT_BYTES,
    FETCH_LOT_MS,
    FETCH_PART_MS,
    LOT_BYTES,
    LOT_RECORDS,
    SESSIONS_MAX,
    SILENCE_MS,
    SKETCHES,
    BootstrapRequest,
    BootstrapResponse,
    FetchIntentions,
    IntentionResponse,
    JoinRequest,
    JoinResponse,
    LogComparison,
    NewsMessage,
    NodeMessage,
    PeerMessage,
    RangeComparison,
    ReconcilePayload,
    SendLimits,
    SketchComparison,
    SyncDone,
    WeaverConversation,
    WeaverProtocol,
    WeaverReplica,
)
from datalattice.testing.dice import Dice
from datalattice.testing.replica_kit import KitReplica, ReplicaPair, check_replica
from datalattice.weaver import (
    STORE_TABLES,
    ZERO_HASH,
    Doubt,
    Intention,
    NullMachine,
    SignedIntention,
    WeaverStore,
    WitnessRecord,
    envelope_hash,
)

STORE = b"s" * 16
SMALL = SendLimits(
    arrivals=64, batch=5, log_request=20, log_request_max=20, log_batch=6, verified=3
)
keys = iter(range(1, 2**31))
everyone: set[Any] = {None}  # the kit's connections prove no key


def new_store(key: KeyPair | None = None) -> WeaverStore:
    """Return a new store in memory: all have one id, so that they are copies of one."""
    key = key or KeyPair(next(keys).to_bytes(32, "big"))
    commits = GroupCommit(MemoryEngine(STORE_TABLES))
    store = WeaverStore(commits, 1, STORE, NullMachine(), key, SystemClock())
    store.open()
    return store


class Site:
    """A store and its replica, whose peers are all but the refused keys."""

    def __init__(
        self,
        key: KeyPair | None = None,
        sketches: SketchLimits = SKETCH_LIMITS,
        limits: SendLimits = SMALL,
    ) -> None:
        self.store = new_store(key)
        self.refused: set[bytes] = set()
        self.replica = WeaverReplica(
            self.store,
            lambda: everyone - self.refused,
            SeededEntropy(next(keys)),
            limits=limits,
            sketches=sketches,
        )
        everyone.add(self.store.author)

    def submit(self, payload: bytes, *deps: bytes) -> bytes:
        return self.store.submit(payload, deps)

    def count(self) -> int:
        with self.store.read() as log:
            return log.head().count

    def get(self, hash: bytes) -> SignedIntention | None:
        with self.store.read() as log:
            return log.get(hash)


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_what_is_kept_for_pushes_is_bounded_in_bytes(room: int) -> None:
    store = new_store()
    sizes = [len(made.encode()) for made in [_written(store, bytes(1_000)) for _ in range(3)]]
    limits = SMALL._replace(arrival_bytes=sum(sizes) + room)
    replica = WeaverReplica(store, lambda: (), SeededEntropy(1), limits=limits)
    begun = replica.probe
    for _ in sizes:
        _written(store, bytes(1_000))
    replica.publish()
    found = replica.news(Peer("p", True, None), [begun])
    # One byte too many: the oldest is gone, so the peer is compared.
    assert found is not None
    assert found.is_behind is (room < 0)


def _written(store: WeaverStore, payload: bytes) -> SignedIntention:
    hash = store.submit(payload, ())
    with store.read() as log:
        found = log.get(hash)
    assert found is not None
    return found


ANY_SIZE = SKETCH_LIMITS._replace(items_min=0)


def make(sketches: SketchLimits = SKETCH_LIMITS) -> KitReplica:
    store = Site(sketches=sketches)
    return KitReplica(
        store.replica,
        WeaverProtocol(STORE, store.replica.gaps),
        lambda number: store.submit(b"%d" % number),
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_weaver_replica_keeps_to_the_kit(seed: int) -> None:
    check_replica(make, seed)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "limits",
    [ANY_SIZE, ANY_SIZE._replace(regions_from=0), ANY_SIZE._replace(listed=0, cells=30)],
    ids=["cells", "regions", "none"],
)
def test_a_weaver_replica_that_sketches_sets_of_any_size_keeps_to_the_kit(
    seed: int, limits: SketchLimits
) -> None:
    check_replica(lambda: make(limits), seed)


class Pair:
    """Two stores and a calm connection between them. limits: of sketches, of each side."""

    def __init__(self, *limits: SketchLimits) -> None:
        each = iter(limits or (SKETCH_LIMITS, SKETCH_LIMITS))
        self.stores: list[Site] = []

        def make() -> KitReplica:
            store = Site(sketches=next(each))
            self.stores.append(store)
            return KitReplica(
                store.replica, WeaverProtocol(STORE, store.replica.gaps), lambda number: number
            )

        self.link = ReplicaPair(make, Dice(1, "weaver"))

    def publish(self) -> None:
        for end in self.link.ends:
            end.replicator.publish(self.link.now_ms)
        self.link.carry()

    def meet(self) -> None:
        self.link.connect()
        self.link.pass_time(1_000)

    def frames(self) -> int:
        return sum(len(end.inbox) for end in self.link.ends)

    @property
    def is_equal(self) -> bool:
        return len(set(self.link.keys)) == 1


def test_a_write_reaches_the_peer_at_once() -> None:
    pair = Pair()
    pair.meet()
    signed = pair.stores[0].submit(b"hello")
    pair.publish()
    pair.link.pass_time(100)
    assert pair.stores[1].get(signed) is not None
    assert pair.is_equal


def test_what_was_written_apart_is_exchanged_when_they_meet() -> None:
    pair = Pair()
    for number in range(300):
        pair.stores[number % 2].submit(b"%d" % number)
    pair.meet()
    pair.link.pass_time(2_000)
    assert pair.is_equal
    assert pair.stores[0].count() == 300


NEVER = SKETCH_LIMITS._replace(items_min=1_000_000)
FEW = ANY_SIZE._replace(cells=30, listed=0)


@pytest.mark.parametrize(
    ("limits", "kinds"),
    [
        ((ANY_SIZE, ANY_SIZE), {"opening", "estimate", "cells", "result", "hashes"}),
        ((NEVER, ANY_SIZE), {"opening", "estimate", "cells", "result", "hashes"}),
        ((NEVER, NEVER), set()),
        ((FEW, FEW), {"opening", "estimate"}),
    ],
    ids=["both", "one", "neither", "too many"],
)
def test_sketches_are_spoken_where_both_sides_are_willing_and_ranges_otherwise(
    limits: tuple[SketchLimits, SketchLimits], kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(*limits)
    common = [signed_by(1_000 + number, b"same") for number in range(200)]
    for site in pair.stores:
        site.store.ingest([one.encode() for one in common])
    for number in range(40):
        pair.stores[number % 2].submit(b"%d" % number)
    said: list[str] = []
    encode = SketchMessage.encode

    def noted(message: SketchMessage) -> bytes:
        said.extend(kind for kind, value in vars(message).items() if value is not None)
        return encode(message)

    monkeypatch.setattr(SketchMessage, "encode", noted)
    # Which side dials is up to chance, and that of the two that is willing has to open.
    for _ in range(20):
        pair.meet()
    assert pair.is_equal
    assert pair.stores[0].count() == 240
    assert set(said) - {"more"} <= kinds
    assert bool(said) == bool(kinds)


def test_equal_sets_say_no_more_than_two_payloads() -> None:
    pair = Pair(ANY_SIZE, ANY_SIZE)
    for site in pair.stores:
        site.store.ingest([signed_by(number, b"x").encode() for number in range(1, 9)])
    opener, answerer = (
        site.replica.compare(peer(), why)
        for site, why in zip(pair.stores, (Why.PULL, Why.ASKED), strict=True)
    )
    assert opener is not None
    assert answerer is not None
    step = opener.start()
    assert isinstance(step.say[-1], SketchMessage)
    answer = answerer.receive(step.say)
    assert answer.is_done
    assert opener.receive(answer.say) == Step(is_done=True)


def peer() -> Peer:
    return Peer("p", dialled=True, features=frozenset({SKETCHES}))


def test_after_an_abandoned_sketch_a_connection_goes_on_by_ranges() -> None:
    site, other = Site(sketches=ANY_SIZE), Site(sketches=ANY_SIZE)
    site.submit(b"x")

    def kinds(of: Peer, end: bool) -> list[type]:
        opener = other.replica.compare(of, Why.PULL)
        answerer = site.replica.compare(of, Why.ASKED)
        assert opener is not None
        assert answerer is not None
        answer = answerer.receive(opener.start().say)
        if end:
            answerer.ended()
        return sorted({type(one) for one in answer.say}, key=str)

    for _ in range(2):  # one that is open has not been abandoned yet
        assert kinds(peer(), end=False) == [SketchMessage]
    assert kinds(peer(), end=True) == [SketchMessage]
    assert kinds(peer(), end=True) == [RangeMessage]
    opener = site.replica.compare(peer(), Why.PULL)
    assert opener is not None
    assert {type(one) for one in opener.start().say} == {RangeMessage}
    assert kinds(replace(peer(), connection="another"), end=False) == [SketchMessage]
    site.replica.forget(peer())
    assert kinds(peer(), end=False) == [SketchMessage]


def test_a_peer_without_the_feature_is_compared_by_ranges_alone() -> None:
    site = Site(sketches=ANY_SIZE)
    site.submit(b"x")
    with_sketch, without = (
        site.replica.compare(one, Why.PULL) for one in (peer(), Peer("q", dialled=True))
    )
    assert isinstance(with_sketch, SketchComparison)
    assert not isinstance(without, SketchComparison)
    assert without is not None
    assert {type(one) for one in without.start().say} == {RangeMessage}


def test_a_node_that_does_not_know_sketches_reads_the_ranges_beside_them() -> None:
    ranges = ReconcilePayload(STORE, (RangeMessage(done=True),))
    framed = NodeMessage(reconcile_payload=ranges, sketch=SketchMessage(more=True)).encode()
    assert PeerMessage.decode(framed) == PeerMessage(reconcile_payload=ranges)
    alone = PeerMessage(reconcile_payload=ranges).encode()
    assert NodeMessage(reconcile_payload=ranges).encode() == alone


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([(SketchMessage(more=True),)], "a sketch in a session of ranges"),
        ([(RangeMessage(done=True),), (SketchMessage(more=True),)], "in a session of ranges"),
        ([(SketchMessage(opening=SketchOpening(bytes(16), 1, bytes(32))),)], "an estimate comes"),
        ([(RangeMessage(done=True), SketchMessage(more=True))], "in a session of ranges"),
    ],
)
def test_a_sketch_out_of_place_ends_the_comparison(
    messages: list[tuple[object, ...]], reason: str
) -> None:
    site = Site(sketches=ANY_SIZE)
    if reason == "a sketch in a session of ranges":
        comparison = site.replica.compare(peer(), Why.ASKED)
    else:
        comparison = site.replica.compare(peer(), Why.PULL)
        assert comparison is not None
        comparison.start()
    assert comparison is not None
    for message in messages[:-1]:
        comparison.receive(message)
    with pytest.raises(PeerError, match=reason):
        comparison.receive(messages[-1])
    comparison.ended()


def test_a_gap_is_filled_by_asking_for_what_an_intention_names() -> None:
    pair = Pair()
    pair.meet()
    for number in range(9):
        pair.stores[0].submit(b"lost %d" % number)
    pair.link.ends[0].replicator.publish(pair.link.now_ms)
    pair.link.carry(loss=1.0)
    pair.stores[0].submit(b"arrives")
    pair.publish()
    pair.link.pass_time(2_000)
    assert pair.is_equal
    assert pair.stores[1].count() == 10


def test_branches_of_a_fork_stay_apart_without_endless_exchange() -> None:
    pair = Pair()
    for site, text in zip(pair.stores, (b"one", b"other"), strict=True):
        site.store.ingest([signed_by(5, text).encode()])
    pair.meet()
    pair.link.pass_time(10 * 60_000)
    for site in pair.stores:
        assert site.store.status().forks == 1
        assert site.count() == 1


def envelopes(site: Site) -> list[bytes]:
    with site.store.read() as log:
        return [entry.signed.encode() for entry in log.entries(1)]


def set_back(pair: Pair, known: int, elsewhere: int) -> list[Part]:
    """Have the first site know the oldest of its intentions, the second one all; return those."""
    first, second = pair.stores
    ghost = Site(first.store._key)
    for number in range(elsewhere):
        ghost.submit(b"own %d" % number)
    all_of_it = envelopes(ghost)
    first.store.ingest(all_of_it[:known])
    second.store.ingest(all_of_it)
    return [Part(SignedIntention.decode(one).hash, one) for one in all_of_it]


def test_own_intentions_that_a_peer_has_are_all_here_before_the_next_one_is_written() -> None:
    pair = Pair()
    first, second = pair.stores
    parts = set_back(pair, 2, 40)
    absorbed = first.replica.absorb(Offer(None, tuple(parts[2:9])), Peer("p"), asked=True)
    assert [one.kind for one in absorbed.reports] == ["own-elsewhere"]
    with pytest.raises(Unfenced, match="set back"):
        first.submit(b"would follow the ninth, as the tenth does")
    pair.meet()
    first.submit(b"after all of it")
    pair.publish()
    pair.link.pass_time(1_000)
    assert pair.is_equal
    assert second.count() == 41
    assert [site.store.status().forks for site in pair.stores] == [0, 0]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_comparison_that_breaks_off_ends_no_doubt(rounds: int) -> None:
    pair = Pair()
    first, second = pair.stores
    set_back(pair, 2, 40)
    first.store.suspect(Doubt.MOVED)
    comparison = first.replica.compare(Peer("p", True), Why.MEETING)
    other = second.replica.compare(Peer("q"), Why.ASKED)
    assert isinstance(comparison, RangeComparison)
    assert isinstance(other, RangeComparison)
    said = comparison.start().say
    for _ in range(rounds):
        said = comparison.receive(other.receive(said).say).say
    comparison.ended()
    with pytest.raises(Unfenced, match="copied, restored or moved"):
        first.submit(b"too early")


def test_a_peer_without_news_ends_a_doubt() -> None:
    pair = Pair()
    first, second = pair.stores
    second.store.ingest([parts.data for parts in set_back(pair, 3, 3)])
    first.store.suspect(Doubt.MOVED)
    pair.meet()
    first.submit(b"nothing was missed")


def test_news_of_a_revoked_author_is_refused_while_its_history_spreads() -> None:
    pair = Pair()
    news = signed_by(6, b"news")
    pair.meet()
    pair.stores[0].store.ingest([news.encode()])
    pair.publish()
    pair.link.pass_time(1_000)
    assert pair.stores[1].get(news.hash) is None
    pair.meet()
    assert pair.stores[1].get(news.hash) is not None


def signed_by(seed: int, payload: bytes, store_id: bytes = STORE) -> SignedIntention:
    key = KeyPair(seed.to_bytes(32, "little"))
    stamp = Hlc(seed, 0)
    return Intention(key.public_key, stamp, store_id, ZERO_HASH, (), payload).sign(key)


def test_one_bad_intention_costs_itself_alone() -> None:
    store = Site()
    good, other_store = signed_by(7, b"good"), signed_by(8, b"other", b"o" * 16)
    forged = signed_by(9, b"forged")
    forged = forged._replace(signature=bytes(64))
    parts = [Part(one.hash, one.encode()) for one in (other_store, good, forged)]
    absorbed = store.replica.absorb(Offer(Probe(b"k"), tuple(parts)), Peer("p"), asked=True)
    assert store.count() == 1
    assert [one.kind for one in absorbed.reports] == ["intention-refused"] * 2
    assert "store" in absorbed.reports[0].text
    assert "signature" in absorbed.reports[1].text


@pytest.mark.parametrize("bad", [0, 2, 3, 4, 6])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_an_offer_longer_than_a_lot_is_taken_in_whole(bad: int, is_reversed: bool) -> None:
    source, target = Site(), Site()
    good = [_written(source.store, b"%d" % number) for number in range(7)]
    lone = _written(new_store(), b"another author")
    envelopes = [one.encode() for one in good]
    if is_reversed:
        envelopes.reverse()
    forged = lone.encode()[:-1] + bytes([lone.encode()[-1] ^ 1])
    envelopes.insert(bad, forged)
    parts = tuple([Part(envelope_hash(one), one) for one in envelopes])
    assert len(parts) > 2 * SMALL.verified
    absorbed = target.replica.absorb(Offer(None, parts), Peer("p", True, None), asked=True)
    # What an earlier lot lacked came with a later one, so nothing is asked for.
    assert absorbed.missing == []
    assert absorbed.changed
    assert [report.kind for report in absorbed.reports] == ["intention-refused"]
    assert target.count() == 7


def test_what_no_lot_of_an_offer_brings_is_missing() -> None:
    source, target = Site(), Site()
    made = [_written(source.store, b"%d" % number) for number in range(9)]
    parts = tuple([Part(one.hash, one.encode()) for one in made if one is not made[4]])
    absorbed = target.replica.absorb(Offer(None, parts), Peer("p", True, None), asked=True)
    assert absorbed.missing == [made[4].hash]
    assert target.count() == 4


def test_answers_come_in_the_order_of_the_log_and_in_lots() -> None:
    store = Site()
    hashes = [store.submit(b"x") for _ in range(12)]
    wanted = Want((*reversed(hashes), b"?" * 32))
    replies = list(store.replica.serve(Peer("p"), wanted))
    found = [part.hash for reply in replies for part in reply.body if part]  # type: ignore[attr-defined]
    assert found == hashes
    assert [reply.last for reply in replies] == [False, False, True]
    assert [len(reply.body) for reply in replies] == [5, 5, 2]  # type: ignore[arg-type]
    (nothing,) = store.replica.serve(Peer("p"), Want(()))
    assert nothing.last


def test_large_intentions_are_split_by_bytes() -> None:
    store = Site()
    hashes = tuple(store.submit(bytes(1 << 19)) for _ in range(12))
    replies = list(store.replica.serve(Peer("p"), Want(hashes)))
    assert [len(reply.body) for reply in replies] == [5, 5, 2]  # type: ignore[arg-type]


class Talk:
    """One conversation, and what came of frames."""

    def __init__(self) -> None:
        self.own = WeaverConversation(Peer("p", dialled=True), STORE)
        self.own.send(talk.Greet(), 0)
        self.own.events()

    def hear(
        self, exchange: int, message: Message | bytes, now_ms: int = 0
    ) -> list[talk.PeerEvent]:
        body = message if isinstance(message, bytes) else message.encode()
        zigzag = exchange * 2 if exchange >= 0 else -exchange * 2 - 1
        self.own.receive(varint(zigzag) + body, now_ms)
        return self.own.events()

    def ask(self, *hashes: bytes) -> None:
        self.own.send(talk.Request(Want(hashes)), 0)


def response(*signed: SignedIntention, done: bool = True, store_id: bytes = STORE) -> PeerMessage:
    envelopes = tuple(one.encode() for one in signed)
    return PeerMessage(intention_response=IntentionResponse(store_id, done, envelopes))


def test_an_answer_gives_what_was_asked_for_and_says_what_the_peer_lacks() -> None:
    one, lacking = signed_by(1, b"1"), signed_by(2, b"2")
    heard = Talk()
    heard.ask(one.hash, lacking.hash)
    (_, delivered) = heard.hear(-1, response(one))
    assert delivered == talk.Delivered(
        Want((one.hash, lacking.hash)), (Part(one.hash, one.encode()),)
    )
    assert heard.own.pending_count == 0


def test_intentions_that_were_not_asked_for_are_not_taken() -> None:
    one, other = signed_by(1, b"1"), signed_by(2, b"2")
    heard = Talk()
    heard.ask(one.hash)
    fault, _, delivered = heard.hear(-1, response(other, one))
    assert isinstance(fault, talk.Fault)
    assert fault.kind == "unasked"
    assert isinstance(delivered, talk.Delivered)
    assert [part.hash for part in delivered.parts] == [one.hash]


def lots_heard(heard: Talk, *responses: tuple[int, PeerMessage]) -> list[int]:
    """Return how many intentions are taken in together, of responses at their times."""
    found = []
    for now_ms, message in responses:
        events = heard.hear(-1, message, now_ms)
        found += [len(one.parts) for one in events if isinstance(one, talk.Delivered)]
    return found


@pytest.mark.parametrize(("count", "lots"), [(999, [1_000]), (1_000, [1_000, 1])])
def test_what_is_fetched_is_taken_in_by_the_thousand(count: int, lots: list[int]) -> None:
    signed = [signed_by(number + 1, b"") for number in range(count + 1)]
    heard = Talk()
    heard.ask(*[one.hash for one in signed])
    halves = response(*signed[:500], done=False), response(*signed[500:-1], done=False)
    responses = [(0, each) for each in (*halves, response(signed[-1]))]
    assert FETCH_LOT == 1_000
    assert lots_heard(heard, *responses) == lots


@pytest.mark.parametrize(("room", "lots"), [(1, [3]), (0, [2, 1]), (-1, [2, 1])])
def test_large_intentions_are_taken_in_by_their_bytes(room: int, lots: list[int]) -> None:
    beside = len(signed_by(1, bytes(500_000)).encode()) - 500_000
    lengths = (FETCH_LOT_BYTES // 2 - beside, FETCH_LOT_BYTES // 2 - beside - room, 1)
    signed = [signed_by(seed, bytes(length)) for seed, length in enumerate(lengths, 1)]
    heard = Talk()
    heard.ask(*[one.hash for one in signed])
    responses = [(0, response(one, done=one is signed[-1])) for one in signed]
    assert lots_heard(heard, *responses) == lots


@pytest.mark.parametrize(
    ("late_ms", "lots"),
    [(FETCH_LOT_MS - 1, [3]), (FETCH_LOT_MS, [2, 1]), (FETCH_LOT_MS + 1, [2, 1])],
)
def test_what_is_fetched_is_not_held_for_long(late_ms: int, lots: list[int]) -> None:
    signed = [signed_by(number + 1, b"") for number in range(3)]
    heard = Talk()
    heard.ask(*[one.hash for one in signed])
    times = (5, 5 + late_ms, 5 + late_ms)
    responses = [
        (now_ms, response(one, done=one is signed[-1]))
        for now_ms, one in zip(times, signed, strict=True)
    ]
    assert lots_heard(heard, *responses) == lots


@pytest.mark.parametrize("gap_ms", [FETCH_PART_MS, SILENCE_MS - 1])
def test_a_peer_that_sends_one_now_and_then_is_given_up(gap_ms: int) -> None:
    signed = [signed_by(number + 1, b"") for number in range(500)]
    heard = Talk()
    heard.ask(*[one.hash for one in signed])
    now_ms, came = 0, 0
    while heard.own.pending_count and came < len(signed) - 1:
        now_ms += gap_ms
        heard.hear(-1, response(signed[came], done=False), now_ms)
        heard.own.expire(now_ms)
        came += 1
    # At ten a second it may go on for ever.
    assert (came == len(signed) - 1) == (gap_ms == FETCH_PART_MS)
    assert now_ms <= max(FETCH_AHEAD_MS, gap_ms * (len(signed) - 1))


@pytest.mark.parametrize("busy_ms", [0, 5_000])
def test_what_came_fast_earns_no_more_than_30_seconds(busy_ms: int) -> None:
    signed = [signed_by(number + 1, b"") for number in range(604)]
    heard = Talk()
    heard.ask(*[one.hash for one in signed])
    heard.hear(-1, response(*signed[:600], done=False), 0)
    heard.hear(-1, response(signed[600], done=False), FETCH_AHEAD_MS // 3)
    heard.hear(-1, response(signed[601], done=False), 2 * FETCH_AHEAD_MS // 3)
    heard.own.excuse(busy_ms)  # this node read nothing meanwhile
    heard.hear(-1, response(signed[602], done=False), FETCH_AHEAD_MS - 1)
    due_ms = heard.own.deadline_ms
    assert due_ms is not None
    assert 0 <= due_ms - FETCH_AHEAD_MS - busy_ms <= 4 * (FETCH_PART_MS + 2)
    heard.own.expire(due_ms)
    assert heard.own.pending_count == 0


@pytest.mark.parametrize("is_silent", [True, False])
def test_what_has_come_is_taken_in_when_a_peer_gives_up(is_silent: bool) -> None:
    one, other = signed_by(1, b"1"), signed_by(2, b"2")
    heard = Talk()
    heard.ask(one.hash, other.hash)
    assert not heard.hear(-1, response(one, done=False))
    if is_silent:
        heard.own.expire(SILENCE_MS)
        events = heard.own.events()
    else:
        events = heard.hear(-1, b"")
    assert talk.Delivered(Want((one.hash,)), (Part(one.hash, one.encode()),)) in events
    assert talk.Failed(Want((other.hash,))) in events


@pytest.mark.parametrize(
    ("exchange", "message", "kind"),
    [
        (-1, b"\xff", "malformed"),
        (0, b"\xff", "malformed"),
        (0, NewsMessage((b"not an intention",)), "malformed"),
        (-1, response(done=False), "malformed"),
        (-1, response(store_id=b"o" * 16), "malformed"),
        (-2, response(), "unasked"),
        (-1, PeerMessage(fetch_intentions=FetchIntentions(STORE)), "ignored"),
    ],
)
def test_illegal_frames_are_faults(exchange: int, message: Message | bytes, kind: str) -> None:
    heard = Talk()
    heard.ask(bytes(32))
    faults = [one for one in heard.hear(exchange, message) if isinstance(one, talk.Fault)]
    assert [one.kind for one in faults] == [kind]


def test_a_request_for_too_many_hashes_is_refused() -> None:
    heard = Talk()
    hashes = tuple(number.to_bytes(32, "big") for number in range(FETCH_HASHES_MAX + 1))
    asked = heard.hear(1, PeerMessage(fetch_intentions=FetchIntentions(STORE, hashes[:-1])))
    assert isinstance(asked[0], talk.Asked)
    assert not heard.hear(2, PeerMessage(fetch_intentions=FetchIntentions(STORE, hashes)))
    assert heard.own.frames() == [varint(3)]


def test_a_silent_peer_is_given_up_after_15_seconds() -> None:
    heard = Talk()
    heard.ask(bytes(32))
    exchange = heard.own.send(talk.Compare(Step()), 0)
    assert heard.own.deadline_ms == SILENCE_MS
    heard.own.expire(SILENCE_MS - 1)
    assert not heard.own.events()
    heard.own.expire(SILENCE_MS)
    kinds = {type(event) for event in heard.own.events()}
    assert kinds == {talk.Fault, talk.Failed, talk.Ended}
    assert heard.own.pending_count == 0
    assert exchange is not None


def test_ranges_behind_the_peers_last_word_end_the_comparison() -> None:
    heard = Talk()
    whole = RangeFingerprint(bytes(32), b"\xff" * 32, bytes(32), 1)
    payload = PeerMessage(
        reconcile_payload=ReconcilePayload(STORE, (RangeMessage(fingerprint=whole),))
    )
    assert isinstance(heard.hear(1, payload)[0], talk.Round)
    assert not heard.hear(1, PeerMessage(sync_done=SyncDone(STORE)))
    fault, ended = heard.hear(1, payload)
    assert isinstance(fault, talk.Fault)
    assert ended == talk.Ended(-1, "the peer sent ranges after SyncDone")


def copied(records: int) -> tuple[Pair, Site, Site]:
    """Return a store with a log, and one that joins and begins with a copy of it."""
    pair = Pair()
    source, joiner = pair.stores
    for number in range(records):
        source.submit(b"%d" % number)
    source.replica.publish()
    return pair, source, joiner


def log_of(site: Site) -> list[bytes]:
    with site.store.read() as log:
        return [entry.signed.hash for entry in log.entries()]


@pytest.mark.parametrize("records", [0, 1, 6, 7, 19, 20, 21, 45])
def test_a_joined_store_begins_with_a_copy_of_the_witness_log(records: int) -> None:
    _, source, joiner = copied(records)
    answers = list(source.replica.serve(Peer("p"), BootstrapRequest(STORE, 0, 0)))
    for answer in answers:  # a peer that does not ask for one signature gets all
        assert isinstance(answer.body, BootstrapResponse)
        assert all(WitnessRecord.decode(one).signature for one in answer.body.records)
    assert len(answers) == max(1, -(-min(records, 20) // 6))
    peer = Peer("p", dialled=True, public_key=source.store.author)
    joiner.replica.source = source.store.author
    comparison = joiner.replica.compare(peer, Why.MEETING)
    assert comparison is not None
    step = comparison.start()
    requests = 0
    while step.say:
        requests += 1
        (request,) = step.say
        for answer in source.replica.serve(Peer("p"), request):
            assert isinstance(answer.body, BootstrapResponse)
            sent = [WitnessRecord.decode(one) for one in answer.body.records]
            assert [bool(one.signature) for one in sent] == [False] * len(sent[1:]) + [True] * (
                len(sent) > 0
            )
            step = comparison.receive(answer.body)
            for offer in step.offers:
                joiner.replica.absorb(offer, peer, asked=True)
    assert step.is_done
    assert requests == max(1, -(-records // 20))
    assert log_of(joiner) == log_of(source)
    both = comparison.ended()
    assert both is not None
    assert both.key == source.replica.probe.key
    assert joiner.replica.source is None


def test_a_log_is_copied_once_at_a_time_however_long_that_takes() -> None:
    _, source, joiner = copied(3)
    joiner.replica.source = source.store.author
    peer = Peer("p", dialled=True, public_key=source.store.author)
    first = joiner.replica.compare(peer, Why.MEETING)
    assert isinstance(first, LogComparison)
    for why in (Why.DUE, Why.DIRTY, Why.MEETING, Why.ASKED):
        assert joiner.replica.compare(peer, why) is None
    again = replace(peer, connection="q")  # the first connection is lost, or about to be
    second = joiner.replica.compare(again, Why.MEETING)
    assert isinstance(second, LogComparison)
    assert first.ended() is None
    assert joiner.replica.compare(again, Why.DUE) is None, "the other one has ended, not this one"
    assert second.ended() is None
    assert isinstance(joiner.replica.compare(again, Why.DUE), LogComparison)
    pulled = joiner.replica.compare(again, Why.PULL)
    assert isinstance(pulled, LogComparison), "who asks waits"
    assert pulled.ended() is None
    assert joiner.replica.compare(again, Why.DUE) is None, "the one before it goes on"


def test_a_copy_on_another_connection_leaves_the_first_one_alone() -> None:
    _, source, joiner = copied(3)
    joiner.replica.source = source.store.author
    peer = Peer("p", dialled=True, public_key=source.store.author)
    other = replace(peer, connection="q")
    first = joiner.replica.compare(peer, Why.MEETING)
    second = joiner.replica.compare(other, Why.MEETING)
    assert first is not None
    assert second is not None
    assert joiner.replica.compare(peer, Why.DUE) is None, "its copy goes on"
    assert second.ended() is None
    assert joiner.replica.compare(peer, Why.ASKED) is None
    assert first.ended() is None
    assert isinstance(joiner.replica.compare(peer, Why.ASKED), RangeComparison)


@pytest.mark.parametrize("heard", [0, 1, 5, 1_000])
def test_the_log_is_copied_over_a_connection_and_news_follow(heard: int) -> None:
    """A copy that stalls is begun anew; comparisons are declined no longer than it is open."""
    _, source, joiner = copied(50)
    joiner.replica.source = source.store.author
    sites, now = (source, joiner), 0
    ends = [
        Replicator(site.replica, WeaverProtocol(STORE, site.replica.gaps), Pace()) for site in sites
    ]
    ends[0].open("p", now, outbound=False, public_key=joiner.store.author)
    ends[1].open("p", now, outbound=True, public_key=source.store.author)

    def carry(left: int) -> None:
        """Deliver frames; of those of the source `left` at most."""
        sent = True
        while sent:
            sent = False
            for side, end in enumerate(ends):
                for connection, payload in end.take_effects().sends:
                    sent = True
                    end.written(connection, 1, now)
                    if side or left > 0:
                        left -= not side
                        ends[1 - side].receive(connection, payload, now)

    carry(heard)
    assert (joiner.replica.source is None) == (heard == 1_000)
    for now in range(1_000, SILENCE_MS + 2 * Pace().root_sync_interval_ms, 1_000):
        for end in ends:
            end.tick(now)
        carry(1_000 if now > SILENCE_MS else 0)
    assert [site.replica.source for site in sites] == [None, None], "the log has come to its end"
    assert log_of(joiner) == log_of(source)
    source.submit(b"news")
    ends[0].publish(now)
    carry(1_000)
    assert log_of(joiner) == log_of(source)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: replace(body, intentions=body.intentions[1:]), "without its intention"),
        (lambda body: replace(body, records=body.records[1:]), "it follows"),
        (lambda body: replace(body, records=(), intentions=(), done=False), "no record"),
        (lambda body: replace(body, records=(b"\xff",)), "has no end"),
        (lambda body: replace(body, records=(b"\x0a\x00",) * 3), "16 bytes of store id"),
        (lambda body: replace(body, records=_forged(body.records)), "2: the signature does not"),
        (lambda body: replace(body, records=_unsigned(body.records)), "3: neither it nor a later"),
        (lambda body: replace(body, intentions=(b"x",)), "witness log"),
    ],
    ids=["intention", "gap", "empty", "record", "content", "signature", "unsigned", "envelope"],
)
def test_a_copy_that_does_not_verify_ends(
    change: Callable[[BootstrapResponse], BootstrapResponse], reason: str
) -> None:
    _, source, joiner = copied(3)
    peer = Peer("p", dialled=True, public_key=source.store.author)
    (answer,) = source.replica.serve(Peer("p"), BootstrapRequest(STORE))
    assert isinstance(answer.body, BootstrapResponse)
    joiner.replica.source = source.store.author
    comparison = joiner.replica.compare(peer, Why.MEETING)
    assert comparison is not None
    comparison.start()
    with pytest.raises(PeerError, match=reason):
        comparison.receive(change(answer.body))
    assert comparison.ended() is None


def _forged(records: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the records with a bit of the second signature changed."""
    first, second, third = records
    return first, second[:-1] + bytes([second[-1] ^ 1]), third


def _unsigned(records: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple([WitnessRecord(WitnessRecord.decode(one).content).encode() for one in records])


def lots_of(source: Site, limit: int = 10_000) -> list[int]:
    """Return how many records each lot of a copy has; the source sends them one by one."""
    found = []
    node = source.store.author
    comparison = LogComparison(STORE, node, limit, lambda: source.replica.probe, lambda *_: None)
    step = comparison.start()
    while step.say:
        (request,) = step.say
        for answer in source.replica.serve(Peer("p"), request):
            step = comparison.receive(answer.body)
            found += [len(offer.parts) for offer in step.offers]
    return found


ONE_BY_ONE = SendLimits(log_batch=1)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_records_of_a_copied_log_are_committed_in_lots(more: int) -> None:
    source = Site(limits=ONE_BY_ONE)
    for number in range(LOT_RECORDS + more):
        source.submit(b"%d" % number)
    assert lots_of(source) == [LOT_RECORDS + min(more, 0)] + [1] * (more > 0)
    # The end of an answer ends a lot: the next request is made behind what is verified.
    assert lots_of(source, LOT_RECORDS - 2) == [LOT_RECORDS - 2, 2 + more]


@pytest.mark.parametrize(("room", "lots"), [(-1, [5]), (0, [4, 1]), (1, [4, 1])])
def test_lots_are_bounded_in_bytes(room: int, lots: list[int]) -> None:
    written = Site()
    envelope = _written(written.store, bytes(100_000)).encode()
    with written.store.read() as log:
        (entry,) = log.entries(1)
    beside = len(entry.record.content) + len(envelope) - 100_000
    size = LOT_BYTES // 4 - beside
    source = Site(limits=ONE_BY_ONE)
    for length in (size, size, size, size + room, 1):
        _written(source.store, bytes(length))
    assert lots_of(source) == lots


def test_records_with_unknown_fields_count_towards_a_lot() -> None:
    """A peer that signs none of its records is not heard on and on."""
    _, source, joiner = copied(1)
    (answer,) = source.replica.serve(Peer("p"), BootstrapRequest(STORE))
    assert isinstance(answer.body, BootstrapResponse)
    content = WitnessRecord.decode(answer.body.records[0]).content
    joiner.replica.source = source.store.author
    comparison = joiner.replica.compare(Peer("p", True, source.store.author), Why.MEETING)
    assert comparison is not None
    comparison.start()
    padded = content + b"\x2a" + varint(LOT_BYTES // 2) + bytes(LOT_BYTES // 2)
    body = replace(answer.body, records=(WitnessRecord(padded).encode(),), done=False)
    assert comparison.receive(body) == Step()
    with pytest.raises(PeerError, match="it follows"):
        comparison.receive(body)


def test_what_waited_here_is_pushed_once_it_is_witnessed() -> None:
    _, source, joiner = copied(3)
    begun = joiner.replica.probe
    with source.store.read() as log:
        first, second, third = [Part(one.signed.hash, one.signed.encode()) for one in log.entries()]
    # What waits has no part in the offer by which it is witnessed.
    joiner.replica.absorb(Offer(None, (third, second)), Peer("p"), asked=True)
    joiner.replica.absorb(Offer(None, (first,)), Peer("p"), asked=True)
    found = joiner.replica.news(Peer("q", True, None), [begun])
    assert found is not None
    assert [part.hash for offer in found.offers for part in offer.parts] == log_of(source)
    # Who brought it has it.
    found = joiner.replica.news(Peer("p", True, None), [begun])
    assert found is not None
    assert not any(offer.parts for offer in found.offers)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_who_brought_what_waits_is_known_of_so_many(more: int) -> None:
    _, source, joiner = copied(SMALL.arrivals + 1 + more)
    with source.store.read() as log:
        first, *waiting = [Part(one.signed.hash, one.signed.encode()) for one in log.entries()]
    joiner.replica.absorb(Offer(None, tuple(waiting)), Peer("p"), asked=True)
    begun = joiner.replica.probe
    joiner.replica.absorb(Offer(None, (waiting[-1],)), Peer("p"), asked=True)
    assert joiner.replica.probe == begun
    assert len(joiner.replica._brought) == SMALL.arrivals + min(more, 0)
    joiner.replica.absorb(Offer(None, (first,)), Peer("p"), asked=True)
    assert not joiner.replica._brought


def test_what_is_not_published_yet_is_not_stated() -> None:
    _, source, _ = copied(0)
    begun, peer = source.replica.probe, Peer("q", True, None)
    source.submit(b"by another process")
    assert source.replica.news(peer, [begun]) is None
    source.replica.publish()
    found = source.replica.news(peer, [begun])
    assert found is not None
    (offer,) = found.offers
    assert (len(offer.parts), offer.probe) == (1, source.replica.probe)


def test_what_nobody_has_signed_is_not_pushed_on() -> None:
    _, _, joiner = copied(0)
    begun = joiner.replica.probe
    signed = signed_by(7, b"good")
    padded = Part(signed.hash, signed.encode() + b"\x1a\x01x")  # a field that is skipped
    assert envelope_hash(padded.data) == signed.hash
    joiner.replica.absorb(Offer(None, (padded,)), Peer("p"), asked=True)
    found = joiner.replica.news(Peer("q", True, None), [begun])
    assert found is not None
    assert [offer.parts for offer in found.offers] == [(Part(signed.hash, signed.encode()),)]


def test_records_of_another_signer_are_refused() -> None:
    _, source, joiner = copied(3)
    (answer,) = source.replica.serve(Peer("p"), BootstrapRequest(STORE))
    joiner.replica.source = joiner.store.author
    comparison = joiner.replica.compare(
        Peer("p", dialled=True, public_key=joiner.store.author), Why.MEETING
    )
    assert comparison is not None
    with pytest.raises(PeerError, match="the signature does not verify"):
        comparison.receive(answer.body)


def ranges_of(*messages: RangeMessage) -> PeerMessage:
    return PeerMessage(reconcile_payload=ReconcilePayload(STORE, messages))


@pytest.mark.parametrize("opened", [SESSIONS_MAX - 1, SESSIONS_MAX, SESSIONS_MAX + 1])
def test_a_peer_may_have_two_comparisons_open(opened: int) -> None:
    heard = Talk()
    whole = RangeMessage(fingerprint=RangeFingerprint(bytes(32), b"\xff" * 32, bytes(32), 1))
    rounds = [heard.hear(number + 1, ranges_of(whole)) for number in range(opened)]
    assert sum(bool(events) for events in rounds) == min(opened, SESSIONS_MAX)


@pytest.mark.parametrize("request_", [BootstrapRequest(STORE), JoinRequest(bytes(32), STORE)])
def test_ranges_in_the_place_of_another_answer_end_the_exchange(request_: Message) -> None:
    heard = Talk()
    exchange = heard.own.send(talk.Compare(Step((request_,))), 0)
    assert exchange == 1
    fault, ended = heard.hear(-1, ranges_of(RangeMessage(done=True)))
    assert isinstance(fault, talk.Fault)
    assert isinstance(ended, talk.Ended)
    late = heard.hear(-1, PeerMessage(join_response=JoinResponse(bytes(32), STORE)))
    assert not late


BODIES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda *fields: b"".join(
            varint(number << 3 | 2) + varint(len(body)) + body for number, body in fields
        ),
        *[st.tuples(st.integers(1, 10), st.binary(max_size=20))] * 2,
    ),
)


@given(st.lists(st.tuples(st.integers(-4, 4), BODIES), max_size=8))
def test_no_frame_of_a_peer_raises(frames: list[tuple[int, bytes]]) -> None:
    site = Site()
    replicator = Replicator(site.replica, WeaverProtocol(STORE))
    replicator.open("c", 0, outbound=True)
    for exchange, body in frames:
        zigzag = exchange * 2 if exchange >= 0 else -exchange * 2 - 1
        replicator.receive("c", varint(zigzag) + body, 0)
    replicator.closed("c", 0)
    assert site.count() == 0
