"""Jobs: records of work, their ids, states and times.

A record is a Map with text keys. A merge reads only `updated`. The venue gives every version a
later time than the one before, and never rewrites a job that has ended.

Source: COG-4 "Jobs"; docs/grid.md "Jobs", "What is checked", "Merge"; docs/design/forks.md "The
    order"; COG-8 "Job id", "Jobs"; docs/design/decisions.md "D1".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from datalattice.apps.grid.assets import parse_hex
from datalattice.cells import Map, Text, Value, Work, to_cell, value_hash
from datalattice.crypto import Entropy
from datalattice.errors import UsageError
from datalattice.lattice import (
    EMPTY_CONTEXT,
    UNTIMED,
    Element,
    Latest,
    Lattice,
    MergeContext,
    Walk,
    as_integer,
    contrast,
    element,
    greater,
    is_long,
    number_tail,
)
from datalattice.limits import INDEX_KEY_BYTES

ID: Final = "id"
STATUS: Final = "status"
UPDATED: Final = "updated"
CREATED: Final = "created"

PENDING: Final = "PENDING"
ACTIVE: Final = frozenset({PENDING, "STARTED"})
INTERACTIVE: Final = frozenset({"PAUSED", "INPUT_REQUIRED", "AUTH_REQUIRED"})
TERMINAL: Final = frozenset({"COMPLETE", "FAILED", "CANCELLED", "REJECTED", "TIMEOUT"})
JOB_STATUSES: Final = ACTIVE | INTERACTIVE | TERMINAL

JOB_ID_BYTES: Final = 16  # "Blob of 16 bytes"
_TIME_BYTES: Final = 6
JOB_TIME_MAX: Final = (1 << 8 * _TIME_BYTES) - 1
_COUNT_BYTES: Final = 2
_RANDOM_BYTES: Final = 8
JOB_COUNT_MAX: Final = (1 << 8 * _COUNT_BYTES) - 1
"""Greatest counter of jobs within one millisecond."""


def job_time(record: Value) -> int | None:
    """Return when a record was written, in Unix milliseconds.

    None, which counts as older than every time, unless the time is an Integer of 64 bits.
    """
    stamp = record.get(UPDATED) if isinstance(record, Map) else None
    # Booleans are excluded: "isinstance(True, int) is true"
    return as_integer(stamp) if is_long(stamp) else None


def job_element(record: Value) -> Element | None:
    """Return the element of a version in the order of forked venues; None without a record."""
    if record is None:
        return None
    time = job_time(record)
    # A time may be negative; a record without one is older than any other.
    tail = b"\x00" if time is None else b"\x01" + number_tail(time)
    return element(UNTIMED if time is None else max(time, UNTIMED), tail + value_hash(record))


def job_status(record: Value) -> str | None:
    """Return the status of a record, None if it has none."""
    status = record.get(STATUS) if isinstance(record, Map) else None
    return status if isinstance(status, str) else None


def is_job_entry(key: Value, record: Value, _work: Work | None = None) -> bool:
    """Return whether an entry of `:jobs` has a valid key and status, and its key as its id."""
    # Foreign ids may have another length, but an Index compares 32 bytes.
    if not isinstance(key, bytes) or not 0 < len(key) <= INDEX_KEY_BYTES:
        return False
    if not isinstance(record, Map) or not isinstance(record.get(STATUS), (str, Text)):
        return False
    if ID not in record:  # the id in a record may be missing
        return True
    named = record.get(ID)
    return named == key if isinstance(named, bytes) else parse_hex(named) == key


def parse_job_id(given: object) -> bytes:
    """Return a job id from its bytes (1 to 32) or their hex, with or without 0x.

    Raises: UsageError: it has another form.
    """
    found = given if isinstance(given, bytes) else parse_hex(given)
    if found is None or not 0 < len(found) <= INDEX_KEY_BYTES:
        raise UsageError(f"a job id is not 1 to {INDEX_KEY_BYTES} bytes, or their hex: {given!r}")
    return found


def make_job_id(now_ms: int, last: bytes | None, entropy: Entropy) -> bytes:
    """Return an id for a new job, later in order than `last`.

    Layout: 6 bytes of Unix milliseconds, 2 of a counter, 8 random ones, big-endian.
    Raises: UsageError: the time exceeds 48 bits.
    """
    count = 0
    if last is not None and len(last) == JOB_ID_BYTES:
        before_ms = int.from_bytes(last[:_TIME_BYTES], "big")
        if before_ms >= now_ms:  # the clock stands or went back: count on from the last id
            now_ms = before_ms
            count = 1 + int.from_bytes(last[_TIME_BYTES : _TIME_BYTES + _COUNT_BYTES], "big")
            if count > JOB_COUNT_MAX:  # the id takes the next millisecond
                now_ms, count = now_ms + 1, 0
    if now_ms > JOB_TIME_MAX:
        # The time is 6 bytes.
        raise UsageError(f"a job id has times up to {JOB_TIME_MAX} ms, the clock shows {now_ms} ms")
    return (
        now_ms.to_bytes(_TIME_BYTES, "big")
        + count.to_bytes(_COUNT_BYTES, "big")
        # They tell apart ids that two writers with one key make in the same millisecond.
        + entropy.bytes(_RANDOM_BYTES)
    )


def job_members(members: Mapping[str, Any]) -> Map:
    """Return the members of a job record as cells.

    Raises: UsageError: it is not a mapping of names, has a member that only the venue writes, or an
            unknown status.
    """
    given: object = members
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UsageError("`members` is not a mapping of names to values")
    for name in (ID, CREATED, UPDATED):
        # "every write of a job sets updated to max(now, previous + 1)": callers cannot.
        if name in members:
            raise UsageError(f"the member {name!r} of a job record is written by the venue alone")
    status = members.get(STATUS, PENDING)
    if status not in JOB_STATUSES:  # a job with an unknown status would never end
        raise UsageError(f"`status` is not one of {', '.join(sorted(JOB_STATUSES))}: {status!r}")
    record = to_cell(dict(members))
    assert isinstance(record, Map)
    return record


class JobLattice(Lattice):
    """One job: the version with the later `updated` wins."""

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the later of two versions."""
        if other is None or own is other:
            return own
        if own is None:
            return other
        mine, theirs = job_time(own), job_time(other)
        # "If both are equally old, the greater value hash stays" (docs/grid.md "Merge").
        if mine == theirs:
            return greater(own, other)
        # A record without a time "is older than any other" (docs/grid.md "Merge").
        if mine is None or (theirs is not None and theirs > mine):
            return other
        return own

    def has_order(self) -> bool:
        """Return True."""
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return time and hash of each version."""
        return contrast(job_element(own), job_element(other))

    def check_foreign(self, value: Value) -> bool:
        """Return True: the collection checks its entries."""
        return True
