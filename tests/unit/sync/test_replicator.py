"""A replicator over a counter: the seam serves something that is no lattice and speaks JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from datalattice.cells import Value
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, ProtocolViolation, StoreFull
from datalattice.sync import (
    BROADCAST_DELAY_MS,
    MALFORMED_MAX,
    PENDING_MAX,
    REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS,
    UNSENT_MAX,
    Absorbed,
    Answered,
    Challenged,
    Change,
    Heard,
    Joined,
    Left,
    Offer,
    Offered,
    Part,
    Probe,
    Pull,
    Replicator,
    Start,
    Wanted,
)
from datalattice.sync.plain import PlainUpdate
from datalattice.sync.session import LATE_MAX, Pending, Purpose, Session
from datalattice.testing.sim import Checker, Faults, Observed, SimNode, Simulation
from datalattice.wire import encode_frame


class CounterReplica:
    """Grow-only counts by name: the smallest thing that replicates. A part is one (name, count)."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._published: dict[str, int] = {}
        self._parts: dict[bytes, Part] = {}
        self.repaired: list[Part] = []

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def publish(self) -> Change:
        changed = self._published != self.counts
        self._published = dict(self.counts)
        return Change(changed, self._probe())

    def absorb(self, offer: Offer, peer: str) -> Absorbed:
        before = dict(self.counts)
        for part in offer.parts:
            self._parts[part.hash] = part
            name, count = json.loads(part.data)
            self.counts[name] = max(count, self.counts.get(name, 0))
        changed = self.counts != before
        self._published = dict(self.counts)
        if offer.probe is None:
            return Absorbed(changed=changed)
        missing = [
            hash for hash in map(bytes.fromhex, probe_parts(offer.probe)) if not self._has(hash)
        ]
        holds = () if missing else ((peer, offer.probe),)
        done = () if missing else (offer.probe.key,)
        return Absorbed(tuple(missing), holds, done, (), changed)

    def supply(self, want: Sequence[bytes], peer: str) -> list[Part | None]:
        return [self._parts.get(hash) for hash in want]

    def begin(self, peer: str) -> Offer:
        return Offer(self._probe())

    def repair(self, parts: Sequence[Part]) -> None:
        self.repaired.extend(parts)

    def answer(self, known: Sequence[Probe], peer: str) -> Offer | None:
        probe = self._probe()
        if any(base.key == probe.key for base in known):
            return None
        there = {hash for base in known for hash in probe_parts(base)}
        parts = [self._parts[bytes.fromhex(h)] for h in probe_parts(probe) if h not in there]
        return Offer(probe, tuple(parts))

    def _has(self, hash: bytes) -> bool:
        # A count that was overtaken is contained, too.
        return hash in self._parts

    def _probe(self) -> Probe:
        hashes = []
        for name in sorted(self._published):
            data = json.dumps([name, self._published[name]]).encode()
            hash = hashlib.sha3_256(data).digest()
            self._parts[hash] = Part(hash, data)
            hashes.append(hash.hex())
        return Probe(hashlib.sha3_256("".join(hashes).encode()).digest(), hashes)


def probe_parts(probe: Probe) -> list[str]:
    assert isinstance(probe.data, list)
    return probe.data


