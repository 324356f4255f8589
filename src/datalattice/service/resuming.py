"""Resuming: positions of streams as tokens, from which a reader that was cut off goes on.

A token is base64url of the encoding of [stream position]: the first bytes of a hash that names the
stream, and the value from which the stream goes on behind an item.

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

# Few, since "a forged one gives no more than a request for that position" (docs/design/service.md).
_NAME_BYTES: Final = 8
"""Bytes of the hash that names a stream in its tokens."""


class StreamPositions(Protocol[T_contra]):
    """Computes the positions of one stream."""

    def now(self) -> Value:
        """Return the position behind all items read so far; before the first, the beginning."""

    def after(self, items: Sequence[T_contra]) -> Iterable[Value]:
        """Yield the position behind each item of the last reading of the source."""

    def fresh_start(self) -> str:
        """Return where a fresh start begins, as the end of a sentence."""


def stream_name(*parts: Value) -> bytes:
    """Return the name of a stream. parts: the action and the arguments that select its items."""
    return value_hash(Vector.of(parts))[:_NAME_BYTES]


def write_token(name: bytes, position: Value) -> str:
    """Return the token of a position."""
    data = encode_message(Vector.of([name, position]))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def read_token(token: str, name: bytes) -> Value:
    """Return the position in a token of the stream `name`.

    Raises: StaleToken: it is of another stream. UsageError: it is malformed. LimitExceeded.
    """
    # Before decoding: a token is a caller's text of any length.
    if len(token) > TOKEN_BYTES_MAX:
        raise LimitExceeded(
            f"resume: a token has at most {TOKEN_BYTES_MAX} bytes, got {len(token)}"
        )
    try:
        padded = token + "=" * (-len(token) % 4)
        found = decode_message(base64.b64decode(padded.encode("ascii"), b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, BadFormat) as error:
        raise _malformed(token) from error
    if not isinstance(found, Vector) or len(found) != 2 or not isinstance(found[0], bytes):
        raise _malformed(token)
    # A position in another topic could be valid in this one, and skip or repeat items in silence.
    if found[0] != name:
        raise StaleToken("resume: the token is of another stream; begin without it")
    return found[1]


def _malformed(token: str) -> UsageError:
    return UsageError(f"resume: {token!r:.80} is not the `resume` of an item of a stream")


def not_a_position(position: Value) -> UsageError:
    """Return the error for a token of this stream with an invalid position."""
    return UsageError(f"resume: the token holds no position of this stream: {position!r:.80}")
