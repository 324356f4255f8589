"""Simulation: a cluster of nodes, their users, faults and hostile peers, from one seed.

    outcome = Simulation(seed=7, nodes=5, faults=Faults(loss=0.1, crashes=3)).run()
    assert outcome.violation is None, outcome

It owns the time and calls the nodes directly: no event loop, no thread, no clock of this machine.
The same arguments give the same events, to the byte; `SimOutcome.trace` is their hash.

Length: one run from set-up to end; its parts have their own modules.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from datalattice.crypto import KeyPair
from datalattice.lattice import Lattice, root_lattice
from datalattice.sync import BROADCAST_DELAY_MS, Pace
from datalattice.testing.dice import Dice
from datalattice.testing.sim.checkers import SimChecker, Violation
from datalattice.testing.sim.doubles import Doubles
from datalattice.testing.sim.faults import NO_FAULTS, Faults
from datalattice.testing.sim.hostile import HostilePeer
from datalattice.testing.sim.lattice import EVIDENCE_LIMITS, lattice_kind
from datalattice.testing.sim.network import End, SimNetwork
from datalattice.testing.sim.node import ReplicaKind, SimNode, SimWorld, Workload
from datalattice.testing.sim.reference import SimReference, are_like, judge
from datalattice.testing.sim.timeline import Timeline
from datalattice.testing.sim.topology import Topology, diameter, draw_links
from datalattice.testing.sim.trust import standard_checkers
from datalattice.testing.sim.workload import standard_workload

CONVERGE_MS: Final = 100_000
"""Limit for all nodes to become equal once faults stop: three periodic statements of the root, and
the timeouts of requests that were under way."""

CALM_MS: Final = 12_000
"""Longest wait until nodes are calm: they have greeted one another and wait for no answer."""

CALM_LOOKS: Final = 5  # one look may fall between two messages
"""Checks in a row that must find all nodes calm."""

HOP_MS: Final = BROADCAST_DELAY_MS + 60
"""Limit for a change to pass one link without faults: the pace window and a few round trips."""

LOST_MS: Final = 200
"""Time during which all frames are lost after the faulty time, in half of the runs."""

_WRITES: Final = 300  # enough for concurrent writes on every node
"""Writes in a faulty time, divided by the number of nodes and hostile peers."""

_EVENTS_MAX: Final = 1_000_000  # a loop of messages must end as a violation, not hang
"""More events than any run that makes progress has."""

SLICE_MS: Final = 500
"""Time between checks whether there were enough events."""

EXCLUSION_MS: Final = 200
"""Time within which all others exclude a node, or admit it."""

COPY_REDIAL_MS: Final = 4_000
"""Pause before a node dials its own copy again, which closes the connection at once."""

LOOK_MS: Final = 250
"""Time between checks whether all nodes are equal."""

_Fault = Callable[[Dice], None]


@dataclass(slots=True)
class SimOutcome:
    """The result of a run. `lines` are its last events, if they were kept."""

    seed: int
    violation: Violation | None = None
    trace: str = ""
    events: int = 0
    frames: int = 0
    sent_bytes: int = 0
    simulated_ms: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "holds" if self.violation is None else f"violates {self.violation}"
        return "\n".join([*self.lines, f"seed {self.seed}: {verdict}, {self.events} events"])


class Simulation:
    """A run of a cluster.

    kinds:       kinds of replicas that every node hosts; default: a lattice alone.
    lattice:     of that default; default: the standard root. With it come `workload`, what users
                 write, `checkers`, and `hosting`, whether nodes limit what strangers may store:
                 then only honest data must become equal.
    links:       (dialler, acceptor) pairs of node numbers; default: drawn.
    hostile:     number of hostile peers, each linked to all nodes.
    references:  number of peers that behave like the reference node. Some nodes dial each, and it
                 dials some of them.
    clones:      number of copies of one node, with its key, that begin to run beside it.
    settle:      whether faults stop in the end and all nodes must become equal (liveness), or go on
                 to the end (safety).
    disks:       whether nodes keep their data on simulated disks, or in memory.
    writes:      number of writes in a faulty time of `duration_ms`; there are as many faulty times
                 as `events_min` events need.
    keep:        number of last events to keep as lines.

    Raises: ValueError: kinds are given together with parts of the default lattice.
    """

    def __init__(
        self,
        seed: int,
        nodes: int = 5,
        faults: Faults = NO_FAULTS,
        *,
        kinds: Sequence[ReplicaKind] | None = None,
        lattice: Lattice | None = None,
        workload: Workload | None = None,
        links: Topology | None = None,
        hostile: int = 0,
        references: int = 0,
        clones: int = 0,
        hosting: bool = False,
        settle: bool = True,
        disks: bool = True,
        writes: int | None = None,
        duration_ms: int = 8_000,
        events_min: int = 1_001,
        pace: Pace | None = None,
        checkers: Sequence[SimChecker] | None = None,
        events_max: int = _EVENTS_MAX,
        keep: int = 0,
    ) -> None:
        self.seed = seed
        self.faults = faults
        self._dice = dice = Dice(seed)
        self.timeline = Timeline(events_max, keep)
        self.network = SimNetwork(self.timeline, dice.fork("network"))
        if kinds is None:
            kinds = [standard_kind(lattice, workload, checkers, hosting=hosting)]
        elif hosting or (lattice, workload, checkers) != (None, None, None):
            raise ValueError("give lattice, workload, checkers and hosting without kinds")
        self._world = SimWorld(self.timeline, self.network, kinds, pace=pace or Pace(), disks=disks)
        self._world.on_end = self._ended
        self._world.on_failing = self._failing
        self.network.on_gone = self._dial_later
        skew_ms = faults.skew_ms  # each node's clock is off by another amount
        self.nodes = [
            # A fork of the dice for each: one node's draws do not move another's.
            SimNode(name, self._world, dice.fork(name), dice.between(-skew_ms, skew_ms))
            for name in (f"n{index}" for index in range(nodes))
        ]
        self._by_name = {node.name: node for node in self.nodes}
        self.links = list(draw_links(nodes, dice.fork("links")) if links is None else links)
        for node in self.nodes:
            self._world.add(node)
        self._doubles = Doubles(self._world, self.nodes, dice.fork("doubles"), self._ended)
        self._clones = clones
        self._settle = settle
        self._writes = _WRITES // (nodes + hostile) if writes is None else writes
        self._duration_ms = duration_ms
        self._events_min = events_min
        self._redials = dice.fork("redials")  # its own dice: redials do not move other draws
        self._linked: set[tuple[str, str]] = set()
        self._faulty = True
        self._returning: set[str] = set()
        self._hostile = [
            self._attacker(name, dice.fork(name))
            for name in (f"x{index}" for index in range(hostile))
        ]
        self.references = [
            SimReference(name, self.timeline, self.network, dice.fork(name))
            for name in (f"r{index}" for index in range(references))
        ]
        ends: list[End] = [*self.nodes, *self._hostile, *self.references]
        for end in ends:
            self.network.add(end)

    def _attacker(self, name: str, dice: Dice) -> Any:
        """Return a hostile peer of the lattice, or of the other kinds where there is none."""
        kinds = [watch.kind for watch in self._world.watches]
        attacked = [kind for kind in kinds if kind.attacker is not None]
        if any(kind.is_plain for kind in kinds) or not attacked:
            return HostilePeer(name, self.timeline, self.network, self.nodes, dice)
        key = KeyPair(dice.bytes(32))
        self._world.attackers[name] = key.public_key
        make = attacked[0].attacker
        assert make is not None
        names = [kind.name for kind in attacked]
        return make(name, self.timeline, self.network, dice, key, names)

    # --- the run ------------------------------------------------------------------------------

    def run(self) -> SimOutcome:
        """Run to the end or the first violation."""
        outcome = SimOutcome(self.seed)
        try:  # the first violation ends the run
            self.begin()
            self._plan()
            self.run_for(self._duration_ms)
            while self.timeline.events < self._events_min:  # a short run proves little
                self._add_faulty_time()
            if self._settle:
                self._heal()  # once faults stop, all nodes must become equal
                self._lose_last_messages()
                self._converge()
                self._write_in_bursts()
            for watch in self._world.watches:
                for checker in watch.checkers:
                    checker.at_rest(watch.up())
            if self._settle:
                self._restart_all()
            for watch in self._world.watches:
                for checker in watch.checkers:
                    checker.at_end(watch.up(), settled=self._settle)
        except Violation as violation:
            outcome.violation = violation
        except Exception as error:  # noqa: BLE001 - an exception that leaves a node is a violation
            text = f"{error!r}\n{traceback.format_exc()}"
            outcome.violation = Violation("fault", text)
        # Recorded after a violation, too: it must repeat.
        outcome.trace, outcome.events = self.timeline.trace, self.timeline.events
        outcome.frames, outcome.sent_bytes = self.network.frames, self.network.sent_bytes
        outcome.simulated_ms = self.timeline.now_ms
        outcome.counts = dict(sorted(self._world.counts.items()))
        outcome.lines = list(self.timeline.lines)
        return outcome

    def begin(self) -> None:
        """Start all nodes and have them connect; `run_for` then moves the time."""
        self.network.faults = self.faults  # faults begin with the first frame
        for watch in self._world.watches:
            for checker in watch.checkers:
                checker.on_begin(watch.hosts)
        if self.faults.exclusions:
            self._begin_without_one()
        for node in self.nodes:
            node.start()
        dice = self._dice.fork("begin")
        for dialler, acceptor in self.links:
            # Not all at once: handshakes cross.
            self.timeline.after(dice.below(20), partial(self._link, f"n{dialler}", f"n{acceptor}"))
        for peer in self._hostile:
            for node in self.nodes:
                # Either side may dial.
                pair = (peer.name, node.name) if dice.chance(0.5) else (node.name, peer.name)
                self.timeline.after(dice.below(20), partial(self._link, *pair))
            self.timeline.after(dice.below(2_000), peer.begin)
        for reference in self.references:
            self._link_reference(reference)
        for number in range(self._clones):
            self.timeline.after(dice.below(self._duration_ms), partial(self._clone, f"c{number}"))

    def _clone(self, name: str) -> None:
        """Run a copy of a node from now on, linked to nodes and attackers like any other."""
        dice = self._dice.fork(name)
        double = self._doubles.clone(name)
        others = dice.shuffled(range(len(self.nodes)))[:2]
        self.links += [(len(self.nodes), other) for other in others]
        self.nodes.append(double)
        self._world.add(double)
        self._by_name[name] = double
        self.network.add(double)
        double.start()
        for other in others:
            self._link(name, self.nodes[other].name)
        for peer in self._hostile:
            self._link(peer.name, name)

    def _link_reference(self, reference: SimReference) -> None:
        """Have at least one node dial a reference peer, and the peer dial some of these."""
        dice = self._dice.fork(f"links of {reference.name}")
        near = dice.shuffled(self.nodes)[: dice.between(1, len(self.nodes))]
        for node in near:
            pairs = [(node.name, reference.name)]
            if dice.chance(0.5):
                pairs.append((reference.name, node.name))
            for pair in pairs:
                self.timeline.after(dice.below(20), partial(self._link, *pair))
        reference.begin()

    def _add_faulty_time(self) -> None:
        """Run another faulty time, or as much of it as is needed for enough events."""
        self._plan()
        end_ms = self.timeline.now_ms + self._duration_ms
        # In slices: no more events than are needed.
        while self.timeline.now_ms < end_ms and self.timeline.events < self._events_min:
            self.run_for(SLICE_MS)

    def _plan(self) -> None:
        """Draw the writes and faults of the next faulty time."""
        # By the time, so that each faulty time has its own.
        dice = self._dice.fork(f"plan at {self.timeline.now_ms}")
        length_ms = self._duration_ms
        for _ in range(self._writes):
            self.timeline.after(dice.below(length_ms), partial(self._write_somewhere, dice))
        for count, fault in (
            (self.faults.resets, self._reset),
            (self.faults.partitions, self._partition),
            (self.faults.crashes, self._crash),
            (self.faults.disk_errors, self._fail_disk),
            (self.faults.pauses, self._pause),
            (self.faults.jumps, self._jump),
            (self.faults.restores, self._restore),
            (self.faults.exclusions, self._exclude),
        ):
            # Each kind of fault has its own dice: leaving one out moves no other.
            own = dice.fork(fault.__name__)
            for _ in range(count):
                self.timeline.after(own.below(length_ms), partial(self._strike, fault, own))
        if self.faults.restores:
            # A copy before it can be restored.
            self.timeline.after(dice.below(length_ms // 2), self._doubles.back_up)

    def _strike(self, fault: _Fault, dice: Dice) -> None:
        if self._faulty:  # planned faults are void once the run heals
            fault(dice)

    def connect(self, dialler: int, acceptor: int) -> None:
        """Link two nodes, by number, from now on."""
        self._link(f"n{dialler}", f"n{acceptor}")

    def cut(self, dialler: int, acceptor: int) -> None:
        """End a link; both ends notice at once."""
        pair = f"n{dialler}", f"n{acceptor}"
        self._linked.discard(pair)
        self.network.cut(*pair)

    def run_for(self, duration_ms: int) -> None:
        self.timeline.run(self.timeline.now_ms + duration_ms)

    # --- users --------------------------------------------------------------------------------

    def _write_somewhere(self, dice: Dice) -> None:
        # Users of reference peers write, too.
        if self.references and self._faulty and dice.chance(0.2):
            dice.pick(self.references).write(dice)
            return
        node = dice.pick(self.nodes)
        if self._faulty and node.is_up and node.idle_until_ms <= self.timeline.now_ms:
            # One in twenty writes waits for the next publish.
            self.write(node, dice, publish=not dice.chance(0.05))

    def write(self, node: SimNode, dice: Dice, *, publish: bool = True) -> None:
        """Have a node's user write something and publish it, or leave it for the next publish."""
        node.write(dice)
        if publish and node.is_up:
            node.publish()

    # --- faults -------------------------------------------------------------------------------

    def _reset(self, dice: Dice) -> None:
        ids = self.network.open_ids()
        if ids:
            self.network.tear(dice.pick(ids))

    def _partition(self, dice: Dice) -> None:
        names = dice.shuffled([node.name for node in self.nodes])
        if len(names) < 2:  # one node cannot be parted from itself
            return
        cut = dice.between(1, len(names) - 1)
        left, right = names[:cut], names[cut:]
        pairs = [(a, b) for a in left for b in right]
        if dice.chance(0.6):  # else frames are lost in one direction only
            pairs += [(b, a) for a, b in pairs]
        lasting_ms = dice.pick((300, 2_000, 6_000))
        self.timeline.record("", f"cuts {' '.join(left)} from {' '.join(right)}")
        until_ms = self.timeline.now_ms + lasting_ms
        # Stalled frames come later, lost ones never.
        self.network.block(pairs, until_ms, lossy=dice.chance(0.5))

    def _crash(self, dice: Dice) -> None:
        node = dice.pick(self.nodes)
        if not node.is_up:
            return
        if dice.chance(0.66):  # in the middle of a write or sync
            node.disk.crash_at = node.disk.steps + dice.between(1, 6)
        else:
            self._ended(node)

    def _fail_disk(self, dice: Dice) -> None:
        node = dice.pick(self.nodes)
        if node.is_up:
            node.disk.fail_at = node.disk.steps + dice.between(1, 4)  # the next few operations
            node.disk.fail_errno = dice.pick((errno.ENOSPC, errno.EIO))

    def _pause(self, dice: Dice) -> None:
        node = dice.pick(self.nodes)
        if node.is_up:
            # Shorter and longer than the timeouts of requests.
            lasting_ms = dice.pick((200, 1_500, 7_000))
            node.idle_until_ms = self.timeline.now_ms + lasting_ms
            self.timeline.record(node.name, f"pauses for {lasting_ms} ms")

    def _jump(self, dice: Dice) -> None:
        node = dice.pick(self.nodes)
        by_ms = dice.pick((-3_600_000, -1_000, 1_000, 3_600_000))  # an hour: far beyond any wait
        node.clock.skew_ms += by_ms
        self.timeline.record(node.name, f"has its wall clock set by {by_ms} ms")

    def _restore(self, _dice: Dice) -> None:
        self._doubles.restore()

    def _begin_without_one(self) -> None:
        """Have the others admit one of the nodes only some time after it has started."""
        dice = self._dice.fork("newcomer")
        key = dice.pick(self.nodes).keys.public_key
        for other in self.nodes:
            other.admitted.discard(key)
            admit = partial(self._admit, other, key, is_admitted=True)
            self.timeline.after(dice.below(self._duration_ms), admit)

    def _exclude(self, dice: Dice) -> None:
        key = dice.pick(self.nodes).keys.public_key
        lasting_ms = dice.pick((300, 2_000, 6_000))
        for other in self.nodes:
            begin_ms = dice.below(EXCLUSION_MS)  # each at its own time: for a while nodes disagree
            for after_ms, is_admitted in ((begin_ms, False), (begin_ms + lasting_ms, True)):
                admit = partial(self._admit, other, key, is_admitted=is_admitted)
                self.timeline.after(after_ms, admit)

    def _admit(self, node: SimNode, key: bytes, *, is_admitted: bool) -> None:
        """Have an operator admit a peer, or exclude it while there are faults."""
        # A paused operator acts when the node goes on.
        if node.idle_until_ms > self.timeline.now_ms:
            again = partial(self._admit, node, key, is_admitted=is_admitted)
            self.timeline.at(node.idle_until_ms, again)
        elif is_admitted or self._faulty:
            node.admit(key, is_admitted=is_admitted)

    # --- ending and coming back ---------------------------------------------------------------

    def _ended(self, node: SimNode) -> None:
        """End a process and start it again later."""
        dice = self._dice.fork(f"return of {node.name} at {self.timeline.events}")
        node.end(power_failure=dice.chance(0.5))  # half of the ends lose what was not synced
        delay_ms = dice.between(10, 2_500) if self._faulty else 10
        self.timeline.after(delay_ms, partial(self._return, node))

    def _failing(self, node: SimNode) -> None:
        """Have an operator restart a node whose disk failed, some time later."""
        if node.name not in self._returning:  # one restart is enough
            self._returning.add(node.name)
            self.timeline.after(300, partial(self._replace, node))

    def _replace(self, node: SimNode) -> None:
        self._returning.discard(node.name)
        if node.is_up:
            self._ended(node)

    def _return(self, node: SimNode) -> None:
        if not node.is_up:  # started meanwhile by another event
            node.start()

    def _link(self, dialler: str, acceptor: str) -> None:
        self._linked.add((dialler, acceptor))
        self._dial(dialler, acceptor)

    def _dial(self, dialler: str, acceptor: str) -> None:
        if (dialler, acceptor) not in self._linked:  # the link was cut
            return
        both = [self._by_name.get(name) for name in (dialler, acceptor)]
        able = all(node is None or node.is_up for node in both)
        # Nodes keep dialling, as the peers of a node's settings.
        if not (able and self.network.dial(dialler, acceptor)):
            self._dial_later(dialler, acceptor)

    def _dial_later(self, dialler: str, acceptor: str) -> None:
        delay_ms = self._redials.between(20, 400)
        keys = [self._by_name[name].keys for name in (dialler, acceptor) if name in self._by_name]
        if len(keys) == 2 and keys[0] is keys[1]:  # a node and its copy
            delay_ms += COPY_REDIAL_MS
        self.timeline.after(delay_ms, partial(self._dial, dialler, acceptor))

    # --- afterwards ---------------------------------------------------------------------------

    def _lose_last_messages(self) -> None:
        """Lose all messages about last writes, so that only the periodic statement spreads them."""
        dice = self._dice.fork("void")
        if dice.chance(0.5):
            return
        self._await_calm()
        names = [node.name for node in self.nodes]
        pairs = [(one, other) for one in names for other in names if one != other]
        self.timeline.record("", "all frames are lost")
        self.network.block(pairs, self.timeline.now_ms + LOST_MS, lossy=True)
        for node in self.nodes:
            if node.is_up:
                self.write(node, dice)
        self.timeline.run(self.timeline.now_ms + LOST_MS)

    def _await_calm(self) -> None:
        """Let the nodes finish their exchanges."""
        end_ms = self.timeline.now_ms + CALM_MS
        looks = 0
        while self.timeline.now_ms < end_ms and looks < CALM_LOOKS:
            self.timeline.run(self.timeline.now_ms + LOOK_MS)
            # Calm several times in a row.
            looks = looks + 1 if all(node.is_calm for node in self.nodes) else 0

    def _heal(self) -> None:
        self._faulty = False
        self.network.calm()
        self.timeline.record("", "faults stop")
        for node in self.nodes:
            node.disk.crash_at = node.disk.fail_at = None  # planned faults of disks are void, too
            # Everyone is admitted again, or they could not become equal.
            for key in sorted(self._world.owners):
                self._admit(node, key, is_admitted=True)

    @property
    def is_equal(self) -> bool:
        """Whether all nodes run and announce the same state."""
        if not all(node.is_up for node in self.nodes):
            return False
        return len({node.state for node in self.nodes}) == 1  # one state for all

    def _await_equal(self, within_ms: int, step_ms: int) -> bool:
        end_ms = self.timeline.now_ms + within_ms
        while self.timeline.now_ms < end_ms:
            if self.is_equal:
                return True  # as soon as it holds
            self.timeline.run(min(end_ms, self.timeline.now_ms + step_ms))
        return self.is_equal

    def _converge(self) -> None:
        # Publish what users left unpublished, so that the end has everything.
        self.timeline.run(self.timeline.now_ms + 3_000)
        for node in self.nodes:
            if node.is_up:
                node.publish()
        if not self._await_equal(CONVERGE_MS, LOOK_MS):
            self._fail_equal("convergence", CONVERGE_MS)
        if self.references:
            self._converge_references()

    def _converge_references(self) -> None:
        """Wait until nodes and reference peers are equal, with all slots as their owners signed."""
        end_ms = self.timeline.now_ms + CONVERGE_MS
        while self.timeline.now_ms < end_ms and not (self.is_equal and self._are_like()):
            self.timeline.run(self.timeline.now_ms + LOOK_MS)
        judge(self.references, self._single_owners)
        if not self._are_like():  # nodes and reference peers alike
            told = ", ".join(f"{one.name} {one.state.hex()[:8]}" for one in self.references)
            raise Violation("reference convergence", f"{self.nodes[0].state.hex()[:8]}, {told}")

    @property
    def _single_owners(self) -> set[bytes]:
        # An owner with two histories may differ between peers.
        return self._world.owners - self._doubles.owners

    def _are_like(self) -> bool:
        data, attacked = self.nodes[0].data, bool(self._hostile)
        return are_like(self.references, data, self._single_owners, is_attacked=attacked)

    def _write_in_bursts(self) -> None:
        """Write in quick succession: no update may wait for the periodic statement of the root."""
        self._await_calm()
        dice = self._dice.fork("burst")
        for _ in range(3):  # the last of them must not be lost by pacing
            for node in self.nodes:
                self.write(node, dice)
            self.timeline.run(self.timeline.now_ms + dice.below(BROADCAST_DELAY_MS))
        self._expect_last_update()
        # Once more with a single writer: otherwise an update that its node forgot to send would
        # still travel with an answer to the others' updates.
        self._await_calm()
        writer = dice.pick(self.nodes)
        for _ in range(3):
            self.write(writer, dice)
        self._expect_last_update()

    def _expect_last_update(self) -> None:
        hop_ms = HOP_MS + max(one.kind.hop_ms for one in self._world.watches)
        # A change crosses the longest way, hop by hop.
        within_ms = diameter(len(self.nodes), self.links) * hop_ms
        if not self._await_equal(within_ms, 10):
            self._fail_equal("last update", within_ms)

    def _fail_equal(self, rule: str, within_ms: int) -> None:
        told = ", ".join(
            f"{node.name} {node.state.hex()[:8]}" if node.is_up else node.name
            for node in self.nodes
        )
        raise Violation(rule, f"not equal within {within_ms} ms: {told}")

    def _restart_all(self) -> None:
        """Cut the power everywhere: each store must come back with its root."""
        if not self._world.disks:
            return
        roots = [node.state for node in self.nodes]
        for node, root in zip(self.nodes, roots, strict=True):
            node.end(power_failure=True)  # before its peers could send it anything again
            node.start()
            if not node.is_up or node.state != root:  # the very root that was announced
                raise Violation("durability", f"{node.name} comes back with another root")


def standard_kind(
    lattice: Lattice | None = None,
    workload: Workload | None = None,
    checkers: Sequence[SimChecker] | None = None,
    *,
    hosting: bool = False,
) -> ReplicaKind:
    """Return a lattice as a kind of replica, by default the standard one."""
    return lattice_kind(
        root_lattice() if lattice is None else lattice,
        workload or standard_workload,
        lambda: standard_checkers(EVIDENCE_LIMITS) if checkers is None else list(checkers),
        hosting=hosting,
    )
