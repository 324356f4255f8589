"""Read targets: the store or node that a format reads from, and the root that it reads.

A `ReadTarget` is a store's folder, a node's folder or the address of a running node, parsed once
from the options; tasks receive a copy. `open_target` opens it. Each process keeps up to `OPEN_MAX`
stores and connections open, because a Spark worker runs many tasks one after another, and opening a
store takes longer than a small task.

The planner chooses a root once (`OpenTarget.snapshot`). Tasks read cells below it by hash, and keep
it leased inside `OpenTarget.keeping` (see `leasing`).

Source: docs/spark.md "Where to read".
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from datalattice.cells import CellRange, FetchCell, FetchCells, Value, none_missing, whole_cells
from datalattice.client import read_key, root_named
from datalattice.clock import Clock, SystemClock
from datalattice.errors import MissingData, StoreFailed, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.leasing import Keeper, LeasedRoot, NoLease, RootLease
from datalattice.pipeline.options import (
    Given,
    bad_option,
    checked_option,
    count_option,
    folder_option,
    hash_of,
    option,
    parse_option_record,
    text_option,
)
from datalattice.store import STORE_FILE, CellStore, store_in
from datalattice.store.kept import LEASE_SECONDS_MAX

if TYPE_CHECKING:
    from datalattice.pipeline.remote import RemoteCells

T = TypeVar("T")

LEASE_SECONDS: Final = 3_600
"""Default of `leaseSeconds`: how long a batch read leases its root."""

MOVED_MAX: Final = 10
"""How often a planner tries again with the current root, if a collection removed the last one."""

OPEN_MAX: Final = 8
"""Stores and connections that one process keeps open; the least recently used is closed first."""


def _address(text: str) -> str:
    from datalattice.client import parse_address

    return str(parse_address(text))


_lease_option: Final = count_option(
    f"whole seconds, up to {LEASE_SECONDS_MAX}; 0 takes no lease", 0, LEASE_SECONDS_MAX
)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """A folder or a node to read from, and the root to read.

    | option | meaning | default |
    |---|---|---|
    | `store` | the folder of a store or of a node; also the argument of `load` | this or `node` is
      required |
    | `node` | address of a running node: `tcp://host:port`, `tls://host:port` ([node.md](node.md))
      | |
    | `asOf` | for batches, a past root: a time, a pin, `HEAD~1`, a hash ([history.md](history.md))
      | the current root |
    | `leaseSeconds` | how long a batch's root is leased at least; 0 takes no lease | 3600 |
    | `nodeKey` | file of the private key that authenticates to the node | a temporary key |
    """

    store: str = option("store", text_option, "")
    node: str = option("node", checked_option(_address), "")
    as_of: str = option("asOf", text_option, "")
    lease_seconds: int = option("leaseSeconds", _lease_option, LEASE_SECONDS)
    node_key: str = option("nodeKey", text_option, "")

    def __str__(self) -> str:
        return f"node {self.node}" if self.node else self.store


def read_target_option(options: Given) -> ReadTarget:
    """Return the store or node that the options name.

    Raises: UsageError: they name none or both, or a value is malformed.
    """
    target = replace(parse_option_record(ReadTarget, options), store=folder_option(options))
    store, node, as_of = target.store, target.node, target.as_of
    if store and node:
        raise bad_option("node", node, f"the option store is given as well ({store!r}); give one")
    if not store and not node:
        raise UsageError(
            "option store is missing: give the folder of a store, as store or to load(), "
            "or the address of a running node as node"
        )
    if target.node_key and not node:
        what = "it authenticates to a node; give the option node"
        raise bad_option("nodeKey", target.node_key, what)
    if node and as_of and hash_of(as_of) is None:
        raise bad_option(
            "asOf",
            as_of,
            f"a node finds roots by hash only, 0x and {2 * HASH_BYTES} hex digits; "
            "only its store knows times and pins",
        )
    return target


class OpenTarget:
    """An open `ReadTarget`: cells by hash, and the root that the options name. A `Loader`.

    Made by `open_target`, which also closes it.
    """

    def __init__(self, target: ReadTarget, cells: CellStore | RemoteCells, clock: Clock) -> None:
        self.target = target
        self._cells = cells
        self._clock = clock

    def root_hash(self) -> bytes | None:
        """Return the hash of the current root, or of the root that `asOf` names; None if empty.

        Raises: UsageError: `asOf` names no root. StoreError, PeerUnavailable.
        """
        as_of = self.target.as_of
        # Without asOf each plan reads the root that is current when it is made.
        if not as_of:
            return self._cells.root_hash()
        if isinstance(self._cells, CellStore):
            # Times and pins are in the store's history, which a node does not serve.
            return root_named(self._cells, as_of)
        # The hash is not looked up here, because the planner reads the root's cell next.
        self._cells.reach()  # fail in the planner, before any task starts
        return hash_of(as_of)

    def root(self) -> Value:
        """Return the root; None for an empty store.

        Raises: MissingData: the root's cell is not in the store. Others as `root_hash`.
        """
        hash = self.root_hash()
        return None if hash is None else self.load(hash)

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell, compared with its hash; None if the cell is absent.

        verify: False skips the comparison for a folder; a node's cells are always compared.
        Raises: Corruption: the stored bytes are damaged. PeerUnavailable.
        """
        return self._cells.get_encoding(hash, verify=verify)

    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        """Return the encodings of cells in the order of `hashes`, None for absent ones.

        A node sends them in few messages. Otherwise as `get_encoding`.
        """
        return self._cells.get_encodings(hashes, verify=verify)

    def get_cells(
        self, hashes: list[bytes], *, verify: bool = True, below: int = 0
    ) -> list[CellRange | None]:
        """Return cells as `get_encodings` does, as ranges of what was read with them.

        below: about how many bytes the cells below these have, if they are requested next.
        """
        if isinstance(self._cells, CellStore):
            return self._cells.get_cells(hashes, verify=verify, below=below)
        return whole_cells(self._cells.get_encodings(hashes))

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash; the cells below it are loaded on access.

        Raises: MissingData: the cell is absent.
        """
        return self._cells.load(hash)

    def lease(self, hash: bytes, seconds: float) -> RootLease:
        """Keep a root and everything below it for `seconds`; a node takes no leases.

        Raises: MissingData: the root is incomplete. StoreFailed: the folder is not writable.
        """
        # "A node takes no leases; it keeps unused cells for the grace of its own collections".
        if seconds <= 0 or not isinstance(self._cells, CellStore):
            return NoLease(hash)
        try:
            return self._cells.lease(hash, seconds)
        except StoreFailed as error:
            raise StoreFailed(f"{error}; leaseSeconds=0 reads it without a lease") from error

    def snapshot(self) -> LeasedRoot:
        """Choose and lease the root that a plan's tasks read. Raises: as `planned`."""
        return self.planned(lambda snapshot: snapshot)

    def planned(self, plan: Callable[[LeasedRoot], T]) -> T:
        """Return `plan(root)` for the chosen root, leased for `leaseSeconds`.

        Raises: as `root_hash`, `lease` and `settled`.
        """
        return self.settled(lambda hash: plan(self._held(hash)))

    def settled(self, work: Callable[[bytes | None], T]) -> T:
        """Return `work(root hash)`; call it again if a collection removed that root meanwhile.

        Each attempt uses the then current root, at most `MOVED_MAX` times.
        Raises: as `root_hash`. MissingData: cells are missing although the root did not move.
        """
        tries = 0
        while True:
            hash = self.root_hash()
            tries += 1
            try:
                return work(hash)
            except MissingData:
                # The root is the same as before, so its cells are lost and a retry cannot help.
                if tries == MOVED_MAX or self.root_hash() == hash:
                    raise

    def _held(self, hash: bytes | None) -> LeasedRoot:
        if hash is None:
            return LeasedRoot(None, 0)
        # Never released: Spark does not report the end of the last task. The lease expires.
        return LeasedRoot(hash, self.lease(hash, self.target.lease_seconds).expires_ms)

    def keeping(self, snapshot: LeasedRoot) -> Keeper:
        """Return the context that extends the planner's lease while a task reads the root."""
        return Keeper(self, snapshot, self._clock)

    def close(self) -> None:
        """Close the store or the connection."""
        self._cells.close()


