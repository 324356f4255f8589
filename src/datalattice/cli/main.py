"""Main: the command `lattice`, its groups, and the conversion of errors to exit codes.

Exit codes: 0 done; 1 failed, absent (`db get` of a missing key), or a check failed; 2 the call was
wrong (an option, a key, a folder); 70 a fault of this program; 75 not now, the same command may
succeed later (the store is locked, a peer is unreachable); 77 not allowed; 130 interrupted
(Ctrl-C); 141 closed pipe, silent; 143 ended by SIGTERM.

Source: docs/cli.md "Exit codes"
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
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit, TyperException
from typer.main import get_command, get_command_name, get_group
from typer.models import CommandInfo

from datalattice.cli import missing_package
from datalattice.cli.command import SHARED_FLAGS, SHARED_VALUES, prepared
from datalattice.cli.render import EXIT_FAILED, print_error, print_notice, use_form
from datalattice.errors import DataLatticeError

EXIT_DONE: Final = 0
EXIT_WRONG_CALL: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE_CLOSED: Final = 141
EXIT_TERMINATED: Final = 143

INTEGER_DIGITS_MAX: Final = 10_000  # printing takes quadratic time, so there must be a limit
"""Most digits of an integer that is read or printed; the largest integer cell has 9,865."""

DEBUG_VARIABLE: Final = "DATALATTICE_DEBUG"

_EPILOG: Final = (
    "Exit codes: 0 done, 1 failed, 2 the call was wrong, 70 a fault of this program, 75 not now, "
    "try again, 77 not allowed, 130 interrupted, 141 closed pipe, 143 terminated. The shared "
    "options (--dir, --owner, --as-of, --as, --json, --wait, --quiet, --debug) may come before or "
    f"after the command. --debug or {DEBUG_VARIABLE}=1 print the traceback of an error."
)

app = typer.Typer(
    name="lattice",
    help="Data that several machines write while apart, and that merges to one value.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Only the module of the command that runs is imported.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("key", "init"),
    "key": ("key", "app"),
    "node": ("node.commands", "app"),
    "daemon": ("node.daemon", "daemon"),
    "mcp": ("mcp", "mcp"),
    "repl": ("repl.command", "repl"),
    "queue": ("queue.commands", "app"),
    "db": ("db", "app"),
    "fs": ("fs.commands", "app"),
    "venue": ("venue.commands", "app"),
    "store": ("store.commands", "app"),
    "kv": ("store.kv", "app"),
    "log": ("store.log", "app"),
    "weave": ("store.weave", "app"),
    "peer": ("store.peer", "app"),
    "get": ("paths.get", "get"),
    "put": ("paths.put", "put"),
    "history": ("paths.history", "history"),
    "show": ("paths.history", "show_root"),
    "diff": ("paths.history", "diff"),
    "checkout": ("paths.history", "checkout"),
    "audit": ("paths.history", "audit"),
    "pin": ("pin", "app"),
    "forks": ("forks", "app"),
    "hosting": ("hosting", "app"),
    "host": ("hosting", "host"),
    "forget": ("hosting", "forget"),
    "disk": ("disk", "app"),
    "etch": ("etch", "app"),
    "spark": ("spark", "app"),
    "conformance": ("conformance", "conformance"),
}
"""The module of each command or group in this package, and its name there."""

DEFAULTS: Final[Mapping[tuple[str, ...], str]] = {
    ("hosting",): "show",
    ("node", "peers"): "list",
    ("forks",): "list",
}
"""The command that runs if a group is given without one."""


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
    """Import the module of a command or group; return it in typer's form."""
    module, attribute = COMMANDS[name]
    return _as_command(name, getattr(import_module(f"datalattice.cli.{module}"), attribute))


def _as_command(name: str, found: typer.Typer | Callable[..., Any]) -> Any:
    """Return a group or function in typer's form."""
    parent = typer.Typer()
    # Only the command that runs is made: making all takes longer than most commands run.
    if not isinstance(found, typer.Typer):
        return _made(name, CommandInfo(name), found)
    empty = copy(found)
    infos = {_name_of(info): info for info in found.registered_commands}
    empty.registered_commands = []
    parent.add_typer(empty, name=name, no_args_is_help=True)
    group = get_group(parent).commands[name]
    assert isinstance(group, TyperGroup)
    groups: dict[str, Any] = {str(one.name): one.typer_instance for one in found.registered_groups}

    def make(below: str) -> Any:
        if below in groups:
            return _as_command(below, groups[below])
        info = infos[below]
        assert info.callback is not None
        return _made(below, info, info.callback)

    group.commands = _Commands([*infos, *groups], make)
    _convert_plainly(group)
    return group


