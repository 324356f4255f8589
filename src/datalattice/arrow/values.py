"""Conversion between values and columns, the same in every format.

`to_column_value` is for formats with few or large rows. `leaves` makes the rows of a log directly
from encodings, with the same result.

Source: docs/spark.md "Values as columns".
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from datalattice.cells import (
    Blob,
    Text,
    Value,
    decode_message,
    encode_message,
    from_json,
    json_in_utf8,
    make_blob,
    make_text,
    to_cell,
    to_text,
)
from datalattice.errors import BadFormat, LimitExceeded, UsageError


class ValueFormat(Enum):
    """The form of a value (or key) in a column."""

    CELL = "cell"
    """BINARY: the canonical encoding, branches included; exact for every value."""
    BYTES = "bytes"
    """BINARY: the content of a Blob, the UTF-8 of a String; other values are refused."""
    STRING = "string"
    """STRING: a String, or another value that JSON writes as a string, unquoted; else JSON."""
    JSON = "json"
    """STRING: the value as JSON."""
    VARIANT = "variant"
    """VARIANT: the value's JSON, read by Spark's `parse_json`."""


VARIANT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest VARIANT, set by Spark; longer values are refused."""

FIELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Default of `maxContentBytes`. Memory holds a row several times, in Python and in Java, so longer
contents are refused or read in chunks."""

CONTENT_BYTES_LIMIT: Final = 1024 * 1024 * 1024
"""Greatest `maxContentBytes`, half of the longest byte array in Java."""

_TYPES: Final = {
    ValueFormat.CELL: "BINARY",
    ValueFormat.BYTES: "BINARY",
    ValueFormat.STRING: "STRING",
    ValueFormat.JSON: "STRING",
    ValueFormat.VARIANT: "VARIANT",
}

_DECIMAL_DIGITS: Final = 100  # exact for a variant's decimals, which have at most 38


def column_type(format: ValueFormat) -> str:
    """Return the type of a column of values in Spark's DDL."""
    return _TYPES[format]


def accepted_types(format: ValueFormat) -> tuple[str, ...]:
    """Return the types of columns that `parse` takes, in Spark's DDL."""
    if format is ValueFormat.BYTES:
        return "BINARY", "STRING"
    return (_TYPES[format],)


class NotBytes(Exception):
    """A value is neither Blob nor String, so it has no bytes. The caller names the value."""


def to_column_value(value: Value, format: ValueFormat) -> object:
    """Return the column entry of a value: bytes, str, None for nil, or Arrow's form of a variant.

    Raises: NotBytes: the format is BYTES, and the value neither Blob nor String. LimitExceeded: the
            value is too long for a message, a text or a variant. MissingData: a cell is missing.
    """
    # NULL and nil correspond in every format.
    if value is None:
        return None
    # "The encoding with all branches": a reader of the column needs no store.
    if format is ValueFormat.CELL:
        return encode_message(value)
    if format is ValueFormat.BYTES:
        if isinstance(value, (str, Text)):
            return _utf8(value)
        if isinstance(value, (bytes, Blob)):
            return bytes(value)
        # "Others are refused" (docs/spark.md): their encodings would pass for contents.
        raise NotBytes
    if format is ValueFormat.STRING and isinstance(value, (str, Text)):
        # A STRING column holds only UTF-8; BYTES and CELL keep all other bytes.
        return _utf8(value).decode("utf-8", "replace")
    text = json_in_utf8(value)
    if format is ValueFormat.STRING and text.startswith('"'):
        # "Another value that JSON writes as a string, unquoted".
        unquoted: str = json.loads(text)
        return unquoted
    return variant_parts(text) if format is ValueFormat.VARIANT else text


