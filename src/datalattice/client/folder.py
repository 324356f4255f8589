"""Folder: the files of a node.

DIR/identity.key    the private key that the node proves to peers, readable by its user only
DIR/keys/*.key      the private keys of owners it writes for; the commands write under `owner.key`
DIR/store/          the cells and the root
DIR/node.toml       settings of the node
DIR/edit.lock       held while a process edits through a running node, makes keys or migrates
DIR/edit.turn       held by the process that edits next
DIR/names.json      local names of owners (`client.owners`)
DIR/name            the node's name, for people

A folder with one key has it as `identity.key`: the same key then proves the node and owns its data.
In older folders that file is called `key`.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from datalattice.crypto import SEED_BYTES, KeyPair, KeyRing
from datalattice.errors import AlreadyExists, NoSigningKey, StoreLocked, UsageError
from datalattice.lattice import MergeContext, verify_did
from datalattice.store import Lock, RealDisk, replace_file, write_error

HOME_VARIABLE: Final = "DATALATTICE_HOME"
DEFAULT_FOLDER: Final = "~/.datalattice"
VARIABLE_PREFIX: Final = "LATTICE_"
"""Prefix of the environment variables that set what `node.toml` does not."""

KEY_FILE_MODE: Final = 0o600
_KEY_PREFIX: Final = "ed25519-seed:"
KEY_FILE_BYTES_MAX: Final = 1_024  # a key file has 78 bytes
"""Longest file that is read as a key."""

KEY_SUFFIX: Final = ".key"
OWNER_NAME: Final = "owner"
"""Name of the default owner's key if the identity is a different key."""

TURN_POLL_S: Final = 0.001
"""Pause before the lock of editors is tried again; it doubles up to `TURN_POLL_MAX_S`."""

TURN_POLL_MAX_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Folder:
    """A node's folder."""

    path: Path

    @property
    def identity_path(self) -> Path:
        """The file of the key that the node proves to peers."""
        named, older = self.path / "identity.key", self.path / "key"
        # "In older folders it is called `key`" (docs/node.md "Files in a node's folder").
        return older if older.exists() and not named.exists() else named

    @property
    def key_path(self) -> Path:
        """The file of the key that commands write under: `owner.key`, else the identity's."""
        owner = self.named_key_path(OWNER_NAME)
        return owner if owner.exists() else self.identity_path

    @property
    def keys_path(self) -> Path:
        """The folder of the private keys of owners."""
        return self.path / "keys"

    def named_key_path(self, name: str) -> Path:
        """Return the file of an owner's private key."""
        return self.keys_path / f"{name}{KEY_SUFFIX}"

    def named_key_paths(self) -> list[Path]:
        """Return the files of the private keys of owners, in the order of their names."""
        return sorted(self.keys_path.glob(f"*{KEY_SUFFIX}"))  # the same order on every system

    @property
    def store_path(self) -> Path:
        """The folder of the cell store."""
        return self.path / "store"

    @property
    def edit_lock_path(self) -> Path:
        """The file that is locked while a process edits through a running node."""
        return self.path / "edit.lock"

    @property
    def names_path(self) -> Path:
        """The file of the local names of owners."""
        return self.path / "names.json"

    @property
    def name_path(self) -> Path:
        """The file of the node's name."""
        return self.path / "name"

    @property
    def settings_path(self) -> Path:
        """The file of the node's settings."""
        return self.path / "node.toml"


def read_node_name(folder: Folder) -> str:
    """Return the name of a folder's node; "" if it has none."""
    try:
        return folder.name_path.read_text("utf-8").rstrip("\n")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder.name_path} cannot be read as a name: {error}") from error


def write_node_name(folder: Folder, name: str) -> None:
    """Name the node of a folder, durably. Raises: StoreFull, StoreFailed: the disk refuses."""
    replace_file(RealDisk(), str(folder.name_path), [f"{name}\n".encode()])