class JsonCodec:
    """A wire protocol of JSON, to show that a replicator does not know its codec."""

    batch_max = 3

    def decode(self, payload: bytes, peer: str) -> Heard:
        match json.loads(payload):
            case ["offer", key, hashes, parts]:
                return Offered(self._offer(key, hashes, parts))
            case ["want", id, hashes]:
                return Wanted(id, tuple(map(bytes.fromhex, hashes)))
            case ["answer", id, content]:
                return Answered(id, content)
            case ["hello", id]:
                return Joined(_pack("answer", id, None))
            case ["ask", id]:
                return Wanted(["state", id], ())
            case ["challenge", id, token]:
                return Challenged((id, token))
            case ["bye"]:
                return Left()
            case other:
                raise BadFormat(f"not a message: {other}")

    def parts(self, content: object, hashes: Sequence[bytes]) -> list[Part | None]:
        assert isinstance(content, list)
        return [None if text is None else _part(text) for text in content]

    def started(self, content: object) -> Value:
        return None

    def twin(self, id: int, start: Start) -> bytes:
        return _pack("twin", id)

    def offer(self, content: object, path: tuple[Value, ...] = ()) -> Offer | None:
        return None

    def more_questions(self, turn: int) -> Sequence[tuple[Value, ...]]:
        return ()

    def more(self, content: object, path: tuple[Value, ...], turn: int) -> Offer | None:
        return None

    def refuse(self, text: str) -> bytes:
        return _pack("bad", text)

    def hello(self, id: int) -> bytes:
        return _pack("hello", id)

    def questions(self, *, plain: bool) -> Sequence[tuple[Value, ...]]:
        return ((),)

    def ask(self, id: int, path: tuple[Value, ...] = ()) -> bytes:
        return _pack("ask", id)

    def welcomed(self, content: object) -> bool:
        return False

    def is_plain(self, content: object) -> bool:
        return False

    def spell_out(self, heard: Sequence[Probe], told: Probe | None, peer: str) -> PlainUpdate:
        raise AssertionError("no peer here is plain")

    def challenger(self, challenge: object) -> bytes | None:
        return None

    def push(self, offer: Offer, *, terse: bool) -> bytes:
        assert offer.probe is not None
        parts = [part.data.decode() for part in offer.parts]
        return _pack("offer", offer.probe.key.hex(), offer.probe.data, parts)

    def want(self, id: int, hashes: Sequence[bytes]) -> bytes:
        return _pack("want", id, [hash.hex() for hash in hashes])

    def give(self, request: object, parts: Sequence[Part | None], hashes: Sequence[bytes]) -> bytes:
        id = request[1] if isinstance(request, list) else request
        return _pack("answer", id, [None if part is None else part.data.decode() for part in parts])

    def challenge(self, id: int, asker: KeyPair, token: bytes, wanted: bytes | None) -> bytes:
        return _pack("challenge", id, token.hex())

    def prove(self, challenge: object, own: KeyPair | None) -> bytes:
        assert isinstance(challenge, tuple)
        id, token = challenge
        return _pack("answer", id, [token, None if own is None else own.public_key.hex()])

    def proof(self, content: object, asker: KeyPair, token: bytes, wanted: bytes | None) -> bytes:
        match content:
            case [str(echo), str(key)] if echo == token.hex():
                if wanted in (None, bytes.fromhex(key)):
                    return bytes.fromhex(key)
        raise ProtocolViolation("no proof")

    def _offer(self, key: str, hashes: list[str], parts: list[str]) -> Offer:
        return Offer(Probe(bytes.fromhex(key), hashes), tuple(map(_part, parts)))


def _pack(*items: Any) -> bytes:
    return json.dumps(items).encode()


def _part(text: str) -> Part:
    data = text.encode()
    return Part(hashlib.sha3_256(data).digest(), data)


class Net(Checker):
    """The steps of a simulation whose nodes have one letter each."""

    def __init__(self, names: str, seed: int, **faults: Any) -> None:
        self.on_frame: Callable[[str, bytes], None] = lambda _from, _payload: None
        self._names = names
        self._replicas = {name: CounterReplica() for name in names}
        self._simulation = Simulation(
            seed,
            len(names),
            Faults(**{"delay_ms": 1, **faults}),
            replica=self._open,
            links=[],
            disks=False,
            checkers=[self],
        )
        self._simulation.begin()

    def _open(self, node: SimNode) -> tuple[CounterReplica, JsonCodec]:
        return self._replicas[self._names[int(node.name[1:])]], JsonCodec()

    def on_send(self, node: Observed, payload: bytes) -> None:
        self.on_frame(self._names[int(node.name[1:])], payload)

    @property
    def replicas(self) -> dict[str, CounterReplica]:
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


def offers(cluster: Cluster) -> list[tuple[str, int]]:
    """Record (sender, time) of every push from now on."""
    seen: list[tuple[str, int]] = []

    def note(sender: str, payload: bytes) -> None:
        if json.loads(payload)[0] == "offer":
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
    replica = CounterReplica()
    node = Replicator(replica, JsonCodec())
    node.open("p", 0, outbound=True)
    node.receive("p", _pack("answer", 1, None), 0)
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
    node = Replicator(CounterReplica(), JsonCodec())
    node.open("p", 0, outbound=False)
    ghost = hashlib.sha3_256(b"ghost").hexdigest()
    node.receive("p", _pack("offer", "00" * 32, [ghost], []), 0)
    asked = 0
    now_ms = 0
    while node.missing_count:
        asked += sum(json.loads(payload)[0] == "want" for _, payload in node.take_effects().sends)
        deadline = node.next_deadline()
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
    node.opened("mute", "nobody", outbound=False)
    probe = cluster.replicas["c"].begin("").probe
    assert probe is not None
    node.arrived("mute", encode_frame(_pack("offer", probe.key.hex(), probe.data, [])))
    cluster.net.run(cluster.net.now_ms + 2 * REQUEST_TIMEOUT_MS)
    assert cluster.replicas["b"].counts == {"c": 9}


