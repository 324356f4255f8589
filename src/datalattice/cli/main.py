"""Main: the command `lattice`, its groups, and the one place where errors become exit codes.

Exit codes: 0 done; 1 failed (a store, a peer, a check that does not hold); 2 the call was wrong (an
option, a key, a folder); 70 a fault of this program; 75 not now, the same command may succeed later
(the store is locked, a peer is away); 77 not allowed; 130 interrupted (Ctrl-C); 143 ended by
SIGTERM.
"""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit, TyperException
from typer.main import get_command, get_command_name, get_group
from typer.models import CommandInfo

from datalattice.cli import missing_package
from datalattice.cli.offline import OFFLINE_COMMANDS, offline_option
from datalattice.cli.render import print_error, print_notice
from datalattice.errors import (
    DataLatticeError,
    IdentityCloned,
    StoreLocked,
    Unauthorized,
    Unavailable,
    UsageError,
)

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_WRONG_CALL: Final = 2
EXIT_FAULT: Final = 70
EXIT_NOT_NOW: Final = 75
EXIT_NOT_ALLOWED: Final = 77
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

INTEGER_DIGITS_MAX: Final = 10_000
"""Digits of an integer that is read or printed; the largest integer cell has 9,865."""

DEBUG_VARIABLE: Final = "DATALATTICE_DEBUG"

_EPILOG: Final = (
    "Exit codes: 0 done, 1 failed, 2 the call was wrong, 70 a fault of this program, 75 not now, "
    "try again, 77 not allowed, 130 interrupted, 143 told to end. "
    f"With {DEBUG_VARIABLE}=1 errors print where they came from."
)

app = typer.Typer(
    name="lattice",
    help="Data that several machines write while apart, and that merges to one value.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("key", "init"),
    "key": ("key", "app"),
    "node": ("node", "app"),
    "db": ("kv", "app"),
    "queue": ("queue", "app"),
    "disk": ("store", "app"),
    "pin": ("pins", "app"),
    "hosting": ("hosting", "app"),
    "forget": ("hosting", "forget"),
    "host": ("hosting", "host"),
    "forks": ("forks", "app"),
    "fs": ("fs", "app"),
    "etch": ("etch", "app"),
    "venue": ("venue", "app"),
    "spark": ("spark", "app"),
    "get": ("get", "get"),
    "put": ("put", "put"),
    "history": ("history", "history"),
    "show": ("history", "show_root"),
    "diff": ("history", "diff"),
    "checkout": ("history", "checkout"),
    "audit": ("history", "audit"),
    "conformance": ("conformance", "conformance"),
}
"""Each command or group: the module of this package that has it, and its name there."""


class _Commands(MutableMapping[str, Any]):
    """Commands by name, each made when it is first looked up."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Any]) -> None:
        self._names = list(names)
        self._make = make
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _load(name: str) -> Any:
    """Import the module that has a command or group, and return that as typer runs it."""
    module, attribute = COMMANDS[name]
    return _as_command(name, getattr(import_module(f"datalattice.cli.{module}"), attribute))


def _as_command(name: str, found: typer.Typer | Callable[..., Any]) -> Any:
    """Return a group or function as typer runs it; those that write for owners get `--offline`."""
    parent = typer.Typer()
    if not isinstance(found, typer.Typer):
        parent.command(name)(found)
        command = get_group(parent).commands[name]
        if name == "put":
            command.params.append(offline_option())
        _convert_plainly(command)
        return command
    empty = copy(found)
    infos = {_name_of(info): info for info in found.registered_commands}
    empty.registered_commands = []
    parent.add_typer(empty, name=name, no_args_is_help=name != "hosting")
    group = get_group(parent).commands[name]
    assert isinstance(group, TyperGroup)
    groups = group.commands
    writers = OFFLINE_COMMANDS.get(name, "").split()

    def make(below: str) -> Any:
        if below in groups:
            return groups[below]
        made = typer.Typer()
        made.registered_commands = [infos[below]]
        made.callback()(_nothing)
        command = get_group(made).commands[below]
        if below in writers:
            command.params.append(offline_option())
        _convert_plainly(command)
        return command

    group.commands = _Commands([*infos, *groups], make)
    _convert_plainly(group)
    return group


def _convert_plainly(command: Any) -> None:
    """Have a command take texts and paths without typer, which imports pydantic to convert them.

    That is a third of a short command's start. Where typer has other names, it converts as ever.
    """
    named = command.get_params

    def with_plain(context: Any) -> list[Any]:
        found: list[Any] = named(context)
        for parameter in found:
            kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            if kind is not None and "process_value" not in vars(parameter):
                convert = parameter.process_value
                parameter.process_value = partial(_processed, parameter, kind, convert)
        return found

    command.get_params = with_plain


def _processed(
    parameter: Any, kind: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any
) -> Any:
    """Return the value of a parameter: `convert` is called where there is anything to convert."""
    if kind is Path and type(value) is str:
        value = Path(value)
    if kind == list[str] and isinstance(value, (list, tuple)) and value:
        is_plain = all(type(one) is str for one in value)
    elif value is None:
        is_plain = not parameter.required and parameter.nargs == 1 and not parameter.multiple
    else:
        is_plain = isinstance(kind, type) and isinstance(value, kind)
    if not is_plain:
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _nothing() -> None:
    """Keep typer from taking the only command of a group for the group."""


def _name_of(info: CommandInfo) -> str:
    assert info.callback is not None
    return info.name or get_command_name(info.callback.__name__)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

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
def built() -> TyperGroup:
    """Return the command `lattice` as typer runs it; a process that runs many builds it once."""
    group = get_command(app)  # with completion, which a group alone does not have
    assert isinstance(group, TyperGroup)
    group.commands = _Commands(COMMANDS, _load)
    _convert_plainly(group)
    return group


def run(arguments: Sequence[str], command: Any = None, name: str = "lattice") -> int:
    """Run one command and return its exit code. Every error ends in one line on standard error.

    command: another program's command; None: `lattice`.
    """
    as_json = "--json" in arguments
    try:
        code = (command or built())(list(arguments), prog_name=name, standalone_mode=False)
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
    except IdentityCloned as error:  # it stays so until the operator gives one of them another key
        return _explain(str(error), error.code, EXIT_FAILED, as_json)
    except (Unavailable, StoreLocked) as error:
        return _explain(str(error), error.code, EXIT_NOT_NOW, as_json)
    except Unauthorized as error:
        return _explain(str(error), error.code, EXIT_NOT_ALLOWED, as_json)
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


class _Notices(logging.Handler):
    """Prints what a package warns of as a notice of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        print_notice(record.getMessage())


class _Terminated(BaseException):
    """SIGTERM came: everything is closed on the way out, as with Ctrl-C."""


def _terminate(_number: int, _frame: object) -> None:
    raise _Terminated


def main(command: Any = None, name: str = "lattice") -> None:
    """Run the command line of this process, or that of an example, and end it."""
    _prepare_streams()
    sys.set_int_max_str_digits(INTEGER_DIGITS_MAX)
    signal.signal(signal.SIGTERM, _terminate)
    logging.lastResort = _Notices(logging.WARNING)  # a node has a log of its own
    code = run(sys.argv[1:], command, name)
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
