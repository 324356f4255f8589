"""Weaver stores of nodes in folders: handles, serving nodes and invites, over TLS on loopback."""

from __future__ import annotations

from pathlib import Path

import datalattice
from datalattice.cells import to_cell
from datalattice.client import connect, folder_of
from datalattice.testing.folders import until
from datalattice.weaver import InviteToken


def join(folder: Path, token: InviteToken) -> None:
    with connect(folder_of(folder)) as client:
        client.call("weaver.join", to_cell({"token": token.to_text()}))


def test_two_sites_share_a_store_and_each_sees_what_the_other_writes(tmp_path: Path) -> None:
    home, guest = tmp_path / "home", tmp_path / "guest"
    with datalattice.open(home) as node:
        node.store("notes", "kv")["before"] = "written without a server"
    with datalattice.serve(home) as here, datalattice.serve(guest) as there:
        notes = here.store("notes")
        token = notes.invite(addresses=[f"tls://{here.address}"])
        join(guest, token)
        copy = there.store("notes")
        until(lambda: copy.get("before") == "written without a server")
        copy["after"] = "from the guest"
        until(lambda: notes.get("after") == "from the guest")
    with datalattice.open(guest) as node:
        assert dict(node.store("notes")) == {
            "before": "written without a server",
            "after": "from the guest",
        }
