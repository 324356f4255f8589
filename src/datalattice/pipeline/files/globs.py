"""Globs: patterns of paths, and which directories can hold something that fits one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final

from datalattice.apps.dlfs import split_path
from datalattice.errors import UsageError
from datalattice.pipeline.options import Refused

ANY: Final = "**"
_MAGIC: Final = re.compile(r"[*?\[]")

States = frozenset[int]
"""How many of the pattern's names may stand for the names of a path so far."""


class Glob:
    """A pattern of paths: `*`, `?` and `[abc]` within a name, `**` for any number of names.

    A path fits as a whole. A pattern without any of these that names a directory means all files
    below it.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.names: Final = split_path(text)
        self._fits: Final = [None if name == ANY else _matcher(name) for name in self.names]

    def __reduce__(self) -> tuple[type[Glob], tuple[str]]:
        return Glob, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glob) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_plain(self) -> bool:
        """Whether it fits one path only."""
        return all(self.is_literal(place) for place in range(len(self.names)))

    def is_literal(self, place: int) -> bool:
        """Return whether the name at a place of the pattern stands for itself."""
        return _MAGIC.search(self.names[place]) is None

    @property
    def start(self) -> States:
        """The states before any name."""
        return self._closed({0})

    def step(self, states: States, name: str) -> States:
        """Return the states after one more name; none: nothing that begins so can fit."""
        after: set[int] = set()
        for place in states:
            if place == len(self.names):
                continue
            fits = self._fits[place]
            if fits is None:
                after.add(place)
            elif fits(name):
                after.add(place + 1)
        return self._closed(after)

    def is_end(self, states: States) -> bool:
        """Return whether a path that led to these states fits."""
        return len(self.names) in states

    def may_go_on(self, states: States) -> bool:
        """Return whether something below a path that led to these states can fit."""
        return any(place < len(self.names) for place in states)

    def _closed(self, states: set[int]) -> States:
        for place, fits in enumerate(self._fits):  # `**` may stand for no name at all
            if fits is None and place in states:
                states.add(place + 1)
        return frozenset(states)


EVERYTHING: Final = Glob(f"/{ANY}")


def _matcher(name: str) -> Callable[[str], object]:
    if _MAGIC.search(name) is None:
        return name.__eq__
    return re.compile(fnmatch.translate(name)).match


def glob_option(text: str) -> Glob:
    """Parse a pattern of paths."""
    try:
        return Glob(text)
    except UsageError as error:
        raise Refused(f"a path in a drive in which *, ?, [..] and ** may stand: {error}") from None
