"""Folder: how a store lies on the disk, how one is made, and when its index may be believed.

    STORE         what this is: format version and store id. Written last when a store is made
    lock          who writes (lockfile.py)
    turn.lock     held by whoever waits to write (turn.py)
    segments/     the truth (segments.py)
    index/        derived tables (hashindex.py)
    index.state   whether the tables may be believed
    pins          names of roots that stay (pins.py)
    history       which root was when (history.py)
    collected     when the last collection was, and what it left (notes.py)
    hosting       whose data is taken, as the operator decided (notes.py)
    end           up to where the log was acknowledged (logend.py)
    loss          acknowledged commits that are gone, until that is accepted (logend.py)
    reserve       room that is kept for a full disk (room.py)

The tables of the index are never synced while a store is open. The death of the process does not
harm them, since the system keeps what was written; a power failure may leave them unreadable in
ways that reading does not notice. So the state file says `dirty` with the boot in which the store
was opened for writing, and `clean` after a close that synced. Tables that are dirty from another
boot, or whose file is not the one that is named (a copy), are thrown away and made again from the
segments.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from datalattice.crypto import Entropy
from datalattice.errors import Corruption, StoreVersion, UsageError
from datalattice.store.disk import Disk
from datalattice.store.kept.pins import PINS_FILE, PINS_LOCK, write_pins
from datalattice.store.log.packing import STORE_ID_BYTES
from datalattice.store.log.segments import FOLDER as SEGMENTS

STORE_FILE: Final = "STORE"
LOCK_FILE: Final = "lock"
TURN_FILE: Final = "turn.lock"
INDEX: Final = "index"
STATE_FILE: Final = "index.state"
END_FILE: Final = "end"
LOSS_FILE: Final = "loss"

FOLDER_VERSION: Final = 4
"""4: every cell was checked on its way in, and there is an `end` before the first segment. 2 may
have malformed cells, and becomes a 4 when a check of the whole store finds none. 1 had no file of
pins, and a writer makes it a 2. There is no 3: one flipped bit would make it a 1 or a 2."""

_WITH_PINS: Final = 2
_NO_VERSIONS: Final = (0, 3)

_FIRST_LINE: Final = "datalattice cell store"
_TEXT_BYTES_MAX: Final = 4_096
_UNFINISHED: Final = {LOCK_FILE, TURN_FILE, SEGMENTS, INDEX, STATE_FILE, PINS_FILE, PINS_LOCK}


def store_in(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder of the store that a path has as `store`, or is; None: there is none."""
    for folder in (Path(path, "store"), Path(path)):
        if (folder / STORE_FILE).is_file():
            return folder
    return None


def write_text(disk: Disk, folder: str, name: str, text: str) -> None:
    """Replace a small file in one durable step."""
    temporary = f"{folder}/{name}.new"
    file = disk.open(temporary, create=True)
    try:
        file.write(0, text.encode())
        file.sync()
    finally:
        file.close()
    disk.replace(temporary, f"{folder}/{name}")
    disk.sync_folder(folder)


def read_text(disk: Disk, folder: str, name: str) -> str | None:
    """Return the text of a small file, None when it is not there."""
    try:
        file = disk.open(f"{folder}/{name}")
    except FileNotFoundError:
        return None
    try:
        return file.read(0, _TEXT_BYTES_MAX).decode("utf-8", "replace")
    finally:
        file.close()


def check_folder(disk: Disk, folder: str, *, must_exist: bool) -> bool:
    """Return whether there is a store at `folder`; False: one can be made.

    Raises: UsageError: something else is there, or nothing and `must_exist`.
    """
    names = _names(disk, folder)
    if STORE_FILE in names:
        return True
    foreign = [
        name for name in names if name.removesuffix(".new") not in _UNFINISHED | {STORE_FILE}
    ]
    if foreign:
        raise UsageError(
            f"{folder}: not a store (it has {foreign[0]!r} and no {STORE_FILE!r} file); "
            "name a store's folder or an empty one"
        )
    if must_exist:
        raise UsageError(f"{folder}: no store here; open it for writing once to make one")
    return False


def _names(disk: Disk, folder: str) -> list[str]:
    try:
        return disk.names(folder) if disk.exists(folder) else []
    except NotADirectoryError:
        raise UsageError(f"{folder}: not a folder") from None


