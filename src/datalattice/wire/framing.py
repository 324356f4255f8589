"""Framing: payloads on a byte stream, each preceded by its length.

    frame   = length payload
    length  = payload bytes as an unsigned, big-endian, base 128 count;
              of protocols with fixed lengths: as four octets, big-endian

A stream has no magic number, version or checksum: it begins with a length. Only an invalid length
shows that the peer speaks another protocol, and it closes the connection: a padded length (leading
`80`), one of more than five octets, or one above the limit.

Source: docs/protocol.md "Frames", "Several streams", "Bad input".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from datalattice.errors import LimitExceeded, ProtocolViolation
from datalattice.limits import MESSAGE_BYTES_MAX

LENGTH_OCTETS_MAX: Final = 5
"""Most octets of a length; five reach beyond 2^32, far above any limit."""

FIXED_OCTETS: Final = 4
"""Octets of a length in a protocol with fixed lengths."""

FRAME_READ_BYTES: Final = 1 << 18
"""Most bytes read from a stream at once."""

_MORE: Final = 0x80
_DIGIT: Final = 0x7F
_COMPACT_BYTES: Final = 1 << 16


def encode_length(count: int) -> bytes:
    """Return `count` as a frame length.

    Shapes: count: 0 or more; result: at least one octet, big-endian base 128, with bit 7 set on all
            octets except the last.
    """
    # "A count in base 128, big-endian": the last octet is the only one without bit 7.
    if count <= _DIGIT:
        return bytes((count,))
    if count < 1 << 14:  # most cells: an answer has the length of each
        return bytes((_MORE | count >> 7, count & _DIGIT))
    out = bytearray((count & _DIGIT,))
    count >>= 7
    while count:
        out.append(_MORE | (count & _DIGIT))
        count >>= 7
    out.reverse()
    return bytes(out)


def encode_lengths(counts: Sequence[int]) -> bytes:
    """Return the counts as consecutive frame lengths."""
    if max(counts) <= _DIGIT:
        return bytes(counts)  # one octet each
    return b"".join(map(encode_length, counts))


def encode_frame(payload: bytes) -> bytes:
    """Return `payload` preceded by its length."""
    return encode_length(len(payload)) + payload


@dataclass(frozen=True, slots=True)
class Framing:
    """The framing of one protocol on a stream.

    payload_bytes_max: most bytes of a payload, received or sent.
    is_fixed:          lengths are four octets, big-endian; otherwise base 128.
    """

    payload_bytes_max: int = MESSAGE_BYTES_MAX
    is_fixed: bool = False

    def head(self, payload_bytes: int) -> bytes:
        """Return what precedes a payload of so many bytes."""
        if self.is_fixed:  # length u32, big-endian
            return payload_bytes.to_bytes(FIXED_OCTETS, "big")
        return encode_length(payload_bytes)

    def buffer(self) -> FrameBuffer:
        """Return an empty buffer that divides such a stream into payloads."""
        return FrameBuffer(self.payload_bytes_max, is_fixed=self.is_fixed)


class FrameBuffer:
    """Divides a byte stream, received in pieces of any size, into payloads.

    After an invalid length it is unusable, because the start of the next frame is unknown.
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
        """Append received bytes of the stream."""
        self._data += data

    @property
    def is_partial(self) -> bool:
        """Whether a frame is incomplete, so that the stream must not end here."""
        return self._length is not None or self._start < len(self._data)

    @property
    def buffered_bytes(self) -> int:
        """Bytes buffered for frames not yet returned."""
        return len(self._data) - self._start

    @property
    def expected_bytes(self) -> int | None:
        """Payload bytes of the current frame, None until its length is read."""
        return self._length

    def clear(self) -> None:
        """Drop all buffered bytes; the next byte begins a new frame."""
        self._data = bytearray()
        self._start = 0
        self._length = None

    def next_payload(self) -> bytes | None:
        """Return the next complete payload, or None if more bytes are needed.

        Cost:   proportional to the payload, for any number of pieces.
        Raises: ProtocolViolation: the length is padded or too long. LimitExceeded: it is above the
                limit. Either closes the connection.
        """
        # The length is checked as soon as it is complete: "before any payload is kept".
        if self._length is None:
            self._length = self._read_fixed() if self._is_fixed else self._read_length()
            if self._length is None:
                return None
        end = self._start + self._length
        if len(self._data) < end:
            return None
        # One copy, from the buffer to the payload; a slice of a bytearray would make two.
        with memoryview(self._data) as view:
            payload = bytes(view[self._start : end])
        self._length = None
        self._start = end
        # Removing the front moves the rest, so it waits until the front is the larger part.
        if end == len(self._data) or (end > _COMPACT_BYTES and 2 * end > len(self._data)):
            del self._data[:end]
            self._start = 0
        return payload

    def _read_length(self) -> int | None:
        """Return and skip the length at the start, or None if it is incomplete."""
        value = 0
        for count, octet in enumerate(
            self._data[self._start : self._start + LENGTH_OCTETS_MAX], start=1
        ):
            # A leading 80 adds nothing: one length would have several encodings.
            if count == 1 and octet == _MORE:
                raise ProtocolViolation("a frame length starts with the superfluous octet 80")
            value = value << 7 | octet & _DIGIT
            if value > self._limit:
                # "... end the connection before any payload is kept."
                raise LimitExceeded(
                    f"a frame announces at least {value} bytes, at most {self._limit} are accepted"
                )
            if not octet & _MORE:  # bit 7 is clear in the last octet only
                self._start += count
                return value
        # "One of more than five bytes" ends the connection; fewer may still be under way.
        if len(self._data) - self._start >= LENGTH_OCTETS_MAX:
            raise ProtocolViolation(f"a frame length is longer than {LENGTH_OCTETS_MAX} octets")
        return None

    def _read_fixed(self) -> int | None:
        """Return and skip a length of four octets, or None if it is incomplete."""
        end = self._start + FIXED_OCTETS
        if len(self._data) < end:
            return None
        # Four octets have one encoding each, so only the limit is checked.
        value = int.from_bytes(self._data[self._start : end], "big")
        if value > self._limit:
            raise LimitExceeded(
                f"a frame announces {value} bytes, at most {self._limit} are accepted"
            )
        self._start = end
        return value
