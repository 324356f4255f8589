"""Paths: resolves arguments of `lattice fs` to paths in a drive or a local folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datalattice.client.drives import inside
from datalattice.errors import NotADirectory, UsageError


@dataclass(frozen=True, slots=True)
class DrivePath:
    """The path that an argument names: in a drive, or (drive None) a local one."""

    drive: str | None
    path: str

    def __str__(self) -> str:
        return self.path if self.drive is None else f"{self.drive}:{self.path}"

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def below(self, *names: str) -> DrivePath:
        """Return the path with these names below it."""
        if self.drive is None:
            return DrivePath(None, str(Path(self.path, *names)))
        return DrivePath(self.drive, inside(self.path, *names))


def parse_path(text: str) -> DrivePath:
    """Return the path that an argument of `cp` names."""
    drive, colon, path = text.partition(":")
    if colon and drive and "/" not in drive:  # `./a:b` is a local path
        return DrivePath(drive, "/" + path.lstrip("/"))
    return DrivePath(None, text)


def parse_drive_path(text: str) -> DrivePath:
    """Return a path in a drive. Raises: UsageError: it is a local path."""
    found = parse_path(text)
    if found.drive is None:
        raise UsageError(f"a path in a drive is DRIVE:PATH, got {text!r}")
    return found


def goal_of(
    source: DrivePath, target: DrivePath, is_directory: bool, *, several: bool
) -> DrivePath:
    """Return the target of one source: inside `target` if it is a directory, else `target`.

    Raises: NotADirectory: there are several sources, or `target` ends with a slash, and it is not a
            directory. UsageError: the source has no name to use there.
    """
    if is_directory:
        if not source.name:  # the root of a drive has no name
            raise UsageError(f"{source} has no name to use in {target}; name a new directory")
        return target.below(source.name)
    if several or target.path.endswith("/"):
        raise NotADirectory(f"{target} is not a directory")
    return target
