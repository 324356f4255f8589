"""Transport: byte streams between nodes."""

from datalattice.node.transport.base import (
    PLAIN,
    PORT_MAX,
    READ_BYTES,
    TLS,
    Accept,
    Address,
    Link,
    Listener,
    Refused,
    Transport,
    parse_address,
    parse_key,
    system_reason,
)
from datalattice.node.transport.memory import MemoryTransport
from datalattice.node.transport.tcp import TcpTransport, open_stream

__all__ = [
    "PLAIN",
    "PORT_MAX",
    "READ_BYTES",
    "TLS",
    "Accept",
    "Address",
    "Link",
    "Listener",
    "MemoryTransport",
    "Refused",
    "TcpTransport",
    "Transport",
    "open_stream",
    "parse_address",
    "parse_key",
    "system_reason",
]
