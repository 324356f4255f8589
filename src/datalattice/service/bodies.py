"""Bodies: streams of the pieces of a large byte string, from any storage.

Source: docs/rest.md "Files".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from datalattice.actions import CHUNK_BYTES_MAX, FilePiece, GetContent, GetFile
from datalattice.cells import Value, Vector
from datalattice.cursors import Stream, Wake
from datalattice.errors import StaleToken
from datalattice.service.registry import Streamed
from datalattice.service.resuming import not_a_position, read_token

# "Two at a time, while the two before are sent: four in memory a reader" (docs/design/service.md).
PIECES_AT_ONCE: Final = 2
"""Pieces read at once: the most that a door reads ahead of a slow caller."""


class FilePieces(Stream[FilePiece]):
    """One version of a byte string, from a byte on; a position is [hash, next byte]."""

    def __init__(
        self,
        where: str,
        size: int,
        hash: bytes,
        read: Callable[[int, int], bytes],
        request: GetFile | GetContent,
    ) -> None:
        """where: its name in errors. hash: of this version. read: returns bytes of a range."""
        super().__init__(_Unchanging())
        self._where, self._size, self._hash, self._read = where, size, hash, read
        self._at = request.start
        self._stop = min(request.start + request.count, size) if request.count else size

    def go_on(self, position: Value) -> None:
        """Begin at a position. Raises: StaleToken: it is of another version. UsageError."""
        parts = list(position) if isinstance(position, Vector) else []
        if [type(one) for one in parts] != [bytes, int]:
            raise not_a_position(position)
        if parts[0] != self._hash:
            raise StaleToken(
                f"{self._where}: the file has changed; a fresh start begins {self.fresh_start()}"
            )
        at = cast("int", parts[1])
        # A token is a caller's text: a negative start would read from the end.
        if at < 0:
            raise not_a_position(position)
        self._at = at

    def _fetch(self) -> list[FilePiece]:
        found: list[FilePiece] = []
        # An empty file is one piece without bytes, which has its size and hash.
        while len(found) < PIECES_AT_ONCE and (self._at < self._stop or not self._stop):
            stop = min(self._at + CHUNK_BYTES_MAX, self._stop)
            data = self._read(self._at, stop)
            found.append(FilePiece(data=data, start=self._at, size=self._size, hash=self._hash))
            self._at = stop
            if not self._stop:
                break
        # The last piece ends the stream; its reader learns the end without a further read.
        if self._at >= self._stop:
            self.close()
        return found

    def now(self) -> Value:
        """Return the position behind the pieces that were read."""
        return Vector.of([self._hash, self._at])

    def after(self, items: Sequence[FilePiece]) -> list[Value]:
        """Return the position behind each piece."""
        return [Vector.of([one.hash, one.start + len(one.data)]) for one in items]

    def fresh_start(self) -> str:
        """Return where a fresh start begins, as the end of a sentence."""
        return "at its first byte"


class _Unchanging:
    """A source that never wakes its readers: one version of a file does not change."""

    def subscribe(self, wake: Wake) -> Wake:
        return lambda: None


def piece_stream(
    pieces: FilePieces, name: bytes, request: GetFile | GetContent
) -> Streamed[FilePiece]:
    """Return the pieces of a request as a stream. name: of the stream in its tokens."""
    if request.resume:
        pieces.go_on(read_token(request.resume, name))
    return Streamed(
        pieces,
        lambda piece: piece,
        name=name,
        positions=pieces,
        is_resumed=bool(request.resume),
        at_once=PIECES_AT_ONCE,
    )
