"""What a replica keeps of branches that it did not choose: when, how much, until when."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from itertools import count

import pytest

import datalattice.sync.lattice.evidence as evidence_module
from datalattice.apps.kv import Database
from datalattice.apps.queue import (
    QueueLattice,
    Topics,
    append_branch,
    entry_value,
    is_appended,
    make_entry,
    read_state,
)
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    Work,
    decode_parts,
    encode_message,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice, open_store
from datalattice.errors import MissingData
from datalattice.lattice import (
    LOCAL_KEY,
    ChangedSlot,
    Latest,
    MergeContext,
    MergeNotice,
    OwnerForked,
    Walk,
    assoc_in,
    get_in,
    local_value,
    root_lattice,
    set_local,
)
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.sync import EvidenceLimits, LatticeReplica, Offer, Peer, Probe, stored_forks
from datalattice.sync.lattice.evidence import Branches, Evidence
from datalattice.sync.lattice.forkrecords import fork_id, losses_of
from datalattice.sync.lattice.incoming import Incoming
from datalattice.testing.bombs import queue_state, repeated_log, topics
from datalattice.testing.cells_kit import CellDict
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk, SimulatedCrash

OWNER, RELAY = KeyPair(b"o" * 32), KeyPair(b"r" * 32)
SLOT = (Keyword("queue"), OWNER.public_key)
IS_PURE = os.environ.get("DATALATTICE_EXPECT_COMPILED") == "0"
EQUIVOCATIONS = 2_500 if IS_PURE else 10_000
OWNERS = 500 if IS_PURE else 2_000
_numbers = count()


def relay(store: Store | None = None, **options: object) -> LatticeReplica:
    store = MemoryStore() if store is None else store
    clock = options.pop("clock", StoppedClock(1_000))
    return LatticeReplica(
        store,
        root_lattice(),
        MergeContext(key_pair=RELAY),
        clock=clock,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def owner_node(evidence_limits: EvidenceLimits | None = None) -> LatticeReplica:
    """Return a device that holds the owner's key."""
    return LatticeReplica(
        MemoryStore(),
        root_lattice(),
        MergeContext(key_pair=OWNER),
        clock=StoppedClock(2_000),
        evidence_limits=evidence_limits,
    )


def give(replica: LatticeReplica, value: Value, path: tuple[Value, ...] = ()) -> bool:
    """Have a replica absorb a value that comes with all its cells."""
    made, parts = decode_parts(encode_message(value), None)
    probe = Probe(str(next(_numbers)).encode() * 8, Incoming(path, made, parts))
    return replica.absorb(Offer(probe), Peer("peer")).changed


def queue_root(values: list[str], stamp: int, base: Value = None, key: KeyPair = OWNER) -> Value:
    """Return a root in which an owner has these records, appended at one time."""
    root = RootLattice(root_lattice(), base, MergeContext(key_pair=key))
    Topics.at(root, key.public_key, StoppedClock(stamp)).partition("t", 0).offer_many(values)
    return root.get()


def kv_root(entries: dict[str, int], stamp: int, key: KeyPair = OWNER) -> Value:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=key))
    database = Database.at(root, key.public_key, "d", clock=StoppedClock(stamp), replica="x")
    for name, value in entries.items():
        database.set(name, value)
    return root.get()


def slot_of(root: Value, path: tuple[Value, ...] = SLOT) -> Signed:
    found = get_in(root, path)
    assert isinstance(found, Signed)
    return found


COMMON = queue_root(["a", "b"], 100)
LEFT = queue_root(["l1", "l2"], 200, COMMON)
DB = (Keyword("kv"), OWNER.public_key)
DB_LEFT, DB_RIGHT = kv_root({"a": 1}, 10), kv_root({"b": 2}, 20)
RIGHT = queue_root(["r1", "r2", "r3"], 300, COMMON)


def kept(replica: LatticeReplica) -> dict[bytes, str]:
    """Return what is stored as evidence: losing cell's hash to kind."""
    found, _ = stored_forks(replica.root, RELAY.public_key)
    return {value_hash(one.loser): one.branch for one in found.values() if one.loser is not None}


