"""Sites: the four nodes of the demo, each a process with its own key pair and data folder.

A node process ends when its standard input does, so also a killed demo leaves no process running.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from datalattice.actions import AddPeer, GetNodeHealth, WaitForRoot
from datalattice.apps.queue import LatticeMQ
from datalattice.cells import Value
from datalattice.client import (
    ControlClient,
    Folder,
    connect,
    editing,
    open_store_reader,
    read_key,
    write_key,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import PeerUnavailable, Timeout
from datalattice.lattice import root_lattice
from flights.dataset import SITES, Flight

HQ: Final = "hq"
NODES: Final = (*SITES, HQ)

FLIGHTS_TOPIC: Final = "flights"
FIGURES_TOPIC: Final = "delay-figures"
COVERS: Final = "covers"
"""Metadata key of the figures: the end offset of each owner that they cover."""

BATCH: Final = 1_000
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
WAIT_MS: Final = 1_000
"""How long one request waits for a change at a node."""

GREETING: Final = "listening at "
"""What `lattice node start` prints, with its address, once it serves."""


class Site:
    """One node process and its folder."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.folder = Folder(path)
        # A later run continues the queues of the first one, which are under its keys.
        if not self.folder.key_path.exists():
            write_key(self.folder.key_path, KeyPair.generate())
        self.public_key = read_key(self.folder.key_path).public_key
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None else self._process.pid

    @property
    def log_path(self) -> Path:
        """The file of the process's error output."""
        return self.folder.path / "node.log"

    def start(self, held: Sequence[int] = ()) -> None:
        """Start the process without peers.

        It ends when this process ends in any way, because its standard input ends then. It keeps
        the files `held` open until it has ended. Ctrl-C reaches this process only.
        """
        command = [sys.executable, "-m", "datalattice.cli", "node", "start", "--port", "0"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--attached", "--dir", str(self.folder.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=held,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until the process serves, and note the address that it prints.

        Raises: PeerUnavailable: it ended, or does not answer; the text has its last log line.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        line = process.stdout.readline().decode("utf-8", "replace") if readable else ""
        if line.startswith(GREETING):
            self.address = line.removeprefix(GREETING).strip()
            return
        words = self.log_path.read_text("utf-8", "replace").strip().splitlines()
        last = words[-1].removeprefix("lattice: ") if words else "its log is empty"
        raise PeerUnavailable(f"the node {self.name} did not start: {last}")

    def client(self) -> ControlClient:
        """Return a connection to the process.

        Raises: PeerUnavailable: it does not run.
        """
        client = connect(self.folder.path)
        if client is None:
            raise PeerUnavailable(f"the node {self.name} has ended; see {self.log_path}")
        return client

    def root_hash(self) -> str:
        """Return the root that the node announces."""
        return self.wait_change("", 0)

    def wait_change(self, known: str, timeout_ms: int = WAIT_MS) -> str:
        """Return the root that the node announces, once it differs from `known` or time is up."""
        with self.client() as client:
            wanted = WaitForRoot(known=bytes.fromhex(known) or None, timeout_ms=timeout_ms)
            return client.call(wanted).root_hash.hex()

    def connection_count(self) -> int:
        """Return the number of the node's connections."""
        with self.client() as client:
            return client.call(GetNodeHealth()).connections

    def release(self) -> None:
        """Let the process end in order, with its last writes on disk."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Return when the process has ended."""
        process = self._process
        if process is None:
            return
        self.release()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Its writes are durable batch by batch, so a node that does not end loses nothing.
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def count(self, topic: str = FLIGHTS_TOPIC) -> int:
        """Return the number of records of its own topic in the node's store."""
        if not self.folder.store_path.is_dir():
            return 0
        with open_store_reader(self.folder) as store:
            return count_of(store.root(), self.public_key, topic)


def topics_of(root: Value, owner: bytes) -> LatticeMQ:
    """Return the topics of an owner in a root value, to read from."""
    return LatticeMQ.at(RootLattice(root_lattice(), root), owner)


def count_of(root: Value, owner: bytes, topic: str) -> int:
    """Return the number of records of an owner's topic in a root value."""
    return 0 if root is None else topics_of(root, owner).partition(topic, 0).end_offset()


class Cluster:
    """All four nodes. As a context manager it ends them, also after an error."""

    def __init__(self, folder: Path, held: Sequence[int] = ()) -> None:
        self.sites = {name: Site(name, folder / name) for name in SITES}
        self.hq = Site(HQ, folder / HQ)
        self._held = held

    @property
    def nodes(self) -> list[Site]:
        """The three sites, then hq."""
        return [*self.sites.values(), self.hq]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, sites: Sequence[Site]) -> None:
        """Start some of the nodes, together.

        Raises: PeerUnavailable: one of them does not start.
        """
        for site in sites:
            site.start(self._held)
        for site in sites:
            site.wait_ready()

    def connect(self) -> None:
        """Let every site stay connected to hq."""
        for site in self.sites.values():
            with site.client() as client:
                client.call(AddPeer(address=self.hq.address))

    def stop(self) -> None:
        """End all nodes, together."""
        for site in self.nodes:
            site.release()
        for site in self.nodes:
            site.stop()

    def root_hashes(self) -> dict[str, str]:
        """Return the root hash that each node announces."""
        return {site.name: site.root_hash() for site in self.nodes}

    def wait_converged(
        self, timeout_s: float, watch: Callable[[], bool] = lambda: True
    ) -> dict[str, str]:
        """Return the root hashes when they are equal and `watch` returns True.

        Raises: Timeout: they did not become equal.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            hashes = self.root_hashes()
            complete = watch()
            behind = [site for site in self.sites.values() if hashes[site.name] != hashes[HQ]]
            if complete and not behind:
                return hashes
            if time.monotonic() > deadline:
                short = ", ".join(f"{name} {hash[:16]}" for name, hash in hashes.items())
                raise Timeout(f"the nodes did not converge in {timeout_s:.0f} s: {short}")
            # Changes arrive at hq first, and go from there to the sites.
            next_to_change = behind[0] if complete else self.hq
            next_to_change.wait_change(hashes[next_to_change.name])


def ingest(site: Site, flights: Sequence[Flight], begin: int) -> Iterator[int]:
    """Append a site's flights from number `begin` on; yield the size of each durable batch."""
    with editing(site.folder) as editor:
        for at in range(begin, len(flights), BATCH):
            batch = flights[at : at + BATCH]
            values, keys = [one.line for one in batch], [one.carrier for one in batch]
            editor.offer_many(FLIGHTS_TOPIC, 0, values, keys)
            yield len(batch)
