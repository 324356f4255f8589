"""Commands `lattice fs ...`: the files of drives, and their way from and to local folders.

A place in a drive is DRIVE:PATH; what has no colon before its first slash is local.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from datalattice.apps.dlfs import Drive, Stat
from datalattice.cli.folder import DirOption, JsonOption, existing_folder, folder_of
from datalattice.cli.fscopy import (
    copy_files,
    drive_at,
    get_files,
    open_drives,
    put_files,
)
from datalattice.cli.render import (
    counted,
    print_lines,
    print_notice,
    progress_bars,
    results,
    show,
    table,
    visible,
)
from datalattice.cli.spots import Spot, goal_of, parse_place, parse_spot
from datalattice.cli.values import parse_owner
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

app = typer.Typer(help="The files of drives. A place is DRIVE:PATH; every write is on disk.")

OwnerOption = Annotated[
    str | None,
    typer.Option(
        "--owner",
        "-o",
        help="Whose drives: a public key in hex. Default: your own, else the only one there is.",
        show_default=False,
    ),
]
RecursiveOption = Annotated[
    bool, typer.Option("--recursive", "-r", help="Directories with all that is in them.")
]
PlaceArgument = Annotated[str, typer.Argument(help="DRIVE:PATH.")]


def _time(stamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(stamp_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return f"{stamp_ms} ms"


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


@app.command("drives")
def drives(owner: OwnerOption = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """List drives: everybody's that are here, or one owner's."""
    found: list[dict[str, object]] = []
    folder = existing_folder(dir)
    with closing(Drives(folder)) as all_drives:
        owners = [parse_owner(owner)] if owner else all_drives.owners()
    for one in owners:
        with closing(Drives(folder, one)) as theirs:
            for name in theirs.names():
                usage = theirs.drive(name).du("/")
                found.append(
                    {
                        "owner": one.hex(),
                        "drive": name,
                        "files": usage.files,
                        "bytes": usage.bytes,
                    }
                )

    def text() -> None:
        rows = [(str(one["owner"])[:16], one["drive"], one["files"], one["bytes"]) for one in found]
        results().print(table(("owner", "drive", "files", "bytes"), rows))

    show(json, found, text)


@app.command("ls")
def ls(
    place: PlaceArgument,
    long: Annotated[bool, typer.Option("--long", "-l", help="Size and time, too.")] = False,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """List a directory, or name a file."""
    with open_drives(dir, owner) as all_drives:
        drive, path = drive_at(all_drives, parse_place(place))
        found = drive.entries(path) if drive.is_dir(path) else [drive.stat(path)]

    def text() -> None:
        names = [visible(one.name) + ("/" if one.is_dir else "") for one in found]
        if not long:
            print_lines(names)
            return
        rows = [
            ("" if one.is_dir else one.size, _time(one.modified_ms), name)
            for one, name in zip(found, names, strict=True)
        ]
        results().print(table(("bytes", "modified", "name"), rows))

    show(json, [_document(one) for one in found], text)


@app.command("cat")
def cat(
    places: Annotated[list[str], typer.Argument(help="DRIVE:PATH each.")],
    owner: OwnerOption = None,
    dir: DirOption = None,
) -> None:
    """Write the bytes of files to standard output."""
    with open_drives(dir, owner) as all_drives:
        for spot in [parse_place(one) for one in places]:
            drive, path = drive_at(all_drives, spot)
            for piece in pieces_of(drive.content(path)):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@app.command("tree")
def tree(
    place: PlaceArgument,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Show a directory and everything below it."""
    with open_drives(dir, owner) as all_drives:
        drive, path = drive_at(all_drives, parse_place(place))
        if json:
            found = [
                _document(one) for above, _, _ in drive.walk(path) for one in drive.entries(above)
            ]
            show(json, found, lambda: None)
            return
        print_lines([place, *_branches(drive, path, "")])


def _branches(drive: Drive, path: str, indent: str) -> Iterator[str]:
    entries = drive.entries(path)
    for number, one in enumerate(entries, 1):
        last = number == len(entries)
        mark = "/" if one.is_dir else f"  {one.size}"
        yield f"{indent}{'└─' if last else '├─'} {visible(one.name)}{mark}"
        if one.is_dir:
            yield from _branches(drive, one.path, indent + ("   " if last else "│  "))


