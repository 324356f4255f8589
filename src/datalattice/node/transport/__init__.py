"""Transport: byte streams between nodes."""

from datalattice.node.transport.base import (
    Accept as Accept,
    Endpoint as Endpoint,
    Link as Link,
    Listener as Listener,
    OnRefused as OnRefused,
    Transport as Transport,
    host_port as host_port,
)
from datalattice.node.transport.memory import MemoryTransport as MemoryTransport
from datalattice.node.transport.schemes import NodeTransport as NodeTransport
from datalattice.node.transport.tcp import TcpTransport as TcpTransport
