"""State: the tables of one store's machine, folded from its witness log.

`project` is the only way into the state. It reads the log behind the stored position, checks that
every author's operations form a chain, lets the layer apply each one, and stores the new position
in the same transaction. What an operation changes is collected aside and kept only if `apply`
returns: an operation that cannot be applied stops projection there (a `Stall`) and leaves no trace,
and the next `project` tries it again. So the state is always the fold of a prefix of the log, and
it can be thrown away and rebuilt.

Length: the tables, and the operations that change them, one at a time.

All methods take the store's section of a transaction. Tables: `state_data` belongs to the machine,
`state_system` to the system layer, `state_meta` holds

    store_id | store_type | schema_version (u64, little-endian) | tip/<author> -> operation's hash
    last_applied_witness -> content hash | last_applied_seq (u64, big-endian)

Source: docs/design/weaver.md "The state".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

from datalattice.engine import ReadTxn, WriteTxn
from datalattice.errors import Corruption, ProtocolViolation, StoreError, StoreVersion, UsageError
from datalattice.protobuf import Message
from datalattice.weaver import dag as dags
from datalattice.weaver.intention import ZERO_HASH
from datalattice.weaver.machine import Dag, Layer, Machine, StateReader, StateTables
from datalattice.weaver.op import Appended, Op
from datalattice.weaver.snapshot import read_snapshot, write_snapshot
from datalattice.weaver.tables import (
    STATE_DATA,
    STATE_META,
    STATE_SYSTEM,
    STATE_TABLES,
    Overlay,
    StateView,
    TableReader,
)

OnApplied = Callable[[int, int], None]
"""Called with the number of records that are applied, and of all of them."""

BATCH_RECORDS: Final = 256  # "read 256 records at a time"
"""Records that are applied between two writes to the tables."""

BATCH_BYTES: Final = 16 << 20  # large rows end a batch earlier
"""Bytes of changed rows that are held before they are written to the tables."""

_STORE_ID: Final = b"store_id"
_STORE_TYPE: Final = b"store_type"
_SCHEMA: Final = b"schema_version"
_APPLIED: Final = b"last_applied_witness"
_APPLIED_SEQ: Final = b"last_applied_seq"
_TIP: Final = b"tip/"
# "0" follows "/"
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


class WitnessEnd(Protocol):
    """Where a log ends."""

    @property
    def seq(self) -> int:
        """The number of its last record, 0 for none."""


class OperationReader(Protocol):
    """Witnessed operations by their hashes."""

    def operation(self, txn: ReadTxn, hash: bytes) -> Op | None:
        """Return a witnessed operation, or None."""

    def node(self, txn: ReadTxn, hash: bytes) -> dags.DagNode | None:
        """Return a witnessed operation for the questions of `dag`, or None."""


class WitnessReader(OperationReader, Protocol):
    """A witness log, as far as the state needs it; `IntentionLog` is one."""

    def head(self, txn: ReadTxn) -> WitnessEnd:
        """Return where the log ends."""

    def content_hash(self, txn: ReadTxn, seq: int) -> bytes | None:
        """Return the hash of a record's content, None where the log has no such record."""

    def operations(self, txn: ReadTxn, start_seq: int, limit: int) -> Iterator[Op]:
        """Yield the operations of the records from `start_seq` on."""

    def seq_of(self, txn: ReadTxn, hash: bytes) -> int | None:
        """Return where an operation is witnessed, None if it is not."""


class Position(NamedTuple):
    """How far a log was read: the number of the last record, and the hash of its content.

    The hash names that record and all before it, so it shows whether a log is the one that was
    read: a copy of it that another node makes has the numbers and other hashes.
    """

    seq: int
    content_hash: bytes


LOG_START: Final = Position(0, ZERO_HASH)
"""The position before the first record."""


class Event:
    """What an operation made happen, to be delivered after the commit."""

    __slots__ = ("hash", "message", "seq")

    def __init__(self, seq: int, hash: bytes, message: Message) -> None:
        self.seq = seq
        self.hash = hash
        self.message = message

    def __repr__(self) -> str:
        return f"Event({self.seq}, {self.hash.hex()}, {self.message!r})"


class Stall:
    """The operation at which projection stopped, and why."""

    __slots__ = ("error", "hash", "seq")

    def __init__(self, seq: int, hash: bytes, error: Exception) -> None:
        self.seq = seq
        self.hash = hash
        self.error = error

    def __repr__(self) -> str:
        return f"Stall({self.seq}, {self.hash.hex()}, {self.error!r})"


