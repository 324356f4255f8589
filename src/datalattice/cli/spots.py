"""Spots: what the arguments of `lattice fs` point to, in a drive or in a local folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datalattice.client.drives import inside
from datalattice.errors import NotADirectory, UsageError


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a command's argument points: into a drive, or, without one, to a local path."""

    drive: str | None
    path: str

    def __str__(self) -> str:
        return self.path if self.drive is None else f"{self.drive}:{self.path}"

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def below(self, *names: str) -> Spot:
        """Return the spot of something in the directory that is there."""
        if self.drive is None:
            return Spot(None, str(Path(self.path, *names)))
        return Spot(self.drive, inside(self.path, *names))


def parse_spot(text: str) -> Spot:
    """Return what an argument of `cp` means."""
    drive, colon, path = text.partition(":")
    if colon and drive and "/" not in drive:
        return Spot(drive, "/" + path.lstrip("/"))
    return Spot(None, text)


def parse_place(text: str) -> Spot:
    """Return a place in a drive.

    Raises: UsageError: it is a local path.
    """
    spot = parse_spot(text)
    if spot.drive is None:
        raise UsageError(f"a place in a drive is DRIVE:PATH, got {text!r}")
    return spot


def goal_of(source: Spot, target: Spot, is_directory: bool, *, several: bool) -> Spot:
    """Return where a source goes: into a directory that is there or is meant, else to the target.

    Raises: NotADirectory: several sources, and no directory.
    """
    if is_directory:
        if not source.name:
            raise UsageError(f"{source} has no name to have in {target}; name a new directory")
        return target.below(source.name)
    if several or target.path.endswith("/"):
        raise NotADirectory(f"{target} is no directory")
    return target
