"""The cursor of a replica decides about owners as the replica does, and what peers are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    MessageCells,
    Signed,
    Value,
    decode_parts,
    encode,
    encode_message,
    join_cells,
    references,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Corruption, NotContained, StoreFull, UsageError
from datalattice.lattice import (
    LOCAL_KEY,
    MapLattice,
    MaxLattice,
    MergeContext,
    assoc_in,
    did_of,
    get_in,
    root_contains,
    root_lattice,
)
from datalattice.store import MemoryStore
from datalattice.sync import LatticeReplica, Offer, Peer, Probe, ReplicaLimits
from datalattice.sync.lattice.incoming import Incoming

KEYS = KeyPair(b"k" * 32)


def test_an_owner_named_by_did_keeps_the_writes_of_a_fork_and_of_its_parent() -> None:
    replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=KEYS))
    owner = did_of(KEYS.public_key)
    fork = replica.cursor.fork()
    Topics.at(fork, owner).partition("mine", 0).offer("in the fork")
    Topics.at(replica.cursor, owner).partition("other", 0).offer("in the parent")
    fork.sync()
    replica.publish()
    queues = Topics.at(replica.cursor, owner)
    assert list(queues.partition("mine", 0)) == ["in the fork"]
    assert list(queues.partition("other", 0)) == ["in the parent"]


def test_a_change_is_told_against_what_a_new_peer_was_given_not_its_beginning() -> None:
    lattice = MapLattice(MaxLattice())
    replica = LatticeReplica(MemoryStore(), lattice)
    zero = Probe(value_hash(lattice.zero()), lattice.zero())
    replica.cursor.set(Map.of([(f"key {number}", number) for number in range(1_000)]))
    replica.publish()
    given = replica.probe
    replica.cursor.path("key 5").set(9_999)
    replica.publish()
    news = replica.news(Peer("peer"), (zero, given))
    assert news is not None
    (offer,) = news.offers
    assert offer.base is given


def test_what_got_into_the_live_value_unseen_is_refused_and_the_rest_is_published() -> None:
    stranger = KeyPair(b"s" * 32)
    replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=KEYS))
    theirs = Index.of([(LOCAL_KEY, Map.of([(stranger.public_key, Signed.sign(stranger, Map()))]))])
    replica.cursor.merge(theirs)
    replica.publish()
    queues = Topics.at(replica.cursor, KEYS.public_key)
    queues.partition("mine", 0).offer("before")
    wrong: list[tuple[tuple[Value, ...], Value]] = [
        ((LOCAL_KEY, KEYS.public_key), Map()),
        ((LOCAL_KEY, stranger.public_key), None),
        ((LOCAL_KEY, KeyPair(b"t" * 32).public_key), Signed.sign(KEYS, Map())),
        ((Keyword("kv"),), 5),
        ((Keyword("nosuch"),), 5),
        ((Keyword("data"),), Index.of([(b"x" * 32, b"y")])),
    ]
    for path, value in wrong:
        before = replica.root
        replica.cursor.adopt(partial(assoc_in, keys=path, new=value, lattice=replica.lattice))
        with pytest.raises(UsageError):
            replica.publish()
        assert replica.root is before
    for path, value in wrong:  # and all at once
        replica.cursor.adopt(partial(assoc_in, keys=path, new=value, lattice=replica.lattice))
    with pytest.raises(UsageError):
        replica.publish()
    queues.partition("mine", 0).offer("after")
    assert replica.publish()
    assert list(queues.partition("mine", 0)) == ["before", "after"]
    assert same(get_in(replica.root, (LOCAL_KEY,)), theirs.get(LOCAL_KEY))
    assert [get_in(replica.root, (Keyword(name),)) for name in ("kv", "nosuch")] == [None, None]
    assert not get_in(replica.root, (Keyword("data"), b"x" * 32))


def test_a_store_that_keeps_what_it_has_goes_on_after_a_write_that_takes_it_away() -> None:
    store = MemoryStore()
    store.root_contains = root_contains
    replica = LatticeReplica(store, root_lattice(), MergeContext(key_pair=KEYS))
    queues = Topics.at(replica.cursor, KEYS.public_key)
    queues.partition("mine", 0).offer("first")
    replica.publish()
    replica.cursor.path("queue", KEYS.public_key).set(None)
    with pytest.raises(NotContained):
        replica.publish()
    queues.partition("mine", 0).offer("second")
    assert replica.publish()
    assert list(queues.partition("mine", 0)) == ["first", "second"]


# --- what others say ------------------------------------------------------------------------------


NUMBERS = MapLattice(MaxLattice())


class FaultyStore(MemoryStore):
    """A store that is full now and then, and has damaged cells."""

    def __init__(self) -> None:
        super().__init__()
        self.full_at: set[int] = set()
        self.damaged: set[bytes] = set()
        self._puts = 0

    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        self._puts += 1
        if self._puts in self.full_at:
            raise StoreFull("the disk is full")
        return super().put_encodings(cells)

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        if hash in self.damaged:
            raise Corruption("damaged")
        return super().get_encoding(hash, verify=verify)


def numbered(count: int, begin: int = 0, limits: ReplicaLimits | None = None) -> LatticeReplica:
    replica = LatticeReplica(MemoryStore(), NUMBERS, limits=limits)
    replica.cursor.set(Map.of([(f"key {number}", number + begin) for number in range(count)]))
    replica.publish()
    return replica


def by_hash(source: LatticeReplica) -> Offer:
    """Return what a message says that a patch could not be read of."""
    hash = source.announced_hash
    return Offer(Probe(hash, Incoming((), None, MessageCells(None), hash)))


def whole(value: Value) -> Offer:
    found, parts = decode_parts(encode_message(value))
    return Offer(Probe(value_hash(found), Incoming((), found, parts)))


def given(source: LatticeReplica, hashes: Iterable[bytes]) -> Offer:
    parts = source.views.supply(tuple(hashes))
    return Offer(None, tuple(part for part in parts if part is not None))


def is_complete(replica: LatticeReplica) -> bool:
    front = [replica.announced_hash]
    while front:
        encoding = replica.views.load(front.pop())
        if encoding is None:
            return False
        front.extend(references(encoding))
    return True


def test_a_value_that_is_stated_again_while_it_is_fetched_is_not_finished_before_it_is_here() -> (
    None
):
    source, target = numbered(300), LatticeReplica(MemoryStore(), NUMBERS)
    stated = Offer(Probe(source.announced_hash, Incoming((), *decode_parts(encode(source.root)))))
    missing = list(target.absorb(stated, Peer("peer")).missing)
    assert missing
    assert target.absorb(stated, Peer("peer")).finished == []
    finished: list[bytes] = []
    while missing:
        absorbed = target.absorb(given(source, missing), Peer("peer"))
        missing, finished = list(absorbed.missing), absorbed.finished
    assert finished == [source.announced_hash]


def test_a_value_that_is_being_fetched_is_taken_in_though_newer_ones_are_stated() -> None:
    source, target = numbered(300), LatticeReplica(MemoryStore(), NUMBERS)
    first = source.announced
    missing = list(target.absorb(by_hash(source), Peer("peer")).missing)
    changed, number = False, 1_000
    while not changed:
        number += 1
        source.cursor.path("key 7").set(number)
        source.publish()
        assert target.absorb(by_hash(source), Peer("peer")).missing == []
        absorbed = target.absorb(given(source, missing), Peer("peer"))
        missing, changed = list(absorbed.missing), absorbed.changed
    assert same(target.announced, first)
    assert missing == [source.announced_hash]  # and the newest of them is fetched next
    while missing:
        missing = list(target.absorb(given(source, missing), Peer("peer")).missing)
    assert same(target.announced, source.announced)
    assert target.intake.count == 0


def test_what_comes_after_a_value_that_another_peer_completes_is_asked_of_who_stated_it() -> None:
    source, target = numbered(300), LatticeReplica(MemoryStore(), NUMBERS)
    missing = list(target.absorb(by_hash(source), Peer("owner")).missing)
    old = LatticeReplica(MemoryStore(), NUMBERS)
    old.absorb(whole(source.announced), Peer("source"))
    source.cursor.path("key 7").set(1_000)
    source.publish()
    target.absorb(by_hash(source), Peer("owner"))  # it comes after the first
    while missing:
        absorbed = target.absorb(given(old, missing), Peer("helper"))
        missing = list(absorbed.missing)
    assert absorbed.changed
    assert absorbed.lacking == {"owner": [source.announced_hash]}


def with_top(source: LatticeReplica) -> Offer:
    """Return the answer to a question for the root: its top cell, and nothing below it."""
    found, parts = decode_parts(join_cells(encode(source.announced), []))
    return Offer(Probe(source.announced_hash, Incoming((), found, parts)))


@pytest.mark.parametrize("again", [with_top, by_hash])
def test_what_is_stated_twice_is_finished_when_it_is_here_and_not_before(
    again: Callable[[LatticeReplica], Offer],
) -> None:
    source, target = numbered(300), LatticeReplica(MemoryStore(), NUMBERS)
    missing = list(target.absorb(with_top(source), Peer("peer")).missing)
    second = target.absorb(again(source), Peer("peer"))
    assert (second.finished, second.superseded) == ([], [])
    while missing:
        absorbed = target.absorb(given(source, missing), Peer("peer"))
        assert (source.announced_hash in absorbed.finished) == absorbed.changed
        missing = list(absorbed.missing)
    assert same(target.announced, source.announced)


@pytest.mark.parametrize("again", [with_top, by_hash])
def test_what_waits_for_an_older_value_of_a_peer_waits_for_the_newer_one_that_replaces_it(
    again: Callable[[LatticeReplica], Offer],
) -> None:
    source, target = numbered(300), LatticeReplica(MemoryStore(), NUMBERS)
    first = source.announced_hash
    missing = list(target.absorb(with_top(source), Peer("peer")).missing)
    keys = [first]
    for number in (1, 2):
        source.cursor.path("key 7").set(1_000 + number)
        source.publish()
        absorbed = target.absorb(again(source), Peer("peer"))
        missing += absorbed.missing
        assert absorbed.finished == []
        # A value by its hash alone waits its turn, so the first one is fetched all the same.
        replaced = keys[-1] if again is with_top or number == 2 else None
        wanted = [] if replaced is None else [(replaced, source.announced_hash)]
        assert absorbed.superseded == wanted
        keys.append(source.announced_hash)
    ended: list[bytes] = []
    while missing:
        absorbed = target.absorb(given(source, missing), Peer("peer"))
        ended += absorbed.finished
        missing = list(absorbed.missing)
    assert ended == ([keys[-1]] if again is with_top else [first, keys[-1]])
    assert same(target.announced, source.announced)


@pytest.mark.parametrize("full_at", range(1, 12))
def test_nothing_rests_on_cells_that_a_full_disk_did_not_take(full_at: int) -> None:
    source, store = numbered(300), FaultyStore()
    target = LatticeReplica(store, NUMBERS)
    store.full_at = {full_at}
    failures = 0
    missing = list(target.absorb(by_hash(source), Peer("peer")).missing)
    while missing:
        try:
            # One by one, so that some of it is complete long before the rest.
            missing += target.absorb(given(source, [missing.pop()]), Peer("peer")).missing
        except StoreFull:
            failures += 1
            assert target.intake.count == 0
        assert is_complete(target)
    assert failures == 1
    assert target.intake.size_bytes == 0
    missing = list(target.absorb(by_hash(source), Peer("peer")).missing)
    while missing:
        missing += target.absorb(given(source, [missing.pop()]), Peer("peer")).missing
    assert same(target.announced, source.announced)
    assert is_complete(target)


def test_what_was_taken_in_is_not_lost_when_the_live_value_cannot_have_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise Corruption("a cell of the live value is damaged")

    replica = LatticeReplica(MemoryStore(), NUMBERS)
    replica.cursor.path("mine").set(1)
    with monkeypatch.context() as patch:
        patch.setattr(RootLattice, "adopt", fail)
        with pytest.raises(Corruption):
            replica.absorb(whole(Map.of([("theirs", 2)])), Peer("peer"))
    replica.publish()
    assert same(replica.root, Map.of([("mine", 1), ("theirs", 2)]))


def test_a_damaged_cell_does_not_keep_a_change_from_being_told() -> None:
    store = FaultyStore()
    replica = LatticeReplica(store, NUMBERS)
    replica.cursor.set(Map.of([(f"key {number}", number) for number in range(300)]))
    replica.publish()
    before = replica.probe
    replica.cursor.path("key 5").set(9_999)
    replica.publish()
    store.damaged = set(references(encode(before.data)))
    news = replica.news(Peer("peer"), (before,))
    assert news is not None
    (offer,) = news.offers
    assert offer.probe is not None
    assert offer.probe.key == replica.announced_hash


def test_what_every_restricted_peer_is_told_can_be_had_however_many_there_are() -> None:
    replica = numbered(300, limits=ReplicaLimits(made_max=4))
    peers = [f"peer {number}" for number in range(3)]
    for number, peer in enumerate(peers):
        replica.views.restrict(peer, [[f"key {key}"] for key in range(number, 60, 3)])
    for change in range(5):
        replica.cursor.path("key 1").set(1_000 + change)
        replica.publish()
        for peer in peers:
            assert replica.views.top(peer).probe is not None
        for peer in peers:
            probe = replica.views.top(peer).probe
            assert probe is not None
            front = [probe.key]
            while front:
                (part,) = replica.views.supply([front.pop()])
                assert part is not None
                front.extend(references(part.data))


def without_leaves(source: LatticeReplica) -> Offer:
    message = encode_message(source.announced)
    cells = decode_parts(message)[1].encodings()
    inner = [cell for cell in cells.values() if references(cell)]
    top = encode(source.announced)
    found, parts = decode_parts(join_cells(top, [cell for cell in inner if cell != top]))
    return Offer(Probe(value_hash(found), Incoming((), found, parts)))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_who_fills_the_room_for_gaps_does_not_keep_others_out(more: int) -> None:
    greedy, modest = numbered(5_000), numbered(1_000, 7)
    replica = LatticeReplica(MemoryStore(), NUMBERS)
    replica.absorb(without_leaves(greedy), Peer("greedy"))
    # There is room for both of them, or not quite.
    alone = LatticeReplica(MemoryStore(), NUMBERS)
    alone.absorb(without_leaves(modest), Peer("modest"))
    limit = replica.intake.size_bytes + alone.intake.size_bytes - more
    replica.intake.staged_bytes_max = limit
    absorbed = replica.absorb(without_leaves(modest), Peer("modest"))
    assert absorbed.dropped == ([greedy.announced_hash] if more > 0 else [])
    replica.absorb(given(modest, absorbed.missing), Peer("modest"))
    assert replica.announced_hash == modest.announced_hash
