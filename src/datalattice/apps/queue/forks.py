"""Forks of a log: find the records of the losing branch and append them again.

A log has one writer. If two devices append at the same offsets, a merge keeps one branch and keeps
the records of the other as evidence. Appending these writes a mark into the queue's metadata, so
that it happens once and every node can verify it.

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

_FORK: Final = Keyword("fork")  # "the metadata key [:fork F H]"
_FORKED: Final = Keyword("forked")
_HEADERS: Final = Keyword("headers")


class LogBranch(NamedTuple):
    """A branch of a log that lost a merge.

    Shapes: state: the losing state. first: the first offset at which it differs from the log.
            cell_hash: hash of the Signed cell that contained the state.
    """

    state: QueueState
    first: int
    cell_hash: bytes

    def tail(self) -> list[Value]:
        """Return the records that the log lacks, by offset."""
        state = self.state
        return state.entries.to_list(max(self.first - state.start, 0))

    @property
    def begin(self) -> int:
        """Offset of the first of these records in the losing branch."""
        return max(self.first, self.state.start)

    def mark(self, at: int = 0) -> Vector:
        """Return the key of the mark that says where the tail from `at` on was appended."""
        offset = self.begin + at
        # The hash names the branch: another branch from the same offset has another mark.
        return Vector.of((_FORK, offset, value_hash(self.state.entries[offset - self.state.start])))


def append_branch(value: Value, branch: LogBranch, now_ms: int) -> tuple[Value, range]:
    """Return the state of a log with a branch's records appended, and their new offsets.

    Records that the log's marks already account for are skipped; the branch may have grown since
    they were appended. If all are accounted for, `value` itself and an empty range are returned.

    Units:  now_ms: Unix milliseconds.
    """
    state = read_state(value)
    tail = branch.tail()
    done = _appended_count(state, branch, tail)
    if done == len(tail):  # no write, so nothing is signed
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
    location = Vector.of((start, len(records)))
    # In the state that has the records: no crash can leave records without their mark, which a
    # second call would then append again.
    meta = put_metadata(state.meta, branch.mark(done), location, now_ms)
    made = state._replace(
        # "timestamp := max(now, timestamp)"
        entries=state.entries.extend(records),
        meta=meta,
        stamp_ms=max(now_ms, state.stamp_ms),
    )
    return write_state(made), range(start, start + len(records))


def _headers(record: Value, offset: int, cell_hash: bytes) -> Map:
    """Return the record's headers and origin; headers other than a Map go below `:headers`."""
    given = record[3] if isinstance(record, Vector) and is_entry(record) else record
    headers = entry_headers(record)
    if given is not None and not isinstance(given, Map):  # they would be lost otherwise
        headers = EMPTY_MAP.put(_HEADERS, given)
    time = record[2] if isinstance(record, Vector) and is_entry(record) else None
    return headers.put(_FORKED, Vector.of((offset, time, cell_hash)))


def is_appended(log: QueueState, branch: LogBranch) -> bool:
    """Return whether a log has all records of a branch appended again, or truncated since.

    Each record is compared at the offset that a mark gives, so the owner need not be trusted.
    """
    records = branch.tail()
    return bool(records) and _appended_count(log, branch, records) == len(records)


def _appended_count(log: QueueState, branch: LogBranch, records: list[Value]) -> int:
    """Return how many of a branch's records, from the first on, the log's marks account for."""
    done = 0
    while done < len(records):
        found = _found_count(log, log.meta.values.get(branch.mark(done)), records, done)
        if not found:
            break
        done += found
    return done


def _found_count(log: QueueState, noted: Value, records: list[Value], first: int) -> int:
    """Return how many records from `first` on a log has, or had, at the offsets of a mark."""
    # A foreign value under the mark's key counts as no mark.
    if not isinstance(noted, Vector) or len(noted) != 2:
        return 0
    start, count = as_integer(noted[0]), as_integer(noted[1])
    if start is None or count is None:
        return 0
    stop = min(max(count, 0), len(records) - first)  # a mark may claim any count
    for at in range(stop):
        record, offset = records[first + at], start + at
        if offset < log.start:
            continue  # the record was appended and has been truncated since
        if offset >= log.end:
            return at
        kept = log.entries[offset - log.start]
        # Key and value alone: time and headers were replaced when it was appended again.
        is_same = same(entry_key(kept), entry_key(record))
        if not is_same or not same(entry_value(kept), entry_value(record)):
            return at
    return stop
