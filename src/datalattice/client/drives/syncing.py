"""Syncing: a local folder and a directory of a drive made alike, reading only what changed.

What both sides had when they were last made alike is kept beside the store, with size and time of
the local files. A side has changed a path if it has something else there now. What only one side
changed goes to the other one; a path that both changed, or that is a file here and a directory
there, is a conflict: both are left as they are and the path is named, unless one side is preferred.
Something deleted comes back from the other side, unless deletions are wanted, too.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from datalattice.apps.dlfs import Content, Drive
from datalattice.cells import value_hash
from datalattice.client.drives.drives import DriveOf, Drives
from datalattice.client.drives.transfer import (
    Told,
    fetch,
    hash_file,
    inside,
    pieces,
    walk_local,
)
from datalattice.crypto import sha3_256
from datalattice.errors import AlreadyExists, DataLatticeError, NoSuchPath, UsageError
from datalattice.store import FOLDER_MODE

DIRECTORY: Final = "directory"
"""In the place of a file's hash."""

Names = tuple[str, ...]


class Direction(StrEnum):
    """Which side may change."""

    BOTH = "both"
    TO_DRIVE = "to-drive"
    TO_LOCAL = "to-local"


class Side(StrEnum):
    """Whose word counts where both sides changed."""

    NONE = "none"
    LOCAL = "local"
    DRIVE = "drive"


@dataclass(frozen=True, slots=True)
class Known:
    """What was at a path when both sides were alike; size and times of the local file.

    The time of its last change of any kind is among them: the time of its content can be set.
    """

    hash: str
    size: int
    mtime_ns: int
    ctime_ns: int = 0


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What was done, path by path."""

    to_drive: list[str] = field(default_factory=list)
    to_local: list[str] = field(default_factory=list)
    deleted_in_drive: list[str] = field(default_factory=list)
    deleted_locally: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the two sides are alike now, as far as was asked."""
        return not self.conflicts and not self.failed


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path
    hash: str
    size: int
    mtime_ns: int
    ctime_ns: int