class Projection(NamedTuple):
    """What `project` did. applied: how many records the position moved."""

    applied: int
    events: tuple[Event, ...]
    stall: Stall | None


class Restored(NamedTuple):
    """What `restore` did. fits: the rows belong to this log; rows that do not were dropped."""

    rows: int
    fits: bool


# --- what operations are applied with -----------------------------------------------------------


class LogDag:
    """The operations of a log, as a `Dag` with unchanged payloads."""

    __slots__ = ("_log", "_txn")

    def __init__(self, txn: ReadTxn, log: OperationReader) -> None:
        self._txn = txn
        self._log = log

    def intention(self, hash: bytes) -> Op:
        found = self._log.operation(self._txn, hash)
        if found is None:
            raise UsageError(f"no operation {hash.hex()} in this store")
        return found

    def is_ancestor(self, ancestor: bytes, descendant: bytes) -> bool:
        return dags.is_ancestor(self._look_up, ancestor, descendant)

    def find_lca(self, first: bytes, second: bytes) -> bytes:
        return dags.find_lca(self._look_up, first, second)

    def path(self, start: bytes, to: bytes) -> list[bytes]:
        return dags.path(self._look_up, start, to)

    def _look_up(self, hash: bytes) -> dags.DagNode | None:
        return self._log.node(self._txn, hash)


