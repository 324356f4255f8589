"""Place: the demo's folder - what marks it as one, who may use it, and starting over."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from datalattice.errors import UsageError

MARK: Final = "demo.json"
LOCK: Final = "demo.lock"
FORMAT: Final = 1


class Place:
    """The folder of one demo."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @property
    def checkpoint(self) -> Path:
        """Where Spark's stream remembers how far it came."""
        return self.path / "spark"

    @property
    def plot(self) -> Path:
        """The picture."""
        return self.path / "delays.png"

    @property
    def report(self) -> Path:
        """The report of the last run."""
        return self.path / "report.json"

    def prepare(self, *, fresh: bool, limit: int | None) -> None:
        """Make the folder, or take up the one that is there; `fresh` empties it first.

        Raises: UsageError: the folder holds something else, or a demo of other flights.
        """
        mark = self.path / MARK
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is not a folder; name another with --dir")
        if self._holds_other_things():
            raise UsageError(
                f"{self.path} holds other things than a demo; name another folder with --dir"
            )
        if fresh:
            self._empty()
        self.path.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.write_text(json.dumps({"format": FORMAT, "flights": limit}) + "\n", "utf-8")
            return
        if self._marked() != {"format": FORMAT, "flights": limit}:
            raise UsageError(
                f"{self.path} holds a demo of other flights or of another version; "
                "--fresh starts over"
            )

    def _marked(self) -> object:
        try:
            found: object = json.loads((self.path / MARK).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def _holds_other_things(self) -> bool:
        if not self.path.is_dir() or (self.path / MARK).exists():
            return False
        return any(path.name != LOCK for path in self.path.iterdir())

    def _empty(self) -> None:
        if not self.path.is_dir():
            return
        for path in sorted(self.path.iterdir()):
            if path.name in {LOCK, MARK}:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        # Last: a folder that was emptied halfway is still known as a demo's.
        (self.path / MARK).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second demo out of the folder.

        Raises: UsageError: one is running there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another demo is running in {self.path}") from error
            yield
        finally:
            os.close(handle)
