"""Logs: events with a name and fields, one line each, as text or JSON.

    peer-lost address=10.0.0.7:18888 reason="closed by the peer"

Names and fields of events are stable; docs/node.md lists them. An event is an ordinary record of
the logger `datalattice.node`, so a program that embeds a node can handle it in its own way. If one
peer repeats an event, the first few are logged, and later ones only counted.

Source: docs/node.md "Operations".
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TextIO

REPEATS_MAX: Final = 5  # records of one kind and peer logged in `REPEAT_S`; more are counted
REPEAT_S: Final = 60.0
REPEATED_MAX: Final = 256  # kinds and peers counted apart: strangers must not fill the memory

# Field values that need no quotes in a text line.
_PLAIN: Final = re.compile(r"[\w.:/\[\]@+-]+", re.ASCII)

_log = logging.getLogger("datalattice.node")


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event; its text is one line."""

    name: str
    fields: dict[str, object]

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{key}={_text(v)}" for key, v in self.fields.items())))


def _text(value: object) -> str:
    """Return a field's value as one word, quoted as in JSON if it has other characters."""
    text = value if isinstance(value, str) else json.dumps(_plain(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _plain(value: object) -> object:
    """Return a value that JSON has. Bytes are hashes and keys: they become hex."""
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def log_event(level: int, name: str, **fields: object) -> None:
    """Log an event; fields that are None are left out."""
    if _log.isEnabledFor(level):  # debug events are many: no work for them unless wanted
        kept = {key: _plain(value) for key, value in fields.items() if value is not None}
        _log.log(level, "%s", LoggedEvent(name, kept))


class _OneLine(logging.Formatter):
    """Formats each record as one line: text, or a JSON object."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        when = when.replace("+00:00", "Z")
        level = record.levelname.lower()
        event = _event_of(record)
        if record.exc_info:  # a traceback becomes a field: one record, one line
            event.fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            head = {"time": when, "level": level, "event": event.name}
            # `head` twice: it comes first, and no field of the event replaces it.
            return json.dumps({**head, **event.fields, **head})
        return f"{when} {level} {event}"


def _event_of(record: logging.LogRecord) -> LoggedEvent:
    """Return the event of a record; a record without one becomes the event `message`."""
    event = record.args[0] if isinstance(record.args, tuple) and record.args else None
    if isinstance(event, LoggedEvent):
        return LoggedEvent(event.name, dict(event.fields))
    return LoggedEvent("message", {"logger": record.name, "text": record.getMessage()})


@contextmanager
def logging_to(stream: TextIO, level: str, format: str) -> Iterator[None]:
    """Write all records of `datalattice` to `stream` while the block runs."""
    logger = logging.getLogger("datalattice")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine(format == "json"))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False  # else a program's root logger would print each line again
    set_level(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def set_level(level: str) -> None:
    """Log records of `level`, one of `LOG_LEVELS`, and of graver levels from now on."""
    logging.getLogger("datalattice").setLevel(level.upper())


@dataclass(slots=True)
class _RepeatCount:
    since_s: float
    count: int = 0


@dataclass(slots=True)
class Repeats:
    """Decides which of many similar events are logged. Not thread-safe."""

    now_s: Callable[[], float]
    _counts: dict[tuple[str, str], _RepeatCount] = field(default_factory=dict)

    def admit(self, kind: str, peer: str) -> int | None:
        """Return how many were not logged before this one; None: do not log this one."""
        now_s = self.now_s()
        key = (kind, peer)
        if key not in self._counts and len(self._counts) >= REPEATED_MAX:
            self._forget(now_s)
            if len(self._counts) >= REPEATED_MAX:
                key = ("", "")  # all further kinds and peers share one count
        run = self._counts.get(key)
        if run is None or now_s - run.since_s >= REPEAT_S:
            unlogged = 0 if run is None else max(0, run.count - REPEATS_MAX)
            self._counts[key] = _RepeatCount(now_s, 1)
            return unlogged
        run.count += 1
        return 0 if run.count <= REPEATS_MAX else None

    def _forget(self, now_s: float) -> None:
        """Forget quiet kinds and peers."""
        # Twice the time, so that a count that was not logged yet is still there for the next line.
        for key in [k for k, run in self._counts.items() if now_s - run.since_s >= 2 * REPEAT_S]:
            del self._counts[key]
