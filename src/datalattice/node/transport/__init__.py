"""Transport: byte streams between nodes."""

from datalattice.node.transport.base import Accept, Link, Listener, Transport, parse_address
from datalattice.node.transport.memory import MemoryTransport
from datalattice.node.transport.tcp import TcpTransport

__all__ = [
    "Accept",
    "Link",
    "Listener",
    "MemoryTransport",
    "TcpTransport",
    "Transport",
    "parse_address",
]
