"""State: the tables of one store's machine, folded from its witness log.

`project` is the only way into the state. It reads the log behind the stored position, checks that
every author's operations form a chain, lets the layer apply each one, and stores the new position
in the same transaction. What an operation changes is collected aside and kept only if `apply`
returns: an operation that cannot be applied stops projection there (a `Stall`) and leaves no trace,
and the next `project` tries it again. So the state is always the fold of a prefix of the log, and
it can be thrown away and rebuilt.

All methods take the store's section of a transaction. Tables: `state_data` belongs to the machine,
`state_system` to the system layer, `state_meta` holds

    store_id | store_type | schema_version (u64, little-endian) | tip/<author> -> operation's hash
    last_applied_witness -> content hash | last_applied_seq (u64, big-endian)

A snapshot is a stream of all rows:

    "LATS" | version 1 (u32, little-endian) | store id (16)
    repeat: type (1 data, 2 meta, 3 system) | u64 key length | key | u64 value length | value
    0 | BLAKE3 of everything before (32)

Source: spec/weaver.md sections 6.2 to 6.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from datalattice.crypto import Blake3
from datalattice.engine import ReadTxn, WriteTxn
from datalattice.errors import (
    BadFormat,
    ProtocolViolation,
    StoreError,
    StoreVersion,
    UsageError,
)
from datalattice.protobuf import Message
from datalattice.weaver import dag as dags
from datalattice.weaver.intention import ZERO, SignedIntention
from datalattice.weaver.machine import (
    Dag,
    Layer,
    Machine,
    Op,
    StateReader,
    StateTables,
)

DATA: Final = "state_data"
META: Final = "state_meta"
SYSTEM: Final = "state_system"
STATE_TABLES: Final = (DATA, META, SYSTEM)

STATE_KEY_BYTES_MAX: Final = 32_768
"""Longest key of a state: an engine takes twice as much, with the store's prefix in front."""

STATE_VALUE_BYTES_MAX: Final = 64 << 20
"""Longest value of a state, as in a snapshot."""

BATCH_RECORDS: Final = 256
"""Records that are applied between two writes to the tables."""

BATCH_BYTES: Final = 16 << 20
"""Bytes of changed rows that are held before they are written to the tables."""

SNAPSHOT_VERSION: Final = 1
SNAPSHOT_CHUNK_BYTES: Final = 64 << 10
"""Least length of the parts of a snapshot, the last one apart."""

RESTORE_ROWS: Final = 1_024
"""Rows that a restore writes at once."""

_MAGIC: Final = b"LATS"
_END: Final = 0
_ROW_TYPES: Final = ((1, DATA), (2, META), (3, SYSTEM))  # also the order of the tables
_HASH_BYTES: Final = 32

_STORE_ID: Final = b"store_id"
_STORE_TYPE: Final = b"store_type"
_SCHEMA: Final = b"schema_version"
_APPLIED: Final = b"last_applied_witness"
_APPLIED_SEQ: Final = b"last_applied_seq"
_TIP: Final = b"tip/"
_TIPS_END: Final = b"tip0"  # the first key after all that begin with "tip/"


class StoreIdMismatch(StoreError):
    """The state belongs to another store."""

    code = "store-id-mismatch"


class StoreTypeMismatch(StoreError):
    """The state was made by a machine of another kind."""

    code = "store-type-mismatch"


class InvalidGenesis(ProtocolViolation):
    """The first operation of an author names a predecessor."""

    code = "invalid-genesis"


class BrokenChain(ProtocolViolation):
    """An operation does not follow the last one of its author."""

    code = "broken-chain"

    def __init__(self, expected: bytes, got: bytes) -> None:
        super().__init__(f"an author's operation follows {got.hex()}; its last is {expected.hex()}")
        self.expected = expected
        self.got = got


class SnapshotRefused(BadFormat):
    """A snapshot cannot be restored; nothing was changed.

    reason: "invalid_magic", "unsupported_version", "store_id_mismatch", "unknown_record_type",
    "checksum_mismatch", or "io" for a stream that is cut short or declares too long a row.
    """

    code = "snapshot-refused"

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class LogEntry(Protocol):
    """A witnessed intention, as far as the state needs it."""

    @property
    def seq(self) -> int:
        """Its place in the log, from 1."""

    @property
    def signed(self) -> SignedIntention:
        """The intention."""

    @property
    def content_hash(self) -> bytes:
        """The hash of its record's content."""

    @property
    def height(self) -> int:
        """Its position in the author's chain, from 1."""


class LogHead(Protocol):
    """The end of a log."""

    @property
    def seq(self) -> int:
        """Its place in the log, from 1."""


