"""File locks: reserve writes to a file or directory of a drive for their holder, on this node.

    locks = FileLocks(clock)
    found = locks.lock(holder, place, is_shared=False, is_deep=True, note="", timeout_s=600)
    with locks.writing(holder, owner, "papers", [Touched(("a.txt",))], [found.token]): ...

Locks are in memory: a restart ends them, and other nodes ignore them. They bind the callers of this
node only; merges change locked files, too.

Source: docs/webdav.md "Locks".
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from datalattice.actions import LOCK_S_MAX
from datalattice.apps.dlfs import PathNames
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import Backpressure, FileLocked, LimitExceeded, NoSuchPath, UsageError

LOCKS_MAX: Final = 1_000
"""Most locks of one holder."""

LOCKS_IN_ALL_MAX: Final = 10_000
"""Most locks of all holders."""

NOTE_BYTES_MAX: Final = 1_024
"""Longest note of a lock, which others can read, in bytes of UTF-8."""

WRITE_WAIT_S: Final = 10.0
"""Seconds that a new lock waits for running writes."""


class LockPlace(NamedTuple):
    """A path that can be locked: names in a drive of an owner."""

    owner: bytes
    drive: str
    names: PathNames


class Touched(NamedTuple):
    """A path that a write changes.

    is_tree: with all below it. is_member: it is made or removed, which changes its directory.
    """

    names: PathNames
    is_tree: bool = False
    is_member: bool = False


@dataclass(frozen=True, slots=True)
class HeldLock:
    """One lock. is_deep: it covers all below the place, too."""

    token: str
    holder: str
    place: LockPlace
    is_shared: bool
    is_deep: bool
    note: str
    expires_ms: int

    def covers(self, names: PathNames) -> bool:
        """Return whether it locks a path of its drive."""
        own = self.place.names
        return names == own or (self.is_deep and _is_below(names, own))

    def guards(self, touched: Touched) -> bool:
        """Return whether a write needs its token."""
        own = self.place.names
        return (
            self.covers(touched.names)
            or (touched.is_tree and _is_below(own, touched.names))
            # A lock on a directory protects the set of its members (RFC 4918).
            or (touched.is_member and touched.names[:-1] == own)
        )


def _is_below(names: PathNames, above: PathNames) -> bool:
    return len(names) > len(above) and names[: len(above)] == above


class FileLocks:
    """The locks of one node. A method may be called by any thread."""

    def __init__(
        self,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        write_wait_s: float = WRITE_WAIT_S,
    ) -> None:
        self._clock: Final = clock or SystemClock()
        self._entropy: Final = entropy or SystemEntropy()
        self._write_wait_s: Final = write_wait_s
        self._locks: dict[str, HeldLock] = {}
        self._writes: list[tuple[bytes, str, Sequence[Touched]]] = []
        self._changed: Final = threading.Condition()

    def lock(
        self,
        holder: str,
        place: LockPlace,
        *,
        is_shared: bool,
        is_deep: bool,
        note: str,
        timeout_s: int,
    ) -> HeldLock:
        """Lock a place as soon as no write runs there.

        timeout_s: from 1 on; more than 3,600 counts as 3,600.
        Raises: FileLocked: another lock excludes it, or a write takes too long. LimitExceeded: the
                note is too long. Backpressure: the holder or the node has too many locks.
        """
        if len(note.encode()) > NOTE_BYTES_MAX:
            raise LimitExceeded(
                f"owner_note: at most {NOTE_BYTES_MAX} bytes, got {len(note.encode())}"
            )
        made = HeldLock(
            self._new_token(), holder, place, is_shared, is_deep, note, self._end_ms(timeout_s)
        )
        with self._changed:
            # Under a lock no write of others runs, so it waits for those that run already; not
            # longer than a caller waits for an answer.
            if not self._changed.wait_for(
                lambda: not self._is_written(made), timeout=self._write_wait_s
            ):
                raise FileLocked(f"{_path(place.names)} is being written; try again later")
            others = [one for one in self._live() if one.place[:2] == place[:2]]
            for one in others:
                # "Exclusive and shared write locks" (docs/webdav.md): two locks overlap if either
                # covers the place of the other, and only shared locks may overlap.
                if (one.covers(place.names) or made.covers(one.place.names)) and not (
                    is_shared and one.is_shared
                ):
                    raise FileLocked(f"{_path(one.place.names)} is locked already")
            # "A caller has at most 1,000" (docs/webdav.md), so that others find room.
            if sum(one.holder == holder for one in self._locks.values()) >= LOCKS_MAX:
                raise Backpressure(f"a caller has at most {LOCKS_MAX} locks")
            # Many callers together must not fill the memory of the node.
            if len(self._locks) >= LOCKS_IN_ALL_MAX:
                raise Backpressure(f"a node has at most {LOCKS_IN_ALL_MAX} locks")
            self._locks[made.token] = made
        return made

    def refresh(self, holder: str, place: LockPlace, token: str, timeout_s: int) -> HeldLock:
        """Restart the time of a lock that covers a place. Raises: NoSuchPath: there is none."""
        with self._changed:
            found = self._own(holder, place, token)
            made = self._locks[token] = replace(found, expires_ms=self._end_ms(timeout_s))
            return made

    def unlock(self, holder: str, place: LockPlace, token: str) -> None:
        """End a lock that covers a place. Raises: NoSuchPath: the holder has no such lock there."""
        with self._changed:
            self._own(holder, place, token)
            del self._locks[token]

    def around(self, place: LockPlace) -> list[HeldLock]:
        """Return the locks that cover a place, and those below it."""
        with self._changed:
            return [
                one
                for one in self._live()
                if one.place[:2] == place[:2]
                and (one.covers(place.names) or _is_below(one.place.names, place.names))
            ]

    @contextmanager
    def writing(
        self,
        holder: str,
        owner: bytes,
        drive: str,
        touched: Sequence[Touched],
        tokens: Iterable[str] = (),
    ) -> Iterator[None]:
        """Guard the write in the block: no lock of others covers it, and none is given meanwhile.

        tokens: of the holder's locks, as the caller sent them.
        Raises: FileLocked: the write needs the token of a lock.
        """
        # Check and entry in one step, so that `lock` sees the write or the write sees the lock.
        entry = (owner, drive, touched)
        with self._changed:
            self._check(holder, entry, set(tokens))
            self._writes.append(entry)
        try:
            yield
        finally:
            with self._changed:
                self._writes.remove(entry)
                self._changed.notify_all()

    def removed(self, place: LockPlace) -> None:
        """End the locks on a removed place and on all below it."""
        with self._changed:
            for one in self._live():
                names = one.place.names
                # A lock ends with its file (RFC 4918, 9.6).
                if one.place[:2] == place[:2] and names[: len(place.names)] == place.names:
                    del self._locks[one.token]

    def _new_token(self) -> str:
        # A token is a URI (RFC 4918): `urn:uuid:` and a version 4 UUID.
        digits = bytearray(self._entropy.bytes(16))
        digits[6] = digits[6] & 0x0F | 0x40
        digits[8] = digits[8] & 0x3F | 0x80
        text = digits.hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return f"urn:uuid:{'-'.join(parts)}"

    # --- with the condition held ---

    def _live(self) -> list[HeldLock]:
        now_ms = self._clock.now_ms()
        # Expired locks are removed when locks are read: no timer, and a bound on their number.
        for token in [one.token for one in self._locks.values() if one.expires_ms <= now_ms]:
            del self._locks[token]
        return list(self._locks.values())

    def _own(self, holder: str, place: LockPlace, token: str) -> HeldLock:
        self._live()  # removes the ended ones
        # One error for all cases, so that it reveals neither whether a token exists nor its holder.
        found = self._locks.get(token)
        if (
            found is None
            or found.holder != holder
            or found.place[:2] != place[:2]
            or not found.covers(place.names)
        ):
            raise NoSuchPath(f"{_path(place.names)}: the caller has no such lock there")
        return found

    def _check(
        self, holder: str, entry: tuple[bytes, str, Sequence[Touched]], tokens: set[str]
    ) -> None:
        owner, drive, touched = entry
        # By place: several shared locks may be on one place, and the token of one is enough.
        shown: dict[PathNames, bool] = {}
        for one in self._live():
            if one.place[:2] != (owner, drive) or not any(map(one.guards, touched)):
                continue
            is_shown = one.token in tokens and one.holder == holder
            shown[one.place.names] = shown.get(one.place.names, False) or is_shown
        for names, is_shown in shown.items():
            if not is_shown:
                raise FileLocked(f"{_path(names)} is locked; send the token of the lock")

    def _is_written(self, lock: HeldLock) -> bool:
        return any(
            (owner, drive) == lock.place[:2] and any(map(lock.guards, touched))
            for owner, drive, touched in self._writes
        )

    def _end_ms(self, timeout_s: int) -> int:
        if timeout_s < 1:
            raise UsageError(f"timeout_s: 1 to {LOCK_S_MAX}, got {timeout_s}")
        # "An hour at most" (docs/webdav.md): WebDAV lets a server grant less than was asked.
        return self._clock.now_ms() + min(timeout_s, LOCK_S_MAX) * 1_000


def _path(names: PathNames) -> str:
    return "/" + "/".join(names)
