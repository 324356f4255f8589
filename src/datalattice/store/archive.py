"""Archive: a value with all cells below it as one stream of bytes, for backup or transport.

    head          magic `DLAR`, version (2 bytes), zero 2, hash of the value 32
    blocks        cells 4, length of what follows 4; lengths of the cells (2 each), the cells
    end           zero 4, zero 4, cells in all 8, SHA3-256 of everything before it 32

Cells come children first, each once. A cell is accepted only when all cells it refers to are there,
so the cells read so far are always complete, and writing and reading take constant memory. The
stream has no hashes; the reader computes them from the cells.

Source: docs/store.md "Calls".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from datalattice.cells import branch_hashes, decode
from datalattice.crypto import sha3_256_many
from datalattice.errors import BadFormat, DataLatticeError, StoreVersion
from datalattice.limits import CELL_BYTES_MAX
from datalattice.store.base import Store, announced_tops, children_first
from datalattice.store.cellstore import CellStore
from datalattice.store.checkedcells import CheckedCells
from datalattice.store.log.removed import CellSet
from datalattice.store.records import OnCells, check_hash

ARCHIVE_VERSION: Final = 1

BLOCK_BYTES: Final = 256 * 1024
"""Least bytes of the cells of a block, except the last one."""

_ANNOUNCED_MAX: Final = 50_000
"""Most cells that are announced in one pack."""

CHECKED_CELLS: Final = 1_024
"""Most cells that are checked at a time."""

BLOCK_BYTES_MAX: Final = BLOCK_BYTES + CELL_BYTES_MAX
BLOCK_CELLS_MAX: Final = BLOCK_BYTES  # a cell has at least one byte

_MAGIC: Final = b"DLAR"
_HEAD: Final = struct.Struct(">4sHH32s")
_BLOCK: Final = struct.Struct(">II")
_END: Final = struct.Struct(">Q32s")


def export_cells(
    store: Store,
    top: bytes,
    write: Callable[[bytes], object],
    progress: OnCells | None = None,
    *,
    receiver: Store | None = None,
    made: Mapping[bytes, bytes] | None = None,
) -> int:
    """Write the cell `top` of a store, and all below it, as an archive; return the number of cells.

    receiver: the store that will import it; cells it has already may be left out.
    made: encodings by hash of cells that no store has, such as a root without some of its parts.
    Raises: MissingData: a cell is not here. Corruption: one is damaged. The bytes written so far
        have no end mark, so `import_cells` refuses them.
    Memory: a bit for each 32 bytes of a store in a folder; an entry for each cell of other stores.
    """
    whole = hashlib.sha3_256()

    def emit(data: bytes) -> None:
        whole.update(data)
        write(data)

    # [magic 4][version 2][zero 2][hash of the value 32].
    emit(_HEAD.pack(_MAGIC, ARCHIVE_VERSION, 0, check_hash(top)))
    done = size = 0
    block: list[bytes] = []
    for _, encoding in _children_first(store, top, receiver, made or {}):
        block.append(encoding)
        size += len(encoding)
        done += 1
        # A block is written once it is large enough, so memory stays constant.
        if size >= BLOCK_BYTES:
            emit(_block(block))
            block, size = [], 0
            if progress is not None:
                progress(done)
    if block:
        emit(_block(block))
    # A block of no cells marks the end; the digest that follows covers it.
    emit(_BLOCK.pack(0, 0))
    write(_END.pack(done, whole.digest()))
    if progress is not None:
        progress(done)
    return done


def _block(encodings: list[bytes]) -> bytes:
    # [cells 4][length of what follows 4][lengths, 2 bytes each][the cells].
    lengths = struct.pack(f">{len(encodings)}H", *map(len, encodings))
    body = lengths + b"".join(encodings)
    return _BLOCK.pack(len(encodings), len(body)) + body


def _children_first(
    store: Store, top: bytes, receiver: Store | None, made: Mapping[bytes, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (hash, encoding) of a cell and all below it that `receiver` lacks, children first."""
    seen = CellSet(store.location_of)

    def encodings_of(hashes: list[bytes]) -> list[bytes | None]:
        found = store.get_encodings(hashes)
        return [made.get(hash, cell) for hash, cell in zip(hashes, found, strict=True)]

    return children_first(
        [top],
        encodings_of if made else store.get_encodings,
        lambda hash: not seen.add(hash) or (receiver is not None and receiver.has(hash)),
    )


