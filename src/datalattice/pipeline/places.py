"""Places: where a format reads cells from, and how long they stay there.

A place is a store's folder, a node's folder (its store is meant), or a running node. It is a few
options, parsed once, and travels to tasks as such. A process opens it as a `Source` and keeps it
open: a worker process of Spark runs many tasks one after another, and opening a store for each of
them would cost more than a small task.

What belongs to nodes is imported where one is named: Spark starts a process for each query that it
plans, and that would spend as much time on it as on all of stores and cells.

A planner chooses a root once (`Source.snapshot`); what its tasks read (inside `Source.keeping`) is
named by hashes from then on. How long that stays there is told in `leasing`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from datalattice.cells import Value
from datalattice.client import read_key, root_named
from datalattice.clock import Clock, SystemClock
from datalattice.errors import MissingData, StoreFailed, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.leasing import Keeper, Lease, NoLease, Snapshot, StreamLeases
from datalattice.pipeline.options import (
    Given,
    Refused,
    bad_option,
    count_option,
    folder_option,
    hash_of,
    text_option,
)
from datalattice.store import LEASE_SECONDS_MAX, STORE_FILE, CellStore, store_in

if TYPE_CHECKING:
    from datalattice.pipeline.remote import RemoteCells

T = TypeVar("T")

Fetch = Callable[[bytes], bytes]
"""Returns the encoding of a cell by its hash; raises MissingData."""

FetchMany = Callable[[list[bytes]], list[bytes]]
"""The same for several cells, in the order of their hashes."""

PLACE_OPTIONS: Final = ("store", "path", "node", "nodeKey", "asOf", "leaseSeconds")
"""The options of a place; `path` is what Spark passes for `load(path)`, and means `store`."""

LEASE_SECONDS: Final = 3_600
"""How long the root of a batch is leased when `leaseSeconds` does not say otherwise."""

MOVED_MAX: Final = 10
"""How often the root is asked for when each was collected before it could be held."""

OPEN_MAX: Final = 8
"""Stores and nodes that one process keeps open; the one that was asked for longest ago goes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to read: a folder or a node, and as of when.

    store: folder of a store or of a node; empty where a node is named.
    node: address of a running node; empty where a folder is named.
    as_of: a time, a pin, or a hash; empty: as it is now.
    lease_seconds: how long a root stays at least once it was chosen; 0: no lease is taken.
    node_key: file of the private key that is proved to the node; empty: a throw-away one.
    """

    store: str = ""
    node: str = ""
    as_of: str = ""
    lease_seconds: int = LEASE_SECONDS
    node_key: str = ""

    def __str__(self) -> str:
        return f"node {self.node}" if self.node else self.store


def place_option(options: Given) -> Place:
    """Return the place that the options name.

    Raises: UsageError: they name none or two, or what is named has not the form of one.
    """
    store = folder_option(options)
    node = options.get("node", _address_option, "")
    if store and node:
        raise bad_option("node", node, f"a store is named, too ({store!r}); give one of them")
    if not store and not node:
        raise UsageError(
            "option store is missing: give the folder of a store, as store or to load(), "
            "or the address of a running node as node"
        )
    node_key = options.get("nodeKey", text_option, "")
    if node_key and not node:
        raise bad_option("nodeKey", node_key, "it is proved to a node, and no node is named")
    as_of = options.get("asOf", text_option, "")
    if node and as_of and hash_of(as_of) is None:
        raise bad_option(
            "asOf",
            as_of,
            f"a node is asked for a root by its hash, 0x and {2 * HASH_BYTES} hex digits; "
            "times and pins are known to its store",
        )
    seconds = options.get("leaseSeconds", _lease_option, LEASE_SECONDS)
    return Place(store, node, as_of, seconds, node_key)


def _address_option(text: str) -> str:
    from datalattice.client import parse_address

    try:
        return str(parse_address(text))
    except UsageError as error:
        raise Refused(str(error)) from None


def _lease_option(text: str) -> int:
    accepted = f"whole seconds, up to {LEASE_SECONDS_MAX}; 0 takes no lease"
    seconds = count_option(accepted)(text)
    if seconds > LEASE_SECONDS_MAX:
        raise Refused(accepted)
    return seconds


class Source:
    """An open place: cells by hash, and the root that its options mean. It is a `Loader`.

    Made by `open_place`, which also closes it.
    """

    def __init__(self, place: Place, cells: CellStore | RemoteCells, clock: Clock) -> None:
        self.place = place
        self._cells = cells
        self._clock = clock

    def root_hash(self) -> bytes | None:
        """Return the hash of the root: the present one, or that of `asOf`; None: there is none.

        Raises: UsageError: there is no such root. StoreError, PeerUnavailable.
        """
        as_of = self.place.as_of
        if not as_of:
            return self._cells.root_hash()
        if isinstance(self._cells, CellStore):
            return root_named(self._cells, as_of)
        self._cells.reach()  # else tasks would be the first to call it
        return hash_of(as_of)

    def root(self) -> Value:
        """Return the root; None where there is none.

        Raises: MissingData: its cell is not here. Others as `root_hash`.
        """
        hash = self.root_hash()
        return None if hash is None else self.load(hash)

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell, compared with its hash; None: it is not here.

        verify: False: as the disk has it. What a node sends is compared all the same.
        Raises: Corruption: the stored bytes are damaged. PeerUnavailable: the node is not there.
        """
        if verify or not isinstance(self._cells, CellStore):
            return self._cells.get_encoding(hash)
        return self._cells.get_encoding(hash, verify=False)

    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        """Return the encodings of cells in the order of `hashes`, None for the absent ones.

        From a node they come in few messages. Else as `get_encoding`.
        """
        if verify or not isinstance(self._cells, CellStore):
            return self._cells.get_encodings(hashes)
        return self._cells.get_encodings(hashes, verify=False)

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash; what is below it is loaded when it is looked at.

        Raises: MissingData: it is not here.
        """
        return self._cells.load(hash)

    def lease(self, hash: bytes, seconds: float) -> Lease:
        """Keep a root with all below it for so many seconds, as far as the place can.

        A node does not take leases.
        Raises: MissingData: the root is not whole here. StoreFailed: it cannot be written to.
        """
        if seconds <= 0 or not isinstance(self._cells, CellStore):
            return NoLease(hash)
        try:
            return self._cells.lease(hash, seconds)
        except StoreFailed as error:
            raise StoreFailed(f"{error}; leaseSeconds=0 reads it without a lease") from error

    def snapshot(self) -> Snapshot:
        """Choose the root that the tasks of a plan read, and lease it for `leaseSeconds`.

        Raises: as `root_hash` and `lease`.
        """
        return self.planned(lambda snapshot: snapshot)

    def planned(self, plan: Callable[[Snapshot], T]) -> T:
        """Return what `plan` makes of the root, which is leased for `leaseSeconds`.

        Raises: as `root_hash`, `lease` and `settled`.
        """
        return self.settled(lambda hash: plan(self._held(hash)))

    def settled(self, work: Callable[[bytes | None], T]) -> T:
        """Return what `work` makes of the root's hash.

        Where a collection removed that root before `work` had it, it is called again with the one
        that came after it, up to `MOVED_MAX` times.
        Raises: as `root_hash`. MissingData: cells are missing all the same.
        """
        tries = 0
        while True:
            hash = self.root_hash()
            tries += 1
            try:
                return work(hash)
            except MissingData:
                if tries == MOVED_MAX or self.root_hash() == hash:  # nobody moved on: it is damaged
                    raise

    def _held(self, hash: bytes | None) -> Snapshot:
        if hash is None:
            return Snapshot(None, 0)
        return Snapshot(hash, self.lease(hash, self.place.lease_seconds).expires_ms)

    def keeping(self, snapshot: Snapshot) -> Keeper:
        """Return what keeps a snapshot beyond the planner's lease while a task reads it."""
        return Keeper(self, snapshot, self._clock)

    def stream_leases(self) -> StreamLeases:
        """Return what keeps the roots that a stream reads."""
        return StreamLeases(self.place.lease_seconds, self._clock)

    def close(self) -> None:
        """Give the store or the connection back."""
        self._cells.close()


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is open: `identity` tells a folder from another one at the same path."""

    pid: int
    identity: tuple[int, ...]
    cells: CellStore | RemoteCells


_open: dict[str, _Opened] = {}
"""What this process has open, by folder or address; what was asked for last stands at the end."""


def open_place(place: Place, clock: Clock | None = None) -> Source:
    """Return a place, open for reading; a process opens each once.

    Raises: UsageError: there is no store, or no key of `nodeKey`. StoreError: it cannot be read. A
            node is not called yet.
    """
    folder = "" if place.node else _store_folder(place.store)
    name = folder or f"{place.node} {place.node_key}"
    identity = _identity(folder, place.store) if folder else ()
    found = _open.pop(name, None)
    if found is not None and (found.pid, found.identity) != (os.getpid(), identity):
        _close(found)
        found = None
    if found is None:
        while len(_open) >= OPEN_MAX:
            _close(_open.pop(next(iter(_open))))
        cells = _store_cells(folder, place) if folder else _node_cells(place)
        found = _Opened(os.getpid(), identity, cells)
    _open[name] = found
    return Source(place, found.cells, clock or SystemClock())


def _store_cells(folder: str, place: Place) -> CellStore:
    try:
        return CellStore.open(folder, read_only=True)
    except PermissionError as error:
        raise _no_store(place.store, error) from None


def _node_cells(place: Place) -> RemoteCells:
    from datalattice.pipeline.remote import RemoteCells

    key_pair = read_key(Path(place.node_key)) if place.node_key else None
    return RemoteCells(place.node, key_pair)


def _close(opened: _Opened) -> None:
    if opened.pid == os.getpid():  # what was inherited through a fork is not ours to close
        opened.cells.close()


_SHOWN_CHARS: Final = 300


def _store_folder(path: str) -> str:
    """Return the folder of the store: the given one, or `store` in a node's folder."""
    try:
        return os.path.realpath(store_in(path) or path)
    except (OSError, ValueError) as error:  # too long, not to be looked into, a NUL in it
        raise _no_store(path, error) from None


def _identity(folder: str, given: str) -> tuple[int, ...]:
    """Return what tells a store from another one that was at the same path before."""
    try:
        found = (Path(folder) / STORE_FILE).stat()
    except OSError as error:
        raise _no_store(given, error) from None
    # A copy that is put in its place may get the same number, and keep the time of its content.
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _no_store(given: str, error: OSError | ValueError) -> UsageError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    shown = given[:_SHOWN_CHARS]
    return UsageError(f"option store={shown!r} is not the folder of a store: {reason}")


def encodings(source: Source, *, verify: bool = True) -> Fetch:
    """Return the function that gets the encoding of a cell by its hash."""

    def fetch(hash: bytes) -> bytes:
        encoding = source.get_encoding(hash, verify=verify)
        if encoding is None:
            raise MissingData([hash])
        return encoding

    return fetch


def many_encodings(source: Source, *, verify: bool = True) -> FetchMany:
    """Return the function that gets the encodings of several cells by their hashes."""

    def fetch(hashes: list[bytes]) -> list[bytes]:
        found = source.get_encodings(hashes, verify=verify)
        encodings = [encoding for encoding in found if encoding is not None]
        if len(encodings) < len(found):
            raise MissingData([hashes[found.index(None)]])
        return encodings

    return fetch
