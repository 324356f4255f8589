"""Render: prints results to standard output, and notices, errors and progress to standard error.

A command returns a `CommandResult`, or `Records` that are printed as they are read. `show` prints
it in the chosen form: `text` (a list is a table on a terminal, tab-separated in a pipe), `table`,
`json` (one document), or `lines` (one JSON document on each line).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from datalattice.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

WIDTH_MAX: Final = 1_000  # programs cannot read rows that are broken or cut
"""Width of tables that go to a file or pipe: enough for any row."""

_VISIBLE: Final = {
    # All control characters except tab and line end could move the cursor.
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n"
}

Jsonable = object
"""A value that `json.dumps` accepts."""

EXIT_FAILED: Final = 1
"""Exit code of a command that ran and found a fault, or failed."""


class ProgressBar(Protocol):
    """A progress bar: `advance` moves it, `total` sets or corrects its end."""

    def advance(self, count: int = 1) -> None:
        """Move the bar by `count`."""
        ...

    def to(self, completed: int, total: int | None = None) -> None:
        """Put the bar at `completed`, and its end at `total`, if known."""
        ...


def results() -> Console:
    """Return the console for results: standard output, as wide as the terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH_MAX
    return Console(file=sys.stdout, width=width, highlight=False)


def notices() -> Console:
    """Return the console for progress and notices: standard error."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def print_json(document: Jsonable) -> None:
    """Print one JSON document."""
    sys.stdout.write(json_text(document, 2) + "\n")


def print_json_line(document: Jsonable) -> None:
    """Print one JSON document on one line, and flush it for a waiting reader."""
    sys.stdout.write(json_text(document) + "\n")
    sys.stdout.flush()


def print_json_list(documents: Iterable[Jsonable]) -> None:
    """Print one JSON list member by member, because it may be larger than memory."""
    separator = "["
    for document in documents:
        member = json_text(document, 2).replace("\n", "\n  ")
        sys.stdout.write(f"{separator}\n  {member}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def json_text(document: Jsonable, indent: int | None = None) -> str:
    """Return JSON text that standard output can encode; characters are escaped only if needed."""
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    # Lone surrogates, and characters that the output cannot encode, need escapes.
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8", "strict")
    except UnicodeEncodeError:
        return json.dumps(document, indent=indent)
    return text


def visible(text: str) -> str:
    """Return text with its control characters escaped."""
    # Values come from any owner, and their escape sequences must not reach the terminal.
    return text.translate(_VISIBLE)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines without markup and wrapping; on a terminal control characters are escaped."""
    on_terminal = sys.stdout.isatty()
    for line in lines:
        # Unescaped in a pipe, so that programs get the same bytes.
        sys.stdout.write((visible(line) if on_terminal else line) + "\n")


def pair_lines(pairs: Mapping[str, object]) -> list[str]:
    """Return names and values as aligned lines."""
    width = max((len(name) for name in pairs), default=0)
    return [f"{name:<{width}}  {cell_text(value)}" for name, value in pairs.items()]


