"""Opening: a folder's store for reading, and its writer: the running node, or this process.

A store has one writer, and while a node runs that is the node. Readers open it beside them.
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
from datalattice.client.folder import VARIABLE_PREFIX, Folder, OwnKeys, read_keys, read_keys_or_none
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
"""How long a write waits for another process to finish its own."""

LOCK_POLL_S: Final = 0.02

_OFFLINE: Final[ContextVar[bool]] = ContextVar("offline", default=False)
_WAIT_S: Final[ContextVar[float | None]] = ContextVar("wait_s", default=None)

_log = logging.getLogger("datalattice.client")


@contextmanager
def offline(chosen: bool = True) -> Iterator[None]:
    """Have what is written meanwhile without a node be written without having asked a peer."""
    token = _OFFLINE.set(chosen)
    try:
        yield
    finally:
        _OFFLINE.reset(token)


def accepts_unasked(folder: Folder) -> bool:
    """Return whether the user accepts writes without having asked a peer, here and now."""
    if _OFFLINE.get():
        return True
    config = _settings(folder)
    return config is not None and config.accept_unfenced


def moved_wait_s(folder: Folder) -> float:
    """Return how long a write in a copied, restored or moved folder waits for a peer's answer."""
    from datalattice.client.settings import NodeConfig

    return (_settings(folder) or NodeConfig()).fence_moved_wait_ms / 1e3


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """Have what is written meanwhile wait so long for another process that writes."""
    token = _WAIT_S.set(seconds)
    try:
        yield
    finally:
        _WAIT_S.reset(token)


def chosen_wait_s(default: float) -> float:
    """Return how long a write waits for another process: what `waiting` says, else the default."""
    chosen = _WAIT_S.get()
    return default if chosen is None else chosen


def node_or_store(folder: Folder, *, fenced: bool = False) -> ControlClient | CellStore:
    """Return the running node, else the store; wait for another process that writes.

    fenced: the owners of the folder's keys will be written for, so the store has what the peers in
            the folder's settings have of them, as far as one can be reached.
    Raises: NoSigningKey: the folder has no key. StoreLocked: another process than a node goes on
            writing. DataLoss: acknowledged commits of the store are gone. As `ask_peers`.
    """
    client = connect(folder.path)
    if client is not None:
        return client
    keys = read_keys(folder)  # before a store is made for nothing

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
    """Return what `attempt`, which opens the store of a folder for writing, returns.

    It waits in line with other processes that write there.
    Raises: StoreLocked: another process wrote all the time. StoreVersion: the folder is newer.
    """
    raise_format(folder)
    path = str(folder.store_path)
    try:
        if not folder.store_path.is_dir():  # a line is a file in it
            with contextlib.suppress(StoreLocked):
                return attempt()
        return wait_for_lock(RealDisk(), path, attempt, wait_s)
    except OSError as error:
        raise write_error(error, path) from error


def raise_format(folder: Folder) -> None:
    """Have the parts of a folder at our versions before something is written.

    Raises: StoreVersion: one is newer. As `guard_folder`.
    """
    # Loaded here: reading needs none of it.
    from datalattice.client.upgrading import PARTS, check_format, guard_folder

    if check_format(folder.path) != PARTS:
        guard_folder(folder.path)


def check_writable(folder: Folder, store: CellStore, keys: OwnKeys, *, fenced: bool) -> None:
    """Check a store that was opened, also anew, before something of its owners is written.

    Raises: as `ask_first`, where owners are written for (`fenced`). DataLoss: acknowledged commits
            are gone.
    """
    # This folder may be a copy, so a peer is asked what its owners wrote elsewhere
    # (docs/design/identity.md).
    if fenced:
        ask_first(folder, store, keys)
    _check_loss(store)


def ask_first(folder: Folder, store: CellStore, keys: OwnKeys) -> None:
    """Have the peers in a folder's settings say what its owners have written elsewhere.

    Raises: as `ask_peers`. UsageError: a setting is not what it should be.
    """
    config = _settings(folder)
    if config is None or not config.peers:
        store.place().note()  # so that a copy is noticed once there are peers
        return
    from datalattice.client.fence import ask_peers

    # `--offline` of a command: the user takes the risk of a fork, and the command says so.
    is_offline = _OFFLINE.get()
    unasked = ask_peers(folder, store, keys, config, offline=is_offline)
    if unasked is not None and not is_offline:
        _log.warning(unasked)


def _settings(folder: Folder) -> NodeConfig | None:
    """Return a folder's settings, None where there are none: reading them takes long to import."""
    if not folder.settings_path.exists() and not any(
        name.startswith(VARIABLE_PREFIX) for name in os.environ
    ):
        return None
    from datalattice.client.settings import load_settings

    return load_settings(folder.settings_path, os.environ, {}).config


def _check_loss(store: CellStore) -> None:
    """Check that no acknowledged commits are gone: what is written next would take their offsets.

    Raises: DataLoss: some are, and that is not accepted.
    """
    loss = store.loss
    # Records that were acknowledged have offsets that peers know: new ones must not take them.
    if loss is not None:
        raise DataLoss(
            f"{loss}; your own data cannot be written here until you accept that: "
            "lattice disk heal --accept-loss"
        )


@contextmanager
def explaining_missing(folder: Folder) -> Iterator[None]:
    """Raise `damaged` where cells are missing below the root of the store."""
    try:
        yield
    except MissingData as error:
        raise damaged(folder, error) from error


def damaged(folder: Folder, error: MissingData) -> Corruption:
    """Return the error, with the remedy, for cells that are missing below the root of the store."""
    return Corruption(
        f"{folder.store_path} is damaged ({error}); `lattice disk heal` fetches them from "
        "peers, --from HOST:PORT or --from-store DIR"
    )


def open_reader(folder: Folder, cache_bytes: int = CACHE_BYTES_MAX) -> CellStore:
    """Return the folder's store, open for reading beside its writer.

    Where its index must be made again first, as after a copy of the folder, that is done. When
    acknowledged commits are gone, that is logged: what is read lacks them.
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
        # A reader cannot make the index again: a writer does it, once, and the reader opens anew.
        except (StoreFailed, Corruption) as error:
            first = error
        try:
            CellStore.open(folder.store_path).close()
        except StoreLocked:
            # Another process repairs it already, or is making the store.
            if time.monotonic() >= give_up_s:
                raise first from None
            time.sleep(LOCK_POLL_S)
        except Corruption:
            raise  # it names what the log has lost, of which the reader sees an old index only
        except StoreError:
            raise first from None  # it cannot be written either: the reader's trouble is the one


@contextmanager
def reading(folder: Folder) -> Iterator[Value]:
    """Give the root value of the folder's store as it is now."""
    with open_reader(folder) as store, explaining_missing(folder):
        yield store.root()


def root_named(store: Store, text: str) -> bytes:
    """Return the hash of the root that a text names: a ref, or a time without its `@`.

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
    """Open the store of a folder in which no node runs, and give the replica on it.

    fenced: owners are written for, so peers are asked first.
    Raises: as `CellStore.open` and `ask_first`. UsageError: a setting is not what it should be.
    """
    from datalattice.client.replicas import replica_on

    with CellStore.open(folder.store_path) as store:
        keys = read_keys_or_none(folder)
        if fenced and keys is not None:
            ask_first(folder, store, keys)
        with replica_on(folder, store) as replica:
            yield replica
