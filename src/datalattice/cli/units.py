"""Units: durations, times and sizes on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from datalattice.errors import UsageError

_UNITS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
# At most nine digits, because more would overflow the time to which the duration is added.
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d|w)?")


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as `90s`; a plain number is seconds.

    Raises: UsageError: the text is malformed.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"a duration is a number and ms, s, m, h, d or w, such as 10m; got {text!r}"
        )
    # "without a unit it is seconds" (docs/cli.md "Options of every command")
    return round(float(found[1]) * _UNITS[found[2] or "s"])


def duration_s(text: str) -> float:
    """Return the seconds of a duration. Raises: UsageError: the text is malformed."""
    return duration_ms(text) / 1_000


def duration_text(span_ms: int) -> str:
    """Return a duration as options take it, with three digits or more and a unit: `88.7s`."""
    # A unit is used from two of it on: 90s, not 1.5m; seconds from one on: 1.45s, not 1450ms.
    least = (("d", 2), ("h", 2), ("m", 2), ("s", 1), ("ms", 0))
    unit = next(name for name, count in least if span_ms >= count * _UNITS[name])
    count = span_ms / _UNITS[unit]
    return f"{count:.3g}{unit}" if count < 999.5 else f"{count:.0f}{unit}"


def time_ms(text: str, now_ms: int) -> int:
    """Return the Unix milliseconds of a time: ISO 8601, or how long ago: `2h ago` or `2h`.

    Raises: UsageError: the text is neither.
    """
    from datalattice.store import parse_time

    # The store's parser also reads `--as-of`, so both options take the same times.
    return parse_time(text.removesuffix(" ago"), now_ms)


def reference(text: str) -> str:
    """Return a name of a root as the store reads it: `2h ago` becomes `@2h`."""
    return f"@{text.removesuffix(' ago').lstrip('@')}" if text.endswith(" ago") else text


def moment_text(stamp_ms: object) -> str:
    """Return Unix milliseconds as a time in UTC; those out of its range as `N ms`."""
    if not isinstance(stamp_ms, int):
        return ""
    try:
        return datetime.fromtimestamp(stamp_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return f"{stamp_ms} ms"  # a writer may have set any 64-bit number


def size_text(count: float) -> str:
    """Return a number of bytes for people: three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":  # 999.5 and more would be rounded to 1000
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"
        count /= 1_000
    raise AssertionError(count)
