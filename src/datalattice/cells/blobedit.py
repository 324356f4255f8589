"""Blob edit: builds long byte strings from a stream, and changes parts of them.

Every result is the canonical blob of its bytes, the same as if it had been made at once. Parts that
a change does not touch are shared with the original. A run of zeros uses one subtree of each size
many times, so a file of 2**59 bytes with a gap takes a few dozen cells.

Source: docs/cells.md "Building and editing blobs", "Blob and String"; CAD003 "Blob".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from datalattice.cells.blobs import TAG_BLOB, Blob, closed_blob, make_blob
from datalattice.cells.cell import (
    CHUNK_HEAD,
    TAG_REF,
    UncachedLoader,
    Value,
    broken,
    deref,
    kid_hash,
    put_vlq,
    same_kid,
    value_hash,
)
from datalattice.cells.message import decode_trusted
from datalattice.cells.scalars import require_type
from datalattice.cells.scan import chunk_span
from datalattice.crypto import sha3_256_cut, sha3_256_many
from datalattice.errors import MissingData, TypeMismatch, UsageError
from datalattice.limits import BLOB_BYTES_MAX, CHUNK_BYTES, FAN_OUT

STAGED_BYTES: Final = FAN_OUT * FAN_OUT * CHUNK_BYTES
"""Finished parts of this size are handed to `stage`, 1 MiB."""

STAGED_LEVEL: Final = 2
"""The level of a part of `STAGED_BYTES`; a chunk has level 0."""

StageValue = Callable[[Value], object]
"""Receives a finished part of a blob and frees its memory, for example `CellStore.put`."""


class CellRun:
    """Cells of one length, their encodings end to end."""

    __slots__ = ("encodings", "hashes", "length")

    def __init__(self, hashes: list[bytes], encodings: bytes, length: int) -> None:
        self.hashes: Final = hashes
        self.encodings: Final = encodings
        self.length: Final = length
        """Bytes of each encoding."""

    def encoding(self, hash: bytes) -> bytes:
        """Return the encoding of one of the cells. Raises: ValueError: it is not among them."""
        at = self.hashes.index(hash) * self.length
        return self.encodings[at : at + self.length]

    def cells(self) -> list[tuple[bytes, bytes]]:
        """Return the hash and the encoding of each cell."""
        length = self.length
        return [
            (hash, self.encodings[place * length : (place + 1) * length])
            for place, hash in enumerate(self.hashes)
        ]


class FreshCells(UncachedLoader):
    """Loads the cells of a value that was made closed: its chunks, then the nodes above them."""

    def __init__(self, chunks: CellRun, nodes: list[tuple[bytes, bytes]]) -> None:
        self.chunks: Final = chunks
        """Equal chunks may come several times."""
        self.nodes: Final = nodes
        """Hash and encoding of each, children before parents."""
        self._by_hash: dict[bytes, bytes] = {}

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash. Raises: MissingData: the cell is not among them."""
        if not self._by_hash:
            self._by_hash = dict([*self.chunks.cells(), *self.nodes])
        encoding = self._by_hash.get(hash)
        if encoding is None:
            raise MissingData([hash])
        return decode_trusted(encoding, hash, self)


def blob_length(value: Value) -> int:
    """Return the number of bytes of a blob, short or long.

    Raises: TypeMismatch: the value is not a blob.
    """
    if isinstance(value, Blob):
        return value._length
    require_type(value, bytes, "a blob is bytes or a Blob")
    assert isinstance(value, bytes)
    return len(value)


def _check_length(length: int) -> None:
    # A length is a count, and "counts go to 2^63 - 1" (docs/cells.md "Counts").
    if length > BLOB_BYTES_MAX:
        raise UsageError(f"a blob has at most {BLOB_BYTES_MAX} bytes, got {length}")


