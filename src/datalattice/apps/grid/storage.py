"""Storage: content by its SHA-256, over a backend: memory, a folder, or the lattice.

Content is hashed when it is written and whenever it is read. A write whose hash differs from its
name is refused; a read raises `Corruption`.

Source: COG-4 "Storage", "Lattice storage"; docs/grid.md "Content".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, Self

from datalattice.apps.grid.assets import CONTENT_BYTES_MAX, CONTENT_READ_BYTES, SHA256_BYTES
from datalattice.apps.grid.contents import (
    CellContent,
    CellContentSink,
    ContentReader,
    ContentSink,
    ContentStaging,
    MemoryStaging,
    PieceHashes,
    StoredContent,
    pieces_in,
)
from datalattice.apps.grid.lattice import STORAGE_LATTICE, as_index
from datalattice.cells import EMPTY_INDEX, Blob, Index, Value
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import Corruption, LimitExceeded, StoreClosed, UsageError

Content = bytes | Iterable[bytes]
"""Content to write: bytes, or pieces of them, which are read one at a time."""


_PIECES_MAX: Final = 1 << 16
"""Most pieces whose hashes are kept in memory: those of 64 GiB of content take 4 MB."""


class ContentBackend(Protocol):
    """A place that keeps contents. `Storage` checks all arguments and hashes; a backend need not.

    checks_reads: every read returns the bytes that were written, or raises Corruption.
    """

    checks_reads: bool

    def open(self) -> None:
        """Prepare for use; raise UsageError if that is impossible."""
        ...

    def close(self) -> None:
        """Release what the backend holds open."""
        ...

    def begin(self, digest: bytes) -> ContentSink:
        """Return a sink for a content."""
        ...

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        ...

    def reader(self, digest: bytes) -> ContentReader | None:
        """Return a reader of a content, None if it is absent."""
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
        self._hashes: Final[dict[bytes, tuple[bytes, ...]]] = {}

    def __enter__(self) -> Self:
        self.initialise()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def initialise(self) -> None:
        """Prepare for use; repeating it changes nothing.

        Raises: UsageError: the backend cannot be used.
        """
        if not self._is_open:
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
        if not _is_content(content):
            raise UsageError(f"content is bytes or pieces of bytes, got {type(content).__name__}")
        with self.writer(digest) as writer:
            for piece in _pieces_of(content):
                writer.write(piece)
            writer.finish()

    def writer(self, digest: bytes, finished: Callable[[], None] = lambda: None) -> ContentWriter:
        """Return a writer of content that arrives in pieces, checked as by `store`. Close it.

        finished: called when the content is stored.
        """
        self._ready()
        name = checked_digest(digest)
        # A damaged content is written again; a sound one is only compared.
        is_sound = self.backend.size(name) is not None and self._damage(name) is None
        sink = None if is_sound else self.backend.begin(name)
        return ContentWriter(self, name, sink, finished)

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
        source = self.backend.reader(name)
        if source is None:
            return None
        # Read twice: no byte of damaged content leaves, and no more than a piece is in memory.
        self._check(name)
        return pieces_in(source)

    def reader(self, digest: bytes) -> StoredContent | None:
        """Return a reader from any byte of content on, None if it is absent.

        A backend of cells checks each cell that it reads. Otherwise the first call hashes all of
        the content, and the reader checks each piece that it reads.
        Raises: Corruption: the stored bytes have another hash.
        """
        self._ready()
        name = checked_digest(digest)
        source = self.backend.reader(name)
        if source is None or self.backend.checks_reads:
            return None if source is None else StoredContent(name, source)
        hashes = self._hashes.get(name)
        if hashes is None:
            hashes = self._check(name)
            self.keep_hashes(name, hashes)
        return StoredContent(name, source, hashes)

    def keep_hashes(self, name: bytes, hashes: tuple[bytes, ...]) -> None:
        """Keep the hashes of the pieces of a content whose SHA-256 was compared just now."""
        # In memory only: after a restart the first read hashes the content again.
        self._hashes[name] = hashes
        while sum(map(len, self._hashes.values())) > _PIECES_MAX and len(self._hashes) > 1:
            self._hashes.pop(next(iter(self._hashes)), None)  # the oldest

    def exists(self, digest: bytes | None) -> bool:
        """Return whether content is present; False for None and while the storage is closed."""
        # A closed storage serves nothing.
        if not self._is_open or not isinstance(digest, bytes) or len(digest) != SHA256_BYTES:
            return False
        return self.backend.size(digest) is not None

    def size(self, digest: bytes) -> int:
        """Return the number of bytes of content. Raises: UsageError: it is absent."""
        self._ready()
        size = self.backend.size(checked_digest(digest))
        if size is None:
            raise UsageError(f"there is no content {digest.hex()}")
        return size

    def delete(self, digest: bytes) -> bool:
        """Remove content; return whether it was present. A merge may bring it back."""
        self._ready()
        # The hashes of its pieces stay: the name determines them, should the content come back.
        return self.backend.remove(checked_digest(digest))

    def verify(self) -> list[BadContent]:
        """Return the damaged contents; reads everything."""
        self._ready()
        # A list, because contents may be added during the long check.
        damages = ((digest, self._damage(digest)) for digest in list(self.backend.digests()))
        return [BadContent(digest, reason) for digest, reason in damages if reason is not None]

    def _check(self, name: bytes) -> tuple[bytes, ...]:
        """Return the hashes of the pieces of a content. Raises: Corruption: it is damaged."""
        hashes: list[bytes] = []
        reason = self._damage(name, hashes)
        if reason is not None:
            raise Corruption(f"the content {name.hex()} is damaged: {reason}")
        return tuple(hashes)

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

    def _damage(self, name: bytes, hashes: list[bytes] | None = None) -> str | None:
        """Return how a content is damaged, None if it is sound. hashes: gets each piece's hash."""
        digest, source = hashlib.sha256(), self.backend.reader(name)
        if source is None:
            return "it is absent"
        try:
            for piece in pieces_in(source):
                digest.update(piece)
                if hashes is not None:
                    hashes.append(hashlib.sha256(piece).digest())
        except Corruption as error:
            return str(error)
        found = digest.digest()
        return None if found == name else f"its SHA-256 is {found.hex()}"