def parse(column: object, format: ValueFormat) -> Value:
    """Return the value of a column's entry; the inverse of `to_column_value`.

    cell returns the exact value, bytes a Blob (of a STRING its UTF-8), string a String, json and
    variant the value of their JSON. A variant's decimals without a fraction become Integers, other
    decimals Doubles, binaries Blobs, times and dates Strings in ISO form. NULL is None.

    column: an entry of Arrow's `to_pylist`, or a VariantVal.
    Raises: UsageError: the format does not take the entry's type. BadFormat: the bytes are not a
            canonical encoding, the text is not JSON, or the variant is malformed.
    """
    if column is None:
        return None
    if format is ValueFormat.VARIANT:
        return _variant_value(column)
    if format is ValueFormat.CELL and isinstance(column, bytes):
        return decode_message(column)
    if format is ValueFormat.BYTES and isinstance(column, (bytes, str)):
        return make_blob(column.encode() if isinstance(column, str) else column)
    if format is ValueFormat.STRING and isinstance(column, str):
        return make_text(column)
    if format is ValueFormat.JSON and isinstance(column, str):
        return from_json(column)
    raise _unaccepted(column, format)


def _unaccepted(column: object, format: ValueFormat) -> UsageError:
    return UsageError(
        f"values of the format {format.value} are written from a column of the type "
        f"{' or '.join(accepted_types(format))}, got {type(column).__name__}"
    )


def _utf8(text: str | Text) -> bytes:
    """Return the stored bytes of a String, also those that are not UTF-8."""
    return str(text).encode("utf-8", "surrogateescape")


def variant_parts(json_text: str) -> dict[str, bytes]:
    """Return the variant of a JSON text as Arrow's struct.

    Raises: LimitExceeded: it exceeds a limit of Spark: 16 MiB, integers of 4,300 digits, or the
            depth that its parser takes.
    """
    from pyspark.errors import PySparkValueError
    from pyspark.sql.types import VariantVal

    try:
        # Spark's own parser, so that the column equals `parse_json` of the same text.
        made = VariantVal.parseJson(json_text)
    except (PySparkValueError, ValueError, RecursionError) as error:
        raise LimitExceeded(
            f"a value of {len(json_text)} characters of JSON does not fit into a variant, which "
            f"has at most {VARIANT_BYTES_MAX} bytes: {error}; read it as json or cell"
        ) from None
    return {"value": bytes(made.value), "metadata": bytes(made.metadata)}


def _variant_value(column: object) -> Value:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import VariantVal

    if isinstance(column, Mapping) and column.keys() == {"value", "metadata"}:
        # As Arrow gives it to Python: a struct of two binaries.
        column = VariantVal(column["value"], column["metadata"])
    if not isinstance(column, VariantVal):
        raise _unaccepted(column, ValueFormat.VARIANT)
    try:
        # Python's default of 28 digits would round a variant's decimals.
        with decimal.localcontext(prec=_DECIMAL_DIGITS):
            return to_cell(plain(column.toPython()))
    except (PySparkException, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise BadFormat(f"the variant is malformed: {error}") from None


def plain(item: Any) -> object:
    """Return a column's or variant's content with types that values have.

    Decimals without a fraction become ints, other decimals floats, times and dates ISO texts.
    """
    if isinstance(item, dict):
        return {name: plain(inner) for name, inner in item.items()}
    if isinstance(item, list):
        return [plain(inner) for inner in item]
    if isinstance(item, decimal.Decimal):
        # The exponent decides, not the value: 1.0 becomes a Double.
        return int(item) if item.as_tuple().exponent == 0 else float(item)
    if isinstance(item, (dt.date, dt.time)):
        return item.isoformat()
    return item


def check_content_size(what: str, size: int, most: int, remedy: str = "") -> None:
    """Check that a content fits into a column.

    what: names the content. remedy: an alternative to raising the limit.
    Raises: LimitExceeded: it is larger than `most`.
    """
    if size > most:
        raise LimitExceeded(
            f"{what} has {size} bytes, and maxContentBytes is {most}: raise it (up to "
            f"{CONTENT_BYTES_LIMIT}){remedy}"
        )


def bytes_range(content: bytes | Blob, start: int, stop: int) -> bytes:
    """Return the bytes `start` .. `stop - 1` of a content without loading the rest."""
    return content[start:stop] if isinstance(content, bytes) else content.read(start, stop)


def name_text(name: Value) -> str:
    """Return a name as text: a String unchanged, any other value as it is printed.

    A public key is printed as 0x and hex. A String that is not UTF-8 is printed as well, because a
    column cannot hold it. Its printed form differs from every other name.
    """
    # Nearly every name is ASCII, and Python checks that without reading the string.
    if isinstance(name, str) and (name.isascii() or _is_text(name)):
        return name
    return to_text(name)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