class LogReader(Protocol):
    """A witness log, as far as the state needs it; `IntentionLog` is one."""

    def head(self, txn: ReadTxn) -> LogHead:
        """Return the end of the log."""

    def entry(self, txn: ReadTxn, seq: int) -> LogEntry:
        """Return a record."""

    def seq_of(self, txn: ReadTxn, hash: bytes) -> int | None:
        """Return where an intention is witnessed, None if it is not."""

    def scan(self, txn: ReadTxn, start_seq: int, limit: int) -> Iterator[LogEntry]:
        """Yield records in order."""


class Position(NamedTuple):
    """The last record that was applied: its number, and the hash of its content."""

    seq: int
    content_hash: bytes


START: Final = Position(0, ZERO)
"""The position of an empty state."""


class Event(NamedTuple):
    """What an operation made happen, to be delivered after the commit."""

    seq: int
    hash: bytes
    message: Message


class Stall(NamedTuple):
    """The operation at which projection stopped, and why."""

    seq: int
    hash: bytes
    error: Exception


class Projection(NamedTuple):
    """What `project` did. applied: records behind which the position moved."""

    applied: int
    events: tuple[Event, ...]
    stall: Stall | None


class Restored(NamedTuple):
    """What `restore` did. fits: the rows belong to this log; if not, they were dropped again."""

    rows: int
    fits: bool


def op_of(entry: LogEntry) -> Op:
    """Return a record of the log as an operation."""
    signed = entry.signed
    intention = signed.intention
    return Op(
        signed.hash,
        intention.payload,
        intention.stamp,
        intention.author,
        intention.deps,
        intention.store_prev,
        entry.height,
    )


# --- views of a table ---------------------------------------------------------------------------


class TableReader:
    """One table of a transaction, as a `StateReader`."""

    __slots__ = ("_table", "_txn")

    def __init__(self, txn: ReadTxn, table: str) -> None:
        self._txn = txn
        self._table = table

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        return self._txn.get(self._table, key)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end in key order, or in reverse."""
        return self._txn.scan(self._table, start, end, reverse=reverse)


class Overlay:
    """Changes in front of a table that does not change meanwhile; without one, a table in memory.

    `changes` maps keys to values, None for a removed key.
    """

    __slots__ = ("_base", "changes", "size")

    def __init__(self, base: StateReader | None = None) -> None:
        self._base = base
        self.changes: dict[bytes, bytes | None] = {}
        self.size = 0  # bytes that were put

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        if key in self.changes:
            return self.changes[key]
        return None if self._base is None else self._base.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`.

        Raises: UsageError: the key is longer than 32,768 bytes, or the value than 64 MiB.
        """
        # Refused here, within `apply`: refused later by the engine it would fail the transaction.
        if type(key) is not bytes or type(value) is not bytes:
            raise UsageError("keys and values of a state are bytes")
        if len(key) > STATE_KEY_BYTES_MAX or len(value) > STATE_VALUE_BYTES_MAX:
            raise UsageError(
                f"a state has keys of up to {STATE_KEY_BYTES_MAX} bytes and values of up to "
                f"{STATE_VALUE_BYTES_MAX}, got {len(key)} and {len(value)}"
            )
        self.changes[key] = value
        self.size += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        """Remove `key`, if it is there."""
        self.changes[key] = None
        self.size += len(key)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end in key order, or in reverse.

        Changes made while it runs are not seen.
        """
        changed = sorted(
            [
                (key, value)
                for key, value in self.changes.items()
                if key >= start and (end is None or key < end)
            ],
            key=itemgetter(0),
            reverse=reverse,
        )
        if self._base is None:
            return ((key, value) for key, value in changed if value is not None)
        below = self._base.scan(start, end, reverse=reverse)
        return _merged(changed, below, reverse) if changed else below

    def absorb(self, other: Overlay) -> None:
        """Take over the changes of `other`, and leave it empty."""
        self.changes.update(other.changes)
        self.size += other.size
        other.clear()

    def clear(self) -> None:
        """Drop all changes."""
        self.changes.clear()
        self.size = 0

    def write_to(self, txn: WriteTxn, table: str) -> None:
        """Write all changes to the table, in key order, and leave the overlay empty."""
        put = []
        for key, value in sorted(self.changes.items(), key=itemgetter(0)):
            if value is None:
                txn.delete(table, key)
            else:
                put.append((key, value))
        txn.put_many(table, put)
        self.clear()


def _merged(
    changed: list[tuple[bytes, bytes | None]], below: Iterator[tuple[bytes, bytes]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    # The merge is stable: of equal keys the change comes first, and it hides the row below.
    rows = merge(changed, below, key=itemgetter(0), reverse=reverse)
    for key, same in groupby(rows, key=itemgetter(0)):
        value = next(same)[1]
        if value is not None:
            yield key, value


class LogDag:
    """The operations of a log, as a `Dag` with unchanged payloads."""

    __slots__ = ("_log", "_txn")

    def __init__(self, txn: ReadTxn, log: LogReader) -> None:
        self._txn = txn
        self._log = log

    def intention(self, hash: bytes) -> Op:
        """Return a witnessed operation.

        Raises: UsageError: the hash is unknown.
        """
        seq = self._log.seq_of(self._txn, hash)
        if seq is None:
            raise UsageError(f"no operation {hash.hex()} in this store")
        return op_of(self._log.entry(self._txn, seq))

    def is_ancestor(self, ancestor: bytes, descendant: bytes) -> bool:
        """Return whether dependencies lead from `descendant` to `ancestor`; true for one hash."""
        return dags.is_ancestor(self._look_up, ancestor, descendant)

    def find_lca(self, first: bytes, second: bytes) -> bytes:
        """Return the lowest common ancestor; of several the one with the greatest stamp."""
        return dags.find_lca(self._look_up, first, second)

    def path(self, start: bytes, to: bytes) -> list[bytes]:
        """Return the operations between two, dependencies first, without `start`, with `to`."""
        return dags.path(self._look_up, start, to)

    def _look_up(self, hash: bytes) -> dags.Node | None:
        seq = self._log.seq_of(self._txn, hash)
        if seq is None:
            return None
        intention = self._log.entry(self._txn, seq).signed.intention
        return dags.Node(hash, intention.deps, intention.stamp, seq)


class PlainLayer:
    """A layer without a system table: payloads are those of the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.kind = machine.kind
        self.schema = machine.schema

    def apply(self, op: Op, tables: StateTables, dag: Dag) -> Iterable[Message]:
        """Let the machine apply the operation."""
        return self.machine.apply(op, tables.data, dag)


