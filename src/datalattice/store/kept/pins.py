"""Pins: names for roots that are to stay, whatever becomes of the present root.

    pins          the names: a version, a checksum, and one JSON object a line
    pins.lock     held for the moment of a change

Any process may pin, beside the writer: a change takes the lock, reads the file, and replaces it in
one durable step. A store of this version always has the file, so one that is gone or damaged is
refused and never read as "no pins": a collection that believed so would destroy data.

Whoever removes cells holds the same lock (`Pins.frozen`) from its last look at the pins until what
it removed cannot be found any more. A value is looked through under the lock before it is pinned.
So a pin comes either before that look, and is honoured, or after the removal, and is refused.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final

from datalattice.errors import Corruption, StoreLocked, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.store.base import check_hash
from datalattice.store.disk import Disk, write_error

PINS_FILE: Final = "pins"
PINS_LOCK: Final = "pins.lock"

PINS_MAX: Final = 10_000
"""Pins of a store; each change writes them all."""

NAME_CHARS_MAX: Final = 200
OWNER_CHARS_MAX: Final = 200
LABEL_CHARS_MAX: Final = 1_000
EXPIRY_MS_MAX: Final = 1 << 53
"""Expiries are exact in every JSON reader up to this."""

LOCK_WAIT_S: Final = 30.0
"""How long a change waits for another process to finish its own."""

_LOCK_POLL_S: Final = 0.01
_FIRST_LINE: Final = "datalattice pins 1"
_FILE_BYTES_MAX: Final = PINS_MAX * 32_768  # a character takes up to 12 bytes


@dataclass(frozen=True, slots=True)
class Pin:
    """A root that stays, by name."""

    name: str
    root_hash: bytes
    owner: str = ""
    """Who wants it, as told by whoever pinned it."""
    label: str = ""
    created_ms: int = 0
    expires_ms: int | None = None
    """From then on it is no pin any more; None: it stays until it is removed."""

    def lives(self, now_ms: int) -> bool:
        """Return whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms


class Pins:
    """The pins of one store; `CellStore.pins`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        now_ms: Callable[[], int],
        check_whole: Callable[[bytes], None],
        expected: Callable[[], bool],
    ) -> None:
        """Make the pins of a folder.

        `check_whole` refuses a hash that has not all cells below it in the store; `expected` tells
        whether the store has a file of pins.
        """
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{PINS_FILE}"
        self._now_ms = now_ms
        self._check_whole = check_whole
        self._expected = expected

    def all(self, now_ms: int | None = None) -> list[Pin]:
        """Return the pins that have not expired, by name; every one that was acknowledged before.

        Raises: Corruption: the file is damaged, or gone; the text names it.
        """
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
        """Keep a root, under a name, until it is removed or expires; durable on return.

        Pinning the same root under its name again changes owner, label and expiry. `move` gives a
        name that has another root to this one.
        Raises: UsageError: no name; the name is taken by another root; too many pins; expired.
                MissingData: the root is not whole in the store. Corruption: as `all`.
        Cost:   looks at every cell below a root that is neither the present one nor remembered by
                the history or another pin.
        """
        check_hash(hash)
        pin = Pin(
            check_name(name),
            hash,
            _checked("the owner", owner, OWNER_CHARS_MAX),
            _checked("the label", label, LABEL_CHARS_MAX),
            self._now_ms(),
            expires_ms,
        )
        if expires_ms is not None and not pin.created_ms < expires_ms <= EXPIRY_MS_MAX:
            raise UsageError(
                f"a pin expires after the present, {pin.created_ms} ms, "
                f"and not after {EXPIRY_MS_MAX} ms, got {expires_ms}"
            )
        with self.frozen():
            others = {one.name: one for one in self.all()}
            before = others.pop(name, None)
            if before is not None and before.root_hash != hash and not move:
                raise UsageError(
                    f"the pin {name!r} is 0x{before.root_hash.hex()}; remove it first, or move it"
                )
            if len(others) >= PINS_MAX:
                raise UsageError(f"a store has at most {PINS_MAX} pins; remove some")
            if all(one.root_hash != hash for one in (*others.values(), *filter(None, [before]))):
                self._check_whole(hash)
            if before is not None and before.root_hash == hash:
                pin = replace(pin, created_ms=before.created_ms)
            self._write([*others.values(), pin])
        return pin

    def unpin(self, name: str) -> Pin:
        """Remove a pin and return it; durable on return.

        Raises: UsageError: there is none of this name. Corruption: as `all`.
        """
        with self.frozen():
            others = {one.name: one for one in self.all()}
            found = others.pop(name, None)
            if found is None:
                known = ", ".join(list(others)[:10]) or "none"
                raise UsageError(f"there is no pin {name!r}; there are: {known}")
            self._write(others.values())
        return found

    def clear(self) -> None:
        """Remove every pin, also where the file is damaged or gone; durable on return."""
        with self.frozen():
            self._write([])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep every process from changing pins while the block runs.

        Raises: StoreLocked: another process did not finish a change in time.
        """
        give_up_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                lock = self._disk.lock(f"{self._folder}/{PINS_LOCK}")
                break
            except StoreLocked as error:
                if time.monotonic() >= give_up_s:
                    raise StoreLocked(
                        f"{self._path}: waited {LOCK_WAIT_S:g} s for another process that changes "
                        "the pins, or collects garbage; try again"
                    ) from error
                time.sleep(_LOCK_POLL_S)
            except OSError as error:
                raise write_error(error, self._path) from error
        try:
            yield
        finally:
            lock.release()

    # --- the file ---

    def _read(self) -> list[Pin]:
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            if not self._expected():
                return []
            raise Corruption(
                f"{self._path}: the file of pins is gone; put it back from a copy, "
                "or remove all pins and name them again"
            ) from None
        try:
            data = file.read(0, _FILE_BYTES_MAX)
        finally:
            file.close()
        return parse_pins(data, self._path)

    def _write(self, pins: Iterable[Pin]) -> None:
        try:
            write_pins(self._disk, self._folder, pins)
        except OSError as error:
            raise write_error(error, self._path) from error