# --- results ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows for people: a table on a terminal, tab-separated lines in a pipe."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Records:
    """Items that are printed one by one as they are read; they may not fit in memory together.

    is_live: whether items arrive over time: each is printed at once, as JSON one on each line.
    row:     the columns of a table; None: the fields of the document.
    """

    items: Iterable[Any]
    document: Callable[[Any], Jsonable]
    text: Callable[[Any], str]
    is_live: bool = False
    row: Callable[[Any], dict[str, object]] | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command.

    document: for JSON.
    text:     lines and listings for people; None: the names and values of the document.
    code:     the exit code; notices: lines on standard error, after the result.
    """

    document: Jsonable
    text: Iterable[str | Listing] | None = None
    code: int = 0
    notices: Sequence[str] = ()


def listed(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], **shown: Callable[[Any], object]
) -> CommandResult:
    """Return rows with all their fields for JSON, and the named columns for people.

    shown: by column, the function that makes the value for people.
    """

    def cells(row: Mapping[str, Any]) -> list[object]:
        return [shown[name](row[name]) if name in shown else row[name] for name in columns]

    return CommandResult(list(rows), [Listing(columns, map(cells, rows))])


@dataclass(slots=True)
class _OutputForm:
    name: str | None = None
    is_quiet: bool = False


_FORMS: Final = ("text", "table", "json", "lines")
_form: Final = _OutputForm()
"""The output form of the command that runs in this process; `use_form` sets it."""


def use_form(name: str | None, *, json: bool = False, quiet: bool = False) -> None:
    """Set the output form from now on. Raises: UsageError: there is no such form."""
    if name is not None and name not in _FORMS:
        raise UsageError(f"--as is text, table, json or lines, got {name!r}")
    # `--json`: "the same as `--as json`" (docs/cli.md); it wins over another `--as`.
    _form.name = "json" if json else name
    _form.is_quiet = quiet


def is_json() -> bool:
    """Return whether the result is JSON, as one document or as lines."""
    return _form.name in ("json", "lines")


def show(result: object) -> int:
    """Print the result of a command; return its exit code. None: the command printed itself."""
    if result is None:
        return 0
    if isinstance(result, Records):
        _show_records(result)
        return 0
    if not isinstance(result, CommandResult):
        result = CommandResult(result)
    # "`json` is one document, `lines` one JSON document a line, with all fields"
    if _form.name == "json":
        print_json(result.document)
    elif _form.name == "lines":
        # A single document is a list of one.
        listed = result.document if isinstance(result.document, list) else [result.document]
        for one in listed:
            print_json_line(one)
    else:
        _show_text(result)
    for notice in result.notices:
        print_notice(notice)
    return result.code


def _show_records(records: Records) -> None:
    if _form.name == "json" and not records.is_live:
        print_json_list(map(records.document, records.items))
    elif is_json():
        # "print one document on each line" (docs/cli.md "Output"), so that a reader need not wait
        # for the end of a list that may have none.
        for item in records.items:
            print_json_line(records.document(item))
    # The width of a column is known only when all rows are, so a live list has no table.
    elif _form.name == "table" and not records.is_live:
        rows = [*map(records.row or records.document, records.items)]
        _show_text(
            CommandResult([one if isinstance(one, dict) else {"value": one} for one in rows])
        )
    else:
        for item in records.items:
            print_lines([records.text(item)])
            if records.is_live:
                sys.stdout.flush()


def _show_text(result: CommandResult) -> None:
    parts: Iterable[str | Listing]
    document = result.document
    if result.text is not None:
        parts = result.text
    elif isinstance(document, list):
        columns = list(document[0]) if document else []
        parts = [Listing(columns, [[row[name] for name in columns] for row in document])]
    else:
        assert isinstance(document, dict)
        # People need no empty fields.
        parts = pair_lines({name: one for name, one in document.items() if one not in (None, "")})
    for part in parts:
        if isinstance(part, str):
            print_lines([part])
        # "lists as a table on a terminal, tab-separated in a pipe"
        elif _form.name == "table" or (_form.name is None and sys.stdout.isatty()):
            results().print(table(part.columns, part.rows, part.title))
        else:
            print_lines("\t".join(_tabbed(cell) for cell in row) for row in part.rows)


# A value must not add a column or a line to the output.
_TABBED: Final = {**_VISIBLE, ord("\t"): "\\t", ord("\n"): "\\n"}


def _tabbed(cell: object) -> str:
    """Return a cell of a tab-separated line: plain numbers, control characters escaped."""
    text = str(cell).lower() if isinstance(cell, bool) else "" if cell is None else str(cell)
    return text.translate(_TABBED)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> Table:
    """Return a table; columns of numbers are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    made = Table(title=title or None, title_justify="left", title_style="bold")
    for position, column in enumerate(columns):
        cells = [row[position] for row in rows]
        numeric = bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # `Text`, so that rich does not read a value as markup.
        made.add_row(*(Text(visible(cell_text(cell))) for cell in row))
    return made


def cell_text(cell: object) -> str:
    """Return a table cell as text: grouped digits, two decimals, JSON for lists and objects."""
    if isinstance(cell, (dict, list)):
        return json_text(cell)
    # Before int: a bool is an int in Python.
    if isinstance(cell, bool) or cell is None:
        return "" if cell is None else str(cell).lower()
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.2f}" if isinstance(cell, float) else str(cell)


def count_text(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


class _Bar:
    def __init__(self, progress: Progress, label: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total)

    def advance(self, count: int = 1) -> None:
        self._progress.advance(self._task, count)

    def to(self, completed: int, total: int | None = None) -> None:
        if total is not None:
            self._progress.update(self._task, total=total)
        self._progress.update(self._task, completed=completed)


class _Silent:
    def advance(self, count: int = 1) -> None:
        """Show nothing."""

    def to(self, completed: int, total: int | None = None) -> None:
        """Show nothing."""


class Bars:
    """Several progress bars on standard error, or none at all."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def add(self, label: str, total: int | None = None) -> ProgressBar:
        """Add a bar; without a total it shows only activity."""
        return _Silent() if self._progress is None else _Bar(self._progress, label, total)


@contextmanager
def progress_bars(quiet: bool = False, transient: bool = False) -> Iterator[Bars]:
    """Yield progress bars; they show nothing if `quiet`, with JSON, or in a pipe.

    transient: whether the bars are removed at the end.
    """
    # "Progress is shown only on a terminal" (docs/cli.md "Output")
    if quiet or _form.is_quiet or is_json() or not sys.stderr.isatty():
        yield Bars(None)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(
        *columns,
        console=notices(),
        transient=transient,
        # On a terminal, printed lines are placed above the bars.
        redirect_stdout=sys.stdout.isatty(),
    )
    with progress:
        yield Bars(progress)


def print_notice(message: str) -> None:
    """Print a notice as one line on standard error; with `--quiet` nothing."""
    # "no notices and no progress" (docs/cli.md "Options of every command")
    if _form.is_quiet:
        return
    sys.stderr.write(f"lattice: {' '.join(message.split())}\n")


def print_error(message: str, code: str, as_json: bool) -> None:
    """Print an error as one line on standard error."""
    # "An error is one line." (docs/cli.md "Exit codes")
    line = " ".join(message.split())
    # "an error is then an object with `error` (its code) and `message` on standard error"
    # (docs/cli.md "Output")
    if as_json:
        sys.stderr.write(json_text({"error": code, "message": line}) + "\n")
    else:
        sys.stderr.write(f"lattice: {line}\n")
