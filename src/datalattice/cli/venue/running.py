"""Commands `lattice venue ...` that run operations and steer jobs, through the running node.

`operations` and `invoke` also work without one: then the venue runs in this process until the job
has ended.

Source: docs/cli.md "Running operations".
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.actions import JobRecord, whole_document
from datalattice.apps.grid import INTERACTIVE, Venue, parse_job_id
from datalattice.cli.command import ANY, Call, command
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
from datalattice.client import COMPLETE, VenueClient, connect, has_ended, read_keys
from datalattice.cursors import RootLattice
from datalattice.errors import NoSuchPath, UsageError
from datalattice.lattice import did_of, root_lattice

if TYPE_CHECKING:
    pass

app = typer.Typer()

_START: Final = "start one with `lattice venue start`"
_STANDARD_STREAM: Final = "-"
JOB_DIGITS: Final = 32
"""Hex digits of the id of a job that this program made."""

JobArgument = Annotated[
    str, typer.Argument(help="The id of a job, or the beginning of one.", metavar="JOB")
]
ValuesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="NAME=VALUE, each value JSON or else a text; one JSON value; or - for standard input.",
        metavar="[NAME=VALUE|JSON|-]...",
    ),
]


@command(app, "start", ANY)
def start(
    call: Call,
    port: PortOption = None,
    bind: BindOption = None,
    peer: PeerOption = None,
    rest: Annotated[
        str | None,
        typer.Option("--rest", help="Serve REST at host:port too; beyond this machine with TLS."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="Where contents are.", metavar="lattice|file|drive|memory"),
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    config: ConfigOption = None,
    attached: AttachedOption = False,
) -> None:
    """Run a daemon whose venue takes jobs: `lattice daemon` with `venue.enabled`.

    What the venue runs, beside JSON values and orchestrations, is in the sections `venue.http`,
    `venue.python`, `venue.sql` and `venue.spark` of node.toml. `lattice node stop` ends it.
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


@command(app, "operations", ANY)
def operations(call: Call) -> CommandResult:
    """List the operations that the venue offers."""
    client, _ = _client(call)
    rows: list[dict[str, Any]] = []
    while page := client.operations(str(rows[-1]["path"]) if rows else ""):
        rows += map(whole_document, page)
    return listed(rows, ("path", "name", "description"))


@command(app, "invoke", ANY)
def invoke(
    call: Call,
    operation: Annotated[
        str, typer.Argument(help="Its path, such as v/ops/json/merge, or an asset id.")
    ],
    values: ValuesArgument = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end, and print the output.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Time limit of the job, such as 30s.")
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option("--request-id", help="A repeated call with the same id begins no second job."),
    ] = None,
) -> CommandResult:
    """Run an operation as a job. Prints its id, or with --wait its output.

    Without a running node the venue runs in this process, and the command waits for the end.
    Exit code 1 when the job that was waited for did not complete.
    """
    timeout_ms = None if timeout is None else round(duration_s(timeout) * 1_000)
    given = _given(values or [])
    client, is_here = _client(call)
    record = client.invoke(operation, given, timeout_ms=timeout_ms, request_id=request_id)
    if not wait and not is_here:
        return CommandResult(_document(record), [record.id.hex()])
    return _ended(_followed(client, record))


@command(app, "job", ANY)
def job(
    call: Call,
    id: JobArgument,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print it after each change, up to its end.")
    ] = False,
) -> CommandResult | Records:
    """Show a job: as the running node has it, or from the store."""
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
        names = (*whole_document(JobRecord()), *found)  # as the running node shows it
        document = {name: found[name] for name in names if name in found}
    return CommandResult(document, pair_lines({name: _text(one) for name, one in document.items()}))


@command(app, "message", ANY)
def message(call: Call, id: JobArgument, values: ValuesArgument) -> CommandResult:
    """Send a job a message: the answer to its question, or one for later."""
    client, wanted = _steered(call, id)
    depth = client.message(wanted, _given(values or []))
    return CommandResult({"id": wanted.hex(), "queueDepth": depth}, [f"{depth} waiting"])


@command(app, "pause", ANY)
def pause(call: Call, id: JobArgument) -> CommandResult:
    """Stop a job until it is resumed."""
    client, wanted = _steered(call, id)
    return _status(client.pause(wanted))


@command(app, "resume", ANY)
def resume(call: Call, id: JobArgument) -> CommandResult:
    """Run a paused job again, with its input."""
    client, wanted = _steered(call, id)
    return _status(client.resume(wanted))


@command(app, "cancel", ANY)
def cancel(call: Call, id: JobArgument) -> CommandResult:
    """End a job; one that has ended stays as it is."""
    client, wanted = _steered(call, id)
    return _status(client.cancel(wanted))


@command(app, "delete", ANY)
def delete(call: Call, id: JobArgument) -> CommandResult:
    """Cancel a job if it is live, and show it no more on this node."""
    client, wanted = _steered(call, id)
    client.delete(wanted)
    return CommandResult({"id": wanted.hex()}, [wanted.hex()])


# --- ways to the venue ----------------------------------------------------------------------------


def _client(call: Call) -> tuple[VenueClient, bool]:
    """Return the venue of the running node, or one in this process, and whether it is that."""
    running = connect(call.folder.path)
    if running is not None:
        return VenueClient(call.enter(running)), False
    from datalattice.service import FolderService, LocalClient

    folder = call.writable()
    config = replace(settings_of(folder).config, venue=True)
    service = FolderService(folder.path, read_keys(folder).identity, config)
    call.enter(closing(service))
    return VenueClient(LocalClient(service.at_doors((), tuple)[0])), True


def _steered(call: Call, id: str) -> tuple[VenueClient, bytes]:
    """Return the venue of the running node, where live jobs are, and the id of one."""
    return VenueClient(call.node(_START)), _job_id(call, id)


def _own_venue(call: Call) -> Venue:
    own = call.own()
    if own is None:
        raise UsageError(f"{call.folder.path} has no key, so it has no venue of its own")
    return Venue.at(RootLattice(root_lattice(), call.root()), did_of(own))


def _job_id(call: Call, given: str) -> bytes:
    """Return the id of the job that a text means: an id, or the beginning of one here."""
    digits = given.lower().removeprefix("0x")
    if len(digits) >= JOB_DIGITS:
        return parse_job_id(digits)
    found = [one for one in _own_venue(call).jobs() if digits and one.hex().startswith(digits)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} jobs begin with {digits}; write more of it")
    if not found:
        raise NoSuchPath(f"there is no job {given}")
    return found[0]


# --- what goes in and comes out -------------------------------------------------------------------


def _given(words: list[str]) -> object:
    """Return the input that words on the command line are."""
    if words == [_STANDARD_STREAM]:
        words = [sys.stdin.read()]
        if not words[0].strip():
            raise UsageError("standard input is empty, and the input is one JSON value")
    if not words:
        return {}
    if len(words) == 1:
        try:
            return json.loads(words[0])
        except (ValueError, RecursionError):
            if words[0].lstrip().startswith(("{", "[", '"')):
                raise UsageError(f"the input is not JSON: {words[0][:80]!r}") from None
    if not any("=" in word for word in words) and len(words) == 1:
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
    """Return the output of a job that was waited for, or why it failed or has not ended."""
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
    # Any JSON is an output, null too.
    kept = {"output"} if record.status == COMPLETE else set()
    return {name: one for name, one in found.items() if name in kept or one not in (None, "")}


def _line(record: JobRecord) -> str:
    return "  ".join(filter(None, [record.status, record.message, record.error]))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
