"""Schedule: calls that wait for their time, the next one first.

The durable calls are in the private register of the venue; this is their order in memory.

Source: docs/design/venue.md "Schedule".
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from datalattice.apps.grid import JOB_TIME_MAX
from datalattice.cells import Map, Value
from datalattice.clock import Clock, present_ms
from datalattice.crypto import Entropy
from datalattice.errors import Backpressure, UsageError
from datalattice.service.venue.records import read_texts, texts_cell
from datalattice.service.venue.sealing import SECRET

_TIME_BYTES: Final = 8
_RANDOM_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ScheduledCall:
    """A call that waits.

    asset: of the operation. reference: if it was a name, "" for an id. input: a cell of JSON.
    owner: the DID of the caller. time_ms: Unix time. is_secret: it is sealed on the disk. grants:
    those that narrow the caller's credential; None: it is not narrowed.
    """

    asset: bytes
    reference: str
    input: Value
    owner: str
    time_ms: int
    is_secret: bool = False
    grants: tuple[str, ...] | None = None

    def cell(self) -> Map:
        """Return it as a Map."""
        found = Map.of(
            {
                "op": self.asset,
                "opName": self.reference,
                "input": self.input,
                "owner": self.owner,
                "time": self.time_ms,
                "grants": texts_cell(self.grants),
            }
        )
        return found.put(SECRET, True) if self.is_secret else found


def _read(cell: Map) -> ScheduledCall | None:
    asset, reference, owner = cell.get("op"), cell.get("opName"), cell.get("owner")
    time_ms = cell.get("time")
    # Of another version: it stays in the register and does not fire.
    if not (isinstance(asset, bytes) and isinstance(owner, str) and isinstance(time_ms, int)):
        return None
    return ScheduledCall(
        asset,
        str(reference or ""),
        cell.get("input"),
        owner,
        time_ms,
        cell.get(SECRET) is True,
        read_texts(cell.get("grants")),
    )


def job_of_call(handle: bytes) -> bytes:
    """Return the id of the job that a scheduled call becomes.

    It follows from the handle, so the records of a restored folder show which calls became jobs.
    """
    # As every job id: 6 bytes of milliseconds, 2 of a counter, 8 random ones.
    return handle[2:_TIME_BYTES] + b"\0\0" + handle[_TIME_BYTES:]


def time_of_call(handle: bytes) -> int:
    """Return the time of a scheduled call in Unix milliseconds."""
    return int.from_bytes(handle[:_TIME_BYTES], "big")


class Schedule:
    """The scheduled calls of one venue, in order."""

    def __init__(self, clock: Clock, entropy: Entropy, most: int, most_of_one: int) -> None:
        """most, most_of_one: most calls that wait, of all callers and of one."""
        self._clock: Final = clock
        self._entropy: Final = entropy
        self._most: Final = most
        self._most_of_one: Final = most_of_one
        self._counts: Final[Counter[str]] = Counter()
        self._calls: Final[dict[bytes, ScheduledCall]] = {}
        self._order: list[bytes] = []

    def load(self, events: Mapping[bytes, Map]) -> None:
        """Add the calls of the storage."""
        found = {handle: call for handle, cell in events.items() if (call := _read(cell))}
        self._calls.update(found)
        self._order = sorted(self._calls)
        self._counts.update(call.owner for call in found.values())

    def add(self, call: ScheduledCall) -> bytes:
        """Add a call; return its handle: 8 bytes of its time, 8 random ones. A past time means now.

        Raises: UsageError: the time is out of range. Backpressure: too many calls wait.
        """
        if not 0 <= call.time_ms <= JOB_TIME_MAX:
            raise UsageError(
                f"time: Unix milliseconds from 0 to {JOB_TIME_MAX}, got {call.time_ms}"
            )
        # The bound of one caller is lower than that of all, so that others find room.
        if self._counts[call.owner] >= self._most_of_one:
            raise Backpressure(
                f"{self._most_of_one} calls of {call.owner} wait for their time; cancel some"
            )
        # A past time becomes the present: handles sort by it, so the call comes after earlier ones.
        call = replace(call, time_ms=max(call.time_ms, present_ms(self._clock)))
        if len(self._calls) >= self._most:
            raise Backpressure(f"{self._most} calls wait for their time; cancel some")
        # The time comes first in a handle, so the order of handles is that of the times.
        handle = call.time_ms.to_bytes(_TIME_BYTES, "big") + self._entropy.bytes(_RANDOM_BYTES)
        self._calls[handle] = call
        self._counts[call.owner] += 1
        insort(self._order, handle)
        return handle

    def get(self, handle: bytes) -> ScheduledCall | None:
        """Return a call, or None."""
        return self._calls.get(handle)

    def remove(self, handle: bytes) -> None:
        """Remove a call."""
        self._order.remove(handle)
        self._drop(handle)

    def waiting(self) -> Iterator[tuple[bytes, ScheduledCall]]:
        """Yield handles and calls, the next one first."""
        for handle in self._order:
            yield handle, self._calls[handle]

    def delay_ms(self) -> int | None:
        """Return the time until the next call; None: there is none."""
        if not self._order:
            return None
        return max(0, self._calls[self._order[0]].time_ms - self._clock.now_ms())

    def take_due(self) -> list[tuple[bytes, ScheduledCall]]:
        """Remove and return the calls whose time has come, in order."""
        now_ms, found = self._clock.now_ms(), []
        while self._order and self._calls[self._order[0]].time_ms <= now_ms:
            handle = self._order.pop(0)
            found.append((handle, self._drop(handle)))
        return found

    def _drop(self, handle: bytes) -> ScheduledCall:
        call = self._calls.pop(handle)
        self._counts[call.owner] -= 1
        if not self._counts[call.owner]:
            del self._counts[call.owner]
        return call
