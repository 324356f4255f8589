"""Writer: append records to an Etch file and index them, as the reference implementation does.

New data is kept in memory and written in three steps, each synced before the next: first the new
records and blocks, at the end of the file; then the slots and labels that refer to them; last, in
one sector, the data length with the root. So after a crash a slot never refers to bytes that were
not written, and bytes after the data length show that the last step is missing. Opening such a file
adopts the complete records found there.

Source: CAD047 "Insert", "Label update"; docs/etch.md "File", "Durability".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from datalattice.cells import NIL_HASH, FetchCell, branch_hashes
from datalattice.errors import StoreError, StoreFailed, UsageError
from datalattice.limits import CELL_BYTES_MAX, EMBEDDED_BYTES_MAX, HASH_BYTES
from datalattice.store.base import children_first
from datalattice.store.disk import Disk, write_error
from datalattice.store.etch.layout import (
    BLOCK,
    DATA_START,
    ETCH_SLOT_BYTES,
    FIRST,
    FLAGS_AT,
    LENGTH_AT,
    LEVELS,
    NEXT,
    NO_ETCH_ROOT,
    PERSISTED,
    ROOT_BLOCK,
    SINGLE,
    STATUS_MASK,
    TARGET_MASK,
    block_bytes,
    digit_of,
    flags_for,
    pack_header,
    pack_record,
    slot_count,
)
from datalattice.store.etch.reader import Complaint, EtchFile, EtchSlot
from datalattice.store.files import replace_file
from datalattice.store.records import check_hash

TAIL_BYTES_MAX: Final = 8 * 1024 * 1024
"""When more new bytes than this are in memory, they are written."""

CELL_OVERHEAD: Final = 64
"""Counted in the memory size of a cell beside its encoding."""

ZEROS_READ: Final = 1024 * 1024
"""Bytes after the data length that are read at a time, to see whether all are zero."""

_LABEL_AT: Final = FLAGS_AT
_LABEL_BYTES: Final = 9  # of flags and memory size

_KINDS: Final = {kind: kind << 62 for kind in (SINGLE, BLOCK, FIRST, NEXT)}


def create_etch(disk: Disk, path: str) -> None:
    """Make a new, empty Etch file at `path` in one durable step, replacing a file there."""
    header = pack_header(DATA_START, NO_ETCH_ROOT)
    replace_file(disk, path, [header, bytes(DATA_START - len(header))])


class EtchWriter(EtchFile):
    """An Etch file, for reading and writing. The caller holds its lock."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk, path, write=True)
        self._written = self.length  # data bytes in the file; `_tail` goes after them
        self._tail = bytearray()
        self._slots: dict[int, bytes] = {}
        self._labels: dict[int, bytes] = {}
        self._header = pack_header(self.length, self.root_hash)
        self._failure: StoreError | None = None
        try:
            self._take_over_tail()
        except BaseException:
            self._file.close()
            raise

    @property
    def has_failed(self) -> bool:
        """Whether a write failed: further ones are refused until the file is opened again."""
        return self._failure is not None

    # --- bytes: the file, overlaid with pending changes ---

    def _read(self, offset: int, count: int) -> bytes:
        if offset >= self._written:
            start = offset - self._written
            data = bytes(self._tail[start : start + count])
            if len(data) < count:
                raise self.broken(offset, f"{count} bytes should be here, and the data ends")
            return data
        # Bytes of the file come first, then those that wait in memory.
        data = super()._read(offset, min(count, self._written - offset))
        label = self._labels.get(offset + _LABEL_AT)
        if label is not None and len(data) >= _LABEL_AT + _LABEL_BYTES:
            data = data[:_LABEL_AT] + label + data[_LABEL_AT + _LABEL_BYTES :]
        return data if len(data) == count else data + self._read(self._written, count - len(data))

    def _slot(self, block: int, index: int) -> int:
        waiting = self._slots.get(block + ETCH_SLOT_BYTES * index)
        return super()._slot(block, index) if waiting is None else int.from_bytes(waiting, "big")

    def _flags_at(self, position: int) -> int:
        label = self._labels.get(position + _LABEL_AT)
        return super()._flags_at(position) if label is None else label[0]

    def _set(self, block: int, index: int, kind: int, target: int) -> None:
        offset = block + ETCH_SLOT_BYTES * index
        data = (_KINDS[kind] | target).to_bytes(ETCH_SLOT_BYTES, "big")
        if offset >= self._written:
            start = offset - self._written
            self._tail[start : start + ETCH_SLOT_BYTES] = data
        else:
            self._slots[offset] = data

    def _append(self, data: bytes) -> int:
        position = self.length
        # Kept in memory: no byte reaches the file before the flush that orders them.
        self._tail += data
        self.length += len(data)
        return position

    def slots(self, complain: Complaint | None = None) -> Iterator[EtchSlot]:
        """Yield every slot that is not empty, after a flush."""
        if self._tail or self._slots or self._labels:
            self.flush()
        return super().slots(complain)

    # --- records ---

    def put(self, key: bytes, encoding: bytes, status: int, memory_size: int = 0) -> bool:
        """Store a cell, or raise the status of an existing one; return whether it is new.

        `memory_size` is used from PERSISTED on. The caller guarantees that the encoding has this
        hash, and that the status is true.
        """
        self.check()
        position = self.find(key)
        if position is not None:
            self._raise_label(position, status, memory_size)
            return False
        if not 1 <= len(encoding) <= CELL_BYTES_MAX:
            raise UsageError(f"a cell has 1 to {CELL_BYTES_MAX} bytes, got {len(encoding)}")
        branches = bool(branch_hashes(encoding))
        flags = flags_for(status, len(encoding), branches, EMBEDDED_BYTES_MAX)
        # "0 while below PERSISTED": cells below may be missing, so the size is not known.
        size = memory_size if status >= PERSISTED else 0
        data = pack_record(key, flags, size, encoding)
        self._insert(key, lambda: self._append(data))
        # Bounds the memory of a large import.
        if len(self._tail) > TAIL_BYTES_MAX:
            self.flush()
        return True

    def _raise_label(self, position: int, status: int, memory_size: int) -> None:
        old = self._read(position, _LABEL_AT + _LABEL_BYTES)[_LABEL_AT:]
        known = int.from_bytes(old[1:], "big")
        # "new status = max(old, new)": PERSISTED never becomes STORED again.
        highest = max(old[0] & STATUS_MASK, status)
        # The other bits say whether the cell is embedded, which never changes.
        flags = old[0] & ~STATUS_MASK | highest
        size = memory_size if highest >= PERSISTED and known == 0 else known
        new = bytes((flags,)) + size.to_bytes(8, "big")
        if new == old:
            return
        offset = position + _LABEL_AT
        if offset >= self._written:
            start = offset - self._written
            self._tail[start : start + _LABEL_BYTES] = new
        else:
            self._labels[offset] = new

    def restore(self, key: bytes, encoding: bytes) -> bool:
        """Write the encoding of a damaged record again; return whether there is a record.

        Key and length of a record never change, so these are the bytes that were there.
        """
        self.check()
        position = self.find(key)
        # A record that is still in memory has no bytes on the disk to repair.
        if position is None or position >= self._written:
            return False
        data = len(encoding).to_bytes(2, "big") + encoding
        try:
            self._file.write(position + _LABEL_AT + _LABEL_BYTES, data)
            self._file.sync()
        except OSError as error:
            raise self._failed(error) from error
        return True

    def set_root(self, root: bytes) -> None:
        """Set the hash of the root; the next flush writes it."""
        self.check()
        self.root_hash = check_hash(root)

    # --- the index ---

    def _insert(self, key: bytes, append: Callable[[], int]) -> None:
        """Index the record that `append` adds; its key is not there yet."""
        block = ROOT_BLOCK
        for level in range(LEVELS):
            count = slot_count(level)
            index = digit_of(key, level)
            slot = self._slot(block, index)
            kind, target = slot >> 62, slot & TARGET_MASK
            if slot == 0:
                self._set(block, index, SINGLE, append())
                return
            if kind == BLOCK:
                block = self._next_block(block + ETCH_SLOT_BYTES * index, target, level + 1)
                continue
            if kind == SINGLE:
                beside = (index + 1) % count
                # "If slot d+1 (cyclic) is empty: mark d as 10, append the record, slot d+1 =
                # 11|pos."
                if self._slot(block, beside) == 0:
                    position = append()
                    self._set(block, index, FIRST, target)
                    self._set(block, beside, NEXT, position)
                    return
                deeper = self._new_block(level + 1)
                self._set_plain(deeper, level + 1, target)
                self._set(block, index, BLOCK, deeper)
                block = deeper
                continue
            self._insert_at_chain(block, level, index, kind, append)
            return
        raise self.broken(block, f"the index has at most {LEVELS} levels")

    def _insert_at_chain(
        self, block: int, level: int, index: int, kind: int, append: Callable[[], int]
    ) -> None:
        """Insert where the slot is part of a chain: of this digit, or of another one."""
        count = slot_count(level)
        # "11 (the digit is occupied by another's chain)": that chain moves to a deeper block first.
        if kind == NEXT:
            self._move_chain(block, level, self._chain_start(block, index, count), None)
            self._set(block, index, SINGLE, append())
            return
        for step in range(1, count):
            slot = self._slot(block, (index + step) % count)
            if slot == 0:
                self._set(block, (index + step) % count, NEXT, append())
                return
            if slot >> 62 != NEXT:
                break
        self._move_chain(block, level, index, append())

    def _chain_start(self, block: int, index: int, count: int) -> int:
        for step in range(1, count):
            before = (index - step) % count
            kind = self._slot(block, before) >> 62
            if kind == FIRST:
                return before
            if kind != NEXT:
                break
        raise self.broken(block + ETCH_SLOT_BYTES * index, "a chain goes on here and never began")

    def _move_chain(self, block: int, level: int, first: int, extra: int | None) -> None:
        """Move a chain, and one more record, into a block of the next level."""
        count = slot_count(level)
        targets = [] if extra is None else [extra]
        used = []
        for step in range(count):
            index = (first + step) % count
            slot = self._slot(block, index)
            if step and slot >> 62 != NEXT:
                break
            used.append(index)
            targets.append(slot & TARGET_MASK)
        deeper = self._new_block(level + 1)
        # "Otherwise the records there move to a block of the next level" (docs/etch.md "File").
        for target in targets:
            self._set_plain(deeper, level + 1, target)
        # The chain is now in the deeper block; its other slots become free.
        for index in used[1:]:
            self._set(block, index, SINGLE, 0)
        self._set(block, first, BLOCK, deeper)

    def _new_block(self, level: int) -> int:
        if level >= LEVELS:
            raise self.broken(self.length, f"two keys agree in all {LEVELS} levels of the index")
        return self._append(bytes(block_bytes(level)))

    def _set_plain(self, block: int, level: int, target: int) -> None:
        """Put a record into a block without chains: records of one digit share a deeper block."""
        key = self._key_at(target)
        while True:
            index = digit_of(key, level)
            slot = self._slot(block, index)
            if slot == 0:
                self._set(block, index, SINGLE, target)
                return
            below = slot & TARGET_MASK
            if slot >> 62 != BLOCK:
                other, below = below, self._new_block(level + 1)
                self._set_plain(below, level + 1, other)
                self._set(block, index, BLOCK, below)
            block, level = below, level + 1

    # --- durability ---

    def check(self) -> None:
        """Check that nothing failed.

        Raises: StoreFailed: a write or sync failed; the file must be opened again.
        """
        if self._failure is not None:
            raise StoreFailed(f"{self.path}: an earlier write failed ({self._failure})")

    def flush(self) -> None:
        """Write everything, durably.

        Raises: StoreFull, StoreFailed: it could not be written; the file must be opened again.
        """
        self.check()
        header = pack_header(self.length, self.root_hash)
        if not self._tail and not self._slots and not self._labels and header == self._header:
            return
        try:
            if self._tail:
                self._file.write(self._written, bytes(self._tail))
                self._file.sync()  # before the slots: they must not refer to unwritten bytes
            if self._slots or self._labels:
                for offset, data in sorted([*self._slots.items(), *self._labels.items()]):
                    self._file.write(offset, data)
                self._file.sync()  # before the root: a committed root must be found
            # "Then the data length and the root, in one sector" (docs/etch.md "Durability").
            self._file.write(LENGTH_AT, header[LENGTH_AT:])
            self._file.sync()
        except OSError as error:
            raise self._failed(error) from error
        self._header = header
        self._written = self.length
        self.size = max(self.size, self.length)
        self._tail.clear()
        self._slots.clear()
        self._labels.clear()

    def _failed(self, error: OSError) -> StoreError:
        self._failure = write_error(error, self.path)
        return self._failure

    # --- after a crash ---

    def _take_over_tail(self) -> None:
        """Adopt records after the data length, if there are any, and check the index.

        Raises: Corruption: a slot still refers to no record.
        """
        torn = self._is_used_behind(self.length)
        root_lost = (
            self.root_hash not in (NO_ETCH_ROOT, NIL_HASH) and self.find(self.root_hash) is None
        )
        # Zeros after the data length, and the root is found: the last flush was complete.
        if not torn and not root_lost:
            return
        start = self.length
        found = list(self.scan(start))
        end = max([start, *(record.end for record in found)])
        end = max([end, *(at + size for at, size in self._blocks_behind(start))])
        self.length = self._written = end
        for slot in self.slots():
            if slot.kind != BLOCK and self._is_outside(slot.target):
                raise self.broken(
                    slot.offset,
                    f"a slot leads to {slot.target}, where no record is; collect the "
                    "file to keep what its root reaches",
                )
        for record in found:
            # Some of the records may have their slots already: the crash was between two steps.
            if self.find(record.key) is None:
                self._insert(record.key, lambda at=record.offset: at)  # type: ignore[misc]
        self.flush()

    def _is_outside(self, target: int) -> bool:
        return target < DATA_START or target + HASH_BYTES > self.length

    def _blocks_behind(self, start: int) -> list[tuple[int, int]]:
        found = [(at, block_bytes(level)) for at, level in self._blocks_found()]
        return [(at, size) for at, size in found if at >= start]

    def _is_used_behind(self, start: int) -> bool:
        for offset in range(start, self.size, ZEROS_READ):
            if self.read_some(offset, ZEROS_READ).count(0) < min(ZEROS_READ, self.size - offset):
                return True
        return False


def store_below(writer: EtchWriter, top: bytes, fetch: FetchCell, status: int) -> int:
    """Store the cell `top` and all below it at `status`, PERSISTED or more; count the new ones.

    Cells with at least that status are skipped, with all below them.
    Raises: MissingData: `fetch` does not have a cell; those stored by then are complete and stay.
    Cost:   memory by the depth of the value, not by its size.
    """
    # STORED needs no order; `put` writes it.
    assert status >= PERSISTED
    new = 0
    # A cell with this status has all cells below it here: nothing to do.
    for hash, encoding in children_first(
        [top],
        lambda hashes: [fetch(hashes[0])],  # one by one: the source may lack cells that are here
        lambda one: writer.status_of(one) >= status,
    ):
        new += writer.put(hash, encoding, status, memory_of(writer, encoding))
    return new


def memory_of(writer: EtchWriter, encoding: bytes) -> int:
    """Return the memory size of a cell whose branches are stored with theirs."""
    size = len(encoding) + CELL_OVERHEAD if len(encoding) > EMBEDDED_BYTES_MAX else 0
    for branch in branch_hashes(encoding):
        record = writer.get(branch)
        size += 0 if record is None else record.memory_size
    return size
