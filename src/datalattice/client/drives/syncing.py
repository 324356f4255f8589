"""Syncing: makes a local folder and a directory of a drive equal, reading only changed files.

The baseline is the last state that both sides shared, kept beside the store with size and times of
the local files. A side has changed a path if it differs from the baseline there. A change of one
side is copied to the other. A path that both sides changed, or that is a file on one and a
directory on the other, is a conflict: both sides keep theirs and the path is reported, unless one
side is preferred. A path deleted on one side is restored from the other, unless `delete` is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from datalattice.apps.dlfs import Drive, FileContent, PathNames
from datalattice.cells import value_hash
from datalattice.client.drives.drives import DriveOf, Drives
from datalattice.client.drives.transfer import (
    CountBytes,
    LocalItem,
    hash_file,
    inside,
    pieces,
    walk_local,
    write_local,
)
from datalattice.crypto import sha3_256
from datalattice.errors import AlreadyExists, DataLatticeError, NoSuchPath, UsageError
from datalattice.store import FOLDER_MODE, RealDisk, replace_file

DIRECTORY: Final = "directory"
"""The hash field of a directory."""


class Direction(StrEnum):
    """Which sides may change."""

    BOTH = "both"
    TO_DRIVE = "to-drive"
    TO_LOCAL = "to-local"


class Side(StrEnum):
    """Which side wins where both changed."""

    NONE = "none"
    LOCAL = "local"
    DRIVE = "drive"


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a local file or directory; a directory has only the hash `DIRECTORY`.

    It includes the ctime because programs can set the mtime, which would hide a change.
    """

    hash: str
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The paths that a synchronisation changed, and those that it could not."""

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
        """Whether the sides are equal now, as far as the caller asked."""
        return not self.conflicts and not self.failed


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
        on_bytes: CountBytes | None = None,
    ) -> None:
        if not local.is_dir() and (local.exists() or direction == Direction.TO_DRIVE):
            raise UsageError(f"{local} is not a directory")
        self._drives = drives
        self._drive = drive
        self._path = path
        self._local = local
        self._direction = direction
        self._delete = delete
        self._prefer = prefer
        self._dry_run = dry_run
        self._on_bytes = on_bytes
        self._result = SyncResult()
        self._before: dict[PathNames, FileState] = {}  # the baseline
        self._ours: dict[PathNames, FileState] = {}
        self._theirs: dict[PathNames, str] = {}
        self._blocked: set[PathNames] = set()
        place = json.dumps([os.path.realpath(local), drives.owner().hex(), drive, path])
        name = sha3_256(place.encode("utf-8", "surrogateescape")).hex()[:32]
        self._baseline_path = drives.folder.path / "sync" / f"{name}.json"
        self._place = place

    def run(self) -> SyncResult:
        """Make both sides equal; return the result, for a dry run of what would be done.

        Raises: UsageError: with `delete`, if one side has lost everything; the baseline is damaged.
        """
        self._before = self._read_baseline()
        self._theirs = dict(self._in_drive())
        self._ours = dict(self._in_folder())
        # "If one side is empty, the command deletes nothing and fails: the disk may not be mounted"
        # (docs/dlfs.md "Command line").
        if self._delete:
            self._check_both()
        up, down = self._plan()
        self._upload(up)
        self._download(down)
        if not self._dry_run:
            self._save_baseline()
        return self._result

    def _check_both(self) -> None:
        """Refuse to empty one side because the other is empty. Raises: UsageError."""
        # An empty side is mostly an unmounted disk or a wrong path.
        sides = (self._ours, str(self._local)), (self._theirs, f"{self._drive}:{self._path}")
        for side, place in sides:
            if self._before and not side and (self._ours or self._theirs):
                raise UsageError(
                    f"{place} is missing or empty, and --delete would delete its files on the "
                    "other side; leave out --delete to restore them, or delete them there yourself"
                )

    def _find_blocked(self) -> set[PathNames]:
        """Return the paths where the local folder has something that a drive cannot hold.

        The paths below these count too.
        """
        found: set[PathNames] = set()
        for names in sorted({*self._before, *self._theirs} - self._ours.keys()):  # parents first
            if names[:-1] in found or os.path.lexists(Path(self._local, *names)):
                found.add(names)
        return found

    def _plan(self) -> tuple[list[PathNames], list[PathNames]]:
        """Return the paths to copy to the drive, and those to copy to the folder."""
        up: list[PathNames] = []
        down: list[PathNames] = []
        needed: set[PathNames] = set()  # directories that still hold something
        self._blocked = self._find_blocked()
        # Contents before their directory, which is deleted only if nothing in it stays.
        for names in sorted({*self._before, *self._theirs, *self._ours}, reverse=True):
            mine = self._hash_here(names)
            other = self._theirs.get(names)
            winner = None if names in self._blocked else self._winner(names, mine, other)
            # A directory in which something stays is not deleted: the side that lacks it gets it
            # back, if it may change.
            if names in needed and winner == Side.DRIVE and other is None:
                winner = Side.LOCAL if self._direction != Direction.TO_LOCAL else None
            elif names in needed and winner == Side.LOCAL and mine is None:
                winner = Side.DRIVE if self._direction != Direction.TO_DRIVE else None
            stays = {Side.LOCAL: mine, Side.DRIVE: other}.get(winner or Side.NONE, mine or other)
            if stays is not None:
                needed.update(names[:length] for length in range(1, len(names)))
            if winner == Side.LOCAL:
                up.append(names)
            elif winner == Side.DRIVE:
                down.append(names)
            elif winner == Side.NONE:
                self._result.conflicts.append("/".join(names))
        return up[::-1], down[::-1]

    def _hash_here(self, names: PathNames) -> str | None:
        return None if names not in self._ours else self._ours[names].hash

    def _winner(self, names: PathNames, mine: str | None, theirs: str | None) -> Side | None:
        """Return the side whose state wins at a path; NONE: a conflict, None: no change."""
        if mine == theirs:
            return None
        was = None if names not in self._before else self._before[names].hash
        if mine is not None and theirs is not None and DIRECTORY in (mine, theirs):
            return Side.NONE  # "A path that is a file here and a directory there is a conflict."
        # "What was deleted on one side comes back from the other. With `--delete` it is deleted
        # there too, unless it was changed" (docs/dlfs.md "Command line").
        if mine is None or theirs is None:
            side = Side.DRIVE if mine is None else Side.LOCAL
            if self._delete and was is not None and (mine or theirs) == was:
                side = Side.LOCAL if mine is None else Side.DRIVE  # the other side deleted it
        # "Changes on one side are copied to the other": the unchanged side loses.
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
            return None  # the side that may not change would get or lose the path
        return only if self._prefer == only else Side.NONE

    # --- the present states -------------------------------------------------------------------

    def _in_drive(self) -> Iterator[tuple[PathNames, str]]:
        try:
            drive = self._drives.drive(self._drive)
            waiting: list[tuple[PathNames, str]] = (
                [((), self._path)] if drive.exists(self._path) else []
            )
        except NoSuchPath:
            return
        while waiting:
            names, path = waiting.pop()
            for one in drive.entries(path):
                below = (*names, one.name)
                # POSIX ends a name at the zero byte.
                if "\0" in one.name:
                    self._result.passed_over.append(
                        f"{one.path!r}: a local name cannot have a zero byte"
                    )
                elif one.is_dir:
                    yield below, DIRECTORY
                    waiting.append((below, one.path))
                else:
                    yield below, value_hash(drive.content(one.path)).hex()

    def _in_folder(self) -> Iterator[tuple[PathNames, FileState]]:
        if not self._local.is_dir():
            return
        for item in walk_local(self._local, self._result.passed_over.append):
            was = self._before.get(item.names)
            if item.is_dir:
                yield item.names, _DIRECTORY
            elif was is not None and was == _state_of(item, was.hash):
                yield item.names, was  # same size and times: the file is not read
            else:
                yield item.names, _state_of(item, hash_file(item.path, self._on_bytes).hex())
                self._result.read_bytes.append(item.size)

    # --- to the drive -------------------------------------------------------------------------

    def _upload(self, paths: list[PathNames]) -> None:
        new = [names for names in paths if names in self._ours]
        gone = [names for names in paths if names not in self._ours]
        done, deleted = self._result.to_drive, self._result.deleted_in_drive
        # "`--dry-run` prints what would be done" (docs/dlfs.md "Command line").
        if self._dry_run or not paths:
            done.extend(map("/".join, new))
            deleted.extend(map("/".join, gone))
            return
        contents: dict[PathNames, FileContent] = {}
        with self._drives.writing() as writer:
            for names in new:
                if self._ours[names].hash != DIRECTORY:
                    with Path(self._local, *names).open("rb") as file:
                        content = writer.content(pieces(file, self._on_bytes))
                    # "A file that changes while the command runs is not overwritten; it is reported
                    # as failed" (docs/dlfs.md "Command line").
                    if value_hash(content).hex() == self._ours[names].hash:
                        contents[names] = content
                    else:
                        self._fail(names, "it changed while it was read")
            new = [n for n in new if n in contents or self._ours[n].hash == DIRECTORY]

            def change(
                drive_of: DriveOf,
            ) -> tuple[list[PathNames], list[PathNames], dict[PathNames, str]]:
                return self._write_all(drive_of(self._drive), new, gone, contents)

            written, removed, faults = writer.edit(change)
        done.extend(map("/".join, written))
        deleted.extend(map("/".join, removed))
        for names, why in faults.items():
            self._fail(names, why)

    def _write_all(
        self,
        drive: Drive,
        new: list[PathNames],
        gone: list[PathNames],
        contents: dict[PathNames, FileContent],
    ) -> tuple[list[PathNames], list[PathNames], dict[PathNames, str]]:
        written: list[PathNames] = []
        removed: list[PathNames] = []
        faults: dict[PathNames, str] = {}
        drive.ensure()
        drive.makedirs(self._path)
        for names in new:
            path = inside(self._path, *names)
            try:
                # The drive may have changed since it was compared: its newer state is kept.
                if _hash_at(drive, path) != self._theirs.get(names):
                    faults[names] = "the drive changed meanwhile; run it again"
                    continue
                if names in contents:
                    drive.write(path, contents[names])
                else:
                    drive.makedirs(path)
                written.append(names)
            except (AlreadyExists, UsageError) as error:
                faults[names] = str(error)
        # A directory after its contents.
        for names in sorted(gone, key=len, reverse=True):
            path = inside(self._path, *names)
            if _hash_at(drive, path) == self._theirs.get(names):
                try:
                    drive.delete(path)
                    removed.append(names)
                except UsageError as error:
                    faults[names] = str(error)
        return written, removed, faults

    # --- to the folder ------------------------------------------------------------------------

    def _download(self, paths: list[PathNames]) -> None:
        new = [names for names in paths if names in self._theirs]
        gone = [names for names in paths if names not in self._theirs]
        gone.sort(key=len, reverse=True)  # a directory after its contents
        done, deleted = self._result.to_local, self._result.deleted_locally
        if self._dry_run:
            done.extend(map("/".join, new))
            deleted.extend(map("/".join, gone))
            return
        if new:
            self._local.mkdir(parents=True, exist_ok=True)
        for names in [*new, *gone]:
            target = Path(self._local, *names)
            try:
                if not (
                    self._fetch(names, target) if names in self._theirs else self._remove(names)
                ):
                    self._fail(names, "the local file changed meanwhile; run it again")
                elif names in self._theirs:
                    done.append("/".join(names))
                else:
                    deleted.append("/".join(names))
            except (DataLatticeError, OSError) as error:
                self._fail(names, str(error))

    def _fetch(self, names: PathNames, target: Path) -> bool:
        """Write a local file or directory; return False if it has changed since it was compared."""
        if self._theirs[names] == DIRECTORY:
            target.mkdir(exist_ok=True)
            return True
        drive, path = self._drives.drive(self._drive), inside(self._path, *names)
        content = drive.content(path)
        is_unchanged = partial(_is_as_seen, target, self._ours.get(names))
        # A local change since the comparison is kept; the next run decides about it.
        if not write_local(
            content, target, drive.stat(path).modified_ms, self._on_bytes, is_unchanged
        ):
            return False
        facts = target.stat()
        times = facts.st_mtime_ns, facts.st_ctime_ns
        self._ours[names] = FileState(value_hash(content).hex(), facts.st_size, *times)
        return True

    def _remove(self, names: PathNames) -> bool:
        """Delete a local file or directory; return False if it has changed since."""
        target, mine = Path(self._local, *names), self._ours[names]
        if mine == _DIRECTORY:
            target.rmdir()
        # Checked right before the deletion, which cannot be undone.
        elif not _is_as_seen(target, mine):
            return False
        else:
            target.unlink()
        return True

    def _fail(self, names: PathNames, why: str) -> None:
        self._result.failed.append(f"{'/'.join(names)}: {why}")

    # --- the baseline -------------------------------------------------------------------------

    def _read_baseline(self) -> dict[PathNames, FileState]:
        try:
            held = json.loads(self._baseline_path.read_text("utf-8"))
            return {tuple(one[0]): FileState(*one[1:]) for one in held["known"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{self._baseline_path} is damaged ({error}); delete it, and the next run "
                "compares all files"
            ) from error

    def _save_baseline(self) -> None:
        """Record what both sides share now; where they differ, what they shared before."""
        theirs = dict(self._in_drive())
        here: dict[PathNames, LocalItem] = {}
        if self._local.is_dir():
            here = {item.names: item for item in walk_local(self._local, len)}
        kept: dict[PathNames, FileState] = {}
        for names in {*self._before, *theirs}:
            item, seen, hash = here.get(names), self._ours.get(names), theirs.get(names)
            if hash == DIRECTORY and item is not None and item.is_dir:
                kept[names] = _DIRECTORY
            elif seen and item and hash == seen.hash and seen == _state_of(item, seen.hash):
                kept[names] = seen
            # Still different: what they shared before tells the next run which side has changed.
            elif names in self._before and (hash or item or names in self._blocked):
                kept[names] = self._before[names]
        self._baseline_path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        rows = [
            [list(names), one.hash, one.size, one.mtime_ns, one.ctime_ns]
            for names, one in kept.items()
        ]
        text = json.dumps({"place": self._place, "known": rows})
        # Replaced in one step: a crash leaves the old baseline or the new one.
        replace_file(RealDisk(), str(self._baseline_path), [text.encode()])


_DIRECTORY: Final = FileState(DIRECTORY)


def _state_of(item: LocalItem, hash: str) -> FileState:
    if item.is_dir:
        return _DIRECTORY
    return FileState(hash, item.size, item.mtime_ns, item.ctime_ns)


def _hash_at(drive: Drive, path: str) -> str | None:
    if not drive.exists(path):
        return None
    return DIRECTORY if drive.is_dir(path) else value_hash(drive.content(path)).hex()


def _is_as_seen(path: Path, mine: FileState | None) -> bool:
    try:
        facts = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return mine is None
    seen = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
    return mine is not None and seen == (mine.size, mine.mtime_ns, mine.ctime_ns)
