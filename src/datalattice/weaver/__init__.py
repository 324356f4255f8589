"""Weaver: signed operations, a log of them on every node, and state machines that fold it."""

from __future__ import annotations

from datalattice.weaver.invite import InviteToken
from datalattice.weaver.storeid import (
    STORE_ID_BYTES,
    new_store_id,
    parse_store_id,
    store_id_text,
)

__all__ = [
    "STORE_ID_BYTES",
    "InviteToken",
    "new_store_id",
    "parse_store_id",
    "store_id_text",
]
