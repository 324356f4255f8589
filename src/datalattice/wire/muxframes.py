"""Mux frames: the bytes of a connection with several streams.

    connection  = HELLO mux-frame*                          in each direction
    mux-frame   = kind u8, stream u32, length u32, payload  big-endian

    kind  name    stream    payload
    1     HELLO   0         nonce (32 bytes), features (ASCII, separated by spaces)
    2     OPEN    new       length of the name u8, name of the protocol (ASCII), store id
    3     DATA    any       1 to `DATA_BYTES_MAX` bytes of the frames of the stream
    4     CREDIT  any       u32: number of further bytes that may be sent on the stream
    5     END     not 0     none: nothing more is sent on the stream
    6     RESET   not 0     none: the stream is over in both directions

mux.py defines what the frames do to the streams.

Source: docs/protocol.md "Several streams".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from datalattice.errors import ProtocolViolation, UsageError

HELLO: Final = 1
OPEN: Final = 2
DATA: Final = 3
CREDIT: Final = 4
END: Final = 5
RESET: Final = 6

HEADER_BYTES: Final = 9
"""Kind u8, stream u32, length u32."""

DATA_BYTES_MAX: Final = (1 << 15) - HEADER_BYTES
"""Most payload of a DATA frame, which has 32 KiB with its header."""

NONCE_BYTES: Final = 32

HELLO_BYTES_MAX: Final = 1_024

PROTOCOL_BYTES_MAX: Final = 64
"""Longest name of a protocol."""

STORE_ID_BYTES_MAX: Final = 64

CREDIT_OCTETS: Final = 4

_KINDS: Final = {
    HELLO: ("HELLO", NONCE_BYTES, HELLO_BYTES_MAX),
    OPEN: ("OPEN", 2, 1 + PROTOCOL_BYTES_MAX + STORE_ID_BYTES_MAX),
    DATA: ("DATA", 1, DATA_BYTES_MAX),
    CREDIT: ("CREDIT", CREDIT_OCTETS, CREDIT_OCTETS),
    END: ("END", 0, 0),
    RESET: ("RESET", 0, 0),
}
"""Name, least and most payload bytes of each kind."""


class MuxPiece(NamedTuple):
    """A mux frame, or a piece of a DATA frame.

    length:  payload bytes of the frame; 0 in later pieces of a DATA frame.
    payload: all of the payload, or this piece, which may be empty.
    """

    kind: int
    stream: int
    length: int
    payload: bytes | memoryview


class MuxReader:
    """Divides the bytes of a link into mux frames. It buffers at most 1 KiB, and no DATA."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._wanted = HEADER_BYTES  # bytes of `_head` needed for the next step
        self._stream = 0
        self._data_left = 0

    def read(self, data: bytes) -> Iterator[MuxPiece]:
        """Yield complete frames, and DATA in pieces as they arrive. Read the iterator to its end.

        Raises: ProtocolViolation: an unknown kind, or a length that the kind does not have.
        """
        view = memoryview(data)
        at, end = 0, len(data)
        while at < end:
            if self._data_left:
                count = min(self._data_left, end - at)
                self._data_left -= count
                yield MuxPiece(DATA, self._stream, 0, view[at : at + count])
                at += count
                continue
            count = min(self._wanted - len(self._head), end - at)
            self._head += view[at : at + count]
            at += count
            if len(self._head) == HEADER_BYTES:
                # Checked before any payload byte is buffered.
                length = _checked_length(self._head)
                self._wanted = HEADER_BYTES + length
                self._stream = int.from_bytes(self._head[1:5], "big")
                if self._head[0] == DATA:  # passed on as it comes, never collected
                    self._head.clear()
                    self._wanted = HEADER_BYTES
                    count = min(length, end - at)
                    self._data_left = length - count
                    yield MuxPiece(DATA, self._stream, length, view[at : at + count])
                    at += count
                    continue
            if len(self._head) == self._wanted:
                kind, payload = self._head[0], bytes(self._head[HEADER_BYTES:])
                self._head.clear()
                self._wanted = HEADER_BYTES
                yield MuxPiece(kind, self._stream, len(payload), payload)


