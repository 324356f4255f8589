"""Copying between local folders and drives, for the commands of `lattice fs`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from typer.exceptions import Exit

from datalattice.apps.dlfs import Content, Drive, Stat
from datalattice.cli.folder import existing_folder, folder_of
from datalattice.cli.render import Step, counted, print_lines, print_notice, progress_bars, show
from datalattice.cli.spots import Spot, goal_of
from datalattice.cli.values import parse_owner
from datalattice.client.drives import DriveOf, Drives, copy_tree, fetch, pieces, walk_local
from datalattice.errors import IsADirectory, NoSuchPath

EXIT_SKIPPED = 1
"""Exit code where names were passed over."""


@contextmanager
def open_drives(dir: Path | None, owner: str | None) -> Iterator[Drives]:
    """Give the drives of an owner, to read from."""
    with closing(Drives(existing_folder(dir), parse_owner(owner) if owner else None)) as drives:
        yield drives


def drive_at(drives: Drives, spot: Spot) -> tuple[Drive, str]:
    """Return the drive of a spot, and the path inside it."""
    assert spot.drive is not None
    return drives.readable(spot.drive), spot.path


@dataclass(frozen=True, slots=True)
class _Upload:
    source: Path
    names: tuple[str, ...]  # below the spot that its argument goes to
    argument: Spot
    is_dir: bool
    size: int


def _uploads(spots: list[Spot], recursive: bool) -> Iterator[_Upload]:
    for spot in spots:
        path = Path(spot.path)
        if not path.is_dir():
            if not path.is_file():
                why = "is no file and no directory" if path.exists() else "does not exist"
                raise NoSuchPath(f"{path} {why}")
            yield _Upload(path, (), spot, False, path.stat().st_size)
            continue
        if not recursive:
            raise IsADirectory(f"{path} is a directory; copy it with --recursive")
        yield _Upload(path, (), spot, True, 0)
        for item in walk_local(path, lambda text: print_notice(f"passed over {text}")):
            yield _Upload(item.path, item.names, spot, item.is_dir, item.size)


def put_files(dir: Path | None, spots: list[Spot], goal: Spot, recursive: bool, json: bool) -> None:
    """Copy local files to a drive, as one change, and tell."""
    uploads = list(_uploads(spots, recursive))
    total = sum(one.size for one in uploads)
    contents: list[Content | None] = []
    with (
        closing(Drives(folder_of(dir))) as all_drives,
        all_drives.writing() as writer,
        progress_bars(quiet=json, transient=True) as bars,
    ):
        bar = bars.add("bytes", total)
        for one in uploads:
            if one.is_dir:
                contents.append(None)
                continue
            with one.source.open("rb") as file:
                contents.append(writer.content(pieces(file, bar.advance)))
        place = partial(_place, spots, goal, list(zip(uploads, contents, strict=True)))
        placed = writer.edit(place)
    files = sum(not one.is_dir for one in uploads)
    done = {"files": files, "bytes": total, "to": placed}
    words = f"{_counts(files, total)} to {', '.join(placed)}"
    show(json, done, lambda: print_lines([words]))


def _counts(files: int, size: int) -> str:
    return f"{counted(files, 'file')}, {counted(size, 'byte')}"


def _place(
    spots: list[Spot],
    goal: Spot,
    uploads: list[tuple[_Upload, Content | None]],
    drive_of: DriveOf,
) -> list[str]:
    """Give files of a drive their contents; return where they went."""
    assert goal.drive is not None
    drive = drive_of(goal.drive)
    drive.ensure()
    several, is_directory = len(spots) > 1, drive.is_dir(goal.path)
    goals = {
        spot: goal_of(Spot(None, os.path.realpath(spot.path)), goal, is_directory, several=several)
        for spot in spots
    }
    for upload, content in uploads:
        path = goals[upload.argument].below(*upload.names).path
        if content is None:
            drive.makedirs(path)
        else:
            drive.write(path, content)
    return [str(one) for one in goals.values()]


def copy_files(
    dir: Path | None,
    owner: str | None,
    spots: list[Spot],
    goal: Spot,
    recursive: bool,
    json: bool,
) -> None:
    """Copy files from drive to drive, as one change, and tell."""
    whose = parse_owner(owner) if owner else None

    def change(drive_of: DriveOf) -> list[str]:
        assert goal.drive is not None
        drive = drive_of(goal.drive)
        drive.ensure()
        copied = []
        for spot in spots:
            assert spot.drive is not None
            source = drive_of(spot.drive, whose)
            if source.stat(spot.path).is_dir and not recursive:
                raise IsADirectory(f"{spot} is a directory; copy it with --recursive")
            to = goal_of(spot, goal, drive.is_dir(goal.path), several=len(spots) > 1)
            if whose is None and spot.drive == goal.drive:
                drive.copy(spot.path, to.path)
            else:
                copy_tree(source, spot.path, drive, to.path)
            copied.append(str(to))
        return copied

    with closing(Drives(existing_folder(dir))) as all_drives, all_drives.writing() as writer:
        copied = writer.edit(change)
    show(json, {"to": copied}, lambda: print_lines([f"copied to {', '.join(copied)}"]))


def get_files(
    dir: Path | None,
    owner: str | None,
    spots: list[Spot],
    goal: Spot,
    recursive: bool,
    json: bool,
) -> None:
    """Copy files of a drive to local ones, and tell."""
    files = size = 0
    went = []
    skipped: list[str] = []
    with open_drives(dir, owner) as all_drives, progress_bars(quiet=json, transient=True) as bars:
        is_directory = Path(goal.path).is_dir()
        bar = bars.add("bytes", sum(_size(all_drives, spot) for spot in spots))
        for spot in spots:
            drive, path = drive_at(all_drives, spot)
            if drive.stat(path).is_dir and not recursive:
                raise IsADirectory(f"{spot} is a directory; copy it with --recursive")
            to = goal_of(spot, goal, is_directory, several=len(spots) > 1)
            went.append(str(to))
            download = _Download(drive, bar, skipped)
            for stat in download.files(path, Path(to.path)):
                files, size = files + 1, size + stat.size
    done = {"files": files, "bytes": size, "to": went, "skipped": skipped}
    words = f"{_counts(files, size)} to {', '.join(went)}"
    show(json, done, lambda: print_lines([words]))
    if skipped:
        print_notice(f"{counted(len(skipped), 'name')} passed over: no local file can have them")
        raise Exit(EXIT_SKIPPED)


def _size(all_drives: Drives, spot: Spot) -> int:
    drive, path = drive_at(all_drives, spot)
    return drive.du(path).bytes


class _Download:
    """Writes a file or a tree of a drive to local ones, and passes over names that cannot be."""

    def __init__(self, drive: Drive, bar: Step, skipped: list[str]) -> None:
        self._drive = drive
        self._bar = bar
        self._skipped = skipped

    def files(self, path: str, target: Path) -> Iterator[Stat]:
        """Write what is at a path; yield what is known about each file."""
        drive = self._drive
        stat = drive.stat(path)
        if not stat.is_dir:
            fetch(drive.content(path), target, stat.modified_ms, self._bar.advance)
            yield stat
            return
        target.mkdir(exist_ok=True)
        for name in drive.unreachable(path):
            self._skip(path, name, "no path leads to this name")
        made: dict[tuple[int, int], str] = {}
        for one in drive.entries(path):
            why = _impossible(one.name) or _clash(target / one.name, made)
            if why is not None:
                self._skip(path, one.name, why)
                continue
            try:
                yield from self.files(one.path, target / one.name)
            except OSError as error:
                if error.errno not in _IMPOSSIBLE:
                    raise
                self._skip(path, one.name, f"the local file system refuses it ({error.strerror})")
                continue
            there = (target / one.name).stat()
            made[there.st_dev, there.st_ino] = one.name

    def _skip(self, path: str, name: str, why: str) -> None:
        self._skipped.append(f"{path.rstrip('/')}/{name}")
        print_notice(f"passed over {name!r} in {path}: {why}")


_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)
"""How file systems refuse a name."""


def _impossible(name: str) -> str | None:
    if "\0" in name:
        return "a local name has no NUL"
    return f"a local name has no {os.sep}" if os.sep in name else None


def _clash(target: Path, made: dict[tuple[int, int], str]) -> str | None:
    """Return why a name cannot be, which the file system takes for one that was just written."""
    try:
        there = target.stat()
    except OSError:
        return None  # not there, or refused when it is written
    held = made.get((there.st_dev, there.st_ino))
    return None if held is None else f"locally it is the same as {held!r}"
