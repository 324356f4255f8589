"""Bound: what the handles of one open node share: its root, its owners, its batch and reports.

Length: one object reads, writes and batches, in short methods that share its state.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from importlib.util import find_spec
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from datalattice.apps import Owner
from datalattice.apps.dlfs import Drive
from datalattice.cells import CellRange, Value, same, value_hash
from datalattice.client.edits import Editor, EditRoot, editing_context
from datalattice.client.folder import Folder, OwnKeys
from datalattice.client.gathered import ZERO_ROOT, DelayedWrites, Draft, RootWork
from datalattice.client.opendata import OpenData
from datalattice.client.owners import owner_of, owners_in, read_names, resolve_owner
from datalattice.client.uploads import ContentUpload
from datalattice.crypto import KeyPair
from datalattice.cursors import ChangeFunction, LatticeCursor, Listeners, Stream, Wake, Watched
from datalattice.errors import (
    MissingData,
    NoSigningKey,
    ReadOnly,
    StoreClosed,
    StoreFailed,
    Unavailable,
    UsageError,
)
from datalattice.lattice import MergeContext, MergeNotice, root_lattice, verify_did
from datalattice.store import Store

T = TypeVar("T")

LEASE_S: Final = 24 * 60 * 60
"""Seconds of the lease on a past root, renewed when half of them are over."""

_EVENTS_MAX: Final = 10_000
"""Most merge reports kept for `events`; beyond it the oldest are dropped."""

KEPT_TRIES: Final = 10
"""Most attempts to make a reader of rows while other writers change the root."""

_LOADED_ROWS_MAX: Final = 100_000
"""Rows of a table that are written in one edit."""

_batches: Final[ContextVar[tuple[tuple[object, Draft], ...]]] = ContextVar("batches", default=())
"""The batches that this thread or task is in, each with the `NodeBinding` that it belongs to."""


class Options(NamedTuple):
    """The arguments of `datalattice.open` after the path."""

    key: str | os.PathLike[str] | KeyPair | None
    create: bool
    read_only: bool
    as_of: str | bytes | datetime | None
    durable: str
    wait: float


def _tables() -> Any:
    """Return the package `arrow`. Raises: UsageError: pyarrow is missing."""
    # Checked at the call: the first row may be read in code that does not know of the extra.
    for name in ("pyarrow", "numpy"):
        if find_spec(name) is None:
            raise UsageError(f"tables need {name}: pip install 'datalattice[arrow]'")
    from datalattice import arrow

    return arrow


class FormerRoot:
    """A root of the past, leased as long as a node shows it.

    Raises: MissingData: the root is not complete in the store.
    """

    def __init__(self, store: Store, hash: bytes) -> None:
        # Before the root is read, so that no collection comes in between.
        self._lease = store.lease(hash, LEASE_S)
        self._renew_s = time.monotonic() + LEASE_S / 2
        self._root = store.load(hash)

    def root(self) -> Value:
        """Return the root."""
        self.renew()
        return self._root

    def renew(self) -> None:
        """Renew the lease once half of its time is over, so that a node open for days keeps it."""
        if time.monotonic() >= self._renew_s:
            self._lease.renew(LEASE_S)
            self._renew_s = time.monotonic() + LEASE_S / 2

    def release(self) -> None:
        """End the lease."""
        self._lease.release()


class Holdings:
    """The resources of an open node, released by `close`."""

    def __init__(
        self, data: OpenData, delayed: DelayedWrites | None, past: FormerRoot | None
    ) -> None:
        self.data: Final = data
        self.delayed: Final = delayed
        self.past: Final = past
        self.is_closed = False
        self._others: list[Callable[[], None]] = []
        self.abandonment: weakref.finalize[..., Any] | None = None
        """The finalizer that hands over an unclosed node for closing; it refers to this object."""
        _unclosed.add(self)

    def also_close(self, close: Callable[[], None]) -> None:
        """Call `close` when the node is closed."""
        self._others.append(close)

    @property
    def has_unflushed(self) -> bool:
        """Whether a write is not durable yet."""
        return self.delayed is not None and self.delayed.has_writes

    def close(self) -> None:
        """Make all writes durable and release everything. Closing twice is allowed."""
        if self.is_closed:
            return
        # "Leaving `with`, or `close()`, flushes and gives the write turn back; twice is fine"
        # (docs/design/front-door.md "Open").
        try:
            if self.delayed is not None:
                self.delayed.sync()
        finally:
            self.is_closed = True
            _unclosed.discard(self)
            if self.abandonment is not None:
                self.abandonment.detach()
            if self.past is not None:
                self.past.release()
            for close in self._others:
                close()
            self.data.close()


_unclosed: Final[set[Holdings]] = set()
_abandoned: Final[deque[Holdings]] = deque()


def close_abandoned() -> None:
    """Close nodes that Python freed without `close`.

    Their finalizers only queue them: a finalizer may run anywhere, with any lock held.
    """
    while _abandoned:
        _abandoned.popleft().close()


@atexit.register
def _close_at_exit() -> None:
    for held in list(_unclosed):
        # "with a `ResourceWarning` if it held unflushed writes" (docs/design/front-door.md "Open")
        if held.has_unflushed:
            warnings.warn("a node with unflushed writes was not closed", ResourceWarning, 1)
        held.close()


class Reports:
    """The latest merge reports, numbered, and the listeners that new ones wake."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, MergeNotice]] = deque(maxlen=_EVENTS_MAX)
        self._numbers = count()
        self._wakes = Listeners[[]]()
        self.subscribe = self._wakes.add

    def add(self, report: MergeNotice) -> None:
        """Keep a report and wake the listeners."""
        self._kept.append((next(self._numbers), report))
        self._wakes.tell()

    def since(self, number: int) -> list[tuple[int, MergeNotice]]:
        """Return the reports whose numbers are greater than `number`, each with its number."""
        # A copy, because another thread may add a report meanwhile.
        return [one for one in list(self._kept) if one[0] > number]


