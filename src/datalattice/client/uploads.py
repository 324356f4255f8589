"""Uploads: a byte string that arrives in pieces, stored as it comes, before an edit names it.

    with node.upload() as upload:
        upload.write(piece)
        drive.write("/film", upload.finish())

Its finished parts are in the store, so it needs little memory however long it is. What no edit
names goes with a later collection.
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
    """One byte string that arrives. One thread at a time may use it; `close` it."""

    def __init__(
        self,
        editing: Callable[[], AbstractContextManager[Editor]],
        lease: Callable[[bytes, float], Lease],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """editing: gives an editor for a moment. lease: keeps a stored value for some seconds."""
        self._editing: Final = editing
        self._keep: Final = lease
        self._now_s: Final = now_s
        self._builder: Final = BlobBuilder(b"", self._stage)
        self._lease: Lease | None = None
        self._kept_s = now_s()

    def write(self, piece: bytes) -> None:
        """Add bytes at the end. Raises: StoreFull, StoreLocked."""
        self._builder.write(piece)
        # Cells that nothing refers to are safe from collection only while they are young, so a slow
        # upload is leased.
        if self._now_s() - self._kept_s >= KEEP_EVERY_S:
            self._renew(self.finish())

    def finish(self) -> FileContent:
        """Store the rest; return all that was written."""
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
        """Let go of what no edit named."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
