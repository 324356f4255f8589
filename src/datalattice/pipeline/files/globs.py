"""Patterns of paths, which also decide which directories can contain a match."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final

from datalattice.apps.dlfs import split_path
from datalattice.pipeline.options import checked_option

_ANY: Final = "**"
_MAGIC: Final = re.compile(r"[*?\[]")

States = frozenset[int]
"""Positions in the pattern that the names of a path can have reached."""


class Glob:
    """A pattern of paths: `*`, `?` and `[abc]` within a name, `**` for any number of names.

    The complete path must match. A pattern without wildcards that names a directory matches all
    files below it.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.names: Final = split_path(text)
        self._fits: Final = [None if name == _ANY else _matcher(name) for name in self.names]

    def __reduce__(self) -> tuple[type[Glob], tuple[str]]:
        return Glob, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glob) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_plain(self) -> bool:
        """Whether it has no wildcards."""
        return all(self.is_literal(index) for index in range(len(self.names)))

    def is_literal(self, index: int) -> bool:
        """Return whether a name of the pattern has no wildcards."""
        return _MAGIC.search(self.names[index]) is None

    @property
    def start(self) -> States:
        """The states before any name."""
        return self._closed({0})

    def step(self, states: States, name: str) -> States:
        """Return the states after one more name; empty: no path that begins so can match."""
        after: set[int] = set()
        for position in states:
            # The pattern is at its end: a longer path cannot match.
            if position == len(self.names):
                continue
            fits = self._fits[position]
            if fits is None:
                after.add(position)
            elif fits(name):
                after.add(position + 1)
        return self._closed(after)

    def is_end(self, states: States) -> bool:
        """Return whether a path that led to these states matches."""
        return len(self.names) in states

    def may_go_on(self, states: States) -> bool:
        """Return whether a path below one that led to these states can match."""
        return any(position < len(self.names) for position in states)

    def _closed(self, states: set[int]) -> States:
        for position, fits in enumerate(self._fits):  # `**` also matches zero names
            # At most one state for each name of the pattern, however many `**` it has.
            if fits is None and position in states:
                states.add(position + 1)
        return frozenset(states)


EVERYTHING: Final = Glob(f"/{_ANY}")


def _matcher(name: str) -> Callable[[str], object]:
    # A literal name is compared, which is faster and free of escapes.
    if _MAGIC.search(name) is None:
        return name.__eq__
    return re.compile(fnmatch.translate(name)).match


glob_option: Final = checked_option(Glob, "a path in a drive that may contain *, ?, [..] and **")
"""Parses a pattern of paths."""