# --- the state ----------------------------------------------------------------------------------


class State:
    """The state of one store."""

    def __init__(self, store_id: bytes, layer: Layer, log: LogReader) -> None:
        self.store_id = store_id
        self._layer = layer
        self._log = log

    def open(self, txn: WriteTxn) -> None:
        """Check that the tables belong to this store and machine; write so into empty ones.

        A state of an older schema is dropped; the next `project` rebuilds it.
        Raises: StoreIdMismatch, StoreTypeMismatch. StoreVersion: the schema is newer.
        """
        found = txn.get(META, _STORE_ID)
        if found is not None and found != self.store_id:
            raise StoreIdMismatch(
                f"the state belongs to store {found.hex()}, not to {self.store_id.hex()}"
            )
        kind = txn.get(META, _STORE_TYPE)
        self._check_kind(kind)
        schema = txn.get(META, _SCHEMA)
        if schema is not None:
            version = int.from_bytes(schema, "little")
            if version > self._layer.schema:
                raise StoreVersion(
                    f"the state has schema {version} of {self._layer.kind}; this machine knows "
                    f"schemas up to {self._layer.schema}"
                )
            if version < self._layer.schema:
                self._clear(txn)
                return
        if found is None or kind is None or schema is None:
            self._write_guards(txn)

    def project(
        self, txn: WriteTxn, limit: int | None = None, *, events: bool = True
    ) -> Projection:
        """Apply the records behind the position, at most `limit`.

        A position that is not in the log means that the state is not of this log: it is rebuilt,
        without events. events: whether to return them.
        Raises: StoreError: the store failed; roll the transaction back.
        """
        position = self.position(txn)
        if not self._resolves(txn, position):
            self._clear(txn)
            position, events = START, False
        run = _Run(txn, self._layer, LogDag(txn, self._log), events=events)
        last = self._log.head(txn).seq
        if limit is not None:
            last = min(last, position.seq + limit)
        start = position.seq
        while position.seq < last and run.stall is None:
            count = min(BATCH_RECORDS, last - position.seq)
            for entry in self._log.scan(txn, position.seq + 1, count):
                if not run.apply(entry):
                    break
                position = Position(entry.seq, entry.content_hash)
                if run.size > BATCH_BYTES:
                    break
            run.write()
        if position.seq > start:
            txn.put(META, _APPLIED, position.content_hash)
            txn.put(META, _APPLIED_SEQ, position.seq.to_bytes(8, "big"))
        return Projection(position.seq - start, tuple(run.events), run.stall)

    def position(self, txn: ReadTxn) -> Position:
        """Return the last record that was applied, `START` for none."""
        applied = txn.get(META, _APPLIED)
        if applied is None:
            return START
        # Without a number (a snapshot of the reference) no position resolves.
        return Position(int.from_bytes(txn.get(META, _APPLIED_SEQ) or b"", "big"), applied)

    def rebuild(self, txn: WriteTxn) -> Projection:
        """Drop the state and fold the log again, up to the position, without events."""
        until = self.position(txn).seq
        self._clear(txn)
        return self.project(txn, until, events=False)

    def reader(self, txn: ReadTxn) -> TableReader:
        """Return the machine's state as a transaction sees it."""
        return TableReader(txn, DATA)

    def system_reader(self, txn: ReadTxn) -> TableReader:
        """Return the system table as a transaction sees it."""
        return TableReader(txn, SYSTEM)

    def meta_reader(self, txn: ReadTxn) -> TableReader:
        """Return the table of guards, tips and position as a transaction sees it."""
        return TableReader(txn, META)

    def dag(self, txn: ReadTxn) -> LogDag:
        """Return the operations of the log as a transaction sees them."""
        return LogDag(txn, self._log)

    # --- snapshots ------------------------------------------------------------------------------

    def snapshot(self, txn: ReadTxn) -> Iterator[bytes]:
        """Yield a snapshot of all tables in parts; equal states give equal bytes."""
        digest = Blake3()
        part = bytearray(_MAGIC + SNAPSHOT_VERSION.to_bytes(4, "little") + self.store_id)
        for number, table in _ROW_TYPES:
            for key, value in txn.scan(table):
                part.append(number)
                part += len(key).to_bytes(8, "little") + key
                part += len(value).to_bytes(8, "little") + value
                if len(part) >= SNAPSHOT_CHUNK_BYTES:
                    digest.update(part)
                    yield bytes(part)
                    part = bytearray()
        part.append(_END)
        digest.update(part)
        yield bytes(part) + digest.digest()

    def restore(self, txn: WriteTxn, parts: Iterable[bytes]) -> Restored:
        """Replace all tables by a snapshot.

        Rows that do not belong to this log, because its records differ, are dropped at once and the
        next `project` rebuilds the state.
        Raises: SnapshotRefused, StoreTypeMismatch: roll the transaction back, which keeps the old
                state.
        """
        for table in STATE_TABLES:
            txn.delete_range(table)
        rows = 0
        batch: list[tuple[bytes, bytes]] = []
        current = ""
        for table, key, value in _snapshot_rows(parts, self.store_id):
            if table != current or len(batch) >= RESTORE_ROWS:
                if batch:
                    txn.put_many(current, batch)
                batch, current = [], table
            batch.append((key, value))
            rows += 1
        if batch:
            txn.put_many(current, batch)
        self._check_kind(txn.get(META, _STORE_TYPE))
        fits = self._fits(txn)
        if not fits:
            self._clear(txn)
        return Restored(rows, fits)

    # --- parts ----------------------------------------------------------------------------------

    def _check_kind(self, found: bytes | None) -> None:
        if found is not None and found != self._layer.kind.encode():
            raise StoreTypeMismatch(
                f"the state is one of {found.decode(errors='replace')!r}, and the machine is "
                f"{self._layer.kind!r}"
            )

    def _write_guards(self, txn: WriteTxn) -> None:
        txn.put(META, _STORE_ID, self.store_id)
        txn.put(META, _STORE_TYPE, self._layer.kind.encode())
        txn.put(META, _SCHEMA, self._layer.schema.to_bytes(8, "little"))

    def _clear(self, txn: WriteTxn) -> None:
        for table in STATE_TABLES:
            txn.delete_range(table)
        self._write_guards(txn)

    def _resolves(self, txn: ReadTxn, position: Position) -> bool:
        """Return whether the log has the record of a position."""
        if position == START:
            return True
        if not 1 <= position.seq <= self._log.head(txn).seq:
            return False
        return self._log.entry(txn, position.seq).content_hash == position.content_hash

    def _fits(self, txn: ReadTxn) -> bool:
        """Return whether position and tips of a restored state are those of this log."""
        position = self.position(txn)
        if not self._resolves(txn, position):
            return False
        for key, tip in txn.scan(META, _TIP, _TIPS_END):
            seq = self._log.seq_of(txn, tip)
            if seq is None or seq > position.seq:
                return False
            if self._log.entry(txn, seq).signed.intention.author != key[len(_TIP) :]:
                return False
        return True


