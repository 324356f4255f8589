"""Pins: roots that stay beside the present root, under a name or for a time.

    pins          a checksum, then a line `datalattice pins 1` and one JSON object a line
    pins.lock     held for the moment of a change

Any process may pin, also beside the writer: a change takes the lock, reads the file and replaces it
in one durable step. Every store has this file. A missing or damaged file is an error and never read
as "no pins", because a collection would then destroy pinned data.

A *lease* is a pin for the time of a job. It has a random name that begins with a dot, which the
names of other pins do not. It ends by itself, even if its holder dies.

A collection holds the same lock (`Pins.locked`) from its last reading of the pins until removed
cells can no longer be found. Under the same lock a value is checked for completeness before it is
pinned. So either the collection reads the pin and keeps its cells, or the pin comes after the
removal and is refused.

Source: docs/history.md; docs/store.md "Leases".
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, Self

from datalattice.crypto import SystemEntropy
from datalattice.errors import Corruption, StoreLocked, UsageError
from datalattice.forking import freed_in_child
from datalattice.limits import HASH_BYTES
from datalattice.store.disk import write_error
from datalattice.store.files import StoreFolder, checked, unchecked
from datalattice.store.records import check_hash

PINS_FILE: Final = "pins"
PINS_LOCK: Final = "pins.lock"

PINS_MAX: Final = 10_000
"""Most pins of a store, and most leases; each change writes all of them."""

NAME_CHARS_MAX: Final = 200
OWNER_CHARS_MAX: Final = 200
LABEL_CHARS_MAX: Final = 1_000
EXPIRY_MS_MAX: Final = 1 << 53
"""Every JSON reader represents numbers up to this exactly."""

LEASE_SECONDS_MAX: Final = 7 * 24 * 60 * 60
"""Longest lease. It can be renewed; a root that must stay longer is pinned instead."""

_LOCK_WAIT_S: Final = 30.0
"""How long a change waits for another process to finish its own."""

RELEASE_WAIT_S: Final = 1.0
"""How long the release of a lease waits for it; after that the lease stays until its end."""

_LOCK_POLL_S: Final = 0.01
_LEASE_MARK: Final = "."
_LEASE_NAME_BYTES: Final = 8
_FIRST_LINE: Final = b"datalattice pins 1\n"
_FILE_BYTES_MAX: Final = 2 * PINS_MAX * 32_768  # JSON takes up to 12 bytes for a character
_REMEDY: Final = "put it back from a copy, or remove all pins and name them again"


@dataclass(frozen=True, slots=True)
class Pin:
    """A root that stays."""

    name: str
    root_hash: bytes
    owner: str = ""
    """Who needs it, in the words of the process that pinned it."""
    label: str = ""
    created_ms: int = 0
    expires_ms: int | None = None
    """The pin ends at this time; None: it stays until it is removed."""

    @property
    def is_lease(self) -> bool:
        """Whether it is a lease, which `Pins.leases` lists."""
        return self.name.startswith(_LEASE_MARK)

    def lives(self, now_ms: int) -> bool:
        """Return whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms


