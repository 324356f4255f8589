"""Commands `lattice venue ...` that run operations and control jobs, through the running node.

`operations` and `invoke` also work without one: the venue then runs in this process until the job
has ended.

Source: docs/cli.md "Running operations".
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from datalattice.actions import JobRecord, whole_document
from datalattice.apps.grid import INTERACTIVE, Venue, parse_job_id
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.node.commands import (
    AttachedOption,
    BindOption,
    ConfigOption,
    LogFormatOption,
    LogLevelOption,
    PeerOption,
    PortOption,
    run_node,
    settings_of,
)
from datalattice.cli.node.daemon import doors_of
from datalattice.cli.render import (
    EXIT_FAILED,
    CommandResult,
    Records,
    listed,
    pair_lines,
    print_notice,
)
from datalattice.cli.units import duration_s
from datalattice.cli.values import value_json
from datalattice.client import COMPLETE, VenueClient, connect, has_ended, read_key_pairs
from datalattice.cursors import RootLattice
from datalattice.errors import NoSuchPath, UsageError
from datalattice.lattice import did_of, root_lattice

app = typer.Typer()

_START: Final = "start one with `lattice venue start`"
_STANDARD_STREAM: Final = "-"
JOB_DIGITS: Final = 32
"""Hex digits of the id of a job that this program made."""

JobArgument = Annotated[
    str, typer.Argument(help="The id of a job, or its first digits.", metavar="JOB")
]
ValuesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="NAME=VALUE, each value JSON or a text; or one JSON value; or - for standard input.",
        metavar="[NAME=VALUE|JSON|-]...",
    ),
]


@command(app, "start", FOLDER)
def start(
    call: Call,
    port: PortOption = None,
    bind: BindOption = None,
    peer: PeerOption = None,
    rest: Annotated[
        str | None,
        typer.Option(
            "--rest", help="Also serve REST at host:port; other machines need TLS to reach it."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", help="Where contents are kept.", metavar="lattice|file|drive|memory"
        ),
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    config: ConfigOption = None,
    attached: AttachedOption = False,
) -> None:
    """Run a daemon whose venue takes jobs: `lattice daemon` with `venue.enabled`.

    The sections `venue.http`, `venue.python`, `venue.sql` and `venue.spark` of node.toml say what
    the venue runs besides JSON values and orchestrations. `lattice node stop` ends it.
    """
    given = {
        "venue": True,
        "port": port,
        "bind": bind,
        "peers": peer or None,
        "rest": rest,
        "venue_storage": storage,
        "log_level": log_level,
        "log_format": log_format,
    }
    run_node(call, given, config, attached=attached, doors=doors_of)


@command(app, "operations", FOLDER)
def operations(call: Call) -> CommandResult:
    """List the operations that the venue offers."""
    client, _ = _client(call)
    rows: list[dict[str, Any]] = []
    while page := client.operations(str(rows[-1]["path"]) if rows else ""):
        rows += map(whole_document, page)
    return listed(rows, ("path", "name", "description"))


@command(app, "invoke", FOLDER)
def invoke(
    call: Call,
    operation: Annotated[
        str, typer.Argument(help="Path of the operation, such as v/ops/json/merge, or an asset id.")
    ],
    values: ValuesArgument = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job has ended, and print its output.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Time limit of the job, such as 30s.")
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option("--request-id", help="A repeated call with the same id starts no second job."),
    ] = None,
) -> CommandResult:
    """Run an operation as a job. Prints its id, or with --wait its output.

    Without a running node the venue runs in this process, and the command waits for the end.
    Exit code 1 if it waited and the job did not complete.
    """
    timeout_ms = None if timeout is None else round(duration_s(timeout) * 1_000)
    given = _given(values or [])
    client, is_here = _client(call)
    record = client.invoke(operation, given, timeout_ms=timeout_ms, request_id=request_id)
    # A venue in this process ends with it, so its job is always waited for.
    if not wait and not is_here:
        return CommandResult(_document(record), [record.id.hex()])
    return _ended(_followed(client, record))


@command(app, "job", FOLDER)
def job(
    call: Call,
    id: JobArgument,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print it after each change, until it has ended.")
    ] = False,
) -> CommandResult | Records:
    """Show a job, from the running node or else from the store."""
    wanted = _job_id(call, id)
    if watch:
        records = call.enter(VenueClient(call.node(_START)).watch(wanted))
        return Records(records, _document, _line, is_live=True)
    client = connect(call.existing.path)
    if client is not None:
        document = _document(VenueClient(call.enter(client)).job(wanted))
    else:
        record = _own_venue(call).job(wanted)
        if record is None:
            raise NoSuchPath(f"there is no job {wanted.hex()}")
        found = value_json(record)
        assert isinstance(found, dict)
        names = (*whole_document(JobRecord()), *found)  # in the order of the running node
        document = {name: found[name] for name in names if name in found}
    return CommandResult(document, pair_lines({name: _text(one) for name, one in document.items()}))


@command(app, "message", FOLDER)
def message(call: Call, id: JobArgument, values: ValuesArgument) -> CommandResult:
    """Send a message to a job: the answer to its question, or one that it reads later."""
    client, wanted = _steered(call, id)
    depth = client.message(wanted, _given(values or []))
    return CommandResult({"id": wanted.hex(), "queueDepth": depth}, [f"{depth} waiting"])


@command(app, "pause", FOLDER)
def pause(call: Call, id: JobArgument) -> CommandResult:
    """Stop a job until it is resumed."""
    client, wanted = _steered(call, id)
    return _status(client.pause(wanted))


@command(app, "resume", FOLDER)
def resume(call: Call, id: JobArgument) -> CommandResult:
    """Resume a paused job; it runs again with its input."""
    client, wanted = _steered(call, id)
    return _status(client.resume(wanted))


@command(app, "cancel", FOLDER)
def cancel(call: Call, id: JobArgument) -> CommandResult:
    """Cancel a job; a job that has ended is not changed."""
    client, wanted = _steered(call, id)
    return _status(client.cancel(wanted))


@command(app, "delete", FOLDER)
def delete(call: Call, id: JobArgument) -> CommandResult:
    """Cancel a job if it has not ended, and no longer list it on this node."""
    client, wanted = _steered(call, id)
    client.delete(wanted)
    return CommandResult({"id": wanted.hex()}, [wanted.hex()])


# --- the venue ------------------------------------------------------------------------------------


def _client(call: Call) -> tuple[VenueClient, bool]:
    """Return the venue of the running node, else one in this process; True: it is in this one."""
    running = connect(call.folder.path)
    if running is not None:
        return VenueClient(call.enter(running)), False
    from datalattice.service import FolderService, LocalClient

    # "Without a running node, `operations` and `invoke` run the venue of the folder in their own
    # process" (docs/cli.md "Running operations").
    folder = call.writable()
    config = replace(settings_of(folder).config, venue=True)
    service = FolderService(folder.path, read_key_pairs(folder).identity, config)
    call.enter(closing(service))
    return VenueClient(LocalClient(service.at_doors((), tuple)[0])), True


def _steered(call: Call, id: str) -> tuple[VenueClient, bytes]:
    """Return the venue of the running node, which has the live jobs, and the id of a job."""
    return VenueClient(call.node(_START)), _job_id(call, id)


def _own_venue(call: Call) -> Venue:
    own = call.own()
    if own is None:
        raise UsageError(f"{call.folder.path} has no key, so it has no venue of its own")
    return Venue.at(RootLattice(root_lattice(), call.root()), did_of(own))


def _job_id(call: Call, given: str) -> bytes:
    """Return the id of a job from its digits: all of them, or the first of a job in the store."""
    digits = given.lower().removeprefix("0x")
    # A whole id needs no look-up, and so no key of the folder.
    if len(digits) >= JOB_DIGITS:
        return parse_job_id(digits)
    found = [one for one in _own_venue(call).jobs() if digits and one.hex().startswith(digits)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} job ids begin with {digits}; write more digits")
    if not found:
        raise NoSuchPath(f"there is no job {given}")
    return found[0]


# --- input and output -----------------------------------------------------------------------------


def _given(words: list[str]) -> object:
    """Return the input that the words of the command line stand for."""
    # "each value JSON or else a text; or one word that is JSON, or a text; or `-` for JSON on
    # standard input" (docs/cli.md "Running operations")
    if words == [_STANDARD_STREAM]:
        words = [sys.stdin.read()]
        if not words[0].strip():
            raise UsageError("standard input is empty; the input is one JSON value")
    if not words:
        return {}
    if len(words) == 1:
        try:
            return json.loads(words[0])
        except (ValueError, RecursionError):
            # A text that begins like JSON is a mistyped document rather than a plain text.
            if words[0].lstrip().startswith(("{", "[", '"')):
                raise UsageError(f"the input is not JSON: {words[0][:80]!r}") from None
        if "=" not in words[0]:
            return words[0]
    found: dict[str, object] = {}
    for word in words:
        name, is_pair, text = word.partition("=")
        if not is_pair or not name or name in found:
            raise UsageError(f"an input is NAME=VALUE, each name once, got {word[:80]!r}")
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
    return found


def _followed(client: VenueClient, record: JobRecord) -> JobRecord:
    """Wait until a job has ended or asks a question; print its messages meanwhile."""
    told = ""
    with client.watch(record.id) as records:
        for record in records:  # noqa: PLR1704 - the newest is the result
            if record.message and record.message != told:
                told = record.message
                print_notice(told)
            if has_ended(record) or record.status in INTERACTIVE:
                break
    return record


def _ended(record: JobRecord) -> CommandResult:
    """Return the output of a job, or the reason why there is none."""
    document = _document(record)
    if record.status == COMPLETE:
        return CommandResult(document, [_text(document.get("output"))])
    why = f": {record.error}" if record.error else ""
    if record.status in INTERACTIVE:
        why = f"; answer with `lattice venue message {record.id.hex()} ...`"
    return CommandResult(
        document,
        [],
        EXIT_FAILED,
        [f"job {record.id.hex()} is {record.status}{why}"],
    )


def _status(record: JobRecord) -> CommandResult:
    return CommandResult(_document(record), [record.status])


def _document(record: JobRecord) -> dict[str, Any]:
    """Return a record as JSON, without absent fields."""
    found = whole_document(record)
    found.pop("resume")
    # Any JSON may be an output, also null.
    kept = {"output"} if record.status == COMPLETE else set()
    return {name: one for name, one in found.items() if name in kept or one not in (None, "")}


def _line(record: JobRecord) -> str:
    return "  ".join(filter(None, [record.status, record.message, record.error]))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
