"""Node: replication between processes, with sockets, timers and threads."""

from datalattice.node.backup import Backup as Backup
from datalattice.node.control import (
    SOCKET_PATH_BYTES_MAX as SOCKET_PATH_BYTES_MAX,
    NodeService as NodeService,
    OfferedService as OfferedService,
    bind_socket as bind_socket,
)
from datalattice.node.daemon import Beside as Beside, Daemon as Daemon
from datalattice.node.decisions import (
    decide_hosting as decide_hosting,
    hosting_info as hosting_info,
    refuse_for_good as refuse_for_good,
    resolve_fork as resolve_fork,
)
from datalattice.node.grids import (
    AuthorityWatch as AuthorityWatch,
    WebResolver as WebResolver,
    web_keys as web_keys,
)
from datalattice.node.observe import Observer as Observer
from datalattice.node.peers import PeerInfo as PeerInfo
from datalattice.node.server import NodeServer as NodeServer, open_node as open_node
from datalattice.node.serving import serve as serve
from datalattice.node.systemd import take_socket as take_socket
from datalattice.node.transport import (
    MemoryTransport as MemoryTransport,
    TcpTransport as TcpTransport,
    Transport as Transport,
)
