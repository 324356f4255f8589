"""Values on the command line: how arguments become cells, and cells become text or JSON.

Keys of a path, a topic or a partition are written as `client.parse_path_key` says. A value is text
unless `--in` says otherwise.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from datalattice.cells import (
    Text,
    Value,
    brief,
    encode,
    from_json,
    make_blob,
    make_text,
    references,
    to_json,
    to_text,
)
from datalattice.errors import DataLatticeError, UsageError

InOption = Annotated[
    str,
    typer.Option(
        "--in",
        metavar="text|json|hex|lines",
        help="Format of values; lines: one JSON value a line.",
    ),
]


def check_form(form: str) -> None:
    """Check how values are written. Raises: UsageError: there is no such form."""
    if form not in ("text", "json", "hex", "lines"):
        raise UsageError(f"--in is text, json, hex or lines, got {form!r}")


def parse_value(text: str, form: str) -> Value:
    """Return the cell that a value on the command line stands for.

    form: text, json, hex, or lines: JSON, of which input has one document a line.
    Raises: UsageError: the text does not have the form, or there is no such form.
    """
    # "Values as text" by default: a shell gives texts, and `5` need not be a number.
    if form == "text":
        return make_text(text)
    check_form(form)
    if form == "hex":
        try:
            return make_blob(bytes.fromhex(text.removeprefix("0x")))
        except ValueError as error:
            raise UsageError(f"a hex value is an even number of hex digits, got {text}") from error
    try:
        return from_json(text)  # JSON with marks: every cell can be written
    except DataLatticeError as error:
        text = str(error).removeprefix("not JSON: ")
        raise UsageError(f"not a JSON value: {text}") from error


def value_text(value: Value) -> str:
    """Return a value for people: a string as it is, anything else in its printed form."""
    return str(value) if isinstance(value, (str, Text)) else to_text(value)


def value_json(value: Value) -> object:
    """Return a value for `--json`: its JSON mapping."""
    document: object = json.loads(to_json(value))
    return document  # through text: the one mapping to JSON


def listed_json(value: Value) -> object:
    """Return a value that names a member of a list: its JSON mapping, or a short text.

    Whoever wrote it may have made a few cells stand for a text of any size; the list has others.
    """
    # A value with references may be of any size once it is written out.
    return brief(value) if references(encode(value)) else value_json(value)
