"""Leases: for a while, nobody removes what a root reaches.

    leases/<16 hex digits>      one line of text: version, root hash, Unix milliseconds of the end,
                                CRC-32 of all that in hex

A lease is a pin for the time of a job: it has no name, it ends by itself, and each one is a file of
its own, so any process may take, renew and give back its own beside all others. A lease that was
not given back, since its holder died, ends when its time is over.

A lease is taken under the lock of the pins (`Pins.frozen`), which a collection holds from its last
look at leases and pins until what it removed cannot be found any more. So a lease is honoured, or
refused because the root is not here any more.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from datalattice.crypto import SystemEntropy
from datalattice.errors import Corruption, UsageError
from datalattice.store.base import check_hash
from datalattice.store.disk import Disk, write_error

if TYPE_CHECKING:
    from datalattice.store.kept.pins import Pins

LEASES: Final = "leases"

LEASE_SECONDS_MAX: Final = 7 * 24 * 60 * 60
"""Longest lease; it can be renewed, and what is to stay longer is pinned."""

LEASES_MAX: Final = 10_000
"""Leases of a store at one time."""

_FIRST_WORD: Final = "lease1"
_NAME_DIGITS: Final = 16
_UNFINISHED: Final = ".new"
_TEXT_BYTES_MAX: Final = 256


class Leased(NamedTuple):
    """A lease as others see it."""

    root_hash: bytes
    expires_ms: int
    file: str


class Lease:
    """A lease that this process took. Leaving it as a context gives it back."""

    def __init__(self, leases: Leases, name: str, root_hash: bytes, expires_ms: int) -> None:
        self._leases = leases
        self._name = name
        self.root_hash = root_hash
        """What stays, with all below it."""
        self.expires_ms = expires_ms
        """Unix milliseconds of its end."""

    def renew(self, seconds: float) -> None:
        """Let it end so many seconds from now; durable on return.

        Raises: UsageError: seconds out of range, or the lease was given back.
                MissingData: it had ended, and the root is not here any more.
        """
        self.expires_ms = self._leases.renew(self._name, self.root_hash, self.expires_ms, seconds)

    def release(self) -> None:
        """Give it back. Doing so twice is fine."""
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
        disk: Disk,
        folder: str,
        *,
        now_ms: Callable[[], int],
        pins: Pins,
        check_whole: Callable[[bytes], None],
    ) -> None:
        self._disk = disk
        self._folder = f"{folder}/{LEASES}"
        self._now_ms = now_ms
        self._pins = pins
        self._check_whole = check_whole
        self._lock = threading.Lock()
        self._mine: set[str] = set()

    def take(self, hash: bytes, seconds: float) -> Lease:
        """Keep a root for so many seconds, as `CellStore.lease`."""
        check_hash(hash)
        with self._pins.frozen():
            self._check_whole(hash)
            if len(self.names()) >= LEASES_MAX:
                self.tidy()  # most may have ended, where nothing was collected for long
            if len(self.names()) >= LEASES_MAX:
                raise UsageError(f"a store has at most {LEASES_MAX} leases; give some back")
            name = SystemEntropy().bytes(_NAME_DIGITS // 2).hex()
            expires_ms = self._write(name, hash, seconds)
        with self._lock:
            self._mine.add(name)
        return Lease(self, name, hash, expires_ms)

    def renew(self, name: str, hash: bytes, expires_ms: int, seconds: float) -> int:
        """Do the work of `Lease.renew`; return when it ends now."""
        with self._lock:
            if name not in self._mine:
                raise UsageError("the lease was given back; take another one")
        with self._pins.frozen():
            # Gone: it had ended, by a clock that was set back since.
            is_there = self._disk.exists(f"{self._folder}/{name}")
            if not is_there or self._now_ms() >= expires_ms:
                self._check_whole(hash)
            return self._write(name, hash, seconds)

    def release(self, name: str) -> None:
        """Do the work of `Lease.release`."""
        with self._lock:
            if name not in self._mine:
                return
            self._mine.discard(name)
        self._remove([name])

    def _write(self, name: str, hash: bytes, seconds: float) -> int:
        if not 0 < seconds <= LEASE_SECONDS_MAX:
            raise UsageError(f"a lease lasts up to {LEASE_SECONDS_MAX} seconds, got {seconds}")
        expires_ms = self._now_ms() + round(seconds * 1_000)
        line = f"{_FIRST_WORD} {hash.hex()} {expires_ms}"
        text = f"{line} {zlib.crc32(line.encode()):08x}\n"
        path = f"{self._folder}/{name}"
        try:
            if not self._disk.exists(self._folder):
                self._disk.create_folder(self._folder)
            file = self._disk.open(path + _UNFINISHED, create=True)
            try:
                file.write(0, text.encode())
                file.sync()
            finally:
                file.close()
            self._disk.replace(path + _UNFINISHED, path)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise write_error(error, path) from error
        return expires_ms

    def _remove(self, names: list[str]) -> None:
        """Remove leases durably: one that came back would name a root that is gone since."""
        gone = 0
        try:
            for name in names:
                try:
                    self._disk.remove(f"{self._folder}/{name}")
                    gone += 1
                except FileNotFoundError:
                    continue  # a collection was faster, and it had ended
            if gone:
                self._disk.sync_folder(self._folder)
        except OSError as error:
            raise write_error(error, self._folder) from error

    # --- what others took ---

    def names(self) -> list[str]:
        """Return the names of all leases, also of those that have ended."""
        if not self._disk.exists(self._folder):
            return []
        names = self._disk.names(self._folder)
        return [name for name in names if len(name) == _NAME_DIGITS]

    def live(self) -> list[Leased]:
        """Return the leases that have not ended.

        Raises: Corruption: one is damaged; the text names the file.
        """
        now_ms = self._now_ms()
        found = []
        for name in self.names():
            lease = self._read(f"{self._folder}/{name}")
            if lease is not None and lease.expires_ms > now_ms:
                found.append(lease)
        return found

    def tidy(self) -> int:
        """Remove leases that have ended, and what was left of writing one; return how many.

        The caller has the lock of the pins, under which leases are taken and renewed.
        """
        live = {one.file for one in self.live()}
        over = [name for name in self.names() if f"{self._folder}/{name}" not in live]
        self._remove([*over, *self._unfinished()])
        return len(over)

    def _unfinished(self) -> list[str]:
        if not self._disk.exists(self._folder):
            return []
        return [name for name in self._disk.names(self._folder) if name.endswith(_UNFINISHED)]

    def _read(self, path: str) -> Leased | None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None  # given back just now
        try:
            text = file.read(0, _TEXT_BYTES_MAX).decode("ascii", "replace")
        finally:
            file.close()
        line, _, checksum = text.rstrip("\n").rpartition(" ")
        if text != f"{line} {zlib.crc32(line.encode()):08x}\n" or not line.startswith(_FIRST_WORD):
            raise Corruption(
                f"{path} at byte 0: a damaged lease, {checksum!r} is not its checksum; "
                "remove the file when no process needs what it was taken for"
            )
        _, hash, expires = line.split(" ")
        return Leased(bytes.fromhex(hash), int(expires), path)
