"""A replicator over a counter: the seam serves something that is no lattice and speaks JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from datalattice.errors import StoreFull
from datalattice.sync import (
    BROADCAST_DELAY_MS,
    REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS,
    UNSENT_MAX,
    Absorbed,
    Offer,
    Part,
    Peer,
    Pull,
    Replicator,
    Want,
)
from datalattice.sync.conduct import MALFORMED_MAX
from datalattice.sync.conversation import LATE_MAX, NO_ANSWER, PENDING_MAX, Request, Requests
from datalattice.sync.partner import ANSWERED_MAX, ANSWERS_MAX
from datalattice.testing.counters import (
    COUNTER_SILENCE_MS,
    REPLY_PARTS,
    Counters,
    JsonConversation,
    JsonProtocol,
    hashes_of,
    pack,
    text_part,
)
from datalattice.testing.sim import Faults, SimChecker, SimHost, SimNode, Simulation
from datalattice.testing.sim.counting import COUNTERS, counters_kind
from datalattice.wire import encode_frame


class Net(SimChecker):
    """The steps of a simulation whose nodes have one letter each."""

    def __init__(self, names: str, seed: int, **faults: Any) -> None:
        self.on_frame: Callable[[str, bytes], None] = lambda _from, _payload: None
        self._names = names
        self._replicas = {name: Counters() for name in names}
        self._simulation = Simulation(
            seed,
            len(names),
            Faults(**{"delay_ms": 1, **faults}),
            kinds=[counters_kind(lambda: [self], self._open)],
            links=[],
            disks=False,
        )
        self._simulation.begin()

    def _open(self, node: SimNode) -> Counters:
        return self._replicas[self._names[int(node.name[1:])]]

    def on_send(self, node: SimHost, peer: str, payload: bytes) -> None:
        self.on_frame(self._names[int(node.name[1:])], payload)

    @property
    def replicas(self) -> dict[str, Counters]:
        return self._replicas

    @property
    def nodes(self) -> dict[str, SimNode]:
        return dict(zip(self._names, self._simulation.nodes, strict=True))

    @property
    def now_ms(self) -> int:
        return self._simulation.timeline.now_ms

    def connect(self, dialler: str, acceptor: str) -> None:
        self._simulation.connect(self._names.index(dialler), self._names.index(acceptor))

    def cut(self, dialler: str, acceptor: str) -> None:
        self._simulation.cut(self._names.index(dialler), self._names.index(acceptor))

    def lose_all(self, until_ms: int) -> None:
        """Lose every frame for a while."""
        names = [node.name for node in self._simulation.nodes]
        pairs = [(one, other) for one in names for other in names if one != other]
        self._simulation.network.block(pairs, until_ms, lossy=True)

    def calm(self) -> None:
        self._simulation.network.calm()

    def run(self, until_ms: int) -> None:
        self._simulation.run_for(until_ms - self.now_ms)

    def trace(self) -> str:
        return self._simulation.timeline.trace


class Cluster:
    """Counters in a simulated network."""

    def __init__(self, names: str, seed: int = 1, **faults: Any) -> None:
        self.net = Net(names, seed, **faults)
        self.replicas = self.net.replicas

    def write(self, name: str, amount: int = 1) -> None:
        self.replicas[name].add(name, amount)
        self.net.nodes[name].publish()

    @property
    def states(self) -> list[dict[str, int]]:
        return [replica.counts for replica in self.replicas.values()]

    def is_converged(self) -> bool:
        return all(state == self.states[0] for state in self.states)


def offers(cluster: Cluster, kind: str = "offer") -> list[tuple[str, int]]:
    """Record (sender, time) of every push, or other message, from now on."""
    seen: list[tuple[str, int]] = []

    def note(sender: str, payload: bytes) -> None:
        if json.loads(payload)[0] == kind:
            seen.append((sender, cluster.net.now_ms))

    cluster.net.on_frame = note
    return seen


def test_a_write_reaches_the_peer_at_once() -> None:
    cluster = Cluster("ab")
    cluster.net.connect("a", "b")
    cluster.net.run(1_000)
    cluster.write("a", 5)
    cluster.net.run(1_005)
    assert cluster.states == [{"a": 5}, {"a": 5}]


def test_either_end_of_a_connection_pushes() -> None:
    cluster = Cluster("ab")
    cluster.net.connect("a", "b")
    cluster.net.run(1_000)
    cluster.write("b", 7)
    cluster.net.run(1_005)
    assert cluster.states == [{"b": 7}, {"b": 7}]


def test_writes_in_the_window_are_one_push_at_its_end_and_the_last_is_not_lost() -> None:
    cluster = Cluster("ab")
    cluster.net.connect("a", "b")
    cluster.net.run(1_000)
    seen = offers(cluster)
    for _ in range(20):
        cluster.write("a")
        cluster.net.run(cluster.net.now_ms + 2)
    cluster.net.run(1_200)
    assert cluster.states == [{"a": 20}, {"a": 20}]
    times = [time for sender, time in seen if sender == "a"]
    assert times == [1_000, 1_000 + BROADCAST_DELAY_MS]


def test_nothing_is_sent_back_to_where_it_came_from() -> None:
    cluster = Cluster("ab")
    cluster.net.connect("a", "b")
    cluster.net.run(1_000)
    seen = offers(cluster)
    cluster.write("a")
    cluster.net.run(1_500)
    assert [sender for sender, _ in seen] == ["a"]


def test_a_client_that_did_not_join_is_left_alone() -> None:
    cluster = Cluster("ab")
    node = cluster.net.nodes["b"].replicator
    node.open("client", 0, outbound=False)
    assert node.take_effects().sends == []
    cluster.write("b")
    node.tick(ROOT_SYNC_INTERVAL_MS)
    assert node.take_effects().sends == []


@pytest.mark.parametrize("seed", range(10))
def test_lost_frames_are_made_good_by_the_next_root_sync(seed: int) -> None:
    cluster = Cluster("abc", seed, loss=0.3, repeat=0.2, delay_ms=40)
    for dialler, acceptor in ("ab", "bc", "ca"):
        cluster.net.connect(dialler, acceptor)
    for turn in range(60):
        cluster.write("abc"[turn % 3])
        cluster.net.run(cluster.net.now_ms + 13)
    cluster.net.calm()
    # A part that is asked for again and comes would be news, which takes the last write along.
    cluster.net.run(cluster.net.now_ms + 2 * REQUEST_TIMEOUT_MS)
    # What is said last is lost for certain, so nothing but the root sync makes it good.
    cluster.net.lose_all(cluster.net.now_ms + 4 * BROADCAST_DELAY_MS)
    for name in "abc":
        cluster.write(name)
    cluster.net.run(cluster.net.now_ms + 4 * BROADCAST_DELAY_MS)
    cluster.net.calm()
    assert not cluster.is_converged()
    cluster.net.run(cluster.net.now_ms + 2 * ROOT_SYNC_INTERVAL_MS)
    assert cluster.states == [{"a": 21, "b": 21, "c": 21}] * 3


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = []
    for _ in range(2):
        cluster = Cluster("abc", 7, loss=0.2, delay_ms=30)
        cluster.net.connect("a", "b")
        cluster.net.connect("b", "c")
        for name in "abcabc":
            cluster.write(name)
            cluster.net.run(cluster.net.now_ms + 20)
        cluster.net.run(cluster.net.now_ms + ROOT_SYNC_INTERVAL_MS)
        traces.append(cluster.net.trace())
    assert traces[0] == traces[1]


def test_a_peer_that_was_away_catches_up_when_it_connects() -> None:
    cluster = Cluster("ab")
    cluster.write("a", 3)
    cluster.write("b", 4)
    cluster.net.connect("a", "b")
    cluster.net.run(100)
    assert cluster.is_converged()
    cluster.net.cut("a", "b")
    cluster.write("a")
    cluster.write("b")
    cluster.net.run(1_000)
    assert not cluster.is_converged()
    cluster.net.connect("a", "b")
    cluster.net.run(1_100)
    assert cluster.is_converged()


def test_a_slow_peer_gets_one_difference_when_it_has_drained() -> None:
    replica = Counters()
    node = Replicator(replica, JsonProtocol())
    node.open("p", 0, outbound=True)
    node.receive("p", pack("answer", 1, None), 0)
    before = len(node.take_effects().sends)
    now_ms = 0
    for _ in range(300):
        now_ms += BROADCAST_DELAY_MS
        replica.add("x")
        node.publish(now_ms)
    pushed = node.take_effects().sends
    assert len(pushed) + before == UNSENT_MAX
    node.written("p", UNSENT_MAX, now_ms)
    (last,) = node.take_effects().sends
    assert json.loads(json.loads(last[1])[3][0]) == ["x", 300]


def test_a_part_nobody_delivers_is_given_up_after_three_rounds() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=False)
    ghost = hashlib.sha3_256(b"ghost").hexdigest()
    node.receive("p", pack("offer", "00" * 32, [ghost], []), 0)
    asked = 0
    now_ms = 0
    while node.missing_count:
        asked += sum(json.loads(payload)[0] == "want" for _, payload in node.take_effects().sends)
        deadline = node.deadline_ms
        assert deadline is not None
        now_ms = max(now_ms, deadline)
        node.tick(now_ms)
    assert asked == 3
    assert 3 * REQUEST_TIMEOUT_MS < now_ms < 4 * REQUEST_TIMEOUT_MS


def test_the_next_peer_is_asked_when_one_does_not_answer() -> None:
    cluster = Cluster("abc")
    cluster.write("c", 9)
    cluster.net.connect("a", "c")
    cluster.net.run(100)
    # b hears of c's count from a link that never answers, and has a as a helper.
    cluster.net.connect("b", "a")
    cluster.replicas["b"].counts.clear()
    node = cluster.net.nodes["b"]
    node.opened("mute", "n2", outbound=False)
    probe = cluster.replicas["c"].probe
    assert probe is not None
    node.arrived("mute", COUNTERS, encode_frame(pack("offer", probe.key.hex(), probe.data, [])))
    cluster.net.run(cluster.net.now_ms + 2 * REQUEST_TIMEOUT_MS)
    assert cluster.replicas["b"].counts == {"c": 9}


def _asking() -> tuple[Replicator, Counters, list[Any]]:
    """Return a node that has asked the peer "p" for a part, its replica and the request."""
    other = Counters()
    other.add("x", 3)
    other.publish()
    probe = other.probe
    assert probe is not None
    replica = Counters()
    node = Replicator(replica, JsonProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", pack("offer", probe.key.hex(), probe.data, []), 0)
    ((_, payload),) = node.take_effects().sends
    request = json.loads(payload)
    assert request[0] == "want"
    return node, replica, request


def test_what_a_peer_that_leaves_was_asked_for_is_asked_of_another() -> None:
    node, _, (_, _, wanted) = _asking()
    node.open("q", 0, outbound=True)
    node.take_effects()
    node.closed("p", 1)
    requests = [(peer, json.loads(payload)) for peer, payload in node.take_effects().sends]
    assert [(peer, body[0], body[2]) for peer, body in requests] == [("q", "want", wanted)]


def test_an_answer_that_comes_too_late_is_used() -> None:
    node, replica, (_, id, _) = _asking()
    node.tick(REQUEST_TIMEOUT_MS)
    effects = node.take_effects()
    assert [note.kind for note in effects.notes] == ["timeout"]
    node.receive("p", pack("answer", id, [json.dumps(["x", 3])]), REQUEST_TIMEOUT_MS + 1)
    assert replica.counts == {"x": 3}
    assert node.missing_count == 0
    node.receive("p", pack("answer", id, [json.dumps(["x", 3])]), REQUEST_TIMEOUT_MS + 2)
    assert [note.kind for note in node.take_effects().notes] == ["unasked"]


def test_late_answers_are_remembered_for_a_few_requests_only() -> None:
    requests = Requests()
    ids = [requests.add(Request(Want((bytes([n]) * 32,))), 0) for n in range(LATE_MAX + 3)]
    question = requests.add("a question", 0)
    assert len(requests.expired(0)) == LATE_MAX + 4
    assert requests.answered(question) is None
    assert [id for id in ids if requests.answered(id) is not None] == ids[3:]


def test_a_busy_node_does_not_blame_its_peers() -> None:
    node, _, _ = _asking()
    node.tick(0, 2_000)
    assert node.deadline_ms == REQUEST_TIMEOUT_MS + 2_000
    node.tick(REQUEST_TIMEOUT_MS + 1_999)
    assert node.take_effects().notes == []
    node.tick(REQUEST_TIMEOUT_MS + 2_000)
    assert [note.kind for note in node.take_effects().notes] == ["timeout"]


def test_eight_malformed_frames_end_a_connection() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=False)
    for count in range(1, MALFORMED_MAX + 1):
        node.receive("p", pack("nonsense"), 0)
        effects = node.take_effects()
        assert len(effects.sends) == 1
        assert bool(effects.closes) == (count == MALFORMED_MAX)
    node.receive("p", pack("nonsense"), 0)
    assert node.take_effects().sends == []


def test_goodbye_closes_our_side() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", pack("bye"), 0)
    assert [session for session, _ in node.take_effects().closes] == ["p"]


def test_an_answer_to_nothing_is_noted_and_ignored() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", pack("answer", 99, []), 0)
    node.receive("p", pack("answer", True, []), 0)
    effects = node.take_effects()
    assert [note.kind for note in effects.notes] == ["unasked", "unasked"]


def test_the_states_are_compared_every_thirty_seconds() -> None:
    cluster = Cluster("ab")
    cluster.net.connect("a", "b")
    cluster.net.run(100)
    finished = offers(cluster, "finish")
    cluster.net.run(100 + 3 * ROOT_SYNC_INTERVAL_MS)
    assert [sender for sender, _ in finished] == ["b", "a"] * 3


def test_two_states_are_compared_in_rounds_that_grow_with_what_differs() -> None:
    counts = []
    for extra in (0, 1, 8):
        cluster = Cluster("ab")
        for number in range(64):
            for name in "ab":
                cluster.replicas[name].add(f"counter {number}")
        for number in range(extra):
            cluster.replicas["b"].add(f"of b {number}")
        for name in "ab":
            cluster.net.nodes[name].publish()
        rounds = offers(cluster, "round")
        cluster.net.connect("a", "b")
        cluster.net.run(1_000)
        assert cluster.is_converged()
        assert len(cluster.replicas["a"].counts) == 64 + extra
        counts.append(len(rounds))
        for node in cluster.net.nodes.values():
            assert all(not one.comparisons for one in node.replicator._partners.values())
    assert counts[0] == 1  # one fingerprint, and both finish
    assert 3 < counts[1] <= counts[2] <= 12


# --- bounds ---------------------------------------------------------------------------------------


def test_so_many_requests_of_ours_wait_for_one_peer() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=False)
    for token in range(PENDING_MAX):
        node.pull("p", Pull(token), 0)
    effects = node.take_effects()
    assert (len(effects.sends), effects.finished) == (PENDING_MAX, [])
    node.pull("p", Pull("one more"), 0)
    effects = node.take_effects()
    assert effects.sends == []
    assert effects.finished == [("one more", f"{PENDING_MAX} requests wait for this peer already")]


def test_a_peer_whose_values_lack_too_many_parts_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datalattice.sync.replicator.WANTS_MAX", 10)
    for count, ends in ((9, False), (10, False), (11, True)):
        node = Replicator(Counters(), JsonProtocol())
        node.open("p", 0, outbound=False)
        ghosts = [hashlib.sha3_256(bytes([n])).hexdigest() for n in range(count)]
        node.receive("p", pack("offer", "00" * 32, ghosts, []), 0)
        effects = node.take_effects()
        assert bool(effects.closes) is ends
        assert [note.kind for note in effects.notes] == (["closed-missing"] if ends else [])


# --- healing --------------------------------------------------------------------------------------


def _part_of(name: str, count: int) -> Part:
    return text_part(json.dumps([name, count]))


def test_damaged_parts_are_asked_of_every_joined_peer_and_handed_over() -> None:
    replica = Counters()
    node = Replicator(replica, JsonProtocol())
    for peer in "pqr":
        node.open(peer, 0, outbound=peer != "r")
    node.take_effects()
    wanted = [_part_of("x", 1), _part_of("y", 2)]
    node.acquire([part.hash for part in wanted], 0)
    effects = node.take_effects()
    ((peer, payload),) = effects.sends
    assert peer == "p"
    assert json.loads(payload)[0] == "want"
    _, id, hashes = json.loads(payload)
    by_hash = {part.hash.hex(): part for part in wanted}
    first = [
        by_hash[hash].data.decode() if hash == wanted[0].hash.hex() else None for hash in hashes
    ]
    node.receive("p", pack("answer", id, first), 0)
    effects = node.take_effects()
    assert (effects.healed, effects.unhealed) == ([wanted[0].hash], [])
    assert replica.repaired == [wanted[0]]
    ((peer, payload),) = [send for send in effects.sends if json.loads(send[1])[0] == "want"]
    assert peer == "q"
    _, id, hashes = json.loads(payload)
    node.receive("q", pack("answer", id, [wanted[1].data.decode()]), 0)
    effects = node.take_effects()
    assert effects.healed == [wanted[1].hash]
    assert replica.repaired == wanted


def test_what_no_peer_has_is_not_healed() -> None:
    node = Replicator(Counters(), JsonProtocol())
    hash = hashlib.sha3_256(b"gone").digest()
    node.acquire([hash, hash], 0)
    assert node.take_effects().unhealed == [hash]  # nobody is there to be asked
    node.open("p", 0, outbound=True)
    node.acquire([hash], 0)
    unhealed: list[bytes] = []
    now_ms = 0
    while not unhealed:
        for _, payload in node.take_effects().sends:
            if json.loads(payload)[0] == "want":
                node.receive("p", pack("answer", json.loads(payload)[1], [None]), now_ms)
        unhealed += node.take_effects().unhealed
        now_ms += 300
        node.tick(now_ms)
    assert unhealed == [hash]


def test_a_peer_that_leaves_while_healing_leaves_it_undone() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=True)
    hash = hashlib.sha3_256(b"gone").digest()
    node.acquire([hash], 0)
    node.closed("p", 1)
    assert node.take_effects().unhealed == [hash]


def test_a_part_that_cannot_be_kept_is_not_healed() -> None:
    class Full(Counters):
        def repair(self, parts: Sequence[Part]) -> None:
            raise StoreFull("the disk is full")

    node = Replicator(Full(), JsonProtocol())
    node.open("p", 0, outbound=True)
    node.take_effects()
    part = _part_of("x", 1)
    node.acquire([part.hash], 0)
    ((_, payload),) = node.take_effects().sends
    with pytest.raises(StoreFull):
        node.receive("p", pack("answer", json.loads(payload)[1], [part.data.decode()]), 0)
    effects = node.take_effects()
    assert (effects.healed, effects.unhealed) == ([], [part.hash])


# --- sessions that are full, or at their end ------------------------------------------------------


def test_parts_are_asked_for_as_soon_as_a_full_peer_reads_again() -> None:
    other = Counters()
    other.add("x", 3)
    other.publish()
    probe = other.probe
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=False)
    for _ in range(UNSENT_MAX):
        node.receive("p", pack("want", 1, []), 0)
    node.receive("p", pack("offer", probe.key.hex(), probe.data, []), 0)
    assert len(node.take_effects().sends) == UNSENT_MAX
    node.written("p", 1, 1)
    ((_, payload),) = node.take_effects().sends
    assert json.loads(payload)[0] == "want"


def test_parts_that_an_offer_of_another_peer_needs_are_asked_of_that_peer() -> None:
    class Queueing(Counters):
        """Finds out what the offer of `late` needs when `quick` says something."""

        def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
            return Absorbed(lacking={"late": [bytes(32)], "gone": [bytes([1]) * 32]})

    node = Replicator(Queueing(), JsonProtocol())
    for peer in ("mute", "late", "quick"):
        node.open(peer, 0, outbound=True)
    node.take_effects()
    node.receive("quick", pack("offer", "00", [], []), 0)
    sends = [(peer, json.loads(payload)) for peer, payload in node.take_effects().sends]
    asked = {peer: said[2] for peer, said in sends if said[0] == "want"}
    assert asked == {"late": [bytes(32).hex()], "quick": [(bytes([1]) * 32).hex()]}


def test_parts_that_a_replica_needs_no_more_are_not_asked_for() -> None:
    class Fickle(Counters):
        """Finds out with the first part that it wants none of the others."""

        def __init__(self) -> None:
            super().__init__()
            self.wanted: list[bytes] = []

        def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
            if offer.parts:
                return Absorbed(unwanted=self.wanted)
            absorbed = super().absorb(offer, peer, asked=asked)
            self.wanted = absorbed.missing
            return absorbed

    source = Counters()
    for number in range(100):
        source.add(f"counter {number}")
    source.publish()
    node = Replicator(Fickle(), JsonProtocol())
    node.open("p", 0, outbound=True)
    node.take_effects()
    begin = Offer(source.probe)
    assert begin.probe is not None
    stated = pack("offer", begin.probe.key.hex(), hashes_of(begin.probe), [])
    node.receive("p", stated, 0)
    assert node.missing_count == 100
    request = json.loads(node.take_effects().sends[-1][1])
    wanted = Want(tuple(bytes.fromhex(one) for one in request[2]))
    replies = [reply.body for reply in source.serve(Peer("p"), wanted)]
    given = [part.data.decode() for body in replies if isinstance(body, list) for part in body]
    node.receive("p", pack("answer", request[1], given), 0)
    assert node.missing_count == 0
    assert not any(json.loads(one)[0] == "want" for _, one in node.take_effects().sends)


# --- answers of several replies -------------------------------------------------------------------


def counting(count: int, names: str = "counter") -> tuple[Counters, list[str]]:
    """Return counters, and the hashes of their parts in hex."""
    source = Counters()
    for number in range(count):
        source.add(f"{names} {number}")
    source.publish()
    return source, hashes_of(source.probe)


def messages(node: Replicator) -> list[list[Any]]:
    return [json.loads(payload) for _, payload in node.take_effects().sends]


def test_what_follows_of_an_answer_is_made_as_the_peer_reads() -> None:
    source, hashes = counting(2 * REPLY_PARTS * ANSWERED_MAX)
    node = Replicator(source, JsonProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", pack("want", 7, hashes), 0)
    came = messages(node)
    assert len(came) == ANSWERED_MAX
    node.written("p", 1, 0)
    came += (more := messages(node))
    assert len(more) == 1
    node.written("p", ANSWERED_MAX, 0)
    came += messages(node)
    assert [one[:2] for one in came[:-1]] == [["more", 7]] * (2 * ANSWERED_MAX - 1)
    assert came[-1][:2] == ["answer", 7]
    assert [text_part(text).hash.hex() for one in came for text in one[2]] == hashes
    node.written("p", ANSWERED_MAX, 0)
    assert messages(node) == []


def test_answers_that_go_on_take_turns() -> None:
    source, hashes = counting(4 * REPLY_PARTS)
    node = Replicator(source, JsonProtocol())
    node.open("p", 0, outbound=False)
    for _ in range(ANSWERED_MAX):  # the peer reads nothing for a while
        node.receive("p", pack("want", 1, []), 0)
    node.take_effects()
    for id in (8, 9):
        node.receive("p", pack("want", id, hashes), 0)
    assert [one[1] for one in messages(node)] == [8, 9], "the first reply of each comes at once"
    node.written("p", 2 * ANSWERED_MAX, 0)
    assert [one[1] for one in messages(node)] == [8, 9, 8, 9, 8, 9]


def test_so_many_answers_may_be_open_and_what_is_asked_beyond_is_refused() -> None:
    source, hashes = counting(2 * REPLY_PARTS)
    node = Replicator(source, JsonProtocol())
    node.open("p", 0, outbound=False)
    for _ in range(ANSWERED_MAX):
        node.receive("p", pack("want", 1, []), 0)
    node.take_effects()
    for id in range(ANSWERS_MAX + 1):
        node.receive("p", pack("want", id, hashes), 0)
    effects = node.take_effects()
    came = [json.loads(payload) for _, payload in effects.sends]
    assert [one[0] for one in came] == ["more"] * ANSWERS_MAX + ["answer"]
    assert came[-1] == ["answer", ANSWERS_MAX, None]
    assert [note.kind for note in effects.notes] == ["answers-refused"]
    node.written("p", 1_000, 0)
    node.written("p", 1_000, 0)
    node.take_effects()
    node.receive("p", pack("want", 5, hashes[:1]), 0)
    assert messages(node)[-1][2] != [None], "there is room again"


def test_an_answer_to_a_peer_that_is_refused_meanwhile_does_not_go_on() -> None:
    source, hashes = counting(4 * REPLY_PARTS * ANSWERED_MAX)
    node = Replicator(source, JsonProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", pack("want", 7, hashes), 0)
    node.take_effects()
    source.refused.add("p")
    node.written("p", ANSWERED_MAX, 0)
    assert messages(node) == []
    node.settle(Absorbed(readmits=True), "", 0)
    assert messages(node) == [["answer", 7, None]]
    source.refused.clear()
    node.settle(Absorbed(readmits=True), "", 0)
    node.written("p", 1_000, 0)
    assert not any(one[0] == "more" for one in messages(node))


def test_parts_come_in_several_replies_and_the_last_tells_what_is_lacking() -> None:
    source, hashes = counting(3)
    texts = {part.hash.hex(): part.data.decode() for part in source.parts.values()}
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=True)
    node.receive("p", pack("offer", "00", hashes, []), 0)
    want = messages(node)[-1]
    assert want[0] == "want"
    assert len(want[2]) == JsonConversation.batch_max == 3
    node.receive("p", pack("more", want[1], [texts[want[2][0]], None]), 4_000)
    assert node.missing_count == 2
    again = [one for one in messages(node) if one[0] == "want"]
    assert again == [], "the one that is lacking is asked again later"
    node.tick(5_001)
    assert not any(note.kind == "timeout" for note in node.take_effects().notes)
    node.receive("p", pack("answer", want[1], [texts[want[2][2]]]), 5_001)
    assert node.missing_count == 1
    node.receive("p", pack("more", want[1], [texts[want[2][2]]]), 5_001)
    assert [note.kind for note in node.take_effects().notes] == ["unasked"]


# --- the gate -------------------------------------------------------------------------------------


def test_to_a_refused_peer_nothing_is_said_and_nothing_of_it_counts() -> None:
    source = Counters()
    source.add("x", 3)
    source.publish()
    stated = source.probe
    assert stated is not None
    replica = Counters()
    replica.refused.add("p")
    node = Replicator(replica, JsonProtocol())
    node.open("p", 0, outbound=True)
    node.receive("p", pack("answer", 1, None), 0)  # it answers the greeting
    replica.add("y", 1)
    node.publish(0)
    node.acquire([b"h" * 32], 0)
    node.receive("p", pack("offer", stated.key.hex(), stated.data, []), 0)
    node.pull("p", Pull("token"), 0)
    node.tick(ROOT_SYNC_INTERVAL_MS)
    effects = node.take_effects()
    assert [json.loads(payload)[0] for _, payload in effects.sends] == ["hello"]
    assert replica.counts == {"y": 1}
    assert node.missing_count == 1  # what is to be acquired waits for another
    # A question is answered as that for something unknown.
    node.receive("p", pack("want", 7, []), ROOT_SYNC_INTERVAL_MS)
    ((_, payload),) = node.take_effects().sends
    assert json.loads(payload) == ["answer", 7, None]
    replica.refused.clear()
    node.receive("p", pack("offer", stated.key.hex(), stated.data, []), ROOT_SYNC_INTERVAL_MS)
    kinds = {json.loads(payload)[0] for _, payload in node.take_effects().sends}
    assert kinds == {"offer", "want"}


def test_the_deadline_is_that_of_whoever_is_due_first(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = vars(Replicator)["deadline_ms"].fget
    asked = 0

    def searched(node: Replicator) -> int | None:
        nonlocal asked
        asked += 1
        times = [partner.due_ms for partner in node._partners.values()]
        times.append(node._wants.next_wake_ms)
        expected = min((ms for ms in times if ms is not None), default=None)
        assert noted(node) == expected
        return expected

    monkeypatch.setattr(Replicator, "deadline_ms", property(searched))
    for seed in range(5):
        cluster = Cluster("abc", seed, loss=0.3, repeat=0.2, delay_ms=40)
        for dialler, acceptor in ("ab", "bc", "ca"):
            cluster.net.connect(dialler, acceptor)
        for turn in range(60):
            if turn == 40:
                cluster.net.cut("a", "b")
            cluster.write("abc"[turn % 3])
            cluster.net.run(cluster.net.now_ms + 13)
        cluster.net.run(cluster.net.now_ms + 2 * ROOT_SYNC_INTERVAL_MS)
    assert asked > 1_000


def test_what_a_refused_peer_is_not_told_wakes_nobody() -> None:
    replica = Counters()
    node = Replicator(replica, JsonProtocol())
    node.open("p", 0, outbound=True)
    node.receive("p", pack("answer", 1, None), 0)
    replica.refused.add("p")
    replica.add("y", 1)
    node.publish(0)
    now_ms = node.deadline_ms
    assert now_ms is not None
    for _ in range(3):
        node.tick(now_ms)
        assert node.deadline_ms is not None
        assert node.deadline_ms > now_ms
        now_ms = node.deadline_ms
    replica.refused.clear()
    node.tick(now_ms)
    assert "offer" in {json.loads(payload)[0] for _, payload in node.take_effects().sends}


def _met_and_refused() -> tuple[Replicator, Counters]:
    """Return a node that does not admit p, which has answered its greeting."""
    replica = Counters()
    replica.refused.add("p")
    node = Replicator(replica, JsonProtocol())
    node.open("p", 0, outbound=True)
    node.receive("p", pack("answer", 1, None), 0)
    node.take_effects()
    return node, replica


def said(node: Replicator) -> list[str]:
    """Return the kinds of messages that a node sends."""
    return [json.loads(payload)[0] for _, payload in node.take_effects().sends]


def test_a_peer_that_is_admitted_later_is_compared_and_told_at_once() -> None:
    node, replica = _met_and_refused()
    replica.add("y", 1)
    node.publish(0)
    assert said(node) == []
    replica.refused.clear()
    node.settle(Absorbed(readmits=True), "", 1)
    assert said(node) == ["round", "offer"]
    node.settle(Absorbed(readmits=True), "", 2)  # nothing has changed
    assert said(node) == []


def test_what_is_open_with_a_peer_ends_when_it_is_no_longer_admitted() -> None:
    node, replica, (_, id, wanted) = _asking()
    node.open("q", 0, outbound=True)
    node.pull("p", Pull("token"), 0)
    node.take_effects()
    replica.refused.add("p")
    node.settle(Absorbed(readmits=True), "", 1)
    effects = node.take_effects()
    sent = [(peer, json.loads(payload)) for peer, payload in effects.sends]
    assert [body[0] for peer, body in sent if peer == "p"] == ["deny"]
    assert [body[2] for peer, body in sent if peer == "q" and body[0] == "want"] == [wanted]
    ((token, error),) = effects.finished
    assert token == "token"
    assert error
    node.receive("p", pack("answer", id, [json.dumps(["x", 3])]), 2)
    assert replica.counts == {}


def test_parts_that_come_when_a_peer_is_refused_are_asked_of_another() -> None:
    node, replica, (_, id, wanted) = _asking()
    node.open("q", 0, outbound=True)
    node.take_effects()
    replica.refused.add("p")
    node.receive("p", pack("answer", id, [json.dumps(["x", 3])]), 1)
    effects = node.take_effects()
    assert [note.kind for note in effects.notes] == ["not-admitted"]
    assert replica.counts == {}
    node.tick(2)
    asked = [(peer, json.loads(payload)) for peer, payload in node.take_effects().sends]
    assert [(peer, body[2]) for peer, body in asked if body[0] == "want"] == [("q", wanted)]


def test_a_comparison_that_a_refused_peer_begins_is_denied() -> None:
    replica = Counters()
    replica.refused.add("p")
    node = Replicator(replica, JsonProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", pack("round", 1, [["0", "g" * 64, "?"]]), 0)
    effects = node.take_effects()
    assert [json.loads(payload) for _, payload in effects.sends] == [["deny", -1]]


def test_a_comparison_with_a_peer_that_falls_silent_is_given_up() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=True)
    node.receive("p", pack("answer", 1, None), 0)
    node.pull("p", Pull("token"), 0)
    node.tick(COUNTER_SILENCE_MS - 1)
    assert node.take_effects().finished == []
    node.tick(COUNTER_SILENCE_MS)
    assert node.take_effects().finished == [("token", NO_ANSWER)]
    node.receive("p", pack("round", -2, [["0", "g" * 64, "?"]]), COUNTER_SILENCE_MS)  # too late
    assert node.take_effects().sends == []


def test_a_comparison_that_the_peer_began_and_left_is_given_up() -> None:
    node = Replicator(Counters(), JsonProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", pack("round", 1, [["0", "g" * 64, "?"]]), 0)
    assert node.deadline_ms == COUNTER_SILENCE_MS
    node.tick(COUNTER_SILENCE_MS)
    assert "comparison-failed" in [note.kind for note in node.take_effects().notes]
    assert node.deadline_ms is None
