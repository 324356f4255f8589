"""Opening: opens a folder's store for reading, or for writing by the running node or this process.

A store has one writer; while a node runs, the node is the writer. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

from datalattice.cells import Value
from datalattice.client.control import (
    ControlClient,
    connect,
)
from datalattice.client.folder import (
    VARIABLE_PREFIX,
    Folder,
    OwnKeys,
    read_key_pairs,
    read_keys_or_none,
)
from datalattice.errors import (
    Corruption,
    DataLoss,
    MissingData,
    StoreError,
    StoreFailed,
    StoreLocked,
    UsageError,
)
from datalattice.store import (
    CACHE_BYTES_MAX,
    CellStore,
    RealDisk,
    Store,
    parse_time,
    wait_for_lock,
    write_error,
)

if TYPE_CHECKING:
    from datalattice.client.settings import NodeConfig
    from datalattice.sync import LatticeReplica

T = TypeVar("T")

LOCK_WAIT_S: Final = 10.0
"""Default wait of a write for the write of another process."""

LOCK_POLL_S: Final = 0.02
"""Pause before a reader tries again to open a store that another process repairs."""

_OFFLINE: Final[ContextVar[bool]] = ContextVar("offline", default=False)
_WAIT_S: Final[ContextVar[float | None]] = ContextVar("wait_s", default=None)

_log = logging.getLogger("datalattice.client")


@contextmanager
def offline(chosen: bool = True) -> Iterator[None]:
    """Within the context, writes without a node do not ask a peer first, if `chosen`."""
    token = _OFFLINE.set(chosen)
    try:
        yield
    finally:
        _OFFLINE.reset(token)


def accepts_unasked(folder: Folder) -> bool:
    """Return whether the user accepts writes to a folder before a peer was asked."""
    if _OFFLINE.get():
        return True
    config = _settings(folder)
    return config is not None and config.accept_unfenced


def moved_wait_s(folder: Folder) -> float:
    """Return how many seconds a write to a copied, restored or moved folder waits for a peer."""
    from datalattice.client.settings import NodeConfig

    return (_settings(folder) or NodeConfig()).fence_moved_wait_ms / 1e3


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """Within the context, writes wait so many seconds for other processes that write."""
    token = _WAIT_S.set(seconds)
    try:
        yield
    finally:
        _WAIT_S.reset(token)


def chosen_wait_s(default: float) -> float:
    """Return how many seconds a write waits for other processes: of `waiting`, else `default`."""
    chosen = _WAIT_S.get()
    return default if chosen is None else chosen


def node_or_store(folder: Folder, *, fenced: bool = False) -> ControlClient | CellStore:
    """Return a client of the running node, else the store; wait for another process that writes.

    fenced: whether the folder's owners will be written for: then the peers in its settings are
            asked first for the owners' data.
    Raises: NoSigningKey: the folder has no key. StoreLocked: a process other than a node wrote all
            the time. DataLoss: acknowledged commits of the store are gone. As `ask_peers`.
    """
    client = connect(folder.path)
    if client is not None:
        return client
    keys = read_key_pairs(folder)  # first: without a key no store is made

    def attempt() -> ControlClient | CellStore:
        return connect(folder.path) or CellStore.open(folder.store_path)

    found = in_line(folder, attempt, chosen_wait_s(LOCK_WAIT_S))
    if not isinstance(found, ControlClient):
        try:
            check_writable(folder, found, keys, fenced=fenced)
        except BaseException:
            found.close()
            raise
    return found


def in_line(folder: Folder, attempt: Callable[[], T], wait_s: float) -> T:
    """Call `attempt`, which opens the store of a folder for writing, until it returns; return that.

    It waits in line with other processes that write there.
    Raises: StoreLocked: others wrote for `wait_s`. StoreVersion: the folder has a newer format.
    """
    raise_format(folder)
    path = str(folder.store_path)
    try:
        if not folder.store_path.is_dir():  # the line is a file in it
            # Another process may be making the store: then this one waits in line below.
            with contextlib.suppress(StoreLocked):
                return attempt()
        return wait_for_lock(RealDisk(), path, attempt, wait_s)
    except OSError as error:
        raise write_error(error, path) from error


def raise_format(folder: Folder) -> None:
    """Bring the parts of a folder to our versions, before something is written.

    Raises: StoreVersion: one is newer. As `guard_folder`.
    """
    # "Commands that write refuse a newer folder, too." (docs/node.md "Upgrades"); readers do not
    # need the module.
    from datalattice.client.upgrading import PARTS, check_format, guard_folder

    if check_format(folder.path) != PARTS:
        guard_folder(folder.path)


def check_writable(folder: Folder, store: CellStore, keys: OwnKeys, *, fenced: bool) -> None:
    """Check a store before its first write after each opening.

    fenced: whether its owners will be written for.
    Raises: as `ask_first`, if `fenced`. DataLoss: acknowledged commits are gone.
    """
    # The folder may be a copy, so peers are asked what its owners wrote elsewhere
    # (docs/design/identity.md).
    if fenced:
        ask_first(folder, store, keys)
    _check_loss(store)


def ask_first(folder: Folder, store: CellStore, keys: OwnKeys) -> None:
    """Ask the peers in a folder's settings for its owners' data, and merge that into the store.

    Raises: as `ask_peers`. UsageError: a setting is invalid.
    """
    config = _settings(folder)
    if config is None or not config.peers:
        store.place().note()  # records the location, so that a later copy is detected
        return
    from datalattice.client.fence import ask_peers

    # With `--offline` the user takes the risk of a fork, and the command prints the warning.
    is_offline = _OFFLINE.get()
    unasked = ask_peers(folder, store, keys, config, offline=is_offline)
    if unasked is not None and not is_offline:
        _log.warning(unasked)


def _settings(folder: Folder) -> NodeConfig | None:
    """Return a folder's settings, None if it has none, which saves a slow import."""
    if not folder.settings_path.exists() and not any(
        name.startswith(VARIABLE_PREFIX) for name in os.environ
    ):
        return None
    from datalattice.client.settings import load_settings

    return load_settings(folder.settings_path, os.environ, {}).config


