"""Hash index: finds the location of a cell by its hash. It is derived from the segments.

New entries stay in a table in memory. When it is large, it is written in key order to an ordered
table on disk. The *watermark* follows: up to which pack the index is complete, and the state of the
store there. So opening a store reads only the packs after the watermark. Nothing is synced;
`folder` decides whether the tables on disk may be used.

Source: docs/store.md "Index".
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from datalattice.cells import Cell
from datalattice.crypto import HashNumbers
from datalattice.engine import Engine
from datalattice.errors import Corruption
from datalattice.forking import freed_in_child, this_process
from datalattice.limits import HASH_BYTES
from datalattice.store.log.packing import (
    FLAG_ROOT,
    OFFSET_BITS,
    SPAN_BYTES,
    LogSpan,
    pack_spans,
    read_spans,
)

RECENT_ENTRIES_MAX: Final = 163_840
"""Entries kept in memory before they go to the table on disk: about 10 MB. With more, a large table
has fewer page writes, and opening after a kill reads more."""

FLUSH_ENTRIES: Final = 8_192
"""Entries that one transaction writes to the table on disk."""

TABLES: Final = ("meta", "places")
STAGED: Final = 1
"""The bit of a location of a staged cell: no committed root reaches it."""
NOWHERE: Final = -1
_UNKNOWN: Final = -2  # not among the entries in memory

_WATERMARK_KEY: Final = b"watermark"
_SPANS_KEY: Final = b"announced"
_EVERYWHERE: Final = 1 << 60  # greater than the end of every span
_ROWS_PREFIX: Final = b"row/"
_ROWS_BEHIND: Final = b"row0"
_ROW_BYTES: Final = HASH_BYTES + 8  # of a hash and its location
_WATERMARK: Final = struct.Struct(">QIIIQH32s")


class LogPosition(NamedTuple):
    """A position in the log: the end of the pack `sequence`."""

    sequence: int
    segment: int
    offset: int
    """Where the next pack begins, if it is in this segment."""
    trailer: int | None
    """Trailer of the pack `sequence`, which the next pack repeats; None: not known."""


class Watermark(NamedTuple):
    """Up to where an index is complete, and the state of the store there."""

    position: LogPosition
    staged: int
    """Upper bound on the number of staged cells."""
    root: bytes | None


BEGINNING: Final = Watermark(LogPosition(0, 0, 0, 0), 0, None)


def read_watermark(data: bytes | None) -> Watermark:
    """Return the watermark from the bytes in the table.

    Raises: Corruption: the bytes are not a watermark.
    """
    if data is None:
        return BEGINNING
    # LMDB has no checksums: a wrong length is damage, and the index is made again.
    if len(data) != _WATERMARK.size:
        raise Corruption(f"the index has a watermark of {len(data)} bytes, not {_WATERMARK.size}")
    sequence, segment, offset, trailer, staged, flags, root = _WATERMARK.unpack(data)
    position = LogPosition(sequence, segment, offset, trailer)
    return Watermark(position, staged, root if flags & FLAG_ROOT else None)


class HashIndex:
    """Locations by hash: those in memory, then those on disk."""

    def __init__(self, engine: Engine, *, recent_max: int = RECENT_ENTRIES_MAX) -> None:
        self._engine = engine
        self._recent_max = recent_max
        self._recent = HashNumbers()
        self._forgotten: set[bytes] = set()
        self._is_removed: Callable[[int], bool] | None = None
        self.swept_before = 0
        """Segments before this one may have bytes of cells that a collection removed."""
        # All look-ups use one snapshot, one thread at a time.
        self._lock = freed_in_child(threading.Lock())
        self._process = this_process.id
        self._view = engine.read()
        self._use_view()
        self._spans: list[LogSpan] = []  # announced: those on disk, and those since
        self._spans_since: list[LogSpan] = []
        self._are_spans_new = False
        self._read_spans()

    def find(self, hash: bytes) -> int:
        """Return the location of a cell, or NOWHERE."""
        location = self._recent.get(hash)
        if location is None:
            with self._lock:
                if self._process != this_process.id:
                    self._begin_in_child()
                found = self._get(hash)
            if found is None:
                return NOWHERE
            location = int.from_bytes(found, "big")
        if self._is_removed is not None and self.is_removed(location):
            return NOWHERE
        return self._as_announced(location) if location & STAGED else location

    def _begin_in_child(self) -> None:
        """Begin a view of this process, which was forked; the caller holds the lock."""
        # The parent's view would lose its pages once the parent renews it.
        self._process = this_process.id
        self._view.renew()
        self._use_view()

    def _use_view(self) -> None:
        """Read from the view, which has begun or was renewed."""
        self._get = self._view.getter("places")
        self._has_places = self._view.count("places") > 0

    # --- spans of the log whose cells are announced, though their entries say that they are staged

    def announce(self, spans: list[LogSpan]) -> None:
        """Count the cells in spans of the log as announced; their entries stay as they are."""
        self._are_spans_new = True
        self._spans_since += spans
        self._spans = sorted({*self._spans, *spans})

    def _read_spans(self) -> None:
        with self._lock:
            if self._process != this_process.id:
                self._begin_in_child()
            data = self._view.get("meta", _SPANS_KEY) or b""
        spans = read_spans(data, 0, len(data) // SPAN_BYTES)
        self._spans = sorted({*spans, *self._spans_since})

    def forget_spans(self, is_dropped: Callable[[int], bool]) -> None:
        """Forget the spans in dropped segments; the next `flush` writes what is left."""
        left = [span for span in self._spans if not is_dropped(span.begin >> OFFSET_BITS)]
        self._are_spans_new = self._are_spans_new or len(left) < len(self._spans)
        self._spans = left

    def _as_announced(self, location: int) -> int:
        """Return a location without the bit of staged cells if it is in an announced span."""
        spans = self._spans
        if spans and location >= 0:
            begin = location >> 15
            at = bisect_right(spans, LogSpan(begin, _EVERYWHERE, 0)) - 1
            if at >= 0 and begin < spans[at].end:
                return location & ~STAGED
        return location

    def is_removed(self, location: int) -> bool:
        """Return whether the cell at a location counts as not here."""
        is_removed = self._is_removed
        return is_removed is not None and location >= 0 and is_removed(location)

    def find_many(self, hashes: list[bytes]) -> list[int]:
        """Return the locations of cells, NOWHERE for those that are not here."""
        recent = self._recent
        with self._lock:
            if self._process != this_process.id:
                self._begin_in_child()
            # A new store has no places on disk, and a first sync looks for each of its cells.
            absent = _UNKNOWN if self._has_places else NOWHERE
            out = recent.get_many(hashes, absent)
            unknown = [
                hash for hash, location in zip(hashes, out, strict=True) if location == _UNKNOWN
            ]
            if unknown:
                found = iter(self._view.get_many("places", unknown))
                for i in range(len(out)):
                    if out[i] == _UNKNOWN:
                        packed = next(found)
                        out[i] = NOWHERE if packed is None else int.from_bytes(packed, "big")
        if self._spans:
            out = [self._as_announced(at) if at & STAGED else at for at in out]
        if self._is_removed is not None:
            return [NOWHERE if self.is_removed(location) else location for location in out]
        return out

    def has_any(self, hashes: list[bytes]) -> bool:
        """Return whether one of several cells is here."""
        # The common case, with no list of locations: none is in memory, and none on disk.
        if not self._recent.has_any(hashes):
            with self._lock:
                if self._process != this_process.id:
                    self._begin_in_child()
                if not self._has_places:
                    return False
                found = self._view.get_many("places", hashes)
            if not any(found):
                return False
        return max(self.find_many(hashes)) >= 0

    def split_new(
        self, parts: list[tuple[bytes, bytes, object]], home: object
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return (encodings of new cells by hash, hashes of staged cells) of a commit's parts.

        Cells that were loaded from `home` are looked up. Of other cells only recent ones are
        recognised: storing some cells twice costs less than looking up every new cell.
        """
        fresh: dict[bytes, bytes] = {}
        staged: list[bytes] = []
        recent = self._recent
        for hash, encoding, cell in parts:
            found = recent.get(hash)
            if found is None:
                # Loaded from this store, so it is probably here.
                if isinstance(cell, Cell) and cell._loader is home:
                    found = self.find(hash)
            elif self._is_removed is not None and self.is_removed(found):
                found = NOWHERE
            if found is None or found < 0:
                fresh[hash] = encoding
            elif found & STAGED and self._as_announced(found) & STAGED:
                staged.append(hash)
        return fresh, staged

    def entries(
        self, first: bytes = b"", behind: bytes | None = None
    ) -> Iterator[tuple[bytes, int]]:
        """Yield all (hash, location), also of cells that were forgotten because they are damaged.

        With bounds only hashes from `first` on, and before `behind`.
        """
        # Copied before the snapshot: an entry that is flushed meanwhile is in both then, never in
        # neither.
        recent = dict(self._recent.items())
        if first or behind is not None:
            recent = {
                hash: location
                for hash, location in recent.items()
                if hash >= first and (behind is None or hash < behind)
            }
        with self._engine.read() as view:
            for hash, packed in view.scan("places", first, behind):
                location = recent.pop(hash, NOWHERE)
                if location < 0:
                    location = int.from_bytes(packed, "big")
                yield hash, self._as_announced(location)
        # The entries that are not on disk yet follow, in no order.
        for hash, location in recent.items():
            if location >= 0:
                yield hash, self._as_announced(location)

    def count(self) -> int:
        """Return the number of entries, those of forgotten cells among them."""
        recent = sorted(dict(self._recent.items()))
        with self._engine.read() as view:
            found = view.get_many("places", recent)
            return view.count("places") + found.count(None)

    def entries_max(self) -> int:
        """Return an upper bound on `count`, without a look-up."""
        with self._lock:
            if self._process != this_process.id:
                self._begin_in_child()
            return self._view.count("places") + len(self._recent)

    def discard(self, hashes: Iterable[bytes]) -> None:
        """Remove entries permanently, also from the tables on disk.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        with self._engine.write() as txn:
            for hash in hashes:
                txn.delete("places", hash)
                self._recent.remove(hash)
                self._forgotten.discard(hash)
        self.refresh()

    # --- the collection of garbage ---

    def hide_removed(self, is_removed: Callable[[int], bool] | None) -> None:
        """Hide all cells at locations for which `is_removed` is true; None: hide none.

        `sweep` removes their entries one after another, but they must disappear at once: a store
        never holds a cell without the cells below it.
        """
        self._is_removed = is_removed

    def batch(self, after: bytes, count: int) -> list[tuple[bytes, int]]:
        """Return (hash, location) of the next entries on disk after a hash, in order."""
        out: list[tuple[bytes, int]] = []
        with self._engine.read() as view:
            for hash, packed in view.scan("places", after + b"\0" if after else b""):
                out.append((hash, self._as_announced(int.from_bytes(packed, "big"))))
                if len(out) >= count:
                    break
        return out

    def sweep(self, hashes: list[bytes], is_removed: Callable[[int], bool]) -> int:
        """Remove entries of `hashes` at removed locations, in memory and on disk; count them.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        count = 0
        recent = self._recent
        with self._engine.write() as txn:
            for hash in hashes:
                location = recent.get(hash)
                if location is not None and location >= 0 and is_removed(location):
                    recent.remove(hash)
                packed = txn.get("places", hash)
                # If the cell was committed again since, the entry has a later location and stays.
                if packed is not None and is_removed(int.from_bytes(packed, "big")):
                    txn.delete("places", hash)
                    count += 1
        return count

    # --- rows of other modules, which may be lost with the index ---

    def rows(self) -> dict[bytes, bytes]:
        """Return all rows by key."""
        with self._engine.read() as view:
            return {
                key[len(_ROWS_PREFIX) :]: row
                for key, row in view.scan("meta", _ROWS_PREFIX, _ROWS_BEHIND)
            }

    def keep_rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Put rows, and remove those that are None.

        Raises: StoreFull, StoreFailed: they cannot be written.
        """
        with self._engine.write() as txn:
            for key, row in rows.items():
                if row is None:
                    txn.delete("meta", _ROWS_PREFIX + key)
                else:
                    txn.put("meta", _ROWS_PREFIX + key, row)
        self.refresh()

    def watermark(self) -> Watermark:
        """Return up to where the tables on disk, as last looked at, are complete."""
        with self._lock:
            if self._process != this_process.id:
                self._begin_in_child()
            return read_watermark(self._view.get("meta", _WATERMARK_KEY))

    @property
    def recent_count(self) -> int:
        """The number of entries in memory."""
        return len(self._recent)

    @property
    def is_large(self) -> bool:
        """Whether the entries in memory should be written now."""
        return len(self._recent) >= self._recent_max

    def add(self, hashes: list[bytes], locations: list[int]) -> None:
        """Add entries; later ones replace earlier ones."""
        self._recent.add(hashes, locations)
        # A healed cell is found again.
        if self._forgotten:
            self._forgotten.difference_update(hashes)

    def forget(self, hash: bytes) -> None:
        """Hide the entry of a cell whose bytes turned out to be damaged; the disk keeps it."""
        # In memory only: after a restart the bytes are read, and found damaged, again.
        self._recent.add([hash], [NOWHERE])
        self._forgotten.add(hash)

    def flush(self, watermark: Watermark) -> None:
        """Write the entries in memory to the table on disk, in key order, with the watermark.

        Raises: StoreFull, StoreFailed: it cannot be written; the entries stay in memory.
        """
        recent = self._recent
        if self._forgotten or self._is_removed is not None:
            recent = HashNumbers()
            for hash, location in self._recent.items():
                if location >= 0 and not self.is_removed(location):
                    recent.add([hash], [location])
        # Key order turns random page writes of LMDB into nearly sequential ones.
        rows = recent.sorted_rows()
        flags = 0 if watermark.root is None else FLAG_ROOT
        sequence, segment, offset, trailer = watermark.position
        mark = _WATERMARK.pack(
            sequence,
            segment,
            offset,
            trailer or 0,
            watermark.staged,
            flags,
            watermark.root or bytes(32),
        )
        # In key order and in parts: LMDB keeps changed pages in memory until a transaction ends.
        # Entries ahead of the watermark are harmless, since only durable packs are indexed.
        step = _ROW_BYTES * FLUSH_ENTRIES
        for first in range(0, len(rows), step):
            places = [
                (rows[at : at + HASH_BYTES], rows[at + HASH_BYTES : at + _ROW_BYTES])
                for at in range(first, min(first + step, len(rows)), _ROW_BYTES)
            ]
            with self._engine.write() as txn:
                txn.put_many("places", places)
        with self._engine.write() as txn:
            # After its entries: a crash in between leaves entries that the log has too.
            txn.put("meta", _WATERMARK_KEY, mark)
            if self._are_spans_new:
                txn.put("meta", _SPANS_KEY, pack_spans(self._spans))
        self._are_spans_new = False
        self._spans_since = []
        self.refresh()
        # Damaged cells stay hidden in memory; the table on disk still has their entries.
        self._recent = HashNumbers()
        self._recent.add(list(self._forgotten), [NOWHERE] * len(self._forgotten))

    @property
    def read_only(self) -> bool:
        """Whether the tables belong to another writer."""
        return self._engine.read_only

    @property
    def is_damaged(self) -> bool:
        """Whether a reading found bytes in the tables that differ from those written."""
        return self._engine.is_damaged

    def is_readable(self) -> bool:
        """Return whether every entry can be read; goes through all of them."""
        try:
            deque(self.entries(), maxlen=0)
        except Corruption:
            return False
        return True

    def refresh(self) -> None:
        """Use the newest state of the tables on disk from now on."""
        with self._lock:
            self._process = this_process.id
            self._view.renew()
            self._use_view()
        self._read_spans()

    # --- the index of a reader: the tables on disk belong to the writer ---

    def drop_recent(self) -> None:
        """Drop all entries in memory: the tables on disk have them, or the log is read again."""
        self._forgotten.clear()
        self._recent = HashNumbers()
        self._spans_since = []
        self._read_spans()

    def sync(self) -> None:
        """Return when all flushed entries are durable."""
        self._engine.sync()

    def close(self) -> None:
        """Close the tables."""
        with self._lock:
            self._view.close()
        self._engine.close()