@pytest.mark.parametrize("first", [LEFT, RIGHT])
def test_third_parties_choose_alike_and_keep_the_other_branch(first: Value) -> None:
    second = RIGHT if first is LEFT else LEFT
    node = relay()
    assert give(node, first)
    assert kept(node) == {}
    assert give(node, second) is (second is RIGHT)
    assert same(slot_of(node.root), slot_of(RIGHT))  # the newest write
    assert kept(node) == {value_hash(slot_of(LEFT)): "log"}
    assert LOCAL_KEY not in node.announced  # type: ignore[operator]


def test_a_fork_of_a_store_that_compares_roots_is_committed_all_the_same() -> None:
    node = relay(open_store("memory://"))
    give(node, LEFT)
    assert give(node, RIGHT)
    assert kept(node) == {value_hash(slot_of(LEFT)): "log"}


def test_a_record_names_path_owner_cells_time_and_size() -> None:
    node = relay()
    give(node, RIGHT)
    give(node, LEFT)
    held = local_value(node.root, RELAY.public_key, Keyword("forks"))
    assert isinstance(held, Map)
    records = held[Keyword("records")]
    assert isinstance(records, Index)
    ((id, record),) = records.entries()
    loser = slot_of(LEFT)
    assert id == value_hash(Vector.of((Vector.of(SLOT), value_hash(loser))))
    assert isinstance(record, Map)
    assert same(record[Keyword("path")], Vector.of(SLOT))
    assert record[Keyword("owner")] == OWNER.public_key
    assert record[Keyword("kind")] == Keyword("log")
    assert same(record[Keyword("cells")], Vector.of((slot_of(RIGHT), loser)))
    assert record[Keyword("seen")] == 1_000
    size = record[Keyword("bytes")]
    assert isinstance(size, int)
    assert 0 < size < 2_000


def test_the_owners_join_removes_it_and_a_log_leaves_the_records_that_lost() -> None:
    node, device = relay(), owner_node()
    give(node, RIGHT)
    give(node, LEFT)
    give(device, LEFT)
    give(device, RIGHT)
    joined = slot_of(device.root)
    assert joined.public_key == OWNER.public_key
    records, _ = stored_forks(device.root, OWNER.public_key)
    (record,) = records.values()
    assert record.branch == "log"
    (loss,) = record.logs
    assert (loss.topic, loss.partition, loss.first, loss.end) == ("t", 0, 2, 4)
    assert record.loser == slot_of(LEFT)
    give(node, device.announced)
    assert kept(node) == {value_hash(slot_of(LEFT)): "log"}


def test_databases_are_joined_and_nothing_stays() -> None:
    left, right = kv_root({"a": 1}, 10), kv_root({"b": 2}, 20)
    node, device = relay(), owner_node()
    for root in (left, right):
        give(node, root)
        give(device, root)
    assert list(kept(node).values()) == ["owner"]
    assert device.evidence.records == {}
    give(node, device.announced)
    assert kept(node) == {}
    database = Database.at(node.cursor, OWNER.public_key, "d")
    assert (database.get("a"), database.get("b")) == (1, 2)


def test_a_verified_append_removes_it_and_a_false_mark_does_not() -> None:
    node = relay()
    give(node, RIGHT)
    give(node, LEFT)
    (record,) = node.evidence.records.values()
    device = owner_node()
    give(device, RIGHT)
    give(device, LEFT)
    (mine,) = device.evidence.records.values()
    ((loss, branch),) = mine.log_branches()
    queue = Topics.at(device.cursor, OWNER.public_key, StoppedClock(900)).partition("t", 0)
    state = read_state(queue.cursor.get())
    assert not is_appended(state, branch)
    false = state._replace(
        meta=state.meta._replace(values=state.meta.values.put(branch.mark(), Vector.of((0, 2))))
    )
    assert not is_appended(false, branch)
    made: list[range] = []

    def append(value: Value) -> Value:
        appended, offsets = append_branch(value, branch, 900)
        made.append(offsets)
        return appended

    queue.cursor.update(append)
    queue.cursor.update(append)
    assert made == [range(5, 7), range(0)]
    assert [queue.peek(offset) for offset in range(7)] == ["a", "b", "r1", "r2", "r3", "l1", "l2"]
    device.publish()
    assert device.evidence.records == {}
    assert give(node, device.announced)
    assert kept(node) == {}
    assert record.id not in node.evidence.records
    assert (loss.first, loss.end) == (2, 4)