@mypyc_attr(allow_interpreted_subclasses=True)
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

    def __init__(self, store_id: bytes, layer: Layer, log: WitnessReader) -> None:
        self.store_id = store_id
        self._layer = layer
        self._log = log

    def open(self, txn: WriteTxn) -> None:
        """Check that the tables belong to this store and machine; mark empty ones as theirs.

        A state of an older schema is dropped; the next `project` rebuilds it.
        Raises: StoreIdMismatch, StoreTypeMismatch. StoreVersion: the schema is newer.
        """
        found = txn.get(STATE_META, _STORE_ID)
        # "Opening with another store id: StoreIdMismatch"
        if found is not None and found != self.store_id:
            raise StoreIdMismatch(
                f"the state belongs to store {found.hex()}, not to {self.store_id.hex()}"
            )
        # The kind before the schema, whose number means nothing to another machine.
        kind = txn.get(STATE_META, _STORE_TYPE)
        self._check_kind(kind)
        schema = txn.get(STATE_META, _SCHEMA)
        if schema is not None:
            version = int.from_bytes(schema, "little")
            if version > self._layer.schema:  # rows of a schema that this machine cannot read
                raise StoreVersion(
                    f"the state has schema {version} of {self._layer.kind}; this machine knows "
                    f"schemas up to {self._layer.schema}"
                )
            if version < self._layer.schema:
                self._clear(txn)  # rows of older code: the next `project` makes them from the log
                return
        if found is None or kind is None or schema is None:
            self._write_guards(txn)  # "a missing type is written"

    def project(
        self,
        txn: WriteTxn,
        limit: int | None = None,
        *,
        events: bool = True,
        appended: Appended | None = None,
        on_progress: OnApplied | None = None,
    ) -> Projection:
        """Apply the records behind the position, at most `limit`.

        A position that is not in the log means that the state is not of this log: it is rebuilt,
        without events. events: whether to return them. appended: what this transaction added to
        the end of the log; for a state that was up to date nothing is read. on_progress: called
        every 256 records with how many are applied, and of how many.
        Raises: StoreError: the store failed, or the log is damaged; roll the transaction back. What
                `on_progress` raises.
        """
        position = self.position(txn)
        if appended is not None and position == (appended.start, appended.before):
            last = appended.last
        else:
            appended = None
            if not self._resolves(txn, position):
                self._clear(txn)  # "cursor not found: state must be rebuilt"
                position, events = LOG_START, False  # subscribers saw these events before
            last = self._log.head(txn).seq
        start = position.seq
        run = Folding(txn, self._layer, LogDag(txn, self._log), start, events=events)
        if limit is not None:
            last = min(last, start + limit)
        while run.seq < last and not run.is_stalled:
            reached = run.seq
            count = min(BATCH_RECORDS, last - reached)
            ops: Iterable[Op]
            if appended is None:
                ops = self._log.operations(txn, reached + 1, count)
            else:
                ops = appended.ops[reached - start : reached - start + count]
            for op in ops:
                if not run.apply(op):
                    break
                if run.size > BATCH_BYTES:  # bounds memory between two writes
                    break
            run.write()
            if on_progress is not None:
                on_progress(run.seq - start, last - start)
            if run.seq == reached and not run.is_stalled:
                # The loop would never end.
                raise Corruption(f"the log has no record {reached + 1}, and its head says {last}")
        end = None if appended is None else Position(appended.last, appended.end)
        return self.end(txn, run, end)

    def begin(self, txn: WriteTxn, end: Position, log: OperationReader) -> Folding:
        """Return a `Folding` for operations that are appended one by one behind `end`.

        end: of the log; the state is brought up to it first, and if it stalls, nothing that is
        appended is applied. log: finds the appended operations, too. Call `end` when all of them
        are in the tables.
        """
        before: Projection | None = None
        position = self.position(txn)
        if position != end:
            before = self.project(txn)
            position = self.position(txn)
        dag = LogDag(txn, log)
        return Folding(txn, self._layer, dag, position.seq, events=True, before=before)

    def end(self, txn: WriteTxn, run: Folding, end: Position | None) -> Projection:
        """Write the applied changes and the position; return what was done. end: of the log."""
        run.write()
        # In the same transaction as the rows: no crash applies a record twice or leaves one out.
        if run.seq > run.start:
            hash: bytes | None = None
            if end is not None and end.seq == run.seq:
                hash = end.content_hash
            else:
                hash = self._log.content_hash(txn, run.seq)
            applied = [(_APPLIED_SEQ, run.seq.to_bytes(8, "big")), (_APPLIED, hash or ZERO_HASH)]
            txn.put_many(STATE_META, applied)
        return Projection(run.before + run.seq - run.start, tuple(run.events), run.stall)

    def position(self, txn: ReadTxn) -> Position:
        """Return the last record that was applied, `LOG_START` for none."""
        seq, applied = txn.get_many(STATE_META, (_APPLIED_SEQ, _APPLIED))
        if applied is None:
            return LOG_START
        # Without a number (a snapshot of the reference) no position resolves.
        return Position(int.from_bytes(seq or b"", "big"), applied)

    def rebuild(self, txn: WriteTxn, on_progress: OnApplied | None = None) -> Projection:
        """Drop the state and fold the log again, up to the position, without events.

        Raises: as `project`.
        """
        until = self.position(txn).seq  # up to the same record: a stall stays where it was
        self._clear(txn)
        return self.project(txn, until, events=False, on_progress=on_progress)

    def reader(self, txn: ReadTxn) -> TableReader:
        """Return the machine's state as a transaction sees it."""
        return TableReader(txn, STATE_DATA)

    def system_reader(self, txn: ReadTxn) -> TableReader:
        """Return the system table as a transaction sees it."""
        return TableReader(txn, STATE_SYSTEM)

    def meta_reader(self, txn: ReadTxn) -> TableReader:
        """Return the table of guards, tips and position as a transaction sees it."""
        return TableReader(txn, STATE_META)

    def dag(self, txn: ReadTxn) -> LogDag:
        """Return the operations of the log as a transaction sees them."""
        return LogDag(txn, self._log)

    # --- snapshots ------------------------------------------------------------------------------

    def snapshot(self, txn: ReadTxn) -> Iterator[bytes]:
        """Yield a snapshot of all tables in parts; equal states give equal bytes."""
        return write_snapshot(txn, self.store_id)

    def restore(self, txn: WriteTxn, parts: Iterable[bytes]) -> Restored:
        """Replace all tables by a snapshot.

        Rows of another schema, or of a log whose records differ, are dropped at once and the next
        `project` rebuilds the state.
        Raises: SnapshotRefused, StoreTypeMismatch: roll the transaction back, which keeps the old
                state.
        """
        rows = read_snapshot(txn, parts, self.store_id)
        # After the restore: the type is a row of the snapshot.
        self._check_kind(txn.get(STATE_META, _STORE_TYPE))
        schema = txn.get(STATE_META, _SCHEMA)  # a snapshot of the reference may have none
        is_known = schema is None or int.from_bytes(schema, "little") == self._layer.schema
        fits = is_known and self._fits(txn)
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
        txn.put(STATE_META, _STORE_ID, self.store_id)
        txn.put(STATE_META, _STORE_TYPE, self._layer.kind.encode())
        txn.put(STATE_META, _SCHEMA, self._layer.schema.to_bytes(8, "little"))

    def _clear(self, txn: WriteTxn) -> None:
        for table in STATE_TABLES:
            txn.delete_range(table)
        self._write_guards(txn)

    def _resolves(self, txn: ReadTxn, position: Position) -> bool:
        """Return whether the log has the record of a position."""
        if position == LOG_START:
            return True
        return self._log.content_hash(txn, position.seq) == position.content_hash

    def _fits(self, txn: ReadTxn) -> bool:
        """Return whether position and tips of a restored state are those of this log."""
        position = self.position(txn)
        if not self._resolves(txn, position):
            return False
        for key, tip in txn.scan(STATE_META, _TIP, _TIPS_END):
            # "every tip must equal the log's author tip or be an ancestor of it"
            seq = self._log.seq_of(txn, tip)
            op = self._log.operation(txn, tip)
            if seq is None or seq > position.seq or op is None or op.author != key[len(_TIP) :]:
                return False
        return True


