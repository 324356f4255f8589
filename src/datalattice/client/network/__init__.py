"""Network: blocking streams to nodes, and requests that any client of the protocol can make."""

from datalattice.client.network.fetching import (
    HealingSources,
    healed_store,
    store_check,
)
from datalattice.client.network.pinning import (
    WELL_KNOWN,
    DoorPin,
    pin_of,
    proved_door,
    read_certificate,
    read_statements,
    shown_certificate,
    split_door,
    state_door,
    statement_text,
    tls_reason,
    trusting,
    unverified,
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
    "WELL_KNOWN",
    "DoorPin",
    "HandshakeFailed",
    "HealingSources",
    "TlsIdentity",
    "explain",
    "healed_store",
    "open_stream",
    "pin_of",
    "probe",
    "proved_door",
    "proven_key",
    "read_certificate",
    "read_statements",
    "receive_result",
    "shown_certificate",
    "split_door",
    "state_door",
    "statement_text",
    "store_check",
    "tls_reason",
    "trusting",
    "tune",
    "unreached",
    "unverified",
]
