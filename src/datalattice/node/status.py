"""Status: the state of a running node at one moment, as plain records.

`Monitor` gathers a `NodeStatus`; `/metrics`, `/health` and the action `node.health` print it.

Source: docs/node.md "Operations", "Forks".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from datalattice.actions import NodePeer
from datalattice.cells import Value, to_text
from datalattice.lattice import LOG_BRANCH
from datalattice.node.connection import Traffic
from datalattice.node.observe import Histogram
from datalattice.node.peers import PeerInfo
from datalattice.sync import Evidence, ForkRecord, Standing, owner_text

FORKS: Final = "forks"  # health key: values of an own or watched owner forked

_OWNER_SHOWN: Final = 12  # characters of an owner's key in a reason


@dataclass(frozen=True, slots=True)
class ForkCounts:
    """The forks of a node.

    open:       number of forks with evidence here, by (whether a key here may sign for the owner,
                kind).
    seen:       forks met since the start. skipped: forks not examined since the start.
    size_bytes: bytes of the cells that only the evidence has.
    """

    open: Mapping[tuple[bool, str], int] = field(default_factory=dict)
    seen: int = 0
    skipped: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, evidence: Evidence) -> ForkCounts:
        """Count the evidence of a replica."""
        found = Counter((evidence.is_mine(one.owner), one.branch) for one in evidence.open)
        return cls(dict(found), evidence.seen_count, evidence.skipped_count, evidence.size_bytes)


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """Figures that can be read only in the lane of the lattice.

    missing_count: wanted cells that are not here.
    staged_bytes:  bytes of cells that wait for missing ones.
    over_quota:    owners whose values were lately refused because of a quota, and why.
    """

    standings: tuple[Standing, ...] = ()
    missing_count: int = 0
    staged_bytes: int = 0
    forks: ForkCounts = ForkCounts()
    over_quota: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerReport:
    """A peer, and the state of its connection if there is one.

    joined: whether it receives changes; a client does not.
    equal:  whether the root that it stated last equals ours, or the part of ours that is replicated
            with it; None: not connected, or not known.
    """

    info: PeerInfo
    traffic: Traffic
    joined: bool | None = None
    equal: bool | None = None

    def described(self) -> NodePeer:
        """Return it as the record that the service answers with."""
        return NodePeer(
            **asdict(self.info),
            joined=self.joined,
            equal=self.equal,
            bytes_in=self.traffic.bytes_in,
            bytes_out=self.traffic.bytes_out,
        )


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The process of the node. descriptors: open files; None where the system has no /proc."""

    memory_bytes: int
    descriptors: int | None
    cpu_s: float


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node at one moment. `reasons` is empty when it is healthy.

    peers: the wanted ones. guests: other inbound connections, the first `GUESTS_SHOWN_MAX`.
    """

    reasons: Mapping[str, str]
    root_hash: bytes
    unchanged_s: float
    counters: Mapping[str, int]
    times: Mapping[str, Histogram]
    inbound: int
    outbound: int
    traffic: Traffic
    held_bytes: int
    peers: list[PeerReport]
    guests: list[PeerReport]
    lane: LaneStatus
    damage: tuple[str, ...]
    store_bytes: int | None
    process: ProcessStatus


def fork_trouble(evidence: Evidence) -> str | None:
    """Return why forks degrade this node, None if they do not."""
    # "A stranger can sign any number of them": forks of other owners are counted, but do not
    # degrade the node.
    watched = [one for one in evidence.open if evidence.is_watched(one.owner)]
    if not watched:
        return None
    first = watched[0]
    more = f"; {len(watched) - 1} more" if len(watched) > 1 else ""
    whose = "your key" if evidence.is_mine(first.owner) else "the owner"
    owner = owner_text(first.owner)
    shown = owner if len(owner) <= _OWNER_SHOWN else f"{owner[:_OWNER_SHOWN]}…"
    return f'{whose} {shown} {_lost(first)}{more}; run "lattice forks list"'


def _lost(record: ForkRecord) -> str:
    if record.branch != LOG_BRANCH or not record.logs:
        return f"signed two values of {_plain(record.path[0])} of which neither has the other"
    count = sum(log.end - log.first for log in record.logs)
    logs = ", ".join(f"{_plain(log.topic)}/{_plain(log.partition)}" for log in record.logs[:3])
    left = "record is" if count == 1 else "records are"
    return f"wrote two histories of {logs}; {count} {left} not in the log"


def _plain(value: Value) -> str:
    return value if isinstance(value, str) else to_text(value)
