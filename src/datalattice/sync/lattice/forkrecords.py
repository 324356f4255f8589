"""Fork records: a branch of a slot that a node did not choose, as it is stored.

Source: docs/design/forks.md "Evidence".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.apps.queue import LogBranch, read_state
from datalattice.cells import EMPTY_VECTOR, Index, Keyword, Map, Signed, Value, Vector, value_hash
from datalattice.lattice import OwnerForked, ValuePath, as_integer, get_in, local_value

FORKS_KEY: Final = Keyword("forks")
RECORDS: Final = Keyword("records")
DROPPED: Final = Keyword("dropped")

PATH: Final = Keyword("path")
OWNER: Final = Keyword("owner")
_KIND: Final = Keyword("kind")
_CELLS: Final = Keyword("cells")
LOGS: Final = Keyword("logs")
SEEN: Final = Keyword("seen")
_BYTES: Final = Keyword("bytes")

LOG_STEPS: Final = 3
"""Keys from a slot's value to a partition: topic, `:partitions`, id."""


@dataclass(frozen=True, slots=True)
class LogLoss:
    """Records of one partition that a join left out: from `first` to before `end`."""

    topic: Value
    partition: Value
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ForkRecord:
    """One branch that is not in its slot.

    branch: "owner" (the values were not joined) or "log" (a join left out records).
    winner: the Signed cell that was in the slot when the fork was seen.
    loser:  the other one, None if it was too large to be kept.
    bytes:  of cells that only the loser has; negative when they are not kept.
    proof:  of a loser that is not kept: its key, signature and value hash.
    """

    id: bytes
    path: ValuePath
    owner: Value
    branch: str
    winner: Signed
    loser: Signed | None
    logs: tuple[LogLoss, ...]
    seen_ms: int
    bytes: int
    proof: Value = None

    def cell(self) -> Map:
        """Return the record as it is stored."""
        logs = [Vector.of((one.topic, one.partition, one.first, one.end)) for one in self.logs]
        # "`:cells` (the winner and the loser)"; of a large loser its proof alone.
        loser = self.proof if self.loser is None else self.loser
        return Map.of(
            [
                (PATH, Vector.of(self.path)),
                (OWNER, self.owner),
                (_KIND, Keyword(self.branch)),
                (_CELLS, Vector.of((self.winner, loser))),
                (LOGS, Vector.of(logs)),
                (SEEN, self.seen_ms),
                (_BYTES, self.bytes),
            ]
        )

    def log_branches(self) -> Iterator[tuple[LogLoss, LogBranch]]:
        """Yield the branches of logs that the losing cell has and the slot lacks."""
        if self.loser is not None:
            for one in self.logs:
                state = read_state(partition_of_slot(self.loser.value, one))
                # The log's writer may have deleted the first of them since.
                if state.start <= one.first < state.end:
                    yield one, LogBranch(state, one.first, value_hash(self.loser))


def partition_of_slot(value: Value, log: LogLoss) -> Value:
    """Return the state of a loss's partition in the value of a slot."""
    return get_in(value, [log.topic, Keyword("partitions"), log.partition])


def fork_id(path: ValuePath, loser: Signed) -> bytes:
    """Return the id of the record of a losing cell at a path."""
    return value_hash(Vector.of((Vector.of(path), value_hash(loser))))


def _read_record(id: Value, cell: Value) -> ForkRecord | None:
    """Return a stored record, None if it is malformed."""
    if not isinstance(cell, Map) or not isinstance(id, bytes):
        return None
    path, cells, kind = cell.get(PATH), cell.get(_CELLS), cell.get(_KIND)
    seen, size, logs = as_integer(cell.get(SEEN)), as_integer(cell.get(_BYTES)), cell.get(LOGS)
    if not (isinstance(path, Vector) and isinstance(cells, Vector) and len(cells) == 2):
        return None
    winner, loser = cells[0], cells[1]
    if not (isinstance(winner, Signed) and isinstance(kind, Keyword) and isinstance(logs, Vector)):
        return None
    if seen is None or size is None:
        return None
    # A malformed loss is skipped: the branch itself is what counts.
    losses = [_read_loss(log) for log in logs]
    return ForkRecord(
        id,
        tuple(path),
        cell.get(OWNER),
        kind.name,
        winner,
        loser if isinstance(loser, Signed) else None,
        tuple(one for one in losses if one is not None),
        seen,
        size,
        None if isinstance(loser, Signed) else loser,
    )


def _read_loss(log: Value) -> LogLoss | None:
    if not isinstance(log, Vector) or len(log) != 4:
        return None
    first, end = as_integer(log[2]), as_integer(log[3])
    return None if first is None or end is None else LogLoss(log[0], log[1], first, end)


def losses_of(report: OwnerForked) -> tuple[LogLoss, ...]:
    """Return the losses in a report's logs, by topic and partition."""
    found = []
    for log in report.logs:
        below = log.path[len(report.path) + 1 :]  # after the step into the signed value
        if len(below) == LOG_STEPS:
            found.append(LogLoss(below[0], below[2], log.offset, log.lost_end))
    return tuple(found)


def stored_forks(
    root: Value, public_key: bytes
) -> tuple[dict[bytes, ForkRecord], tuple[bytes, ...]]:
    """Return the records below the `:local` slot of a key, and the ids of dropped ones.

    Raises: BadSignature: the slot is not signed by that key.
    """
    held = local_value(root, public_key, FORKS_KEY)
    if not isinstance(held, Map):
        return {}, ()
    records, dropped = held.get(RECORDS), held.get(DROPPED)
    found: dict[bytes, ForkRecord] = {}
    if isinstance(records, Index):
        for id, cell in records.entries():
            record = _read_record(id, cell)
            if record is not None:
                found[record.id] = record
    ids = dropped if isinstance(dropped, Vector) else EMPTY_VECTOR
    return found, tuple(id for id in ids if isinstance(id, bytes))
