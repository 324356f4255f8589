"""Repeats: a repeated call with an id gets the job of the first call.

Source: docs/design/venue.md "What is durable when".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from datalattice.cells import Map, Value, value_hash
from datalattice.errors import RequestReused, UsageError

_REQUEST_ID_CHARS_MAX: Final = 255
REQUESTS_MAX: Final = 10_000
"""Most calls that a venue remembers; a further one drops the oldest."""
REQUEST_MS: Final = 24 * 3_600_000
"""Time that a call is remembered, in milliseconds."""


@dataclass(frozen=True, slots=True)
class CallMark:
    """A call with an id. key: hash of caller and id. digest: hash of reference and input."""

    key: bytes
    digest: bytes


def mark_of_call(request_id: str, caller: str, reference: str, input: Value) -> CallMark:
    """Return the mark of a call. Raises: UsageError: the id is empty or too long."""
    if not 0 < len(request_id) <= _REQUEST_ID_CHARS_MAX:
        raise UsageError(
            f"request_id: 1 to {_REQUEST_ID_CHARS_MAX} characters, got {len(request_id)}"
        )
    parts = (caller.encode(), request_id.encode())
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    asked = Map.of({"op": reference, "input": input})
    return CallMark(hashlib.sha256(framed).digest(), value_hash(asked))


class RepeatedCalls:
    """The remembered calls of a venue, oldest first."""

    def __init__(self) -> None:
        self._calls: Final[dict[bytes, tuple[bytes, bytes, int]]] = {}

    def load(self, kept: Mapping[bytes, Map]) -> None:
        """Add the calls of the storage."""
        found = []
        for key, cell in kept.items():
            id, digest, time_ms = cell.get("id"), cell.get("digest"), cell.get("time")
            if isinstance(id, bytes) and isinstance(digest, bytes) and isinstance(time_ms, int):
                found.append((time_ms, key, id, digest))
        # By time, since `add` drops the first ones.
        for time_ms, key, id, digest in sorted(found):
            self._calls[key] = (id, digest, time_ms)

    def find(self, mark: CallMark, now_ms: int) -> bytes | None:
        """Return the job of an earlier call with this mark; None: there was none.

        Raises: RequestReused: the id came with another call.
        """
        found = self._calls.get(mark.key)
        if found is None or found[2] + REQUEST_MS < now_ms:
            return None
        if found[1] != mark.digest:
            raise RequestReused("the id of the request came with another call before")
        return found[0]

    def add(self, mark: CallMark, id: bytes, now_ms: int) -> dict[bytes, Map | None]:
        """Remember a call; return the changes for the storage."""
        self._calls.pop(mark.key, None)
        self._calls[mark.key] = (id, mark.digest, now_ms)
        changes: dict[bytes, Map | None] = {
            mark.key: Map.of({"id": id, "digest": mark.digest, "time": now_ms})
        }
        # Two old ones for each new one, so that expired calls go faster than new ones come.
        for key, (_, _, time_ms) in list(self._calls.items())[:2]:
            if len(self._calls) > REQUESTS_MAX or time_ms + REQUEST_MS < now_ms:
                del self._calls[key]
                changes[key] = None
        return changes
