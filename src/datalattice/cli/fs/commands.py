"""Commands `lattice fs ...`: the files of drives, and copies from and to local folders.

A path in a drive is DRIVE:PATH; a path without a colon before its first slash is local.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from datalattice.apps.dlfs import FS_SECTION, Drive, Stat, drive_names
from datalattice.cli.command import READS, WRITES, Call, command
from datalattice.cli.fs.copying import (
    copy_files,
    drive_at,
    drive_owner,
    get_files,
    put_files,
)
from datalattice.cli.fs.paths import DrivePath, goal_of, parse_drive_path, parse_path
from datalattice.cli.render import (
    CommandResult,
    Listing,
    count_text,
    is_json,
    listed,
    print_notice,
    visible,
)
from datalattice.cli.units import moment_text
from datalattice.client import Folder
from datalattice.client.drives import (
    Direction,
    DriveOf,
    Drives,
    Side,
    Sync,
    SyncResult,
    copy_tree,
    pieces_of,
)
from datalattice.errors import UsageError

T = TypeVar("T")

app = typer.Typer(help="The files of drives. A path is DRIVE:PATH; every write is on disk.")

RecursiveOption = Annotated[
    bool, typer.Option("--recursive", "-r", help="Include directories with their contents.")
]
DrivePathArgument = Annotated[str, typer.Argument(help="DRIVE:PATH.")]
DrivePathsArgument = Annotated[list[str], typer.Argument(help="DRIVE:PATH each.")]


def _document(stat: Stat) -> dict[str, object]:
    return {
        "name": stat.name,
        "path": stat.path,
        "type": "directory" if stat.is_dir else "file",
        "size": stat.size,
        "modified_ms": stat.modified_ms,
        "hash": stat.hash.hex(),
    }


# --- reading ------------------------------------------------------------------------------------


@command(app, "drives", READS)
def drives(call: Call) -> CommandResult:
    """List the drives of all owners here, or of one."""
    cursor, rows = call.cursor(), []
    for owner in call.chosen_owners(call.owners(FS_SECTION)):
        for name in drive_names(cursor, owner):
            usage = Drive.at(cursor, owner, name).du("/")
            row = {"owner": owner.hex(), "drive": name}
            rows.append({**row, "files": usage.files, "bytes": usage.bytes})
    return listed(rows, ("owner", "drive", "files", "bytes"), owner=call.short_owner)


@command(app, "ls", READS)
def ls(
    call: Call,
    path: DrivePathArgument,
    long: Annotated[bool, typer.Option("--long", "-l", help="Size and time too.")] = False,
) -> CommandResult:
    """List a directory, or one file."""
    drive, at = drive_at(call, parse_drive_path(path))
    found = drive.entries(at) if drive.is_dir(at) else [drive.stat(at)]
    documents = [_document(one) for one in found]
    names = [visible(one.name) + ("/" if one.is_dir else "") for one in found]
    if not long:
        return CommandResult(documents, names)
    rows = [
        ("" if one.is_dir else one.size, moment_text(one.modified_ms), name)
        for one, name in zip(found, names, strict=True)
    ]
    return CommandResult(documents, [Listing(("bytes", "modified", "name"), rows)])


@command(app, "cat", READS)
def cat(call: Call, paths: DrivePathsArgument) -> None:
    """Write the bytes of files to standard output."""
    # All paths are parsed before the first byte is written.
    for one in [parse_drive_path(path) for path in paths]:
        drive, path = drive_at(call, one)
        for piece in pieces_of(drive.content(path)):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@command(app, "tree", READS)
def tree(call: Call, path: DrivePathArgument) -> CommandResult:
    """Show a directory and everything below it."""
    drive, at = drive_at(call, parse_drive_path(path))
    # Only JSON needs the documents; making them would walk the tree twice.
    documents = []
    if is_json():
        documents = [
            _document(one) for above, _, _ in drive.walk(at) for one in drive.entries(above)
        ]
    return CommandResult(documents, [path, *_branches(drive, at, "")])


def _branches(drive: Drive, path: str, indent: str) -> Iterator[str]:
    entries = drive.entries(path)
    for number, one in enumerate(entries, 1):
        last = number == len(entries)
        mark = "/" if one.is_dir else f"  {one.size}"
        yield f"{indent}{'└─' if last else '├─'} {visible(one.name)}{mark}"
        # The recursion ends with the paths: "A path has at most 100 names" (docs/dlfs.md "Names and
        # paths").
        if one.is_dir:
            yield from _branches(drive, one.path, indent + ("   " if last else "│  "))


@command(app, "du", READS)
def du(call: Call, path: DrivePathArgument) -> CommandResult:
    """Count bytes, files and directories at and below a path."""
    drive, at = drive_at(call, parse_drive_path(path))
    usage = drive.du(at)
    words = ", ".join(
        (
            count_text(usage.bytes, "byte"),
            count_text(usage.files, "file"),
            count_text(usage.directories, "directory", "directories"),
        )
    )
    done = {"bytes": usage.bytes, "files": usage.files, "directories": usage.directories}
    return CommandResult(done, [words])


# --- writing ------------------------------------------------------------------------------------


def _edit(folder: Folder, change: Callable[[DriveOf], T]) -> T:
    """Make one change of our own drives."""
    with closing(Drives(folder)) as all_drives, all_drives.writing() as writer:
        return writer.edit(change)


def _drive(drive_of: DriveOf, path: DrivePath) -> Drive:
    assert path.drive is not None
    return drive_of(path.drive)


@command(app, "mkdir", WRITES)
def mkdir(
    call: Call,
    paths: Annotated[list[str], typer.Argument(help="DRIVE:PATH each; DRIVE: makes a drive.")],
    parents: Annotated[
        bool, typer.Option("--parents", "-p", help="Make missing parent directories too.")
    ] = False,
) -> CommandResult:
    """Make directories, or drives."""
    targets = [parse_drive_path(one) for one in paths]

    def change(drive_of: DriveOf) -> None:
        for one in targets:
            drive = _drive(drive_of, one)
            if one.path == "/" or parents:  # `DRIVE:` alone makes a drive
                drive.ensure()
                drive.makedirs(one.path)
            else:
                drive.mkdir(one.path)

    # Without --parents a first write is a drive, or a directory at its top: others are below one.
    may_begin = parents or any("/" not in one.path.strip("/") for one in targets)
    _edit(call.writable() if may_begin else call.existing, change)
    return CommandResult({"made": [str(one) for one in targets]}, [])


@command(app, "rm", WRITES)
def rm(call: Call, paths: DrivePathsArgument, recursive: RecursiveOption = False) -> CommandResult:
    """Delete files and empty directories; --recursive: full ones too. All or nothing."""
    targets = [parse_drive_path(one) for one in paths]

    def change(drive_of: DriveOf) -> None:
        for one in targets:
            drive = _drive(drive_of, one)
            if recursive:
                drive.remove_tree(one.path)
            else:
                drive.delete(one.path)

    # There is nothing to delete in a folder without a store, so none is made.
    _edit(call.existing, change)
    return CommandResult({"deleted": [str(one) for one in targets]}, [])


@command(app, "mv", WRITES)
def mv(
    call: Call,
    sources: DrivePathsArgument,
    target: Annotated[str, typer.Argument(help="DRIVE:PATH, a directory for several sources.")],
) -> CommandResult:
    """Move files and directories; a file replaces a file. All or nothing."""
    olds = [parse_drive_path(one) for one in sources]
    goal = parse_drive_path(target)

    def change(drive_of: DriveOf) -> list[str]:
        drive = _drive(drive_of, goal)
        moved = []
        for one in olds:
            to = goal_of(one, goal, drive.is_dir(goal.path), several=len(olds) > 1)
            old = _drive(drive_of, one)
            # Within a drive a move keeps the entry; between drives it is a copy and a deletion.
            if one.drive == goal.drive:
                drive.move(one.path, to.path)
            else:
                copy_tree(old, one.path, drive, to.path)
                old.remove_tree(one.path)
            moved.append(str(to))
        return moved

    return CommandResult({"moved": _edit(call.existing, change)}, [])


@command(app, "cp", ("dir", "owner", "wait", "offline"))
def cp(
    call: Call,
    sources: Annotated[list[str], typer.Argument(help="Local paths, or DRIVE:PATH.")],
    target: Annotated[str, typer.Argument(help="A local path, or DRIVE:PATH.")],
    recursive: RecursiveOption = False,
) -> CommandResult:
    """Copy files to a drive, from a drive, or from drive to drive. Existing files are replaced."""
    paths, goal = [parse_path(one) for one in sources], parse_path(target)
    local = [one.drive is None for one in paths]
    if any(local) != all(local) or (goal.drive is None and any(local)):
        raise UsageError(
            "sources are all local or all in drives, and one side is a drive, written DRIVE:PATH"
        )
    if goal.drive is None:
        return get_files(call, paths, goal, recursive)
    return (put_files if all(local) else copy_files)(call, paths, goal, recursive)


@command(app, "put", WRITES)
def put(
    call: Call,
    sources: Annotated[list[str], typer.Argument(help="Local paths.")],
    target: DrivePathArgument,
    recursive: RecursiveOption = False,
) -> CommandResult:
    """Copy local files to a drive of your own, in one commit. A missing drive is made."""
    paths = [DrivePath(None, one) for one in sources]
    return put_files(call, paths, parse_drive_path(target), recursive)


@command(app, "get", READS)
def get(
    call: Call,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DRIVE:PATH... [LOCAL]",
            help="Sources, then a local path as target. Default: the working directory.",
        ),
    ],
    recursive: RecursiveOption = False,
) -> CommandResult:
    """Copy files of a drive to local ones, each completely or not at all."""
    goal = parse_path(paths[-1])
    sources = [parse_drive_path(one) for one in paths[:-1]]
    if goal.drive is not None or not sources:  # no local path is given
        sources.append(parse_drive_path(paths[-1]))
        goal = DrivePath(None, ".")
    return get_files(call, sources, goal, recursive)


@command(app, "sync", ("dir", "owner", "wait", "offline"))
def sync(
    call: Call,
    local: Annotated[Path, typer.Argument(help="A local folder.")],
    path: Annotated[str, typer.Argument(help="DRIVE:PATH, a directory.")],
    direction: Annotated[
        Direction, typer.Option("--direction", help="Side that may change.")
    ] = Direction.BOTH,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete on one side what was deleted on the other.")
    ] = False,
    prefer: Annotated[
        Side, typer.Option("--prefer", help="Side that wins if both changed a file.")
    ] = Side.NONE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only report what would be done.")
    ] = False,
) -> CommandResult:
    """Make a local folder and a directory of a drive equal; only changed files are read.

    A file that both sides changed is left unchanged and reported, and the exit code is 1.
    """
    target = parse_drive_path(path)
    assert target.drive is not None
    owner = drive_owner(call)
    if direction is Direction.TO_DRIVE and not local.is_dir():  # first: no key is made for it
        raise UsageError(f"{local} is not a directory")
    # Only commands that may write to the drive make a key.
    folder = call.folder if direction is Direction.TO_LOCAL else call.writable()
    with closing(Drives(folder, owner)) as all_drives:
        outcome = Sync(
            all_drives,
            target.drive,
            target.path,
            local,
            direction=direction,
            delete=delete,
            prefer=prefer,
            dry_run=dry_run,
            on_bytes=call.bar("bytes").advance,
        ).run()
    for text in outcome.passed_over:
        print_notice(f"skipped {text}")
    done = asdict(outcome)
    del done["read_bytes"]  # a cost, not a result
    return CommandResult(done, _report(outcome), 0 if outcome.is_complete else 1)


def _report(outcome: SyncResult) -> Iterator[str]:
    for words, paths in (
        ("to drive  ", outcome.to_drive),
        ("to local  ", outcome.to_local),
        ("deleted in drive  ", outcome.deleted_in_drive),
        ("deleted locally  ", outcome.deleted_locally),
        ("CONFLICT  ", outcome.conflicts),
        ("FAILED  ", outcome.failed),
    ):
        yield from (words + visible(path) for path in paths)
