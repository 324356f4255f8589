"""Storage: content by its SHA-256, in one of several places that all behave alike.

Content is hashed when it comes in and again whenever it is read: what is not what its name says is
refused on the way in, and an error on the way out. The place itself is a `ContentPlace`: memory, a
folder, or the `:storage` of a venue in the lattice.

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
"""Content that comes in: as a whole, or in pieces that are taken one at a time."""


class ContentPlace(Protocol):
    """Where contents lie. What it is asked is checked already; it need not hash anything."""

    def open(self) -> None:
        """Make ready; raise when the place cannot be used."""
        ...

    def close(self) -> None:
        """Give up what the place holds open."""
        ...

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Keep what the pieces make up, or nothing of it when they raise or this does."""
        ...

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, nil when it is not here."""
        ...

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content, which is here, in pieces."""
        ...

    def remove(self, digest: bytes) -> bool:
        """Forget a content; return whether it was here."""
        ...

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        ...


@dataclass(frozen=True, slots=True)
class BadContent:
    """Content that is not what its name says."""

    digest: bytes
    reason: str


class Storage:
    """Contents by their SHA-256, in some place."""

    def __init__(self, place: ContentPlace, content_bytes_max: int = CONTENT_BYTES_MAX) -> None:
        if type(content_bytes_max) is not int or content_bytes_max < 0:
            raise UsageError(f"a content limit is a number of bytes, got {content_bytes_max!r}")
        self.place: Final = place
        self.content_bytes_max: Final = content_bytes_max
        self._is_open = False

    def __enter__(self) -> Self:
        self.initialise()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def initialise(self) -> None:
        """Make ready for use; once more is fine.

        Raises: UsageError: the place cannot be used.
        """
        if not self._is_open:
            self.place.open()
            self._is_open = True

    def close(self) -> None:
        """Give the place back; once more is fine."""
        if self._is_open:
            self._is_open = False
            self.place.close()

    @property
    def is_initialised(self) -> bool:
        """Whether it is ready for use."""
        return self._is_open

    def store(self, digest: bytes, content: Content) -> None:
        """Keep content under its SHA-256, `digest`.

        What is here already is not written again, unless it is damaged.

        Raises: UsageError: it is something else, or nil. LimitExceeded: it is too long. Nothing of
                it is kept then.
        """
        self._ready()
        name = checked_digest(digest)
        if not _is_content(content):
            raise UsageError(f"content is bytes or pieces of bytes, got {type(content).__name__}")
        pieces = self._checked(name, _pieces_of(content))
        if self.place.size(name) is None or self._damage(name) is not None:
            self.place.write(name, pieces)
        else:
            for _ in pieces:  # the same name for something else is refused, whatever is here
                pass

    def put(self, content: bytes) -> bytes:
        """Keep content; return its SHA-256.

        Raises: UsageError: it is no bytes. LimitExceeded: it is too long.
        """
        if not isinstance(content, bytes):
            raise UsageError(f"content is bytes, got {type(content).__name__}")
        digest = hashlib.sha256(content).digest()
        self.store(digest, content)
        return digest

    def get(self, digest: bytes) -> bytes | None:
        """Return content, checked against its name; nil when it is not here.

        Raises: Corruption: what is here is something else.
        """
        pieces = self.stream(digest)
        return None if pieces is None else b"".join(pieces)

    def stream(self, digest: bytes) -> Iterator[bytes] | None:
        """Return content in pieces, nil when it is not here; it is checked before the first.

        Raises: Corruption: what is here is something else.
        """
        self._ready()
        name = checked_digest(digest)
        if self.place.size(name) is None:
            return None
        reason = self._damage(name)
        if reason is not None:
            raise Corruption(f"the content {name.hex()} is damaged: {reason}")
        return self.place.read(name)

    def exists(self, digest: bytes | None) -> bool:
        """Return whether content is here; False, too, for nil and when not ready."""
        if not self._is_open or not isinstance(digest, bytes) or len(digest) != SHA256_BYTES:
            return False
        return self.place.size(digest) is not None

    def size(self, digest: bytes) -> int:
        """Return the number of bytes of content.

        Raises: UsageError: it is not here.
        """
        self._ready()
        size = self.place.size(checked_digest(digest))
        if size is None:
            raise UsageError(f"there is no content {digest.hex()}")
        return size

    def delete(self, digest: bytes) -> bool:
        """Forget content here; return whether there was any. A merge may bring it back."""
        self._ready()
        return self.place.remove(checked_digest(digest))

    def verify(self) -> list[BadContent]:
        """Return what here is not what its name says; all of it is read."""
        self._ready()
        damages = ((digest, self._damage(digest)) for digest in list(self.place.digests()))
        return [BadContent(digest, reason) for digest, reason in damages if reason is not None]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is here."""
        return next(iter(self), None) is None

    def __iter__(self) -> Iterator[bytes]:
        self._ready()
        return self.place.digests()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _ready(self) -> None:
        if not self._is_open:
            raise StoreClosed("the storage is not open: call initialise() first")

    def _checked(self, name: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces, and raise at their end, or before, when they are not what was named."""
        digest, size = hashlib.sha256(), 0
        for piece in pieces:
            if not isinstance(piece, bytes):
                raise UsageError(f"a piece of content is bytes, got {type(piece).__name__}")
            size += len(piece)
            if size > self.content_bytes_max:
                raise LimitExceeded(
                    f"the content {name.hex()} has more than {self.content_bytes_max} bytes"
                )
            digest.update(piece)
            yield piece
        if digest.digest() != name:
            raise UsageError(
                f"the content is not {name.hex()}: its SHA-256 is {digest.hexdigest()}"
            )

    def _damage(self, name: bytes) -> str | None:
        digest = hashlib.sha256()
        try:
            for piece in self.place.read(name):
                digest.update(piece)
        except Corruption as error:
            return str(error)
        found = digest.digest()
        return None if found == name else f"its SHA-256 is {found.hex()}"


