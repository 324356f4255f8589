"""Payloads: the envelope and the key-value machine's contents, read in one pass, without messages.

Every operation that is applied passes here. What is not in canonical encoding is left to the
message classes.

Source: docs/design/weaver.md "Shipped machines".
"""

from __future__ import annotations

from typing import Final

from datalattice.protobuf import varint
from datalattice.weaver.tables import STATE_KEY_BYTES_MAX

_APP_DATA: Final = b"\x52"  # field 10, bytes
_FIRST: Final = 0x0A  # field 1, bytes or a message
_SECOND: Final = 0x12  # field 2


def app_data(payload: bytes) -> bytes | None:
    """Return what an envelope holds for the machine.

    None: it holds something else, or has another encoding: read it as a message.
    """
    if payload[:1] != _APP_DATA:  # system, genesis or another order of fields
        return None
    at, end = _contents(payload, 1)
    return payload[at:] if end == len(payload) else None


def app_envelope(payload: bytes) -> bytes:
    """Return the canonical envelope of a payload of the machine, which `app_data` reads."""
    return b"".join((_APP_DATA, varint(len(payload)), payload))


def canonical_writes(payload: bytes) -> dict[bytes, bytes | None] | None:
    """Return the last value that a payload in its canonical encoding writes to each key.

    A deleted key has the value None. Keys come in the order of their last operations; those that
    are longer than a state takes are left out.
    None: the payload has another encoding, or is none: read it as a message.
    """
    found: dict[bytes, bytes | None] = {}
    size = len(payload)
    at = 0
    while at < size:
        # An operation, and in it one put or delete that fills it.
        if payload[at] != _FIRST:
            return None
        at, end = _contents(payload, at + 1)
        if at >= end or end > size:  # a length beyond the end
            return None
        kind = payload[at]
        at, stop = _contents(payload, at + 1)
        # An operation holds exactly one kind.
        if stop != end or (kind != _FIRST and kind != _SECOND):
            return None
        key = value = b""  # proto3 leaves an empty key or value out
        if at < end and payload[at] == _FIRST:
            at, stop = _contents(payload, at + 1)
            key, at = payload[at:stop], stop
        if at < end and payload[at] == _SECOND and kind == _FIRST:
            at, stop = _contents(payload, at + 1)
            value, at = payload[at:stop], stop
        # Anything left over, or too short: not canonical.
        if at != end:
            return None
        found.pop(key, None)  # moved behind: the last operation on a key counts
        # Passed over, not refused: a signed operation must always replay, on every node alike.
        if len(key) <= STATE_KEY_BYTES_MAX:
            found[key] = value if kind == _FIRST else None
    return found


def _contents(data: bytes, at: int) -> tuple[int, int]:
    """Return where the contents behind the length at `at` begin and end.

    The end is beyond the data where they do not fit.
    """
    size = len(data)
    length = shift = 0
    while at < size:
        digit = data[at]
        at += 1
        length |= (digit & 0x7F) << shift
        if digit < 0x80:
            # A last digit of 0 pads the length, which is not canonical.
            return at, at + length if digit or not shift else size + 1
        shift += 7
        if shift > 28:
            break
    return at, size + 1
