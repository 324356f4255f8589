"""Place file: detects that a store was copied, restored or moved since a node last wrote to it.

`place.json` records where the folder of the log was (`Disk.place`): machine, file system, inode and
time of birth. A folder that was copied, restored from a backup or moved to another disk differs in
one of them. A snapshot of a complete machine does not.

Source: docs/node.md "Restored, cloned, stolen".
"""

from __future__ import annotations

import json
from typing import Final

from datalattice.crypto import sha3_256
from datalattice.store.files import StoreFolder
from datalattice.store.log.segments import SEGMENTS

PLACE_FILE: Final = "place.json"
START_BYTES: Final = 6
"""Bytes of the number of a start, few enough that JSON represents it exactly."""

STARTS_MAX: Final = 128
"""Most starts that are remembered, so that a node recognises its own signatures."""

COPY_ID_DIGITS: Final = 16

UNREADABLE: Final = "unreadable"
"""The place of a store whose file cannot be read. The store counts as moved, which is safe."""


class PlaceFile:
    """The recorded place of a store, and the starts of nodes on it. Changes are durable.

    moved:       whether the store lay elsewhere than recorded when this object was made.
    copy_id:     empty where the store was made; a different word in each copy that was restored,
                 copied or moved elsewhere.
    unfenced_ms: when something was written here without asking a peer first; None if a peer was
    asked since.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._here = folder.disk.place(f"{folder}/{SEGMENTS}")
        self._recorded: str | None = None
        self.unfenced_ms: int | None = None
        self._starts: list[int] = []
        self._recorded_id = ""
        self._read()
        # If nothing is recorded, no node has written here, and a copy cannot repeat its offsets.
        self.moved = self._recorded not in (None, self._here)
        # Derived from the place, which differs for every two folders.
        here_id = sha3_256(self._here.encode()).hex()[:COPY_ID_DIGITS]
        self.copy_id: Final = here_id if self.moved else self._recorded_id

    def _read(self) -> None:
        try:
            text = self._folder.read_text(PLACE_FILE)
        except OSError:
            text = ""
        if text is None:
            return  # no node has written here for an owner yet
        try:
            document = json.loads(text)
            recorded, unfenced_ms = document["place"], document["unfenced_ms"]
            starts = document["starts"]
        except (ValueError, TypeError, KeyError):
            # A damaged file counts as moved, so a peer is asked before anything is written.
            self._recorded = UNREADABLE
            return
        self._recorded = recorded if isinstance(recorded, str) else UNREADABLE
        self.unfenced_ms = unfenced_ms if type(unfenced_ms) is int else None
        copy_id = document.get("copy_id")
        self._recorded_id = copy_id if isinstance(copy_id, str) else ""
        if isinstance(starts, list):
            self._starts = [one for one in starts if type(one) is int]

    def note(self) -> None:
        """Record the place, unless one is recorded.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        if self._recorded is None:
            self._recorded = self._here
            self._write()

    def begun(self, start: int) -> None:
        """Record the number of a start, and the place unless one is recorded.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        # The node that made the last start before the copy may still run.
        former = self._starts[:-1] if self.moved else self._starts
        self._starts = [*former, start][-STARTS_MAX:]
        self._recorded = self._recorded or self._here
        self._write()

    def has_begun(self, start: int) -> bool:
        """Return whether a start with this number happened here, or in the folder copied from."""
        return start in self._starts

    def settle(self, unfenced_ms: int | None = None) -> None:
        """Record that the store belongs here: a peer was asked, or the user accepts the risk.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        if self._recorded == self._here and self.unfenced_ms == unfenced_ms:
            return
        self._recorded, self._recorded_id = self._here, self.copy_id
        self.unfenced_ms = unfenced_ms
        self._write()

    def _write(self) -> None:
        document = {
            "place": self._recorded or self._here,
            "unfenced_ms": self.unfenced_ms,
            "starts": self._starts,
            "copy_id": self._recorded_id,
        }
        self._folder.replace(PLACE_FILE, json.dumps(document).encode() + b"\n")
