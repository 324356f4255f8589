"""Ports: a test reserves a port, and its service listens there later."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Yield a free TCP port of 127.0.0.1, and reserve it until the context ends.

    A socket that is bound without listening reserves it: the system gives other ports to programs
    that ask for any, and refuses connections. A server that binds this port with SO_REUSEADDR can
    listen there, also several times after each other.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        if sys.platform != "linux":
            held.close()  # on other systems a bound socket would refuse the server its port
        yield port