def folder_of(given: str | os.PathLike[str] | None = None) -> Folder:
    """Return the folder at a path; without one, that of the environment, else the default.

    Raises: UsageError: the path, or one above it, is not a folder.
    """
    # "None: `DATALATTICE_HOME`, else `~/.datalattice`" (docs/design/front-door.md "Open").
    # An empty variable counts as unset.
    chosen = given if given is not None else os.environ.get(HOME_VARIABLE) or DEFAULT_FOLDER
    path = Path(chosen).expanduser()
    for part in (path, *path.parents):
        # Checked here, where the error can name the file that is in the way.
        if part.exists() and not part.is_dir():
            raise UsageError(f"{part} is not a folder; name a node's folder with --dir")
    return Folder(path)


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """The keys of a folder.

    identity: proves the node to peers and owns its `:local` slot.
    owner:    the default owner, which commands write for; the identity if there is no other key.
    ring:     the keys of all owners that the node writes for, besides the identity.
    """

    identity: KeyPair
    owner: KeyPair
    ring: KeyRing

    @classmethod
    def of(cls, key_pair: KeyPair) -> OwnKeys:
        """Return keys in which one key is identity and owner."""
        return cls(key_pair, key_pair, KeyRing(key_pair))

    def in_order(self) -> tuple[KeyPair, ...]:
        """Return the owners' keys, the default owner's first."""
        return (self.owner, *(pair for pair in self.ring if pair != self.owner))

    def context(self) -> MergeContext:
        """Return the context in which edits of the folder merge and sign."""
        return MergeContext(key_pair=self.identity, verifier=verify_did, keys=self.ring)


def read_key_pairs(folder: Folder) -> OwnKeys:
    """Return the keys of a folder.

    Raises: NoSigningKey: it has no identity. UsageError: a key file is readable by others, or is
            not a key file.
    """
    identity = read_key(folder.identity_path)
    ring = KeyRing(*(read_key(path) for path in folder.named_key_paths()))
    return OwnKeys(identity, read_key(folder.key_path), ring)


def read_keys_or_none(folder: Folder) -> OwnKeys | None:
    """Return the keys of a folder, None if it has no identity: then it can read, but not write.

    Raises: UsageError: a key file is readable by others, or is not a key file.
    """
    return read_key_pairs(folder) if folder.identity_path.exists() else None


def read_key(path: Path) -> KeyPair:
    """Return the key pair in a key file.

    Raises: NoSigningKey: there is no such file.
            UsageError: others can read it, or it is not a key file.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open("rb") as file:
            data = file.read(KEY_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NoSigningKey(f"no key at {path}; make one with `lattice key new`") from error
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror}") from error
    # "One that others can read is refused." (docs/cli.md "Keys and values"): they may have copied
    # it.
    if mode & 0o077:
        raise UsageError(
            f"the key file {path} can be read by others (mode {mode:04o}); run: chmod 600 {path}"
        )
    text = data.decode("ascii", "replace").strip()
    try:
        seed = bytes.fromhex(text.removeprefix(_KEY_PREFIX))
    except ValueError:
        seed = b""  # refused below, as any other content
    if (
        len(data) > KEY_FILE_BYTES_MAX
        or not text.startswith(_KEY_PREFIX)
        or len(seed) != SEED_BYTES
    ):
        raise UsageError(
            f"{path} is not a key file: expected {_KEY_PREFIX} and {2 * SEED_BYTES} hex digits"
        )
    return KeyPair(seed)


def write_key(path: Path, key_pair: KeyPair) -> None:
    """Write a key file that only its owner can read; an existing file is never replaced.

    Raises: AlreadyExists: there is a file already. UsageError: the folder cannot be written to.
    """
    disk = RealDisk()
    # The process id keeps two first writers from sharing the file.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        disk.create_folder(str(path.parent))
        # Created with its mode, so that no other user can read it at any moment.
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, KEY_FILE_MODE)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{_KEY_PREFIX}{key_pair.seed.hex()}\n")
            file.flush()
            os.fsync(file.fileno())  # on disk before it has its name
        # Unlike a rename, a link never replaces a file; and the key appears complete.
        path.hardlink_to(fresh)
        disk.sync_folder(str(path.parent))  # makes the new name durable
    except FileExistsError as error:
        raise AlreadyExists(f"there is a key at {path} already; it was not replaced") from error
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be written: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)  # the key keeps its other name


def take_turn(path: str, wait_s: float, awaited: str) -> Lock:
    """Wait for a lock file that serializes writers, and take it.

    awaited: names the other holder in the text of the error.
    Raises: StoreLocked: others held it for `wait_s`. StoreFull, StoreFailed: the lock file cannot
            be made.
    """
    give_up_s = time.monotonic() + wait_s
    pause_s = TURN_POLL_S
    while True:
        try:
            return RealDisk().lock(path)
        except StoreLocked:
            # Polled: waiting inside the system could not be limited to `wait_s`.
            if time.monotonic() >= give_up_s:
                raise StoreLocked(
                    f"waited {wait_s:g} s in vain for another {awaited} ({path})"
                ) from None
        except OSError as error:
            raise write_error(error, path) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, TURN_POLL_MAX_S)
