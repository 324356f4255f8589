"""Storage: content by its SHA-256, over a backend: memory, a folder, or the lattice.

Content is hashed when it is written and whenever it is read. A write whose hash differs from its
name is refused; a read raises `Corruption`.

Source: COG-4 "Storage", "Lattice storage"; docs/grid.md "Content".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, Self

from datalattice.apps.grid.assets import CONTENT_BYTES_MAX, READ_BYTES, SHA256_BYTES
from datalattice.apps.grid.lattice import STORAGE, as_index
from datalattice.cells import EMPTY_INDEX, Blob, Index, Value, make_blob
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import Corruption, LimitExceeded, StoreClosed, UsageError

Content = bytes | Iterable[bytes]
"""Content to write: bytes, or pieces of them, which are read one at a time."""


class ContentBackend(Protocol):
    """Where contents are kept. `Storage` checks all arguments and hashes; a backend need not."""

    def open(self) -> None:
        """Prepare for use; raise UsageError if that is impossible."""
        ...

    def close(self) -> None:
        """Release what the backend holds open."""
        ...

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Store the content in the pieces; nothing is stored if they or this raise."""
        ...

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        ...

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield a content that is present, in pieces."""
        ...

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        ...

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        ...


@dataclass(frozen=True, slots=True)
class BadContent:
    """A content whose hash is not its name."""

    digest: bytes
    reason: str


class Storage:
    """Contents by their SHA-256."""

    def __init__(self, backend: ContentBackend, content_bytes_max: int = CONTENT_BYTES_MAX) -> None:
        if type(content_bytes_max) is not int or content_bytes_max < 0:
            raise UsageError(f"`content_bytes_max` is not a number of bytes: {content_bytes_max!r}")
        self.backend: Final = backend
        self.content_bytes_max: Final = content_bytes_max
        self._is_open = False

    def __enter__(self) -> Self:
        self.initialise()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def initialise(self) -> None:
        """Prepare for use; repeating it changes nothing.

        Raises: UsageError: the backend cannot be used.
        """
        if not self._is_open:  # repeating it changes nothing
            self.backend.open()
            self._is_open = True

    def close(self) -> None:
        """Close the backend; closing twice is allowed."""
        if self._is_open:
            self._is_open = False
            self.backend.close()

    @property
    def is_initialised(self) -> bool:
        """Whether it is ready for use."""
        return self._is_open

    def store(self, digest: bytes, content: Content) -> None:
        """Store content under its SHA-256, `digest`; nothing is stored if this raises.

        Content that is present is written again only if it is damaged.

        Raises: UsageError: its SHA-256 is another one, or it is not bytes. LimitExceeded: it is too
                long.
        """
        self._ready()
        name = checked_digest(digest)
        if not _is_content(content):
            raise UsageError(f"content is bytes or pieces of bytes, got {type(content).__name__}")
        pieces = self._checked(name, _pieces_of(content))
        # Damaged content is replaced by sound content of that name.
        if self.backend.size(name) is None or self._damage(name) is not None:
            self.backend.write(name, pieces)
        else:
            for _ in pieces:  # content with another hash is refused even if `digest` is present
                pass

    def put(self, content: bytes) -> bytes:
        """Store content; return its SHA-256.

        Raises: UsageError: it is not bytes. LimitExceeded: it is too long.
        """
        if not isinstance(content, bytes):
            raise UsageError(f"content is bytes, got {type(content).__name__}")
        digest = hashlib.sha256(content).digest()
        self.store(digest, content)
        return digest

    def get(self, digest: bytes) -> bytes | None:
        """Return content, checked against its name; None if it is absent.

        Raises: Corruption: the stored bytes have another hash.
        """
        pieces = self.stream(digest)
        return None if pieces is None else b"".join(pieces)

    def stream(self, digest: bytes) -> Iterator[bytes] | None:
        """Return content in pieces, None if it is absent; all of it is checked before the first.

        Raises: Corruption: the stored bytes have another hash.
        """
        self._ready()
        name = checked_digest(digest)
        if self.backend.size(name) is None:
            return None
        reason = self._damage(name)  # all of it is hashed before the first piece goes out
        if reason is not None:
            raise Corruption(f"the content {name.hex()} is damaged: {reason}")
        return self.backend.read(name)

    def exists(self, digest: bytes | None) -> bool:
        """Return whether content is present; False for None and while the storage is closed."""
        # While it is closed nothing is served.
        if not self._is_open or not isinstance(digest, bytes) or len(digest) != SHA256_BYTES:
            return False
        return self.backend.size(digest) is not None

    def size(self, digest: bytes) -> int:
        """Return the number of bytes of content.

        Raises: UsageError: it is absent.
        """
        self._ready()
        size = self.backend.size(checked_digest(digest))
        if size is None:
            raise UsageError(f"there is no content {digest.hex()}")
        return size

    def delete(self, digest: bytes) -> bool:
        """Remove content; return whether it was present. A merge may bring it back."""
        self._ready()
        return self.backend.remove(checked_digest(digest))

    def verify(self) -> list[BadContent]:
        """Return the damaged contents; reads everything."""
        self._ready()
        # A list: checking may take long, and contents may come meanwhile.
        damages = ((digest, self._damage(digest)) for digest in list(self.backend.digests()))
        return [BadContent(digest, reason) for digest, reason in damages if reason is not None]

    @property
    def is_empty(self) -> bool:
        """Whether there is no content."""
        return next(iter(self), None) is None

    def __iter__(self) -> Iterator[bytes]:
        self._ready()
        return self.backend.digests()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _ready(self) -> None:
        if not self._is_open:
            raise StoreClosed("the storage is not open: call initialise() first")

    def _checked(self, name: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces; raise at the end if their hash is not `name`, or when too long."""
        digest, size = hashlib.sha256(), 0
        for piece in pieces:
            if not isinstance(piece, bytes):
                raise UsageError(f"a piece of content is bytes, got {type(piece).__name__}")
            size += len(piece)
            if size > self.content_bytes_max:  # counted while it is read: a stream has no length
                raise LimitExceeded(
                    f"the content {name.hex()} has more than {self.content_bytes_max} bytes"
                )
            digest.update(piece)
            yield piece
        if digest.digest() != name:  # at the end: the backend drops what it wrote when this raises
            raise UsageError(
                f"the content is not {name.hex()}: its SHA-256 is {digest.hexdigest()}"
            )

    def _damage(self, name: bytes) -> str | None:
        digest = hashlib.sha256()
        try:
            for piece in self.backend.read(name):
                digest.update(piece)
        except Corruption as error:
            return str(error)
        found = digest.digest()
        return None if found == name else f"its SHA-256 is {found.hex()}"


