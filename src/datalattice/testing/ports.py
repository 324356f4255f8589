"""Ports: what a service of a test binds later is given to nobody else until then."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Give a TCP port of 127.0.0.1 that no other process gets by chance; nobody listens there yet.

    A bound socket that does not listen holds it: who asks for any free port is given another one,
    and a connection is refused. Whoever names the port with SO_REUSEADDR, as servers do, can listen
    there, also several times after each other.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        if sys.platform != "linux":
            held.close()  # elsewhere a bound socket keeps servers away too
        yield port
