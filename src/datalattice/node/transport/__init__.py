"""Transport: byte streams between nodes."""

from datalattice.node.transport.base import (
    Accept,
    Link,
    Listener,
    Place,
    Refused,
    Transport,
)
from datalattice.node.transport.memory import MemoryTransport
from datalattice.node.transport.tcp import TcpTransport

__all__ = [
    "Accept",
    "Link",
    "Listener",
    "MemoryTransport",
    "Place",
    "Refused",
    "TcpTransport",
    "Transport",
]
