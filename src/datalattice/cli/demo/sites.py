"""Sites: the four nodes of the demo, each a process with its own key pair and data folder."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from datalattice.cells import Map, Value
from datalattice.cli.access import open_reader, topics_of
from datalattice.cli.demo.flights import SITES, Flight
from datalattice.cli.folder import Folder, read_key, write_key
from datalattice.crypto import KeyPair
from datalattice.errors import DataLatticeError, PeerUnavailable, Timeout
from datalattice.node import ControlClient, NodeWriter, connect, running

HQ: Final = "hq"
NODES: Final = (*SITES, HQ)

FLIGHTS_TOPIC: Final = "flights"
FIGURES_TOPIC: Final = "delay-figures"
COVERS: Final = "covers"
"""Metadata key of the figures: up to which offset of each owner they reach."""

BATCH: Final = 1_000
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05


class Site:
    """One node process and its folder."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.folder = Folder(path)
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
        """What the process had to say."""
        return self.folder.path / "node.log"

    def start(self) -> None:
        """Start the process with no peers: cut off from all others.

        Raises: PeerUnavailable: it ended, or does not answer; the text has its last words.
        """
        _stop_leftover(self.folder)
        command = [sys.executable, "-m", "datalattice.cli", "node", "start", "--port", "0"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--dir", str(self.folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        """Return when the process serves.

        Raises: PeerUnavailable: it ended, or does not answer; the text has its last words.
        """
        process = self._process
        deadline = time.monotonic() + START_TIMEOUT_S
        while process is not None and process.poll() is None and time.monotonic() < deadline:
            found = running(self.folder.path)
            if found is not None and found.address is not None:
                self.address = found.address
                return
            time.sleep(POLL_S)
        words = self.log_path.read_text("utf-8", "replace").strip().splitlines()
        last = words[-1] if words else "it said nothing"
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
        with self.client() as client:
            status = client.call("node.status")
        return str(status.get("root_hash")) if isinstance(status, Map) else ""

    def stop(self) -> None:
        """End the process in order; its last writes are on disk then."""
        if self._process is None:
            return
        with contextlib.suppress(DataLatticeError), self.client() as client:
            client.call("node.stop")
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def count(self, topic: str = FLIGHTS_TOPIC) -> int:
        """Return how many records of its own topic are in the node's store."""
        if not self.folder.store_path.is_dir():
            return 0
        with open_reader(self.folder) as store:
            return count_of(store.root(), self.public_key, topic)


def count_of(root: Value, owner: bytes, topic: str) -> int:
    """Return how many records an owner's topic has in a root value."""
    return 0 if root is None else topics_of(root, owner).partition(topic, 0).end_offset()


def _stop_leftover(folder: Folder) -> None:
    """End a node that an interrupted run has left behind."""
    client = connect(folder.path)
    if client is None:
        return
    with client:
        client.call("node.stop")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while running(folder.path) is not None:
        if time.monotonic() > deadline:
            raise Timeout(f"an earlier node in {folder.path} does not end")
        time.sleep(POLL_S)


class Cluster:
    """All four nodes. As a context manager it ends them whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.sites = {name: Site(name, folder / name) for name in SITES}
        self.hq = Site(HQ, folder / HQ)

    @property
    def nodes(self) -> list[Site]:
        """The three sites, then hq."""
        return [*self.sites.values(), self.hq]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, sites: Sequence[Site]) -> None:
        """Start some of the nodes, together."""
        for site in sites:
            site.start()
        for site in sites:
            site.wait_ready()

    def connect(self) -> None:
        """Let every site stay connected to hq."""
        for site in self.sites.values():
            with site.client() as client:
                client.call("node.add_peer", address=self.hq.address)

    def stop(self) -> None:
        """End all nodes."""
        for site in self.nodes:
            site.stop()

    def root_hashes(self) -> dict[str, str]:
        """Return what each node announces."""
        return {site.name: site.root_hash() for site in self.nodes}

    def wait_converged(
        self, timeout_s: float, watch: Callable[[], bool] = lambda: True
    ) -> dict[str, str]:
        """Return the root hashes when they are equal and `watch` says that all is there.

        Raises: Timeout: they did not become equal.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            complete = watch()
            hashes = self.root_hashes()
            if complete and len(set(hashes.values())) == 1:
                return hashes
            if time.monotonic() > deadline:
                raise Timeout(f"the nodes did not converge in {timeout_s:.0f} s: {hashes}")
            time.sleep(POLL_S)


def ingest(site: Site, flights: Sequence[Flight], begin: int) -> Iterator[int]:
    """Append a site's flights from number `begin` on; yield how many after every durable batch."""
    with site.client() as client:
        writer = NodeWriter(client)
        for at in range(begin, len(flights), BATCH):
            batch = flights[at : at + BATCH]
            writer.offer_many(
                FLIGHTS_TOPIC,
                0,
                [flight.line for flight in batch],
                [flight.carrier for flight in batch],
            )
            yield len(batch)
