"""Uploads: stores a byte string piece by piece, before an edit refers to it.

    with node.upload() as upload:
        upload.write(piece)
        drive.write("/film", upload.finish())

Complete parts go to the store, so memory stays small at any length. If no edit refers to the
result, a later garbage collection removes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Self

from datalattice.apps.dlfs import FileContent
from datalattice.cells import Blob, BlobBuilder, Value, value_hash
from datalattice.client.edits import KEEP_EVERY_S, KEEP_S, Editor

if TYPE_CHECKING:
    from datalattice.store.kept import Lease


class ContentUpload:
    """The upload of one byte string, for one thread at a time; `close` it."""

    def __init__(
        self,
        editing: Callable[[], AbstractContextManager[Editor]],
        lease: Callable[[bytes, float], Lease],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """editing: yields an editor. lease: leases a stored value by hash for some seconds."""
        self._editing: Final = editing
        self._keep: Final = lease
        self._now_s: Final = now_s
        self._builder: Final = BlobBuilder(b"", self._stage)
        self._lease: Lease | None = None
        self._kept_s = now_s()

    def write(self, piece: bytes) -> None:
        """Add bytes at the end. Raises: StoreFull, StoreLocked."""
        self._builder.write(piece)
        # Garbage collection spares unreachable cells only while they are young, so the parts of a
        # slow upload are leased.
        if self._now_s() - self._kept_s >= KEEP_EVERY_S:
            self._renew(self.finish())

    def finish(self) -> FileContent:
        """Store the last part; return the whole content."""
        made = self._builder.finish()
        assert isinstance(made, (bytes, Blob))
        if isinstance(made, Blob):
            self._stage(made)
        return made

    def _stage(self, part: Value) -> None:
        with self._editing() as editor:
            editor.stage(part)

    def _renew(self, made: FileContent) -> None:
        if isinstance(made, Blob):
            before, self._lease = self._lease, self._keep(value_hash(made), KEEP_S)
            if before is not None:
                before.release()
        self._kept_s = self._now_s()

    def close(self) -> None:
        """Release the lease: a content that no edit refers to becomes garbage."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
