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

    def mark(self) -> Vector:
        """Return the metadata key under which a log says that it has the records again.

        Source: docs/design/forks.md "Queues".
        """
        at = self.first - self.state.start
        return Vector.of((FORK, self.first, value_hash(self.state.entries[at])))


def append_branch(value: Value, branch: LogBranch, now_ms: int) -> tuple[Value, range]:
    """Return the state of a log with a branch's records at its end, and the offsets they got.

    The very same value, and no offsets, when its mark says that it was done before.

    Units:  now_ms: Unix milliseconds.
    Source: docs/design/forks.md "Queues".
    """
    state = read_state(value)
    mark = branch.mark()
    if mark in state.meta.values:
        return value, range(0)
    start = state.end
    records = [
        make_entry(
            entry_key(record),
            entry_value(record),
            now_ms,
            _headers(record, branch.first + at, branch.cell_hash),
        )
        for at, record in enumerate(branch.tail())
    ]
    meta = put_metadata(state.meta, mark, Vector.of((start, len(records))), now_ms)
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

    Each record is looked at where the mark says that it is, so the owner need not be trusted.

    Source: docs/design/forks.md "Queues".
    """
    records = branch.tail()
    noted = log.meta.values.get(branch.mark()) if records else None
    if not isinstance(noted, Vector) or len(noted) != 2:
        return False
    start, count = as_integer(noted[0]), as_integer(noted[1])
    if start is None or count != len(records):
        return False
    for at, record in enumerate(records):
        offset = start + at
        if offset < log.start:
            continue  # it was appended and truncated since
        if offset >= log.end:
            return False
        kept = log.entries[offset - log.start]
        if not same(entry_key(kept), entry_key(record)):
            return False
        if not same(entry_value(kept), entry_value(record)):
            return False
    return True