class Lease:
    """A lease that this process took. Leaving it as a context releases it."""

    def __init__(self, pins: Pins, name: str, root_hash: bytes, expires_ms: int) -> None:
        self._pins = pins
        self._name = name
        self._is_released = False
        self._pid = os.getpid()
        self.root_hash = root_hash
        """The root that stays, with all cells below it."""
        self.expires_ms = expires_ms
        """Its end in Unix milliseconds."""

    def renew(self, seconds: float) -> None:
        """Let it end `seconds` from now; durable on return.

        Raises: UsageError: seconds out of range, or the lease was released.
                MissingData: it had ended, and the root is gone.
        """
        if self._is_released:
            raise UsageError("the lease was released; take another one")
        self.expires_ms = self._pins._lease(self._name, self.root_hash, seconds)

    def release(self) -> None:
        """End it now; while a collection removes cells it may stay until its end.

        Releasing twice is allowed. In a forked child it does nothing: the parent needs the lease.
        """
        if not self._is_released:
            self._is_released = True
            if self._pid == os.getpid():
                self._pins._end_lease(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class Pins:
    """The pins of one store, `Store.pins`; these are in memory and end with the object."""

    def __init__(
        self, *, now_ms: Callable[[], int], check_complete: Callable[[bytes], None]
    ) -> None:
        """`check_complete` raises MissingData when a cell below a hash is not in the store."""
        self._now_ms = now_ms
        self._check_complete = check_complete
        self._rows: list[Pin] = []
        self._changing = freed_in_child(threading.Lock())

    def all(self, now_ms: int | None = None) -> list[Pin]:
        """Return the pins that have not expired, by name; includes every acknowledged one.

        Raises: Corruption: the file is damaged or missing; the text names it.
        """
        return [pin for pin in self._living(now_ms) if not pin.is_lease]

    def leases(self) -> list[Pin]:
        """Return the leases of all processes that have not ended. Raises: as `all`."""
        return [pin for pin in self._living() if pin.is_lease]

    def roots(self) -> list[bytes]:
        """Return the hashes of the roots of all pins and leases, each once. Raises: as `all`."""
        return list(dict.fromkeys(pin.root_hash for pin in self._living()))

    def _living(self, now_ms: int | None = None) -> list[Pin]:
        now_ms = self._now_ms() if now_ms is None else now_ms
        return [pin for pin in self._read() if pin.lives(now_ms)]

    def get(self, name: str) -> Pin | None:
        """Return the pin with this name, None when there is none or it has expired.

        Raises: Corruption: as `all`.
        """
        return next((pin for pin in self.all() if pin.name == name), None)

    def pin(
        self,
        hash: bytes,
        name: str,
        owner: str = "",
        label: str = "",
        expires_ms: int | None = None,
        *,
        move: bool = False,
    ) -> Pin:
        """Keep a root under a name until it is removed or expires; durable on return.

        To pin the same root under the same name again changes owner, label and expiry. `move`
        allows a name that another root has.
        Raises: UsageError: an invalid name; the name has another root; too many pins; expired.
                MissingData: a cell below the root is not here. Corruption: as `all`.
        Cost:   reads every cell below a root that is neither the present one nor in the history nor
                pinned already.
        """
        check_hash(hash)
        pin = Pin(
            check_name(name),
            hash,
            _checked_text("the owner", owner, OWNER_CHARS_MAX),
            _checked_text("the label", label, LABEL_CHARS_MAX),
            self._now_ms(),
            expires_ms,
        )
        # A pin that has expired already would be dropped by the next change.
        if expires_ms is not None and not pin.created_ms < expires_ms <= EXPIRY_MS_MAX:
            raise UsageError(
                f"a pin expires after the present, {pin.created_ms} ms, "
                f"and not after {EXPIRY_MS_MAX} ms, got {expires_ms}"
            )
        with self.locked():
            others = {one.name: one for one in self._living()}
            before = others.pop(name, None)
            # A name that a job relies on does not change by accident.
            if before is not None and before.root_hash != hash and not move:
                raise UsageError(
                    f"the pin {name!r} is 0x{before.root_hash.hex()}; remove it first, or move it"
                )
            if sum(not one.is_lease for one in others.values()) >= PINS_MAX:
                raise UsageError(f"a store has at most {PINS_MAX} pins; remove some")
            # A root that is pinned already was complete when it was pinned, and has been kept
            # since.
            if all(one.root_hash != hash for one in (*others.values(), *filter(None, [before]))):
                self._check_complete(hash)
            if before is not None and before.root_hash == hash:
                pin = replace(pin, created_ms=before.created_ms)
            self._write([*others.values(), pin])
        return pin

    def unpin(self, name: str) -> Pin:
        """Remove a pin and return it; durable on return.

        Raises: UsageError: no pin has this name. Corruption: as `all`.
        """
        with self.locked():
            found = self.get(name)
            if found is None:
                known = ", ".join([pin.name for pin in self.all()][:10]) or "none"
                raise UsageError(f"there is no pin {name!r}; there are: {known}")
            self._write(one for one in self._living() if one.name != name)
        return found

    def clear(self) -> None:
        """Remove every pin, also where the file is damaged or missing; durable on return.

        Leases stay, unless the file is damaged.
        """
        with self.locked():
            leases: list[Pin] = []
            with suppress(Corruption):
                leases = self.leases()
            self._write(leases)

    # --- leases ---

    def lease(self, hash: bytes, seconds: float) -> Lease:
        """Keep a root for `seconds`, as `Store.lease`."""
        # Random names: processes never need to agree on one.
        name = _LEASE_MARK + SystemEntropy().bytes(_LEASE_NAME_BYTES).hex()
        return Lease(self, name, hash, self._lease(name, check_hash(hash), seconds))

    def _lease(self, name: str, hash: bytes, seconds: float) -> int:
        """Take or renew a lease; return its end."""
        if not 0 < seconds <= LEASE_SECONDS_MAX:
            raise UsageError(f"a lease lasts up to {LEASE_SECONDS_MAX} seconds, got {seconds}")
        with self.locked():
            others = {one.name: one for one in self._living()}
            # Once the lease has ended, a collection may have removed cells below its root. It can
            # be gone although its end lies ahead: if the clock was set back since.
            if others.pop(name, None) is None:
                self._check_complete(hash)
            if sum(one.is_lease for one in others.values()) >= PINS_MAX:
                raise UsageError(f"a store has at most {PINS_MAX} leases; release some")
            now_ms = self._now_ms()
            expires_ms = now_ms + round(seconds * 1_000)
            pin = Pin(name, hash, created_ms=now_ms, expires_ms=expires_ms)
            self._write([*others.values(), pin])
        return expires_ms

    def _end_lease(self, name: str) -> None:
        # "If the collection still runs, the lease stays until its end" (docs/store.md "Leases").
        with suppress(StoreLocked), self.locked(RELEASE_WAIT_S):
            pins = self._living()
            others = [one for one in pins if one.name != name]
            # A lease that had ended was removed by a collection or another change: nothing is
            # written then.
            if len(others) < len(pins):
                self._write(others)

    def remove_ended(self) -> int:
        """Remove what has expired; return the number of leases. The caller holds the lock."""
        pins, living = self._read(), self._living()
        if len(living) < len(pins):
            self._write(living)
        return sum(pin.is_lease for pin in pins) - sum(pin.is_lease for pin in living)

    # --- where they are kept ---

    def _read(self) -> list[Pin]:
        """Return all pins, expired ones too."""
        return self._rows

    def _write(self, pins: Iterable[Pin]) -> None:
        """Replace all pins. Raises: StoreFull, StoreFailed: they cannot be written."""
        self._rows = sorted(pins, key=lambda pin: pin.name)

    @contextmanager
    def locked(self, wait_s: float = _LOCK_WAIT_S) -> Iterator[None]:
        """Keep every process from changing pins and leases while the block runs.

        Raises: StoreLocked: another process did not finish its change in `wait_s`.
        """
        if not self._changing.acquire(timeout=wait_s):
            raise StoreLocked("another thread changes the pins, or collects garbage; try again")
        try:
            yield
        finally:
            self._changing.release()


class FolderPins(Pins):
    """The pins of a store in a folder."""

    def __init__(
        self,
        folder: StoreFolder,
        *,
        now_ms: Callable[[], int],
        check_complete: Callable[[bytes], None],
    ) -> None:
        super().__init__(now_ms=now_ms, check_complete=check_complete)
        self._folder = folder
        self._path = f"{folder}/{PINS_FILE}"

    def _read(self) -> list[Pin]:
        data = self._folder.read(PINS_FILE, _FILE_BYTES_MAX)
        # Never read as "no pins": a collection would then destroy pinned data.
        if data is None:
            raise Corruption(f"{self._path}: the file of pins is gone; {_REMEDY}")
        return parse_pins(data, self._path)

    def _write(self, pins: Iterable[Pin]) -> None:
        write_pins(self._folder, pins)

    @contextmanager
    def locked(self, wait_s: float = _LOCK_WAIT_S) -> Iterator[None]:
        # Monotonic: a clock that is set back must not make the wait endless.
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                lock = self._folder.disk.lock(f"{self._folder}/{PINS_LOCK}")
                break
            except StoreLocked as error:
                if time.monotonic() >= deadline_s:
                    raise StoreLocked(
                        f"{self._path}: waited {wait_s:g} s for another process that changes "
                        "the pins, or collects garbage; try again"
                    ) from error
                time.sleep(_LOCK_POLL_S)
            except OSError as error:
                raise write_error(error, self._path) from error
        try:
            yield
        finally:
            lock.release()


def check_name(name: object) -> str:
    """Return `name` when a pin can have it.

    Raises: UsageError: it is empty, too long, or could be read as another kind of reference.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARS_MAX:
        what = f"{len(name)} characters" if isinstance(name, str) else type(name).__name__
        raise UsageError(f"the name of a pin has 1 to {NAME_CHARS_MAX} characters, got {what}")
    # The characters that `refs` gives a meaning to, and those that a shell expands.
    allowed = name.isprintable() and not any(char in " ~^@:*?[\\" for char in name)
    if not allowed or name[0] in "-." or name == "HEAD" or name.startswith("0x"):
        raise UsageError(
            f"a pin cannot have the name {name!r}: names are printable without blanks, "
            "are not HEAD, do not begin with '-', '.' or '0x', and have none of ~^@:*?[\\"
        )
    # `resolve` takes 64 hex digits for a hash.
    if len(name) == 2 * HASH_BYTES and all(char in "0123456789abcdefABCDEF" for char in name):
        raise UsageError(f"a pin cannot have the name {name!r}: it reads as a hash")
    return name


def _checked_text(what: str, text: object, most: int) -> str:
    if not isinstance(text, str) or len(text) > most or not (text.isprintable() or not text):
        got = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise UsageError(
            f"{what} of a pin is printable text of at most {most} characters, got {got}"
        )
    return text


def write_pins(folder: StoreFolder, pins: Iterable[Pin]) -> None:
    """Replace the file of pins in one durable step.

    Raises: StoreFull, StoreFailed: it cannot be written.
    """
    # JSON has no bytes: a hash is written in hex.
    rows = [asdict(pin) | {"root_hash": pin.root_hash.hex()} for pin in pins]
    # Sorted, so that the same pins give the same bytes.
    body = "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["name"]))
    folder.replace(PINS_FILE, checked(_FIRST_LINE + body.encode()))


def parse_pins(data: bytes, path: str) -> list[Pin]:
    """Return the pins in the bytes of a file.

    Raises: Corruption: they differ from those that were written.
    """
    # The checksum covers everything after the first line end.
    body = unchecked(data)
    if body is None or not body.startswith(_FIRST_LINE):
        raise Corruption(f"{path}: the file of pins is damaged; {_REMEDY}")
    try:
        rows = [json.loads(line) for line in body[len(_FIRST_LINE) :].splitlines()]
        return [Pin(**row | {"root_hash": bytes.fromhex(row["root_hash"])}) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(f"{path}: not a file of pins ({error})") from error
