"""Notes: local records for the operator of a store; they are not cells and are never sent.

A *text* is a decision of the operator and is durable when `write` returns. *Rows* are figures that
can be computed again; they lie in the index and may be lost with it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from datalattice.errors import Corruption, StoreError, StoreFailed
from datalattice.store.files import StoreFolder, checked, unchecked

COLLECTED_NOTE: Final = "collected"
"""Name of the text about the last collection."""


class RowTable(Protocol):
    """A table of rows: the index of a store (`log.hashindex`)."""

    def rows(self) -> dict[bytes, bytes]:
        """Return all rows by key."""

    def keep_rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Put rows, and remove those that are None."""


class Notes:
    """The notes of one store; these are in memory and end with the object."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._rows: dict[bytes, bytes] = {}

    def read(self, name: str) -> str | None:
        """Return a text, None when it was never written.

        Raises: Corruption: its checksum differs. StoreFailed: the disk cannot read it.
        """
        return self._texts.get(name)

    def write(self, name: str, text: str) -> None:
        """Replace a text; durable on return.

        Raises: StoreFull, StoreFailed: it could not be written.
        """
        self._texts[name] = text

    def rows(self) -> dict[bytes, bytes]:
        """Return all rows by key."""
        return dict(self._rows)

    def keep(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Put rows, and remove those that are None.

        Raises: StoreFull, StoreFailed: they could not be written.
        """
        for key, row in rows.items():
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row


class FolderNotes(Notes):
    """The notes of a store in a folder: a file for each text, rows in the index."""

    def __init__(self, folder: StoreFolder, index: Callable[[], RowTable]) -> None:
        super().__init__()
        self._folder = folder
        self._index = index

    def read(self, name: str) -> str | None:
        path = f"{self._folder}/{name}"
        try:
            data = self._folder.read(name) if self._folder.exists(name) else None
        except OSError as error:
            raise StoreFailed(f"{path}: cannot be read ({error.strerror or error})") from error
        if data is None:
            return None
        # An operator's decision is never guessed from damaged bytes.
        body = unchecked(data)
        if body is None:
            raise Corruption(
                f"{path}: not what was written; put the file back from a copy, or remove it and "
                "decide again"
            )
        return body.decode("utf-8")

    def write(self, name: str, text: str) -> None:
        self._folder.replace(name, checked(text.encode("utf-8")))

    def rows(self) -> dict[bytes, bytes]:
        # Asked for each time: reopening a store may replace its index.
        return self._index().rows()

    def keep(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._index().keep_rows(rows)


def write_collected(notes: Notes, now_ms: int, dead_left: int) -> None:
    """Record when a collection ended and how many dead cells it left, for `last_collection`."""
    # The collection has succeeded even if this note cannot be written.
    with contextlib.suppress(StoreError):
        notes.write(COLLECTED_NOTE, json.dumps({"time_ms": now_ms, "dead_left": dead_left}))


def last_collection(notes: Notes) -> dict[str, int | None]:
    """Return `time_ms` and `dead_left` of the last collection, None where that is not known."""
    known: dict[str, int | None] = {"time_ms": None, "dead_left": None}
    try:
        text = notes.read(COLLECTED_NOTE)
    except Corruption:
        return known  # the next collection replaces the note
    return known if text is None else known | json.loads(text)
