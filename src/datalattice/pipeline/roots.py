"""Roots: the position of a stream of changes is a root, and its batches what differs between two.

A root that a stream has reached, and that of the batch in work, are leased until the next batch is
committed: what differs between them can be read even if they are long gone for everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from datalattice.clock import Clock, SystemClock
from datalattice.errors import DataLoss, MissingData, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.leasing import Lease, Snapshot
from datalattice.pipeline.options import Refused, hash_of
from datalattice.pipeline.places import MOVED_MAX, Place, open_place

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

STAND_MS: Final = 10 * 60 * 1_000
"""How long a stream stays at a root when nothing changes for it."""

RENEW_SHARE: Final = 0.5
"""A lease is renewed when less than this part of `leaseSeconds` is left of it."""

_VERSION: Final = 1


def start_option(text: str) -> str:
    """Parse where a stream of changes begins: `earliest`, `latest`, or a root's hash."""
    if text.lower() in {EARLIEST, LATEST}:
        return text.lower()
    found = hash_of(text)
    if found is None:
        raise Refused(
            f"{EARLIEST} (everything that is there), {LATEST} (what comes from now on), or the "
            f"hash of a root, 0x and {2 * HASH_BYTES} hex digits"
        )
    return "0x" + found.hex()


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
        self._same: tuple[bytes | None, bytes] | None = None
        self._stands: tuple[bytes | None, int] = (None, 0)  # where the stream is, and since when

    def first(self, start: str) -> bytes | None:
        """Return the root where a new stream begins, as `start_option` read it.

        Raises: DataLoss: the root it names is not here.
        """
        if start == EARLIEST:
            return None
        if start == LATEST:
            return self.present()
        found = bytes.fromhex(start.removeprefix("0x"))
        self.hold(found)
        return found

    def next(
        self, start: bytes | None, differ: Callable[[bytes | None, bytes], bool]
    ) -> bytes | None:
        """Return the root where the next batch ends, held; the start itself for no batch.

        There is none while `differ` finds nothing to tell between the two, so that what others
        write makes no empty batches. After `STAND_MS` there is one all the same: else a stream
        would keep for ever what everybody else has thrown away.
        """
        now_ms = self._clock.now_ms()
        if self._stands[0] != start:
            self._stands = (start, now_ms)
        if start is not None:
            with suppress(DataLoss):  # it is told when it matters: with the next batch
                self.hold(start)
        end = self._target if self._is_bounded else self._root_hash()
        if end is None or end == start:
            return start
        if self._same == (start, end) or not self._differ(start, end, differ):
            self._same = (start, end)
            if start is None or now_ms - self._stands[1] < STAND_MS:
                return start
        if self._is_bounded:
            return end
        return self.present()

    def _differ(
        self, start: bytes | None, end: bytes, differ: Callable[[bytes | None, bytes], bool]
    ) -> bool:
        try:
            return differ(start, end)
        except MissingData:
            return True  # the batch finds out what is missing

    def present(self) -> bytes | None:
        """Return the present root, held."""
        for _ in range(MOVED_MAX):
            found = self._root_hash()
            if found is None:
                return None
            try:
                self.hold(found)
            except DataLoss:
                if self._root_hash() == found:
                    raise  # nobody moved on: it is damaged
            else:
                return found
        return found

    def _root_hash(self) -> bytes | None:
        return open_place(self._place, self._clock).root_hash()

    def bound(self) -> None:
        """Let the present root be the last one."""
        self._target = self.present()
        self._is_bounded = True

    def hold(self, root_hash: bytes) -> Snapshot:
        """Hold a root until a later one is committed.

        Raises: DataLoss: it is not here any more, as a whole.
        """
        source = open_place(self._place, self._clock)
        seconds = self._place.lease_seconds
        lease = self._held.get(root_hash)
        try:
            source.load(root_hash)  # where no lease is taken, it may be gone at any time
            if lease is None:
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