@pytest.mark.parametrize(
    ("before", "after", "appended"),
    [
        (["l1", "l2"], ["l1", "l2", "l3"], ["l3"]),  # it has written on since
        (["l1", "l2"], ["l1", "x", "y"], ["x", "y"]),  # another branch that begins alike
        (["l1", "l2", "l3"], ["l1", "l2"], []),  # it was longer
        (["l1"], ["m1"], ["m1"]),
    ],
)
def test_of_a_branch_only_what_the_log_lacks_is_appended(
    before: list[str], after: list[str], appended: list[str]
) -> None:
    device = owner_node()
    give(device, queue_root([f"r{n}" for n in range(9)], 300, COMMON))
    queue = Topics.at(device.cursor, OWNER.public_key, StoppedClock(900)).partition("t", 0)
    known: list[str] = []
    for values, wanted in ((before, before), (after, appended)):
        give(device, queue_root(values, 200, COMMON))
        for record in list(device.evidence.records.values()):
            for _, branch in record.log_branches():
                queue.cursor.update(lambda value: append_branch(value, branch, 900)[0])  # noqa: B023
        device.publish()
        known += wanted
        assert device.evidence.records == {}
        assert [queue.peek(11 + at) for at in range(len(known) + 1)] == [*known, None]


def test_evidence_survives_a_restart_a_collection_and_a_replay() -> None:
    disk = SimDisk(seed=3)
    store = CellStore.open("store", disk=disk)
    node = relay(store)
    give(node, RIGHT)
    give(node, LEFT)
    before = kept(node)
    store.collect(grace_ms=0)
    store.close()
    store = CellStore.open("store", disk=disk)
    again = relay(store)
    assert kept(again) == before
    (record,) = again.evidence.records.values()
    assert record.loser == slot_of(LEFT)
    for root in (LEFT, RIGHT, LEFT, COMMON):
        assert not give(again, root)
    assert len(again.evidence.records) == 1
    queue = get_in(record.loser.value, ["t", Keyword("partitions"), 0])
    assert len(read_state(queue).entries.to_list()) == 4  # all cells are here
    store.close()


def test_a_branch_that_writes_on_is_one_record() -> None:
    node = relay()
    give(node, RIGHT)
    give(node, LEFT)
    longer = queue_root(["l3"], 250, LEFT)
    give(node, longer)
    assert set(kept(node)) == {value_hash(slot_of(longer))}
    give(node, LEFT)
    assert set(kept(node)) == {value_hash(slot_of(longer))}


def test_dropped_records_do_not_come_back() -> None:
    node = relay()
    give(node, RIGHT)
    give(node, LEFT)
    (id,) = node.evidence.records
    assert node.state.drop_evidence([id])
    assert not node.state.drop_evidence([id])
    assert kept(node) == {}
    give(node, LEFT)
    assert kept(node) == {}
    again = relay(node.store)
    give(again, LEFT)
    assert kept(again) == {}


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_at_any_write_leaves_the_slot_and_its_evidence_together(
    power_failure: bool,
) -> None:
    """A fork, then the owner's join, then a branch that is dropped; a crash at each step."""
    device = owner_node()
    for root in (DB_LEFT, DB_RIGHT):
        give(device, root)
    joined = device.announced
    left, right = (slot_of(root, DB) for root in (DB_LEFT, DB_RIGHT))

    def run(disk: SimDisk, done: list[str]) -> None:
        node = relay(CellStore.open("store", disk=disk))
        for name, root in (("left", DB_LEFT), ("right", DB_RIGHT), ("log", RIGHT), ("lost", LEFT)):
            give(node, root)
            done.append(name)
        ids = [one.id for one in node.evidence.records.values() if one.path == SLOT]
        node.state.drop_evidence(ids)
        done.append("dropped")
        give(node, joined)
        done.append("joined")
        give(node, LEFT)  # a replay
        node.store.close()

    disk = SimDisk(0)
    run(disk, [])
    for step in range(1, disk.steps + 1):
        disk, done = SimDisk(step), list[str]()
        disk.crash_at = step
        with contextlib.suppress(SimulatedCrash):
            run(disk, done)
        disk.restart(power_failure=power_failure)
        store = CellStore.open("store", disk=disk)
        node = relay(store)
        found, slot = kept(node), get_in(node.root, DB)
        if "joined" in done:
            assert slot == slot_of(joined, DB)
        elif "right" in done:
            assert slot in (right, slot_of(joined, DB))
        assert (slot == right) == (value_hash(left) in found)
        assert not ("dropped" in done and value_hash(slot_of(LEFT)) in found)
        give(node, joined)
        assert value_hash(left) not in kept(node)
        store.close()


