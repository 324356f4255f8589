"""Fork health: the open forks of a node, for its health and metrics."""

from __future__ import annotations

from collections import Counter
from typing import Final

from datalattice.cells import Value, to_text
from datalattice.lattice import LOG_BRANCH
from datalattice.node.reading import Forks
from datalattice.sync import Evidence, ForkRecord, owner_text

FORKS: Final = "forks"
"""Key of the trouble that an owner's values forked."""

OWNER_SHOWN: Final = 12
"""Characters of an owner in a reason."""


def forks_of(evidence: Evidence) -> Forks:
    """Return how many forks are open, by whether their owner is this node's and by kind."""
    found = Counter((evidence.is_mine(one.owner), one.branch) for one in evidence.open)
    return Forks(dict(found), evidence.seen_count, evidence.skipped_count, evidence.size_bytes)


def fork_trouble(evidence: Evidence) -> str | None:
    """Return why forks degrade this node: those of its own owners and of watched ones alone do.

    A stranger can sign any number of values that fork, so those of others are only counted.
    """
    watched = [one for one in evidence.open if evidence.is_watched(one.owner)]
    if not watched:
        return None
    first = watched[0]
    more = f"; {len(watched) - 1} more" if len(watched) > 1 else ""
    whose = "your key" if evidence.is_mine(first.owner) else "the owner"
    owner = owner_text(first.owner)
    shown = owner if len(owner) <= OWNER_SHOWN else f"{owner[:OWNER_SHOWN]}…"
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
