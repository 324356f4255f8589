"""Refs: names of roots: a hash, a pin, or a time at which it was the root.

    HEAD                        the present root
    HEAD~2                      the root two entries of the history before it
    release                     a pin
    @2026-03-01T12:00:00Z       the root at a time, as far as the history goes back
    @10m                        the root ten minutes ago (s, m, h, d, w)
    0x5fd924625f6ab16a...       a hash, or the beginning of one in the pins or the history

A pin takes precedence over the beginning of a hash; `0x` marks a hash.

Source: docs/history.md.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Protocol

from datalattice.clock import Clock
from datalattice.errors import UsageError
from datalattice.limits import HASH_BYTES
from datalattice.store.kept.history import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, History
from datalattice.store.kept.pins import Pins

PREFIX_DIGITS_MIN: Final = 4
"""Least number of hex digits that name a hash by its beginning."""

_BACK: Final = re.compile(r"HEAD(?:~([0-9]{1,9}))?")
_AGO: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d|w)")
_HEX: Final = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_UNITS: Final = {
    "ms": 1,
    "s": SECOND_MS,
    "m": MINUTE_MS,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": 7 * DAY_MS,
}


class ResolvableStore(Protocol):
    """A store, as `resolve_ref` uses it."""

    clock: Clock
    history: History
    pins: Pins

    @property
    def path(self) -> str | None:
        """Where the store is; None: in memory."""
        ...

    def root_hash(self) -> bytes | None:
        """Return the hash of the present root."""
        ...

    def has(self, hash: bytes) -> bool:
        """Return whether a cell is here."""
        ...


def parse_time(text: str, now_ms: int) -> int:
    """Return the Unix milliseconds of a time: ISO 8601, Unix milliseconds, or a duration ago.

    The default zone is UTC, the default time of day midnight.
    Raises: UsageError: it is none of these.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNITS[ago[2]]
    # Shorter numbers are dates of ISO 8601 such as 20260301.
    if text.isascii() and text.isdigit() and len(text) > 8:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        # In whole numbers: a float of seconds, times 1,000, may be cut to the millisecond before.
        since = found - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * SECOND_MS + since.microseconds // 1_000
    except (ValueError, OverflowError):
        raise UsageError(
            f"a time is ISO 8601 such as 2026-03-01T12:00:00Z or 2026-03-01, how long ago such as "
            f"10m (ms, s, m, h, d, w), or Unix milliseconds, got {text!r}"
        ) from None


def time_text(time_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds; `parse_time` takes it back."""
    # A wrong clock may have written a time beyond the years that `datetime` has.
    try:
        found = datetime.fromtimestamp(time_ms // SECOND_MS, UTC)
    except (ValueError, OverflowError):
        return f"{time_ms} ms"
    return f"{found:%Y-%m-%dT%H:%M:%S}.{time_ms % SECOND_MS:03d}Z"


def resolve_ref(store: ResolvableStore, text: str) -> bytes:
    """Return the hash of the root that `text` names; see the module.

    Raises: UsageError: it names no root, or several.
    """
    back = _BACK.fullmatch(text)
    if back is not None:
        return _go_back(store, int(back[1] or 0))
    # git writes a time as `@{...}`, which is taken, too.
    if text.startswith("@"):
        return moment_at(store, parse_time(text[1:].strip("{}"), store.clock.now_ms()))
    # No pin has a name that begins with 0x (`kept.pins.check_name`).
    pin = None if text.startswith("0x") else store.pins.get(text)
    if pin is not None:
        return pin.root_hash
    digits = text.removeprefix("0x").lower()
    if not _HEX.fullmatch(text) or not PREFIX_DIGITS_MIN <= len(digits) <= 2 * HASH_BYTES:
        raise UsageError(
            f"there is no pin {text!r}; name one, HEAD, HEAD~1, @TIME, or a hash by at least "
            f"{PREFIX_DIGITS_MIN} hex digits"
        )
    # A hash in full names any value of the store, also one that was never a root.
    if len(digits) == 2 * HASH_BYTES:
        hash = bytes.fromhex(digits)
        if not store.has(hash):
            raise UsageError(f"there is no value 0x{digits} in {_name(store)}")
        return hash
    return _complete(store, digits)


def _name(store: ResolvableStore) -> str:
    return store.path or "the store in memory"


def _go_back(store: ResolvableStore, steps: int) -> bytes:
    root = store.root_hash()
    if root is None:
        raise UsageError(f"{_name(store)}: nothing was ever committed here, so there is no HEAD")
    if not steps:
        return root
    before = [entry.root_hash for entry in store.history.entries()]
    # The last entry is usually the present root itself, which HEAD~0 names.
    if before and before[-1] == root:
        before.pop()
    if steps > len(before):
        raise UsageError(f"HEAD~{steps}: the history goes back to HEAD~{len(before)}")
    return before[-steps]


def moment_at(store: ResolvableStore, time_ms: int) -> bytes:
    """Return the hash of the root at a time.

    Raises: UsageError: the history begins later.
    """
    found = store.history.at(time_ms)
    if found is None:
        entries = store.history.entries()
        begins = f"begins at {time_text(entries[0].time_ms)}" if entries else "is empty"
        raise UsageError(f"nothing is known of {time_text(time_ms)}: the history {begins}")
    return found.root_hash


def _complete(store: ResolvableStore, digits: str) -> bytes:
    # Only roots are searched: a store has too many cells to search them by their first digits.
    known = [pin.root_hash for pin in store.pins.all()]
    known += [entry.root_hash for entry in store.history.entries()]
    root = store.root_hash()
    found = {hash for hash in [*known, *([root] if root else [])] if hash.hex().startswith(digits)}
    # A shortened hash must name exactly one root: a command must not act on another one.
    if len(found) == 1:
        return found.pop()
    if not found:
        raise UsageError(
            f"no pin and no root of the history begins with {digits!r}; "
            "give all 64 digits of any other hash"
        )
    raise UsageError(f"{len(found)} roots begin with {digits!r}; give more digits")
