"""Offering: the records of `lattice queue offer`, from its arguments or from standard input.

Lines of a pipe are grouped into commits as they arrive: a batch is written when it has `BATCH`
records or `BATCH_LENGTH` characters, or when its first record has waited for `_PAUSE_S`.
"""

from __future__ import annotations

import codecs
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from datalattice.cells import Blob, Text, Value
from datalattice.cli.values import parse_value
from datalattice.errors import UsageError

BATCH: Final = 1_000  # one signature and one sync for all of them
"""Most records of one commit."""

BATCH_LENGTH: Final = 4_000_000  # limits the memory for a fast pipe
"""Characters or bytes after which a commit gets no more records."""

_PAUSE_S: Final = 0.2  # short for a person, long enough to group a pipe
"""Longest time that a record of a pipe waits for others of its commit."""

# The default capacity of a pipe on Linux, so that one read can empty it.
_READ_BYTES: Final = 1 << 16


class Pause:
    """A mark in the input: no line came for `_PAUSE_S`."""


def values_of(given: list[str] | None, form: str) -> Iterator[Value | Pause]:
    """Return the values of the arguments, or else of standard input, as they arrive."""
    if given:
        # All are parsed before the first is written: one wrong argument appends nothing.
        return iter([parse_value(value, form) for value in given])
    return _parsed(form)


def _parsed(form: str) -> Iterator[Value | Pause]:
    number = 0
    for line in _lines():
        if line is None:
            yield Pause()
            continue
        number += 1
        try:
            yield parse_value(line.rstrip("\r\n"), form)
        except UsageError as error:
            raise UsageError(f"line {number} of standard input: {error}") from error


def _lines() -> Iterator[str | None]:
    """Yield the lines of standard input as they arrive, and None after each pause."""
    try:
        source = sys.stdin.fileno()
    except (OSError, ValueError):  # in tests and notebooks it is not a file of the system
        yield from sys.stdin
        return
    decode = codecs.getdecoder(sys.stdin.encoding)
    pieces: list[bytes] = []
    while True:
        if not select.select([source], [], [], _PAUSE_S)[0]:
            yield None
            continue
        data = os.read(source, _READ_BYTES)
        # Split before decoding, because a character may span two reads.
        *ended, rest = data.split(b"\n")
        for line in ended:
            yield decode(b"".join((*pieces, line)), sys.stdin.errors or "strict")[0]
            pieces.clear()
        pieces.append(rest)
        if not data:
            if last := b"".join(pieces):  # a last line without a line end
                yield decode(last, sys.stdin.errors or "strict")[0]
            return


def batches(
    values: Iterable[Value | Pause], now_s: Callable[[], float] = time.monotonic
) -> Iterator[list[Value]]:
    """Group values into commits, limited in records, length and waiting time."""
    batch: list[Value] = []
    length = 0
    began_s = 0.0
    for value in values:
        # A pause ends no batch by itself. It lets the waiting time be checked while no line comes.
        if not isinstance(value, Pause):
            if not batch:
                began_s = now_s()
            batch.append(value)
            length += len(value) if isinstance(value, (str, bytes, Text, Blob)) else 0
        is_full = len(batch) == BATCH or length >= BATCH_LENGTH
        if batch and (is_full or now_s() - began_s >= _PAUSE_S):
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def offsets_text(ranges: list[range]) -> str:
    """Return the offsets of batches as text; other writers' records may be between two batches."""
    joined: list[range] = []
    for one in ranges:
        if joined and joined[-1].stop == one.start:
            joined[-1] = range(joined[-1].start, one.stop)
        else:
            joined.append(one)
    texts = [f"{one.start} to {one.stop - 1}" if len(one) > 1 else f"{one.start}" for one in joined]
    return ("offset " if texts == [f"{ranges[0].start}"] else "offsets ") + ", ".join(texts)
