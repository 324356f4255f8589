"""Reading: everything that is known about a running node at one moment, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from datalattice.node.connection import Traffic
from datalattice.node.observe import Histogram
from datalattice.sync import Standing


@dataclass(frozen=True, slots=True)
class Forks:
    """The forks of a node.

    open: how many have evidence here, by (whether a key here may sign for the owner, kind).
    seen, skipped: since the start, met and not examined. size_bytes: of the branches kept.
    """

    open: Mapping[tuple[bool, str], int] = field(default_factory=dict)
    seen: int = 0
    skipped: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Inside:
    """What only the lane knows.

    missing_count: cells that are wanted and not here. staged_bytes: of cells that wait for them.
    over_quota: of which owners values had no room of late, and why.
    """

    standings: tuple[Standing, ...] = ()
    missing_count: int = 0
    staged_bytes: int = 0
    forks: Forks = Forks()
    over_quota: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerReading:
    """A peer: the fields of its PeerInfo, and how its connection is, if there is one.

    joined: whether it is told of changes; a mere client is not.
    equal:  whether what it stated last is what is here, or the part that is replicated with it;
            None when it is not connected or not known.
    """

    info: Mapping[str, object]
    traffic: Traffic
    joined: bool | None = None
    equal: bool | None = None

    @property
    def name(self) -> str:
        """Its address, or its key in hex where no address is known."""
        key = self.info.get("public_key")
        return str(self.info["address"] or (key.hex() if isinstance(key, bytes) else ""))

    def document(self) -> dict[str, object]:
        """Return it for JSON."""
        info = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in self.info.items()
        }
        return {
            **info,
            "joined": self.joined,
            "equal": self.equal,
            "bytes_in": self.traffic.bytes_in,
            "bytes_out": self.traffic.bytes_out,
        }


@dataclass(frozen=True, slots=True)
class Process:
    """The process that the node is in; descriptors: None where nobody tells."""

    memory_bytes: int
    descriptors: int | None
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """How a node is. `reasons` is empty when it is well.

    peers:  the wanted ones. guests: others that connected, the first `GUESTS_SHOWN_MAX` of them.
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
    peers: list[PeerReading]
    guests: list[PeerReading]
    inside: Inside
    damage: tuple[str, ...]
    store_bytes: int | None
    process: Process
