"""Repeats: a call that comes again with its id gets the job of the first time.

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
"""Calls that a venue remembers; then the oldest goes."""
REQUEST_MS: Final = 24 * 3_600_000
"""How long a call is remembered."""


@dataclass(frozen=True, slots=True)
class CallMark:
    """A call with an id. key: of caller and id. digest: of what was asked for."""

    key: bytes
    digest: bytes


def mark_of_call(request_id: str, caller: str, reference: str, input: Value) -> CallMark:
    """Return the mark of a call. Raises: UsageError: the id."""
    if not 0 < len(request_id) <= _REQUEST_ID_CHARS_MAX:
        raise UsageError(f"request_id: 1 to {_REQUEST_ID_CHARS_MAX} characters")
    parts = (caller.encode(), request_id.encode())
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    asked = Map.of({"op": reference, "input": input})
    return CallMark(hashlib.sha256(framed).digest(), value_hash(asked))


class RepeatedCalls:
    """The remembered calls of a venue, oldest first."""

    def __init__(self) -> None:
        self._calls: Final[dict[bytes, tuple[bytes, bytes, int]]] = {}

    def load(self, kept: Mapping[bytes, Map]) -> None:
        """Take over what was kept."""
        found = []
        for key, cell in kept.items():
            id, digest, time_ms = cell.get("id"), cell.get("digest"), cell.get("time")
            if isinstance(id, bytes) and isinstance(digest, bytes) and isinstance(time_ms, int):
                found.append((time_ms, key, id, digest))
        for time_ms, key, id, digest in sorted(found):
            self._calls[key] = (id, digest, time_ms)

    def find(self, mark: CallMark, now_ms: int) -> bytes | None:
        """Return the job of an earlier call with this mark, None if there was none.

        Raises: RequestReused: the id came with another call.
        """
        found = self._calls.get(mark.key)
        if found is None or found[2] + REQUEST_MS < now_ms:
            return None
        if found[1] != mark.digest:
            raise RequestReused("the id of the request came with another call before")
        return found[0]

    def add(self, mark: CallMark, id: bytes, now_ms: int) -> dict[bytes, Map | None]:
        """Remember a call; return what the register has to change."""
        self._calls.pop(mark.key, None)
        self._calls[mark.key] = (id, mark.digest, now_ms)
        changes: dict[bytes, Map | None] = {
            mark.key: Map.of({"id": id, "digest": mark.digest, "time": now_ms})
        }
        # Two for each new one: those that are over go sooner than new ones come.
        for key, (_, _, time_ms) in list(self._calls.items())[:2]:
            if len(self._calls) > REQUESTS_MAX or time_ms + REQUEST_MS < now_ms:
                del self._calls[key]
                changes[key] = None
        return changes
