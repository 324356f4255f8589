"""What several groups of actions share: the empty answer, limits of an answer."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeVar, cast

from datalattice.errors import UsageError
from datalattice.protobuf import Message

M = TypeVar("M", bound=Message)

OWN_NAME: Final = "own"
"""The owner of the folder, where a request names an owner."""

PAGE_MAX: Final = 1_000
"""Items of one answer; a longer list comes in pages."""

PAGE: Final = 100
"""Items of one answer when none are asked for."""

UPLOAD_BYTES_MAX: Final = 1 << 32
"""Bytes of one file that is uploaded."""

CHUNK_BYTES_MAX: Final = 1 << 18
"""Bytes of a large body in one message, and in one read of the store."""

PIECE_BYTES_MAX: Final = 1 << 20
"""Bytes of a file in one answer or request; a longer file goes in pieces."""

REQUEST_ID_CHARS_MAX: Final = 128
"""Longest id of a request."""


def check_request_id(id: str) -> None:
    """Raise UsageError if a text cannot be the id of a request."""
    # Visible ASCII passes through every door as it is.
    if not 0 < len(id) <= REQUEST_ID_CHARS_MAX or not all("!" <= one <= "~" for one in id):
        raise UsageError(
            f"the id of a request has 1 to {REQUEST_ID_CHARS_MAX} visible ASCII characters, got "
            f"{len(id)}: {id!r:.80}"
        )


RESUME_NUMBER: Final = 15
"""Number of the field `resume` of each request that begins a stream, and of each of its results:
the position behind that result, as text that the request takes."""


def with_resume(message: M, token: str) -> M:
    """Return a request or result of a stream with this token in its field `resume`."""
    changed: M = dataclasses.replace(cast("Any", message), resume=token)
    return changed


class Empty(Message, name="datalattice.v1.Empty"):
    """The answer of an action that returns nothing."""
