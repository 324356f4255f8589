"""Weaver stores of nodes in folders: handles, serving nodes and invites, on loopback."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import datalattice
from datalattice.errors import BadFormat, PeerUnavailable, UsageError
from datalattice.weaver import PeerStatus

pytestmark = [pytest.mark.once, pytest.mark.processes, pytest.mark.timeout(180)]

TIMEOUT = 40.0


def wait(store: datalattice.KVStore[str], key: str, value: str) -> None:
    """Wait until a store has a value."""
    changes = store.watch(prefix=key, timeout=TIMEOUT)  # before the first look
    while store.get(key) != value:
        if next(changes, None) is None:
            break
    else:
        return
    raise AssertionError(f"{key} is {store.get(key)!r}")


def test_two_sites_share_a_store_and_each_sees_what_the_other_writes(
    tmp_path: Path, port: int
) -> None:
    home, guest = tmp_path / "home", tmp_path / "guest"
    with datalattice.open(home) as node:
        node.store("notes", "kv")["before"] = "written without a server"
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes = here.store("notes")
        token = notes.invite()
        copy = there.join(token)
        wait(copy, "before", "written without a server")
        copy["after"] = "from the guest"
        wait(notes, "after", "from the guest")
        assert {peer.status for peer in notes.peers()} == {PeerStatus.ACTIVE}
        with pytest.raises(UsageError, match="is on this node already"):
            there.join(token)
        with pytest.raises(BadFormat, match="mistyped"):
            there.join(token[:-1])
    with datalattice.open(guest) as node:
        assert dict(node.store("notes")) == {
            "before": "written without a server",
            "after": "from the guest",
        }
        with pytest.raises(PeerUnavailable):
            node.join(token)
        node.store("notes")["alone"] = "written while no node ran"
    # Both start anew: the guest knows from the invite where to call.
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest):
        wait(here.store("notes"), "alone", "written while no node ran")


@pytest.mark.usefixtures("multicast")
def test_peers_of_a_store_on_one_network_find_each_other(tmp_path: Path) -> None:
    """Neither is told of the other: each knows the node alone that invited both."""
    home, *folders = (tmp_path / name for name in ("home", "one", "two"))
    with contextlib.ExitStack() as stack:
        here, *guests = (stack.enter_context(datalattice.serve(at)) for at in (home, *folders))
        notes = here.store("notes", "kv")
        copies = [guest.join(notes.invite()) for guest in guests]
        notes["joined"] = "both"  # it follows what names them as peers
        for copy in copies:
            wait(copy, "joined", "both")
    with (
        datalattice.serve(folders[0], discover="mdns", mdns_interfaces=["127.0.0.1"]) as one,
        datalattice.serve(folders[1], discover="mdns", mdns_interfaces=["127.0.0.1"]) as two,
    ):
        one.store("notes")["without home"] = "x"
        wait(two.store("notes"), "without home", "x")
        assert "mdns" in {peer["source"] for node in (one, two) for peer in node.peers()}


class Serving:
    """`lattice node start` as a process over a folder."""

    def __init__(self, folder: Path, scheme: str = "tls") -> None:
        self.folder = folder
        self.port = 0
        self._iroh = "direct" if scheme == "iroh" else "off"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "datalattice.cli", "--dir", str(self.folder)]
        command += ["node", "start", "--port", str(self.port), "--accept-unfenced"]
        command += ["--iroh", self._iroh]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        # `listening at HOST:PORT`, once it serves.
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            said = stdout.readline().strip()
        assert said, "the node did not start"
        self.port = int(said.rpartition(":")[2])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()


@pytest.fixture(params=["tls", "iroh"])
def scheme(request: pytest.FixtureRequest) -> str:
    if request.param == "iroh":
        pytest.importorskip("iroh")
    return str(request.param)


def addresses(node: datalattice.Node, scheme: str) -> list[str]:
    """Return the addresses in the node's ticket that have a scheme, for an invite."""
    found = str(node.ticket).split(",")
    return [
        one if "://" in one else f"tls://{one}"
        for one in found
        if ("iroh" in one) == (scheme == "iroh")
    ]


def test_nodes_that_are_killed_go_on_where_they_were(tmp_path: Path, scheme: str) -> None:
    home, guest = Serving(tmp_path / "home", scheme), Serving(tmp_path / "guest")
    try:
        home.start()
        guest.start()
        with datalattice.open(home.folder) as here, datalattice.open(guest.folder) as there:
            notes = here.store("notes", "kv")
            for number in range(300):
                notes[f"before {number}"] = "x"
            copy = there.join(notes.invite(*addresses(here, scheme)))
            guest.kill()  # somewhere in the first copy
            home.kill()
            notes["alone"] = "no node runs"
            home.start()
            guest.start()
            wait(copy, "alone", "no node runs")
            copy["back"] = "from the guest"
            wait(notes, "back", "from the guest")
            assert dict(notes) == dict(copy)
            assert len(copy) == 302
            (peer,) = there.peers()
            assert peer["address"].startswith("iroh:") == (scheme == "iroh")
            # A node that goes and comes back at once is found again, and a revocation holds.
            guest.kill()
            notes["while away"] = "x"
            guest.start()
            wait(copy, "while away", "x")
            served = there.running
            assert served is not None
            notes.revoke(bytes.fromhex(str(served.public_key)))
            notes["for others"] = "x"
            # The lattice on the same connection still goes on: what follows it has had its turn.
            here.queue("log").offer("after the revocation")
            assert next(there.feed("log").follow(timeout=TIMEOUT)).value == "after the revocation"
            assert "for others" not in copy
    finally:
        home.end()
        guest.end()