def make_store(disk: Disk, folder: str, entropy: Entropy) -> None:
    """Make an empty store. A crash on the way leaves a folder where one can be made."""
    disk.create_folder(f"{folder}/{SEGMENTS}")
    write_pins(disk, folder, [])
    store_id = entropy.bytes(STORE_ID_BYTES)
    write_text(disk, folder, STORE_FILE, _description(FOLDER_VERSION, store_id))


def renew_store(disk: Disk, folder: str, store_id: bytes) -> None:
    """Give the folder of an earlier version what this one expects; the caller has the lock."""
    if not keeps_pins(disk, folder):
        write_pins(disk, folder, [])
        write_text(disk, folder, STORE_FILE, _description(_WITH_PINS, store_id))


def mark_checked(disk: Disk, folder: str, store_id: bytes) -> None:
    """Write down that every cell of the store is well formed; the caller has the lock."""
    write_text(disk, folder, STORE_FILE, _description(FOLDER_VERSION, store_id))


def is_checked(disk: Disk, folder: str) -> bool:
    """Return whether every cell of the store is known to be well formed."""
    return f"\nversion {FOLDER_VERSION}\n" in (read_text(disk, folder, STORE_FILE) or "")


def keeps_pins(disk: Disk, folder: str) -> bool:
    """Return whether the folder has to have a file of pins."""
    return "\nversion 1\n" not in (read_text(disk, folder, STORE_FILE) or "")


def _description(version: int, store_id: bytes) -> str:
    return f"{_FIRST_LINE}\nversion {version}\nid {store_id.hex()}\n"


def read_store_id(disk: Disk, folder: str) -> bytes:
    """Return the store's id.

    Raises: StoreVersion: a newer version made the store. Corruption: the file is damaged.
    """
    text = read_text(disk, folder, STORE_FILE) or ""
    fields = dict(line.split(" ", 1) for line in text.splitlines()[1:] if " " in line)
    version = fields.get("version", "")
    if not text.startswith(_FIRST_LINE + "\n") or not version.isdecimal():
        raise Corruption(f"{folder}/{STORE_FILE} at byte 0: not the description of a store")
    if int(version) in _NO_VERSIONS:
        raise Corruption(f"{folder}/{STORE_FILE}: there is no format version {version}")
    if int(version) > FOLDER_VERSION:
        raise StoreVersion(
            f"{folder}: a store of format version {version}; "
            f"this package reads up to {FOLDER_VERSION}, so use a newer one"
        )
    try:
        store_id = bytes.fromhex(fields.get("id", ""))
    except ValueError:
        store_id = b""
    if len(store_id) != STORE_ID_BYTES or text != _description(int(version), store_id):
        raise Corruption(f"{folder}/{STORE_FILE}: the description, or the id in it, is damaged")
    return store_id


def index_is_believable(disk: Disk, folder: str) -> bool:
    """Return whether the tables of the index are what was last written to them."""
    words = (read_text(disk, folder, STATE_FILE) or "").split()
    identity = disk.engine_identity(f"{folder}/{INDEX}")
    if len(words) != 4 or not identity or words[2] != identity or not words[3].isdecimal():
        return False
    # Tables are mapped: to read where their file was cut would end the process.
    if disk.engine_bytes(f"{folder}/{INDEX}") < int(words[3]):
        return False
    boot = disk.boot_id()
    return words[0] == "clean" or (words[0] == "dirty" and boot != "" and words[1] == boot)


def index_is_in_use(disk: Disk, folder: str) -> bool:
    """Return whether the tables are marked as those of a store that is open for writing."""
    return (read_text(disk, folder, STATE_FILE) or "").startswith("dirty ")


def disown_index(disk: Disk, folder: str) -> None:
    """Mark the tables of the index as not to be trusted: the next start makes them again."""
    if disk.exists(f"{folder}/{STATE_FILE}"):
        disk.remove(f"{folder}/{STATE_FILE}")
        disk.sync_folder(folder)


def mark_index(disk: Disk, folder: str, *, clean: bool) -> None:
    """Write down, durably, whether the tables on the disk are complete and synced."""
    identity = disk.engine_identity(f"{folder}/{INDEX}") or "-"
    size = disk.engine_bytes(f"{folder}/{INDEX}")
    word = "clean" if clean else "dirty"
    text = f"{word} {disk.boot_id() or '-'} {identity} {size}\n"
    if read_text(disk, folder, STATE_FILE) != text:
        write_text(disk, folder, STATE_FILE, text)