def _asking() -> tuple[Replicator, CounterReplica, list[Any]]:
    """Return a node that has asked the peer "p" for a part, its replica and the request."""
    other = CounterReplica()
    other.add("x", 3)
    other.publish()
    probe = other.begin("").probe
    assert probe is not None
    replica = CounterReplica()
    node = Replicator(replica, JsonCodec())
    node.open("p", 0, outbound=False)
    node.receive("p", _pack("offer", probe.key.hex(), probe.data, []), 0)
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
    node.receive("p", _pack("answer", id, [json.dumps(["x", 3])]), REQUEST_TIMEOUT_MS + 1)
    assert replica.counts == {"x": 3}
    assert node.missing_count == 0
    node.receive("p", _pack("answer", id, [json.dumps(["x", 3])]), REQUEST_TIMEOUT_MS + 2)
    assert [note.kind for note in node.take_effects().notes] == ["unasked"]


def test_late_answers_are_remembered_for_a_few_requests_only() -> None:
    session = Session("p", outbound=True, joined=True, opened_ms=0)
    for id in range(LATE_MAX + 3):
        session.pending[id] = Pending(Purpose.WANT, 0, (bytes([id]) * 32,))
        session.expire(id)
    session.pending[99] = Pending(Purpose.ASK, 0)
    session.expire(99)
    assert list(session.late) == list(range(3, LATE_MAX + 3))


def test_a_busy_node_does_not_blame_its_peers() -> None:
    node, _, _ = _asking()
    node.excuse(2_000)
    assert node.next_deadline() == REQUEST_TIMEOUT_MS + 2_000
    node.tick(REQUEST_TIMEOUT_MS + 1_999)
    assert node.take_effects().notes == []
    node.tick(REQUEST_TIMEOUT_MS + 2_000)
    assert [note.kind for note in node.take_effects().notes] == ["timeout"]


def test_eight_malformed_frames_end_a_connection() -> None:
    node = Replicator(CounterReplica(), JsonCodec())
    node.open("p", 0, outbound=False)
    for count in range(1, MALFORMED_MAX + 1):
        node.receive("p", _pack("nonsense"), 0)
        effects = node.take_effects()
        assert len(effects.sends) == 1
        assert bool(effects.closes) == (count == MALFORMED_MAX)
    node.receive("p", _pack("nonsense"), 0)
    assert node.take_effects().sends == []


def test_goodbye_closes_our_side() -> None:
    node = Replicator(CounterReplica(), JsonCodec())
    node.open("p", 0, outbound=False)
    node.receive("p", _pack("bye"), 0)
    assert [session for session, _ in node.take_effects().closes] == ["p"]


def test_an_answer_to_nothing_is_noted_and_ignored() -> None:
    node = Replicator(CounterReplica(), JsonCodec())
    node.open("p", 0, outbound=False)
    node.receive("p", _pack("answer", 99, []), 0)
    node.receive("p", _pack("answer", True, []), 0)
    effects = node.take_effects()
    assert [note.kind for note in effects.notes] == ["unasked", "unasked"]


def test_the_root_is_stated_every_thirty_seconds() -> None:
    cluster = Cluster("ab")
    cluster.net.connect("a", "b")
    cluster.net.run(100)
    seen = offers(cluster)
    cluster.net.run(100 + 3 * ROOT_SYNC_INTERVAL_MS)
    for name in "ab":
        times = [time for sender, time in seen if sender == name]
        assert len(times) == 3


# --- bounds ---------------------------------------------------------------------------------------


def test_so_many_requests_of_ours_wait_for_one_peer() -> None:
    node = Replicator(CounterReplica(), JsonCodec())
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
        node = Replicator(CounterReplica(), JsonCodec())
        node.open("p", 0, outbound=False)
        ghosts = [hashlib.sha3_256(bytes([n])).hexdigest() for n in range(count)]
        node.receive("p", _pack("offer", "00" * 32, ghosts, []), 0)
        effects = node.take_effects()
        assert bool(effects.closes) is ends
        assert [note.kind for note in effects.notes] == (["closed-missing"] if ends else [])


# --- healing --------------------------------------------------------------------------------------


def _part_of(name: str, count: int) -> Part:
    return _part(json.dumps([name, count]))


def test_damaged_parts_are_asked_of_every_joined_peer_and_handed_over() -> None:
    replica = CounterReplica()
    node = Replicator(replica, JsonCodec())
    for peer in "pqr":
        node.open(peer, 0, outbound=peer != "r")
    node.take_effects()
    wanted = [_part_of("x", 1), _part_of("y", 2)]
    node.heal([part.hash for part in wanted], 0)
    effects = node.take_effects()
    ((peer, payload),) = effects.sends
    assert peer == "p"
    assert json.loads(payload)[0] == "want"
    _, id, hashes = json.loads(payload)
    by_hash = {part.hash.hex(): part for part in wanted}
    first = [
        by_hash[hash].data.decode() if hash == wanted[0].hash.hex() else None for hash in hashes
    ]
    node.receive("p", _pack("answer", id, first), 0)
    effects = node.take_effects()
    assert (effects.healed, effects.unhealed) == ([wanted[0].hash], [])
    assert replica.repaired == [wanted[0]]
    ((peer, payload),) = [send for send in effects.sends if json.loads(send[1])[0] == "want"]
    assert peer == "q"
    _, id, hashes = json.loads(payload)
    node.receive("q", _pack("answer", id, [wanted[1].data.decode()]), 0)
    effects = node.take_effects()
    assert effects.healed == [wanted[1].hash]
    assert replica.repaired == wanted


