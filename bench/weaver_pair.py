"""Two nodes in two processes over loopback that share one Weaver store, both on disk.

The node that writes runs in the measuring process. The guest is a process of its own (this file as
a script): it joins with the invite on its command line, and notes after each commit how many
intentions are in its log and how much memory it uses. Both read one clock, the monotonic one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import datalattice
from datalattice.client import WeaverFolder, folder_of, keys_of
from datalattice.weaver import InviteToken, Stores, WeaverStore

PATIENCE_S = 600.0


@dataclass
class Copied:
    """The measurements of the guest since it began to join.

    course: after each commit, the time, the number of intentions in its log, and the bytes of
    memory, without files, beyond those before it joined.
    """

    begun: float
    course: list[tuple[float, int, int]]

    def time(self, number: int) -> float:
        """Return when `number` intentions were in the log."""
        at = bisect_left(self.course, number, key=itemgetter(1))
        return self.course[at][0]

    def memory(self, number: int) -> int:
        """Return the most memory up to the time at which `number` intentions were in the log."""
        end = self.time(number)
        return max(memory for when, _, memory in self.course if when <= end)


class Guest:
    """The second process."""

    def __init__(self, folder: Path, token: InviteToken) -> None:
        command = [sys.executable, __file__, str(folder), token.to_text()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def until(self, count: int) -> Copied:
        """Wait until `count` intentions are in the guest's log; return what it measured."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return Copied(**json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


@dataclass
class Home:
    """The node that writes, and the stores that it serves."""

    node: Any
    stores: Stores
    folder: Path

    def token(self, store: WeaverStore, scheme: str) -> InviteToken:
        """Return an invite with addresses of one transport alone."""
        tickets = str(self.node.ticket).split(",")
        addresses = [one for one in tickets if one.startswith("iroh:")]
        if scheme == "tls":
            addresses = [f"tls://{self.node.address}"]
        return self.stores.peers.create_invite(store.id, addresses)

    @contextmanager
    def guest(self, store: WeaverStore, scheme: str) -> Iterator[Guest]:
        """Start the second process, with one copy of the store."""
        guest = Guest(self.folder / f"guest of {store.id.hex()}", self.token(store, scheme))
        try:
            yield guest
        finally:
            guest.end()


@contextmanager
def home(iroh: str = "off") -> Iterator[Home]:
    """Serve a new folder in this process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with datalattice.serve(folder / "home", iroh=iroh) as node, _stores(folder / "home") as its:
            yield Home(node, its, folder)


@contextmanager
def _stores(path: Path) -> Iterator[Stores]:
    """Give the stores of a folder that is served in this process: those that the node has."""
    folder = folder_of(path)
    keys = keys_of(folder, None, create=False)
    assert keys is not None, "serving it has made them"
    weaver = WeaverFolder.at(folder, keys.identity, read_only=False)
    try:
        yield weaver.stores()
    finally:
        weaver.close()


def memory() -> int:
    """Return the bytes of memory of this process that are no copy of a file."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


class _Watch:
    """Notes time, log length and memory after each commit to a store."""

    def __init__(self, store: WeaverStore, before: int) -> None:
        self._changed = threading.Condition()
        self._before = before
        self._course: list[tuple[float, int, int]] = []
        self._store = store
        self.end = store.on_change(self._note)
        self._note(0)

    def _note(self, _seq: int) -> None:
        now = time.monotonic()
        with self._store.read() as view:
            count = view.last_seq()
        with self._changed:
            # One entry a commit: one an intention would itself count as memory of the copy.
            self._course.append((now, count, memory() - self._before))
            self._changed.notify_all()

    def until(self, count: int, begun: float) -> Copied:
        with self._changed:
            if not self._changed.wait_for(lambda: self._course[-1][1] >= count, PATIENCE_S):
                raise SystemExit(f"{self._course[-1][1]} of {count} intentions came")
            return Copied(begun, self._course)


def main() -> None:
    """Be the second process."""
    folder, token = Path(sys.argv[1]), sys.argv[2]
    with datalattice.serve(folder) as node, _stores(folder) as stores:
        before = memory()
        begun = time.monotonic()
        node.join(token)
        watch = _Watch(stores.open(InviteToken.from_text(token).store_id), before)
        for line in sys.stdin:
            print(json.dumps(vars(watch.until(int(line), begun))), flush=True)
        watch.end()


if __name__ == "__main__":
    main()
