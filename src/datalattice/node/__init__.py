"""Node: replication between processes - sockets, timers, threads and their lives."""

from datalattice.node.asking import ask_peers
from datalattice.node.backup import Backup
from datalattice.node.config import DEFAULT_PORT, NodeConfig
from datalattice.node.control import ControlClient, NodeWriter
from datalattice.node.daemon import Daemon, Running, connect, running
from datalattice.node.fetching import HealingSources, healing_document, report_document
from datalattice.node.following import Watched, follow
from datalattice.node.forks import resolve_fork
from datalattice.node.garbage import collected_document, stats_document, sweep_by
from datalattice.node.grids import AuthorityWatch, WebResolver, web_keys
from datalattice.node.hosting import decide, hosting_document, refuse_for_good
from datalattice.node.importing import Bring, import_into
from datalattice.node.node import Node, open_node
from datalattice.node.observe import Observer
from datalattice.node.peers import PeerInfo
from datalattice.node.policyfile import parse_owner, parse_size
from datalattice.node.probing import NodeReport, probe, receive_result, unreached
from datalattice.node.settings import Settings, load_settings
from datalattice.node.slots import Slot, changed_slots, check_slot
from datalattice.node.transport import (
    MemoryTransport,
    TcpTransport,
    Transport,
    open_stream,
    parse_address,
)

__all__ = [
    "DEFAULT_PORT",
    "AuthorityWatch",
    "Backup",
    "Bring",
    "ControlClient",
    "Daemon",
    "HealingSources",
    "MemoryTransport",
    "Node",
    "NodeConfig",
    "NodeReport",
    "NodeWriter",
    "Observer",
    "PeerInfo",
    "Running",
    "Settings",
    "Slot",
    "TcpTransport",
    "Transport",
    "Watched",
    "WebResolver",
    "ask_peers",
    "changed_slots",
    "check_slot",
    "collected_document",
    "connect",
    "decide",
    "follow",
    "healing_document",
    "hosting_document",
    "import_into",
    "load_settings",
    "open_node",
    "open_stream",
    "parse_address",
    "parse_owner",
    "parse_size",
    "probe",
    "receive_result",
    "refuse_for_good",
    "report_document",
    "resolve_fork",
    "running",
    "stats_document",
    "sweep_by",
    "unreached",
    "web_keys",
]
