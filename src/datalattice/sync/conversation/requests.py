"""Requests: what one conversation has asked, and what an answer belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.sync.conversation.sayings import Request
from datalattice.sync.replica import Want

BATCHES_MAX: Final = 4
"""Requests for parts that may be in flight to one peer."""

PENDING_MAX: Final = 64
"""Requests of ours that may wait for an answer of one peer."""

LATE_MAX: Final = 16
"""Requests for parts that timed out and whose answer is used all the same, for one peer."""

NO_ANSWER: Final = "the peer did not answer in time"
CLOSED: Final = "the connection was closed"


@dataclass(slots=True)
class Pending:
    """Something that was said and is not answered. `detail` is the wire protocol's own."""

    saying: object
    deadline_ms: int
    detail: object = None


class Requests:
    """What one conversation has asked, by id: correlation, deadlines, and late answers."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._late: dict[int, Request] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._pending.values())

    def add(self, saying: object, deadline_ms: int, detail: object = None) -> int:
        """Await an answer; return the id to ask with, new on this connection."""
        self._last_id += 1
        self._pending[self._last_id] = Pending(saying, deadline_ms, detail)
        return self._last_id

    def answered(self, id: object) -> Pending | None:
        """Return what an answer with this id belongs to, once; None: nothing that was asked."""
        if type(id) is not int:  # `True` equals 1 in Python but is another value on the wire
            return None
        late = self._late.pop(id, None)
        pending = self._pending.pop(id, None)
        return Pending(late, 0) if pending is None and late is not None else pending

    def partly_answered(self, id: object, count: int, deadline_ms: int) -> Want | None:
        """Take so many parts off a request that a part of an answer is about; the rest is awaited.

        Returns: a request for these parts; None: nothing that was asked, or not for so many.
        """
        pending = self._pending.get(id) if type(id) is int else None
        if pending is None or not isinstance(pending.saying, Request):
            return None
        hashes = pending.saying.want.hashes
        if not 0 < count < len(hashes):
            return None
        pending.saying = Request(Want(hashes[count:]))
        pending.deadline_ms = deadline_ms
        return Want(hashes[:count])

    def expired(self, now_ms: int) -> list[Pending]:
        """Return what was not answered in time; an answer with parts is still used later on."""
        ids = [id for id, one in self._pending.items() if one.deadline_ms <= now_ms]
        found = [self._pending.pop(id) for id in ids]
        for id, one in zip(ids, found, strict=True):
            if isinstance(one.saying, Request):
                if len(self._late) >= LATE_MAX:
                    del self._late[next(iter(self._late))]
                self._late[id] = one.saying
        return found

    def excuse(self, busy_ms: int) -> None:
        """Grant more time for all answers."""
        for one in self._pending.values():
            one.deadline_ms += busy_ms

    def clear(self) -> list[Pending]:
        """Await nothing more; return what was awaited."""
        found = list(self._pending.values())
        self._pending.clear()
        return found

    @property
    def deadline_ms(self) -> int | None:
        """When the first of them is late."""
        return min((one.deadline_ms for one in self._pending.values()), default=None)

    @property
    def room(self) -> int:
        """How many requests for parts may be sent now."""
        return BATCHES_MAX - sum(isinstance(one.saying, Request) for one in self)
