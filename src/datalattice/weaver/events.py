"""Events: what operations of a store made happen, for the subscribers of every process.

The process that applies an operation writes its events beside the state, so that others which have
the folder open find them in order. Nothing is written before the first subscription of a store, and
the newest 1,024 events are kept: a subscriber never blocks a writer, it skips.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from datalattice.engine import ReadTxn, WriteTxn
from datalattice.protobuf import Message

EVENTS: Final = "events"
"""Table of a store's events: number (8 bytes, big-endian) to message name, a zero byte, encoding.
The row of number 0 says that events are recorded."""

EVENTS_MAX: Final = 1_024
"""Most events that are kept for subscribers that are behind; beyond it the oldest are deleted."""


def has_begun(txn: ReadTxn) -> bool:
    """Return whether events of the store are recorded."""
    return txn.get(EVENTS, _key(0)) is not None


def begin(txn: WriteTxn) -> None:
    """Have events of the store recorded from now on."""
    txn.put(EVENTS, _key(0), b"")


def last_event(txn: ReadTxn) -> int:
    """Return the number of the newest event, 0 for none."""
    return next((_number(key) for key, _ in txn.scan(EVENTS, reverse=True)), 0)


def record(txn: WriteTxn, messages: Iterable[Message]) -> None:
    """Add events, if they are recorded, and drop the oldest beyond 1,024."""
    new = list(messages)
    if not new or not has_begun(txn):
        return
    # Events that are dropped at once have numbers, too: a subscriber counts what it missed.
    number = last_event(txn) + max(0, len(new) - EVENTS_MAX)
    for message in new[-EVENTS_MAX:]:
        number += 1
        txn.put(EVENTS, _key(number), message.full_name.encode() + b"\0" + message.encode())
    txn.delete_range(EVENTS, _key(1), _key(max(1, number - EVENTS_MAX + 1)))


def event_mark(txn: ReadTxn, number: int) -> bytes | None:
    """Return 8 bytes of an event's digest, None if the event is not kept.

    They tell it from the event that has this number in a folder that was set back.
    """
    row = txn.get(EVENTS, _key(number))
    return None if row is None else hashlib.sha256(row).digest()[:8]


def events_after(txn: ReadTxn, number: int, home: str) -> Iterator[tuple[int, Message | None]]:
    """Yield number and message of every event after `number`; None for a class unknown here.

    home: the module whose class is taken where several classes have the message's name.
    """
    classes: dict[bytes, type[Message] | None] = {}
    for key, row in txn.scan(EVENTS, _key(number + 1)):
        name, _, data = row.partition(b"\0")
        if name not in classes:
            classes[name] = _class_of(name.decode(), home)
        found = classes[name]
        yield _number(key), None if found is None else found.decode(data)


def _class_of(name: str, home: str) -> type[Message] | None:
    found = [one for one in _subclasses(Message) if getattr(one, "full_name", None) == name]
    return next((one for one in found if one.__module__ == home), found[-1] if found else None)


def _subclasses(above: type[Message]) -> Iterator[type[Message]]:
    for one in above.__subclasses__():
        yield one
        yield from _subclasses(one)


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")
