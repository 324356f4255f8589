"""Common: limits of requests and answers, the id of a request, the token of a stream."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeVar, cast

from datalattice.errors import UsageError
from datalattice.protobuf import Message

M = TypeVar("M", bound=Message)

OWN_NAME: Final = "own"
"""The name of the folder's owner in the field `owner` of a request."""

PAGE_MAX: Final = 1_000
"""Most items of one answer; a longer list comes in pages."""

PAGE: Final = 100
"""Items of one answer unless the request has a count."""

UPLOAD_BYTES_MAX: Final = 1 << 32
"""Longest file that can be uploaded, in bytes."""

CHUNK_BYTES_MAX: Final = 1 << 18
"""Most bytes of a large body in one message, and in one read of the store."""

PIECE_BYTES_MAX: Final = 1 << 20
"""Most bytes of a file in one request or answer; a longer file is sent in pieces."""

REQUEST_ID_CHARS_MAX: Final = 128
"""Longest id of a request, in characters."""


def check_request_id(id: str) -> None:
    """Raise UsageError unless `id` can be the id of a request."""
    # Visible ASCII needs no escapes on any door.
    if not 0 < len(id) <= REQUEST_ID_CHARS_MAX or not all("!" <= one <= "~" for one in id):
        raise UsageError(
            f"the id of a request has 1 to {REQUEST_ID_CHARS_MAX} visible ASCII characters, got "
            f"{len(id)}: {id!r:.80}"
        )


RESUME_NUMBER: Final = 15
"""Number of the field `resume`. In a result of a stream it is the position behind that result; in
a request, the position at which the stream begins."""


def with_resume(message: M, token: str) -> M:
    """Return a request or result of a stream with this token in its field `resume`."""
    changed: M = dataclasses.replace(cast("Any", message), resume=token)
    return changed


class Empty(Message, name="datalattice.v1.Empty"):
    """The answer of an action that returns nothing."""
