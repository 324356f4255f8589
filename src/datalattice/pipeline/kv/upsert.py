"""Driver side of the kv sink: write the keys that tasks staged, in key order.

The driver merges the runs of all tasks, so that it writes neighbouring keys together. Of several
rows with one key it writes the row of the later task and run last. It builds and stores the new
databases before the edit, some keys at a time, which bounds memory. The edit itself is short: it
puts the databases into the root and the batch's mark into a database of its own, as one signed
update. If other writers changed a database meanwhile, the edit reads only the keys that they wrote.

Source: docs/spark-kv.md "Writing", "Exactly once".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, TypeVar

from datalattice.apps.kv import (
    ENTRY_KEYS,
    KV_SECTION,
    TYPE_TAGS,
    Entry,
    as_store,
    delete,
    live_entry,
    put_shown,
    read_entry,
    replica_name,
    shown_value,
)
from datalattice.cells import (
    EMPTY_MAP,
    Index,
    IndexPart,
    Map,
    Value,
    Vector,
    decode,
    decode_message,
    encode,
    key_bytes,
    may_refer,
    novelty,
    same,
    value_hash,
)
from datalattice.client import Change, Editor
from datalattice.clock import Clock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import VALUE_KEY, root_lattice
from datalattice.limits import EMBEDDED_BYTES_MAX, INDEX_KEY_BYTES
from datalattice.pipeline.exactly_once.job import (
    STAGE_BYTES_MAX,
    Mark,
    RootMoved,
    StagedTasks,
    reopened,
)
from datalattice.pipeline.exactly_once.task_files import (
    CELLS,
    Parcel,
    ParcelReader,
    ParcelRef,
    misshapen,
    parcel_cells,
    parcel_items,
)
from datalattice.pipeline.kv.options import HIDDEN_DATABASE
from datalattice.pipeline.kv.stage import ITEMS, store_order

_KEYS_MAX: Final = 8_192
"""Most keys that the driver writes before it stores the database."""

RUNS_MAX: Final = 64
"""Most runs that are merged at a time: a parcel of each is in memory."""

REBASE_KEYS_MAX: Final = 65_536
"""If other writers changed more keys meanwhile, the driver prepares the batch again."""

_NAME_CHARS: Final = 15
_PLAIN: Final = TYPE_TAGS["value"]


class Writes:
    """Writes entries, all with the same time and, for counters, the same replica name."""

    def __init__(self, replica: str, now_ms: int) -> None:
        self._replica: Final = replica
        self._now_ms: Final = now_ms

    def over(self, stored: Value, item: Vector) -> Value:
        """Return the stored entry as a staged item changes it.

        Raises: BadFormat: the item is malformed.
        """
        _, tag, value, expire = item
        # NULL deletes. The tombstone wins over older entries that other replicas still have.
        if tag is None:
            return delete(stored, self._now_ms)[0]
        if not isinstance(tag, int) or not (expire is None or isinstance(expire, int)):
            raise misshapen()
        return put_shown(stored, tag, value, expire, self._replica, self._now_ms)

    def again(self, stored: Value, ours: Entry | None) -> Value:
        """Return our entry written again over one that another writer stored meanwhile."""
        if ours is None or ours.is_tombstone():
            return delete(stored, self._now_ms)[0]
        value, expire = shown_value(ours), ours.expire
        return put_shown(stored, ours.tag, value, expire, self._replica, self._now_ms)

    def is_live(self, stored: Value) -> bool:
        """Return whether readers see an entry."""
        return live_entry(stored, self._now_ms) is not None

    def marked(self, stored: Value, value: Value) -> Value:
        """Return the entry of a plain value."""
        return put_shown(stored, _PLAIN, value, None, self._replica, self._now_ms)


_K = TypeVar("_K", bound=Value)

_Piece = tuple[ParcelReader, ParcelRef]


def _order(pair: tuple[str, Value]) -> bytes:
    return store_order(pair[0])


class _BatchDatabases:
    """The databases that one batch writes."""

    def __init__(self, editor: Editor, writes: Writes, *, overwrite: bool) -> None:
        lattice = root_lattice()
        root = editor.root()
        cursor = RootLattice(lattice, lattice.zero() if root is None else root, editor.context)
        databases = cursor.path(KV_SECTION, editor.key_pair.public_key, VALUE_KEY)
        self._present: Final = as_databases(databases.get())
        self._editor: Final = editor
        self._writes: Final = writes
        self._overwrite: Final = overwrite
        self.before: Final[dict[str, Index]] = {}
        self.after: Final[dict[str, Index]] = {}

    def has(self, mark: Mark) -> bool:
        """Return whether the batch is already written."""
        return has_mark(self._present, mark)

    def take(self, tasks: StagedTasks) -> None:
        """Write what the tasks staged."""
        with ExitStack() as files:
            runs: dict[str, list[list[_Piece]]] = {}
            for staged in tasks:
                self._note(files.enter_context(staged.open()), staged.digest, runs)
                # Merged before the next task's runs: later tasks are written over earlier ones.
                if sum(map(len, runs.values())) >= RUNS_MAX:
                    self._merge(runs)
                    files.close()
            self._merge(runs)

    def _note(
        self, parcels: ParcelReader, digest: bytes, runs: dict[str, list[list[_Piece]]]
    ) -> None:
        """Store the cells of a task, and record the positions of its runs."""
        last: bytes | None = None
        for ref, parcel in parcels.all(digest):
            # Large values are stored before the edit, because the edit must be short.
            if parcel.kind == CELLS:
                self._editor.stage_cells(parcel_cells(parcel))
                continue
            if parcel.kind != ITEMS:
                raise misshapen()
            name = _database_of(parcel)
            found = runs.setdefault(name, [])
            # Each run of a task has another head, so a new head begins a run.
            if parcel.head != last:
                found.append([])
                last = parcel.head
            found[-1].append((parcels, ref))

    def _merge(self, runs: dict[str, list[list[_Piece]]]) -> None:
        """Write the entries of runs, key by key, and clear `runs`."""
        for name, found in runs.items():
            if name not in self.after:
                self.before[name] = self.after[name] = as_store(self._present.get(name))
                if self._overwrite:
                    self._clear(name)
            for first in range(0, len(found), RUNS_MAX):
                items = [self._items(run) for run in found[first : first + RUNS_MAX]]
                # heapq.merge is stable: equal keys come in the order of their runs.
                for piece in _pieces(heapq.merge(*items, key=_order)):
                    self._write(name, piece)
        # The files of these tasks are closed next.
        runs.clear()

    def _items(self, run: list[_Piece]) -> Iterator[tuple[str, Value]]:
        """Yield (key, item) of a run in key order."""
        for parcels, ref in run:
            for encoding in parcel_items(parcels.again(ref)):
                item = decode(encoding, self._editor.loader)
                if not isinstance(item, Vector) or len(item) != 4:
                    raise misshapen()
                key = item[0]
                if not isinstance(key, str):
                    raise misshapen()
                yield key, item

    def _write(self, name: str, piece: list[tuple[str, Value]]) -> None:
        store = self.after[name]
        made: dict[str, Value] = {}
        for key, item in piece:
            assert isinstance(item, Vector)
            # A key may be in two runs of one piece; the second is written over the first.
            stored = made[key] if key in made else ENTRY_KEYS.get(store, key)
            entry = self._writes.over(stored, item)
            # An equal value changes nothing, so the entry keeps its time.
            if entry is not stored:
                made[key] = entry
        self._put(name, list(made.items()))

    def _clear(self, name: str) -> None:
        """Delete every key of a database before the rows are written."""
        live = (pair for pair in self.before[name].entries() if self._writes.is_live(pair[1]))
        # In pieces, because the tombstones of a large database may not fit into memory.
        for piece in _pieces(live):
            gone = [(key, self._writes.again(stored, None)) for key, stored in piece]
            self._keep(name, self.after[name].put_many(gone))

    def _put(self, name: str, entries: Sequence[tuple[str, Value]]) -> None:
        if entries:
            self._keep(name, ENTRY_KEYS.put_many(self.after[name], entries))

    def _keep(self, name: str, grown: Index) -> None:
        self._editor.stage(grown)
        self.after[name] = reopened(grown, self._editor.loader)


def upserting(
    editor: Editor,
    tasks: StagedTasks,
    mark: Mark,
    clock: Clock,
    *,
    database: str | None = None,
    overwrite: bool = False,
) -> Change[None] | None:
    """Prepare the change that writes what tasks staged; a `PrepareChange` of `exactly_once`.

    database: the database of all rows. The mark names it, so that saves with one `writeId` to
    several databases are separate.
    overwrite: delete all keys of the databases that are written to first.
    """
    writes = Writes(replica_name(editor.context), clock.now_ms())
    joined = _BatchDatabases(editor, writes, overwrite=overwrite)
    # "Saves of one `writeId` to two databases are separate" (docs/spark-kv.md, Exactly once).
    if database is not None:
        mark = replace(mark, key=f"{mark.key}/{database}")
    if joined.has(mark):
        return None
    joined.take(tasks)

    def change(cursor: RootLattice, keys: KeyPair) -> None:
        databases = cursor.path(KV_SECTION, keys.public_key, VALUE_KEY)
        present = as_databases(databases.get())
        # Checked again inside the edit: another driver may have committed meanwhile.
        if has_mark(present, mark):
            return
        made = present
        for name, after in joined.after.items():
            there = as_store(present.get(name))
            made = made.put(name, rebased(joined.before[name], after, there, writes))
        databases.set(with_mark(made, mark, writes))

    return change


def as_databases(value: Value) -> Map:
    """Return databases by name; a value that is not a Map counts as no databases."""
    return value if isinstance(value, Map) else EMPTY_MAP


def rebased(before: Index, after: Index, there: Index, writes: Writes) -> Index:
    """Return `there` with the changes from `before` to `after` applied.

    If `there` is still `before`, that is `after`. Otherwise it is `after` with the changes of the
    other writers. A key that both wrote gets our value, as if it were written just now.

    Raises: RootMoved: others wrote more than `REBASE_KEYS_MAX` keys.
    """
    # The usual case: no other writer touched the database.
    if same(before, there):
        return after
    theirs: list[tuple[Value, Value]] = []
    gone: list[Value] = []
    for key, _, was, is_there, now in IndexPart(before, there).differences():
        if len(theirs) + len(gone) >= REBASE_KEYS_MAX:
            raise RootMoved
        ours = after.get(key)
        # A key that we did not write keeps what the others wrote.
        if same(ours, was):
            if is_there:
                theirs.append((key, now))
            else:
                gone.append(key)
            continue
        # "A key that both wrote gets the row's value" (docs/spark-kv.md, Exactly once).
        entry = writes.again(now, read_entry(ours))
        if entry is None:
            gone.append(key)
        else:
            theirs.append((after.key_cell(key), entry))
    made = after.put_many(theirs)
    for key in gone:
        # The other writer cleaned up a tombstone, and so removed the key.
        made = made.remove(key)
    return made


# --- marks ----------------------------------------------------------------------------------


def mark_key(mark: Mark) -> str:
    """Return a mark's key; a long one is cut and ends with a hash, to at most 32 bytes."""
    # An Index compares only the first 32 bytes of keys, so two longer keys could share an entry.
    if len(mark.key.encode()) <= INDEX_KEY_BYTES:
        return mark.key
    # "Under a key of at most 32 bytes that names the query" (docs/spark-kv.md, Exactly once).
    return f"{mark.key[:_NAME_CHARS]}~{value_hash(mark.key)[:8].hex()}"


