"""Network: blocking streams to nodes, and what any client of the protocol can ask of them."""

from datalattice.client.network.fetching import (
    HealingSources,
    PeerCells,
    healing_document,
    report_document,
)
from datalattice.client.network.probing import NodeReport, probe, receive_result, unreached
from datalattice.client.network.stream import open_stream, tune
from datalattice.client.network.tls import (
    NODE_ALPN,
    PLAIN_ALPN,
    HandshakeFailed,
    TlsIdentity,
    explain,
    proven_key,
)

__all__ = [
    "NODE_ALPN",
    "PLAIN_ALPN",
    "HandshakeFailed",
    "HealingSources",
    "NodeReport",
    "PeerCells",
    "TlsIdentity",
    "explain",
    "healing_document",
    "open_stream",
    "probe",
    "proven_key",
    "receive_result",
    "report_document",
    "tune",
    "unreached",
]