class ContentWriter:
    """Content that arrives in pieces, for one name. Close it; before `finish` nothing is stored."""

    def __init__(
        self,
        storage: Storage,
        name: bytes,
        sink: ContentSink | None,
        finished: Callable[[], None],
    ) -> None:
        """sink: None if the content is present, and the bytes that arrive are only checked."""
        self.name: Final = name
        self._storage: Final = storage
        self._limit: Final = storage.content_bytes_max
        # Hashed by piece on the way in, so that the first read need not hash all of it.
        self._pieces: Final = None if storage.backend.checks_reads else PieceHashes()
        self._sink: Final = sink
        self._finished: Final = finished
        self._digest: Final = hashlib.sha256()
        self._size = 0

    def write(self, piece: bytes) -> None:
        """Add bytes at the end.

        Raises: UsageError: `piece` is not bytes. LimitExceeded: the content is too long.
                StoreFull, StoreFailed: the backend cannot write.
        """
        if not isinstance(piece, bytes):
            raise UsageError(f"a piece of content is bytes, got {type(piece).__name__}")
        self._size += len(piece)
        if self._size > self._limit:  # counted while it is read: a stream has no length
            raise LimitExceeded(f"the content {self.name.hex()} has more than {self._limit} bytes")
        self._digest.update(piece)
        if self._pieces is not None:
            self._pieces.update(piece)
        if self._sink is not None:
            self._sink.write(piece)

    def finish(self) -> None:
        """Store the bytes written. Raises: UsageError: they have another SHA-256."""
        # Compared even if the content is present: a caller with other bytes gets the error.
        if self._digest.digest() != self.name:
            raise UsageError(
                f"the content is not {self.name.hex()}: its SHA-256 is {self._digest.hexdigest()}"
            )
        if self._sink is not None:
            self._sink.commit()
        # After the commit: hashes are kept only of contents that the backend has.
        if self._pieces is not None:
            self._storage.keep_hashes(self.name, self._pieces.finish())
        self._finished()

    def close(self) -> None:
        """Discard the bytes written, unless `finish` has stored them."""
        if self._sink is not None:
            self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MemoryBackend:
    """Contents in memory, until it is closed."""

    checks_reads = True

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Drop all contents."""
        self._held.clear()

    def begin(self, digest: bytes) -> ContentSink:
        """Return a sink for a content."""

        def keep(made: bytes | Blob) -> None:
            self._held[digest] = bytes(made)

        return CellContentSink(MemoryStaging(), keep)

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        return len(self._held[digest]) if digest in self._held else None

    def reader(self, digest: bytes) -> ContentReader | None:
        """Return a reader of a content, None if it is absent."""
        found = self._held.get(digest)
        return None if found is None else CellContent(found)

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        return self._held.pop(digest, None) is not None

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        return iter(sorted(self._held))


class LatticeBackend:
    """Contents in the lattice: an Index at a cursor, by default its own.

    Every write is one atomic update. A merge of a state that has a removed content brings it back.
    staging: builds the value of a content that arrives; by default in memory.
    """

    checks_reads = True

    def __init__(
        self,
        cursor: LatticeCursor | None = None,
        staging: Callable[[], ContentStaging] = MemoryStaging,
    ) -> None:
        self._staging: Final = staging
        self._cursor: Final = (
            RootLattice(STORAGE_LATTICE, EMPTY_INDEX) if cursor is None else cursor
        )

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

    def begin(self, digest: bytes) -> ContentSink:
        """Return a sink for a content."""
        return CellContentSink(self._staging(), lambda made: self._name(digest, made))

    def _name(self, digest: bytes, made: bytes | Blob) -> None:
        self._cursor.update(lambda held: (as_index(held) or EMPTY_INDEX).put(digest, made))

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        found = self.reader(digest)
        return None if found is None else found.size

    def reader(self, digest: bytes) -> ContentReader | None:
        """Return a reader of a content, None if it is absent."""
        blob = self.state.get(digest)
        return CellContent(blob) if isinstance(blob, (bytes, Blob)) else None

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        gone = False

        def removed(held: Value) -> Value:
            nonlocal gone
            contents = as_index(held) or EMPTY_INDEX
            gone = digest in contents
            # The same object, so that nothing is signed or sent.
            return contents.remove(digest) if gone else held

        self._cursor.update(removed)
        return gone

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        return (key for key, _ in self.state.entries() if isinstance(key, bytes))


def checked_digest(digest: object) -> bytes:
    """Return `digest` if it is a SHA-256: 32 bytes. Raises: UsageError: it is not."""
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
        return (
            content[at : at + CONTENT_READ_BYTES]
            for at in range(0, len(content), CONTENT_READ_BYTES)
        )
    return iter(content)
