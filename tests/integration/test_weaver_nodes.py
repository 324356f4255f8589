"""Weaver stores of nodes in folders: handles, serving nodes and invites, over TLS on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

import datalattice
from datalattice.errors import BadFormat, PeerUnavailable, UsageError
from datalattice.weaver import PeerStatus

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


def test_two_sites_share_a_store_and_each_sees_what_the_other_writes(tmp_path: Path) -> None:
    home, guest = tmp_path / "home", tmp_path / "guest"
    with datalattice.open(home) as node:
        node.store("notes", "kv")["before"] = "written without a server"
    with datalattice.serve(home) as here, datalattice.serve(guest) as there:
        notes = here.store("notes")
        token = notes.invite()
        assert here.address is not None
        port = here.address.rpartition(":")[2]
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
    with datalattice.serve(home, port=int(port)) as here, datalattice.serve(guest):
        wait(here.store("notes"), "alone", "written while no node ran")