def check_name(name: object) -> str:
    """Return `name` when a pin can have it.

    Raises: UsageError: it is empty, too long, or could be read as something else.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARS_MAX:
        what = f"{len(name)} characters" if isinstance(name, str) else type(name).__name__
        raise UsageError(f"the name of a pin has 1 to {NAME_CHARS_MAX} characters, got {what}")
    allowed = name.isprintable() and not any(char in " ~^@:*?[\\" for char in name)
    if not allowed or name[0] in "-." or name == "HEAD" or name.startswith("0x"):
        raise UsageError(
            f"a pin cannot have the name {name!r}: names are printable without blanks, "
            "are not HEAD, do not begin with '-', '.' or '0x', and have none of ~^@:*?[\\"
        )
    if len(name) == 2 * HASH_BYTES and all(char in "0123456789abcdefABCDEF" for char in name):
        raise UsageError(f"a pin cannot have the name {name!r}: it reads as a hash")
    return name


def _checked(what: str, text: object, most: int) -> str:
    if not isinstance(text, str) or len(text) > most or not (text.isprintable() or not text):
        raise UsageError(f"{what} of a pin is printable text of at most {most} characters")
    return text


def write_pins(disk: Disk, folder: str, pins: Iterable[Pin]) -> None:
    """Replace the file of pins in one durable step."""
    rows = [asdict(pin) | {"root_hash": pin.root_hash.hex()} for pin in pins]
    body = "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["name"]))
    path = f"{folder}/{PINS_FILE}"
    file = disk.open(f"{path}.new", create=True)
    try:
        file.write(0, f"{_FIRST_LINE}\n{_digest(body.encode())}\n{body}".encode())
        file.sync()
    finally:
        file.close()
    disk.replace(f"{path}.new", path)
    disk.sync_folder(folder)


def parse_pins(data: bytes, path: str) -> list[Pin]:
    """Return the pins in the bytes of a file.

    Raises: Corruption: they are not what was written.
    """
    head, _, rest = data.partition(b"\n")
    digest, _, body = rest.partition(b"\n")
    if head != _FIRST_LINE.encode() or digest != _digest(body).encode():
        raise Corruption(
            f"{path}: the file of pins is damaged; put it back from a copy, "
            "or remove all pins and name them again"
        )
    try:
        rows = [json.loads(line) for line in body.splitlines()]
        return [Pin(**row | {"root_hash": bytes.fromhex(row["root_hash"])}) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(f"{path}: not a file of pins ({error})") from error


def _digest(body: bytes) -> str:
    return hashlib.sha3_256(body).hexdigest()
