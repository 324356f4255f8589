"""Network: blocking streams to nodes, and requests that any client of the protocol can make."""

from datalattice.client.network.fetching import (
    HealingSources,
    healing_document,
    report_document,
)
from datalattice.client.network.probing import probe, receive_result, unreached
from datalattice.client.network.tls import (
    NODE_ALPN,
    PLAIN_ALPN,
    HandshakeFailed,
    TlsIdentity,
    explain,
    open_stream,
    proven_key,
    tune,
)

__all__ = [
    "NODE_ALPN",
    "PLAIN_ALPN",
    "HandshakeFailed",
    "HealingSources",
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
