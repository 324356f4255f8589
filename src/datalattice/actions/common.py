"""What several groups of actions share: the empty answer, limits of an answer."""

from __future__ import annotations

from typing import Final

from datalattice.errors import UsageError
from datalattice.protobuf import Message

OWN: Final = "own"
"""The owner of the folder, where a request names an owner."""

PAGE_MAX: Final = 1_000
"""Items of one answer; a longer list comes in pages."""

PAGE: Final = 100
"""Items of one answer when none are asked for."""

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


class Empty(Message, name="datalattice.v1.Empty"):
    """The answer of an action that returns nothing."""
