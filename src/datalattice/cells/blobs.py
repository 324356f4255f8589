"""Blob and text trees: byte strings longer than 4,096 bytes, in chunks.

Shorter ones are plain `bytes` and `str`. A tree reads like them, and loads only the chunks that
are read.

Source: CAD003 "String", "Blob"; docs/cells.md "Blob and String".
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from datalattice.cells.cell import (
    Cell,
    Loader,
    Value,
    broken,
    deref,
    deref_many,
    long_hook,
    put_kids,
    put_vlq,
    same,
    text_bytes,
)
from datalattice.cells.parse import kids_in, wrappers
from datalattice.cells.scalars import require_type
from datalattice.cells.scan import chunk_span, read_vlq
from datalattice.cells.work import Work
from datalattice.errors import BadFormat, TypeMismatch, UsageError
from datalattice.limits import CHUNK_BYTES, STRING_BYTES_MAX

TAG_TEXT: Final = 0x30
TAG_BLOB: Final = 0x31

CHUNKS_AT_ONCE: Final = 128
"""About how many chunks of a read are loaded together: half a mebibyte."""


class Chunked(Cell):
    """Base of blob and text trees."""

    __slots__ = ("_length",)

    _length: i64

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def _tag(self) -> int:
        return TAG_BLOB

    def _build(self, depth: int) -> bytes:
        out = BytesWriter()
        out.append(u8(self._tag()))
        # [30 or 31][VLQ of the length in bytes][refs of the chunks].
        put_vlq(out, self._length)
        kids = self._open()
        put_kids(out, kids, 0, len(kids), depth)
        return out.getvalue()

    def _parse(self) -> list[object]:
        data = self._encoding
        assert data is not None
        at: i64 = read_vlq(data, 1, len(data))[1]
        # "Each child of its top cell holds S chunks; only the last one may hold less"
        # (docs/cells.md "Blob and String"), so the length alone gives the number of children.
        kids: i64 = (self._length - 1) // chunk_span(self._length) + 1
        return kids_in(data, at, kids, self._loader)[0]

    def byte_length(self) -> int:
        """Return the number of bytes."""
        return self._length

    def read(self, start: int, stop: int, work: Work | None = None) -> bytes:
        """Return the bytes `start` .. `stop - 1`, cut at the end; loads only their chunks.

        Raises: WorkExceeded: the nodes on the way exceed the budget `work`.
        """
        require_type(start, int, "a position is an int")
        require_type(stop, int, "a position is an int")
        taken = _Chunks(work)
        # A range beyond the end is cut, as in slices of bytes.
        _read(self, max(start, 0), min(stop, self._length), taken)
        taken.load()
        return b"".join(taken.parts)

    def __bytes__(self) -> bytes:
        return self.read(0, self._length)


class _Chunks:
    """The bytes of a read, in order; the chunks in `waiting` are loaded together."""

    __slots__ = ("parts", "spans", "waiting", "work")

    parts: list[bytes]
    waiting: list[object]
    spans: list[tuple[int, int, int]]
    work: Work | None

    def __init__(self, work: Work | None) -> None:
        self.parts = []
        self.waiting = []
        self.spans = []  # of each waiting chunk: (its size, first byte, byte after the last)
        self.work = work

    def load(self) -> None:
        """Load the waiting chunks, and add the bytes to be read from each to `parts`."""
        work = self.work
        for i, chunk in enumerate(deref_many(self.waiting)):
            size, low, high = self.spans[i]
            # Lengths are checked while reading: a foreign chunk may have any length.
            if not isinstance(chunk, bytes) or len(chunk) != size:
                raise _misfit(size)
            if work is not None:
                work.meet(self.waiting[i], chunk)
            self.parts.append(chunk[low:high])
        self.waiting = []
        self.spans = []


def _read(node: Chunked, start: i64, stop: i64, taken: _Chunks) -> None:
    work = taken.work
    if work is not None:
        work.enter(node)  # charged before any child is loaded
    span: i64 = chunk_span(node._length)
    kids = node._open()
    first: i64 = start // span
    while first < len(kids) and first * span < stop:
        base: i64 = first * span
        size: i64 = min(span, node._length - base)
        low: i64 = max(start - base, 0)
        high: i64 = min(stop - base, size)
        if size <= CHUNK_BYTES:
            taken.waiting.append(kids[first])
            taken.spans.append((size, low, high))
        else:
            below = deref(kids[first])
            if not isinstance(below, Blob) or below._length != size:
                raise _misfit(size)
            _read(below, low, high, taken)
        first += 1
    # With a budget each node pays, and earns by its chunks, before the next one is entered.
    if work is not None or len(taken.waiting) >= CHUNKS_AT_ONCE:
        taken.load()


def _misfit(size: int) -> BadFormat:
    return broken(f"a blob chunk is not a blob of {size} bytes")


class Blob(Chunked):
    """A byte string of more than 4,096 bytes. Reading a range loads only its chunks."""

    __slots__ = ()

    @classmethod
    def of(cls, data: bytes) -> Value:
        """Return `data` as a value: itself up to 4,096 bytes, else a blob tree."""
        return make_blob(data)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> int | bytes:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            # A negative step is rare, so all bytes are read for it.
            return self.read(start, stop)[::step] if step > 0 else bytes(self)[index]
        require_type(index, int, "a position is an int or a slice")
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(f"byte {index} of a blob of {self._length} bytes")
        return self.read(position, position + 1)[0]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, bytes):
            return self._length == len(other) and bytes(self) == other
        return isinstance(other, Cell) and same(self, other)

    def __ne__(self, other: object) -> bool:
        return not self.__eq__(other)

    def __hash__(self) -> int:
        return hash(bytes(self))  # equal to bytes, so it hashes like them


class Text(Chunked):
    """A string of more than 4,096 UTF-8 bytes."""

    __slots__ = ()

    def _tag(self) -> int:
        return TAG_TEXT

    @classmethod
    def of(cls, text: str) -> Value:
        """Return `text` as a value: itself up to 4,096 UTF-8 bytes, else a text tree."""
        return make_text(text)

    def __len__(self) -> int:
        return len(str(self))  # the encoding counts bytes only, so all chunks are read

    def __str__(self) -> str:
        return bytes(self).decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        # A character has one to four bytes, so most unequal strings are told apart without loading.
        if isinstance(other, str):
            return len(other) <= self._length <= 4 * len(other) and str(self) == other
        return isinstance(other, Cell) and same(self, other)

    def __ne__(self, other: object) -> bool:
        return not self.__eq__(other)

    def __hash__(self) -> int:
        return hash(str(self))  # equal to a str, so it hashes like it


def make_blob(data: bytes) -> Value:
    """Return `data` as a value: itself up to 4,096 bytes, else a blob tree."""
    require_type(data, bytes, "a blob is made of bytes")
    if len(data) <= CHUNK_BYTES:
        return data
    return _tree(Blob(), data)


def make_text(text: str) -> Value:
    """Return `text` as a value: itself up to 4,096 UTF-8 bytes, else a text tree.

    Raises: UsageError: more than 2**31 - 1 bytes, or a lone surrogate.
    """
    require_type(text, str, "a text is made of a str")
    raw = text_bytes(text)
    # "One cell holds up to 4,096 bytes" (docs/cells.md "Blob and String").
    if len(raw) <= CHUNK_BYTES:
        return text
    # "A String has at most 2^31 - 1 bytes" (docs/cells.md "Blob and String").
    if len(raw) > STRING_BYTES_MAX:
        raise UsageError(f"a string has at most {STRING_BYTES_MAX} bytes, got {len(raw)}")
    return _tree(Text(), raw)


def _tree(made: Chunked, data: bytes) -> Cell:
    span: i64 = chunk_span(len(data))
    made._length = len(data)
    # "The children of a String are Blobs as well, so a chunk may end inside a character".
    made._kids = [make_blob(data[at : at + span]) for at in range(0, len(data), span)]
    return made


def _long_cell(value: Value) -> Cell:
    if isinstance(value, (bytes, str)):
        made = make_blob(value) if isinstance(value, bytes) else make_text(value)
        if isinstance(made, Cell):
            return made
    raise TypeMismatch(f"a long string or blob was needed, got {type(value).__name__}")


def _closed(made: Chunked, data: bytes, loader: Loader | None) -> Chunked:
    made._length = read_vlq(data, 1, len(data))[0]
    made._kids = None  # opened when it is read
    made._encoding = data
    made._loader = loader
    return made


def closed_blob(data: bytes, loader: Loader | None) -> Chunked:
    """Return the closed blob tree with this encoding (tag 31, more than 4,096 bytes)."""
    return _closed(Blob(), data, loader)


def closed_text(data: bytes, loader: Loader | None) -> Chunked:
    """Return the closed text tree with this encoding (tag 30, more than 4,096 bytes)."""
    return _closed(Text(), data, loader)


wrappers[TAG_BLOB] = closed_blob
wrappers[TAG_TEXT] = closed_text
long_hook.append(_long_cell)
