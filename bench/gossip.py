"""Messages and bytes of an intention of a Weaver store, among nodes that are all connected.

    python bench/gossip.py

The nodes are those of the mesh kit, in virtual time without delays and losses. News carry the
intention itself; announcements its hash; statements the state of a node's log.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from datalattice.testing.mesh_kit import WeaverMesh

PAYLOAD: Final = b"x" * 300
WRITES: Final = 100
SIZES: Final = (2, 3, 5, 9, 16)
PAUSES_MS: Final = (1_000, 20, 2)


def measured(size: int, pause_ms: int) -> str:
    """Return a line of the table: a mesh of `size` nodes that write in turn, with pauses."""
    mesh = WeaverMesh(size)
    mesh.connect_all()
    for number in range(3 * size):  # duplicates prune the links, until those of a tree are left
        mesh.write(number % size, b"first")
        mesh.pass_time(200)
    mesh.pass_time(20_000)
    # The counts are those of a mesh at rest: neither its beginning nor the pruning is in them.
    mesh.sent.clear()
    mesh.bytes_sent = 0
    for number in range(WRITES):
        mesh.write(number % size, PAYLOAD)
        mesh.pass_time(pause_ms)
    took_ms = 0
    while not mesh.is_equal():
        mesh.pass_time(5)
        took_ms += 5
    kinds = ("news", "announcement", "statement", "fetch_intentions")
    counts = "".join(f"{mesh.sent[kind] / WRITES:>10.2f}" for kind in kinds)
    return f"{size:>5}{pause_ms:>8}{counts}{mesh.bytes_sent / WRITES:>10,.0f}{took_ms:>10}"


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.stdout.write("nodes   pause      news  announce  states     fetches     bytes  equal ms\n")
    for size in SIZES:
        for pause_ms in PAUSES_MS:
            sys.stdout.write(measured(size, pause_ms) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
