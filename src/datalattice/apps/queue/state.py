"""State: the value of one partition and the pure functions on it.

A state is the Vector `[entries, metadata, time of the last change, start offset]`; further
elements are kept and not interpreted. Offsets are absolute: `start` is the offset of the first
entry that was not truncated. A nil element reads as its zero, and a value other than a queue state
as the zero state. Only the owner can have written such a value, because it is inside a signed cell.

Source: CAD040 "checkForeign", "Queue", "offer", "setMeta", "truncate"; docs/queue.md "What
    foreigners may send", "State", "Merge", "Appending", "Metadata", "Truncation", "Reading";
    docs/design/decisions.md "D2".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from datalattice.apps.queue.entries import NewRecords
from datalattice.apps.queue.metadata import (
    EMPTY_METADATA,
    Metadata,
    is_metadata,
    metadata_from,
    put_metadata,
    same_metadata,
    write_metadata,
)
from datalattice.cells import EMPTY_MAP, EMPTY_VECTOR, Value, Vector, same
from datalattice.errors import UsageError
from datalattice.lattice import is_long

_ENTRIES: Final = 0
_META: Final = 1
_STAMP: Final = 2
_START: Final = 3
STATE_COUNT: Final = 4

STATE_COUNT_MAX: Final = 256
"""Most elements of a state. A dozen cells can encode a Vector of any length, and a merge keeps all
elements."""

_OFFSET_MAX: Final = 2**63 - 1


class QueueState(NamedTuple):
    """The elements of a partition's state, with nil replaced by zeros."""

    entries: Vector
    meta: Metadata
    stamp_ms: int
    start: int
    extra: tuple[Value, ...] = ()

    @property
    def end(self) -> int:
        """Offset of the next record to be appended."""
        return self.start + len(self.entries)


EMPTY_STATE: Final = QueueState(EMPTY_VECTOR, EMPTY_METADATA, 0, 0)
ZERO_STATE: Final = Vector.of((EMPTY_VECTOR, EMPTY_MAP, 0, 0))


def is_foreign_state(value: Value) -> bool:
    """Return whether a peer's queue state has the right shape for a merge."""
    if not isinstance(value, Vector) or not STATE_COUNT <= len(value) <= STATE_COUNT_MAX:
        return False
    entries, meta, stamp_ms, start = value.to_list(0, STATE_COUNT)
    return (
        _is_offset(stamp_ms)
        and _is_offset(start)
        and (entries is None or isinstance(entries, Vector))
        and (meta is None or is_metadata(meta))
    )


def _is_offset(value: Value) -> bool:
    # `type`, because a bool is an instance of int.
    return type(value) is int and 0 <= value <= _OFFSET_MAX


def read_state(value: Value) -> QueueState:
    """Return the elements of a queue state; nil elements and other values read as zero."""
    # "Nil at a position reads as its zero, and a value of another shape as the empty queue"
    # (docs/queue.md "State").
    if not isinstance(value, Vector) or not STATE_COUNT <= len(value) <= STATE_COUNT_MAX:
        return EMPTY_STATE
    entries, meta, stamp_ms, start, *extra = value.to_list()
    if not (stamp_ms is None or _is_offset(stamp_ms)) or not (start is None or _is_offset(start)):
        return EMPTY_STATE
    return QueueState(
        entries if isinstance(entries, Vector) else EMPTY_VECTOR,
        metadata_from(meta),
        stamp_ms if isinstance(stamp_ms, int) else 0,
        start if isinstance(start, int) else 0,
        tuple(extra),  # "kept from own and not interpreted"
    )


def write_state(state: QueueState) -> Vector:
    """Return the Vector of a state: four elements and the uninterpreted ones."""
    meta = write_metadata(state.meta)
    return Vector.of((state.entries, meta, state.stamp_ms, state.start, *state.extra))


def same_state(left: QueueState, right: QueueState) -> bool:
    """Return whether all elements of two states are equal."""
    return (
        left.start == right.start
        and left.stamp_ms == right.stamp_ms
        and len(left.entries) == len(right.entries)
        and len(left.extra) == len(right.extra)
        and same(left.entries, right.entries)
        and same_metadata(left.meta, right.meta)
        and all(same(a, b) for a, b in zip(left.extra, right.extra, strict=True))
    )


def append(value: Value, batch: NewRecords, now_ms: int) -> tuple[Vector, int]:
    """Return (the state with the records of `batch` appended, its end).

    The state's time never decreases, so the states of one writer form a chain even if its clock is
    set back.

    Units:  now_ms: Unix milliseconds.
    """
    state = read_state(value)
    entries = batch.append_to(state.entries)
    stamp_ms = max(now_ms, state.stamp_ms)
    made = QueueState(entries, state.meta, stamp_ms, state.start, state.extra)
    return write_state(made), made.end


def advance(value: Value, before: QueueState, entries: Vector, now_ms: int) -> Value:
    """Return the state with `entries` as its log; None if its log differs from that of `before`.

    Units:  now_ms: Unix milliseconds.
    """
    state = read_state(value)
    # "It returns False, and writes nothing, if records were appended or truncated meanwhile"
    # (docs/queue.md "Appending").
    # The same records, not the same cell: metadata may have been written meanwhile.
    if state.start != before.start or not same(state.entries, before.entries):
        return None
    return write_state(state._replace(entries=entries, stamp_ms=max(now_ms, state.stamp_ms)))


def set_meta(value: Value, key: Value, meta_value: Value, now_ms: int) -> Vector:
    """Return the state with one metadata key set. Units:  now_ms: Unix milliseconds."""
    state = read_state(value)
    meta = put_metadata(state.meta, key, meta_value, now_ms)
    return write_state(state._replace(meta=meta, stamp_ms=max(now_ms, state.stamp_ms)))


def truncate(value: Value, start: int, now_ms: int) -> Value:
    """Return the state without the entries before `start`; `value` itself if there are none.

    Units:  start: absolute offset. now_ms: Unix milliseconds.
    Cost:   few cells if `start` moves by a multiple of a high power of 16, because unchanged tree
            nodes are shared; otherwise all remaining entries are rewritten.
    """
    state = read_state(value)
    # "Offsets are never used twice" (docs/queue.md "Truncation"): a start never goes back.
    if start <= state.start:
        return value
    # `start` "may lie beyond the end, also on an empty queue"
    removed = min(start - state.start, len(state.entries))
    return write_state(
        state._replace(
            entries=state.entries.drop(removed),
            stamp_ms=max(now_ms, state.stamp_ms),
            start=start,
        )
    )


def checked_offset(name: str, offset: object) -> int:
    """Return `offset` if it is an integer of at most 64 bits. Raises: UsageError: anything else."""
    # `is_long` first: where this is compiled, `isinstance` makes an int of a bool.
    if not is_long(offset):
        raise UsageError(f"`{name}` is not an integer of at most 64 bits: {offset!r}")
    assert isinstance(offset, int)
    return offset


def held_offsets(state: QueueState, start: object, stop: object) -> range:
    """Return the offsets of a half-open range that the queue holds; negative ones from the end."""
    offsets = range(state.start, state.end)
    bounds = [
        default if given is None else checked_offset(name, given)
        for name, given, default in (("start", start, state.start), ("stop", stop, state.end))
    ]
    low, high = (  # clamped on both sides, like a slice
        min(max(at if at >= 0 else state.end + at, state.start), state.end) for at in bounds
    )
    return offsets[low - state.start : max(low, high) - state.start]
