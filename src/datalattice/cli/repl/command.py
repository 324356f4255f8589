"""Command `lattice repl`: runs the actions of a node at a prompt, from a script or from -c."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from datalattice.cli.command import WRITES, Call, command
from datalattice.cli.render import is_json, print_error
from datalattice.client import CALL_TIMEOUT_S, read_key, read_names
from datalattice.errors import UsageError

if TYPE_CHECKING:
    from datalattice.cli.repl.evaluator import Evaluator
    from datalattice.client import Client

HISTORY_NAME: Final = "repl_history"
COMPLETION_S: Final = 2.0
"""Longest wait of completion for the node."""


@command(None, "repl", WRITES)
def repl(
    call: Call,
    script: Annotated[
        Path | None,
        typer.Argument(help="A file of commands, one on each line; - for standard input."),
    ] = None,
    commands: Annotated[
        list[str] | None, typer.Option("-c", help="A command; no prompt. Repeatable.")
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option("--rest", help="Use the service at a URL or at the path of a socket."),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option("--grpc", help="Use the service at host:port or at the path of a socket."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="DATALATTICE_TOKEN", help="The token for that service."),
    ] = None,
    sign: Annotated[
        str | None,
        typer.Option("--sign-for", help="Make tokens with the folder's key, for this DID or URL."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="The certificate of the service, as PEM.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="In a script: go on after a failed command.")
    ] = False,
) -> None:
    """Run actions of a node by name: at a prompt, from a script, or with -c.

    `help` lists the commands. Without --rest and --grpc it works on the folder, in which a node may
    be running.
    """
    from datalattice.cli.repl.evaluator import Evaluator

    lines = _lines(script, commands)  # first: a wrong call must not make a folder
    make = _maker(call, rest, grpc, _token(call, token, sign), certificate)
    client = call.enter(make(CALL_TIMEOUT_S))
    evaluator = Evaluator(client, print_failure)
    call.resources.callback(evaluator.close)
    if lines is None:
        _prompt(call, evaluator, make)
    elif code := _run(evaluator, lines, keep_going):
        raise typer.Exit(code)


def _lines(script: Path | None, commands: list[str] | None) -> Iterator[tuple[str, str]] | None:
    """Return the lines of a script, each after its position for errors; None: a prompt."""
    if commands:
        if script is not None:
            raise UsageError("give either a script or -c, not both")
        return _numbered(commands, "-c ")
    if script is not None and str(script) != "-":
        return _numbered(script.read_text("utf-8").split("\n"), f"{script}:")
    if script is None and sys.stdin.isatty():
        return None
    return _numbered(sys.stdin, "line ")


def _prompt(call: Call, evaluator: Evaluator, make: Callable[[float], Client]) -> None:
    # Imported here, because scripts need no prompt.
    from datalattice.cli.repl.completing import Candidates
    from datalattice.cli.repl.screen import Screen

    folder = call.folder
    names = ["own", *read_names(folder)]
    candidates = Candidates(evaluator, call.enter(make(COMPLETION_S)), lambda: names)
    # A prompt at a service elsewhere makes no folder for its history.
    history = folder.path / HISTORY_NAME if folder.path.is_dir() else None
    Screen(evaluator, candidates, history).run()


# --- the client -----------------------------------------------------------------------------------


def _token(call: Call, token: str | None, sign: str | None) -> Callable[[], str] | None:
    """Return a function that returns the token of a call; None: there is none."""
    if token is not None and sign is not None:
        raise UsageError("give either --token or --sign-for, not both")
    if sign is not None:
        from datalattice.client.credentials import make_token
        from datalattice.clock import SystemClock

        pair, clock = read_key(call.folder.key_path), SystemClock()
        return lambda: make_token(pair, sign, clock.now_ms())
    return None if token is None else lambda: token


def _maker(
    call: Call,
    rest: str | None,
    grpc: str | None,
    token: Callable[[], str] | None,
    certificate: Path | None,
) -> Callable[[float], Client]:
    """Return a function that makes a client with a limit on the seconds that a call waits."""
    if rest is not None and grpc is not None:
        raise UsageError("give either --rest or --grpc, not both")
    if rest is not None:
        from datalattice.client import RestClient

        tls = None if certificate is None else ssl.create_default_context(cafile=certificate)
        return lambda timeout_s: RestClient(rest, token=token, timeout_s=timeout_s, tls=tls)
    if grpc is not None:
        from datalattice.client.grpc import GrpcClient

        pem = None if certificate is None else certificate.read_bytes()
        return lambda timeout_s: GrpcClient(grpc, token=token, certificate=pem, timeout_s=timeout_s)
    # A folder of this machine needs no credential, so a token here is a mistake.
    if token is not None or certificate is not None:
        raise UsageError(
            "a token or certificate is shown to a service: name it with --rest or --grpc"
        )
    from datalattice.service import LocalClient

    local = LocalClient(call.node_handle())
    # One client for commands and completion: it waits for no network, so it has no limit.
    return lambda _: local


# --- scripts --------------------------------------------------------------------------------------


def _numbered(lines: Iterable[str], where: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        yield f"{where}{number}: ", line.rstrip("\n")


def _run(evaluator: Evaluator, lines: Iterator[tuple[str, str]], keep_going: bool) -> int:
    """Run the commands of a script, and wait for its streams; return the exit code."""
    from datalattice.cli.repl.evaluator import Quit

    code = 0
    try:
        for where, text in _statements(lines):
            try:
                evaluator.run(text)
            except Quit:
                return code
            except Exception as error:  # noqa: BLE001 - reported with its line
                # "the exit code is that of the first failure" (docs/repl.md "Scripts")
                failed = print_failure(error, where)
                code = code or failed
                if not keep_going:
                    return code
        # "A script ends when its streams have ended" (docs/repl.md "Scripts")
        return evaluator.wait() or code
    finally:
        evaluator.close()


def _statements(lines: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield commands; one with an open list, text or JSON goes on in the next line."""
    from datalattice.cli.repl.language import Incomplete, parse_command

    where, text = "", ""
    for at, line in lines:
        where, text = (where, f"{text}\n{line}") if text else (at, line)
        try:
            parse_command(text)
        except Incomplete:
            continue
        except UsageError:
            pass  # reported when the command runs
        yield where, text
        text = ""
    if text:
        yield where, text


def print_failure(error: Exception, where: str) -> int:
    """Print the error of a command as one line; return its exit code."""
    from datalattice.cli.main import explained

    text, code, exit_code = explained(error)
    print_error(f"{where}{text}", code, is_json())
    return exit_code
