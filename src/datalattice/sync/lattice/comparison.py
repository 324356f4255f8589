"""Lattice comparison: how two lattice replicas find out what each lacks.

A peer that fetches is sent our root alone, and asked for its own when it is met; whoever lacks
something fetches it.

A *plain peer*, such as the reference node, has none of our extensions. It

* takes a value with the cells that came with it, and fetches none;
* says what it has when it is asked, and only then, or as a bare value on a connection that it made;
* answers only on connections that it accepted;
* reads no patches.

So it is asked for its root, or for each section where an answer could be too long, when a
connection opens and in every root sync interval. Then it is sent what it lacks, in values that are
complete in themselves. It confirms nothing: what was sent counts as held until its next answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import Value
from datalattice.lattice import LOCAL_KEY, KeyedLattice
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.sync.lattice.handover import HANDED_BYTES, fork_queries, is_fork_query, one_handed
from datalattice.sync.lattice.incoming import PATCHES, QueriedValue, Question, StatedRoot, stated
from datalattice.sync.lattice.latticestate import LatticeState
from datalattice.sync.replica import Peer, Probe, Step, Why

_PERIODIC: Final = (Why.MEETING, Why.WELCOMED, Why.DUE, Why.DIRTY)

FIRST_BYTES_MAX: Final = 32_000_000
"""Bytes of cells that a node without any data asks for at once."""


@dataclass(slots=True)
class PlainPeer:
    """What this node assumes that one plain peer has. A *round* asks for its state once.

    heard:    states, or parts of a state, from its answers; together they are its state.
    told:     the values sent to it since.
    open:     unanswered questions of the present round.
    fresh:    its answers in this round.
    failed:   a question of the present round was not answered in full.
    is_asked: a first round is over, so this node knows what the peer lacks.
    level:    the key of our state, if its last answers have all of it.
    """

    heard: tuple[Probe, ...] = ()
    told: Probe | None = None
    open: int = 0
    fresh: list[Probe] = field(default_factory=list)
    failed: bool = False
    is_asked: bool = False
    level: bytes | None = None

    def holds(self, probe: Probe, *, part: bool) -> None:
        """Note a state of the peer that is here now; `part`: only a part of its state."""
        if self.open:
            self.fresh.append(probe)
        elif part:
            self.heard = (*self.heard, probe)
        else:
            self.heard = (probe,)

    def states_again(self, key: bytes) -> bool:
        """Return whether the peer stated this before; note that it still has it."""
        known = next((one for one in self.heard if one.key == key), None)
        if known is not None and self.open:
            self.fresh.append(known)
        return known is not None

    def answered(self, count: int) -> None:
        """Note the end of `count` questions; the last ones end the round."""
        self.open -= count
        if self.open:
            return
        if self.failed:
            # What the peer did not answer is assumed unchanged.
            self.heard = tuple({one.key: one for one in (*self.heard, *self.fresh)}.values())
        else:
            self.heard, self.told = tuple(self.fresh), None
        self.fresh, self.failed, self.is_asked = [], False, True


@dataclass(slots=True)
class Meeting:
    """What is remembered of one connection from comparison to comparison.

    turn:  how often the peer was asked for branches of forks.
    plain: what it is assumed to have, where it fetches nothing.
    """

    turn: int = 0
    plain: PlainPeer | None = None


class LatticeComparison:
    """One comparison. All its questions are decided when it is made.

    frame_max: the longest answer that this node takes, in bytes.
    """

    def __init__(
        self,
        state: LatticeState,
        peer: Peer,
        meeting: Meeting,
        why: Why,
        path: Sequence[object],
        frame_max: int,
    ) -> None:
        self._state = state
        self._meeting = meeting
        self._plain = meeting.plain
        self._questions: list[Question] = []
        self._is_round = False
        if why is Why.PULL or why is Why.MEETING or self._plain is not None:
            self._ask_state(tuple(path), frame_max)
        # A plain peer fetches nothing, so a root alone would be useless to it.
        tells = self._plain is None and why in (Why.MEETING, Why.DUE, Why.DIRTY, Why.DOUBT)
        self._top = state.views.top(peer.connection) if tells else None
        # "A node that holds keys asks each peer of our kind, when the two have greeted and at each
        # root sync interval" (docs/design/forks.md, Hand-over).
        if PATCHES in peer.features and why in _PERIODIC:
            queries = fork_queries(state.owners, meeting.turn)
            self._questions += [Question(one, HANDED_BYTES, is_optional=True) for one in queries]
            meeting.turn += 1

    def _ask_state(self, path: tuple[Value, ...], frame_max: int) -> None:
        """Ask for the value at a path, by default the root."""
        # A plain peer answers with everything below the path, so where our frame limit is smaller
        # than its own it is asked for each section.
        lattice = self._state.lattice
        paths = [path]
        if not path and self._plain is not None:
            self._is_round = True
            if frame_max < MESSAGE_BYTES_MAX and isinstance(lattice, KeyedLattice):
                paths = [(key,) for key in lattice.children() if key != LOCAL_KEY]
        # A node with data asks for the root alone and fetches what it lacks.
        # "32 MB when it has nothing itself" (docs/protocol.md, What is sent when).
        room = FIRST_BYTES_MAX if self._state.is_blank else 0
        self._questions += [Question(one, room) for one in paths]

    @property
    def probe(self) -> Probe | None:
        return None if self._top is None else self._top.probe

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not self._questions and self._top is None

    def start(self) -> Step:
        if self._plain is not None and self._is_round:
            self._plain.open += len(self._questions)
        # Optional questions come last: they are dropped first when too many requests wait.
        said: list[object] = [one for one in self._questions if not one.is_optional]
        said += [] if self._top is None else [StatedRoot(self._top)]
        said += [one for one in self._questions if one.is_optional]
        return Step(tuple(said))

    def receive(self, message: object) -> Step:
        """Take in the answer to one of the questions."""
        assert isinstance(message, QueriedValue)
        if is_fork_query(message.path):
            return self._branch(message)
        if message.error is not None:
            if self._plain is not None and self._is_round:
                self._plain.failed = True
            # A peer whose lattice lacks the section has nothing there.
            is_empty = bool(message.path) and message.is_absent
            return Step(error=None if is_empty else message.error)
        if message.value is None and message.absent is None:
            return Step()
        offer = stated(message.path, message.value, message.parts, message.absent)
        assert offer.probe is not None
        if self._plain is not None and self._plain.states_again(offer.probe.key):
            return Step()
        return Step(offers=(offer,))

    def _branch(self, message: QueriedValue) -> Step:
        """Take one of the branches in an answer, as stated at its slot."""
        # A peer that does not know hand-overs answers with an error, which is not a fault.
        if message.error is not None:
            return Step()
        found = one_handed(message.value, message.path[1], self._meeting.turn)
        if found is None:
            return Step()
        slot, cell, absent = found
        return Step(offers=(stated(slot, cell, message.parts, absent, is_branch=True),))

    def ended(self) -> None:
        """Note that no further answer comes."""
        if self._plain is not None and self._is_round:
            self._plain.answered(len(self._questions))