def test_a_program_that_writes_over_its_local_slot_does_not_lose_it() -> None:
    node = relay()
    give(node, RIGHT)
    give(node, LEFT)
    node.cursor.update(lambda root: set_local(root, RELAY, Map.of([("mine", 1)])))
    node.publish()
    assert kept(node) == {value_hash(slot_of(LEFT)): "log"}
    held = local_value(node.root, RELAY.public_key)
    assert isinstance(held, Map)
    assert held["mine"] == 1


def test_a_node_without_an_identity_counts_what_it_cannot_keep() -> None:
    node = LatticeReplica(MemoryStore(), root_lattice())
    give(node, RIGHT)
    give(node, LEFT)
    assert same(slot_of(node.root), slot_of(RIGHT))
    assert not node.evidence.can_keep
    assert (node.evidence.seen_count, node.evidence.records) == (1, {})
    assert LOCAL_KEY not in node.root  # type: ignore[operator]


# --- bounds -----------------------------------------------------------------------------------


def equivocate(replica: LatticeReplica, times: int, key: KeyPair = OWNER) -> list[Signed]:
    """Have an owner sign that many values of its slot which all fork."""
    made = []
    for number in range(times):
        root = queue_root([f"only {number}"], 1_000 - number, key=key)
        give(replica, root)
        made.append(slot_of(root, (Keyword("queue"), key.public_key)))
    return made


@pytest.mark.parametrize("extra", [-1, 0, 1, 5])
def test_records_of_a_slot_are_bounded_and_the_first_two_stay(extra: int) -> None:
    limits = EvidenceLimits(records_per_slot=4)
    node = relay(evidence_limits=limits)
    cells = equivocate(node, 1 + 4 + extra)
    hashes = [value_hash(cell) for cell in cells]
    found = kept(node)
    assert len(found) == min(4, 4 + extra)
    assert set(hashes[1:3]) <= set(found)  # the greatest is the slot, then the first two
    assert node.evidence.evicted_count == max(extra, 0)


def test_bytes_of_an_owner_are_bounded() -> None:
    limits = EvidenceLimits(bytes_per_owner=900)
    node = relay(evidence_limits=limits)
    equivocate(node, 8)
    sizes = [record.bytes for record in node.evidence.records.values()]
    assert 2 <= len(sizes) < 7
    assert sum(sizes) <= 900 or len(sizes) == 2


def test_a_single_branch_beyond_the_room_is_kept_as_its_signature() -> None:
    node = relay(evidence_limits=EvidenceLimits(bytes_per_owner=2_000))
    give(node, RIGHT)
    large = queue_root([f"{n}" * 40 for n in range(200)], 150, COMMON)
    give(node, large)
    (record,) = node.evidence.records.values()
    loser = slot_of(large)
    assert record.loser is None
    assert record.bytes < 0
    assert same(
        record.proof, Vector.of((loser.public_key, loser.signature, value_hash(loser.value)))
    )
    again = relay(node.store)
    assert again.evidence.records == node.evidence.records


def test_records_of_a_node_go_from_strangers_first() -> None:
    strangers = [KeyPair(bytes([n]) * 32) for n in range(1, 5)]
    limits = EvidenceLimits(records=3)
    node = relay(evidence_limits=limits, watched=lambda owner: owner == strangers[0].public_key)
    for key in strangers:
        equivocate(node, 2, key)
    owners = [record.owner for record in node.evidence.records.values()]
    assert len(owners) == 3
    assert strangers[0].public_key in owners


def test_forks_of_a_slot_are_examined_so_often_a_minute_and_the_order_still_decides() -> None:
    clock = StoppedClock(60_000)
    node = relay(clock=clock, evidence_limits=EvidenceLimits(forks_per_minute=3))
    cells = equivocate(node, 6)
    assert same(slot_of(node.root), cells[0])
    assert len(node.evidence.records) == 3
    assert (node.evidence.seen_count, node.evidence.skipped_count) == (5, 2)
    clock.now = 120_000
    give(node, queue_root(["one more"], 1))
    assert len(node.evidence.records) == 4


