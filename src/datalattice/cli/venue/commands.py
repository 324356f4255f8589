"""Commands `lattice venue ...`: the folder's own venue in the grid, and the venues of others."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from datalattice.actions import GetContent, PutContent
from datalattice.apps.dlfs import Drive
from datalattice.apps.grid import (
    CONTENT_BYTES_MAX,
    KnownKeys,
    Storage,
    Venue,
    check_content,
    read_metadata,
)
from datalattice.cells import Index, Keyword, Map, Value
from datalattice.cli.command import PAST, WRITES, Call, command
from datalattice.cli.node.commands import settings_of
from datalattice.cli.render import EXIT_FAILED, CommandResult, count_text, listed
from datalattice.cli.values import listed_json, value_json, value_text
from datalattice.cli.venue import running
from datalattice.client import RestClient, running as running_in
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Corruption, LimitExceeded, NoSuchPath, UsageError
from datalattice.lattice import MergeContext, did_of, root_lattice, verify_did

app = typer.Typer(
    help="Operations run as jobs; assets and contents of your venue and of all others in the grid."
)
app.registered_commands += running.app.registered_commands

_STANDARD_STREAM: Final = "-"
_MEMORY: Final = "memory"
DOOR: Final = "rest.sock"
"""The socket of REST in the folder of a daemon."""
_STORAGE: Final = Keyword("storage")

VenueOption = Annotated[
    str | None,
    typer.Option(
        "--venue",
        "-v",
        help="DID of the venue. Default: your own, else the only one.",
        show_default=False,
    ),
]
AssetArgument = Annotated[
    str, typer.Argument(help="An asset id, or the first digits of one in the grid.")
]


@command(app, "register", WRITES)
def register_asset(
    call: Call,
    file: Annotated[
        str, typer.Argument(help="File with the metadata, a JSON object; - for standard input.")
    ],
    content: Annotated[
        Path | None,
        typer.Option("--content", "-c", help="File with the content that the metadata declares."),
    ] = None,
) -> CommandResult:
    """Register an asset: its metadata is kept exactly as written. Prints the id."""
    text = _read(file, "the metadata")
    metadata = read_metadata(text)  # metadata and content are checked before anything is written
    data = None if content is None else _read(str(content), "the content")
    if data is not None:
        check_content(metadata, data)

    def change(cursor: RootLattice, key_pair: KeyPair) -> bytes:
        venue = Venue.at(cursor, key_pair, storage=_storage(call, cursor, key_pair.public_key))
        asset = venue.register(text)
        if data is not None:
            _check_kept(call)
            venue.put_content(asset, data)
        return asset

    asset = call.edit(change).hex()  # asset and content in one commit
    return CommandResult({"asset": asset}, [asset])


@command(app, "upload", WRITES)
def upload(
    call: Call,
    asset: AssetArgument,
    file: Annotated[str, typer.Argument(help="File with the content; - for standard input.")],
) -> CommandResult:
    """Store the content of an asset if the metadata declares its hash. Prints the hash."""
    door = _door(call)
    if door is not None:
        # "sends the file through it in pieces, so the file may be larger than memory" (docs/cli.md
        # "Running operations"); and the daemon alone has its storage `memory`.
        with _opened(file) as body:
            stored = door.upload(PutContent(id=_asset_of(_venue(call), asset)), body)
        return CommandResult({"sha256": stored.hash.hex()}, [stored.hash.hex()])
    data = _read(file, "the content")

    def change(cursor: RootLattice, key_pair: KeyPair) -> bytes:
        _check_kept(call)
        venue = Venue.at(cursor, key_pair, storage=_storage(call, cursor, key_pair.public_key))
        return venue.put_content(_asset_of(venue, asset), data)

    digest = call.edit(change).hex()
    return CommandResult({"sha256": digest}, [digest])


@command(app, "download", PAST)
def download(
    call: Call,
    asset: AssetArgument,
    output: Annotated[
        str, typer.Option("--output", help="File to write; - for standard output.")
    ] = _STANDARD_STREAM,
) -> None:
    """Write out the content of an asset, from whichever venue has it, after checking its hash."""
    venue = _venue(call)  # its view has all venues; an asset has the same content in each
    wanted = _asset_of(venue, asset)
    pieces = venue.stream(wanted)
    # Contents in the memory of the daemon belong to no former root.
    door = _door(call) if pieces is None and call.as_of is None else None
    if door is not None and settings_of(call.folder).config.venue_storage == _MEMORY:
        pieces = (piece.data for piece in call.enter(door.stream(GetContent(id=wanted))))
    if pieces is None:
        raise NoSuchPath(f"no venue here has the content of the asset {wanted.hex()}")
    if output == _STANDARD_STREAM:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    else:
        _write(Path(output), pieces)


@command(app, "assets", PAST)
def assets(
    call: Call,
    did: VenueOption = None,
    all_venues: Annotated[bool, typer.Option("--all", "-a", help="Those of all venues.")] = False,
) -> CommandResult:
    """List assets: id, name, and whether the content is here."""
    venue = _venue(call, did)
    dids = list(venue.view()) if all_venues else [venue.did]
    rows = [_asset_row(venue, one, asset) for one in dids for asset in venue.assets(one)]
    return listed(rows, ("asset", "name", "content", *(("venue",) if all_venues else ())))


@command(app, "jobs", PAST)
def jobs(
    call: Call,
    did: VenueOption = None,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only those in this state.")
    ] = None,
) -> CommandResult:
    """List jobs in the order of their ids, and so of their times."""
    venue = _venue(call, did)
    ids = venue.jobs(venue.did, status=status.upper() if status else None)
    rows = [_job_row(job, venue.job(job)) for job in ids]
    return listed(rows, ("job", "status", "op", "updated"))


@command(app, "show", PAST)
def show_one(
    call: Call,
    name: Annotated[
        str | None,
        typer.Argument(help="An asset or job id, or its first digits. Default: all venues."),
    ] = None,
    did: VenueOption = None,
) -> CommandResult:
    """Show the venues of the grid; or the metadata of an asset, or the record of a job."""
    venue = _venue(call, did)
    if name is None:
        rows = [
            {
                "venue": one,
                "assets": len(venue.assets(one)),
                "jobs": len(venue.jobs(one)),
                "contents": _count(state.get(_STORAGE)),
            }
            for one, state in venue.view().items()
        ]
        return listed(rows, ("venue", "assets", "jobs", "contents"))
    # An asset of this venue first.
    asset = _begins(name, venue.assets(venue.did)) or _begins(name, _known(venue))
    if asset is not None:
        text = venue.asset(asset) or ""
        return CommandResult(value_json(read_metadata(text)), [text])
    job = _begins(name, venue.jobs(venue.did))
    if job is None:
        raise NoSuchPath(f"there is no asset, and no job of {venue.did}, with the id {name}")
    record = venue.job(job)
    return CommandResult(value_json(record), [value_text(record)])


@command(app, "verify", PAST)
def verify(
    call: Call,
    asset: Annotated[
        str | None,
        typer.Argument(help="Only this asset: its id, or first digits of it. Default: the grid."),
    ] = None,
) -> CommandResult:
    """Read the grid and check every signature and hash. Exit code 1 if one is wrong.

    Of one asset, the hashes of its metadata and content are checked; content may be absent.
    Documents of did:web venues are fetched if the node's setting did_web says so; else they are
    reported, because their signatures cannot be checked.
    """
    from datalattice.node import web_keys

    if asset is not None:
        return _verified_asset(_venue(call), asset)
    keys = web_keys(settings_of(call.existing).config.did_web)
    venue = _venue(call, keys=keys)
    rejected, damaged = venue.verify()
    venues = len(venue.view())
    found = [
        {"path": [value_json(key) for key in path], "reason": reason} for path, reason in rejected
    ]
    found += [{"path": [one.digest.hex()], "reason": one.reason} for one in damaged]
    lines = [f"{one['reason']}  {' '.join(map(str, one['path']))}" for one in found]
    document = {"venues": venues, "bad": found}
    if not found:
        return CommandResult(document, [f"{count_text(venues, 'venue')}, all good"])
    return CommandResult(document, lines, EXIT_FAILED)


def _verified_asset(venue: Venue, given: str) -> CommandResult:
    """Hash the metadata and the content of an asset; report the result."""
    asset = _asset_of(venue, given)
    document: dict[str, Any] = {"asset": asset.hex()}
    try:
        metadata = venue.metadata(asset)
    except Corruption as error:
        document |= {"metadata": "damaged", "reason": str(error)}
        return CommandResult(document, [str(error)], EXIT_FAILED)
    document["metadata"] = "sound"
    said = ["metadata: its SHA-256 is the id"]
    if metadata.get("content") is None:
        document["content"] = "none"
        return CommandResult(document, [*said, "content: none is declared"])
    try:
        pieces = venue.stream(asset)
    except Corruption as error:
        document |= {"content": "damaged", "reason": str(error)}
        return CommandResult(document, [*said, str(error)], EXIT_FAILED)
    if pieces is None:
        document["content"] = "absent"
        return CommandResult(document, [*said, "content: it is not here"])
    # `stream` hashed all of it before it returned.
    document |= {"content": "sound", "bytes": sum(map(len, pieces))}
    size = count_text(document["bytes"], "byte")
    return CommandResult(document, [*said, f"content: {size} with the declared SHA-256"])


def _venue(call: Call, did: str | None = None, keys: KnownKeys | None = None) -> Venue:
    """Return a venue of the folder's grid: a named one, else its own, else the only one."""
    context = MergeContext(verifier=verify_did)
    cursor = RootLattice(root_lattice(), call.root(), context)
    own = call.own()
    if did is None and own is not None:
        did = did_of(own)
    if did is None:
        known = list(Venue.at(cursor, _ANY_DID).view())
        if len(known) != 1:
            raise UsageError(f"{len(known)} venues are in the grid; name one with --venue")
        did = known[0]
    # Contents outside of the lattice are here only for the venue of this folder.
    storage = None if own is None or did != did_of(own) else _storage(call, cursor, own)
    return Venue.at(cursor, did, keys=keys, storage=storage)


