"""Size limits of byte strings in columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import Blob
from datalattice.errors import LimitExceeded
from datalattice.pipeline.options import Refused

CONTENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Default of `maxContentBytes`. A row is in memory several times, in Python and in Java, so longer
contents are refused or read in chunks."""

CONTENT_BYTES_LIMIT: Final = 1024 * 1024 * 1024
"""Greatest `maxContentBytes`, half of the longest byte array in Java."""

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def bytes_option(most: int) -> Callable[[str], int]:
    """Return the parser of a byte count from 1 to `most`, with Spark's suffixes k, m and g."""

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

    what: names the content. remedy: an alternative to raising the limit.
    Raises: LimitExceeded: it is larger than `most`.
    """
    if size > most:
        raise LimitExceeded(
            f"{what} has {size} bytes, and maxContentBytes is {most}: raise it (up to "
            f"{CONTENT_BYTES_LIMIT}){remedy}"
        )


def part_of(content: bytes | Blob, start: int, stop: int) -> bytes:
    """Return the bytes `start` .. `stop - 1` of a content without loading the rest."""
    return content[start:stop] if isinstance(content, bytes) else content.read(start, stop)
