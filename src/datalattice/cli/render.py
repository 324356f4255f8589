"""Render: what commands print. Results go to standard output, everything else to standard error.

A command returns a `CommandResult`, or `Records` that are printed as they are read. `show` prints
it in the form that was asked for: `text` (a list is a table on a terminal, tab-separated in a
pipe), `table`, `json` (one document), or `lines` (one JSON document a line).
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

WIDTH_MAX: Final = 1_000  # a table that is cut cannot be read by a program
"""Columns of tables that go to a file or pipe: enough for any row."""

_VISIBLE: Final = {
    # Tabs and line ends are layout, everything else could move the cursor.
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n"
}

Jsonable = object
"""What `json.dumps` takes."""

EXIT_FAILED: Final = 1
"""Exit code of a command that ran and found a fault, or failed."""


class ProgressBar(Protocol):
    """A progress bar: `advance` moves it, `total` sets or corrects its end."""

    def advance(self, count: int = 1) -> None:
        """Move the bar by `count`."""
        ...

    def to(self, completed: int, total: int | None = None) -> None:
        """Put the bar at `completed`, of `total` where that is known by now."""
        ...


def results() -> Console:
    """Return the console for results: standard output, only as narrow as a terminal makes it."""
    from rich.console import Console

    # In a pipe no row may be broken: programs read it line by line.
    width = None if sys.stdout.isatty() else WIDTH_MAX
    # No highlighting: values are shown as they are.
    return Console(file=sys.stdout, width=width, highlight=False)


def notices() -> Console:
    """Return the console for progress and notices: standard error."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def print_json(document: Jsonable) -> None:
    """Print one JSON document."""
    sys.stdout.write(json_text(document, 2) + "\n")


def print_json_line(document: Jsonable) -> None:
    """Print one JSON document on one line, at once: whoever reads it waits for the line."""
    sys.stdout.write(json_text(document) + "\n")
    sys.stdout.flush()  # "at once": a pipe would hold it back