def _check_loss(store: CellStore) -> None:
    """Raise DataLoss if acknowledged commits are gone and the loss is not accepted."""
    loss = store.loss
    # Peers may know the lost records by their offsets, which new records would take.
    if loss is not None:
        raise DataLoss(
            f"{loss}; your own data cannot be written here until you accept the loss: "
            "lattice disk heal --accept-loss"
        )


@contextmanager
def explaining_missing(folder: Folder) -> Iterator[None]:
    """Within the context, turn MissingData of the store's root into Corruption with the remedy."""
    try:
        yield
    except MissingData as error:
        raise damaged_store(folder, error) from error


def damaged_store(folder: Folder, error: MissingData) -> Corruption:
    """Return the error, with its remedy, for cells that are missing below the store's root."""
    return Corruption(
        f"{folder.store_path} is damaged ({error}); `lattice disk heal` fetches them from "
        "peers, --from HOST:PORT or --from-store DIR"
    )


def open_store_reader(folder: Folder, cache_bytes: int = CACHE_BYTES_MAX) -> CellStore:
    """Return the folder's store, open for reading while others write.

    If its index has to be rebuilt, as after a copy of the folder, that is done first. A warning is
    logged if acknowledged commits are gone, which a reader then lacks.
    Raises: StoreError: it cannot be read.
    """
    store = _opened(folder, cache_bytes)
    try:
        loss = store.loss
    except Corruption as error:
        _log.warning("%s", error)
    else:
        if loss is not None:
            _log.warning("%s; readers here lack it", loss)
    return store


def _opened(folder: Folder, cache_bytes: int) -> CellStore:
    give_up_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return CellStore.open(folder.store_path, read_only=True, cache_bytes=cache_bytes)
        # A reader cannot rebuild the index: open a writer, which does, then try again.
        except (StoreFailed, Corruption) as error:
            first = error
        try:
            CellStore.open(folder.store_path).close()
        except StoreLocked:
            # Another process is rebuilding the index, or making the store.
            if time.monotonic() >= give_up_s:
                raise first from None
            time.sleep(LOCK_POLL_S)
        except Corruption:
            raise  # the writer's error names what the log has lost; a reader sees only the index
        except StoreError:
            raise first from None  # writing is impossible too: the reader's error is the cause


@contextmanager
def reading(folder: Folder) -> Iterator[Value]:
    """Yield the newest root of the folder's store."""
    with open_store_reader(folder) as store, explaining_missing(folder):
        yield store.root()


def root_named(store: Store, text: str) -> bytes:
    """Return the hash of the root that a text names: a ref, or a time with or without `@`.

    Raises: UsageError: it is neither.
    """
    try:
        return store.resolve(text)
    except UsageError as error:
        try:
            parse_time(text, store.clock.now_ms())
        except UsageError:
            raise error from None
        return store.resolve(f"@{text}")


@contextmanager
def replica_of(folder: Folder, *, fenced: bool = False) -> Iterator[LatticeReplica]:
    """Open the store of a folder in which no node runs, and yield its replica.

    fenced: whether its owners will be written for, so that peers are asked first.
    Raises: as `CellStore.open` and `ask_first`. UsageError: a setting is invalid.
    """
    from datalattice.client.replicas import replica_on

    with CellStore.open(folder.store_path) as store:
        keys = read_keys_or_none(folder)
        if fenced and keys is not None:
            ask_first(folder, store, keys)
        with replica_on(folder, store) as replica:
            yield replica
