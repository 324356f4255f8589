"""Lattice comparison: how two lattice replicas find out what each lacks.

A peer that fetches is told our root alone, and asked for its own when it is met; whoever lacks
something fetches it. A peer that fetches nothing is asked for its root in each round, or for each
section of it where an answer could be too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from datalattice.cells import Value
from datalattice.lattice import LOCAL_KEY, KeyedLattice, Lattice
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.sync.lattice.handover import HANDED_BYTES, fork_queries, is_fork_query, one_handed
from datalattice.sync.lattice.plain import PlainPeer
from datalattice.sync.lattice.requests import PATCHES, Content, Question, State, stated
from datalattice.sync.replica import Offer, Peer, Probe, Step, Why

FIRST_BYTES_MAX: Final = 32_000_000
"""Bytes of cells that a node without anything asks for at once."""


class Compared(Protocol):
    """What a comparison needs of the replica."""

    @property
    def lattice(self) -> Lattice:
        """What is replicated."""
        ...

    @property
    def is_blank(self) -> bool:
        """Whether nothing was written or taken in here so far."""
        ...

    @property
    def owners(self) -> list[bytes | str]:
        """The owners that this node may sign for."""
        ...

    def begin(self, peer: str) -> Offer:
        """Return the root alone."""
        ...


class Meeting:
    """What is remembered of one connection from comparison to comparison.

    turn:  how often the peer was asked for branches of forks.
    plain: what it is taken to have, where it fetches nothing.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.plain: PlainPeer | None = None


class LatticeComparison:
    """One run. What its questions are is decided when it starts.

    frame_max: the longest answer that this node takes, in bytes.
    """

    def __init__(
        self,
        replica: Compared,
        peer: Peer,
        meeting: Meeting,
        why: Why,
        path: Sequence[object],
        frame_max: int,
    ) -> None:
        self._replica = replica
        self._meeting = meeting
        self._plain = meeting.plain
        self._questions: list[Question] = []
        self._is_round = False
        if why is Why.PULL or why is Why.MEETING or self._plain is not None:
            self._ask_state(tuple(path), frame_max)
        tells = self._plain is None and why in (Why.MEETING, Why.DUE, Why.DOUBT)
        self._state = replica.begin(peer.connection) if tells else None
        if PATCHES in peer.features and why in (Why.MEETING, Why.WELCOMED, Why.DUE):
            queries = fork_queries(replica.owners, meeting.turn)
            self._questions += [Question(one, HANDED_BYTES, is_optional=True) for one in queries]
            meeting.turn += 1

    def _ask_state(self, path: tuple[Value, ...], frame_max: int) -> None:
        """Ask for the value at a path; without one for the root, or each section of a plain peer's.

        A plain peer answers with everything below the path, in frames of up to its own limit.
        """
        lattice = self._replica.lattice
        paths = [path]
        if not path and self._plain is not None:
            self._is_round = True
            if frame_max < MESSAGE_BYTES_MAX and isinstance(lattice, KeyedLattice):
                paths = [(key,) for key in lattice.children() if key != LOCAL_KEY]
        room = FIRST_BYTES_MAX if self._replica.is_blank else 0
        self._questions += [Question(one, room) for one in paths]

    @property
    def probe(self) -> Probe | None:
        """The state of ours that the peer is told by it."""
        return None if self._state is None else self._state.probe

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not self._questions and self._state is None

    def start(self) -> Step:
        """Return what to say first."""
        if self._plain is not None and self._is_round:
            self._plain.asked(len(self._questions))
        said: list[object] = [one for one in self._questions if not one.is_optional]
        said += [] if self._state is None else [State(self._state)]
        said += [one for one in self._questions if one.is_optional]
        return Step(tuple(said))

    def receive(self, message: object) -> Step:
        """Take in the answer to one of the questions."""
        assert isinstance(message, Content)
        if is_fork_query(message.path):
            return self._branch(message)
        if message.error is not None:
            if self._plain is not None and self._is_round:
                self._plain.failed = True
            # A peer whose lattice has no such section has nothing there.
            is_empty = bool(message.path) and message.is_absent
            return Step(error=None if is_empty else message.error)
        if message.value is None and message.absent is None:
            return Step()
        offer = stated(message.path, message.value, message.parts, message.absent)
        assert offer.probe is not None
        if self._plain is not None and self._plain.states_again(offer.probe.key):
            return Step()
        return Step(offers=(offer,))

    def _branch(self, message: Content) -> Step:
        """Take one of the branches in an answer, as stated at its slot.

        A peer that does not know the question answers an error, which costs nothing.
        """
        if message.error is not None:
            return Step()
        found = one_handed(message.value, message.path[1], self._meeting.turn)
        if found is None:
            return Step()
        slot, cell, absent = found
        return Step(offers=(stated(slot, cell, message.parts, absent, is_branch=True),))

    def ended(self) -> None:
        """Take note that no answer will come."""
        if self._plain is not None and self._is_round:
            self._plain.answered(len(self._questions))
