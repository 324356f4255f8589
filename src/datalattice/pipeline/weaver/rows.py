"""Which records of a witness log a task reads, and the rows made of them. No Spark.

Tasks divide every table by the numbers of records. Each row belongs to one record: the row of a key
to the last record that wrote the key, even if another write gave its value. So each task makes its
rows alone. The state after the last record of the read is computed back from the present state, so
a row does not depend on the time at which a task runs.

Source: docs/spark-weaver.md "Records, tasks and the past".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from datalattice.arrow import BATCH_BYTES_MAX, Row, ValueFormat, micros, to_column_value
from datalattice.cells import decode_message
from datalattice.clock import Hlc
from datalattice.errors import BadFormat, BadSignature, DataLoss
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.weaver.opening import open_weaver_stores
from datalattice.pipeline.weaver.options import KeyFormat, WeaverOptions, WeaverTable
from datalattice.weaver import (
    CORE_MACHINES,
    ZERO_HASH,
    KvMachine,
    Machine,
    Position,
    SignedIntention,
    StoreView,
    UniversalOp,
    WitnessEntry,
    app_payload,
    heads_at,
    summarize,
    written_by,
)

_RECORDS_PER_TASK_MAX: Final = 32_768
"""A log with more records is divided into several tasks, so that it uses all cores."""

_RECORDS_AT_ONCE: Final = 1_024
"""Most records read from one snapshot: while it is open, the engine must keep old pages."""

KEYS_KEPT_MAX: Final = 65_536
"""Most keys for which a task remembers the record of the last write."""


@dataclass(frozen=True, slots=True)
class RecordsTask:
    """The records after `start` up to `end`, of a read whose last record is `last`."""

    start: Position
    end: Position
    last: int

    def __str__(self) -> str:
        return f"records {self.start.seq + 1} to {self.end.seq}"


def table_end(view: StoreView, options: WeaverOptions) -> Position:
    """Return the last position that a table has: of the log, or of what the state has applied."""
    if options.table is not WeaverTable.INTENTIONS:
        return view.applied()
    found = view.position(view.last_seq())
    assert found is not None, "the last record is there"
    return found


def plan(view: StoreView, start: Position, end: Position, min_tasks: int = 1) -> list[RecordsTask]:
    """Return the tasks that read the records after `start` up to `end`, in order.

    Cost:   reads one record for each task.
    """
    count = end.seq - start.seq
    # At least as many tasks as the option says, but no task without a record.
    tasks = max(-(-count // _RECORDS_PER_TASK_MAX), min(min_tasks, count))
    cuts = [start]
    for number in range(1, tasks):
        found = view.position(start.seq + count * number // tasks)
        assert found is not None, "it is before the end"
        cuts.append(found)
    cuts.append(end)
    return [RecordsTask(*pair, end.seq) for pair in pairwise(cuts) if count > 0]


def rebuilt(options: WeaverOptions, position: Position) -> DataLoss:
    """Return the error for a position that the log does not have."""
    return DataLoss(
        f"record {position.seq} with the hash {position.content_hash.hex()} is not in the log of "
        f"{options}: the log was made anew, so its records have other numbers; a stream with "
        "another checkpointLocation, or with failOnDataLoss=false, reads it from the beginning"
    )


def rows(task: RecordsTask, options: WeaverOptions) -> Iterator[Row]:
    """Yield the rows of a task. Runs in tasks.

    Raises: DataLoss: the log was made anew since the plan. BadSignature: an intention is not signed
            by its author. Corruption. UsageError: the format does not take a value.
    """
    make = _Maker(task, options)
    at = task.start
    with open_weaver_stores(options.folder) as stores:
        while at.seq < task.end.seq:
            # Each part is read from its own snapshot, because records never change. The snapshot is
            # closed before Spark takes the rows: a slow query must not make the store grow.
            with stores.view(options.id) as view:
                made, after = _read_some(view, at, task, make)
            if after == at:
                break
            yield from made
            at = after
    # The hash of the last record depends on all records before it. If it is the planned one, so
    # are all others.
    if at != task.end:
        raise rebuilt(options, task.end)


def _read_some(
    view: StoreView, at: Position, task: RecordsTask, make: _Maker
) -> tuple[list[Row], Position]:
    """Return the rows of the next records, and the position of the last of them."""
    made: list[Row] = []
    size = 0
    for entry in view.entries(at.seq + 1, min(_RECORDS_AT_ONCE, task.end.seq - at.seq)):
        made += make.rows(view, entry)
        at = Position(entry.seq, entry.content_hash)
        size += entry.signed.size
        # Bounds the memory: an intention may be as large as a megabyte.
        if size >= BATCH_BYTES_MAX:
            break
    return made, at


class _Written(NamedTuple):
    """What an intention wrote: to a key, or as an entry of a log.

    rank: position among the heads of the key, from 0. conflicts: number of the other heads.
    """

    key: bytes
    value: bytes | None
    author: bytes
    stamp: Hlc
    hash: bytes
    seq: int
    rank: int
    conflicts: int


class _Maker:
    """Makes the rows of a task."""

    def __init__(self, task: RecordsTask, options: WeaverOptions) -> None:
        self.options = options
        self._last = task.last
        found = [machine for machine in CORE_MACHINES if machine.kind == options.kind]
        self._machine = found[0]() if found else None
        self._newest: dict[bytes, int] = {}
        columns: dict[str, Any] = {
            **(_OF_RECORDS if options.table is WeaverTable.INTENTIONS else _OF_WRITES),
            "op": lambda entry: _op(entry, self._machine),
            "key": lambda written: _key(written, options.key_format),
            "value": lambda written: _value(written, options),
        }
        self._columns = [columns[name] for name in options.columns]

    def rows(self, view: StoreView, entry: WitnessEntry) -> Iterator[Row]:
        """Yield the rows that belong to a record."""
        signed = entry.signed
        if self.options.table is WeaverTable.INTENTIONS:
            self._check(signed)
            yield [make(entry) for make in self._columns]
            return
        payload = app_payload(signed.intention.payload)
        if self.options.kind == KvMachine.kind:
            for key in written_by(payload):
                yield from self._heads(view, entry, key)
        elif payload:  # none: the genesis, the system table, an acknowledgement
            self._check(signed)
            author, stamp = signed.intention.author, signed.intention.stamp
            entry_of_log = _Written(b"", payload, author, stamp, signed.hash, entry.seq, 0, 0)
            yield [make(entry_of_log) for make in self._columns]

    def _heads(self, view: StoreView, entry: WitnessEntry, key: bytes) -> Iterator[Row]:
        """Yield the row of a key, or those of its heads, if this record is the last write to it."""
        if entry.seq < self._newest.get(key, 0):
            return
        heads = heads_at(view, key, self._last)
        seqs = {op.hash: view.seq_of(op.hash) or 0 for op in heads}
        # The last write is a head, because no later write replaced it.
        newest = max(seqs.values())
        if entry.seq < newest:
            # Remembered, because finding the heads of a key with many writes takes long.
            if len(self._newest) < KEYS_KEPT_MAX:
                self._newest[key] = newest
            return
        is_state = self.options.table is WeaverTable.STATE
        if not is_state and len(heads) == 1:
            return
        for rank, op in enumerate(heads[:1] if is_state else heads):
            # "A value of the state is read from the signed intention" (docs/spark-weaver.md). The
            # state is used only to find which intentions count.
            signed = entry.signed if op.hash == entry.signed.hash else view.get(op.hash)
            assert signed is not None, "a head is in the log"
            self._check(signed)
            value = written_by(op.payload)[key]
            others = len(heads) - 1
            written = _Written(
                key, value, op.author, op.stamp, op.hash, seqs[op.hash], rank, others
            )
            # A deleted key has a row if an earlier read may have had one for it.
            if value is not None or not is_state or self.options.is_change:
                yield [make(written) for make in self._columns]

    def _check(self, signed: SignedIntention) -> None:
        # "`verify=false` skips the signatures only" (docs/spark-weaver.md): the hash is always
        # computed from the bytes.
        if self.options.verify and not signed.verify():
            raise BadSignature(
                f"the intention {signed.hash.hex()} of {self.options} is not signed by its author; "
                "`lattice store fsck --level 2` lists all damage"
            )


# --- columns --------------------------------------------------------------------------------


_OF_RECORDS: Final[dict[str, Callable[[WitnessEntry], object]]] = {
    "seq": lambda entry: entry.seq,
    "hash": lambda entry: entry.signed.hash.hex(),
    "author": lambda entry: entry.signed.intention.author.hex(),
    "time": lambda entry: micros(entry.signed.intention.stamp.wall),
    "counter": lambda entry: entry.signed.intention.stamp.counter,
    "witnessed": lambda entry: micros(entry.wall_ms),
    "store_prev": lambda entry: _prev(entry.signed.intention.store_prev),
    "condition": lambda entry: [dep.hex() for dep in entry.signed.intention.deps],
    "kind": lambda entry: _kind(entry.signed.intention.payload),
    "payload": lambda entry: _payload(entry.signed.intention.payload),
    "size": lambda entry: len(entry.signed.intention.payload),
}

_OF_WRITES: Final[dict[str, Callable[[_Written], object]]] = {
    "seq": lambda written: written.seq,
    "author": lambda written: written.author.hex(),
    "time": lambda written: micros(written.stamp.wall),
    "counter": lambda written: written.stamp.counter,
    "hash": lambda written: written.hash.hex(),
    "rank": lambda written: written.rank,
    "conflicts": lambda written: written.conflicts,
}


def _prev(hash: bytes) -> str | None:
    return None if hash == ZERO_HASH else hash.hex()


def _kind(payload: bytes) -> str | None:
    """Return the kind of an intention; None: its payload is not in an envelope."""
    # An acknowledgement has no payload: it only states what its author has seen.
    if not payload:
        return "ack"
    try:
        if app_payload(payload):  # most are; that needs no message
            return "data"
        envelope = UniversalOp.decode(payload)
    except BadFormat:
        return None
    parts = {"data": envelope.app_data, "system": envelope.system, "genesis": envelope.genesis}
    return next((name for name, part in parts.items() if part is not None), None)


def _payload(payload: bytes) -> bytes | None:
    return app_payload(payload) if _kind(payload) == "data" else None


def _op(entry: WitnessEntry, machine: Machine | None) -> str:
    return summarize(entry.signed.intention.payload, entry.signed.hash, machine).short


def _key(written: _Written, format: KeyFormat) -> object:
    # Two keys that are not UTF-8 may become the same text; with `bytes` every key is exact.
    return written.key if format is KeyFormat.BYTES else written.key.decode("utf-8", "replace")


def _value(written: _Written, options: WeaverOptions) -> object:
    value, format = written.value, options.value_format
    if value is None or format is ValueFormat.BYTES:
        return value
    if format is ValueFormat.STRING:
        return value.decode("utf-8", "replace")
    try:
        return to_column_value(decode_message(value), format)
    except BadFormat as error:
        raise bad_option(
            "valueFormat",
            format.value,
            f"the value that {written.hash.hex()} wrote in {options} is not stored as cells "
            f"({error}); string and bytes take every value",
        ) from None
