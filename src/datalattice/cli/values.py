"""Values on the command line: how arguments become cells, and cells become text or JSON.

A key of a path, a topic, a partition or a metadata key is written as it prints: `flights` (a
string), `3` (an integer), `:value` (a keyword), `0x00ff` (bytes), `"3"` (a string that would read
as something else). A value is text unless `--in` says otherwise.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Final

import typer

from datalattice.cells import (
    Keyword,
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

# What a 64-bit integer can have; longer ones are texts.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_HEX: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})*")  # pairs of digits: bytes


InOption = Annotated[
    str,
    typer.Option(
        "--in", metavar="text|json|hex|lines", help="What values are; lines: JSON, one a line."
    ),
]


def parse_key(text: str) -> Value:
    """Return the cell that a key on the command line stands for.

    Raises: UsageError: it is empty, or begins like a keyword, bytes or a quoted string and is none.
    """
    if text == "":  # an empty argument is nearly always a variable that was not set
        raise UsageError(
            'a key is empty; write "" in quotes that reach the command for the empty string'
        )
    if _INTEGER.fullmatch(text):
        return int(text)
    if text.startswith(":") and len(text) > 1:
        return Keyword(text[1:])
    if text.startswith("0x"):
        return _bytes_of(text, "a key that begins with 0x")
    if text.startswith('"'):
        return _quoted(text)  # a string that would read as something else
    return text


def _quoted(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"a key in quotes is a JSON string, got {text}") from error
    if not isinstance(value, str):  # a number in quotes is no JSON string
        raise UsageError(f"a key in quotes is a JSON string, got {text}")
    return value


def _bytes_of(text: str, what: str) -> bytes:
    if not _HEX.fullmatch(text):
        raise UsageError(f"{what} is 0x and an even number of hex digits, got {text}")
    return bytes.fromhex(text[2:])


def check_form(form: str) -> None:
    """Check how values are written.

    Raises: UsageError: there is no such form.
    """
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
        return make_blob(_bytes_of(text if text.startswith("0x") else "0x" + text, "a hex value"))
    try:
        return from_json(text)  # JSON with marks: every cell can be written
    except DataLatticeError as error:
        raise UsageError(f"not a JSON value: {error}") from error


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