class Folding:
    """Applies operations one after the other, each in tables in memory above those of the batch.

    start, seq: the record before the first operation, and that of the last one applied. before: how
    many records the same call had applied before.
    """

    def __init__(
        self,
        txn: WriteTxn,
        layer: Layer,
        dag: LogDag,
        start: int,
        *,
        events: bool,
        before: Projection | None = None,
    ) -> None:
        """Use `State`."""
        self._txn = txn
        self._layer = layer
        self.dag: Final = dag
        # Two levels: an operation that fails empties its own, and those before stay in the batch.
        self._batch = [(table, Overlay(TableReader(txn, table))) for table in STATE_TABLES]
        self._own = {table: Overlay(below) for table, below in self._batch}
        self._tables = StateTables(
            self._own[STATE_DATA], self._own[STATE_SYSTEM], self._own[STATE_META]
        )
        self._wants_events = events
        self.start: Final = start
        self.seq = start
        self.size = 0
        """An upper bound of the bytes that `write` is going to write."""
        self.before: Final = 0 if before is None else before.applied
        self.events: list[Event] = [] if before is None else list(before.events)
        self.stall: Stall | None = None if before is None else before.stall

    def reader(self, table: str) -> StateReader:
        """Return a table as the last operation left it."""
        return StateView(self._own[table])  # a command may only read

    @property
    def is_stalled(self) -> bool:
        """Return whether an operation could not be applied."""
        # A method, because mypyc assumes that a `stall is None` seen in a loop stays true.
        return self.stall is not None

    def apply(self, op: Op) -> bool:
        """Apply the next operation; return False, with the stall, if it cannot be applied."""
        seq = self.seq + 1
        try:
            messages = self._messages(op)
        except StoreError:
            raise  # the store failed, not the operation
        except Exception as error:  # noqa: BLE001 - a machine is foreign code: any failure stalls
            # "Skipping is forbidden": the operation leaves no trace and is tried again.
            for overlay in self._own.values():
                overlay.clear()
            self.stall = Stall(seq, op.hash, error)
            return False
        self.seq = seq
        for table, below in self._batch:
            own = self._own[table]
            if own.changes:
                self.size += own.size
                below.absorb(own)
        if self._wants_events:
            self.events += [Event(seq, op.hash, message) for message in messages]
        return True

    def _messages(self, op: Op) -> list[Message]:
        """Check the author's chain, then apply; an operation applied before changes nothing."""
        key = _TIP + op.author
        meta = self._tables.meta
        tip = meta.get(key)
        if tip == op.hash:  # "op hash = T: duplicate: do nothing, succeed"
            return []
        if tip is None and op.prev != ZERO_HASH:  # "prev is not ZERO: error InvalidGenesis"
            raise InvalidGenesis(f"the author's first operation follows {op.prev.hex()}")
        if tip is not None and tip != op.prev:  # "otherwise: error BrokenChain"
            raise BrokenChain(tip, op.prev)
        meta.put(key, op.hash)
        # An empty payload is an acknowledgement: only the tip moves.
        return list(self._layer.apply(op, self._tables, self.dag)) if op.payload else []

    def write(self) -> None:
        """Write the changes of all applied operations to the tables."""
        self.size = 0
        for table, below in self._batch:
            if below.changes:
                below.write_to(self._txn, table)
