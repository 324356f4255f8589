"""Leases: roots that stay for a limited time.

    leases/<16 hex digits>      a checksum, then a line: `lease1`, root hash in hex, end in Unix
                                milliseconds

A lease is a pin for the time of a job: it has no name and ends by itself. Each is a file of its
own, so processes take, renew and release theirs independently. A lease whose holder died ends when
its time is over.

Leases are taken and renewed under the lock of the pins (`Pins.locked`), which a collection holds
from its last reading of leases and pins until removed cells can no longer be found. So a lease is
honoured, or refused because its root is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

from datalattice.crypto import SystemEntropy
from datalattice.errors import Corruption, UsageError
from datalattice.store.base import check_hash
from datalattice.store.disk import write_error
from datalattice.store.files import StoreFolder, checked, unchecked
from datalattice.store.kept.pins import Pins

LEASES: Final = "leases"

LEASE_SECONDS_MAX: Final = 7 * 24 * 60 * 60
"""Longest lease; it can be renewed, and what must stay longer is pinned."""

LEASES_MAX: Final = 10_000
"""Most leases of a store at one time."""

_FIRST_WORD: Final = "lease1"
_NAME_DIGITS: Final = 16
_UNFINISHED: Final = ".new"


class Leased(NamedTuple):
    """A lease as other processes see it."""

    root_hash: bytes
    expires_ms: int
    file: str


class Lease:
    """A lease that this process took. Leaving it as a context releases it."""

    def __init__(self, leases: Leases, name: str, root_hash: bytes, expires_ms: int) -> None:
        self._leases = leases
        self._name = name
        self.root_hash = root_hash
        """What stays, with all below it."""
        self.expires_ms = expires_ms
        """Its end in Unix milliseconds."""

    def renew(self, seconds: float) -> None:
        """Let it end `seconds` from now; durable on return.

        Raises: UsageError: seconds out of range, or the lease was released.
                MissingData: it had ended, and the root is gone.
        """
        self.expires_ms = self._leases.renew(self._name, self.root_hash, self.expires_ms, seconds)

    def release(self) -> None:
        """End it now. Releasing twice is allowed."""
        self._leases.release(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Leases:
    """The leases of one store."""

    def __init__(
        self,
        folder: StoreFolder,
        *,
        now_ms: Callable[[], int],
        pins: Pins,
        check_complete: Callable[[bytes], None],
    ) -> None:
        self._folder = StoreFolder(folder.disk, f"{folder}/{LEASES}")
        self._now_ms = now_ms
        self._pins = pins
        self._check_complete = check_complete
        self._lock = threading.Lock()
        self._mine: set[str] = set()

    def take(self, hash: bytes, seconds: float) -> Lease:
        """Keep a root for `seconds`; see `CellStore.lease`."""
        check_hash(hash)
        with self._pins.locked():
            self._check_complete(hash)
            if len(self.names()) >= LEASES_MAX:
                self.remove_ended()  # only collections do so otherwise
            if len(self.names()) >= LEASES_MAX:
                raise UsageError(f"a store has at most {LEASES_MAX} leases; give some back")
            # Random names: processes never need to agree on one.
            name = SystemEntropy().bytes(_NAME_DIGITS // 2).hex()
            expires_ms = self._write(name, hash, seconds)
        with self._lock:
            # Only the process that took a lease may renew or release it.
            self._mine.add(name)
        return Lease(self, name, hash, expires_ms)

    def renew(self, name: str, hash: bytes, expires_ms: int, seconds: float) -> int:
        """Do the work of `Lease.renew`; return the new end."""
        with self._lock:
            if name not in self._mine:
                raise UsageError("the lease was given back; take another one")
        with self._pins.locked():
            # Once it had ended, a collection may have removed cells below its root. The file is
            # also gone when it ended by a clock that was set back since.
            if not self._folder.exists(name) or self._now_ms() >= expires_ms:
                self._check_complete(hash)
            return self._write(name, hash, seconds)

    def release(self, name: str) -> None:
        """Do the work of `Lease.release`."""
        with self._lock:
            if name not in self._mine:
                return
            self._mine.discard(name)
        # No lock: to remove a lease can only allow a later collection more.
        self._remove([name])

    def _write(self, name: str, hash: bytes, seconds: float) -> int:
        if not 0 < seconds <= LEASE_SECONDS_MAX:
            raise UsageError(f"a lease lasts up to {LEASE_SECONDS_MAX} seconds, got {seconds}")
        expires_ms = self._now_ms() + round(seconds * 1_000)
        try:
            self._folder.disk.create_folder(self._folder.path)
        except OSError as error:
            raise write_error(error, self._folder.path) from error
        self._folder.replace(name, checked(f"{_FIRST_WORD} {hash.hex()} {expires_ms}\n".encode()))
        return expires_ms

    def _remove(self, names: list[str]) -> None:
        """Remove leases durably: one that came back later would name a root that is gone."""
        gone = 0
        try:
            for name in names:
                try:
                    self._folder.disk.remove(f"{self._folder}/{name}")
                    gone += 1
                except FileNotFoundError:
                    continue  # it had ended, and a collection removed it first
            if gone:
                self._folder.disk.sync_folder(self._folder.path)
        except OSError as error:
            raise write_error(error, self._folder.path) from error

    # --- the leases of all processes ---

    def names(self) -> list[str]:
        """Return the names of all leases, also of those that have ended."""
        return [name for name in self._files() if len(name) == _NAME_DIGITS]

    def _files(self) -> list[str]:
        folder = self._folder
        return folder.disk.names(folder.path) if folder.disk.exists(folder.path) else []

    def live(self) -> list[Leased]:
        """Return the leases that have not ended.

        Raises: Corruption: one is damaged; the text names the file.
        """
        now_ms = self._now_ms()
        found = (self._read(name) for name in self.names())
        return [lease for lease in found if lease is not None and lease.expires_ms > now_ms]

    def remove_ended(self) -> int:
        """Remove leases that have ended, and unfinished files; return the number of leases.

        The caller holds the lock of the pins, under which leases are taken and renewed.
        """
        live = {one.file for one in self.live()}
        ended = [name for name in self.names() if f"{self._folder}/{name}" not in live]
        self._remove([*ended, *(name for name in self._files() if name.endswith(_UNFINISHED))])
        return len(ended)

    def _read(self, name: str) -> Leased | None:
        path = f"{self._folder}/{name}"
        data = self._folder.read(name)
        if data is None:
            return None  # released just now
        body = unchecked(data)
        words = [] if body is None else body.decode("ascii", "replace").split()
        if len(words) != 3 or words[0] != _FIRST_WORD:
            raise Corruption(
                f"{path} at byte 0: a damaged lease, it does not fit its checksum; "
                "remove the file when no process needs what it was taken for"
            )
        return Leased(bytes.fromhex(words[1]), int(words[2]), path)
