"""Charging: what merges cost is charged to the key that sent them, never to another one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from datalattice.apps.grid.assets import content_hash
from datalattice.apps.grid.lattice import STORAGE_LATTICE
from datalattice.cells import (
    Blob,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    decode_parts,
    encode_message,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.errors import WorkExceeded
from datalattice.lattice import MergeContext, discard, root_lattice
from datalattice.limits import CHARGE_LIMITS, WORK_LIMITS
from datalattice.store import MemoryStore
from datalattice.sync import (
    Absorbed,
    Charges,
    HostingPolicy,
    LatticeProtocol,
    LatticeReplica,
    Offer,
    Peer,
    Probe,
    Replicator,
)
from datalattice.sync.lattice.incoming import Incoming
from datalattice.testing.cells_kit import CellDict
from datalattice.testing.clocks import StoppedClock
from datalattice.wire import encode_announcement, encode_ping

BURST = CHARGE_LIMITS.per_s * CHARGE_LIMITS.burst_s
KV = Keyword("kv")
OWNER, OTHER = KeyPair(b"o" * 32), KeyPair(b"p" * 32)
START_MS = 1_800_000_000_000


def spend(charges: Charges, peer: str, ticks: int) -> None:
    """Merge something that costs so many ticks, or all that there are."""
    work = charges.open(peer)
    with contextlib.suppress(WorkExceeded):
        work.spend(ticks)
    charges.close(peer, work)


def account(peer: str = "s", *, wanted: bool = False) -> tuple[StoppedClock, Charges]:
    clock = StoppedClock(START_MS)
    charges = Charges(clock)
    charges.introduce(peer, b"k" * 32, is_wanted=wanted)
    return clock, charges


def set_to(clock: StoppedClock, ms: int) -> None:
    clock.now = ms


def used_up(charges: Charges, peer: str, ticks: int) -> None:
    while ticks:
        step = min(ticks, WORK_LIMITS.start)
        spend(charges, peer, step)
        ticks -= step


@pytest.mark.parametrize(
    ("ticks", "wait_ms"), [(BURST - 1, 0), (BURST, 0), (BURST + 250, 1), (2 * BURST, 2_000)]
)
def test_a_stranger_waits_until_its_share_has_grown_back(ticks: int, wait_ms: int) -> None:
    clock, charges = account()
    used_up(charges, "s", ticks)
    assert charges.wait_ms("s") == wait_ms
    set_to(clock, START_MS + wait_ms)
    assert charges.wait_ms("s") == 0
    set_to(clock, START_MS - 60_000)  # a clock that is set back neither gives nor takes
    assert charges.wait_ms("s") == 0


def test_a_key_has_one_share_on_all_its_connections_and_others_have_theirs() -> None:
    _, charges = account("one")
    charges.introduce("two", b"k" * 32, is_wanted=False)
    charges.introduce("three", b"other key", is_wanted=False)
    used_up(charges, "one", BURST + 1_000)
    charges.leave("one")
    charges.introduce("four", b"k" * 32, is_wanted=False)
    assert charges.wait_ms("two") == charges.wait_ms("four") > 0
    assert charges.wait_ms("three") == 0


def test_messages_that_say_next_to_nothing_use_up_a_share() -> None:
    clock, charges = account()
    count, rest = divmod(BURST, CHARGE_LIMITS.message)
    for _ in range(count):
        charges.hear("s")
    assert charges.wait_ms("s") == 0
    assert charges._account("s").spent == BURST - rest
    for _ in range(100):
        charges.hear("s")
    wait_ms = charges.wait_ms("s")
    assert wait_ms == (100 * CHARGE_LIMITS.message - rest) * 1_000 // CHARGE_LIMITS.per_s
    set_to(clock, START_MS + wait_ms)
    assert charges.wait_ms("s") == 0


@pytest.mark.parametrize("wanted", [False, True])
def test_of_each_message_and_commit_the_sender_is_charged(*, wanted: bool) -> None:
    replica = LatticeReplica(MemoryStore(), root_lattice(), hosting=HostingPolicy())
    protocol = LatticeProtocol(StoppedClock(START_MS))
    node = Replicator(replica, protocol)
    replica.charges.introduce("s", "s", is_wanted=wanted, is_known=False)
    node.open("s", 0, outbound=False)
    message = 0 if wanted else CHARGE_LIMITS.message
    before = replica.charges._account("s").spent
    for number in range(3):
        node.receive("s", encode_ping(number), number)
    assert replica.charges._account("s").spent - before == 3 * message
    content = Index.of([(value_hash("a"), "a")])
    for times in (1, 2):  # what is here already is not committed again
        node.receive("s", encode_announcement([Keyword("data")], content, []), times)
        spent = replica.charges._account("s").spent - before
        assert CHARGE_LIMITS.commit <= spent - (3 + times) * message < 2 * CHARGE_LIMITS.commit


def test_a_wanted_peer_never_waits() -> None:
    _, charges = account(wanted=True)
    used_up(charges, "s", 3 * BURST)
    assert charges.wait_ms("s") == 0
    assert charges.open("s").left == CHARGE_LIMITS.wanted_credit


def test_bytes_that_were_brought_pay_first_and_once() -> None:
    _, charges = account()
    charges.bring("s", 10_000)
    work = charges.open("s")
    assert work.offered == CHARGE_LIMITS.credit + 10_000
    work.spend(9_000)
    charges.close("s", work)
    assert charges.open("s").offered == CHARGE_LIMITS.credit + 1_000
    used_up(charges, "s", 1_000 + BURST)
    assert charges.wait_ms("s") == 0
    used_up(charges, "s", 500)
    assert charges.wait_ms("s") == 2


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_bytes_are_kept_up_to_a_bound(more: int) -> None:
    _, charges = account()
    bound = CHARGE_LIMITS.brought_max
    charges.bring("s", bound + more)
    assert charges.open("s").offered == CHARGE_LIMITS.credit + min(bound, bound + more)


def test_who_exceeded_its_account_has_next_to_no_credit_for_a_while() -> None:
    clock, charges = account()
    spend(charges, "s", CHARGE_LIMITS.credit + 1)
    assert charges.open("s").left == 0
    charges.bring("s", CHARGE_LIMITS.exceeded_start - 1)
    assert charges.open("s").left == CHARGE_LIMITS.exceeded_start - 1
    charges.bring("s", 2)
    work = charges.open("s")
    assert (work.left, work.limits.grants_max) == (CHARGE_LIMITS.exceeded_start, 0)
    set_to(clock, START_MS + CHARGE_LIMITS.exceeded_ms - 1)
    assert charges.open("s").left == CHARGE_LIMITS.exceeded_start
    set_to(clock, START_MS + CHARGE_LIMITS.exceeded_ms)
    assert charges.open("s").left == CHARGE_LIMITS.credit


@pytest.mark.parametrize(("wanted", "megabytes"), [(False, 8), (True, 16)])
def test_honest_content_of_many_equal_bytes_is_taken(wanted: bool, megabytes: int) -> None:
    _, charges = account(wanted=wanted)
    content = Blob.of(bytes(megabytes << 20))
    other = CellDict().kept(Index.of([(content_hash(content), content)]))
    context = MergeContext().for_foreign(discard, charges.open("s"))
    assert STORAGE_LATTICE.merge(Index(), other, context) == other


def test_senders_are_bounded_and_who_was_quiet_for_longest_goes() -> None:
    charges = Charges(StoppedClock(START_MS), CHARGE_LIMITS._replace(senders_max=2))
    for peer in ("a", "b", "a", "c"):
        charges.bring(peer, 10)
    assert [charges.open(peer).offered - CHARGE_LIMITS.credit for peer in "ca"] == [10, 20]
    assert charges.open("b").offered == CHARGE_LIMITS.credit


# --- in a replica ------------------------------------------------------------------------------


def database(count: int, tag: str) -> Value:
    time = ord(tag)
    rows = [(f"key {n}", Vector.of((f"{tag} {n}" + "x" * 90, 0, time, None))) for n in range(count)]
    return Map.of([("db", Index.of(rows))])


def stated(value: Value, path: Sequence[Value] = ()) -> Offer:
    found, parts = decode_parts(encode_message(value), ordered=False)
    return Offer(Probe(value_hash(found), Incoming(tuple(path), found, parts)))


def slots(*values: tuple[KeyPair, Value]) -> Index:
    return Index.of(
        [(KV, Map.of([(key.public_key, Signed.sign(key, value)) for key, value in values]))]
    )


def node() -> LatticeReplica:
    context = MergeContext(key_pair=KeyPair(b"n" * 32))
    replica = LatticeReplica(MemoryStore(), root_lattice(), context)
    replica.charges.limits = CHARGE_LIMITS._replace(credit=0)
    replica.charges.introduce("friend", b"f" * 32, is_wanted=True, is_known=True)
    return replica


def kinds(absorbed: Absorbed) -> dict[str, int]:
    return {one.kind: one.count for one in absorbed.reports}


COUNT = 900
"""Entries whose merge costs more than a message may that brings nothing."""


def test_what_was_planted_earns_nothing_for_a_message_of_few_bytes() -> None:
    replica = node()
    first, second = database(COUNT, "a"), database(COUNT, "b")
    assert replica.absorb(stated(slots((OWNER, first), (OTHER, second))), Peer("planter")).changed
    swap = slots((OWNER, second))
    message = encode_message(swap, replica.store.has)
    assert len(message) < 1_000
    offer = Offer(Probe(value_hash(swap), Incoming((), *decode_parts(message, ordered=False))))
    absorbed = replica.absorb(offer, Peer("stranger"))
    assert kinds(absorbed) == {"too-costly": 1}
    limit = WORK_LIMITS.start + 1_000 + 2 * WORK_LIMITS.grant
    assert replica.charges._account("stranger").spent < limit
    # The same again costs a look-up, whoever states it with no more.
    assert kinds(replica.absorb(offer, Peer("another"))) == {"too-costly": 1}
    assert replica.charges._account("another").spent < 500
    # A wanted peer is taken at its word, and so is whoever brings the bytes.
    assert replica.absorb(offer, Peer("friend")).changed


def test_who_brings_the_bytes_of_a_large_merge_is_heard() -> None:
    replica = node()
    assert replica.absorb(stated(slots((OWNER, database(COUNT, "a")))), Peer("one")).changed
    absorbed = replica.absorb(stated(slots((OWNER, database(COUNT, "b")))), Peer("two"))
    assert absorbed.changed
    assert "too-costly" not in kinds(absorbed)
    assert replica.charges._account("two").spent > WORK_LIMITS.start
    assert replica.charges.wait_ms("two") == 0
