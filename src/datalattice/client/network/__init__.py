"""Network: blocking connections to nodes, for probes and fetches, and the proof of doors."""

from datalattice.client.network.fetching import (
    HealingSources as HealingSources,
    healed_store as healed_store,
    store_check as store_check,
)
from datalattice.client.network.pinning import (
    WELL_KNOWN as WELL_KNOWN,
    DoorPin as DoorPin,
    pin_of as pin_of,
    proved_door as proved_door,
    read_certificate as read_certificate,
    read_statements as read_statements,
    shown_certificate as shown_certificate,
    split_door as split_door,
    state_door as state_door,
    statement_text as statement_text,
    tls_reason as tls_reason,
    trusting_context as trusting_context,
    unverified as unverified,
)
from datalattice.client.network.probing import (
    probe as probe,
    receive_result as receive_result,
    unreached_text as unreached_text,
)
from datalattice.client.network.tls import (
    NODE_ALPN as NODE_ALPN,
    PLAIN_ALPN as PLAIN_ALPN,
    HandshakeFailed as HandshakeFailed,
    TlsIdentity as TlsIdentity,
    explain as explain,
    open_stream as open_stream,
    proven_key as proven_key,
    tune as tune,
)
