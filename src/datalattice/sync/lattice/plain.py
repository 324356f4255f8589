"""Plain peers: nodes that have none of our extensions, as the reference node.

Such a peer

* takes a value with the cells that came with it, and fetches none;
* says what it has when it is asked, and only then, or as a bare value on a connection that it made;
* answers only on connections that it accepted;
* reads no patches.

So this node asks it for its root when a connection opens and in every root sync interval, and sends
it what it lacks, in values that are complete in themselves. The peer confirms nothing: what was
sent counts as held until its next answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from datalattice.sync.replica import Probe


@dataclass(slots=True)
class PlainPeer:
    """What this node assumes that one plain peer has.

    heard:    states that it answered with, or parts of its state: all of it together.
    told:     what it was told since.
    open:     questions of the present round that are not answered.
    fresh:    what it has answered in this round.
    failed:   whether something of the present round was not answered in full.
    is_asked: whether a first round is over, so that it is known what it lacks.
    level:    the key of our state that its last answers have all of.
    """

    heard: tuple[Probe, ...] = ()
    told: Probe | None = None
    open: int = 0
    fresh: list[Probe] = field(default_factory=list)
    failed: bool = False
    is_asked: bool = False
    level: bytes | None = None

    def asked(self, count: int) -> None:
        """Begin a round of so many questions, or make the present one longer."""
        self.open += count

    def holds(self, probe: Probe, *, part: bool) -> None:
        """Take note of a state of it that is here now; `part`: only of a part of its state."""
        if self.open:
            self.fresh.append(probe)
        elif part:
            self.heard = (*self.heard, probe)
        else:
            self.heard = (probe,)

    def states_again(self, key: bytes) -> bool:
        """Take note that it states what it stated before; return whether it is that."""
        known = next((one for one in self.heard if one.key == key), None)
        if known is not None and self.open:
            self.fresh.append(known)
        return known is not None

    def answered(self, count: int) -> None:
        """Take note of the end of so many questions; the last ones end the round."""
        self.open -= count
        if self.open:
            return
        if self.failed:
            # What was not heard anew is as it was.
            self.heard = tuple({one.key: one for one in (*self.heard, *self.fresh)}.values())
        else:
            self.heard, self.told = tuple(self.fresh), None
        self.fresh, self.failed, self.is_asked = [], False, True
