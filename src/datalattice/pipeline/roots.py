"""The position of a change stream is a root; a batch is the difference between two roots.

A stream leases the root it has reached and the root of the current batch until the next commit, so
a batch can be read even if the store has dropped these roots from its history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from datalattice.clock import Clock, SystemClock
from datalattice.errors import DataLoss, MissingData, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.leasing import LeasedRoot, RootLease
from datalattice.pipeline.options import Refused, hash_of
from datalattice.pipeline.read_targets import MOVED_MAX, ReadTarget, open_target

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

STAND_MS: Final = 10 * 60 * 1_000
"""A stream without changes for this long moves on to the current root with an empty batch."""

RENEW_SHARE: Final = 0.5
"""A lease is renewed when less than this share of `leaseSeconds` is left."""

_VERSION: Final = 1


def start_option(text: str) -> str:
    """Parse the start of a change stream: `earliest`, `latest`, or the hash of a root."""
    if text.lower() in {EARLIEST, LATEST}:
        return text.lower()
    found = hash_of(text)
    if found is None:
        raise Refused(
            f"{EARLIEST} (everything there is), {LATEST} (only later changes), or the hash of a "
            f"root, 0x and {2 * HASH_BYTES} hex digits"
        )
    return "0x" + found.hex()


def write_offset(root_hash: bytes | None) -> dict[str, object]:
    """Return the checkpoint form of a position; None stands before the first root."""
    return {"version": _VERSION, "root": None if root_hash is None else "0x" + root_hash.hex()}


def read_offset(offset: Mapping[str, object]) -> bytes | None:
    """Return the root hash of a checkpointed position.

    Raises: UsageError: the position has another version or form.
    """
    root = offset.get("root")
    if offset.get("version") != _VERSION or not (root is None or isinstance(root, str)):
        raise UsageError(
            f"the checkpoint's position is not of version {_VERSION}: {dict(offset)!r}"
        )
    return None if root is None else bytes.fromhex(root.removeprefix("0x"))


class LeasedRoots:
    """The roots that one stream has leased. Lives in the driver process that plans batches."""

    def __init__(self, target: ReadTarget, clock: Clock | None = None) -> None:
        self._target: Final = target
        self._clock: Final = clock or SystemClock()
        self._held: dict[bytes, RootLease] = {}  # the oldest first
        self._last_root: bytes | None = None
        self._is_bounded = False
        self._same: tuple[bytes | None, bytes] | None = None
        self._stands: tuple[bytes | None, int] = (None, 0)  # where the stream is, and since when

    def first(self, start: str) -> bytes | None:
        """Return the root where a new stream begins; `start` comes from `start_option`.

        Raises: DataLoss: the store does not have the root that `start` names.
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
        """Return the root where the next batch ends, leased; `start` itself for no batch.

        A root that `differ` finds equal to `start` makes no batch, so other writers cause no empty
        batches. After `STAND_MS` it does: otherwise an idle stream would hold an old root's cells
        in the store for ever.
        """
        now_ms = self._clock.now_ms()
        if self._stands[0] != start:
            self._stands = (start, now_ms)
        if start is not None:
            with suppress(DataLoss):  # the next batch reports it
                self.hold(start)
        end = self._last_root if self._is_bounded else self._root_hash()
        if end is None or end == start:
            return start
        if self._same == (start, end) or not self._differ(start, end, differ):
            self._same = (start, end)
            if start is None or now_ms - self._stands[1] < STAND_MS:
                return start
        # `bound` has leased the last root; any other may be collected before it is leased.
        if self._is_bounded:
            return end
        return self.present()

    def _differ(
        self, start: bytes | None, end: bytes, differ: Callable[[bytes | None, bytes], bool]
    ) -> bool:
        try:
            return differ(start, end)
        except MissingData:
            return True  # the batch reports the missing cells

    def present(self) -> bytes | None:
        """Return the current root, leased."""
        for _ in range(MOVED_MAX):
            found = self._root_hash()
            if found is None:
                return None
            try:
                self.hold(found)
            except DataLoss:
                if self._root_hash() == found:
                    raise  # the root did not move: its cells are lost, not collected
            else:
                return found
        return found

    def _root_hash(self) -> bytes | None:
        return open_target(self._target, self._clock).root_hash()

    def bound(self) -> None:
        """End the stream at the current root (trigger availableNow)."""
        self._last_root = self.present()
        self._is_bounded = True

    def hold(self, root_hash: bytes) -> LeasedRoot:
        """Lease a root until a later one is committed.

        Raises: DataLoss: cells of the root are missing.
        """
        source = open_target(self._target, self._clock)
        seconds = self._target.lease_seconds
        lease = self._held.get(root_hash)
        try:
            source.load(root_hash)  # with leaseSeconds=0 it may be collected at any time
            if lease is None:
                lease = self._held[root_hash] = source.lease(root_hash, seconds)
            elif lease.expires_ms - self._clock.now_ms() < RENEW_SHARE * seconds * 1_000:
                lease.renew(seconds)
        except MissingData:
            self._held.pop(root_hash, None)
            raise DataLoss(
                f"the root 0x{root_hash.hex()} at which the stream stands is no longer in "
                f"{self._target}: longer leaseSeconds, a pin or a longer history keep it; "
                "failOnDataLoss=false reads everything again"
            ) from None
        return LeasedRoot(root_hash, lease.expires_ms)

    def commit(self, root_hash: bytes | None) -> None:
        """Release the roots before the committed one."""
        if root_hash is not None and root_hash in self._held:
            # In the order of leasing: those before the committed root are needed no more.
            for other in list(self._held):
                if other == root_hash:
                    break
                self._held.pop(other).release()
