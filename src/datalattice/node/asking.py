"""Asking: the fence of a program that writes to a store while no node runs on it.

A node is run on the store for as long as it takes to ask the peers. It does not listen, and waits
no longer once none of them can be reached.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.node.config import NodeConfig
from datalattice.node.fencing import WITHOUT_ASKING
from datalattice.node.logs import quietly
from datalattice.node.node import Node
from datalattice.node.settings import load_settings
from datalattice.store import CellStore

NO_PORT: Final = -1


def ask_peers(
    store: CellStore,
    settings: Path,
    identity: KeyPair,
    keys: Iterable[KeyPair],
    *,
    offline: bool = False,
) -> str | None:
    """Merge what the peers in a file of settings have of the slots of these keys' owners.

    Returns why it is not known what was written elsewhere, None where it is, or where the settings
    name no peers. The store notes it, and its node is degraded until a peer was asked.
    Raises: Unfenced: it was copied, restored or moved, or has lost commits, and no peer answers;
            not with `offline`. IdentityCloned: another node runs with this identity.
    """
    config = load_settings(settings, os.environ, {}).config
    if not config.peers:
        return None
    if offline:
        store.place().settle(SystemClock().now_ms())
        return WITHOUT_ASKING
    quiet = replace(config, port=NO_PORT, http_port=None, url=None, discover="none")
    # The caller may be on an event loop itself, as a notebook is.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _asked(store, quiet, identity, keys)).result()


async def _asked(
    store: CellStore, config: NodeConfig, identity: KeyPair, keys: Iterable[KeyPair]
) -> str | None:
    node = Node(store, config, identity=identity, keys=keys, is_brief=True)
    with quietly():
        async with node:
            await node.fenced()
            if node.is_fenced:
                return None
            reasons = "; ".join(f"{one.address}: {one.reason}" for one in node.peers)
            return f"{WITHOUT_ASKING} ({reasons})"