@dataclass(frozen=True, slots=True)
class _OpenCells:
    """An open store or connection.

    `identity` differs for a store that was put at the same path later.
    """

    pid: int
    identity: tuple[int, ...]
    cells: CellStore | RemoteCells


_open: dict[str, _OpenCells] = {}
"""Open stores and connections of this process, by folder or address; the last used is the last."""


def open_target(target: ReadTarget, clock: Clock | None = None) -> OpenTarget:
    """Return the target open for reading, from this process's cache if it is there.

    Raises: UsageError: there is no store, or no key of `nodeKey`. StoreError: the store cannot be
            read. A node is contacted with the first read, not here.
    """
    folder = "" if target.node else _store_folder(target.store)
    name = folder or f"{target.node} {target.node_key}"
    # A connection has no identity: any node may listen at the address.
    identity = _identity(folder, target.store) if folder else ()
    # Removed and put back, so that the dictionary has the order of use.
    found = _open.pop(name, None)
    # After a fork the descriptors and locks belong to the parent. Also, another store may have been
    # put at the path.
    if found is not None and (found.pid, found.identity) != (os.getpid(), identity):
        _close(found)
        found = None
    if found is None:
        # Each open store maps its index into the address space and holds descriptors.
        while len(_open) >= OPEN_MAX:
            _close(_open.pop(next(iter(_open))))
        cells = _store_cells(folder, target) if folder else _node_cells(target)
        found = _OpenCells(os.getpid(), identity, cells)
    _open[name] = found
    return OpenTarget(target, found.cells, clock or SystemClock())


