"""Messages: what two Weaver nodes send each other, and how it is framed.

Signed intentions and witness records travel as the bytes that were stored: the fields that hold
them are `bytes` here, and their own decoders check them.

Source: Weaver specification "Network".
"""

from __future__ import annotations

from typing import Annotated, Final

from datalattice.crypto import blake3
from datalattice.protobuf import Field, Message
from datalattice.sync.reconcile import RangeMessage, SketchMessage
from datalattice.weaver import store_id_text
from datalattice.wire import Framing

ALPN: Final = "lattice-sync/1"
"""Name of the protocol in the handshake of a transport."""

_FRAME_BYTES_MAX: Final = 8 * 1024 * 1024  # "at most 8 MiB (8 388 608) per frame"
"""Most bytes of a frame; a longer length closes the stream before anything is read."""

FRAMING: Final = Framing(_FRAME_BYTES_MAX, is_fixed=True)

_TOPIC_PREFIX: Final = "lattice/"


class JoinRequest(Message, name="lattice.network.JoinRequest"):
    """A node with an invite asks to become a peer of a store."""

    node_pubkey: Annotated[bytes, Field(1)] = b""
    store_id: Annotated[bytes, Field(2)] = b""
    invite_secret: Annotated[bytes, Field(3)] = b""


class JoinResponse(Message, name="lattice.network.JoinResponse"):
    """The node is an active peer now."""

    inviter_pubkey: Annotated[bytes, Field(1)] = b""
    store_id: Annotated[bytes, Field(2)] = b""
    store_type: Annotated[str, Field(3)] = ""


class FetchIntentions(Message, name="lattice.network.FetchIntentions"):
    """Asks for intentions by hash."""

    store_id: Annotated[bytes, Field(1)] = b""
    hashes: Annotated[tuple[bytes, ...], Field(2)] = ()


class IntentionResponse(Message, name="lattice.network.IntentionResponse"):
    """A batch of signed intentions; `done` in the last one."""

    store_id: Annotated[bytes, Field(1)] = b""
    done: Annotated[bool, Field(2)] = False
    intentions: Annotated[tuple[bytes, ...], Field(3)] = ()


class ReconcilePayload(Message, name="lattice.network.ReconcilePayload"):
    """All answers to the payload before."""

    store_id: Annotated[bytes, Field(1)] = b""
    messages: Annotated[tuple[RangeMessage, ...], Field(3)] = ()


class FetchChain(Message, name="lattice.network.FetchChain"):
    """Asks for an author's intentions from `target_hash` back to behind `since_hash`.

    An empty `since_hash`: back to the author's first.
    """

    store_id: Annotated[bytes, Field(1)] = b""
    target_hash: Annotated[bytes, Field(2)] = b""
    since_hash: Annotated[bytes, Field(3)] = b""


class BootstrapRequest(Message, name="lattice.network.BootstrapRequest"):
    """Asks for a part of the witness log. start_seq 0 means 1, limit 0 means 1,000.

    one_signature: the signature of the last record in each response suffices, since every record
                   names the one before it. A node that does not know the field signs each record.
    """

    store_id: Annotated[bytes, Field(1)] = b""
    start_seq: Annotated[int, Field(2, "uint64")] = 0
    limit: Annotated[int, Field(3, "uint32")] = 0
    one_signature: Annotated[bool, Field(100)] = False


class BootstrapResponse(Message, name="lattice.network.BootstrapResponse"):
    """Witness records and the intentions they name; `done` where the log ends."""

    store_id: Annotated[bytes, Field(1)] = b""
    records: Annotated[tuple[bytes, ...], Field(2)] = ()
    intentions: Annotated[tuple[bytes, ...], Field(3)] = ()
    done: Annotated[bool, Field(4)] = False
    last_seq: Annotated[int, Field(5, "uint64")] = 0


class SyncDone(Message, name="lattice.network.SyncDone"):
    """This side needs nothing more in the session."""

    store_id: Annotated[bytes, Field(1)] = b""


class PeerMessage(Message, name="lattice.network.PeerMessage"):
    """One frame of a stream. A message without a kind is ignored."""

    join_request: Annotated[JoinRequest | None, Field(1, oneof="message")] = None
    join_response: Annotated[JoinResponse | None, Field(2, oneof="message")] = None
    fetch_intentions: Annotated[FetchIntentions | None, Field(3, oneof="message")] = None
    intention_response: Annotated[IntentionResponse | None, Field(4, oneof="message")] = None
    reconcile_payload: Annotated[ReconcilePayload | None, Field(5, oneof="message")] = None
    fetch_chain: Annotated[FetchChain | None, Field(6, oneof="message")] = None
    bootstrap_request: Annotated[BootstrapRequest | None, Field(7, oneof="message")] = None
    bootstrap_response: Annotated[BootstrapResponse | None, Field(8, oneof="message")] = None
    sync_done: Annotated[SyncDone | None, Field(9, oneof="message")] = None


class NodeMessage(PeerMessage, name="datalattice.weaver.NodeMessage"):
    """A frame between two of our own nodes: a sketch may come with a payload of ranges.

    A node that does not know sketches skips the field, and continues by ranges.
    """

    sketch: Annotated[SketchMessage | None, Field(100)] = None


def topic_of(store_id: bytes) -> bytes:
    """Return the 32-byte gossip topic of a store: the BLAKE3 of "lattice/" and its UUID."""
    return blake3(f"{_TOPIC_PREFIX}{store_id_text(store_id)}".encode())