class BlobBuilder:
    """Makes a blob from a stream of bytes, in a few megabytes of memory.

        builder = BlobBuilder(stage=store.put)
        for piece in pieces:
            builder.write(piece)
        value = builder.finish()

    Args:   start: a blob to append to. stage: called with each finished part of 1 MiB or more, in
            order, smaller parts before those that contain them.
    Cost:   starting from a blob loads its last chunk and the nodes above it.
    """

    def __init__(self, start: Value = b"", stage: StageValue | None = None) -> None:
        self._stage = stage
        self._length: int = 0
        # Finished parts by level, less than 16 at each: level 0 has chunks.
        self._levels: list[list[object]] = []
        self._tail = b""
        # Bytes after the tail, which become a part once they fill one.
        self._held: list[bytes] = []
        self._held_bytes: int = 0
        self._resume(start)

    def _resume(self, start: Value) -> None:
        length = blob_length(start)
        self._length = length
        node: Value = make_blob(start) if isinstance(start, bytes) else start
        while isinstance(node, Blob):
            span: i64 = chunk_span(node._length)
            level = _level_of(span)
            kids = node._open()
            size: int = node._length
            # A full node is one finished part of the level above, so its children need not be
            # loaded.
            if size == FAN_OUT * span:
                self._at(level + 1).append(node)
                return
            full: i64 = size // span
            self._at(level).extend(kids[:full])
            if full == len(kids):
                return
            node = deref(kids[full])
            if blob_length(node) != size - full * span:
                raise broken("a blob chunk has a size that does not match its position")
        assert isinstance(node, bytes)
        if len(node) == CHUNK_BYTES:
            self._add(0, node)
        else:
            self._tail = node

    def __len__(self) -> int:
        return self._length

    def write(self, piece: object) -> None:
        """Append bytes, or an object with the buffer interface.

        Raises: TypeMismatch: `piece` is of another type. UsageError: the blob would be longer than
                2**63 - 1 bytes.
        """
        data = _bytes_of(piece)
        _check_length(self._length + len(data))
        if self._stage is None:
            self._length += len(data)
            self._split(data)
            return
        room: int = STAGED_BYTES - (self._length - self._held_bytes) % STAGED_BYTES
        self._held.append(data)
        self._held_bytes += len(data)
        self._length += len(data)
        if self._held_bytes < room:
            return
        held = data if len(self._held) == 1 else b"".join(self._held)
        self._held = []
        at: i64 = 0
        while len(held) - at >= room:
            if room == STAGED_BYTES:
                part = _part_of(held, at)
                self._stage(part)
                self._add(STAGED_LEVEL, part)
            else:  # `start` ended inside a part, which these bytes complete
                self._split(held[at : at + room])
            at += room
            room = STAGED_BYTES
        self._held_bytes = len(held) - at
        if self._held_bytes:
            self._held.append(held[at:])

    def _split_held(self) -> None:
        """Make chunks of the bytes held back until they fill a part."""
        held = b"".join(self._held)
        self._held = []
        self._held_bytes = 0
        self._split(held)

    def _split(self, data: bytes) -> None:
        """Make chunks of bytes that follow the tail."""
        at: i64 = 0
        size: i64 = len(data)
        # Every chunk but the last has exactly 4,096 bytes, so the tail is filled first.
        if self._tail:
            at = min(CHUNK_BYTES - len(self._tail), size)
            tail = self._tail + data[:at]
            if len(tail) < CHUNK_BYTES:
                self._tail = tail
                return
            self._tail = b""
            self._add(0, tail)
        while size - at >= CHUNK_BYTES:
            self._add(0, data[at : at + CHUNK_BYTES])
            at += CHUNK_BYTES
        self._tail = data[at:]

    def write_zeros(self, count: int) -> None:
        """Append `count` zero bytes, in a few hundred steps for any count.

        Raises: UsageError: the blob would be longer than 2**63 - 1 bytes.
        """
        _check_length(self._length + count)
        self._split_held()
        # Up to the next chunk; only whole chunks of zeros can be shared.
        room = min(count, -self._length % CHUNK_BYTES)
        self._length += room
        self._split(bytes(room))
        rest = count - room
        zeros: list[object] = [bytes(CHUNK_BYTES)]
        while rest >= CHUNK_BYTES:
            level = 0
            size = CHUNK_BYTES
            # The largest subtree that begins at a multiple of its size and fits: sixteen zeros of
            # one level are one of the next, the same cell each time.
            while (self._length // size) % FAN_OUT == 0 and size * FAN_OUT <= rest:
                level += 1
                size *= FAN_OUT
                if level == len(zeros):
                    zeros.append(_parent([zeros[level - 1]] * FAN_OUT, size))
            self._length += size
            self._add(level, zeros[level])
            rest -= size
        self._length += rest
        self._split(bytes(rest))

    def finish(self) -> Value:
        """Return the value written: bytes up to 4,096, else a blob tree. Writing may continue."""
        self._split_held()
        node: object = self._tail if self._tail or not self._length else None
        size: int = len(self._tail)
        span: int = CHUNK_BYTES
        for kids in self._levels:
            if kids:
                size += span * len(kids)
                if node is None and len(kids) == 1:
                    node = kids[0]
                else:
                    node = _parent(kids[:] if node is None else [*kids, node], size)
            span *= FAN_OUT
        return deref(node)

    def _at(self, level: int) -> list[object]:
        while len(self._levels) <= level:
            self._levels.append([])
        return self._levels[level]

    def _add(self, level: int, part: object) -> None:
        """Add a full part at a level; sixteen parts become one of the next level."""
        kids = self._at(level)
        kids.append(part)
        size: int = CHUNK_BYTES
        for _ in range(level):
            size *= FAN_OUT
        while len(kids) == FAN_OUT:
            size *= FAN_OUT
            made = _parent(kids, size)
            self._levels[level] = []
            # Smaller parts are few: at most 15 of each level below 1 MiB stay in memory.
            if self._stage is not None and size >= STAGED_BYTES:
                self._stage(made)
            level += 1
            kids = self._at(level)
            kids.append(made)


def _part_of(data: bytes, start: i64) -> Blob:
    """Return the blob of the 1 MiB of `data` from `start` on, closed: all its cells are encoded.

    All chunks are hashed together, while other threads run.
    """
    count = STAGED_BYTES // CHUNK_BYTES
    digests, encodings = sha3_256_cut(data, start, count, CHUNK_BYTES, CHUNK_HEAD)
    chunks = CellRun(digests, encodings, len(CHUNK_HEAD) + CHUNK_BYTES)
    nodes: list[tuple[bytes, bytes]] = []
    size: int = CHUNK_BYTES
    while size < STAGED_BYTES:
        size *= FAN_OUT
        level = [
            _full_node(digests[first : first + FAN_OUT], size)
            for first in range(0, len(digests), FAN_OUT)
        ]
        digests = sha3_256_many(level)
        nodes += zip(digests, level, strict=True)
    digest, encoding = nodes[len(nodes) - 1]
    made = closed_blob(encoding, FreshCells(chunks, nodes))
    made._hash = digest
    assert isinstance(made, Blob)
    return made


def _full_node(digests: list[bytes], size: int) -> bytes:
    """Return the encoding of a blob of `size` bytes in full chunks or nodes with these hashes."""
    out = BytesWriter()
    out.append(u8(TAG_BLOB))
    put_vlq(out, size)
    for digest in digests:
        out.append(u8(TAG_REF))
        out.write(digest)
    return out.getvalue()


def _level_of(span: i64) -> int:
    level = 0
    while span > CHUNK_BYTES:
        span //= FAN_OUT
        level += 1
    return level


def _parent(kids: list[object], size: int) -> Blob:
    made = Blob()
    made._length = size
    made._kids = kids
    return made


def _bytes_of(piece: object) -> bytes:
    """Return the bytes of a caller's object; raise TypeMismatch if it has none."""
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, (bytearray, memoryview)):
        return bytes(piece)
    raise TypeMismatch(f"a blob is made of bytes, got {type(piece).__name__}")