def _made(name: str, info: CommandInfo, function: Callable[..., Any]) -> Any:
    """Return a function as a command in typer's form."""
    settings = copy(info)
    settings.callback = prepared(function)
    made = typer.Typer()
    made.registered_commands = [settings]
    made.callback()(_nothing)
    command = get_group(made).commands[name]
    _convert_plainly(command)
    return command


def _convert_plainly(command: Any) -> None:
    """Let a command convert texts and paths itself: typer would import pydantic for that.

    That import is a third of a short command's start. If a version of typer has other names, typer
    converts as usual.
    """
    named = command.get_params

    def with_plain(context: Any) -> list[Any]:
        found: list[Any] = named(context)
        for parameter in found:
            kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            # Wrapped once, because typer may ask for the parameters twice.
            if kind is not None and "process_value" not in vars(parameter):
                convert = parameter.process_value
                parameter.process_value = partial(_processed, parameter, kind, convert)
        return found

    command.get_params = with_plain


def _processed(
    parameter: Any, kind: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any
) -> Any:
    """Return the value of a parameter; call typer's `convert` only if it needs conversion."""
    if kind is Path and type(value) is str:
        value = Path(value)
    if kind == list[str] and isinstance(value, (list, tuple)) and value:
        is_plain = all(type(one) is str for one in value)
    elif value is None:
        is_plain = not parameter.required and parameter.nargs == 1 and not parameter.multiple
    else:
        is_plain = isinstance(kind, type) and isinstance(value, kind)
    if not is_plain:
        return convert(context, value)  # lists, enums and numbers with limits
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _nothing() -> None:
    """Do nothing: with a callback, typer keeps a group with one command a group."""


def _name_of(info: CommandInfo) -> str:
    assert info.callback is not None
    return info.name or get_command_name(info.callback.__name__)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    import sys

    from datalattice.cells import Cell
    from datalattice.crypto import HASH_LANES
    from datalattice.version import VERSION

    is_pure = (sys.modules[Cell.__module__].__file__ or "").endswith(".py")
    lanes = f", hashes {max(HASH_LANES)} side by side" if HASH_LANES else ""
    print(f"lattice {VERSION}, {'pure Python' if is_pure else 'compiled'}{lanes}")
    raise Exit(EXIT_DONE)


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and the mode.",
        ),
    ] = False,
) -> None:
    """Define the options of `lattice` itself."""


@cache
def built() -> TyperGroup:
    """Return the command `lattice` in typer's form, built once for a process."""
    group = get_command(app)  # with completion, which a group alone does not have
    assert isinstance(group, TyperGroup)
    group.commands = _Commands(COMMANDS, _load)
    _convert_plainly(group)
    return group


def arranged(arguments: Sequence[str]) -> list[str]:
    """Return arguments with leading shared options moved behind the command, as typer needs them.

    A group without a command gets its default command.
    """
    # "Options before or after the command": words are read up to the first that is neither.
    rest, early, path = list(arguments), [], []
    here: Any = built()
    while isinstance(here, TyperGroup):
        word = rest[0] if rest else ""
        # A flag is one word, as is `--dir=x`; other options take the next word as their value.
        if word in SHARED_FLAGS or (word.partition("=")[0] in SHARED_VALUES and "=" in word):
            early.append(rest.pop(0))
        # As the last word it has no value: typer then names it in the error.
        elif word in SHARED_VALUES and len(rest) > 1:
            early += [rest.pop(0), rest.pop(0)]
        elif word in here.commands:
            path.append(rest.pop(0))
            here = here.commands[word]
        elif tuple(path) in DEFAULTS and word not in ("-h", "--help"):
            rest.insert(0, DEFAULTS[tuple(path)])
        else:
            break
    # A group that ends the line prints its help or an error, and has no such options.
    return [*path, *(early if not isinstance(here, TyperGroup) else ()), *rest]