def test_a_clone_that_forks_many_times_a_minute_loses_no_record_of_ones_own() -> None:
    limits = EvidenceLimits(records_per_slot=3, forks_per_minute=4)
    node, clone = owner_node(evidence_limits=limits), owner_node(evidence_limits=limits)
    for number in range(12):
        for one, values in ((node, [f"n{number}"]), (clone, [f"c{number}", f"d{number}"])):
            queue = Topics.at(one.cursor, OWNER.public_key, StoppedClock(number))
            queue.partition("t", 0).offer_many(values)
            one.publish()
        told = node.announced
        give(node, clone.announced)
        give(clone, told)
    there = Topics.at(RootLattice(root_lattice(), node.root), OWNER.public_key)
    found = set(there.partition("t", 0).range(0, 10**6))
    lost, _ = stored_forks(node.root, OWNER.public_key)
    for record in lost.values():
        for _, branch in record.log_branches():
            found |= {entry_value(entry) for entry in branch.tail()}
    written = {f"{one}{n}" for n in range(12) for one in "ncd"}
    assert written - found == set()
    assert node.evidence.skipped_count == node.evidence.evicted_count == 0


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_records_of_a_slot_of_ones_own_have_a_bound_of_their_own(extra: int) -> None:
    limits = EvidenceLimits(records_per_slot=2, own_records_per_slot=4)
    node = owner_node(evidence_limits=limits)
    equivocate(node, 1 + 4 + extra)
    assert len(node.evidence.records) == min(4, 4 + extra)


def bombed_root(number: int, key: KeyPair = OWNER) -> Value:
    """Return a root with logs of a few cells each that stand for 65,536 records, another each."""
    start = number % 2
    log = repeated_log(make_entry(None, number, 1), 3)
    logs: dict[int, Value] = dict.fromkeys(range(8), queue_state(log, start, 5 + number))
    slot = Signed.sign(key, topics(logs))
    return assoc_in(None, (Keyword("queue"), key.public_key), slot, root_lattice())


def test_what_a_message_has_left_pays_for_its_evidence_however_much_is_kept() -> None:
    node = relay()
    spent = []
    for number in range(1, 13):
        give(node, bombed_root(number))
        spent.append(node.evidence._branches.work.spent)
    assert node.evidence.seen_count > 5
    assert node.evidence.skipped_count > 0
    assert 1 <= len(node.evidence.records) <= 8
    assert max(spent[6:]) <= 1.5 * max(spent[2:6])  # what was kept before costs nothing more
    assert max(spent) <= 50_000


def test_what_this_node_signs_itself_is_compared_whatever_it_costs() -> None:
    node = owner_node()
    for number in range(1, 7):
        give(node, bombed_root(number))
    assert node.evidence.skipped_count == 0


def test_ten_thousand_equivocations_are_bounded_in_room() -> None:
    node = relay(clock=StoppedClock(0))
    give(node, queue_root(["first"], 5_000))
    own = slot_of(node.root)
    for number in range(10_000):
        topic = Index.of({Keyword("meta"): Map.of([(number, 1)])})
        other = Signed.sign(OWNER, Map.of([("t", topic)]))
        fork = OwnerForked(OWNER.public_key, SLOT, own, other)
        value = node.evidence.bring_up(node.root, [fork])
        if value is not node.root:
            node.state._commit(value)
    assert len(node.evidence.records) <= 8
    assert node.evidence.seen_count == 10_000
    assert node.evidence.skipped_count == 10_000 - 60
    assert node.evidence.size_bytes <= EvidenceLimits().bytes_per_owner


