"""Conduct: counts the useless messages of a peer, and says when to disconnect it.

Single useless messages happen between honest nodes: an answer after its request timed out, a value
of a section that only one side has. So most kinds are bounded in a row, and a useful message resets
them. The bounds are far above what honest nodes do in an hour, and far below what fills a disk with
log lines.
"""

from __future__ import annotations

from typing import Final

MALFORMED_MAX: Final = 8
"""Undecodable frames, in a row or not, before a connection is closed."""

UNASKED_MAX: Final = 1_000
"""Answers in a row to no request of ours, replays included, before a connection is closed."""

IGNORED_MAX: Final = 20_000
"""Messages in a row that this node ignores before a connection is closed."""

REFUSED_MAX: Final = 10_000
"""Refused values or cells in a row before a connection is closed."""

MALFORMED_FRAME: Final = "malformed"
UNSOUND: Final = "unsound"
UNASKED: Final = "unasked"
IGNORED: Final = "ignored"
REFUSED: Final = "refused"

_LIMITS: Final = {
    MALFORMED_FRAME: (MALFORMED_MAX, "frames that cannot be decoded"),
    UNASKED: (UNASKED_MAX, "answers to no request of ours"),
    IGNORED: (IGNORED_MAX, "messages that this node ignores"),
    REFUSED: (REFUSED_MAX, "values or cells that were refused"),
}


def is_charged(kind: str) -> bool:
    """Return whether messages of this kind are counted against a peer."""
    return kind in _LIMITS


class Conduct:
    """The counts of one peer."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_LIMITS, 0)

    def charge(self, kind: str) -> str | None:
        """Count a message of this kind; return why to close if it was one too many."""
        self._counts[kind] += 1
        limit, what = _LIMITS[kind]
        return f"{limit} {what}" if self._counts[kind] >= limit else None

    def forgive(self) -> None:
        """Note a useful message: it resets all counts but that of undecodable frames."""
        # Bounded is "each kind in a row" (docs/design/replication.md, Conduct). No honest node
        # sends an undecodable frame, so that count only grows.
        for kind in (UNASKED, IGNORED, REFUSED):
            self._counts[kind] = 0
