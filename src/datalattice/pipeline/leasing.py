"""Leases on the roots that plans, tasks and streams read.

A planner leases the root that it chose. Spark does not report the end of the last task, so this
lease is never released; it expires. A task that still runs then takes a lease of its own. A stream
learns when a batch is committed, and then releases the batch's lease.

Source: docs/spark.md "Where to read", "Streaming"; docs/store.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, Self

from datalattice.clock import Clock

TASK_LEASE_SECONDS: Final = 600
"""Duration of a task's lease, counted from its last renewal."""

LEASE_LEFT_MS: Final = 60_000
"""A task takes or renews its own lease if the current lease ends within this time."""


class RootLease(Protocol):
    """A lease on a root; see `datalattice.store.Lease`."""

    root_hash: bytes
    expires_ms: int

    def renew(self, seconds: float) -> None:
        """Let the lease end `seconds` from now."""

    def release(self) -> None:
        """End the lease."""


class NoLease:
    """Stands in for a lease when none is taken."""

    def __init__(self, root_hash: bytes) -> None:
        self.root_hash = root_hash
        self.expires_ms = 0

    def renew(self, seconds: float) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


class LeaseTaker(Protocol):
    """Gives leases: a store, or an `OpenTarget`."""

    def lease(self, hash: bytes, seconds: float) -> RootLease:
        """Keep a root and everything below it for `seconds`."""
        ...


@dataclass(frozen=True, slots=True)
class LeasedRoot:
    """The root that a planner chose; all of its tasks read this one.

    root_hash: None for a store without any commit.
    expires_ms: end of the planner's lease in Unix milliseconds; 0 without a lease.
    """

    root_hash: bytes | None
    expires_ms: int


class Keeper:
    """Keeps a root leased while a task reads it; the task calls `touch` after each batch.

    It does nothing while the planner's lease lasts, so a short task writes nothing to the store.
    """

    def __init__(self, taker: LeaseTaker, snapshot: LeasedRoot, clock: Clock) -> None:
        self._taker = taker
        self._root_hash = snapshot.root_hash
        self._expires_ms = snapshot.expires_ms
        self._clock = clock
        self._lease: RootLease | None = None

    def touch(self) -> None:
        """Take or renew a lease if the current one ends within `LEASE_LEFT_MS`.

        Raises: MissingData: the lease had expired and the root was collected.
        """
        # If the planner took no lease (it read a node, or leaseSeconds=0), the task takes none
        # either.
        if not self._expires_ms or self._root_hash is None:
            return
        # "A task that still runs when the lease expires takes one of its own" (docs/spark.md).
        if self._expires_ms - self._clock.now_ms() >= LEASE_LEFT_MS:
            return
        if self._lease is None:
            # A lease of its own, because the planner's lease may end at any time now.
            self._lease = self._taker.lease(self._root_hash, TASK_LEASE_SECONDS)
        else:
            self._lease.renew(TASK_LEASE_SECONDS)
        self._expires_ms = self._lease.expires_ms

    def __enter__(self) -> Self:
        # Checked at the start as well: the task may have waited long in Spark's queue.
        self.touch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is not None:
            self._lease.release()


class StreamLeases:
    """The leases of a stream, in the order in which they were taken.

    Each keeps the root of a batch until the batch is committed.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._held: dict[bytes, RootLease] = {}

    def hold(self, taker: LeaseTaker, root_hash: bytes) -> LeasedRoot:
        """Lease a root and return it for a batch's tasks.

        Raises: MissingData: cells of the root are missing.
        """
        lease = self._held.get(root_hash)
        if lease is None:
            lease = self._held[root_hash] = taker.lease(root_hash, self._seconds)
        # Renewed after half of the time only: each renewal writes to the store, and polls are
        # frequent.
        elif lease.expires_ms - self._clock.now_ms() < self._seconds * 500:
            lease.renew(self._seconds)
        return LeasedRoot(root_hash, lease.expires_ms)

    def forget(self, root_hash: bytes) -> None:
        """Drop the lease on a root whose cells are lost."""
        # Not released: the root is gone, so its lease keeps nothing.
        self._held.pop(root_hash, None)

    def done(self, root_hash: bytes | None) -> None:
        """Release the leases that were taken before that of a committed batch."""
        # After a restart Spark may commit a batch whose root this process never leased.
        if root_hash is None or root_hash not in self._held:
            return
        for other in list(self._held):
            if other == root_hash:
                return
            self._held.pop(other).release()

    def release(self) -> None:
        """Release all leases."""
        for lease in self._held.values():
            lease.release()
        self._held.clear()