def _storage(call: Call, cursor: RootLattice, owner: bytes) -> Storage | None:
    """Return the storage of contents that the settings name; None: the lattice.

    Contents in the memory of a daemon are not in it.
    """
    config = settings_of(call.folder).config
    if config.venue_storage == "lattice":
        return None
    from datalattice.service.venue.adapters import configured_storage

    return configured_storage(config, call.folder.path, lambda name: Drive.at(cursor, owner, name))


_ANY_DID: Final = did_of(bytes(32))
"""A DID to read the grid with, before a venue is chosen."""


def _known(venue: Venue) -> list[bytes]:
    found = {asset: None for did in venue.view() for asset in venue.assets(did)}
    return list(found)


def _asset_of(venue: Venue, given: str) -> bytes:
    """Return the asset that has an id, or whose id begins with the digits.

    Raises: UsageError: several begin so. NoSuchPath: none does.
    """
    found = _begins(given, _known(venue))
    if found is None:
        raise NoSuchPath(f"there is no asset {given} in the grid")
    return found


def _begins(given: str, ids: list[bytes]) -> bytes | None:
    # An id may be written with 0x, as a DID URL, or in upper case.
    digits = given.rpartition("/")[2].lower().removeprefix("0x")
    found = [one for one in ids if digits and one.hex().startswith(digits)]
    # A full id means itself, even if another id begins with it.
    if len(found) > 1 and not any(one.hex() == digits for one in found):
        raise UsageError(f"{len(found)} ids begin with {digits}; write more digits")
    exact = [one for one in found if one.hex() == digits]
    return next(iter(exact or found), None)


