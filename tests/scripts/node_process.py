"""Run one node in the foreground, for tests that start, stop and kill processes.

node_process.py FOLDER SEED PORT [PEER ...]
"""

from __future__ import annotations

import sys

from datalattice.client import Running
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.node import Daemon, NodeServer


def _ready(running: Running, _node: NodeServer) -> None:
    sys.stdout.write(f"{running.address}\n")
    sys.stdout.flush()


def main(folder: str, seed: str, port: str, *peers: str) -> None:
    """Run until told to stop; print the address once it serves."""
    config = NodeConfig(port=int(port), peers=peers)
    Daemon(folder, config, key_pair=KeyPair(bytes([int(seed)]) * 32), ready=_ready).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
