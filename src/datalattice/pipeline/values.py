"""Values: how cells become columns of rows, and columns cells; the same in every format."""

from __future__ import annotations

from enum import Enum
from typing import Final


class ValueFormat(Enum):
    """How a value (or key) becomes a column."""

    CELL = "cell"
    """BINARY: the canonical encoding, branches included; exact for every value."""
    BYTES = "bytes"
    """BINARY: the content of a Blob, the UTF-8 of a String; other values are refused."""
    STRING = "string"
    """STRING: what JSON writes as a string without its quotes, every other value as JSON."""
    JSON = "json"
    """STRING: the value as JSON."""


_BINARY: Final = (ValueFormat.CELL, ValueFormat.BYTES)


def column_type(format: ValueFormat) -> str:
    """Return the type of a column of values, as Spark's DDL names it."""
    return "BINARY" if format in _BINARY else "STRING"