def import_cells(
    store: Store,
    read: Callable[[int], bytes],
    progress: OnCells | None = None,
    *,
    apart: dict[bytes, bytes] | None = None,
) -> tuple[bytes, int]:
    """Stage the cells of an archive in a store; return the value's hash and the number of cells.

    Every cell is decoded and hashed. It must be sound, and come after the cells it refers to. The
    stream must match its checksum. No cell is announced, and no root or pin changes.
    read:  returns at most the requested number of bytes, none at the end of the stream.
    apart: receives unsound cells and those above them, by hash; without it they are an error.
    Raises: BadFormat: the stream is damaged, cut or not an archive; the text says at which byte.
            StoreVersion: a newer version wrote it. StoreFull, StoreFailed: it cannot be stored.
    Cost:   memory for one block.
    """
    stream = _ArchiveStream(read)
    magic, version, _, top = _HEAD.unpack(stream.take(_HEAD.size, "the head"))
    if magic != _MAGIC:
        raise BadFormat(f"not an archive: it begins with {magic!r} where {_MAGIC!r} is expected")
    # An unknown layout is refused rather than guessed.
    if version > ARCHIVE_VERSION:
        raise StoreVersion(
            f"an archive of version {version}; this package reads up to {ARCHIVE_VERSION}"
        )
    done = 0
    checked = CheckedCells(store, scanned=True, apart=apart)
    while True:
        begin = stream.offset
        count, length = _BLOCK.unpack(stream.take(_BLOCK.size, "a block"))
        if not count:
            break
        # Before the block is read: a forged length must not allocate memory.
        if not 2 * count <= length <= BLOCK_BYTES_MAX + 2 * count or count > BLOCK_CELLS_MAX:
            raise BadFormat(f"byte {begin}: a block of {count} cells in {length} bytes")
        cells = _cells_of(stream.take(length, "a block"), count, begin)
        _check_complete(store, cells, begin, apart or {})
        # Cells become staged, never announced, so a broken archive leaves only garbage.
        checked.put(cells.items())
        done += count
        if progress is not None:
            progress(done)
    digest = stream.digest()
    total, wanted = _END.unpack(stream.take(_END.size, "the end"))
    # The digest covers everything before it.
    if digest != wanted or total != done:
        raise BadFormat(f"byte {stream.offset}: the archive does not fit its checksum")
    # Bytes after the end would be copied with the file without ever being checked.
    if stream.more():
        raise BadFormat(f"byte {stream.offset}: something follows the end of the archive")
    # The head names the value; without this check an empty archive would pass.
    if not store.has(top) and top not in (apart or {}):
        raise BadFormat(f"the archive does not have its own value, 0x{top.hex()}")
    # Durable before the caller names the value, in a pin for example.
    store.sync()
    return top, done


def _cells_of(body: bytes, count: int, begin: int) -> dict[bytes, bytes]:
    lengths = struct.unpack_from(f">{count}H", body)
    # Lengths and cells fill the block exactly: nothing may hide between them.
    if 2 * count + sum(lengths) != len(body):
        raise BadFormat(f"byte {begin}: the cells of a block do not fill it")
    cells: list[bytes] = []
    at = 2 * count
    for length in lengths:
        encoding = body[at : at + length]
        try:
            decode(encoding)
        except DataLatticeError as error:
            offset = begin + _BLOCK.size + at
            raise BadFormat(f"byte {offset}: not a canonical encoding: {error}") from error
        cells.append(encoding)
        at += length
    # Hashes are not in the stream, so a sender cannot state a wrong one.
    return dict(zip(sha3_256_many(cells), cells, strict=True))


