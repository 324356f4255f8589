"""Values on the command line: arguments become cells, and cells become text or JSON.

A value is text unless `--in` says otherwise. Keys in paths are read by `client.parse_path_key`.
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
        help="Format of values; lines: one JSON value on each line.",
    ),
]


def check_form(form: str) -> None:
    """Check a format of values. Raises: UsageError: there is no such format."""
    if form not in ("text", "json", "hex", "lines"):
        raise UsageError(f"--in is text, json, hex or lines, got {form!r}")


def parse_value(text: str, form: str) -> Value:
    """Return the cell that a value on the command line stands for.

    form: text, json, hex, or lines: JSON, of which standard input has one document on each line.
    Raises: UsageError: the text does not have the form, or there is no such form.
    """
    if form == "text":
        return make_text(text)
    check_form(form)
    if form == "hex":
        try:
            return make_blob(bytes.fromhex(text.removeprefix("0x")))
        except ValueError as error:
            raise UsageError(f"a hex value is pairs of hex digits, got {text!r:.80}") from error
    try:
        return from_json(text)  # JSON with marks can express every cell
    except DataLatticeError as error:
        text = str(error).removeprefix("not JSON: ")
        raise UsageError(f"not a JSON value: {text}") from error


def value_text(value: Value) -> str:
    """Return a value as text: a string as it is, anything else in its printed form."""
    return str(value) if isinstance(value, (str, Text)) else to_text(value)


def value_json(value: Value) -> object:
    """Return a value for `--json`: its JSON mapping."""
    document: object = json.loads(to_json(value))  # cells have a mapping to JSON text only
    return document


def listed_json(value: Value) -> object:
    """Return a value in a list of many: its JSON mapping, or a short text if it has references."""
    # A few cells that refer to each other may stand for a text of any size.
    return brief(value) if references(encode(value)) else value_json(value)
