"""Framing: payloads on a byte stream, each behind its length.

    frame   = length payload
    length  = payload bytes as an unsigned, big-endian, base 128 count;
              of protocols with fixed lengths: as four octets, big-endian

There is no magic, no version and no checksum: the first octet a node sees is a length. So the
length is all there is to judge whether the other side speaks this protocol, and every illegal one
ends the connection: a padded length (leading `80`), one longer than five octets, one above the
limit. The limit is applied as soon as the running value passes it, before a single payload byte is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from datalattice.errors import LimitExceeded, ProtocolViolation
from datalattice.limits import MESSAGE_BYTES_MAX

LENGTH_OCTETS_MAX: Final = 5
"""Longest length that is read: five octets reach past 2^32, far above any limit."""

FIXED_OCTETS: Final = 4
"""Octets of a length in a protocol with fixed lengths."""

READ_BYTES: Final = 1 << 18
"""Most bytes that are taken from a stream at once."""

_MORE: Final = 0x80
_DIGIT: Final = 0x7F
_COMPACT_BYTES: Final = 1 << 16


def encode_length(count: int) -> bytes:
    """Return `count` as a frame length.

    Shapes: count: 0 or more; result: one octet per 7 bits, at least one.
    Source: docs/node.md "Frames": big-endian base 128, bit 7 set on all octets but the last.
    """
    out = bytearray((count & _DIGIT,))
    count >>= 7
    while count:
        out.append(_MORE | (count & _DIGIT))
        count >>= 7
    out.reverse()
    return bytes(out)


def encode_frame(payload: bytes) -> bytes:
    """Return `payload` behind its length, ready to be written.

    Source: docs/node.md "Frames".
    """
    return encode_length(len(payload)) + payload


@dataclass(frozen=True, slots=True)
class Framing:
    """How the payloads of one protocol stand on a stream.

    payload_bytes_max: longest payload that is accepted, and sent.
    is_fixed:          lengths are four octets, big-endian; else counts in base 128.
    Source: docs/node.md "Frames", "Several streams".
    """

    payload_bytes_max: int = MESSAGE_BYTES_MAX
    is_fixed: bool = False

    def frame(self, payload: bytes) -> bytes:
        """Return `payload` behind its length, ready to be written."""
        if self.is_fixed:
            return len(payload).to_bytes(FIXED_OCTETS, "big") + payload
        return encode_frame(payload)

    def buffer(self) -> FrameBuffer:
        """Return an empty buffer that cuts such a stream into payloads."""
        return FrameBuffer(self.payload_bytes_max, is_fixed=self.is_fixed)


class FrameBuffer:
    """Cuts a byte stream into payloads, however the stream was split into pieces.

    `feed` takes what arrived, `next_payload` gives one payload or None for "not yet". An illegal
    length raises and the buffer is of no more use: where the next frame would start is unknown.

    Source: docs/node.md "Frames", "Bad input".
    """

    def __init__(
        self, payload_bytes_max: int = MESSAGE_BYTES_MAX, *, is_fixed: bool = False
    ) -> None:
        self._limit = payload_bytes_max
        self._is_fixed = is_fixed
        self._data = bytearray()
        self._start = 0
        self._length: int | None = None

    def feed(self, data: bytes | memoryview) -> None:
        """Append bytes of the stream.

        Source: docs/node.md "Frames".
        """
        self._data += data

    @property
    def is_partial(self) -> bool:
        """Whether the stream stands inside a frame, so that ending here would be a fault."""
        return self._length is not None or self._start < len(self._data)

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for frames not yet given out."""
        return len(self._data) - self._start

    @property
    def expected_bytes(self) -> int | None:
        """Payload bytes of the frame the stream stands in, None before its length was read."""
        return self._length

    def clear(self) -> None:
        """Drop everything that is held; the stream goes on with a new frame."""
        self._data = bytearray()
        self._start = 0
        self._length = None

    def next_payload(self) -> bytes | None:
        """Return the next whole payload, or None when more bytes are needed.

        Cost:   proportional to the payload, however many pieces it came in.
        Raises: ProtocolViolation: a padded length.
                LimitExceeded: a length above the limit.
        Source: docs/node.md "Frames": padded and wrapped lengths close the connection.
        """
        if self._length is None:
            self._length = self._read_fixed() if self._is_fixed else self._read_length()
            if self._length is None:
                return None
        end = self._start + self._length
        if len(self._data) < end:
            return None
        with memoryview(self._data) as view:
            payload = bytes(view[self._start : end])
        self._length = None
        self._start = end
        # Cutting the front of a buffer moves its rest, so it is done only when the front is the
        # larger part.
        if end == len(self._data) or (end > _COMPACT_BYTES and 2 * end > len(self._data)):
            del self._data[:end]
            self._start = 0
        return payload

    def _read_length(self) -> int | None:
        """Return the length at the start and step over it, or None when it is not all here."""
        value = 0
        for count, octet in enumerate(
            self._data[self._start : self._start + LENGTH_OCTETS_MAX], start=1
        ):
            if count == 1 and octet == _MORE:
                msg = "a frame length starts with the superfluous octet 80"
                raise ProtocolViolation(msg)
            value = value << 7 | octet & _DIGIT
            if value > self._limit:
                msg = (
                    f"a frame announces at least {value} bytes, at most {self._limit} are accepted"
                )
                raise LimitExceeded(msg)
            if not octet & _MORE:
                self._start += count
                return value
        if len(self._data) - self._start >= LENGTH_OCTETS_MAX:
            msg = f"a frame length is longer than {LENGTH_OCTETS_MAX} octets"
            raise ProtocolViolation(msg)
        return None

    def _read_fixed(self) -> int | None:
        """Return the length of four octets and step over it, or None when it is not all here."""
        end = self._start + FIXED_OCTETS
        if len(self._data) < end:
            return None
        value = int.from_bytes(self._data[self._start : end], "big")
        if value > self._limit:
            msg = f"a frame announces {value} bytes, at most {self._limit} are accepted"
            raise LimitExceeded(msg)
        self._start = end
        return value
