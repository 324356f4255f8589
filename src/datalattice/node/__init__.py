"""Node: replication between processes, with sockets, timers and threads."""

from datalattice.node.backup import Backup
from datalattice.node.control import (
    SOCKET_PATH_BYTES_MAX,
    NodeService,
    OfferedService,
    bind_socket,
    remove_socket,
)
from datalattice.node.daemon import Beside, Daemon
from datalattice.node.decisions import (
    decide,
    hosting_info,
    refuse_for_good,
    resolve_fork,
)
from datalattice.node.grids import AuthorityWatch, WebResolver, web_keys
from datalattice.node.observe import Observer
from datalattice.node.peers import PeerInfo
from datalattice.node.server import NodeServer, open_node
from datalattice.node.serving import serve
from datalattice.node.systemd import take_socket
from datalattice.node.transport import (
    MemoryTransport,
    TcpTransport,
    Transport,
)

__all__ = [
    "SOCKET_PATH_BYTES_MAX",
    "AuthorityWatch",
    "Backup",
    "Beside",
    "Daemon",
    "MemoryTransport",
    "NodeServer",
    "NodeService",
    "Observer",
    "OfferedService",
    "PeerInfo",
    "TcpTransport",
    "Transport",
    "WebResolver",
    "bind_socket",
    "decide",
    "hosting_info",
    "open_node",
    "refuse_for_good",
    "remove_socket",
    "resolve_fork",
    "serve",
    "take_socket",
    "web_keys",
]