class MemoryPlace:
    """Contents in this process, gone when it is closed."""

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}

    def open(self) -> None:
        """Nothing is to be done."""

    def close(self) -> None:
        """Forget everything."""
        self._held.clear()

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Keep what the pieces make up."""
        self._held[digest] = b"".join(pieces)

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, nil when it is not here."""
        return len(self._held[digest]) if digest in self._held else None

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content."""
        yield self._held[digest]

    def remove(self, digest: bytes) -> bool:
        """Forget a content; return whether it was here."""
        return self._held.pop(digest, None) is not None

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        return iter(sorted(self._held))


class LatticePlace:
    """Contents in the lattice: an Index at a cursor, on which every write is one atomic update.

    Without a cursor it has one of its own. What is removed here comes back with the next merge of a
    state that has it.
    """

    def __init__(self, cursor: LatticeCursor | None = None) -> None:
        self._cursor: Final = RootLattice(STORAGE, EMPTY_INDEX) if cursor is None else cursor

    @property
    def state(self) -> Index:
        """The contents, as they are joined with those of others."""
        return as_index(self._cursor.get()) or EMPTY_INDEX

    def merge(self, other: Value) -> Index:
        """Take over the sound contents of another state; return what is held then."""
        self._cursor.merge(other)
        return self.state

    def open(self) -> None:
        """Nothing is to be done."""

    def close(self) -> None:
        """Nothing is to be done: the cursor is somebody else's."""

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Keep what the pieces make up."""
        blob = make_blob(b"".join(pieces))
        self._cursor.update(lambda held: (as_index(held) or EMPTY_INDEX).put(digest, blob))

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, nil when it is not here."""
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
        """Forget a content; return whether it was here."""
        gone = False

        def removed(held: Value) -> Value:
            nonlocal gone
            contents = as_index(held) or EMPTY_INDEX
            gone = digest in contents
            return contents.remove(digest) if gone else held

        self._cursor.update(removed)
        return gone

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        return (key for key, _ in self.state.entries() if isinstance(key, bytes))


def checked_digest(digest: object) -> bytes:
    """Return `digest` if it is one: 32 bytes.

    Raises: UsageError: it is not.
    """
    if isinstance(digest, bytes) and len(digest) == SHA256_BYTES:
        return digest
    raise UsageError(f"the name of content is its SHA-256, {SHA256_BYTES} bytes, got {digest!r}")


def _is_content(content: object) -> bool:
    return isinstance(content, bytes) or (
        isinstance(content, Iterable) and not isinstance(content, (str, bytearray, memoryview))
    )


def _pieces_of(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        return (content[at : at + READ_BYTES] for at in range(0, len(content), READ_BYTES))
    return iter(content)
