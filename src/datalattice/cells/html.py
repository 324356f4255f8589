"""HTML: values in notebooks, bounded, escaped, and never an error.

A container is a table of its first entries, in which inner containers are folded. Only the shown
parts are loaded; a missing part is shown as a note.

Source: docs/cells.md "In notebooks", "Printed form".
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from datalattice.cells.blobs import Blob, Text
from datalattice.cells.cell import Value, to_value
from datalattice.cells.index import Index
from datalattice.cells.maps import Map, Set
from datalattice.cells.scalars import html_hook
from datalattice.cells.tagged import Coded, Record, Signed, Syntax
from datalattice.cells.text import to_text
from datalattice.cells.vectors import List, Vector
from datalattice.errors import DataLatticeError

HTML_ENTRIES_MAX: Final = 20
"""Entries shown of one container."""

HTML_DEPTH_MAX: Final = 4
"""Levels of containers shown."""

HTML_CELLS_MAX: Final = 400
"""Entries shown in total."""

HTML_TEXT_MAX: Final = 200
"""Characters shown of one text or blob."""

HTML_INTEGER_BITS_MAX: Final = 2_048
"""Longest integer shown as digits, in bits."""

TableRow = tuple[object, ...]


class _Page:
    """The HTML of one value, and the number of entries it may still show."""

    def __init__(self) -> None:
        self.left = HTML_CELLS_MAX

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[TableRow],
        total: int | None,
        depth: int,
    ) -> str:
        """Return a table of the first rows; `total` is their number, if known."""
        body: list[str] = []
        shown = 0
        more = False
        found = iter(rows)
        try:
            for row in found:
                # Bounded by entries of one container and of the page: a page of a huge value stays
                # small.
                if shown >= HTML_ENTRIES_MAX or self.left <= 0:
                    more = True
                    break
                self.left -= 1
                shown += 1
                cells = "".join(f"<td>{self.value(item, depth + 1)}</td>" for item in row)
                body.append(f"<tr>{cells}</tr>")
        except DataLatticeError as error:  # show what can be loaded
            body.append(_note(str(error), len(columns)))
        if more:
            rest = "" if total is None else f"{total - shown:,} "
            body.append(_note(f"and {rest}more", len(columns)))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        caption = f"<caption>{html.escape(title)}</caption>" if depth == 0 else ""
        return (
            f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        )

    def value(self, value: object, depth: int) -> str:
        """Return the HTML of a value."""
        try:
            if not isinstance(value, _CONTAINERS):
                # Security: foreign text is escaped, so that it cannot run in a notebook.
                return f"<code>{html.escape(leaf_text(value))}</code>"
            title, columns, total = _head(value)
            if depth == 0:
                return self.table(title, columns, _rows(value), total, depth)
            # Only its title: nothing below it is loaded.
            if depth >= HTML_DEPTH_MAX or self.left <= 0 or total == 0:
                return html.escape(title)
            inner = self.table(title, columns, _rows(value), total, depth)
            return f"<details><summary>{html.escape(title)}</summary>{inner}</details>"
        except DataLatticeError as error:
            return f"<i>{html.escape(str(error))}</i>"


_CONTAINERS: Final = (Map, Index, Set, Vector, List, Record, Signed, Coded, Syntax)


def _note(text: str, width: int) -> str:
    return f'<tr><td colspan="{width}"><i>{html.escape(text)}</i></td></tr>'


def _head(value: object) -> tuple[str, tuple[str, ...], int]:
    """Return (title, columns, entries) of a container."""
    kind = type(value).__name__
    if isinstance(value, (Map, Index)):
        count = len(value)
        return f"{kind}, {_counted(count, 'entry', 'entries')}", ("key", "value"), count
    if isinstance(value, Set):
        count = len(value)
        return f"{kind}, {_counted(count, 'element', 'elements')}", ("element",), count
    if isinstance(value, (Vector, List, Record)):
        count = len(value)
        return f"{kind}, {_counted(count, 'element', 'elements')}", ("", "value"), count
    return kind, ("", ""), 2


def _counted(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many}"


def _rows(value: object) -> Iterator[TableRow]:
    """Yield the rows of a container on demand."""
    if isinstance(value, (Map, Index)):
        yield from value.entries()
    elif isinstance(value, Set):
        for element in value:
            yield (element,)
    elif isinstance(value, (Vector, List, Record)):
        for place in range(len(value)):
            yield (place, value[place])
    elif isinstance(value, Signed):
        yield (_Unquoted("public key"), value.public_key)
        # Verified here: a page that shows a signature says whether it holds.
        yield (_Unquoted("signature"), _Unquoted("valid" if value.verify() else "not valid"))
        yield (_Unquoted("value"), value.value)
    elif isinstance(value, Coded):
        yield (_Unquoted("code"), value.code)
        yield (_Unquoted("value"), value.value)
    elif isinstance(value, Syntax):
        yield (_Unquoted("value"), value.value)
        yield (_Unquoted("meta"), value.meta)


class _Unquoted:
    """A text to be shown without quotes."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def leaf_text(value: object) -> str:
    """Return the text of a value without children: its printed form, cut."""
    if isinstance(value, _Unquoted):
        return value.text
    if isinstance(value, (str, Text)):
        # Only the first chunk is loaded, whatever the length.
        if isinstance(value, Text):
            size = value.byte_length()
            head = value.read(0, HTML_TEXT_MAX).decode("utf-8", "ignore")
            return f"{to_text(head)}... of {size:,} bytes"
        if len(value) > HTML_TEXT_MAX:
            return f"{to_text(value[:HTML_TEXT_MAX])}... of {len(value):,} characters"
    elif isinstance(value, (bytes, Blob)):
        size = value.byte_length() if isinstance(value, Blob) else len(value)
        if size > HTML_TEXT_MAX // 2:
            some = HTML_TEXT_MAX // 2
            front = value.read(0, some) if isinstance(value, Blob) else value[:some]
            return f"0x{front.hex()}... of {size:,} bytes"
    # To write out an integer takes time that grows with the square of its length.
    elif isinstance(value, int) and value.bit_length() > HTML_INTEGER_BITS_MAX:
        return f"Integer of {value.bit_length():,} bits"
    return to_text(to_value(value))


def to_html(value: Value) -> str:
    """Return the HTML of a value for notebooks: at most 400 entries, 4 levels of containers.

    Cost:   the parts shown, and verifying the signatures among them.
    """
    return _Page().value(value, 0)


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[TableRow], total: int | None = None
) -> str:
    """Return a table for notebooks, of values of any type: the first 20 rows."""
    return _Page().table(title, columns, rows, total, 0)


def html_words(text: str) -> object:
    """Return a text that a table shows without the quotes of a String."""
    return _Unquoted(text)


html_hook[0] = to_html