def has_mark(stores: Map, mark: Mark) -> bool:
    """Return whether a batch is already written."""
    entry = read_entry(as_store(stores.get(HIDDEN_DATABASE)).get(mark_key(mark)))
    return entry is not None and mark.is_in(shown_value(entry))


def with_mark(stores: Map, mark: Mark, writes: Writes) -> Map:
    """Return databases with the mark of a batch added."""
    kept = as_store(stores.get(HIDDEN_DATABASE))
    key = mark_key(mark)
    stored = kept.get(key)
    entry = read_entry(stored)
    value = mark.over(None if entry is None else shown_value(entry))
    return stores.put(HIDDEN_DATABASE, kept.put(key, writes.marked(stored, value)))


# --- pieces ---------------------------------------------------------------------------------


def _pieces(entries: Iterator[tuple[_K, Value]]) -> Iterator[list[tuple[_K, Value]]]:
    """Yield entries in pieces of bounded size."""
    piece: list[tuple[_K, Value]] = []
    size = 0
    for key, value in entries:
        piece.append((key, value))
        encoding = encode(value)
        size += len(encoding) + len(key_bytes(key))
        # Only a large value, or one with references, has cells of its own; they count as well.
        if len(encoding) > EMBEDDED_BYTES_MAX or may_refer(encoding):
            size += sum(len(below) for _, below, _ in novelty(value))
        if size >= STAGE_BYTES_MAX or len(piece) >= _KEYS_MAX:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _database_of(parcel: Parcel) -> str:
    head = decode_message(parcel.head)
    if isinstance(head, Vector) and len(head) == 2 and isinstance(head[0], str):
        return head[0]
    raise misshapen()