def _check_complete(
    store: Store, cells: dict[bytes, bytes], begin: int, apart: Mapping[bytes, bytes]
) -> None:
    """Check that each cell refers only to cells that are here or came before it."""
    before: set[bytes] = set()
    for hash, encoding in cells.items():
        for below in branch_hashes(encoding):
            if below not in before and not store.has(below) and below not in apart:
                raise BadFormat(
                    f"byte {begin}: the cell 0x{hash.hex()} refers to 0x{below.hex()}, "
                    "which did not come before it"
                )
        before.add(hash)


def unsound_below(store: Store, top: bytes, sound: Store | None = None) -> bool:
    """Return whether a cell of a store, or one below it, is not sound.

    sound: a store of sound cells only; cells that it has are not checked.
    Raises: MissingData: a cell is not here. Corruption: one is damaged.
    Cost:   reads each cell once; memory as `export_cells`.
    """
    apart: dict[bytes, bytes] = {}
    checked = CheckedCells(store, scanned=False, apart=apart)
    batch: list[tuple[bytes, bytes]] = []
    for cell in _children_first(store, top, sound, {}):
        batch.append(cell)
        if len(batch) >= CHECKED_CELLS:
            checked.check(batch)
            batch.clear()
            if apart:
                return True
    checked.check(batch)
    return bool(apart)


def announce_cells(store: CellStore, roots: Iterable[bytes]) -> None:
    """Announce the staged cells that a commit of these roots would announce, in several packs.

    A commit of the roots is small then, however many cells they have. Durable on return.
    Raises: MissingData: a cell is not here. StoreFull, StoreFailed: it cannot be written.
    Cost:   memory for `_ANNOUNCED_MAX` cells.
    """
    store.sync()
    batch: dict[bytes, None] = {}

    def is_done(hash: bytes) -> bool:
        # The cells below an announced cell are announced too.
        return hash in batch or store.announced(hash)

    tops = [top for root in roots for top in announced_tops(store.load(root), store)]
    for hash, _ in children_first(tops, store.get_encodings, is_done):
        batch[hash] = None
        if len(batch) >= _ANNOUNCED_MAX:
            store.heal((), list(batch))
            batch.clear()
    if batch:
        store.heal((), list(batch))


def copy_cells(
    source: Store,
    top: bytes,
    target: Store,
    progress: OnCells | None = None,
    *,
    apart: dict[bytes, bytes] | None = None,
) -> int:
    """Stage the cell `top` of `source`, and all below it, in `target`; return how many were new.

    A cell that the target has counts as complete, with all cells below it.
    apart: receives unsound cells and those above them, by hash; without it they are an error.
    Raises: MissingData: the source does not have a cell. Corruption: it is damaged there.
            BadFormat: a cell is not sound.
    """
    new = done = 0
    checked = CheckedCells(target, scanned=False, apart=apart)
    batch: dict[bytes, bytes] = {}

    def is_done(hash: bytes) -> bool:
        return hash in batch or target.has(hash) or (apart is not None and hash in apart)

    # Children first: a copy that stops halfway leaves only complete values.
    for hash, encoding in children_first([top], source.get_encodings, is_done):
        batch[hash] = encoding
        done += 1
        if len(batch) >= CHECKED_CELLS:
            new += checked.put(batch.items())
            batch.clear()
            if progress is not None:
                progress(done)
    new += checked.put(batch.items())
    if progress is not None:
        progress(done)
    return new


class _ArchiveStream:
    """Reads exact lengths from a stream, and hashes them."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._hash = hashlib.sha3_256()
        self.offset = 0

    def take(self, count: int, what: str) -> bytes:
        pieces: list[bytes] = []
        missing = count
        while missing:
            piece = self._read(missing)
            if not piece:
                at = self.offset + count - missing
                raise BadFormat(f"byte {at}: the archive ends in the middle of {what}")
            pieces.append(piece)
            missing -= len(piece)
        data = b"".join(pieces)
        # Every byte before the digest is covered by it, heads of blocks too.
        self._hash.update(data)
        self.offset += count
        return data

    def digest(self) -> bytes:
        return self._hash.digest()

    def more(self) -> bool:
        return bool(self._read(1))
