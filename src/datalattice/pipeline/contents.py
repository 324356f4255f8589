"""Contents: long byte strings as columns, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import Blob
from datalattice.errors import LimitExceeded
from datalattice.pipeline.options import Refused

CONTENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one column when `maxContentBytes` does not say otherwise. Longer contents are refused,
or come in chunks: a row is in memory several times over, in Python as in Java."""

CONTENT_BYTES_LIMIT: Final = 1024 * 1024 * 1024
"""The greatest `maxContentBytes`: Java has no byte arrays of more than twice this."""

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def bytes_option(most: int) -> Callable[[str], int]:
    """Return the parser of a number of bytes from 1 to `most`, with k, m or g as Spark has them."""

    def parse(text: str) -> int:
        number = text.lower().removesuffix("b").rstrip("kmg")
        unit = text.lower().removesuffix("b")[len(number) :]
        if not (number.isascii() and number.isdigit()) or len(number) > _DIGITS_MAX:
            raise Refused(accepted)
        if unit not in _UNITS or not 1 <= int(number) * _UNITS[unit] <= most:
            raise Refused(accepted)
        return int(number) * _UNITS[unit]

    accepted = f"a number of bytes from 1 to {most}, such as 65536, 64k or 16m"
    return parse


_DIGITS_MAX: Final = 19


def check_size(what: str, size: int, most: int, remedy: str = "") -> None:
    """Check that a content fits into a column.

    what: names it. remedy: what else to do than to raise the limit.
    Raises: LimitExceeded: it does not.
    """
    if size > most:
        raise LimitExceeded(
            f"{what} has {size} bytes, and maxContentBytes is {most}: raise it (up to "
            f"{CONTENT_BYTES_LIMIT}){remedy}"
        )


def part_of(content: bytes | Blob, start: int, stop: int) -> bytes:
    """Return the bytes of a content from `start` to before `stop`; the rest is not loaded."""
    return content[start:stop] if isinstance(content, bytes) else content.read(start, stop)