def run(arguments: Sequence[str], command: Any = None, name: str = "lattice") -> int:
    """Run one command and return its exit code. Every error ends in one line on standard error.

    command: another program's command; None: `lattice`.
    """
    # A process may run several commands: the form of the one before is over.
    use_form(None)
    failed = _Failed(arguments)
    try:
        words = list(arguments) if command is not None else arranged(arguments)
        code = (command or built())(words, prog_name=name, standalone_mode=False)
    except (Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED  # "Ctrl-C": silent
    except _Terminated:
        return EXIT_TERMINATED
    # "141 (closed pipe, silent)": the reader has read enough, as in `lattice ... | head`.
    except BrokenPipeError:
        return EXIT_PIPE_CLOSED
    except SystemExit as error:
        # Typer turns a closed pipe into an exit of its own, with code 1.
        if isinstance(error.__context__, BrokenPipeError):
            return EXIT_PIPE_CLOSED
        raise
    except TyperException as error:
        text = error.format_message()
        if not text:  # a group without a command: typer has printed its help
            return EXIT_WRONG_CALL
        return failed(text + _option_hint(text), "usage", EXIT_WRONG_CALL)
    except Exception as error:  # noqa: BLE001 - every error becomes one line
        return failed(*explained(error))
    return code if isinstance(code, int) else EXIT_DONE


def explained(error: Exception) -> tuple[str, str, int]:
    """Return the text, the code for JSON and the exit code of an error."""
    from datalattice.service import status_of  # imported only for an error

    code = status_of(error, "w").exit_code
    if isinstance(error, DataLatticeError):
        return str(error), error.code, code
    if isinstance(error, OSError):
        return _os_text(error), "system", EXIT_FAILED
    # A module that belongs to no extra is missing through a fault of this program.
    if isinstance(error, ModuleNotFoundError) and (text := missing_package(error)) is not None:
        return text, "missing-package", EXIT_FAILED
    text = f"a fault of this program ({DEBUG_VARIABLE}=1 shows where): {error!r}"
    return text, "fault", code


def _option_hint(text: str) -> str:
    """Return the remedy for an unknown option: for a value such as -5, or the owner of a write."""
    if re.match(r"No such option: -[0-9.]", text) is not None:
        return "; a value that begins with - comes last, after --"
    if re.match(r"No such option: (-o|--owner)\b", text) is not None:
        return "; only reading commands take it: writes use the folder's own key"
    return ""


def _os_text(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return name + (error.strerror or str(error))


class _Failed:
    """Prints why a command failed, in the form that its arguments ask for."""

    def __init__(self, arguments: Sequence[str]) -> None:
        pairs = set(pairwise(arguments))
        # Read from the arguments, because parsing itself may fail.
        self._is_json = "--json" in arguments or bool({("--as", "json"), ("--as", "lines")} & pairs)
        self._debug = "--debug" in arguments or os.environ.get(DEBUG_VARIABLE) == "1"

    def __call__(self, message: str, code: str, exit_code: int) -> int:
        if self._debug:
            traceback.print_exc()
        print_error(message, code, self._is_json)
        return exit_code


class _Notices(logging.Handler):
    """Prints logged warnings as notices of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        print_notice(record.getMessage())


class _Terminated(BaseException):
    """SIGTERM arrived. As with Ctrl-C, everything open is closed on the way out."""


def _terminate(_number: int, _frame: object) -> None:
    raise _Terminated


_AGAIN_S: Final = 0.01


def _deliver_again(lost: Any) -> None:
    """Raise KeyboardInterrupt or `_Terminated` again if Python dropped it in a finalizer.

    Python raises a signal between two instructions. If these belong to a `__del__` or the callback
    of a weak reference, as after a commit in the compiled kernel, the exception is dropped.
    """
    if not isinstance(lost.exc_value, (KeyboardInterrupt, _Terminated)):
        sys.__unraisablehook__(lost)
        return
    kind = type(lost.exc_value)

    def interrupt(_number: int, _frame: object) -> None:
        raise kind

    signal.signal(signal.SIGALRM, interrupt)  # the timer ends after the finalizer
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def main(command: Any = None, name: str = "lattice") -> None:
    """Run the command line of this process, or that of an example, and end it."""
    _prepare_streams()
    # Cells hold integers of any length; printing one must not fail at Python's default limit.
    sys.set_int_max_str_digits(INTEGER_DIGITS_MAX)
    # The default action of SIGTERM would leave locks and partial files behind.
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _deliver_again
    logging.lastResort = _Notices(logging.WARNING)  # a node process sets up its own logging
    code = run(sys.argv[1:], command, name)
    try:
        sys.stdout.flush()
    except OSError as error:  # a full disk shows only here
        # Python would write the rest of the buffer again at exit, and fail with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(EXIT_PIPE_CLOSED)
        text = f"standard output: {_os_text(error)}"
        code = _Failed(sys.argv)(text, "system", EXIT_FAILED)
    sys.exit(code)


def _prepare_streams() -> None:
    """Make the standard streams accept any text; replace a closed one by an empty one."""
    nothing = Path(os.devnull)
    if sys.stdin is None:  # Python's value for a stream that the caller closed
        sys.stdin = nothing.open(encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = nothing.open("w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = nothing.open("w", encoding="utf-8")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Arguments that are not UTF-8 arrive as surrogates, and are printed as the same bytes.
            utf_8 = stream.encoding.lower().replace("_", "-") == "utf-8"
            stream.reconfigure(errors="surrogateescape" if utf_8 else "backslashreplace")