def blob_from(pieces: Iterable[object], stage: StageValue | None = None) -> Value:
    """Return the blob of all bytes of `pieces`, one after another."""
    builder = BlobBuilder(b"", stage)
    for piece in pieces:
        builder.write(piece)
    return builder.finish()


def blob_overwrite(
    blob: Value, position: int, piece: object, stage: StageValue | None = None
) -> Value:
    """Return `blob` with `piece` at `position`; a gap before it is filled with zeros.

    Returns the same object if it has these bytes already.
    Cost:   the chunks that are covered in part, and the nodes above the others.
    Raises: UsageError: the position is negative, or the blob would be too long.
    """
    require_type(position, int, "a position is an int")
    data = _bytes_of(piece)
    length = blob_length(blob)
    if position < 0:
        raise UsageError(f"a position is 0 or more, got {position}")
    _check_length(position + len(data))
    if not data:
        return blob
    inside = min(max(length - position, 0), len(data))
    made = _spliced(blob, length, position, data[:inside]) if inside else blob
    if inside == len(data):
        return made
    builder = BlobBuilder(made, stage)
    builder.write_zeros(max(position - length, 0))
    builder.write(data[inside:])
    return builder.finish()


def _spliced(node: Value, length: int, position: int, data: bytes) -> Value:
    """Return `node` of `length` bytes with `data` at `position`; it does not become longer."""
    end = position + len(data)
    if isinstance(node, bytes):
        if node[position:end] == data:
            return node
        return node[:position] + data + node[end:]
    if not isinstance(node, Blob):
        raise broken("a blob chunk has a wrong type or size")
    span: int = chunk_span(node._length)
    kids = node._open()
    fresh: list[object] | None = None
    for slot in range(position // span, (end - 1) // span + 1):
        start = slot * span
        size = min(span, length - start)
        low, high = max(position - start, 0), min(end - start, size)
        part = data[start + low - position : start + high - position]
        if high - low == size:
            made: object = make_blob(part)  # fully covered: the old part need not be loaded
        else:
            kid = deref(kids[slot])
            if blob_length(kid) != size:
                raise broken("a blob chunk has a size that does not match its position")
            made = _spliced(kid, size, low, part)
            if made is kid:
                continue
        # "If nothing changes, they return the same object" (docs/cells.md "Building and editing
        # blobs").
        if same_kid(made, kids[slot]):
            continue
        if fresh is None:
            fresh = kids[:]
        fresh[slot] = made
    return node if fresh is None else _parent(fresh, length)


def blob_truncate(blob: Value, size: int) -> Value:
    """Return the first `size` bytes of `blob`; `blob` itself if it has no more.

    Cost:   one chunk and the nodes above it.
    Raises: UsageError: the size is negative.
    """
    require_type(size, int, "a size is an int")
    if size < 0:
        raise UsageError(f"a size is 0 or more, got {size}")
    if size >= blob_length(blob):
        return blob
    node = blob
    # For each level from the top: the kids before the one that is cut, and the bytes kept.
    above: list[tuple[list[object], int]] = []
    left = size
    while isinstance(node, Blob) and left > 0:
        span: int = chunk_span(node._length)
        slot = (left - 1) // span
        kids = node._open()
        if slot:
            above.append((kids[:slot], left))
        left -= slot * span
        ends_kid = left == min(span, node._length - slot * span)
        node = deref(kids[slot])
        if ends_kid:  # the cut lies after this kid, which is kept as it is
            break
    made: object = node[:left] if isinstance(node, bytes) else node if left else b""
    while above:
        parts, length = above.pop()
        made = _parent([*parts, made], length)
    return made


def blob_ranges(blob: Value) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the parts of a blob, at most 1 MiB each, that may contain non-zeros.

    Runs of zeros are skipped if they are full subtrees of 1 MiB or more; a gap of any size costs a
    few nodes.
    """
    zeros: dict[int, bytes] = {}
    waiting: list[tuple[int, Value]] = [(0, blob)]
    while waiting:
        start, node = waiting.pop()
        length = blob_length(node)
        if not isinstance(node, Blob) or length <= STAGED_BYTES:
            if length:
                yield start, start + length
            continue
        span: int = chunk_span(length)
        # One hash for each size of subtree, computed once.
        if span not in zeros:
            builder = BlobBuilder()
            builder.write_zeros(span)
            zeros[span] = value_hash(builder.finish())
        kids = node._open()
        for slot in range(len(kids) - 1, -1, -1):
            at = slot * span
            # The hash of the reference proves that it is a run of zeros, without loading it.
            if length - at >= span and kid_hash(kids[slot]) == zeros[span]:
                continue
            kid = deref(kids[slot])
            if blob_length(kid) != min(span, length - at):
                raise broken("a blob chunk has a size that does not match its position")
            waiting.append((start + at, kid))
