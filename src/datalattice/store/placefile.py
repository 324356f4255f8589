"""Place: whether a store still lies where it was when a node last wrote to it.

`place.json` beside the log says where the log's folder was (`Disk.place`): on which machine, on
which file system, under which inode, made when. A folder that was copied, restored from a backup or
moved to another disk differs in one of them. A snapshot of a machine as a whole does not.
"""

from __future__ import annotations

import json
from typing import Final

from datalattice.crypto import sha3_256
from datalattice.store.disk import Disk, write_error
from datalattice.store.log.folder import read_text, write_text
from datalattice.store.log.segments import FOLDER as SEGMENTS

PLACE_FILE: Final = "place.json"
START_BYTES: Final = 6
"""Length of the number of a start: exact in JSON."""

STARTS_MAX: Final = 128
"""Starts that are remembered: what one of them signed says nothing of another node."""

COPY_ID_DIGITS: Final = 16

UNREADABLE: Final = "unreadable"
"""Where a store was whose file of its place cannot be read: elsewhere, to be careful."""


class PlaceFile:
    """What is noted of one store's place and of the starts of nodes on it.

    moved:       whether the store lies elsewhere than was noted when this object was made.
    copy_id:     empty where the store was made; another word in each copy of it, wherever that was
                 restored, copied or moved to.
    unfenced_ms: when something was written here without having asked a peer; None when a peer was
                 asked since. Every change is durable on return.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._here = disk.place(f"{folder}/{SEGMENTS}")
        self._noted: str | None = None
        self.unfenced_ms: int | None = None
        self._starts: list[int] = []
        self._noted_id = ""  # that of the noted place
        self._read()
        self.moved = self._noted not in (None, self._here)
        # No two folders are at one place, so no two copies have one id.
        here_id = sha3_256(self._here.encode()).hex()[:COPY_ID_DIGITS]
        self.copy_id: Final = here_id if self.moved else self._noted_id

    def _read(self) -> None:
        try:
            text = read_text(self._disk, self._folder, PLACE_FILE)
        except OSError:
            text = ""
        if text is None:
            return  # nobody has written here for an owner yet
        try:
            document = json.loads(text)
            noted, unfenced_ms = document["place"], document["unfenced_ms"]
            starts = document["starts"]
        except (ValueError, TypeError, KeyError):
            self._noted = UNREADABLE
            return
        self._noted = noted if isinstance(noted, str) else UNREADABLE
        self.unfenced_ms = unfenced_ms if type(unfenced_ms) is int else None
        copy_id = document.get("copy_id")
        self._noted_id = copy_id if isinstance(copy_id, str) else ""
        if isinstance(starts, list):
            self._starts = [one for one in starts if type(one) is int]

    def note(self) -> None:
        """Note the place where none was noted.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        if self._noted is None:
            self._noted = self._here
            self._write()

    def begun(self, start: int) -> None:
        """Note the number of a start, and the place where none was noted.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        # The last start before a copy was made may be that of a node which still runs.
        former = self._starts[:-1] if self.moved else self._starts
        self._starts = [*former, start][-STARTS_MAX:]
        self._noted = self._noted or self._here
        self._write()

    def has_begun(self, start: int) -> bool:
        """Return whether a start with this number was made here, or where this was copied from."""
        return start in self._starts

    def settle(self, unfenced_ms: int | None = None) -> None:
        """Note that the store belongs here: a peer was asked, or its user accepts that none was.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        if self._noted == self._here and self.unfenced_ms == unfenced_ms:
            return
        self._noted, self._noted_id, self.unfenced_ms = self._here, self.copy_id, unfenced_ms
        self._write()

    def _write(self) -> None:
        document = {
            "place": self._noted or self._here,
            "unfenced_ms": self.unfenced_ms,
            "starts": self._starts,
            "copy_id": self._noted_id,
        }
        try:
            write_text(self._disk, self._folder, PLACE_FILE, json.dumps(document) + "\n")
        except OSError as error:
            raise write_error(error, f"{self._folder}/{PLACE_FILE}") from error