def _checked_length(header: bytearray) -> int:
    kind, length = header[0], int.from_bytes(header[5:9], "big")
    if kind not in _KINDS:
        raise ProtocolViolation(f"{kind} is not a kind of mux frame")
    # "A length that the kind does not have" ends the connection.
    name, least, most = _KINDS[kind]
    if not least <= length <= most:
        text = str(least) if least == most else f"{least} to {most}"
        raise ProtocolViolation(f"{name} has {text} bytes of payload, not {length}")
    return length


def encode_header(kind: int, stream: int, length: int) -> bytes:
    """Return the header of a mux frame."""
    # kind u8, stream u32, length u32, big-endian
    return (kind << 64 | stream << 32 | length).to_bytes(HEADER_BYTES, "big")


def encode_mux_frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a mux frame."""
    return encode_header(kind, stream, len(payload)) + payload


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of each side.

    nonce:    random bytes, new for each connection.
    features: names of what the side understands.
    """

    nonce: bytes
    features: frozenset[str] = frozenset()

    def encode(self) -> bytes:
        """Return the payload of a HELLO.

        Raises: UsageError: another length of nonce, a feature with spaces or beyond ASCII, or too
                many features.
        """
        text = " ".join(sorted(self.features))
        if len(self.nonce) != NONCE_BYTES:
            raise UsageError(f"a nonce has {NONCE_BYTES} bytes, not {len(self.nonce)}")
        if not text.isascii() or set(text.split()) != self.features:
            raise UsageError(f"features are words in ASCII, not {sorted(self.features)}")
        # "At most 1,024 bytes": a HELLO is buffered before anything is known of the peer.
        if NONCE_BYTES + len(text) > HELLO_BYTES_MAX:
            most = HELLO_BYTES_MAX - NONCE_BYTES
            raise UsageError(f"the names of features have {len(text)} bytes, at most {most} fit")
        return self.nonce + text.encode()  # nonce (32 bytes), features separated by spaces

    @staticmethod
    def decode(payload: bytes) -> Hello:
        """Read the payload of a HELLO.

        Raises: ProtocolViolation: the features are not ASCII.
        """
        text = payload[NONCE_BYTES:]
        if not text.isascii():
            raise ProtocolViolation("the features in HELLO are not ASCII")
        return Hello(payload[:NONCE_BYTES], frozenset(text.decode().split()))


def encode_open(protocol: str, store_id: bytes) -> bytes:
    """Return the payload of an OPEN.

    Raises: UsageError: a name that is not 1 to 64 bytes of ASCII, or a store id above 64 bytes.
    """
    if not protocol.isascii() or not 1 <= len(protocol) <= PROTOCOL_BYTES_MAX:
        most = PROTOCOL_BYTES_MAX
        raise UsageError(f"the name of a protocol has 1 to {most} bytes of ASCII, not {protocol!r}")
    if len(store_id) > STORE_ID_BYTES_MAX:
        raise UsageError(f"a store id has at most {STORE_ID_BYTES_MAX} bytes, not {len(store_id)}")
    # length of the name u8, name of the protocol, store id
    return bytes((len(protocol),)) + protocol.encode() + store_id


def decode_open(payload: bytes) -> tuple[str, bytes]:
    """Return (protocol, store id) of an OPEN.

    Raises: ProtocolViolation: the name or the store id is illegal.
    """
    end = 1 + payload[0]
    name, store_id = payload[1:end], payload[end:]
    # The name may be cut off by the end of the payload.
    if len(name) != payload[0] or not 1 <= len(name) <= PROTOCOL_BYTES_MAX or not name.isascii():
        most = PROTOCOL_BYTES_MAX
        raise ProtocolViolation(f"OPEN names a protocol in 1 to {most} bytes of ASCII")
    if len(store_id) > STORE_ID_BYTES_MAX:
        raise ProtocolViolation(f"a store id has at most {STORE_ID_BYTES_MAX} bytes")
    return name.decode(), store_id
