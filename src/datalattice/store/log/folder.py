"""Folder: the files of a store, how a store is made, and when its index may be used.

    STORE         format version and store id. Written last when a store is made
    lock          which process writes (lockfile)
    turn.lock     held by the first process that waits to write (locking)
    segments/     the log (segments)
    index/        tables derived from the log (hashindex)
    index.state   whether the tables may be used
    end           up to where the log was acknowledged (logend)
    loss          acknowledged commits that are gone, until that is accepted (logend)
    garbage       what collections removed (removed)
    reserve       space that is kept for a full disk (freespace)
    pins          roots that stay (kept)
    history       former roots (kept.history)
    collected     when the last collection was, and what it left (notes)
    hosting       whose data is accepted, as the operator decided (notes)

The tables of the index are never synced while a store is open. If the process dies, they are
intact, because the kernel keeps what was written. A power failure may damage them in ways that
reading does not notice. So the state file says `dirty`, with the kernel's boot id, while a writer
has the store open, and `clean` after a close that synced. Tables that are dirty from another boot,
or that are another file than the state file names (a copy), are deleted and made again from the
segments.

Source: docs/store.md "Files", "Index".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from datalattice.crypto import Entropy
from datalattice.errors import Corruption, StoreVersion, UsageError
from datalattice.store.files import StoreFolder
from datalattice.store.kept.pins import PINS_FILE, PINS_LOCK, write_pins
from datalattice.store.log.packing import LOG_STORE_ID_BYTES
from datalattice.store.log.segments import SEGMENTS

STORE_FILE: Final = "STORE"
LOCK_FILE: Final = "lock"
TURN_FILE: Final = "turn.lock"
INDEX: Final = "index"
STATE_FILE: Final = "index.state"
END_FILE: Final = "end"
LOSS_FILE: Final = "loss"

FOLDER_VERSION: Final = 6
"""The version that this package writes: the log may have packs with spans."""

FOLDER_VERSION_MIN: Final = 5
"""The oldest that it reads: a log without spans. Lower numbers were never released."""

_FIRST_LINE: Final = "datalattice cell store"
_UNFINISHED: Final = {LOCK_FILE, TURN_FILE, SEGMENTS, INDEX, STATE_FILE, PINS_FILE, PINS_LOCK}
"""The names that a crash can leave while a store is created."""


def store_in(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder of a store: `path` itself or `store` in it; None when neither is one."""
    for folder in (Path(path, "store"), Path(path)):
        if (folder / STORE_FILE).is_file():
            return folder
    return None


def check_folder(folder: StoreFolder, *, must_exist: bool) -> bool:
    """Return whether there is a store at `folder`; False: one can be made.

    Raises: UsageError: something else is there, or nothing and `must_exist`.
    """
    try:
        names = folder.disk.names(folder.path) if folder.disk.exists(folder.path) else []
    except NotADirectoryError:
        raise UsageError(f"{folder}: not a folder") from None
    if STORE_FILE in names:
        return True
    # "A folder with anything else in it is refused rather than used" (docs/store.md).
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


def make_store(folder: StoreFolder, entropy: Entropy) -> None:
    """Create an empty store. After a crash in between, it can be created in the same folder."""
    # A crash from here on leaves only names in `_UNFINISHED`.
    folder.disk.create_folder(f"{folder}/{SEGMENTS}")
    write_pins(folder, [])
    # Last: a folder with this file is a complete store.
    store_id = entropy.bytes(LOG_STORE_ID_BYTES)
    folder.replace(STORE_FILE, _description(store_id, FOLDER_VERSION).encode())


def raise_version(folder: StoreFolder, store_id: bytes) -> None:
    """Raise the version of an older store to ours, before this package writes to its log.

    Raises: StoreFull, StoreFailed: the description cannot be written.
    """
    text = _description(store_id, FOLDER_VERSION)
    if folder.read_text(STORE_FILE) != text:
        folder.replace(STORE_FILE, text.encode())


def _description(store_id: bytes, version: int) -> str:
    return f"{_FIRST_LINE}\nversion {version}\nid {store_id.hex()}\n"


def read_store_id(folder: StoreFolder) -> bytes:
    """Return the store's id.

    Raises: StoreVersion: a newer version made the store. Corruption: the file is damaged.
    """
    text = folder.read_text(STORE_FILE) or ""
    fields = dict(line.split(" ", 1) for line in text.splitlines()[1:] if " " in line)
    version = fields.get("version", "")
    if not text.startswith(_FIRST_LINE + "\n") or not version.isdecimal():
        raise Corruption(f"{folder}/{STORE_FILE} at byte 0: not the description of a store")
    if int(version) > FOLDER_VERSION:
        raise StoreVersion(
            f"{folder}: a store of format version {version}; "
            f"this package reads up to {FOLDER_VERSION}, so use a newer one"
        )
    if int(version) < FOLDER_VERSION_MIN:
        raise Corruption(f"{folder}/{STORE_FILE}: there is no format version {version}")
    try:
        store_id = bytes.fromhex(fields.get("id", ""))
    except ValueError:
        store_id = b""
    # Compared as a whole: a flipped bit anywhere in the file is noticed.
    if len(store_id) != LOG_STORE_ID_BYTES or text != _description(store_id, int(version)):
        raise Corruption(f"{folder}/{STORE_FILE}: the description, or the id in it, is damaged")
    return store_id


# --- the state of the index: "clean|dirty BOOT FILE SIZE" ---


def index_is_usable(folder: StoreFolder) -> bool:
    """Return whether the tables of the index have everything that was written to them."""
    words = (folder.read_text(STATE_FILE) or "").split()
    disk, path = folder.disk, f"{folder}/{INDEX}"
    identity = disk.engine_identity(path)
    # [clean or dirty][boot id][device and inode of the tables][their size].
    if len(words) != 4 or not identity or words[2] != identity or not words[3].isdecimal():
        return False
    # LMDB maps the file: reading beyond its end would kill the process (SIGBUS).
    if disk.engine_bytes(path) < int(words[3]):
        return False
    boot = disk.boot_id()
    # Dirty in this boot: the process died, and the kernel kept what it wrote.
    return words[0] == "clean" or (words[0] == "dirty" and boot != "" and words[1] == boot)


def index_is_in_use(folder: StoreFolder) -> bool:
    """Return whether the tables are marked as those of a store that is open for writing."""
    return (folder.read_text(STATE_FILE) or "").startswith("dirty ")


def invalidate_index(folder: StoreFolder) -> None:
    """Mark the tables of the index as unusable: the next opening makes them again."""
    folder.remove(STATE_FILE)


def mark_index(folder: StoreFolder, *, clean: bool) -> None:
    """Record durably whether the tables on disk are complete and synced.

    Raises: StoreFull, StoreFailed: it cannot be written.
    """
    disk, path = folder.disk, f"{folder}/{INDEX}"
    identity = disk.engine_identity(path) or "-"
    word = "clean" if clean else "dirty"
    text = f"{word} {disk.boot_id() or '-'} {identity} {disk.engine_bytes(path)}\n"
    # An unchanged file is not replaced, which saves two syncs.
    if folder.read_text(STATE_FILE) != text:
        folder.replace(STATE_FILE, text.encode())
