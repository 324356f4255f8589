"""Forks of a log: which records the other branch holds, and how they are appended again.

A log has one writer. When two devices append at the same offsets, one branch stays and the records
of the other one are kept as evidence. Appending them writes a mark into the queue's metadata, so
that it happens once and every node can see that it did.

Source: docs/design/forks.md "Queues".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from datalattice.apps.queue.entries import (
    entry_headers,
    entry_key,
    entry_value,
    is_entry,
    make_entry,
)
from datalattice.apps.queue.metadata import put_metadata
from datalattice.apps.queue.state import QueueState, read_state, write_state
from datalattice.cells import EMPTY_MAP, Keyword, Map, Value, Vector, same, value_hash
from datalattice.lattice import as_integer

FORK: Final = Keyword("fork")
FORKED: Final = Keyword("forked")
HEADERS: Final = Keyword("headers")


class LogBranch(NamedTuple):
    """A branch of a log that a join left out.

    Shapes: state: the losing state. first: the first offset at which it differs from the log.
            cell_hash: of the Signed cell that it came in.
    """

    state: QueueState
    first: int
    cell_hash: bytes

    def tail(self) -> list[Value]:
        """Return the records that the log does not have, in order of their offsets.

        Source: docs/design/forks.md "Queues".
        """
        state = self.state
        return state.entries.to_list(max(self.first - state.start, 0))

    @property
    def begin(self) -> int:
        """The offset that the first of these records had.

        Source: docs/design/forks.md "Queues".
        """
        return max(self.first, self.state.start)

    def mark(self, at: int = 0) -> Vector:
        """Return the metadata key under which a log says where it has the tail again from `at` on.

        Source: docs/design/forks.md "Queues".
        """
        offset = self.begin + at
        return Vector.of((FORK, offset, value_hash(self.state.entries[offset - self.state.start])))


def append_branch(value: Value, branch: LogBranch, now_ms: int) -> tuple[Value, range]:
    """Return the state of a log with a branch's records at its end, and the offsets they got.

    Only those that it does not have yet: the branch may have written on since some were appended.
    The very same value, and no offsets, when its marks lead to all of them.

    Units:  now_ms: Unix milliseconds.
    Source: docs/design/forks.md "Queues".
    """
    state = read_state(value)
    tail = branch.tail()
    done = _appended_count(state, branch, tail)
    if done == len(tail):
        return value, range(0)
    start = state.end
    records = [
        make_entry(
            entry_key(record),
            entry_value(record),
            now_ms,
            _headers(record, branch.begin + at, branch.cell_hash),
        )
        for at, record in enumerate(tail[done:], done)
    ]
    place = Vector.of((start, len(records)))
    meta = put_metadata(state.meta, branch.mark(done), place, now_ms)
    made = state._replace(
        entries=state.entries.extend(records), meta=meta, stamp_ms=max(now_ms, state.stamp_ms)
    )
    return write_state(made), range(start, start + len(records))


def _headers(record: Value, offset: int, cell_hash: bytes) -> Map:
    """Return the old headers with where the record came from; others than a Map go below it."""
    given = record[3] if isinstance(record, Vector) and is_entry(record) else record
    headers = entry_headers(record)
    if given is not None and not isinstance(given, Map):
        headers = EMPTY_MAP.put(HEADERS, given)
    time = record[2] if isinstance(record, Vector) and is_entry(record) else None
    return headers.put(FORKED, Vector.of((offset, time, cell_hash)))


def is_appended(log: QueueState, branch: LogBranch) -> bool:
    """Return whether a log has all records of a branch again, or has let them go.

    Each record is looked at where a mark says that it is, so the owner need not be trusted.

    Source: docs/design/forks.md "Queues".
    """
    records = branch.tail()
    return bool(records) and _appended_count(log, branch, records) == len(records)


def _appended_count(log: QueueState, branch: LogBranch, records: list[Value]) -> int:
    """Return how many of a branch's records, from its first one on, are found by marks of a log."""
    done = 0
    while done < len(records):
        found = _found_count(log, log.meta.values.get(branch.mark(done)), records, done)
        if not found:
            break
        done += found
    return done


def _found_count(log: QueueState, noted: Value, records: list[Value], first: int) -> int:
    """Return how many records from `first` on a log has, or has let go, where a mark says."""
    if not isinstance(noted, Vector) or len(noted) != 2:
        return 0
    start, count = as_integer(noted[0]), as_integer(noted[1])
    if start is None or count is None:
        return 0
    stop = min(max(count, 0), len(records) - first)
    for at in range(stop):
        record, offset = records[first + at], start + at
        if offset < log.start:
            continue  # it was appended and truncated since
        if offset >= log.end:
            return at
        kept = log.entries[offset - log.start]
        is_same = same(entry_key(kept), entry_key(record))
        if not is_same or not same(entry_value(kept), entry_value(record)):
            return at
    return stop
