"""Roots: the position of a stream of changes is a root, and its batches what differs between two.

A root that a stream has reached, and that of the batch in work, are leased until the next batch is
committed: what differs between them can be read even if they are long gone for everybody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from datalattice.clock import Clock, SystemClock
from datalattice.errors import DataLoss, MissingData, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.leasing import Lease, Snapshot
from datalattice.pipeline.options import Refused
from datalattice.pipeline.places import Place, open_place

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

RENEW_SHARE: Final = 0.5
"""A lease is renewed when less than this part of `leaseSeconds` is left of it."""

_VERSION: Final = 1


def start_option(text: str) -> str:
    """Parse where a stream of changes begins: `earliest`, `latest`, or a root's hash."""
    if text.lower() in {EARLIEST, LATEST}:
        return text.lower()
    digits = text.lower().removeprefix("0x")
    if len(digits) != 2 * HASH_BYTES or not set(digits) <= set("0123456789abcdef"):
        raise Refused(
            f"{EARLIEST} (everything that is there), {LATEST} (what comes from now on), or the "
            f"hash of a root, 0x and {2 * HASH_BYTES} hex digits"
        )
    return "0x" + digits


def write_offset(root_hash: bytes | None) -> dict[str, object]:
    """Return the position of a stream as Spark keeps it; nil: before everything."""
    return {"version": _VERSION, "root": None if root_hash is None else "0x" + root_hash.hex()}


def read_offset(offset: Mapping[str, object]) -> bytes | None:
    """Return the root that a position means.

    Raises: UsageError: it is not of a form that this version knows.
    """
    root = offset.get("root")
    if offset.get("version") != _VERSION or not (root is None or isinstance(root, str)):
        raise UsageError(
            f"the checkpoint has a position that is none of this version: {dict(offset)!r}"
        )
    return None if root is None else bytes.fromhex(root.removeprefix("0x"))


class Roots:
    """The roots that one stream holds. Lives in the process of the driver that plans batches."""

    def __init__(self, place: Place, clock: Clock | None = None) -> None:
        self._place: Final = place
        self._clock: Final = clock or SystemClock()
        self._held: dict[bytes, Lease] = {}  # the oldest first
        self._target: bytes | None = None
        self._is_bounded = False

    def first(self, start: str) -> bytes | None:
        """Return the root where a new stream begins, as `start_option` read it.

        Raises: DataLoss: the root it names is not here.
        """
        if start == EARLIEST:
            return None
        found = self.latest() if start == LATEST else bytes.fromhex(start.removeprefix("0x"))
        if found is not None:
            self.hold(found)
        return found

    def latest(self) -> bytes | None:
        """Return the root up to which the next batch reads, and hold it."""
        if self._is_bounded:
            return self._target
        found = open_place(self._place, self._clock).root_hash()
        if found is not None:
            self.hold(found)
        return found

    def bound(self) -> None:
        """Let the present root be the last one."""
        self._is_bounded = False
        self._target = self.latest()
        self._is_bounded = True

    def hold(self, root_hash: bytes) -> Snapshot:
        """Hold a root until a later one is committed.

        Raises: DataLoss: it is not here any more, as a whole.
        """
        source = open_place(self._place, self._clock)
        seconds = self._place.lease_seconds
        lease = self._held.get(root_hash)
        try:
            if lease is None:
                source.load(root_hash)
                lease = self._held[root_hash] = source.lease(root_hash, seconds)
            elif lease.expires_ms - self._clock.now_ms() < RENEW_SHARE * seconds * 1_000:
                lease.renew(seconds)
        except MissingData:
            self._held.pop(root_hash, None)
            raise DataLoss(
                f"the root 0x{root_hash.hex()} that the stream goes on from is not in "
                f"{self._place} any more: longer leaseSeconds, a pin or longer history keep it; "
                "failOnDataLoss=false reads everything that is there again"
            ) from None
        return Snapshot(root_hash, lease.expires_ms)

    def commit(self, root_hash: bytes | None) -> None:
        """Let go of the roots before the one that was committed."""
        if root_hash is not None and root_hash in self._held:
            for other in list(self._held):
                if other == root_hash:
                    break
                self._held.pop(other).release()
