"""What several groups of actions share: the empty answer, limits of an answer."""

from __future__ import annotations

from typing import Final

from datalattice.protobuf import Message

OWN: Final = "own"
"""The owner of the folder, where a request names an owner."""

PAGE_MAX: Final = 1_000
"""Items of one answer; a longer list comes in pages."""

PAGE: Final = 100
"""Items of one answer when none are asked for."""

PIECE_BYTES_MAX: Final = 1 << 20
"""Bytes of a file in one answer or request; a longer file goes in pieces."""


class Empty(Message, name="datalattice.v1.Empty"):
    """The answer of an action that returns nothing."""
