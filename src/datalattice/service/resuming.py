"""Resuming: positions of streams as tokens, with which a reader goes on where it was cut off.

A token is base64url of the encoding of [stream position]: the beginning of a hash that names the
stream, and what the stream needs to go on behind an item.

Source: docs/rest.md "Events".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from datalattice.cells import Value, Vector, decode_message, encode_message, value_hash
from datalattice.errors import BadFormat, LimitExceeded, StaleToken, UsageError

T_contra = TypeVar("T_contra", contravariant=True)

TOKEN_BYTES_MAX: Final = 32_768
"""Longest token: that of a topic with some 400 partitions."""

_NAME_BYTES: Final = 8
"""Bytes of the hash that names a stream in its tokens."""


class StreamPositions(Protocol[T_contra]):
    """How the positions of one stream are found."""

    def now(self) -> Value:
        """Return the position behind all that was found so far; at first: where it begins."""

    def after(self, items: Sequence[T_contra]) -> Iterable[Value]:
        """Yield the position behind each of the items that one look at the source found."""

    def fresh_start(self) -> str:
        """Return where a reader begins whose position is gone, as the end of a sentence."""


def stream_name(*parts: Value) -> bytes:
    """Return the name of a stream, by the action and what it is asked for."""
    return value_hash(Vector.of(parts))[:_NAME_BYTES]


def write_token(name: bytes, position: Value) -> str:
    """Return the token of a position."""
    data = encode_message(Vector.of([name, position]))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def read_token(token: str, name: bytes) -> Value:
    """Return the position of a token of the stream `name`.

    Raises: StaleToken: it is of another stream. UsageError: it is malformed. LimitExceeded.
    """
    # Before it is decoded: a token is a caller's text, of any length.
    if len(token) > TOKEN_BYTES_MAX:
        raise LimitExceeded(f"resume: a token has at most {TOKEN_BYTES_MAX} bytes")
    try:
        padded = token + "=" * (-len(token) % 4)
        found = decode_message(base64.b64decode(padded.encode("ascii"), b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, BadFormat) as error:
        raise UsageError(f"resume: {token!r:.80} is no token of a stream") from error
    if not isinstance(found, Vector) or len(found) != 2 or not isinstance(found[0], bytes):
        raise UsageError(f"resume: {token!r:.80} is no token of a stream")
    # A position of another topic or other arguments would read as one of this stream, and skip or
    # repeat items in silence.
    if found[0] != name:
        raise StaleToken("resume: the token is of another stream; begin without it")
    return found[1]


def not_a_position(position: Value) -> UsageError:
    """Return the error of a token of the right stream with anything but a position."""
    return UsageError(f"resume: the token holds no position of this stream: {position!r:.80}")
