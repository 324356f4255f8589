"""Stream: a blocking byte stream to a node, for a caller without an event loop."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from datalattice.client.addresses import PLAIN, parse_address
from datalattice.client.network.tls import (
    HandshakeFailed,
    TlsIdentity,
    explain,
    proven_key,
)
from datalattice.crypto import KeyPair

_KEEP_ALIVE: Final = (
    ("TCP_KEEPIDLE", 30),  # seconds of silence before the other end is asked
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 120_000),  # milliseconds that sent bytes may stay without a receipt
)


def tune(raw: socket.socket) -> None:
    """Have a TCP socket send at once, and find out when the other end is gone without a word."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        option = getattr(socket, name, None)  # not on every system
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)


def open_stream(address: str, timeout_s: float, key_pair: KeyPair | None = None) -> socket.socket:
    """Return a blocking stream to a node, for a caller without an event loop.

    Over TLS this side proves `key_pair`, a throw-away one when not given.
    Raises: UsageError: not an address. OSError: it cannot be reached, or is not the node whose key
            the address names.
    """
    target = parse_address(address)
    stream = socket.create_connection((target.host, target.port), timeout_s)
    tune(stream)  # else the first request after a handshake waits 40 ms for a receipt
    if target.scheme == PLAIN:
        return stream
    try:
        secured = TlsIdentity(key_pair or KeyPair.generate()).client.wrap_socket(stream)
    except ssl.SSLError as error:
        raise HandshakeFailed(explain(error, address)) from error
    try:
        proven_key(secured, address, target.public_key)
    except HandshakeFailed:
        secured.close()
        raise
    return secured