def _asset_row(venue: Venue, did: str, asset: bytes) -> dict[str, Any]:
    metadata = venue.metadata(asset)
    name = metadata.get("name")
    held = venue.has_content(asset)
    return {"asset": asset.hex(), "name": listed_json(name), "content": held, "venue": did}


def _job_row(job: bytes, record: Map | None) -> dict[str, Any]:
    held = record or Map.of({})
    return {
        "job": job.hex(),
        "status": listed_json(held.get("status")),
        "op": listed_json(held.get("op")),
        "updated": listed_json(held.get("updated")),
    }


def _check_kept(call: Call) -> None:
    """Raise UsageError if the content would be lost when this command ends."""
    if settings_of(call.folder).config.venue_storage == _MEMORY:
        raise UsageError(
            "venue.storage is memory, so only a running daemon keeps contents; `lattice venue "
            "start` runs one"
        )


def _door(call: Call) -> RestClient | None:
    """Return a client of the daemon that runs in the folder, or None if there is none."""
    socket = call.folder.path / DOOR
    if running_in(call.folder.path) is None or not socket.exists():
        return None
    return call.enter(RestClient(str(socket)))


def _opened(name: str) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if name == _STANDARD_STREAM else Path(name).open("rb")


def _count(part: Value) -> int:
    return len(part) if isinstance(part, Index) else 0


def _read(name: str, what: str) -> bytes:
    """Return the bytes of a file, or of standard input.

    Raises: LimitExceeded: it has more than the limit of the grid.
    """
    if name == _STANDARD_STREAM:
        data = sys.stdin.buffer.read(CONTENT_BYTES_MAX + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(CONTENT_BYTES_MAX + 1)
    # Checked by reading one byte more, because a pipe has no size.
    if len(data) > CONTENT_BYTES_MAX:
        raise LimitExceeded(f"{what} has more than the limit of {CONTENT_BYTES_MAX} bytes")
    return data


def _write(target: Path, pieces: Iterator[bytes]) -> None:
    """Write a file under another name first, and rename it when it is complete."""
    # In the same folder, because renaming works only within one file system.
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
        Path(part).replace(target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