class Sync:
    """One synchronisation of a local folder with the directory at `path` of a drive."""

    def __init__(
        self,
        drives: Drives,
        drive: str,
        path: str,
        local: Path,
        *,
        direction: Direction = Direction.BOTH,
        delete: bool = False,
        prefer: Side = Side.NONE,
        dry_run: bool = False,
        told: Told | None = None,
    ) -> None:
        if not local.is_dir() and (local.exists() or direction == Direction.TO_DRIVE):
            raise UsageError(f"{local} is no directory")
        self._drives = drives
        self._drive = drive
        self._path = path
        self._local = local
        self._direction = direction
        self._delete = delete
        self._prefer = prefer
        self._dry_run = dry_run
        self._told = told
        self._outcome = SyncResult()
        self._seen: dict[Names, Known] = {}
        self._blocked: set[Names] = set()
        place = json.dumps([os.path.realpath(local), drives.owner().hex(), drive, path])
        name = sha3_256(place.encode("utf-8", "surrogateescape")).hex()[:32]
        self._memory = drives.folder.path / "sync" / f"{name}.json"
        self._place = place

    def run(self) -> SyncResult:
        """Make both sides alike; return what was done, or would be done by a dry run.

        Raises: UsageError: with deletions, and one of the sides has lost everything.
        """
        known = self._remembered()
        theirs = dict(self._in_drive())
        ours = dict(self._in_folder(known))
        self._seen = {
            names: Known(one.hash, one.size, one.mtime_ns, one.ctime_ns)
            for names, one in ours.items()
        }
        if self._delete:
            self._check_both(known, ours, theirs)
        up, down = self._plan(known, ours, theirs)
        self._upload(up, ours, theirs)
        self._download(down, ours, theirs)
        if not self._dry_run:
            self._remember(known)
        return self._outcome

    def _check_both(
        self, known: dict[Names, Known], ours: dict[Names, _Local], theirs: dict[Names, str]
    ) -> None:
        """Refuse to empty one side because the other one is, as a disk is that is not mounted."""
        for side, place in ((ours, str(self._local)), (theirs, f"{self._drive}:{self._path}")):
            if known and not side and (ours or theirs):
                raise UsageError(
                    f"{place} is gone or empty, and --delete would delete all that was in it on "
                    "the other side; leave out --delete to have it back, or empty the other side "
                    "yourself if that is meant"
                )

    def _in_the_way(
        self, known: dict[Names, Known], ours: dict[Names, _Local], theirs: dict[Names, str]
    ) -> set[Names]:
        """Return the paths where a local thing is that cannot be in a drive, and those below."""
        found: set[Names] = set()
        for names in sorted({*known, *theirs} - ours.keys()):  # what is above comes before
            if names[:-1] in found or os.path.lexists(Path(self._local, *names)):
                found.add(names)
        return found

    def _plan(
        self, known: dict[Names, Known], ours: dict[Names, _Local], theirs: dict[Names, str]
    ) -> tuple[list[Names], list[Names]]:
        """Return the paths that go to the drive, and those that go to the folder."""
        up: list[Names] = []
        down: list[Names] = []
        needed: set[Names] = set()  # directories of what is to stay
        self._blocked = self._in_the_way(known, ours, theirs)
        # What is in a directory comes before it.
        for names in sorted({*known, *theirs, *ours}, reverse=True):
            mine = None if names not in ours else ours[names].hash
            other = theirs.get(names)
            way = None if names in self._blocked else self._way(known.get(names), mine, other)
            if names in needed and way == Side.DRIVE and other is None:
                way = Side.LOCAL if self._direction != Direction.TO_LOCAL else None
            elif names in needed and way == Side.LOCAL and mine is None:
                way = Side.DRIVE if self._direction != Direction.TO_DRIVE else None
            stays = {Side.LOCAL: mine, Side.DRIVE: other}.get(way or Side.NONE, mine or other)
            if stays is not None:
                needed.update(names[:length] for length in range(1, len(names)))
            if way == Side.LOCAL:
                up.append(names)
            elif way == Side.DRIVE:
                down.append(names)
            elif way == Side.NONE:
                self._outcome.conflicts.append("/".join(names))
        return up[::-1], down[::-1]

    def _way(self, known: Known | None, mine: str | None, theirs: str | None) -> Side | None:
        """Return whose state a path shall have; NONE: a conflict; None: nothing to do."""
        if mine == theirs:
            return None
        was = None if known is None else known.hash
        kinds_differ = mine is not None and theirs is not None and DIRECTORY in (mine, theirs)
        if kinds_differ:
            return Side.NONE
        if mine is None or theirs is None:
            side = self._with_one_side_empty(was, mine, theirs)
        elif was == theirs:
            side = Side.LOCAL
        elif was == mine:
            side = Side.DRIVE
        else:
            side = self._prefer
        if self._direction == Direction.BOTH or side == Side.NONE:
            return side
        only = Side.LOCAL if self._direction == Direction.TO_DRIVE else Side.DRIVE
        if side == only:
            return only
        if mine is None or theirs is None:
            return None  # there is more on the side that is not to follow, or less
        return only if self._prefer == only else Side.NONE

    def _with_one_side_empty(
        self, was: str | None, mine: str | None, theirs: str | None
    ) -> Side | None:
        present, side = (theirs, Side.DRIVE) if mine is None else (mine, Side.LOCAL)
        if self._delete and was is not None and present == was:
            return Side.LOCAL if side == Side.DRIVE else Side.DRIVE  # it was deleted there
        return side

    # --- what there is ------------------------------------------------------------------------

    def _in_drive(self) -> Iterator[tuple[Names, str]]:
        try:
            drive = self._drives.drive(self._drive)
            waiting: list[tuple[Names, str]] = (
                [((), self._path)] if drive.exists(self._path) else []
            )
        except NoSuchPath:
            return
        while waiting:
            names, path = waiting.pop()
            for one in drive.entries(path):
                below = (*names, one.name)
                if "\0" in one.name:
                    self._outcome.passed_over.append(f"{one.path}: no local file has such a name")
                elif one.is_dir:
                    yield below, DIRECTORY
                    waiting.append((below, one.path))
                else:
                    yield below, value_hash(drive.content(one.path)).hex()

    def _in_folder(self, known: dict[Names, Known]) -> Iterator[tuple[Names, _Local]]:
        if not self._local.is_dir():
            return
        for item in walk_local(self._local, self._outcome.passed_over.append):
            was = known.get(item.names)
            if item.is_dir:
                hash = DIRECTORY
            elif was is not None and was == Known(
                was.hash, item.size, item.mtime_ns, item.ctime_ns
            ):
                hash = was.hash
            else:
                hash = hash_file(item.path, self._told).hex()
                self._outcome.read_bytes.append(item.size)
            yield item.names, _Local(item.path, hash, item.size, item.mtime_ns, item.ctime_ns)

    # --- to the drive -------------------------------------------------------------------------

    def _upload(
        self, paths: list[Names], ours: dict[Names, _Local], theirs: dict[Names, str]
    ) -> None:
        new = [names for names in paths if names in ours]
        gone = [names for names in paths if names not in ours]
        done, deleted = self._outcome.to_drive, self._outcome.deleted_in_drive
        if self._dry_run or not paths:
            done.extend(map("/".join, new))
            deleted.extend(map("/".join, gone))
            return
        contents: dict[Names, Content] = {}
        with self._drives.writing() as writer:
            for names in new:
                if ours[names].hash != DIRECTORY:
                    with ours[names].path.open("rb") as file:
                        content = writer.content(pieces(file, self._told))
                    if value_hash(content).hex() == ours[names].hash:
                        contents[names] = content
                    else:
                        self._fail(names, "it changed while it was read")

            def change(drive_of: DriveOf) -> tuple[list[Names], list[Names], dict[Names, str]]:
                return self._place_all(drive_of(self._drive), new, gone, ours, contents, theirs)

            placed, removed, faults = writer.edit(change)
        done.extend(map("/".join, placed))
        deleted.extend(map("/".join, removed))
        for names, why in faults.items():
            self._fail(names, why)

    def _place_all(
        self,
        drive: Drive,
        new: list[Names],
        gone: list[Names],
        ours: dict[Names, _Local],
        contents: dict[Names, Content],
        theirs: dict[Names, str],
    ) -> tuple[list[Names], list[Names], dict[Names, str]]:
        placed: list[Names] = []
        removed: list[Names] = []
        faults: dict[Names, str] = {}
        drive.ensure()
        drive.makedirs(self._path)
        for names in new:
            path = inside(self._path, *names)
            if ours[names].hash != DIRECTORY and names not in contents:
                continue
            try:
                if _hash_at(drive, path) != theirs.get(names):
                    faults[names] = "the drive changed meanwhile; run it again"
                elif names in contents:
                    drive.write(path, contents[names])
                    placed.append(names)
                else:
                    drive.makedirs(path)
                    placed.append(names)
            except (AlreadyExists, UsageError) as error:
                faults[names] = str(error)
        for names in sorted(gone, key=len, reverse=True):
            path = inside(self._path, *names)
            if _hash_at(drive, path) == theirs.get(names):
                try:
                    drive.delete(path)
                    removed.append(names)
                except UsageError as error:
                    faults[names] = str(error)
        return placed, removed, faults

    # --- to the folder ------------------------------------------------------------------------

    def _download(
        self, paths: list[Names], ours: dict[Names, _Local], theirs: dict[Names, str]
    ) -> None:
        new = [names for names in paths if names in theirs]
        gone = sorted((names for names in paths if names not in theirs), key=len, reverse=True)
        done, deleted = self._outcome.to_local, self._outcome.deleted_locally
        if self._dry_run:
            done.extend(map("/".join, new))
            deleted.extend(map("/".join, gone))
            return
        if new:
            self._local.mkdir(parents=True, exist_ok=True)
        for names in [*new, *gone]:
            try:
                if names in theirs:
                    if self._fetch(names, ours.get(names), theirs[names]):
                        done.append("/".join(names))
                elif self._remove(ours[names]):
                    deleted.append("/".join(names))
                else:
                    self._fail(names, "the local file changed meanwhile; run it again")
            except (DataLatticeError, OSError) as error:
                self._fail(names, str(error))

    def _fetch(self, names: Names, mine: _Local | None, hash: str) -> bool:
        target = Path(self._local, *names)
        if hash == DIRECTORY:
            target.mkdir(exist_ok=True)
            return True
        drive, path = self._drives.drive(self._drive), inside(self._path, *names)
        content = drive.content(path)

        def still() -> bool:
            return _is_as_seen(target, mine)

        modified_ms = drive.stat(path).modified_ms
        if not fetch(content, target, modified_ms, self._told, still):
            self._fail(names, "the local file changed meanwhile; run it again")
            return False
        facts = target.stat()
        fetched = value_hash(content).hex()
        self._seen[names] = Known(fetched, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        return True

    def _remove(self, mine: _Local) -> bool:
        if mine.hash == DIRECTORY:
            mine.path.rmdir()
        elif not _is_as_seen(mine.path, mine):
            return False
        else:
            mine.path.unlink()
        return True

    def _fail(self, names: Names, why: str) -> None:
        self._outcome.failed.append(f"{'/'.join(names)}: {why}")

    # --- memory -------------------------------------------------------------------------------

    def _remembered(self) -> dict[Names, Known]:
        try:
            held = json.loads(self._memory.read_text("utf-8"))
            return {tuple(one[0]): Known(*one[1:]) for one in held["known"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{self._memory} is damaged ({error}); remove it, and the next run compares "
                "everything"
            ) from error

    def _remember(self, known: dict[Names, Known]) -> None:
        """Keep what both sides have now; where they differ, what they had before."""
        theirs = dict(self._in_drive())
        kept: dict[Names, Known] = {}
        sizes = self._sizes()
        for names in {*known, *theirs}:
            here, seen = sizes.get(names), self._seen.get(names)
            if theirs.get(names) == DIRECTORY and here == Known(DIRECTORY, 0, 0):
                kept[names] = here
            elif (
                seen is not None
                and theirs.get(names) == seen.hash
                and here == replace(seen, hash="")
            ):
                kept[names] = seen
            elif names in known and (names in theirs or here or names in self._blocked):
                kept[names] = known[names]
        self._memory.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        rows = [
            [list(names), one.hash, one.size, one.mtime_ns, one.ctime_ns]
            for names, one in kept.items()
        ]
        handle, fresh = tempfile.mkstemp(prefix=self._memory.name, dir=self._memory.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"place": self._place, "known": rows}, file)
            file.flush()
            os.fsync(file.fileno())
        Path(fresh).replace(self._memory)

    def _sizes(self) -> dict[Names, Known]:
        """Return what is in the folder now, hashes unknown."""
        ignore: Callable[[str], object] = len
        if not self._local.is_dir():
            return {}
        return {
            item.names: Known(DIRECTORY, 0, 0)
            if item.is_dir
            else Known("", item.size, item.mtime_ns, item.ctime_ns)
            for item in walk_local(self._local, ignore)
        }


def _hash_at(drive: Drive, path: str) -> str | None:
    if not drive.exists(path):
        return None
    return DIRECTORY if drive.is_dir(path) else value_hash(drive.content(path)).hex()


def _is_as_seen(path: Path, mine: _Local | None) -> bool:
    try:
        facts = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return mine is None
    seen = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
    return mine is not None and seen == (mine.size, mine.mtime_ns, mine.ctime_ns)