class Events(Stream[MergeNotice]):
    """Reports of merges made in this process: superseded writes, dropped entries, forks."""

    def __init__(self, reports: Reports, *, wait: bool, timeout: float | None) -> None:
        super().__init__(reports, wait=wait, timeout=timeout)
        self._reports: Final = reports
        self._last = -1

    def _fetch(self) -> list[MergeNotice]:
        found = self._reports.since(self._last)
        self._last = found[-1][0] if found else self._last
        return [report for _, report in found]


class LiveRoot(LatticeCursor):
    """The cursor on the newest root. Each change at or below it is one write."""

    __slots__ = ("_binding",)

    def __init__(self, binding: NodeBinding) -> None:
        super().__init__(root_lattice(), binding.context, strict=True)
        self._binding: Final = binding

    @property
    def value(self) -> Value:
        """The newest root."""
        return self._read()

    def sync(self) -> Value:
        """Make all writes of this node durable; return the root."""
        self.push()
        return self._read()

    def push(self) -> None:
        """Make all writes of this node durable."""
        self._binding.sync()

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after every change by any process; return a function that stops the calls."""
        return self._binding.subscribe(wake)

    def _watched(self) -> Watched:
        return self

    def _read(self) -> Value:
        root = self._binding.present()
        return ZERO_ROOT if root is None else root

    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        return self._binding.perform(lambda cursor: cursor._apply(change, is_checked=is_checked))


class NodeBinding:
    """The `Binding` of one node's handles: how they and its `LiveRoot` read and write."""

    def __init__(
        self,
        data: OpenData,
        folder: Folder | None,
        keys: OwnKeys | None,
        *,
        past: FormerRoot | None,
        is_read_only: bool,
        is_delayed: bool,
        wait_s: float,
    ) -> None:
        """past: the root of a node that shows the past; None: it shows the newest root."""
        self._data = data
        self._folder = folder
        self.keys = keys
        self._past = past
        self.is_read_only = is_read_only
        self._wait_s = wait_s
        self.reports: Final = Reports()
        self.origin: tuple[str, Options] | None = None
        """The path and the options with which the folder was opened; None: in memory."""
        self._context: MergeContext | None = None
        self._root: LiveRoot | None = None
        self._names: tuple[object, dict[str, bytes]] = (None, {})
        self._owners: tuple[Value, dict[str, bytes], list[Value]] | None = None
        self._delayed: DelayedWrites | None = None
        if is_delayed and keys is not None and not is_read_only:
            self._delayed = DelayedWrites(data, keys, self.context, wait_s)
        self.held = Holdings(data, self._delayed, past)
        # Handles refer to this, so it lives until the last of them is gone.
        self.held.abandonment = weakref.finalize(self, _abandoned.append, self.held)
        self.held.abandonment.atexit = False

    # --- Binding ---

    @property
    def root(self) -> LatticeCursor:
        """The cursor on the root."""
        if self._root is None:
            self._root = LiveRoot(self)
        return self._root

    @property
    def context(self) -> MergeContext:
        """The keys and rules with which writes here merge and sign."""
        if self._context is None:
            context = MergeContext(verifier=verify_did)
            if self.keys is not None:
                context = editing_context(self._data.store(), self.keys)
            self._context = context.reporting(self.reports.add)
        return self._context

    @property
    def own(self) -> bytes:
        """The public key of the default owner. Raises: NoSigningKey: the node has no key."""
        if self.keys is None:
            where = "" if self._folder is None else f" in {self._folder.path}"
            raise NoSigningKey(
                f"there is no key{where}, so no own data; name an owner with owner=, or make a "
                "key with `lattice key new`"
            )
        return self.keys.owner.public_key

    def owner(self, key: Value) -> Owner:
        """Return the owner with this key, with its local name."""
        names, owners = self.known_owners()
        return owner_of(key, names=names, owners=owners)

    def owner_named(self, given: object) -> Value:
        """Return the owner cell that `given` stands for; None: the default owner.

        Raises: UsageError: it stands for none or several. NoSigningKey: there is no default owner.
        """
        # "Handles mean own data unless `owner=` is given, for reading too"
        # (docs/design/front-door.md "Decisions").
        if given is None:
            return self.own
        if isinstance(given, Owner | bytes):  # a key needs no look-up
            return resolve_owner(given, own=None, names={}, owners=())
        names, owners = self.known_owners()
        own = None if self.keys is None else self.own
        return resolve_owner(given, own=own, names=names, owners=owners)

    def known_owners(self) -> tuple[dict[str, bytes], list[Value]]:
        """Return the local names, and the owners that have data here or keys in the ring."""
        root, names = self.present(), self._local_names()
        known = self._owners
        if known is None or known[0] is not root or known[1] != names:
            owners = owners_in(root)
            if self.keys is not None:
                owners += [pair.public_key for pair in self.keys.in_order()]
            known = self._owners = (root, names, list(dict.fromkeys(owners)))
        return known[1], known[2]

    def _local_names(self) -> dict[str, bytes]:
        if self._folder is None:
            return {}
        try:
            found = self._folder.names_path.stat()
        except FileNotFoundError:
            return {}
        mark = (found.st_ino, found.st_mtime_ns)  # the file is replaced, never changed
        if self._names[0] != mark:
            self._names = (mark, read_names(self._folder))
        return self._names[1]

    def edit(self, change: RootWork[T]) -> T:
        """Do `change` on the root, as one write; return what it returned."""
        return self.perform(change)

    def on_undo(self, undo: Callable[[], None]) -> bool:
        """Call `undo` if this thread's or task's batch fails; return whether there is a batch."""
        draft = self._batch()
        if draft is not None:
            draft.on_undo(undo)
        return draft is not None

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name on this machine; return the function that releases it."""
        return self._data.hold(name)

    def file_system(self, drive: object) -> Any:
        """Return a drive as an fsspec file system."""
        # fsspec takes as long to import as the rest of the client.
        from datalattice.client.drives.filesystem import DLFSFileSystem

        assert isinstance(drive, Drive)
        return DLFSFileSystem(drive=drive, read_only=self.is_read_only)

    def report(self, event: MergeNotice) -> None:
        """Keep a report for `Node.events`."""
        self.reports.add(event)

    # --- tables ---

    def to_arrow(self, handle: object, **options: Any) -> Any:
        """Return the present rows of a handle as a `pyarrow.RecordBatchReader`.

        Raises: UsageError: pyarrow is missing, or this is called inside a batch. Unavailable: the
                root changed at each of `KEPT_TRIES` attempts.
        """
        # A reader finds cells in the store, which lacks the writes of an unfinished batch.
        if self._batch() is not None:
            raise UsageError("to_arrow inside a batch: the rows can be read once the batch is done")
        tables = _tables()
        for _ in range(KEPT_TRIES):
            self.sync()
            root = self.present()
            table = tables.table_of(handle, **options)
            # The table must be of the root that is leased; another writer may have replaced it.
            if same(self.present(), root):
                with suppress(MissingData):  # collected, or not durable yet: try a newer root
                    return tables.reader_of(table, self.get_cells, self._kept(root))
        raise Unavailable(f"the root changed {KEPT_TRIES} times while a reader was made; try again")

    def _kept(self, root: Value) -> FormerRoot | None:
        """Return a lease on a root; None without a root, a store or the right to write.

        Raises: MissingData: the store lacks the root.
        """
        store = self._data.store()
        if root is None or store is None:
            return None
        try:
            return FormerRoot(store, value_hash(root))
        except StoreFailed:
            # A read-only folder is read without a lease: if a cell is removed meanwhile, reading
            # raises MissingData.
            return None

    def get_cells(
        self, hashes: list[bytes], *, verify: bool = True, below: int = 0
    ) -> list[CellRange | None]:
        """Return cells as `Store.get_cells` does, None for each that the folder lacks."""
        self.check_open()
        store = self._data.store()  # not kept: a writer may replace it between calls
        if store is None:
            raise MissingData(hashes)
        return store.get_cells(hashes, verify=verify, below=below)

    def rows_of(
        self, table: object, key: str | None, value: str | None
    ) -> Iterator[tuple[Any, list[Any]]]:
        """Yield the keys and values of a table's rows, up to `_LOADED_ROWS_MAX` at a time."""
        return iter(_tables().loaded_rows(table, key, value, _LOADED_ROWS_MAX))

    # --- the live root ---

    def present(self) -> Value:
        """Return the root that handles read: the batch's, the past one or the newest; or None."""
        self.check_open()
        # A batch "gathers the writes that this thread or task makes through this node's handles,
        # and reads see them" (docs/design/front-door.md "Open").
        draft = self._batch()
        if draft is not None:
            return draft.root()
        if self._past is not None:
            return self._past.root()
        if self._delayed is not None:
            return self._delayed.present()
        return self._data.root()

    def perform(self, work: RootWork[T]) -> T:
        """Do `work` on the root, as one write; return what it returned.

        Raises: ReadOnly, StoreClosed, NoSigningKey, and as `OpenFolder.edit`.
        """
        keys = self._writing_keys()
        draft = self._batch()
        if draft is not None:
            return draft.perform(work)
        if self._delayed is not None:
            return self._delayed.perform(work)
        return self._data.edit(keys, lambda cursor, _own: work(cursor), self._wait_s)

    def _writing_keys(self) -> OwnKeys:
        """Return the keys to sign writes with. Raises: StoreClosed, ReadOnly, NoSigningKey."""
        self.check_open()
        # "needs and makes no key; writes raise `ReadOnly`" (docs/design/front-door.md "Open"), also
        # where the key is here.
        if self.is_read_only:
            why = "it shows the past" if self._past is not None else "it was opened with read_only"
            raise ReadOnly(f"this node cannot be written to: {why}")
        if self.keys is None:
            raise NoSigningKey("a write needs a key; make one with `lattice key new`")
        return self.keys

    def check_open(self) -> None:
        """Raise `StoreClosed` once the node is closed."""
        if self.held.is_closed:
            raise StoreClosed("the node is closed; open it again with datalattice.open(...)")

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after every change of the root; return a function that stops the calls."""
        return self._data.subscribe(wake)

    def turn(self) -> AbstractContextManager[Editor]:
        """Return the write turn of the folder, for writes outside the root.

        Raises: ReadOnly, NoSigningKey, StoreLocked.
        """
        return self._data.turn(self._writing_keys(), self._wait_s)

    def upload(self) -> ContentUpload:
        """Return an upload of a byte string in pieces. Raises: ReadOnly, NoSigningKey."""
        keys, store = self._writing_keys(), self._data.store()
        assert store is not None, "a folder with keys that is written to has a store"
        return ContentUpload(lambda: self._data.editor(keys, self._wait_s), store.lease)

    def sync(self) -> None:
        """Return when all writes of this node are durable; a batch's are durable at its end."""
        if self._delayed is not None and self._batch() is None:
            self._delayed.sync()

    # --- batches ---

    def _batch(self) -> Draft | None:
        """Return the draft of this thread's or task's batch, None outside a batch."""
        for binding, draft in _batches.get():
            # A forked child inherits the context, and must not write to the draft of its parent.
            if binding is self and draft.is_open:
                return draft
        return None

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Gather the writes of this thread or task in a `with` block into one durable root.

        An exception that leaves the block undoes all of them. A nested batch joins the outer one.
        """
        keys = self._writing_keys()
        # "Nested batches join the outer one." (docs/design/front-door.md "Open")
        if self._batch() is not None:
            yield
            return
        with ExitStack() as stack:
            # "It takes the write turn when it begins (a running node still merges what peers
            # send)." (docs/design/front-door.md "Open")
            if self._delayed is None:
                editor = stack.enter_context(self._data.turn(keys, self._wait_s))
                draft = Draft(editor.root(), self.context)
            else:
                outer = stack.enter_context(self._delayed.held())
                draft = Draft(outer.root(), self.context)
            try:
                with self._writing_to(draft):
                    yield
                draft.check_process()
                # "At the end all is one durable root, or nothing if an exception leaves."
                if draft.has_writes:
                    self.perform(draft.write_to)
            except BaseException:
                draft.give_up()
                raise

    @contextmanager
    def _writing_to(self, draft: Draft) -> Iterator[None]:
        """Direct the writes of this thread or task to a draft."""
        token = _batches.set((*_batches.get(), (self, draft)))
        try:
            yield
        finally:
            _batches.reset(token)
            draft.is_over = True

    def atomically(self, work: Callable[[], T]) -> T:
        """Do `work`, whose writes become one durable root; return what it returned.

        If another writer came first, `work` runs again, so its result fits the durable root. Inside
        a batch its writes join the batch.
        """
        if self._batch() is not None:
            return work()

        drafts: list[Draft] = []

        def change(cursor: LatticeCursor) -> T:
            if drafts:  # another writer came first
                drafts.pop().give_up()
            drafts.append(Draft(cursor.get(), self.context))
            if isinstance(cursor, EditRoot):
                drafts[0].target = cursor
            with self._writing_to(drafts[0]):
                result = work()
            drafts[0].write_to(cursor)
            return result

        try:
            return self.perform(change)
        except BaseException:
            for draft in drafts:
                draft.give_up()
            raise

    def share(self, key: object, begin: Callable[[], T], finish: Callable[[T], object]) -> T | None:
        """Return the object that all changes of one commit share; as `EditRoot.share`.

        None: this thread or task is not in an `atomically` that makes an edit by itself.
        """
        draft = self._batch()
        target = None if draft is None else draft.target
        if target is None:
            return None

        # The shared object is written after all changes of the commit, on the state they left.
        def written(shared: T) -> None:
            last = Draft(target.get(), self.context)
            with self._writing_to(last):
                finish(shared)
            last.write_to(target)

        return target.share(key, begin, written)