class MemoryBackend:
    """Contents in memory, until it is closed."""

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Drop all contents."""
        self._held.clear()

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Store the content in the pieces."""
        self._held[digest] = b"".join(pieces)

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        return len(self._held[digest]) if digest in self._held else None

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content."""
        yield self._held[digest]

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        return self._held.pop(digest, None) is not None

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        return iter(sorted(self._held))


class LatticeBackend:
    """Contents in the lattice: an Index at a cursor, by default its own.

    Every write is one atomic update. Removed content comes back with the next merge of a state that
    has it.
    """

    def __init__(self, cursor: LatticeCursor | None = None) -> None:
        self._cursor: Final = RootLattice(STORAGE, EMPTY_INDEX) if cursor is None else cursor

    @property
    def state(self) -> Index:
        """The contents as an Index, which merges with those of others."""
        return as_index(self._cursor.get()) or EMPTY_INDEX

    def merge(self, other: Value) -> Index:
        """Merge the valid contents of another state; return the result."""
        self._cursor.merge(other)
        return self.state

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the cursor belongs to the caller."""

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Store the content in the pieces."""
        blob = make_blob(b"".join(pieces))  # in memory first: a cell needs all of its bytes
        self._cursor.update(lambda held: (as_index(held) or EMPTY_INDEX).put(digest, blob))

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        blob = self.state.get(digest)
        if isinstance(blob, bytes):
            return len(blob)
        return blob.byte_length() if isinstance(blob, Blob) else None

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content in pieces."""
        blob = self.state.get(digest)
        if isinstance(blob, Blob):
            for start in range(0, blob.byte_length(), READ_BYTES):
                yield blob.read(start, start + READ_BYTES)
        elif isinstance(blob, bytes):
            yield blob

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        gone = False

        def removed(held: Value) -> Value:
            nonlocal gone
            contents = as_index(held) or EMPTY_INDEX
            gone = digest in contents
            # Nothing removed: the value stays the same.
            return contents.remove(digest) if gone else held

        self._cursor.update(removed)
        return gone

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        return (key for key, _ in self.state.entries() if isinstance(key, bytes))


def checked_digest(digest: object) -> bytes:
    """Return `digest` if it is a SHA-256: 32 bytes.

    Raises: UsageError: it is not.
    """
    if isinstance(digest, bytes) and len(digest) == SHA256_BYTES:
        return digest
    raise UsageError(f"`digest` is not a SHA-256 of {SHA256_BYTES} bytes: {digest!r}")


def _is_content(content: object) -> bool:
    return isinstance(content, bytes) or (
        # A str or a buffer would yield ints or characters.
        isinstance(content, Iterable) and not isinstance(content, (str, bytearray, memoryview))
    )


def _pieces_of(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        return (content[at : at + READ_BYTES] for at in range(0, len(content), READ_BYTES))
    return iter(content)
