"""A venue is edited beside a running node, which writes for no other."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.grid import VENUE, Venue
from datalattice.cells import Keyword, Signed
from datalattice.client import Folder, edit, reading, write_key
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError
from datalattice.lattice import assoc_in, did_of, root_lattice
from datalattice.node import Daemon, NodeServer
from datalattice.testing.polling import LIMIT_S

KEY = KeyPair(b"v" * 32)
OTHER = KeyPair(b"o" * 32)


def beside_a_node(folder: Folder, work: Callable[[NodeServer], Any]) -> None:
    async def run() -> None:
        ready: asyncio.Future[NodeServer] = asyncio.get_running_loop().create_future()
        daemon = Daemon(
            folder.path,
            NodeConfig(port=-1),
            key_pair=KEY,
            ready=lambda _, node: ready.set_result(node),
        )
        async with asyncio.timeout(LIMIT_S):
            serve = asyncio.ensure_future(daemon.serve())
            try:
                await asyncio.to_thread(work, await ready)
            finally:
                daemon.stop()
                await serve

    asyncio.run(run())


def test_a_venue_is_edited_through_its_running_node(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "home")
    write_key(folder.key_path, KEY)
    content = hashlib.sha256(b"seed").digest() * 40_000
    declared = json.dumps({"content": {"sha256": hashlib.sha256(content).hexdigest()}})

    def change(cursor: RootLattice, keys: KeyPair) -> bytes:
        venue = Venue.at(cursor, keys)
        asset = venue.register(declared)
        venue.put_content(asset, content)
        venue.hide("jobs", venue.create_job())
        return asset

    def forge(cursor: RootLattice, keys: KeyPair) -> None:
        signed = Signed.sign(keys, VENUE.zero())
        path = (Keyword("grid"), Keyword("venues"), did_of(OTHER.public_key))
        cursor.adopt(lambda root: assoc_in(root, path, signed, root_lattice()))

    def work(node: NodeServer) -> None:
        asset = edit(folder, change)
        beside = Venue.at(node.cursor, KEY.public_key)
        assert beside.content(asset) == content
        with pytest.raises(DataLatticeError, match="may not sign for its owner"):
            edit(folder, forge)
        with reading(folder) as root:
            venue = Venue.at(RootLattice(root_lattice(), root), KEY)
            assert (venue.assets(), venue.jobs(), len(venue.view())) == ([asset], [], 1)
            assert venue.verify() == ([], [])

    beside_a_node(folder, work)