class _Run:
    """One run of projection: tables for one operation, over tables for a batch of them."""

    def __init__(self, txn: WriteTxn, layer: Layer, dag: Dag, *, events: bool) -> None:
        self._txn = txn
        self._layer = layer
        self._dag = dag
        self._batch = [(table, Overlay(TableReader(txn, table))) for table in STATE_TABLES]
        self._own = {table: Overlay(below) for table, below in self._batch}
        self._tables = StateTables(self._own[DATA], self._own[SYSTEM], self._own[META])
        self._wants_events = events
        self.events: list[Event] = []
        self.stall: Stall | None = None

    @property
    def size(self) -> int:
        """Return the bytes that `write` is going to write, or more."""
        return sum([below.size for _, below in self._batch])

    def apply(self, entry: LogEntry) -> bool:
        """Apply one record; return False, with the stall, if it cannot be applied."""
        op = op_of(entry)
        try:
            messages = self._messages(op)
        except StoreError:
            raise  # the store failed, not the operation
        except Exception as error:  # noqa: BLE001 - a machine is foreign code: any failure stalls
            for overlay in self._own.values():
                overlay.clear()
            self.stall = Stall(entry.seq, op.hash, error)
            return False
        for table, below in self._batch:
            own = self._own[table]
            if own.changes:
                below.absorb(own)
        if self._wants_events:
            self.events += [Event(entry.seq, op.hash, message) for message in messages]
        return True

    def _messages(self, op: Op) -> list[Message]:
        """Check the author's chain, then apply; an operation that was applied does nothing."""
        key = _TIP + op.author
        meta = self._tables.meta
        tip = meta.get(key)
        if tip == op.hash:
            return []
        if tip is None and op.prev != ZERO:
            raise InvalidGenesis(f"the author's first operation follows {op.prev.hex()}")
        if tip is not None and tip != op.prev:
            raise BrokenChain(tip, op.prev)
        meta.put(key, op.hash)
        # An empty payload is an acknowledgement: only the tip moves.
        return list(self._layer.apply(op, self._tables, self._dag)) if op.payload else []

    def write(self) -> None:
        """Write the changes of all applied operations to the tables."""
        for table, below in self._batch:
            if below.changes:
                below.write_to(self._txn, table)