def test_what_no_peer_has_is_not_healed() -> None:
    node = Replicator(CounterReplica(), JsonCodec())
    hash = hashlib.sha3_256(b"gone").digest()
    node.heal([hash, hash], 0)
    assert node.take_effects().unhealed == [hash]  # nobody is there to be asked
    node.open("p", 0, outbound=True)
    node.heal([hash], 0)
    unhealed: list[bytes] = []
    now_ms = 0
    while not unhealed:
        for _, payload in node.take_effects().sends:
            if json.loads(payload)[0] == "want":
                node.receive("p", _pack("answer", json.loads(payload)[1], [None]), now_ms)
        unhealed += node.take_effects().unhealed
        now_ms += 300
        node.tick(now_ms)
    assert unhealed == [hash]


def test_a_peer_that_leaves_while_healing_leaves_it_undone() -> None:
    node = Replicator(CounterReplica(), JsonCodec())
    node.open("p", 0, outbound=True)
    hash = hashlib.sha3_256(b"gone").digest()
    node.heal([hash], 0)
    node.closed("p", 1)
    assert node.take_effects().unhealed == [hash]


def test_a_part_that_cannot_be_kept_is_not_healed() -> None:
    class Full(CounterReplica):
        def repair(self, parts: Sequence[Part]) -> None:
            raise StoreFull("the disk is full")

    node = Replicator(Full(), JsonCodec())
    node.open("p", 0, outbound=True)
    node.take_effects()
    part = _part_of("x", 1)
    node.heal([part.hash], 0)
    ((_, payload),) = node.take_effects().sends
    with pytest.raises(StoreFull):
        node.receive("p", _pack("answer", json.loads(payload)[1], [part.data.decode()]), 0)
    effects = node.take_effects()
    assert (effects.healed, effects.unhealed) == ([], [part.hash])


# --- sessions that are full, or at their end ------------------------------------------------------


def test_parts_are_asked_for_as_soon_as_a_full_peer_reads_again() -> None:
    other = CounterReplica()
    other.add("x", 3)
    probe = other.publish().probe
    node = Replicator(CounterReplica(), JsonCodec())
    node.open("p", 0, outbound=False)
    for _ in range(UNSENT_MAX):
        node.receive("p", _pack("want", 1, []), 0)
    node.receive("p", _pack("offer", probe.key.hex(), probe.data, []), 0)
    assert len(node.take_effects().sends) == UNSENT_MAX
    node.written("p", 1, 1)
    ((_, payload),) = node.take_effects().sends
    assert json.loads(payload)[0] == "want"


def test_a_connection_that_is_closing_has_nothing_due() -> None:
    session = Session("p", outbound=True, joined=True, opened_ms=0, dirty=True, greeted=True)
    assert list(session.deadlines()) == [0, 0]
    session.closing = True
    assert list(session.deadlines()) == []


def test_parts_that_a_replica_needs_no_more_are_not_asked_for() -> None:
    class Fickle(CounterReplica):
        """Finds out with the first part that it wants none of the others."""

        def __init__(self) -> None:
            super().__init__()
            self.wanted: tuple[bytes, ...] = ()

        def absorb(self, offer: Offer, peer: str) -> Absorbed:
            if offer.parts:
                return Absorbed(unwanted=self.wanted)
            absorbed = super().absorb(offer, peer)
            self.wanted = absorbed.missing
            return absorbed

    source = CounterReplica()
    for number in range(100):
        source.add(f"counter {number}")
    source.publish()
    node = Replicator(Fickle(), JsonCodec())
    node.open("p", 0, outbound=True)
    node.take_effects()
    begin = source.begin("p")
    assert begin.probe is not None
    stated = _pack("offer", begin.probe.key.hex(), probe_parts(begin.probe), [])
    node.receive("p", stated, 0)
    assert node.missing_count == 100
    request = json.loads(node.take_effects().sends[-1][1])
    parts = source.supply([bytes.fromhex(one) for one in request[2]], "p")
    given = [part.data.decode() for part in parts if part is not None]
    node.receive("p", _pack("answer", request[1], given), 0)
    assert node.missing_count == 0
    assert not any(json.loads(one)[0] == "want" for _, one in node.take_effects().sends)
