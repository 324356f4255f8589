"""Leasing: how long what is read stays there, in plans, in tasks and in streams.

A planner leases the root that it chose. Nobody tells it when the last of its tasks is done, so its
lease ends by itself; a task that is still at work then has taken one of its own. A stream hears
when a batch is done, and gives back what it leased for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from datalattice.clock import Clock

TASK_LEASE_SECONDS: Final = 600
"""How long the lease of a task lasts beyond its last step."""

LEASE_LEFT_MS: Final = 60_000
"""When less than this is left of a lease, a task that goes on takes or renews its own."""


class Lease(Protocol):
    """Something that stays while this is held; see `datalattice.store.Lease`."""

    root_hash: bytes
    expires_ms: int

    def renew(self, seconds: float) -> None:
        """Let it end so many seconds from now."""

    def release(self) -> None:
        """Give it back."""


class NoLease:
    """What stands for a lease where none is taken."""

    def __init__(self, root_hash: bytes) -> None:
        self.root_hash = root_hash
        self.expires_ms = 0

    def renew(self, seconds: float) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


class Leasing(Protocol):
    """Where leases are taken."""

    def lease(self, hash: bytes, seconds: float) -> Lease:
        """Keep a root with all below it for so many seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A root that a planner chose: what it plans is read from this one, whatever comes after.

    root_hash: None where nothing was ever committed.
    expires_ms: Unix milliseconds of the end of the planner's lease; 0: it has none.
    """

    root_hash: bytes | None
    expires_ms: int


class Keeper:
    """Keeps what a task reads: a context around its work, with a `touch` at each of its steps.

    Nothing is done while the planner's lease lasts, so a task that is short costs nothing.
    """

    def __init__(self, place: Leasing, snapshot: Snapshot, clock: Clock) -> None:
        self._place = place
        self._root_hash = snapshot.root_hash
        self._expires_ms = snapshot.expires_ms
        self._clock = clock
        self._lease: Lease | None = None

    def touch(self) -> None:
        """Take or renew a lease when the present one ends soon.

        Raises: MissingData: it had ended, and the root was collected since.
        """
        if not self._expires_ms or self._root_hash is None:
            return
        if self._expires_ms - self._clock.now_ms() >= LEASE_LEFT_MS:
            return
        if self._lease is None:
            self._lease = self._place.lease(self._root_hash, TASK_LEASE_SECONDS)
        else:
            self._lease.renew(TASK_LEASE_SECONDS)
        self._expires_ms = self._lease.expires_ms

    def __enter__(self) -> Self:
        self.touch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease is not None:
            self._lease.release()


class StreamLeases:
    """The leases of a stream: of the root that a batch is read from, until it is done."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._held: list[Lease] = []

    def hold(self, place: Leasing, root_hash: bytes) -> Snapshot:
        """Keep a root for the next batch; return it, as its tasks are to know it.

        Raises: MissingData: it is not whole in the store.
        """
        last = self._held[-1] if self._held else None
        if last is None or last.root_hash != root_hash:
            last = place.lease(root_hash, self._seconds)
            self._held.append(last)
        elif last.expires_ms - self._clock.now_ms() < self._seconds * 500:  # half of it
            last.renew(self._seconds)
        return Snapshot(root_hash, last.expires_ms)

    def done(self) -> None:
        """Note that all batches are done but the one that was planned last."""
        for lease in self._held[:-1]:
            lease.release()
        del self._held[:-1]

    def release(self) -> None:
        """Give everything back."""
        for lease in self._held:
            lease.release()
        self._held.clear()