# --- reading a snapshot -------------------------------------------------------------------------


class _Source:
    """Takes exact lengths from a stream of parts and hashes what it takes."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._buffer = bytearray()
        self._at = 0
        self.digest = Blake3()

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, and hash them.

        Raises: SnapshotRefused: the stream ends before.
        """
        data = self.take_unhashed(count)
        self.digest.update(data)
        return data

    def take_unhashed(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        while len(self._buffer) - self._at < count:
            part = next(self._parts, None)
            if part is None:
                raise SnapshotRefused("io", "the snapshot is cut short")
            del self._buffer[: self._at]
            self._at = 0
            self._buffer += part
        start = self._at
        self._at += count
        return bytes(self._buffer[start : self._at])

    def take_counted(self, limit: int) -> bytes:
        """Return a length and that many bytes, without the length."""
        count = int.from_bytes(self.take(8), "little")
        # Checked before reading: a damaged length must not allocate memory.
        if count > limit:
            raise SnapshotRefused("io", f"a row declares {count} bytes; at most {limit} are taken")
        return self.take(count)


def _snapshot_rows(parts: Iterable[bytes], store_id: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield table, key and value of every row; the checksum is verified at the end.

    Raises: SnapshotRefused: in the order in which the bytes show what is wrong.
    """
    source = _Source(parts)
    if source.take(len(_MAGIC)) != _MAGIC:
        raise SnapshotRefused("invalid_magic", "not a snapshot: it does not begin with LATS")
    version = int.from_bytes(source.take(4), "little")
    if version != SNAPSHOT_VERSION:
        raise SnapshotRefused(
            "unsupported_version", f"a snapshot of version {version}; known: {SNAPSHOT_VERSION}"
        )
    found = source.take(len(store_id))
    if found != store_id:
        raise SnapshotRefused(
            "store_id_mismatch", f"a snapshot of store {found.hex()}, not of {store_id.hex()}"
        )
    tables = dict(_ROW_TYPES)
    while (number := source.take(1)[0]) != _END:
        table = tables.get(number)
        if table is None:
            raise SnapshotRefused("unknown_record_type", f"a row of type {number}; known: 1, 2, 3")
        yield (
            table,
            source.take_counted(STATE_KEY_BYTES_MAX),
            source.take_counted(STATE_VALUE_BYTES_MAX),
        )
    # Bytes behind the checksum are not read.
    if source.take_unhashed(_HASH_BYTES) != source.digest.digest():
        raise SnapshotRefused("checksum_mismatch", "the checksum of the snapshot differs")
