"""Probing: asks a node over the network whether it answers, and for its root."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Final

from datalattice.cells import MessageCells, Value, value_hash
from datalattice.client.addresses import PLAIN_SCHEME, parse_address, system_reason
from datalattice.client.network.tls import open_stream
from datalattice.crypto import KeyPair
from datalattice.errors import PeerError, PeerUnavailable, ProtocolViolation
from datalattice.wire import (
    FRAME_READ_BYTES,
    FrameBuffer,
    Result,
    decode_payload,
    encode_frame,
    encode_ping,
    encode_query,
)

PROBE_TIMEOUT_S: Final = 5.0  # short, because a person waits

ANSWER_WITHIN_S: Final = 120.0
"""Longest time from a request to the last byte of its answer. A limit for each read would never end
for a peer that sends single bytes or other messages without end."""

NO_PLAIN: Final = "does it take plain connections (`plain = true`)?"
NOT_ALLOWED: Final = "does it let only some keys in (`allow`)?"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's answer. Nodes with equal `root_hash` announce the same value."""

    address: str
    root_hash: bytes
    round_trip_ms: float
    reply: Value


class HungUp(ConnectionError):
    """The other end closed the connection without an answer."""


def probe(
    address: str, timeout_s: float = PROBE_TIMEOUT_S, key_pair: KeyPair | None = None
) -> NodeReport:
    """Ask the node at an address to answer a ping, and for its root.

    key_pair: for a node that admits only some keys. It must not be the key of a running node, whose
              peers would take this connection for that node.
    Raises: UsageError: `address` is malformed. PeerUnavailable: no node answers there.
    """
    try:
        with open_stream(address, timeout_s, key_pair) as stream:
            buffer = FrameBuffer()
            began_ns = time.monotonic_ns()  # connecting is not part of the round trip
            stream.sendall(encode_frame(encode_ping(1)))
            pong, _ = receive_result(stream, buffer, 1)
            took_ms = (time.monotonic_ns() - began_ns) / 1e6
            stream.sendall(encode_frame(encode_query(2, (), 0)))
            root, _ = receive_result(stream, buffer, 2)
    except TimeoutError as error:  # before OSError, its base class
        raise PeerUnavailable(f"{address} did not answer in {timeout_s} s") from error
    except OSError as error:
        raise PeerUnavailable(unreached_text(address, error)) from error
    except PeerError as error:
        raise PeerUnavailable(f"{address} is not a lattice node: {error}") from error
    # If the root is too large for the answer, the answer has its hash.
    root_hash = value_hash(root.value) if root.absent is None else root.absent
    return NodeReport(address, root_hash, took_ms, pong.value)


def unreached_text(address: str, error: OSError) -> str:
    """Return why a node cannot be reached, with the setting that may be the cause."""
    text = system_reason(error)
    if isinstance(error, HungUp):
        is_plain = parse_address(address).scheme == PLAIN_SCHEME
        text += f"; {NO_PLAIN if is_plain else NOT_ALLOWED}"
    # A failed handshake names the address itself.
    return text if address in text else f"{address} cannot be reached: {text}"


def receive_result(
    stream: socket.socket, buffer: FrameBuffer, id: int, within_s: float = ANSWER_WITHIN_S
) -> tuple[Result, MessageCells]:
    """Return the answer to a request, with its cells; other frames before it are ignored.

    Raises: OSError: the connection failed. PeerError: the answer is an error, a message was
            malformed, or the answer was not complete within `within_s`.
    """
    give_up_s = time.monotonic() + within_s
    while True:
        while (payload := buffer.next_payload()) is None:
            if time.monotonic() > give_up_s:  # each byte restarts the socket's own limit
                raise ProtocolViolation(f"it sends, but no whole answer within {within_s:g} s")
            data = stream.recv(FRAME_READ_BYTES)
            if not data:  # a node that requires TLS, or another key, closes without an answer
                raise HungUp("it closed the connection")
            buffer.feed(data)
        message, parts = decode_payload(payload)
        # Other frames, such as the peer's announcements, may come first.
        if isinstance(message, Result) and type(message.id) is int and message.id == id:
            if message.error is not None:
                raise ProtocolViolation(f"it answered {message.error.name}: {message.value}")
            return message, parts
