"""Place: whether a store still lies where it was when a node last wrote to it.

`place.json` beside the log says where the log's folder was (`Disk.place`): on which machine, on
which file system, under which inode, made when. A folder that was copied, restored from a backup or
moved to another disk differs in one of them. A snapshot of a machine as a whole does not.
"""

from __future__ import annotations

import json
from typing import Final

from datalattice.store.disk import Disk, write_error
from datalattice.store.folder import read_text, write_text
from datalattice.store.segments import FOLDER as SEGMENTS

PLACE_FILE: Final = "place.json"
START_BYTES: Final = 6
"""Length of the number of a start: exact in JSON."""

STARTS_MAX: Final = 128
"""Starts that are remembered: what one of them signed says nothing of another node."""

UNREADABLE: Final = "unreadable"
"""Where a store was whose file of its place cannot be read: elsewhere, to be careful."""


class PlaceFile:
    """What is noted of one store's place and of the starts of nodes on it.

    moved:       whether the store lies elsewhere than was noted when this object was made.
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
        self._read()
        self.moved = self._noted not in (None, self._here)

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
        self._noted, self.unfenced_ms = self._here, unfenced_ms
        self._write()

    def _write(self) -> None:
        document = {
            "place": self._noted or self._here,
            "unfenced_ms": self.unfenced_ms,
            "starts": self._starts,
        }
        try:
            write_text(self._disk, self._folder, PLACE_FILE, json.dumps(document) + "\n")
        except OSError as error:
            raise write_error(error, f"{self._folder}/{PLACE_FILE}") from error
