"""Main: the command `lattice`, its groups, and the one place where errors become exit codes.

Exit codes: 0 done; 1 it failed (a store, a peer, a check that does not hold); 2 the call was wrong
(an option, a key, a folder); 70 a fault of this program; 130 interrupted (Ctrl-C); 143 told to end
(SIGTERM).
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit, TyperException
from typer.main import get_command

from datalattice.cli import (
    demo,
    etch,
    forks,
    fs,
    garbage,
    get,
    history,
    hosting,
    key,
    kv,
    missing_package,
    node,
    pins,
    put,
    queue,
    spark,
    store,
    venue,
)
from datalattice.cli.conformance import conformance
from datalattice.cli.offline import add_offline
from datalattice.cli.render import print_error
from datalattice.errors import DataLatticeError, UsageError

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_WRONG_CALL: Final = 2
EXIT_FAULT: Final = 70
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

INTEGER_DIGITS_MAX: Final = 10_000
"""Digits of an integer that is read or printed; the largest integer cell has 9,865."""

DEBUG_VARIABLE: Final = "DATALATTICE_DEBUG"

_EPILOG: Final = (
    "Exit codes: 0 done, 1 it failed, 2 the call was wrong, 70 a fault of this program, "
    f"130 interrupted, 143 told to end. With {DEBUG_VARIABLE}=1 errors print where they came from."
)

app = typer.Typer(
    name="lattice",
    help="Data that several machines write while apart, and that merges to one value.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("init")(key.init)
app.add_typer(key.app, name="key", no_args_is_help=True)
app.add_typer(node.app, name="node", no_args_is_help=True)
app.add_typer(kv.app, name="kv", no_args_is_help=True)
app.add_typer(queue.app, name="queue", no_args_is_help=True)
for name, command in (
    ("stats", garbage.stats),
    ("gc", garbage.gc),
    ("sweep", garbage.sweep),
    ("pin", pins.pin),
    ("unpin", pins.unpin),
    ("pins", pins.pins),
    ("forget", pins.forget),
    ("export", pins.export),
    ("import", pins.import_),
):
    store.app.command(name)(command)
app.add_typer(store.app, name="store", no_args_is_help=True)
app.add_typer(hosting.app, name="hosting")
app.command("forget")(hosting.forget)
app.command("host")(hosting.host)
app.add_typer(forks.app, name="forks", no_args_is_help=True)
app.add_typer(fs.app, name="fs", no_args_is_help=True)
app.add_typer(etch.app, name="etch", no_args_is_help=True)
app.add_typer(venue.app, name="venue", no_args_is_help=True)
app.add_typer(spark.app, name="spark", no_args_is_help=True)
app.command("get")(get.get)
app.command("put")(put.put)
app.command("log")(history.log)
app.command("show")(history.show_root)
app.command("diff")(history.diff)
app.command("checkout")(history.checkout)
app.command("audit")(history.audit)
app.command("conformance")(conformance)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        print(f"lattice {version('datalattice')}")
    except PackageNotFoundError:
        print("lattice, not installed")
    raise Exit(EXIT_DONE)


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@cache
def _built() -> Callable[..., Any]:
    """Return the commands as typer runs them; a process that runs many builds them once."""
    commands = get_command(app)
    assert isinstance(commands, TyperGroup)
    return add_offline(commands)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Every error ends in one line on standard error."""
    as_json = "--json" in arguments
    try:
        code = _built()(list(arguments), prog_name="lattice", standalone_mode=False)
    except (Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except _Terminated:
        return EXIT_TERMINATED
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            # The reader of our output went away (`lattice ... | head`); that is no error of ours.
            return EXIT_DONE
        raise
    except TyperException as error:
        text = error.format_message()
        if not text:  # no command given: the help is printed, and says all there is to say
            return EXIT_WRONG_CALL
        return _explain(text + _dash_hint(text), "usage", EXIT_WRONG_CALL, as_json)
    except UsageError as error:
        return _explain(str(error), error.code, EXIT_WRONG_CALL, as_json)
    except DataLatticeError as error:
        return _explain(str(error), error.code, EXIT_FAILED, as_json)
    except OSError as error:
        return _explain(_os_text(error), "system", EXIT_FAILED, as_json)
    except ModuleNotFoundError as error:
        text = missing_package(error) or f"a fault of this program: {error}"
        return _explain(text, "missing-package", EXIT_FAILED, as_json)
    except Exception as error:  # noqa: BLE001 - the last door: anything else is a fault of this program
        text = f"a fault of this program ({DEBUG_VARIABLE}=1 shows where): {error!r}"
        return _explain(text, "fault", EXIT_FAULT, as_json)
    return code if isinstance(code, int) else EXIT_DONE


def _dash_hint(text: str) -> str:
    """Return what to do about a value that was taken for an option, such as -5."""
    if re.match(r"No such option: -[0-9.]", text) is None:
        return ""
    return "; a value that begins with - comes last, after --"


def _os_text(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return name + (error.strerror or str(error))


def _explain(message: str, code: str, exit_code: int, as_json: bool) -> int:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exc()
    print_error(message, code, as_json)
    return exit_code


class _Terminated(BaseException):
    """SIGTERM came: everything is closed on the way out, as with Ctrl-C."""


def _terminate(_number: int, _frame: object) -> None:
    raise _Terminated


def main() -> None:
    """Run the command line of this process and end it."""
    _prepare_streams()
    sys.set_int_max_str_digits(INTEGER_DIGITS_MAX)
    signal.signal(signal.SIGTERM, _terminate)
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer would be tried again at the end, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _explain(f"standard output: {_os_text(error)}", "system", EXIT_FAILED, False)
    sys.exit(code)


def _prepare_streams() -> None:
    """Make the standard streams take any text; one that the caller closed is empty."""
    nothing = Path(os.devnull)
    if sys.stdin is None:
        sys.stdin = nothing.open(encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = nothing.open("w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = nothing.open("w", encoding="utf-8")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Arguments that are not UTF-8 reach us as surrogates and leave as the same bytes.
            utf_8 = stream.encoding.lower().replace("_", "-") == "utf-8"
            stream.reconfigure(errors="surrogateescape" if utf_8 else "backslashreplace")