@app.command("du")
def du(
    place: PlaceArgument,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Count bytes, files and directories at and below a place."""
    with open_drives(dir, owner) as all_drives:
        drive, path = drive_at(all_drives, parse_place(place))
        usage = drive.du(path)
    done = {"bytes": usage.bytes, "files": usage.files, "directories": usage.directories}
    words = ", ".join(
        (
            counted(usage.bytes, "byte"),
            counted(usage.files, "file"),
            counted(usage.directories, "directory", "directories"),
        )
    )
    show(json, done, lambda: print_lines([words]))


# --- writing ------------------------------------------------------------------------------------


@app.command("mkdir")
def mkdir(
    places: Annotated[list[str], typer.Argument(help="DRIVE:PATH each; DRIVE: makes a drive.")],
    parents: Annotated[
        bool, typer.Option("--parents", "-p", help="Make what is missing above, too.")
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Make directories, or drives."""
    spots = [parse_place(one) for one in places]

    def change(drive_of: DriveOf) -> None:
        for spot in spots:
            assert spot.drive is not None
            drive = drive_of(spot.drive)
            if spot.path == "/" or parents:
                drive.ensure()
                drive.makedirs(spot.path)
            else:
                drive.mkdir(spot.path)

    with closing(Drives(folder_of(dir))) as all_drives, all_drives.writing() as writer:
        writer.edit(change)
    show(json, {"made": [str(one) for one in spots]}, lambda: None)


@app.command("rm")
def rm(
    places: Annotated[list[str], typer.Argument(help="DRIVE:PATH each.")],
    recursive: RecursiveOption = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Delete files, and empty directories, or full ones with --recursive; all or nothing."""
    spots = [parse_place(one) for one in places]

    def change(drive_of: DriveOf) -> None:
        for spot in spots:
            assert spot.drive is not None
            drive = drive_of(spot.drive)
            if recursive:
                drive.remove_tree(spot.path)
            else:
                drive.delete(spot.path)

    with closing(Drives(existing_folder(dir))) as all_drives, all_drives.writing() as writer:
        writer.edit(change)
    show(json, {"deleted": [str(one) for one in spots]}, lambda: None)


@app.command("mv")
def mv(
    sources: Annotated[list[str], typer.Argument(help="DRIVE:PATH each.")],
    target: Annotated[str, typer.Argument(help="DRIVE:PATH, a directory for several sources.")],
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Move files and directories; a file takes the place of a file. All or nothing."""
    spots = [parse_place(one) for one in sources]
    goal = parse_place(target)

    def change(drive_of: DriveOf) -> list[str]:
        assert goal.drive is not None
        drive = drive_of(goal.drive)
        moved = []
        for spot in spots:
            assert spot.drive is not None
            to = goal_of(spot, goal, drive.is_dir(goal.path), several=len(spots) > 1)
            old = drive_of(spot.drive)
            if spot.drive == goal.drive:
                drive.move(spot.path, to.path)
            else:
                copy_tree(old, spot.path, drive, to.path)
                old.remove_tree(spot.path)
            moved.append(str(to))
        return moved

    with closing(Drives(existing_folder(dir))) as all_drives, all_drives.writing() as writer:
        moved = writer.edit(change)
    show(json, {"moved": moved}, lambda: None)


@app.command("cp")
def cp(
    sources: Annotated[list[str], typer.Argument(help="Local paths, or DRIVE:PATH.")],
    target: Annotated[str, typer.Argument(help="A local path, or DRIVE:PATH.")],
    recursive: RecursiveOption = False,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Copy files: from or to a drive, or from drive to drive. Files are replaced."""
    spots, goal = [parse_spot(one) for one in sources], parse_spot(target)
    local = [spot.drive is None for spot in spots]
    if any(local) != all(local) or (goal.drive is None and any(local)):
        raise UsageError("copy from local paths to a drive, or from drives; not local to local")
    if goal.drive is None:
        get_files(dir, owner, spots, goal, recursive, json)
    elif all(local):
        put_files(dir, spots, goal, recursive, json)
    else:
        copy_files(dir, owner, spots, goal, recursive, json)


@app.command("put")
def put(
    sources: Annotated[list[str], typer.Argument(help="Local paths.")],
    target: PlaceArgument,
    recursive: RecursiveOption = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Copy local files into a drive of your own, as one change. A missing drive is made."""
    put_files(dir, [Spot(None, one) for one in sources], parse_place(target), recursive, json)


@app.command("get")
def get(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="DRIVE:PATH... [LOCAL]",
            help="What to copy, and where to: a local path, this folder if none is given.",
        ),
    ],
    recursive: RecursiveOption = False,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Copy files of a drive to local ones, each whole or not at all."""
    goal = parse_spot(places[-1])
    sources = [parse_place(one) for one in places[:-1]]
    if goal.drive is not None or not sources:
        sources.append(parse_place(places[-1]))
        goal = Spot(None, ".")
    get_files(dir, owner, sources, goal, recursive, json)


# --- alike --------------------------------------------------------------------------------------


@app.command("sync")
def sync(
    local: Annotated[Path, typer.Argument(help="A local folder.")],
    place: Annotated[str, typer.Argument(help="DRIVE:PATH, a directory.")],
    direction: Annotated[
        Direction, typer.Option("--direction", help="Which side may change.")
    ] = Direction.BOTH,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete on one side what was deleted on the other.")
    ] = False,
    prefer: Annotated[
        Side, typer.Option("--prefer", help="Whose file counts where both changed.")
    ] = Side.NONE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only tell what would be done.")
    ] = False,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Make a local folder and a directory of a drive alike; only what changed is read.

    A file that both sides changed is left alone and named, and the exit code is 1.
    """
    spot = parse_place(place)
    assert spot.drive is not None
    whose = parse_owner(owner) if owner else None
    with (
        closing(Drives(folder_of(dir), whose)) as all_drives,
        progress_bars(quiet=json, transient=True) as bars,
    ):
        outcome = Sync(
            all_drives,
            spot.drive,
            spot.path,
            local,
            direction=direction,
            delete=delete,
            prefer=prefer,
            dry_run=dry_run,
            told=bars.add("bytes").advance,
        ).run()
    for text in outcome.passed_over:
        print_notice(f"passed over {text}")
    done = asdict(outcome)
    del done["read_bytes"]
    show(json, done, lambda: print_lines(_report(outcome)))
    if not outcome.is_complete:
        raise typer.Exit(1)


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
