"""Copying: copies files between local folders and drives, for the commands of `lattice fs`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from datalattice.apps.dlfs import FS_SECTION, Drive, FileContent, Stat, drive_names
from datalattice.cli.command import Call
from datalattice.cli.fs.paths import DrivePath, goal_of
from datalattice.cli.render import CommandResult, ProgressBar, count_text, print_notice
from datalattice.client.drives import DriveOf, Drives, copy_tree, pieces, walk_local, write_local
from datalattice.errors import IsADirectory, NoSuchPath

EXIT_SKIPPED = 1
"""Exit code if names were skipped."""


def drive_owner(call: Call) -> bytes | None:
    """Return the owner that `--owner` names, None without it."""
    return None if call.owner is None else call.owner_named(call.owner, call.owners(FS_SECTION))


def drive_at(call: Call, target: DrivePath) -> tuple[Drive, str]:
    """Return the drive to read, and the path inside it."""
    cursor, name = call.cursor(), target.drive
    assert name is not None
    holders = [one for one in call.owners(FS_SECTION) if name in drive_names(cursor, one)]
    owner = call.holder(holders, f"drive {name!r}", "lattice fs drives")
    return Drive.at(cursor, owner, name), target.path


@dataclass(frozen=True, slots=True)
class _Upload:
    source: Path
    names: tuple[str, ...]  # the path below the target of its argument
    argument: DrivePath
    is_dir: bool
    size: int


def _uploads(sources: list[DrivePath], recursive: bool) -> Iterator[_Upload]:
    for source in sources:
        path = Path(source.path)
        if not path.is_dir():
            if not path.is_file():
                why = "is neither a file nor a directory" if path.exists() else "does not exist"
                raise NoSuchPath(f"{path} {why}")
            yield _Upload(path, (), source, False, path.stat().st_size)
            continue
        if not recursive:
            raise IsADirectory(f"{path} is a directory; copy it with --recursive")
        yield _Upload(path, (), source, True, 0)
        for item in walk_local(path, lambda text: print_notice(f"skipped {text}")):
            yield _Upload(item.path, item.names, source, item.is_dir, item.size)


def put_files(
    call: Call, sources: list[DrivePath], goal: DrivePath, recursive: bool
) -> CommandResult:
    """Copy local files to a drive, in one commit."""
    uploads = list(_uploads(sources, recursive))  # a missing file is an error before any is stored
    total = sum(one.size for one in uploads)
    contents: list[FileContent | None] = []
    bar = call.bar("bytes", total)
    with closing(Drives(call.writable())) as all_drives, all_drives.writing() as writer:
        for one in uploads:
            if one.is_dir:
                contents.append(None)
                continue
            with one.source.open("rb") as file:
                # Stored while it is read; the files appear with the commit.
                contents.append(writer.content(pieces(file, bar.advance)))
        write = partial(_written, sources, goal, list(zip(uploads, contents, strict=True)))
        # "Each command writes one commit" (docs/dlfs.md "Command line"), after all contents are
        # stored.
        placed = writer.edit(write)
    files = sum(not one.is_dir for one in uploads)
    done = {"files": files, "bytes": total, "to": placed}
    return CommandResult(done, [f"{_counts(files, total)} to {', '.join(placed)}"])


def _counts(files: int, size: int) -> str:
    return f"{count_text(files, 'file')}, {count_text(size, 'byte')}"


def _written(
    sources: list[DrivePath],
    goal: DrivePath,
    uploads: list[tuple[_Upload, FileContent | None]],
    drive_of: DriveOf,
) -> list[str]:
    """Write files with their contents to a drive; return the target of each source."""
    assert goal.drive is not None
    drive = drive_of(goal.drive)
    drive.ensure()
    several, is_directory = len(sources) > 1, drive.is_dir(goal.path)
    goals = {
        source: goal_of(
            # Resolved, because `.` and `..` are not names for the copy.
            DrivePath(None, os.path.realpath(source.path)),
            goal,
            is_directory,
            several=several,
        )
        for source in sources
    }
    for upload, content in uploads:
        path = goals[upload.argument].below(*upload.names).path
        if content is None:
            drive.makedirs(path)
        else:
            drive.write(path, content)
    return [str(one) for one in goals.values()]


def copy_files(
    call: Call, sources: list[DrivePath], goal: DrivePath, recursive: bool
) -> CommandResult:
    """Copy files from drive to drive, in one commit."""
    owner = drive_owner(call)

    def change(drive_of: DriveOf) -> list[str]:
        assert goal.drive is not None
        drive = drive_of(goal.drive)
        drive.ensure()
        copied = []
        for one in sources:
            assert one.drive is not None
            source = drive_of(one.drive, owner)
            if source.stat(one.path).is_dir and not recursive:
                raise IsADirectory(f"{one} is a directory; copy it with --recursive")
            to = goal_of(one, goal, drive.is_dir(goal.path), several=len(sources) > 1)
            # "copies and moves share contents" (docs/dlfs.md "fsspec"), but an update has one
            # drive: into another one the tree is written entry by entry.
            if owner is None and one.drive == goal.drive:
                drive.copy(one.path, to.path)
            else:
                copy_tree(source, one.path, drive, to.path)
            copied.append(str(to))
        return copied

    with closing(Drives(call.existing)) as all_drives, all_drives.writing() as writer:
        copied = writer.edit(change)
    return CommandResult({"to": copied}, [f"copied to {', '.join(copied)}"])


def get_files(
    call: Call, sources: list[DrivePath], goal: DrivePath, recursive: bool
) -> CommandResult:
    """Copy files of a drive to local ones."""
    files = size = 0
    went = []
    skipped: list[str] = []
    # Decided before the first copy, which may itself make the directory.
    is_directory = Path(goal.path).is_dir()
    bar = call.bar("bytes", sum(_size(call, one) for one in sources))
    for one in sources:
        drive, path = drive_at(call, one)
        if drive.stat(path).is_dir and not recursive:
            raise IsADirectory(f"{one} is a directory; copy it with --recursive")
        to = goal_of(one, goal, is_directory, several=len(sources) > 1)
        went.append(str(to))
        for stat in _Download(drive, bar, skipped).files(path, Path(to.path)):
            files, size = files + 1, size + stat.size
    done = {"files": files, "bytes": size, "to": went, "skipped": skipped}
    lines = [f"{_counts(files, size)} to {', '.join(went)}"]
    if not skipped:
        return CommandResult(done, lines)
    notice = f"{count_text(len(skipped), 'name')} skipped: no local file can have them"
    return CommandResult(done, lines, EXIT_SKIPPED, [notice])


def _size(call: Call, source: DrivePath) -> int:
    drive, path = drive_at(call, source)
    return drive.du(path).bytes


class _Download:
    """Writes a file or a tree of a drive to local ones, and skips names that cannot be local."""

    def __init__(self, drive: Drive, bar: ProgressBar, skipped: list[str]) -> None:
        self._drive = drive
        self._bar = bar
        self._skipped = skipped

    def files(self, path: str, target: Path) -> Iterator[Stat]:
        """Write the files at and below a path; yield the state of each."""
        drive = self._drive
        stat = drive.stat(path)
        if not stat.is_dir:
            write_local(drive.content(path), target, stat.modified_ms, self._bar.advance)
            yield stat
            return
        target.mkdir(exist_ok=True)
        for name in drive.unreachable(path):  # "names that no path can express"
            self._skip(path, name, "no path leads to this name")
        made: dict[tuple[int, int], str] = {}
        for one in drive.entries(path):
            # Checked before it is written, because it could replace another file.
            why = _impossible(one.name) or _clash(target / one.name, made)
            if why is not None:
                self._skip(path, one.name, why)
                continue
            try:
                yield from self.files(one.path, target / one.name)
            except OSError as error:
                # One name that the file system refuses must not end the copy of a tree.
                if error.errno not in _IMPOSSIBLE:
                    raise
                self._skip(path, one.name, f"the local file system refuses it ({error.strerror})")
                continue
            # By inode, because a file system may ignore case or Unicode form in names.
            there = (target / one.name).stat()
            made[there.st_dev, there.st_ino] = one.name

    def _skip(self, path: str, name: str, why: str) -> None:
        self._skipped.append(f"{path.rstrip('/')}/{name}")
        print_notice(f"skipped {name!r} in {path}: {why}")


_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)
"""Error numbers with which file systems refuse a name."""


def _impossible(name: str) -> str | None:
    if "\0" in name:
        return "a local name cannot have NUL"
    return f"a local name cannot have {os.sep}" if os.sep in name else None


def _clash(target: Path, made: dict[tuple[int, int], str]) -> str | None:
    """Return why a name cannot be written: the file system takes it for one just written."""
    try:
        there = target.stat()
    except OSError:
        return None  # it does not exist, or the write will be refused
    held = made.get((there.st_dev, there.st_ino))
    return None if held is None else f"locally it is the same as {held!r}"
