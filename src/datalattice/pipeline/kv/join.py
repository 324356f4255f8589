"""Join: what the driver does with the keys that tasks gathered: it writes them, in key order.

The runs of all tasks are merged, so that neighbours in a database are written together, whatever
task they come from; of one key what comes later is written over what came before. The databases as
they will be are made and stored ahead, some keys at a time, so that memory holds a piece of them
only. The change itself puts them in place, with the mark of the batch in a database
of its own: all of it is one signed update. Where others wrote to the same databases meanwhile, it
looks at the keys that they wrote, and at no others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, TypeVar

from datalattice.apps.kv import (
    ENTRIES,
    KV_SECTION,
    TYPE_TAGS,
    Entry,
    delete,
    live_entry,
    put_shown,
    read_entry,
    replica_name,
    shown_value,
)
from datalattice.cells import (
    EMPTY_INDEX,
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
from datalattice.lattice import VALUE, root_lattice
from datalattice.limits import EMBEDDED_BYTES_MAX, INDEX_KEY_BYTES
from datalattice.pipeline.kv.gather import ITEMS, store_order
from datalattice.pipeline.kv.options import HIDDEN_DATABASE
from datalattice.pipeline.parcels import (
    CELLS,
    Parcel,
    ParcelReader,
    Place,
    cells_of,
    items_of,
    misshapen,
)
from datalattice.pipeline.staging import STAGE_BYTES_MAX, Mark, Moved, StagedTasks, reopened

KEYS_MAX: Final = 8_192
"""Keys that are written before the database is stored, at most."""

RUNS_MAX: Final = 64
"""Runs that are read at a time: a parcel of each is in memory. More are written one lot after the
other, in their order."""

REBASE_KEYS_MAX: Final = 65_536
"""Where others wrote more keys than this meanwhile, all is prepared again."""

_NAME_CHARS: Final = 15
_PLAIN: Final = TYPE_TAGS["value"]


class Writes:
    """How keys are written: at one time, and under one name for counters."""

    def __init__(self, replica: str, now_ms: int) -> None:
        self._replica: Final = replica
        self._now_ms: Final = now_ms

    def over(self, stored: Value, item: Vector) -> Value:
        """Return the entry that shows what a row wants, in place of what is stored.

        Raises: BadFormat: it is nothing that a task stages.
        """
        _, tag, value, expire = item
        if tag is None:
            return delete(stored, self._now_ms)[0]
        if not isinstance(tag, int) or not (expire is None or isinstance(expire, int)):
            raise misshapen()
        return put_shown(stored, tag, value, expire, self._replica, self._now_ms)

    def again(self, stored: Value, ours: Entry | None) -> Value:
        """Return an entry that shows what ours does, in place of another that came meanwhile."""
        if ours is None or ours.is_tombstone():
            return delete(stored, self._now_ms)[0]
        value, expire = shown_value(ours), ours.expire
        return put_shown(stored, ours.tag, value, expire, self._replica, self._now_ms)

    def cleared(self, stored: Value) -> Value:
        """Return the entry of a key that is deleted if it is live."""
        return delete(stored, self._now_ms)[0]

    def is_live(self, stored: Value) -> bool:
        """Return whether readers see an entry."""
        return live_entry(stored, self._now_ms) is not None

    def marked(self, stored: Value, value: Value) -> Value:
        """Return the entry of a plain value."""
        return put_shown(stored, _PLAIN, value, None, self._replica, self._now_ms)


_K = TypeVar("_K", bound=Value)

_Piece = tuple[ParcelReader, Place]


def _order(pair: tuple[str, Value]) -> bytes:
    return store_order(pair[0])


class _Joined:
    """The databases of one batch."""

    def __init__(self, editor: Editor, writes: Writes, *, overwrite: bool) -> None:
        lattice = root_lattice()
        root = editor.root()
        cursor = RootLattice(lattice, lattice.zero() if root is None else root, editor.context)
        place = cursor.path(KV_SECTION, editor.key_pair.public_key, VALUE)
        self._present: Final = as_databases(place.get())
        self._editor: Final = editor
        self._writes: Final = writes
        self._overwrite: Final = overwrite
        self.before: Final[dict[str, Index]] = {}
        self.after: Final[dict[str, Index]] = {}

    def has(self, mark: Mark) -> bool:
        """Return whether the batch is there already."""
        return has_mark(self._present, mark)

    def take(self, tasks: StagedTasks) -> None:
        """Write what tasks staged."""
        with ExitStack() as files:
            runs: dict[str, list[list[_Piece]]] = {}
            for staged in tasks:
                self._note(files.enter_context(staged.open()), staged.digest, runs)
                if sum(map(len, runs.values())) >= RUNS_MAX:
                    self._merge(runs)
                    files.close()
            self._merge(runs)

    def _note(
        self, parcels: ParcelReader, digest: bytes, runs: dict[str, list[list[_Piece]]]
    ) -> None:
        """Store the cells of a task, and take note of where its runs are."""
        last: bytes | None = None
        for place, parcel in parcels.all(digest):
            if parcel.kind == CELLS:
                self._editor.stage_cells(cells_of(parcel))
                continue
            if parcel.kind != ITEMS:
                raise misshapen()
            name = _database_of(parcel)
            found = runs.setdefault(name, [])
            if parcel.head != last:
                found.append([])
                last = parcel.head
            found[-1].append((parcels, place))

    def _merge(self, runs: dict[str, list[list[_Piece]]]) -> None:
        """Write what runs have, key by key, and forget them."""
        for name, found in runs.items():
            if name not in self.after:
                self.before[name] = self.after[name] = as_store(self._present.get(name))
                if self._overwrite:
                    self._clear(name)
            for first in range(0, len(found), RUNS_MAX):
                items = [self._items(run) for run in found[first : first + RUNS_MAX]]
                # What is equal comes in the order of the runs.
                for piece in _pieces(heapq.merge(*items, key=_order)):
                    self._write(name, piece)
        runs.clear()

    def _items(self, run: list[_Piece]) -> Iterator[tuple[str, Value]]:
        """Yield (key, item) of a run, in the order of the keys."""
        for parcels, place in run:
            for encoding in items_of(parcels.again(place)):
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
            stored = made[key] if key in made else ENTRIES.get(store, key)
            entry = self._writes.over(stored, item)
            if entry is not stored:
                made[key] = entry
        self._put(name, list(made.items()))

    def _clear(self, name: str) -> None:
        """Delete every key that is there: what rows name is written over that."""
        live = (pair for pair in self.before[name].entries() if self._writes.is_live(pair[1]))
        for piece in _pieces(live):
            gone = [(key, self._writes.cleared(stored)) for key, stored in piece]
            self._keep(name, self.after[name].put_many(gone))

    def _put(self, name: str, entries: Sequence[tuple[str, Value]]) -> None:
        if entries:
            self._keep(name, ENTRIES.put_many(self.after[name], entries))

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
    """Prepare the change that writes what tasks gathered. See `staging.Join`.

    database: the one that all rows go to: batches of one name to several are several.
    overwrite: all keys of a database that is written to are deleted first.
    """
    writes = Writes(replica_name(editor.context), clock.now_ms())
    joined = _Joined(editor, writes, overwrite=overwrite)
    if database is not None:
        mark = replace(mark, key=f"{mark.key}/{database}")
    if joined.has(mark):
        return None
    joined.take(tasks)

    def change(cursor: RootLattice, keys: KeyPair) -> None:
        place = cursor.path(KV_SECTION, keys.public_key, VALUE)
        present = as_databases(place.get())
        if has_mark(present, mark):
            return
        made = present
        for name, after in joined.after.items():
            there = as_store(present.get(name))
            made = made.put(name, rebased(joined.before[name], after, there, writes))
        place.set(with_mark(made, mark, writes))

    return change


def as_databases(value: Value) -> Map:
    """Return databases by name; what is none reads as no databases."""
    return value if isinstance(value, Map) else EMPTY_MAP


def as_store(value: Value) -> Index:
    """Return a store; what is none reads as the empty one."""
    return value if isinstance(value, Index) else EMPTY_INDEX


def rebased(before: Index, after: Index, there: Index, writes: Writes) -> Index:
    """Return `there` with what was written between `before` and `after`.

    Where it is `before` still, that is `after` itself. Else it is `after` with what others wrote
    since; a key that both wrote shows what we wrote, as if we had done so just now.

    Raises: Moved: others wrote too many keys.
    """
    if same(before, there):
        return after
    theirs: list[tuple[Value, Value]] = []
    gone: list[Value] = []
    for key, _, was, is_there, now in IndexPart(before, there).differences():
        if len(theirs) + len(gone) >= REBASE_KEYS_MAX:
            raise Moved
        ours = after.get(key)
        if same(ours, was):
            if is_there:
                theirs.append((key, now))
            else:
                gone.append(key)
            continue
        entry = writes.again(now, read_entry(ours))
        if entry is None:
            gone.append(key)
        else:
            theirs.append((after.key_cell(key), entry))
    made = after.put_many(theirs)
    for key in gone:
        made = made.remove(key)
    return made


# --- marks ----------------------------------------------------------------------------------


def mark_key(mark: Mark) -> str:
    """Return the key that a mark has in its database: one that an Index can tell from others."""
    if len(mark.key.encode()) <= INDEX_KEY_BYTES:
        return mark.key
    return f"{mark.key[:_NAME_CHARS]}~{value_hash(mark.key)[:8].hex()}"


def has_mark(stores: Map, mark: Mark) -> bool:
    """Return whether a batch is there already."""
    entry = read_entry(as_store(stores.get(HIDDEN_DATABASE)).get(mark_key(mark)))
    return entry is not None and mark.is_in(shown_value(entry))


def with_mark(stores: Map, mark: Mark, writes: Writes) -> Map:
    """Return databases with the mark of a batch among them."""
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
        if len(encoding) > EMBEDDED_BYTES_MAX or may_refer(encoding):
            size += sum(len(below) for _, below, _ in novelty(value))
        if size >= STAGE_BYTES_MAX or len(piece) >= KEYS_MAX:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _database_of(parcel: Parcel) -> str:
    head = decode_message(parcel.head)
    if isinstance(head, Vector) and len(head) == 2 and isinstance(head[0], str):
        return head[0]
    raise misshapen()