def _store_cells(folder: str, target: ReadTarget) -> CellStore:
    try:
        # "Read-only, beside the one process that writes to it" (docs/spark.md).
        return CellStore.open(folder, read_only=True)
    except PermissionError as error:
        raise _no_store(target.store, error) from None


def _node_cells(target: ReadTarget) -> RemoteCells:
    from datalattice.pipeline.remote import RemoteCells

    key_pair = read_key(Path(target.node_key)) if target.node_key else None
    return RemoteCells(target.node, key_pair)


def _close(opened: _OpenCells) -> None:
    if opened.pid == os.getpid():  # after a fork the parent still uses what it opened
        opened.cells.close()


@atexit.register
def _close_all() -> None:
    while _open:
        _close(_open.popitem()[1])


_SHOWN_CHARS: Final = 300


def _store_folder(path: str) -> str:
    """Return the folder of the store: the given one, or `store` in a node's folder."""
    try:
        return os.path.realpath(store_in(path) or path)
    except (OSError, ValueError) as error:  # path too long, no permission, a NUL in it
        raise _no_store(path, error) from None


def _identity(folder: str, given: str) -> tuple[int, ...]:
    """Return numbers that change if another store is put at the same path."""
    try:
        found = (Path(folder) / STORE_FILE).stat()
    except OSError as error:
        raise _no_store(given, error) from None
    # A copy may have the inode and the mtime of the store that it replaces, but not its ctime.
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _no_store(given: str, error: OSError | ValueError) -> UsageError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    shown = given[:_SHOWN_CHARS]
    return UsageError(f"option store={shown!r} is not the folder of a store: {reason}")


def encodings(source: OpenTarget, *, verify: bool = True) -> FetchCell:
    """Return the function that gets the encoding of a cell by its hash."""

    def fetch(hash: bytes) -> bytes:
        encoding = source.get_encoding(hash, verify=verify)
        if encoding is None:
            raise MissingData([hash])
        return encoding

    return fetch


def many_encodings(source: OpenTarget, *, verify: bool = True) -> FetchCells:
    """Return the function that gets the encodings of several cells by their hashes."""

    def fetch(hashes: list[bytes], below: int) -> list[CellRange]:
        return none_missing(hashes, source.get_cells(hashes, verify=verify, below=below))

    return fetch