def print_json_list(documents: Iterable[Jsonable]) -> None:
    """Print one JSON document, a list, member by member: it may be longer than memory holds."""
    separator = "["  # the same document as a list in memory would give
    for document in documents:
        member = json_text(document, 2).replace("\n", "\n  ")
        sys.stdout.write(f"{separator}\n  {member}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def json_text(document: Jsonable, indent: int | None = None) -> str:
    """Return JSON text that is valid UTF-8 and fits standard output, escaped where it must be."""
    # Readable first, ASCII where it must be.
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    # Lone surrogates, and characters that the output cannot encode, become four hex digits.
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8", "strict")
    except UnicodeEncodeError:
        return json.dumps(document, indent=indent)
    return text


def visible(text: str) -> str:
    """Return text whose control characters are shown and not obeyed."""
    # Values come from any owner: an escape sequence must not reach the terminal.
    return text.translate(_VISIBLE)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they are: no markup, no wrapping.

    On a terminal control characters are shown and not obeyed: values come from any owner.
    """
    on_terminal = sys.stdout.isatty()
    for line in lines:
        # In a pipe the bytes stay as they are.
        sys.stdout.write((visible(line) if on_terminal else line) + "\n")


def pair_lines(pairs: Mapping[str, object]) -> list[str]:
    """Return names and values as aligned lines."""
    width = max((len(name) for name in pairs), default=0)  # aligned by the longest name
    return [f"{name:<{width}}  {cell_text(value)}" for name, value in pairs.items()]


# --- results ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows for people: a table on a terminal, tab-separated in a pipe."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Records:
    """Items that are printed one by one as they are read, more than memory may hold.

    is_live: the items come as they happen, so each is printed at once, and a document a line.
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

    document: what JSON has.
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

    shown: for a column, what people see of its value.
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
"""How the command that runs in this process prints; `use_form` sets it."""


def use_form(name: str | None, *, json: bool = False, quiet: bool = False) -> None:
    """Set how results are printed from now on. Raises: UsageError: there is no such form."""
    # "How results are printed" (docs/cli.md): `--as` is about output alone, `--in` about input.
    if name is not None and name not in _FORMS:
        raise UsageError(f"--as is text, table, json or lines, got {name!r}")
    _form.name = "json" if json else name  # `--json` wins: scripts add it to any command
    _form.is_quiet = quiet


def is_json() -> bool:
    """Return whether the result is JSON, as one document or as lines."""
    return _form.name in ("json", "lines")


def show(result: object) -> int:
    """Print the result of a command, None for nothing; return its exit code."""
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
    for notice in result.notices:  # after the result: a notice must not come between rows
        print_notice(notice)
    return result.code


def _show_records(records: Records) -> None:
    if _form.name == "json" and not records.is_live:
        print_json_list(map(records.document, records.items))
    elif is_json():
        for item in records.items:
            print_json_line(records.document(item))
    elif _form.name == "table" and not records.is_live:
        rows = [*map(records.row or records.document, records.items)]
        _show_text(
            CommandResult([one if isinstance(one, dict) else {"value": one} for one in rows])
        )
    else:
        for item in records.items:
            print_lines([records.text(item)])
            # Whoever waits for a line must not wait until a buffer is full.
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
        # Empty fields say nothing to people.
        parts = pair_lines({name: one for name, one in document.items() if one not in (None, "")})
    for part in parts:
        if isinstance(part, str):
            print_lines([part])
        # "lists as a table on a terminal, tab-separated in a pipe"
        elif _form.name == "table" or (_form.name is None and sys.stdout.isatty()):
            results().print(table(part.columns, part.rows, part.title))
        else:
            print_lines("\t".join(_tabbed(cell) for cell in row) for row in part.rows)


_TABBED: Final = {**_VISIBLE, ord("\t"): "\\t", ord("\n"): "\\n"}


def _tabbed(cell: object) -> str:
    """Return a cell of a tab-separated line: numbers as they are, tabs and line ends escaped."""
    text = str(cell).lower() if isinstance(cell, bool) else "" if cell is None else str(cell)
    return text.translate(_TABBED)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> Table:
    """Return a table; numbers stand to the right."""
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    made = Table(title=title or None, title_justify="left", title_style="bold")
    for position, column in enumerate(columns):
        cells = [row[position] for row in rows]
        # Decided by the column: mixed cells stay to the left.
        numeric = bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # Markup in a value must not be obeyed.
        made.add_row(*(Text(visible(cell_text(cell))) for cell in row))
    return made


def cell_text(cell: object) -> str:
    """Return a table cell as text: thousands separated, decimals rounded to two, JSON for more."""
    if isinstance(cell, (dict, list)):
        return json_text(cell)
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
        """Add a bar; without a total it only shows that something goes on."""
        return _Silent() if self._progress is None else _Bar(self._progress, label, total)


@contextmanager
def progress_bars(quiet: bool = False, transient: bool = False) -> Iterator[Bars]:
    """Show progress bars while the block runs; none when `quiet`, with JSON, or in a pipe.

    `transient` bars are gone when the block ends.
    """
    # Bars are for a person who waits.
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
        # Lines on the same terminal go above the bars; those to a file or pipe go as they are.
        redirect_stdout=sys.stdout.isatty(),
    )
    with progress:
        yield Bars(progress)


def print_notice(message: str) -> None:
    """Print something worth knowing as one line on standard error; with `--quiet` nothing."""
    if _form.is_quiet:
        return
    # One line: logs and scripts count lines.
    sys.stderr.write(f"lattice: {' '.join(message.split())}\n")


def print_error(message: str, code: str, as_json: bool) -> None:
    """Print a user's mistake, or what failed, as one line on standard error."""
    line = " ".join(message.split())  # a text of several lines would hide the next error
    if as_json:
        sys.stderr.write(json_text({"error": code, "message": line}) + "\n")
    else:
        sys.stderr.write(f"lattice: {line}\n")
