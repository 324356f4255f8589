"""Copying between local folders and drives, for the commands of `lattice fs`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from datalattice.apps.dlfs import Content, Drive, Stat
from datalattice.cli.folder import existing_folder, folder_of
from datalattice.cli.render import Step, counted, print_lines, print_notice, progress_bars, show
from datalattice.cli.spots import Spot, goal_of
from datalattice.cli.values import parse_owner
from datalattice.errors import IsADirectory, NoSuchPath
from datalattice.home import DriveOf, Drives, copy_tree, fetch, pieces, walk_local


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
    with open_drives(dir, owner) as all_drives, progress_bars(quiet=json, transient=True) as bars:
        is_directory = Path(goal.path).is_dir()
        bar = bars.add("bytes", sum(_size(all_drives, spot) for spot in spots))
        for spot in spots:
            drive, path = drive_at(all_drives, spot)
            if drive.stat(path).is_dir and not recursive:
                raise IsADirectory(f"{spot} is a directory; copy it with --recursive")
            to = goal_of(spot, goal, is_directory, several=len(spots) > 1)
            went.append(str(to))
            for stat in _download(drive, path, Path(to.path), bar):
                files, size = files + 1, size + stat.size
    done = {"files": files, "bytes": size, "to": went}
    words = f"{_counts(files, size)} to {', '.join(went)}"
    show(json, done, lambda: print_lines([words]))


def _size(all_drives: Drives, spot: Spot) -> int:
    drive, path = drive_at(all_drives, spot)
    return drive.du(path).bytes


def _download(drive: Drive, path: str, target: Path, bar: Step) -> Iterator[Stat]:
    """Write a file or a tree to local ones; yield what is known about each file."""
    stat = drive.stat(path)
    if not stat.is_dir:
        fetch(drive.content(path), target, stat.modified_ms, bar.advance)
        yield stat
        return
    target.mkdir(exist_ok=True)
    for one in drive.entries(path):
        if "\0" in one.name:
            print_notice(f"passed over {one.path!r}: no local file can have this name")
            continue
        yield from _download(drive, one.path, target / one.name, bar)
