"""Transport: byte streams between nodes."""

from datalattice.node.transport.base import (
    Accept,
    Endpoint,
    Link,
    Listener,
    Refused,
    Transport,
)
from datalattice.node.transport.memory import MemoryTransport
from datalattice.node.transport.schemes import NodeTransport
from datalattice.node.transport.tcp import TcpTransport

__all__ = [
    "Accept",
    "Endpoint",
    "Link",
    "Listener",
    "MemoryTransport",
    "NodeTransport",
    "Refused",
    "TcpTransport",
    "Transport",
]
