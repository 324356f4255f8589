"""Asking: a program that writes without a node asks the peers of its folder, whatever they do."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import Value
from datalattice.client import Folder, edit, read_key_pairs, write_key
from datalattice.client.fence import WITHOUT_ASKING, ask_peers
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import IdentityCloned
from datalattice.lattice import MergeContext, root_lattice, verify_did
from datalattice.store import CellStore
from datalattice.testing.folders import running_node
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import encode_length

NOWHERE = "127.0.0.1:1"
LARGE = 300_000


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a folder with a key and one record."""
    found = Folder(tmp_path / "home")
    write_key(found.key_path, KeyPair(bytes(32)))
    offer(found, "a")
    return found


def offer(folder: Folder, value: Value) -> None:
    def change(cursor: RootLattice, keys: KeyPair) -> None:
        Topics.at(cursor, keys.public_key).topic("log").partition(0).offer(value)

    edit(folder, change)


def copy_of(folder: Folder, name: str) -> Folder:
    """Return a copy of a folder, which has one more record than the folder itself."""
    path = folder.path.parent / name
    shutil.copytree(folder.path, path)
    offer(Folder(path), "b" * LARGE)
    return Folder(path)


def ask(folder: Folder, *peers: str, wait_ms: int = 300) -> str | None:
    config = NodeConfig(peers=peers, fence_wait_ms=wait_ms, fence_moved_wait_ms=wait_ms)
    with CellStore.open(folder.store_path) as store:
        return ask_peers(folder, store, read_key_pairs(folder), config)


def count(folder: Folder) -> int:
    with CellStore.open(folder.store_path, read_only=True) as store:
        cursor = RootLattice(root_lattice(), store.root(), MergeContext(verifier=verify_did))
        owner = KeyPair(bytes(32)).public_key
        return Topics.at(cursor, owner).topic("log").partition(0).size()


@contextlib.contextmanager
def listening(says: bytes | None) -> Iterator[str]:
    """Have something listen that says `says` and no more; None: it says nothing and stays."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    stream, _ = server.accept()
                    held.append(stream)
                    if says is not None:
                        stream.recv(1)
                        stream.sendall(says)
                        stream.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)
        for stream in held:
            stream.close()


@pytest.mark.parametrize("scheme", ["", "tcp://"], ids=["tls", "plain"])
def test_what_a_peer_has_of_the_owner_is_here_afterwards(folder: Folder, scheme: str) -> None:
    peer = copy_of(folder, "peer")
    with running_node(peer.path, has_key=False, plain=True) as node:
        assert ask(folder, NOWHERE, f"{scheme}{node.address}", wait_ms=20_000) is None
    assert count(folder) == 2


def test_who_is_silent_is_waited_for_and_no_longer(folder: Folder) -> None:
    peer = copy_of(folder, "peer")
    with listening(None) as silent, running_node(peer.path, has_key=False) as node:
        found = ask(folder, f"tcp://{silent}", silent)
        assert found == f"{WITHOUT_ASKING} (tcp://{silent}: connected; {silent}: not dialled yet)"
        assert count(folder) == 1
        assert ask(folder, f"tcp://{silent}", str(node.address), wait_ms=1_500) is None
    assert count(folder) == 2


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"", "closed by the peer"),
        (b"\x80\x01", "superfluous octet 80"),
        (encode_length(200_000_000), "200000000"),
    ],
    ids=["nothing", "padded-length", "long-frame"],
)
def test_who_does_not_speak_the_protocol_is_named_with_the_reason(
    folder: Folder, says: bytes, why: str
) -> None:
    with listening(says) as other:
        found = ask(folder, f"tcp://{other}", wait_ms=20_000)
    assert found is not None
    assert f"tcp://{other}: " in found
    assert why in found


def test_a_node_that_runs_on_a_copy_of_the_folder_is_found_out(folder: Folder) -> None:
    clone = copy_of(folder, "clone")
    with (
        running_node(clone.path) as node,
        pytest.raises(IdentityCloned, match="identity new"),
    ):
        ask(folder, str(node.address), wait_ms=20_000)
    assert count(folder) == 1
