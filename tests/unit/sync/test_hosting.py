"""Whose data a replica takes and how much of it: lists, quotas, forgetting."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nacl import bindings

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    MessageCells,
    Signed,
    Value,
    Work,
    branch_hashes,
    decode_parts,
    encode,
    encode_message,
    is_embedded,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.errors import Corruption, UsageError
from datalattice.lattice import (
    IndexLattice,
    MaxLattice,
    MergeContext,
    assoc_in,
    get_in,
    root_lattice,
)
from datalattice.limits import CHARGE_LIMITS
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.sync import (
    Absorbed,
    HostingPolicy,
    LatticeReplica,
    Offer,
    Peer,
    Probe,
    UnsignedPolicy,
    owner_text,
)
from datalattice.sync.lattice.incoming import Incoming
from datalattice.sync.lattice.peerviews import SECTIONS_MAX
from datalattice.sync.lattice.usage import OwnerSlot
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.steps import steps_of

OWN = KeyPair(b"o" * 32)
ANN = KeyPair(b"a" * 32)
BOB = KeyPair(b"b" * 32)
QUEUE = Keyword("queue")
DATA = Keyword("data")
KV = Keyword("kv")


def writer(key_pair: KeyPair = ANN) -> LatticeReplica:
    return LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=key_pair))


def offer(replica: LatticeReplica, *texts: str, key_pair: KeyPair = ANN) -> Value:
    """Append records to a queue of the key; return the announced value."""
    Topics.at(replica.cursor, key_pair.public_key).partition("log", 0).offer_many(texts)
    replica.publish()
    return replica.announced


def host(
    policy: HostingPolicy, store: Store | None = None, clock: StoppedClock | None = None
) -> LatticeReplica:
    return LatticeReplica(
        store or MemoryStore(),
        root_lattice(),
        MergeContext(key_pair=OWN),
        hosting=policy,
        clock=clock or StoppedClock(1_000_000),
    )


def absorb(
    replica: LatticeReplica, value: Value, peer: str = "peer", path: tuple[Value, ...] = ()
) -> Absorbed:
    found, parts = decode_parts(encode_message(value))
    return replica.absorb(Offer(Probe(value_hash(found), Incoming(path, found, parts))), Peer(peer))


def slot(value: Value, key_pair: KeyPair = ANN, section: Keyword = QUEUE) -> Value:
    return get_in(value, [section, key_pair.public_key])


def size_of(value: Value) -> int:
    """Return the bytes of the distinct cells of a value, counted in the simplest way."""
    cells: dict[bytes, int] = {}
    found, parts = decode_parts(encode_message(value))
    encodings = dict(parts.encodings())
    front = [encode(found)]
    if not is_embedded(found):
        cells[value_hash(found)] = len(encode(found))
    while front:
        for hash in branch_hashes(front.pop()):
            if hash not in cells:
                cells[hash] = len(encodings[hash])
                front.append(encodings[hash])
    return sum(cells.values())


def text(number: int, size: int = 300) -> str:
    return f"text {number} ".ljust(size, "x")


def kinds(absorbed: Absorbed) -> dict[str, int]:
    return {one.kind: one.count for one in absorbed.reports}


def used(replica: LatticeReplica, key_pair: KeyPair = ANN, section: str = "queue") -> int:
    assert replica.hosting is not None
    return replica.hosting.quotas.usage.used_bytes(OwnerSlot(section, key_pair.public_key))


def recount(replica: LatticeReplica) -> None:
    hosting = replica.hosting
    assert hosting is not None
    found = hosting.quotas.inexact(replica.root)
    counts = [hosting.quotas.usage.exactly(slot, value) for slot, value in found]
    hosting.quotas.recounted(replica.root, counts)


def test_the_usage_of_a_first_value_is_the_bytes_of_its_distinct_cells() -> None:
    value = offer(writer(), *(text(n) for n in range(40)), text(0))
    replica = host(HostingPolicy())
    assert absorb(replica, value).changed
    assert used(replica) == size_of(slot(value))


def test_each_later_value_adds_what_it_adds_and_a_recount_is_exact() -> None:
    source, replica = writer(), host(HostingPolicy())
    for number in range(30):
        absorb(replica, offer(source, *(text(10 * number + n) for n in range(10))))
    exact = size_of(slot(source.announced))
    assert exact < used(replica) < 1.5 * exact, "cells that were replaced count until a recount"
    recount(replica)
    assert used(replica) == exact
    recount(replica)
    assert used(replica) == exact


@pytest.mark.parametrize(("excess", "is_taken"), [(-1, True), (0, True), (1, False)])
def test_a_value_is_taken_up_to_the_quota_of_its_owner(excess: int, is_taken: bool) -> None:
    value = offer(writer(), *(text(n) for n in range(40)))
    replica = host(HostingPolicy(owner_bytes=size_of(slot(value)) - excess))
    absorbed = absorb(replica, value)
    assert absorbed.changed is is_taken
    assert same(slot(replica.root), slot(value) if is_taken else None)
    assert ("quota-exceeded" in kinds(absorbed)) is not is_taken


def test_over_the_quota_own_stays_and_every_other_owner_is_merged() -> None:
    source = writer()
    small = offer(source, text(1))
    replica = host(HostingPolicy(owner_bytes=2 * size_of(slot(small))))
    absorb(replica, small)
    large = offer(source, *(text(n) for n in range(100)))
    both = root_lattice().merge(large, offer(writer(BOB), "hello", key_pair=BOB))
    absorbed = absorb(replica, both)
    assert absorbed.changed
    assert same(slot(replica.root), slot(small))
    assert same(slot(replica.root, BOB), slot(both, BOB))
    [report] = [one for one in absorbed.reports if one.kind == "quota-exceeded"]
    assert ANN.public_key.hex() in report.text
    assert "owner_bytes" in report.text
    assert not report.is_refusal, "an honest relay is not cut for what an owner did"


def test_a_quota_counts_all_sections_of_an_owner_together() -> None:
    source = writer()
    value = offer(source, *(text(n) for n in range(30)))
    Database.at(source.cursor, ANN.public_key, "db").update({text(n): text(n) for n in range(9)})
    source.publish()
    whole = source.announced
    queue, kv = size_of(slot(whole)), size_of(slot(whole, section=Keyword("kv")))
    replica = host(HostingPolicy(owner_bytes=queue + kv))
    absorb(replica, value)
    assert absorb(replica, whole).changed
    short = host(HostingPolicy(owner_bytes=queue + kv - 1))
    absorb(short, value)
    assert "quota-exceeded" in kinds(absorb(short, whole))
    assert slot(short.root, section=Keyword("kv")) is None


def test_cells_that_two_owners_share_are_charged_to_both() -> None:
    texts = [text(n, 5_000) for n in range(20)]
    ann, bob = offer(writer(), *texts), offer(writer(BOB), *texts, key_pair=BOB)
    replica = host(HostingPolicy())
    absorb(replica, ann)
    absorb(replica, bob)
    assert used(replica, ANN) == size_of(slot(ann)) > 50_000
    assert used(replica, BOB) == size_of(slot(bob, BOB)) > 50_000


def test_strangers_have_a_quota_together_and_allowed_owners_have_none() -> None:
    ann = offer(writer(), *(text(n) for n in range(40)))
    bob = offer(writer(BOB), *(text(n) for n in range(40)), key_pair=BOB)
    quota = size_of(slot(ann)) + 100
    replica = host(HostingPolicy(strangers_bytes=quota))
    assert absorb(replica, ann).changed
    refused = absorb(replica, bob)
    assert not refused.changed
    assert "strangers_bytes" in refused.reports[0].text
    assert replica.hosting is not None
    replica.hosting.rules.table.allow(BOB.public_key.hex())
    replica.hosting.quotas.decided()
    assert absorb(replica, bob).changed
    listed = host(HostingPolicy(strangers_bytes=quota, allow=(BOB.public_key.hex(),)))
    absorb(listed, ann)
    assert absorb(listed, bob).changed


def test_own_keys_have_no_quota() -> None:
    value = offer(writer(OWN), *(text(n) for n in range(40)), key_pair=OWN)
    replica = host(HostingPolicy(owner_bytes=10, strangers_bytes=10, owners="known"))
    assert absorb(replica, value).changed


def test_the_number_of_cells_is_bounded_too() -> None:
    value = offer(writer(), *(text(n) for n in range(40)))
    assert absorb(host(HostingPolicy(owner_cells=60)), value).changed
    absorbed = absorb(host(HostingPolicy(owner_cells=20)), value)
    assert kinds(absorbed) == {"quota-exceeded": 1}
    assert "would have more than 20 cells in :queue (owner_cells)" in absorbed.reports[0].text


def test_it_is_said_of_all_strangers_when_together_they_have_no_room() -> None:
    first, second = (offer(writer(key), text(1), key_pair=key) for key in (ANN, BOB))
    used = size_of(slot(first))
    replica = host(HostingPolicy(strangers_bytes=used))
    assert absorb(replica, first).changed
    [report] = absorb(replica, second).reports
    assert BOB.public_key.hex() in report.text
    assert f"has no room: all strangers have {used} bytes" in report.text


def test_a_value_that_would_not_fit_has_the_slot_counted_anew_once_a_minute() -> None:
    clock = StoppedClock(1_000_000)
    source = writer()
    queue = Topics.at(source.cursor, ANN.public_key).partition("log", 0)
    offer(source, *(text(n) for n in range(64)))
    quota = int(1.6 * size_of(slot(source.announced)))
    replica = host(HostingPolicy(owner_bytes=quota), clock=clock)
    absorb(replica, source.announced)
    for number in range(1, 12):  # what is truncated makes room, which only a count finds out
        clock.now += 60_000
        queue.truncate(16 * number)
        absorbed = absorb(replica, offer(source, *(text(64 + 16 * number + n) for n in range(16))))
        assert absorbed.changed, number
    queue.truncate(16 * 13)
    full = absorb(replica, offer(source, *(text(n) for n in range(300, 400))))
    assert not full.changed
    queue.truncate(16 * 17)
    small = offer(source, text(1))
    assert size_of(slot(small)) < quota
    assert not absorb(replica, small).changed, "it was counted less than a minute ago"
    clock.now += 60_000
    assert absorb(replica, small).changed


def test_who_is_not_the_owner_cannot_use_up_the_room_of_the_owner() -> None:
    forged = offer(writer(BOB), *(text(n) for n in range(100)), key_pair=BOB)
    stolen = assoc_in(None, [QUEUE, ANN.public_key], slot(forged, BOB), root_lattice())
    honest = offer(writer(), text(1))
    replica = host(HostingPolicy(owner_bytes=size_of(slot(honest))))
    absorbed = absorb(replica, stolen)
    assert "quota-exceeded" not in kinds(absorbed)
    assert used(replica) == 0
    assert absorb(replica, honest).changed


# --- unsigned data --------------------------------------------------------------------------------


def content(*texts: str) -> Value:
    entries = [(value_hash(one), one) for one in texts]
    return Index.of({DATA: Index.of(entries)})


def test_what_strangers_add_to_unsigned_data_is_bounded_in_all() -> None:
    texts = [text(n) for n in range(40)]
    value = content(*texts)
    room = size_of(get_in(value, [DATA]))
    policy = HostingPolicy(unsigned={"data": UnsignedPolicy("any", room)})
    replica = host(policy)
    assert absorb(replica, value).changed
    refused = absorb(replica, content(*texts, text(99)), peer="another stranger")
    assert not refused.changed
    assert "unsigned.data.strangers_bytes" in refused.reports[0].text
    assert replica.hosting is not None
    replica.charges.introduce("friend", "friend", is_wanted=False, is_known=True)
    assert absorb(replica, content(text(99)), peer="friend").changed
    assert absorb(replica, offer(writer(), "signed data has room of its own")).changed


def test_what_strangers_added_is_bounded_by_what_is_there_after_a_recount() -> None:
    replica = host(HostingPolicy())
    absorb(replica, content(*(text(n) for n in range(40))))
    assert replica.hosting is not None
    slot = OwnerSlot("data", None)
    exact = replica.hosting.quotas.usage.used_bytes(slot)
    replica.hosting.quotas.usage.add(slot, 1_000_000, 10)
    recount(replica)
    assert replica.hosting.quotas.usage.used_bytes(slot) == exact


@pytest.mark.parametrize(
    ("sender", "peer", "is_taken"),
    [
        ("any", "stranger", True),
        ("known", "stranger", False),
        ("known", "friend", True),
        ("none", "friend", False),
    ],
)
def test_unsigned_data_is_taken_of_whom_the_policy_says(
    sender: str, peer: str, is_taken: bool
) -> None:
    replica = host(HostingPolicy(unsigned={"data": UnsignedPolicy(sender)}))
    assert replica.hosting is not None
    replica.charges.introduce("friend", "friend", is_wanted=False, is_known=True)
    assert absorb(replica, content("x" * 200), peer=peer).changed is is_taken


# --- who and what ---------------------------------------------------------------------------------


def test_refused_owners_and_sections_are_cut_before_anything_is_fetched() -> None:
    value = root_lattice().merge(
        offer(writer(), *(text(n) for n in range(40))),
        offer(writer(BOB), *(text(n) for n in range(40, 80)), key_pair=BOB),  # no cell in common
    )
    for policy in (HostingPolicy(refuse=(BOB.public_key.hex(),)), HostingPolicy(sections=("kv",))):
        replica = host(policy)
        before = set(replica.store._encodings)  # type: ignore[attr-defined]
        absorb(replica, value)
        fresh = set(replica.store._encodings) - before  # type: ignore[attr-defined]
        refused = set(branch_hashes(encode(slot(value, BOB)))) | {value_hash(slot(value, BOB))}
        assert not fresh & refused
        assert slot(replica.root, BOB) is None
        assert same(slot(replica.root), slot(value)) is (policy.sections is None)


def test_with_known_owners_only_wanted_and_allowed_ones_are_taken() -> None:
    value = root_lattice().merge(
        offer(writer(), "from Ann"), offer(writer(BOB), "from Bob", key_pair=BOB)
    )
    replica = host(HostingPolicy(owners="known"))
    assert replica.hosting is not None
    assert not absorb(replica, value).changed
    replica.hosting.rules.wanted = lambda: frozenset({ANN.public_key})
    absorb(replica, value)
    assert same(slot(replica.root), slot(value))
    assert slot(replica.root, BOB) is None
    replica.hosting.rules.table.allow(BOB.public_key.hex())
    absorb(replica, value)
    assert same(slot(replica.root, BOB), slot(value, BOB))


def test_a_value_at_a_path_that_is_refused_is_refused_with_a_reason() -> None:
    value = offer(writer(), "hello")
    replica = host(HostingPolicy(refuse=(ANN.public_key.hex(),)))
    path = (QUEUE, ANN.public_key)
    absorbed = absorb(replica, slot(value), path=path)
    assert not absorbed.changed
    assert "does not host" in absorbed.reports[0].text


# --- while it is fetched --------------------------------------------------------------------------


WINDOW = 254
"""Cells of one request."""


def fetch(replica: LatticeReplica, source: LatticeReplica, peer: str = "peer") -> Fetched:
    """State the root alone, and supply what is asked for, a window at a time."""
    fetched = Fetched()
    top = decode_parts(encode(source.announced))
    probe = Probe(source.announced_hash, Incoming((), *top))
    absorbed = replica.absorb(Offer(probe), Peer(peer))
    wanted = list(absorbed.missing)
    while True:
        for one in absorbed.reports:
            fetched.kinds[one.kind] = fetched.kinds.get(one.kind, 0) + one.count
        if not wanted:
            return fetched
        window, wanted = wanted[:WINDOW], wanted[WINDOW:]
        parts = [part for part in source.views.supply(window) if part is not None]
        fetched.rounds += 1
        fetched.cells.update({part.hash: len(part.data) for part in parts})
        absorbed = replica.absorb(Offer(None, tuple(parts)), Peer(peer))
        unwanted = set(absorbed.unwanted)
        wanted = [hash for hash in wanted if hash not in unwanted]
        wanted += [hash for hash in absorbed.missing if hash not in wanted]


@dataclass
class Fetched:
    """What a replica asked for."""

    cells: dict[bytes, int] = field(default_factory=dict)
    rounds: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


def cells_of(value: Value) -> set[bytes]:
    found, parts = decode_parts(encode_message(value))
    return {*parts.encodings(), value_hash(found)}


def joined(*values: Value) -> LatticeReplica:
    """Return a replica that has all of these."""
    replica = LatticeReplica(MemoryStore(), root_lattice())
    for value in values:
        absorb(replica, value)
    return replica


def test_cells_of_a_refused_owner_are_not_fetched_when_a_root_is_stated_alone() -> None:
    source = joined(
        offer(writer(), *(text(n) for n in range(300))),
        offer(writer(BOB), *(text(n) + "b" for n in range(300)), key_pair=BOB),
    )
    replica = host(HostingPolicy(refuse=(BOB.public_key.hex(),)))
    fetched = fetch(replica, source)
    assert same(slot(replica.root), slot(source.root))
    assert slot(replica.root, BOB) is None
    assert not fetched.cells.keys() & cells_of(slot(source.root, BOB))
    assert replica.intake.count == replica.intake.size_bytes == 0
    assert fetch(replica, source).cells.keys().isdisjoint(cells_of(slot(source.root)))


def test_a_peer_that_hosts_more_costs_one_statement_and_no_cells() -> None:
    bob = writer(BOB)
    source = joined(
        offer(writer(), *(text(n) for n in range(40))),
        offer(bob, *(text(n) for n in range(40)), key_pair=BOB),
    )
    replica = host(HostingPolicy())
    assert replica.hosting is not None
    replica.hosting.rules.table.refuse(BOB.public_key.hex(), None, "")
    assert fetch(replica, source).cells
    top = decode_parts(encode(source.announced))
    stated = Offer(Probe(source.announced_hash, Incoming((), *top)))
    for _ in range(3):
        absorbed = replica.absorb(stated, Peer("peer"))
        assert absorbed.missing == []
        assert absorbed.finished == [source.announced_hash]
        assert [probe.key for _, probe in absorbed.holds] == [replica.announced_hash]
    absorb(source, offer(bob, "more", key_pair=BOB))
    assert fetch(replica, source).cells.keys().isdisjoint(cells_of(slot(source.root, BOB)))
    replica.hosting.rules.table.host(BOB.public_key.hex())
    replica.hosting.quotas.decided()
    fetch(replica, source)
    assert same(slot(replica.root, BOB), slot(source.root, BOB))


def test_evidence_counts_for_its_owner_and_goes_before_a_value_is_refused() -> None:
    first, second = writer(), writer()
    common = offer(first, *(text(n) for n in range(10)))
    absorb(second, common)
    one = offer(first, *(text(n) + "one" for n in range(60)))
    other = offer(second, *(text(n) + "other" for n in range(60)))
    replica = host(HostingPolicy())
    absorb(replica, one)
    absorb(replica, other)
    evidence, hosting = replica.evidence, replica.hosting
    assert hosting is not None
    kept = evidence.bytes_of(ANN.public_key)
    assert kept > 10_000
    assert evidence.bytes_of(BOB.public_key) == 0
    winner = first if same(slot(replica.root), slot(one)) else second
    recount(replica)
    now = used(replica)
    later = offer(winner, *(text(n) + "later" for n in range(20)))
    need = size_of(slot(later)) - size_of(slot(replica.root))
    hosting.rules.table.set_limit(ANN.public_key.hex(), now + kept + need // 2)
    assert absorb(replica, later).changed
    assert same(slot(replica.root), slot(later))
    assert evidence.bytes_of(ANN.public_key) == 0


def test_a_first_fetch_ends_at_the_quota_and_a_request_window() -> None:
    small = offer(writer(), *(text(n) for n in range(40)))
    source = joined(small, offer(writer(BOB), *(text(n) for n in range(5_000)), key_pair=BOB))
    quota = 300_000
    replica = host(HostingPolicy(owner_bytes=quota))
    fetched = fetch(replica, source)
    assert fetched.kinds["quota-exceeded"] >= 1
    theirs = cells_of(slot(source.root, BOB)) - cells_of(slot(small))
    bobs = sum(size for hash, size in fetched.cells.items() if hash in theirs)
    window = WINDOW * max(fetched.cells.values())
    assert quota < bobs < quota + window
    assert size_of(slot(source.root, BOB)) > 2 * (quota + window)
    assert same(slot(replica.root), slot(small)), "the others are merged"
    assert slot(replica.root, BOB) is None
    assert replica.intake.count == replica.intake.size_bytes == 0


def test_a_fetch_of_unsigned_data_ends_at_what_strangers_may_add() -> None:
    source = joined(content(*(text(n) for n in range(3_000))), offer(writer(), "hello"))
    policy = HostingPolicy(unsigned={"data": UnsignedPolicy("any", 200_000)})
    replica = host(policy)
    fetched = fetch(replica, source)
    assert fetched.kinds["quota-exceeded"] >= 1
    assert sum(fetched.cells.values()) < 400_000
    assert get_in(replica.root, [DATA]) is None
    assert same(slot(replica.root), slot(source.root))
    friendly = host(policy)
    assert friendly.hosting is not None
    friendly.charges.introduce("friend", "friend", is_wanted=False, is_known=True)
    fetch(friendly, source, "friend")
    assert same(friendly.root, source.root)


def test_many_owners_are_looked_at_in_few_rounds() -> None:
    keys = [KeyPair(number.to_bytes(32, "big")) for number in range(1, 301)]
    values = [offer(writer(key), f"of {n}", key_pair=key) for n, key in enumerate(keys)]
    merged = values[0]
    for value in values[1:]:
        merged = root_lattice().merge(merged, value)
    source = joined(merged)
    replica = host(HostingPolicy(refuse=(keys[7].public_key.hex(),)))
    fetched = fetch(replica, source)
    assert slot(replica.root, keys[7]) is None
    assert same(slot(replica.root, keys[8]), slot(source.root, keys[8]))
    assert fetched.rounds < 15


def test_a_newer_root_is_taken_though_the_upper_cells_of_the_last_are_being_fetched() -> None:
    source, replica = writer(), host(HostingPolicy())
    offer(source, *(text(n) for n in range(40)))

    def stated() -> Offer:
        top = decode_parts(encode(source.announced))
        return Offer(Probe(source.announced_hash, Incoming((), *top)))

    first = replica.absorb(stated(), Peer("peer"))
    assert first.missing
    old = [part for part in source.views.supply(first.missing) if part is not None]
    offer(source, "newer")
    missing = [
        *replica.absorb(stated(), Peer("peer")).missing,
        *replica.absorb(Offer(None, tuple(old)), Peer("peer")).missing,
    ]
    while missing:
        parts = [part for part in source.views.supply(missing) if part is not None]
        missing = list(replica.absorb(Offer(None, tuple(parts)), Peer("peer")).missing)
    assert same(slot(replica.root), slot(source.root))
    assert replica.intake.count == 0


def test_a_value_whose_upper_cells_cannot_be_had_is_given_up() -> None:
    source, replica = writer(), host(HostingPolicy())
    offer(source, *(text(n) for n in range(40)))
    top = decode_parts(encode(source.announced))
    probe = Probe(source.announced_hash, Incoming((), *top))
    missing = replica.absorb(Offer(probe), Peer("peer")).missing
    assert replica.intake.count == 1
    assert replica.absorb(Offer(None, (), tuple(missing)), Peer("peer")).dropped == [probe.key]
    assert replica.intake.count == replica.intake.size_bytes == 0


def test_a_root_that_is_known_by_its_hash_alone_is_fetched_from_its_top() -> None:
    source, replica = writer(), host(HostingPolicy())
    offer(source, *(text(n) for n in range(40)))
    hash = source.announced_hash
    probe = Probe(hash, Incoming((), None, MessageCells(None), hash))
    missing = list(replica.absorb(Offer(probe), Peer("peer")).missing)
    assert missing == [hash]
    while missing:
        parts = [part for part in source.views.supply(missing) if part is not None]
        missing = list(replica.absorb(Offer(None, tuple(parts)), Peer("peer")).missing)
    assert same(replica.root, source.root)


# --- forgetting -----------------------------------------------------------------------------------


def test_what_was_forgotten_goes_stays_out_and_comes_back_when_it_is_hosted_again() -> None:
    ann, bob = writer(), offer(writer(BOB), "from Bob", key_pair=BOB)
    value = offer(ann, *(text(n) for n in range(40)))
    replica = host(HostingPolicy())
    absorb(replica, value)
    absorb(replica, bob)
    assert replica.hosting is not None
    fork = replica.cursor.fork()
    replica.hosting.rules.table.refuse(ANN.public_key.hex(), None, "too much")
    assert replica.state.drop_refused()
    assert not replica.state.drop_refused()
    assert slot(replica.root) is None
    assert slot(replica.cursor.get()) is None
    assert same(slot(replica.root, BOB), slot(bob, BOB))
    assert used(replica) == 0
    assert not absorb(replica, value).changed, "peers keep theirs, and it is cut at the door"
    fork.path(QUEUE)
    fork.sync()
    replica.publish()
    assert slot(replica.root) is None, "nor does it come back out of a fork of the live value"
    replica.hosting.rules.table.host(ANN.public_key.hex())
    assert absorb(replica, value).changed
    assert same(slot(replica.root), slot(value))


def test_one_section_of_an_owner_can_be_forgotten() -> None:
    source = writer()
    offer(source, "hello")
    Database.at(source.cursor, ANN.public_key, "db").update({"a": 1})
    source.publish()
    replica = host(HostingPolicy())
    absorb(replica, source.announced)
    assert replica.hosting is not None
    replica.hosting.rules.table.refuse(ANN.public_key.hex(), "queue", "")
    replica.state.drop_refused()
    assert slot(replica.root) is None
    assert slot(replica.root, section=Keyword("kv")) is not None


def test_a_value_that_waits_for_cells_while_its_owner_is_forgotten_is_not_merged() -> None:
    source = writer()
    value = offer(source, *(text(n) for n in range(40)))
    replica = host(HostingPolicy())
    found, parts = decode_parts(encode(value))
    absorbed = replica.absorb(
        Offer(Probe(value_hash(value), Incoming((), found, parts))), Peer("peer")
    )
    assert absorbed.missing
    assert replica.hosting is not None
    replica.hosting.rules.table.refuse(ANN.public_key.hex(), None, "")
    missing = absorbed.missing
    while missing:
        given = tuple(part for part in source.views.supply(missing) if part is not None)
        missing = replica.absorb(Offer(None, given), Peer("peer")).missing
    assert slot(replica.root) is None


# --- what is kept ---------------------------------------------------------------------------------


def test_decisions_and_usage_outlive_the_process(tmp_path: Path) -> None:
    value = offer(writer(), *(text(n) for n in range(40)))
    with CellStore.open(tmp_path) as store:
        replica = host(HostingPolicy(), store)
        absorb(replica, value)
        assert replica.hosting is not None
        replica.hosting.rules.table.refuse(BOB.public_key.hex(), "kv", "spam")
        replica.hosting.rules.table.set_limit(ANN.public_key.hex(), 12)
        replica.hosting.quotas.usage.save()
    with CellStore.open(tmp_path) as store:
        replica = host(HostingPolicy(), store)
        assert replica.hosting is not None
        assert used(replica) == size_of(slot(value))
        assert replica.hosting.rules.table.limit(ANN.public_key.hex()) == 12
        assert replica.hosting.rules.refuses("kv", BOB.public_key)
        assert not replica.hosting.rules.refuses("queue", BOB.public_key)


def test_usage_that_was_lost_is_counted_when_it_is_needed(tmp_path: Path) -> None:
    source = writer()
    first = offer(source, *(text(n) for n in range(40)))
    with CellStore.open(tmp_path) as store:
        absorb(host(HostingPolicy(), store), first)  # its usage is never saved
    with CellStore.open(tmp_path) as store:
        replica = host(HostingPolicy(), store)
        assert used(replica) == 0
        second = offer(source, text(99))
        absorb(replica, second)
        assert size_of(slot(second)) <= used(replica) < size_of(slot(second)) + 5_000


def test_a_damaged_table_of_decisions_is_told_and_not_read_as_none(tmp_path: Path) -> None:
    with CellStore.open(tmp_path) as store:
        replica = host(HostingPolicy(), store)
        assert replica.hosting is not None
        replica.hosting.rules.table.refuse(BOB.public_key.hex(), None, "spam")
    file = tmp_path / "hosting"
    file.write_bytes(file.read_bytes().replace(b"spam", b"ham!"))
    with CellStore.open(tmp_path) as store, pytest.raises(Corruption, match="hosting"):
        host(HostingPolicy(), store)


# --- the disk -------------------------------------------------------------------------------------


class SmallDisk(MemoryStore):
    free = 1_000

    def free_bytes(self, *, ask: bool = False) -> int:
        return self.free


def test_below_the_reserve_data_of_others_is_refused_and_own_is_written() -> None:
    store = SmallDisk()
    replica = host(HostingPolicy(reserve_bytes=1_000), store)
    source = writer()
    assert absorb(replica, offer(source, "one")).changed
    store.free = 999
    absorbed = absorb(replica, offer(source, "two"))
    assert not absorbed.changed
    assert "disk-low" in kinds(absorbed)
    assert not any(one.is_refusal for one in absorbed.reports)
    offer(replica, "own", key_pair=OWN)
    assert slot(replica.root, OWN) is not None
    store.free = 1_000
    assert absorb(replica, source.announced).changed


# --- settings -------------------------------------------------------------------------------------


def test_a_policy_that_means_nothing_is_refused() -> None:
    for make in (
        lambda: HostingPolicy(owners="some"),
        lambda: HostingPolicy(owner_bytes=-1),
        lambda: UnsignedPolicy("friends"),
        lambda: UnsignedPolicy("any", -1),
    ):
        with pytest.raises(UsageError, match=r"^hosting: "):
            make()


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        (ANN.public_key, ANN.public_key.hex()),
        ("did:web:example.org", "did:web:example.org"),
        (Keyword("someone"), ":someone"),
    ],
)
def test_owners_are_named_as_people_write_them(owner: Value, shown: str) -> None:
    assert owner_text(owner) == shown


def test_a_policy_says_nothing_of_a_root_without_sections() -> None:
    lattice = IndexLattice(MaxLattice())
    replica = LatticeReplica(MemoryStore(), lattice, hosting=HostingPolicy(owners="known"))
    value = Index.of([(b"a", 1), (b"b", 2)])
    assert absorb(replica, value).changed
    assert same(replica.root, value)


# --- what a look at others' data costs ------------------------------------------------------------


def crowd(first: int, count: int = 1_000) -> Map:
    """Return the slots of many owners, each signed."""
    keys = [KeyPair(number.to_bytes(32, "big")) for number in range(first, first + count)]
    return Map.of([(key.public_key, Signed.sign(key, Map())) for key in keys])


def stated(replica: LatticeReplica, slots: Map) -> Absorbed:
    """Have a stranger state slots of `:kv` whose cells are here, but for the top."""
    _, parts = decode_parts(encode_message(slots, lambda hash: hash != value_hash(slots)))
    incoming = Incoming((KV,), slots, parts)
    return replica.absorb(Offer(Probe(value_hash(slots), incoming)), Peer("s"))


def crowded(slots: Map) -> LatticeReplica:
    """Return a replica that has the slots of a crowd, and those of another as mere content."""
    replica = host(HostingPolicy())
    for peer in ("n", "s"):
        replica.charges.introduce(peer, peer, is_wanted=peer == "n", is_known=False)
    absorb(replica, slots, "n", (KV,))
    other = crowd(1_000)
    absorb(replica, Index.of([(value_hash(other), other)]), "n", (DATA,))
    return replica


def test_a_small_statement_costs_the_same_among_many_owners_and_few() -> None:
    costs = []
    for replica in (crowded(crowd(3_000, 20)), crowded(crowd(3_000))):
        assert stated(replica, crowd(1, 1)).changed
        before = replica.charges._account("s").spent
        steps = steps_of(lambda: stated(replica, crowd(2, 1)))  # noqa: B023
        costs.append((steps, replica.charges._account("s").spent - before))
    (few_steps, few_ticks), (many_steps, many_ticks) = costs
    assert many_steps < 3 * few_steps
    assert 0 < few_ticks <= many_ticks < 3 * few_ticks


def test_to_state_what_is_here_as_content_is_paid_for_and_ends() -> None:
    replica, planted = crowded(crowd(3_000)), crowd(1_000)
    stated(replica, planted)
    assert replica.charges._account("s").spent > CHARGE_LIMITS.credit
    stated(replica, planted)
    before = replica.charges._account("s").spent
    outcome = stated(replica, planted)
    assert not outcome.changed
    assert [remark.kind for remark in outcome.reports] == ["value-refused"]
    assert replica.charges._account("s").spent - before <= 2 * len(encode(planted))


def test_a_root_of_countless_sections_is_refused() -> None:
    replica = host(HostingPolicy())
    for count in (SECTIONS_MAX - 1, SECTIONS_MAX):
        junk = Index.of([(DATA, Index()), *[(f"junk {n}", n) for n in range(count)]])
        absorbed = absorb(replica, junk)
        assert bool(absorbed.refused) is (count == SECTIONS_MAX)


def test_to_state_what_is_here_or_nothing_or_what_nobody_has_opens_no_account() -> None:
    replica = crowded(crowd(3_000, 20))
    opened: list[str] = []
    accounts = replica.charges.open

    def counted(peer: str) -> Work:
        opened.append(peer)
        return accounts(peer)

    replica.charges.open = counted  # type: ignore[method-assign]
    mine = replica.announced
    assert isinstance(mine, Index)
    for value in (Index(), mine):
        absorbed = absorb(replica, value)
        assert absorbed.holds == [("peer", Probe(value_hash(value), value))]
        assert not absorbed.refused
    assert absorb(replica, 5, "peer", (Keyword("of-nobody"),)).refused
    assert opened == []
    assert not absorb(replica, mine.put(Keyword("of-nobody"), 5)).refused
    assert opened == ["peer"] * 2


def test_the_signature_of_a_slot_is_verified_once_and_not_when_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = crowded(crowd(3_000, 20))
    verified: list[bytes] = []
    verify = bindings.crypto_sign_open

    def counted(signed: bytes, public_key: bytes) -> object:
        verified.append(public_key)
        return verify(signed, public_key)

    monkeypatch.setattr(bindings, "crypto_sign_open", counted)
    owner = KeyPair(b"once".ljust(32))
    for count in (10, 11):
        databases = Map.of([(f"database number {n}", Index()) for n in range(count)])
        # As another process signs it: what this one signed is known.
        signature = owner.sign(Signed(owner.public_key, bytes(64), databases).message())
        slots = Map.of([(owner.public_key, Signed(owner.public_key, signature, databases))])
        verified.clear()
        assert absorb(replica, slots, "s", (KV,)).changed
        assert verified == [owner.public_key]


def test_a_peer_that_has_nothing_is_known_to_have_the_empty_root() -> None:
    replica = host(HostingPolicy())
    for value in (Index(), Index.of([("of nobody here", 1)])):
        absorbed = absorb(replica, value)
        assert absorbed.finished == [value_hash(value)]
        assert absorbed.ended == [("peer", True)]
        ((peer, held),) = absorbed.holds
        assert (peer, held.key, held.data) == ("peer", value_hash(Index()), Index())
        assert not absorbed.changed