def test_ten_thousand_growing_branches_keep_the_first_two_and_the_newest_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four a second, each newer and larger than the one before: from 16 bytes to 8 kB."""
    compared = 0
    joined = Branches.joined

    def counted(*arguments: object) -> object:
        nonlocal compared
        compared += 1
        return joined(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Branches, "joined", counted)
    cells, clock = CellDict(), StoppedClock(0)
    limits = EvidenceLimits(bytes_per_owner=20_000)
    evidence = Evidence(
        root_lattice(),
        MergeContext(key_pair=RELAY),
        lambda hashes: [cells.get(hash) for hash in hashes],
        clock,
        limits,
    )
    root = queue_root(["first"], 10**6)
    own = slot_of(root)
    sizes: dict[bytes, int] = {}  # of those that were examined, the oldest first
    spent: list[int] = []
    for number in range(EQUIVOCATIONS):
        clock.now = 250 * number
        size = 16 + 8_000 * number // EQUIVOCATIONS
        noise = hashlib.shake_128(number.to_bytes(4, "big")).digest(size)
        log = Vector.of([make_entry(None, noise, number)])
        other = Signed.sign(OWNER, topics({0: queue_state(log, 0, number)}))
        cells.clear()
        cells.kept(other)
        before, work = compared, Work()
        root = evidence.bring_up(root, [OwnerForked(OWNER.public_key, SLOT, own, other)], work)
        if clock.now % 60_000 // 250 < limits.forks_per_minute:
            id = fork_id(SLOT, other)
            sizes[id] = evidence.records[id].bytes
            spent.append(work.spent)
            assert compared - before <= limits.records_per_slot + 1
            assert evidence.size_bytes <= limits.bytes_per_owner
        else:
            assert (compared, work.spent) == (before, 0)
    assert evidence.seen_count == EQUIVOCATIONS
    assert evidence.skipped_count == EQUIVOCATIONS - len(sizes)
    # The first two, then as many of the newest ones as there is room for.
    ids, left = list(sizes), limits.bytes_per_owner - evidence.size_bytes
    newest = len(evidence.records) - 2
    assert list(evidence.records) == ids[:2] + ids[-newest:]
    assert evidence.size_bytes == sum(sizes[id] for id in evidence.records)
    assert newest == limits.records_per_slot - 2 or sizes[ids[-newest - 1]] > left
    assert evidence.evicted_count == len(sizes) - len(evidence.records)
    # What one costs does not grow with how many there were, nor with their size.
    assert max(spent[len(spent) // 2 :]) <= 1.5 * max(spent[: len(spent) // 2]) < 1_500


def test_many_forked_owners_are_bounded_in_room_and_cost_the_slots_that_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(root: Value, path: tuple[Value, ...]) -> Value:
        nonlocal looks
        looks += 1
        return get_in(root, path)

    monkeypatch.setattr(evidence_module, "get_in", counted)
    keys = [KeyPair(number.to_bytes(32, "big")) for number in range(OWNERS)]
    watched = {keys[0].public_key, keys[-1].public_key}
    limits, clock = EvidenceLimits(records=128), StoppedClock()
    node = relay(watched=lambda owner: owner in watched, evidence_limits=limits, clock=clock)
    give(node, LEFT)
    root = node.root
    for number, key in enumerate(keys):
        clock.now += 1
        one, other = (
            Signed.sign(key, Map.of([("t", Index.of({Keyword("meta"): Map.of([(side, 1)])}))]))
            for side in ("a", "b" * (60 if number % 10 == 5 else 1))
        )
        path = (Keyword("queue"), key.public_key)
        root = assoc_in(root, path, one, node.lattice)
        root = node.evidence.bring_up(root, [OwnerForked(key.public_key, path, one, other)])
        assert looks <= 2 * (number + 1)
    records = node.evidence.records.values()
    assert len(records) == 128
    assert node.evidence.evicted_count == OWNERS - 128
    # Of those with most bytes first, then of those seen last; never of watched ones.
    modest = [key.public_key for number, key in enumerate(keys) if number % 10 != 5]
    stay = [key for key in modest if key not in watched][:126]
    assert {record.owner for record in records} == watched | set(stay)
    sizes = [record.bytes for record in records]
    assert node.evidence.size_bytes == sum(sizes) < 128 * 1_000
    for key in keys[:100]:
        assert node.evidence.bytes_of(key.public_key) == sum(
            record.bytes for record in records if record.owner == key.public_key
        )
    found, _ = stored_forks(root, RELAY.public_key)
    assert set(found) == set(node.evidence.records)
    # A restart compares each of them once, and goes on in the same way.
    looks = 0
    context = MergeContext(key_pair=RELAY)
    again = Evidence(node.lattice, context, lambda hashes: [None for _ in hashes], StoppedClock(1))
    again.load(root)
    for _ in range(3):
        assert again.bring_up(root, []) is root
    assert looks <= 128
    assert again.size_bytes == node.evidence.size_bytes


def test_records_are_compared_anew_when_the_former_root_was_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def collected(former: Value, _root: Value) -> Iterator[ChangedSlot]:
        raise MissingData([value_hash(former)])

    monkeypatch.setattr(evidence_module, "slot_changes", collected)
    node, device = relay(), owner_node()
    for root in (kv_root({"a": 1}, 10), kv_root({"b": 2}, 20)):
        give(node, root)
        give(device, root)
    assert len(node.evidence.records) == 1
    give(node, device.announced)
    assert node.evidence.records == {}


def test_branches_that_were_compared_in_the_slot_are_not_compared_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, compared = relay(), 0
    joined = Branches.joined

    def counted(*arguments: object) -> object:
        nonlocal compared
        compared += 1
        return joined(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Branches, "joined", counted)
    limit = EvidenceLimits().records_per_slot
    for number in range(2 * limit):
        compared = 0
        # Each is newer than the one in the slot, which becomes evidence.
        assert give(node, queue_root([f"only {number}"], 200 + number, COMMON))
        assert compared <= limit + 1
    assert len(kept(node)) == limit


def queue_branch(number: int, stamp: int) -> Value:
    """Return a root of the owner with one record in the log, another for each number."""
    noise = hashlib.sha3_256(number.to_bytes(4, "big")).hexdigest()
    log = Vector.of([make_entry(None, noise, stamp)])
    slot = Signed.sign(OWNER, topics({0: queue_state(log, 0, stamp)}))
    return assoc_in(None, SLOT, slot, root_lattice())


def recompared(node: LatticeReplica) -> dict[bytes, tuple[str, object]]:
    """Return how each kept branch is left out, each compared with its slot from the beginning."""
    slot = slot_of(node.root)
    found: dict[bytes, tuple[str, object]] = {}
    for one in node.evidence.records.values():
        reports: list[MergeNotice] = []
        context = MergeContext(path=SLOT, owner=OWNER.public_key, report=reports.append)
        lattice = node.lattice.path(*SLOT)
        assert lattice is not None
        assert lattice.merge(slot, one.loser, context) is slot
        (fork,) = [report for report in reports if isinstance(report, OwnerForked)]
        found[one.id] = (fork.branch, losses_of(fork))
    return found


def test_a_new_branch_is_ranked_once_whatever_number_of_branches_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranked = 0
    latest = QueueLattice.latest

    def counted(self: QueueLattice, own: Value, other: Value, walk: Walk) -> Latest:
        nonlocal ranked
        ranked += 1
        return latest(self, own, other, walk)

    monkeypatch.setattr(QueueLattice, "latest", counted)
    node, limit = relay(evidence_limits=EvidenceLimits(forks_per_minute=20)), 8
    kinds: set[str] = set()
    for number in range(30):
        before = ranked
        assert give(node, queue_branch(number, 5 + number))
        spent = ranked - before
        ways = recompared(node)
        kinds |= {branch for branch, _ in ways.values()}
        records = node.evidence.records
        assert {id: (one.branch, one.logs) for id, one in records.items()} == ways
        # A join with the longer log of the lesser one is no element of the greater: that is looked
        # at for each of those, and for the slot itself.
        joins = sum(branch != "log" for branch, _ in ways.values())
        if number > 20:  # none is examined, so none takes the place of another
            assert len(records) == limit
            assert spent <= joins + 3
    assert kinds == {"log", "owner"}


def test_a_branch_above_a_slot_that_a_program_made_less_is_not_taken_for_a_lesser_one() -> None:
    node = relay()
    short = queue_root(["a"], 100)
    longer = queue_root(["b"], 200, short)
    branch = queue_root(["c"], 300, longer)
    for root in (branch, queue_root(["z"], 900)):
        assert give(node, root)
    # The program writes an old value over it, which the kept branch contains.
    root = assoc_in(node.root, SLOT, slot_of(short), node.lattice)
    node.state._commit(node.evidence.bring_up(root, []), contains=False)
    for root in (longer, queue_root(["w"], 250, short)):
        assert give(node, root)
    # What gives way is in the branch, so it is kept with it.
    (record,) = node.evidence.records.values()
    assert record.loser is not None
    assert same(record.loser, slot_of(branch))
