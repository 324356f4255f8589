"""The demo's folder: the file that marks it, its locks, and starting over.

    demo.json        marks the folder as a demo's, with its number of flights
    demo.lock        held by the running demo
    nodes.lock       held by that demo and by its nodes: after a kill they need a moment to end
    EWR JFK LGA hq   the nodes' folders
    spark            the stream's checkpoint
    spark-scratch    Spark's temporary files; spark-scratch.log beside it is Java's output
    delays.png report.json

Starting over removes these and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from datalattice.errors import Timeout, UsageError
from flights.sites import NODES

MARK: Final = "demo.json"
LOCK: Final = "demo.lock"
NODES_LOCK: Final = "nodes.lock"
FORMAT: Final = 1
END_TIMEOUT_S: Final = 60.0

CHECKPOINT: Final = "spark"
PLOT: Final = "delays.png"
REPORT: Final = "report.json"
SCRATCH: Final = "spark-scratch"
SPARK_LOG: Final = "spark-scratch.log"
CONTENTS: Final = (*NODES, CHECKPOINT, SCRATCH, SPARK_LOG, PLOT, REPORT)


class DemoFolder:
    """The folder of one demo."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint of Spark's stream."""
        return self.path / CHECKPOINT

    @property
    def scratch(self) -> Path:
        """The folder of Spark's temporary files; its log is beside it."""
        return self.path / SCRATCH

    @property
    def plot(self) -> Path:
        """The picture."""
        return self.path / PLOT

    @property
    def report(self) -> Path:
        """The report of the last run."""
        return self.path / REPORT

    def check(self) -> None:
        """Check that the folder is a demo's or can become one, and write nothing.

        Raises: UsageError: it holds something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is not a folder; name another with --dir")
        if not self.path.is_dir() or (self.path / MARK).exists():
            return
        # Locks alone are left by a run that ended before it marked the folder.
        if any(path.name not in {LOCK, NODES_LOCK} for path in self.path.iterdir()):
            raise UsageError(
                f"{self.path} holds files that are not a demo's; name another folder with --dir"
            )

    def prepare(self, *, fresh: bool, limit: int | None) -> None:
        """Mark the folder, or continue the demo in it; `fresh` removes that demo first.

        Raises: UsageError: it is a demo of other flights.
        """
        if fresh:
            self._empty()
        mark = self.path / MARK
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

    def _empty(self) -> None:
        for name in CONTENTS:
            path = self.path / name
            # A link is removed, never what it points to: that is not the demo's.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        # Last, so that a folder that was emptied halfway still counts as a demo's.
        (self.path / MARK).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Exclude a second demo, and wait until the nodes of an earlier one have ended.

        Yields the handle that this demo's nodes hold while they run.

        Raises: UsageError: the folder cannot be used, or another demo runs there.
                Timeout: nodes of a killed demo do not end.
        """
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        with _opened(self.path / LOCK) as own, _opened(self.path / NODES_LOCK) as nodes:
            try:
                # Without waiting, as the other demo may run for minutes; the nodes of a killed one
                # end in seconds.
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another demo is running in {self.path}") from error
            waiting = threading.Thread(target=fcntl.flock, args=(nodes, fcntl.LOCK_EX), daemon=True)
            # In a thread, because `flock` has no time limit.
            waiting.start()
            waiting.join(END_TIMEOUT_S)
            if waiting.is_alive():
                raise Timeout(f"nodes of an earlier demo in {self.path} do not end")
            yield nodes


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # Not inherited by other programs: only the nodes that get the handle hold the lock.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)
