"""Contents: byte strings that are written to a backend and read from it, in pieces.

Source: COG-4 "Storage"; docs/grid.md "Content".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from datalattice.cells import Blob, BlobBuilder
from datalattice.errors import Corruption

_PIECE_BYTES: Final = 1 << 20
"""Bytes of a piece, which is hashed and checked at once if the backend does not check reads."""


class ContentSink(Protocol):
    """A content that is being written to a backend, which has it only after `commit`."""

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        ...

    def commit(self) -> None:
        """Store the content under its name, as durably as the backend stores."""
        ...

    def close(self) -> None:
        """Discard the bytes written, unless they were committed."""
        ...


class ContentReader(Protocol):
    """A stored content, which can be read from any byte on."""

    @property
    def size(self) -> int:
        """The number of bytes."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` up to `stop`. Raises: Corruption: they cannot be read."""
        ...


class ContentStaging(Protocol):
    """Builds a value from a byte string that arrives in pieces, such as `node.upload()`."""

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        ...

    def finish(self) -> bytes | Blob:
        """Return the bytes written, as one value."""
        ...

    def close(self) -> None:
        """Release the bytes written, unless a stored value holds them."""
        ...


def pieces_in(source: ContentReader) -> Iterator[bytes]:
    """Yield a content in pieces of `_PIECE_BYTES`. Raises: Corruption."""
    for start in range(0, source.size, _PIECE_BYTES):
        yield source.read(start, min(start + _PIECE_BYTES, source.size))


class PieceHashes:
    """The SHA-256 of each `_PIECE_BYTES` of a content that arrives in pieces of any length."""

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._piece = hashlib.sha256()
        self._size = 0

    def update(self, data: bytes) -> None:
        """Add bytes at the end."""
        view = memoryview(data)
        while view:
            part = view[: _PIECE_BYTES - self._size]
            self._piece.update(part)
            self._size += len(part)
            view = view[len(part) :]
            if self._size == _PIECE_BYTES:
                self._end()

    def _end(self) -> None:
        self._done.append(self._piece.digest())
        self._piece, self._size = hashlib.sha256(), 0

    def finish(self) -> tuple[bytes, ...]:
        """Return the hash of each piece."""
        if self._size:
            self._end()
        return tuple(self._done)


class StoredContent:
    """A stored content, read from any byte on and checked. One thread at a time reads it."""

    def __init__(
        self, digest: bytes, source: ContentReader, hashes: tuple[bytes, ...] | None = None
    ) -> None:
        """hashes: those of its pieces; None if the source checks its reads."""
        self.digest: Final = digest
        self._source: Final = source
        self._hashes: Final = hashes
        self._piece: tuple[int, bytes] = (-1, b"")

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._source.size

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` up to `stop`. Raises: Corruption: they are damaged."""
        if self._hashes is None:
            return self._source.read(start, stop)
        parts = []
        while start < stop:
            number = start // _PIECE_BYTES
            end = min((number + 1) * _PIECE_BYTES, stop)
            offset = number * _PIECE_BYTES
            parts.append(self._checked(number, self._hashes)[start - offset : end - offset])
            start = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _checked(self, number: int, hashes: tuple[bytes, ...]) -> bytes:
        """Return a piece whose hash was compared; the last one is cached."""
        if self._piece[0] == number:
            return self._piece[1]
        start = number * _PIECE_BYTES
        piece = self._source.read(start, min(start + _PIECE_BYTES, self._source.size))
        # "A ranged read checks the cells, or the pieces of 1 MiB, that it touches" (docs/grid.md
        # "Content").
        if number >= len(hashes) or hashlib.sha256(piece).digest() != hashes[number]:
            raise Corruption(f"the content {self.digest.hex()} is damaged at byte {start}")
        # Kept, because callers read on in steps shorter than a piece, and each would hash it again.
        self._piece = (number, piece)
        return piece


class MemoryStaging:
    """A value built in memory from pieces."""

    def __init__(self) -> None:
        self._builder: Final = BlobBuilder()

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        self._builder.write(piece)

    def finish(self) -> bytes | Blob:
        """Return the bytes written, as one value."""
        made = self._builder.finish()
        assert isinstance(made, (bytes, Blob))
        return made

    def close(self) -> None:
        """Do nothing: the memory is freed with it."""


class CellContentSink:
    """A content that becomes one value, which `commit` stores under its name."""

    def __init__(self, staging: ContentStaging, commit: Callable[[bytes | Blob], None]) -> None:
        self._staging: Final = staging
        self._commit: Final = commit

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        self._staging.write(piece)

    def commit(self) -> None:
        """Store the value."""
        self._commit(self._staging.finish())

    def close(self) -> None:
        """Release the bytes written, unless they were committed."""
        self._staging.close()


class CellContent:
    """A stored content that is one value."""

    def __init__(self, value: bytes | Blob) -> None:
        self._value: Final = value
        self.size: Final = len(value) if isinstance(value, bytes) else value.byte_length()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` up to `stop`. Raises: Corruption: a cell is damaged."""
        value = self._value
        return value[start:stop] if isinstance(value, bytes) else value.read(start, stop)
