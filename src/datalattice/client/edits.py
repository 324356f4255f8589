"""Edits: one atomic, durable change of a folder's data, from any process of its owner.

    def add_one(cursor: RootLattice, keys: KeyPair) -> int:
        ...                                     # read and write below the cursor
    count = edit(Folder(path), add_one)         # on disk when it returns

The change runs on a copy of the present root. The result is committed to the store, or by the node
that runs in the folder. The node commits it only if the slots that it changes still have the values
it began with; otherwise the change runs again, on the newer root. So a change may run several
times, and must do nothing but write to its cursor and return a result.

Length: one edit, made in each of three ways, and the turns that all of them take.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.actions import ActionRequest, AppendRecords, StageValues, SwapSlots
from datalattice.apps.queue import Topics
from datalattice.cells import (
    STAGED_BYTES,
    Blob,
    EncodedCell,
    Loader,
    Value,
    Vector,
    branch_hashes,
    close_cells,
    decode,
    novelty,
    same,
    to_cell,
)
from datalattice.client.control import ControlClient, packed
from datalattice.client.folder import TURN_POLL_MAX_S, TURN_POLL_S, OwnKeys
from datalattice.client.opening import LOCK_WAIT_S, chosen_wait_s
from datalattice.client.slots import Slot, changed_slots
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    Backpressure,
    Corruption,
    MissingData,
    OutcomeUnknown,
    PeerUnavailable,
    StoreLocked,
    Timeout,
)
from datalattice.forking import begins_anew
from datalattice.lattice import MergeContext, root_lattice
from datalattice.protobuf import Message
from datalattice.store import CellStore, LockFile, RealDisk, Store, write_error
from datalattice.store.kept import Lease

T = TypeVar("T")
R = TypeVar("R", bound=Message)

Change = Callable[[RootLattice, KeyPair], T]
"""What an edit does: it reads and writes below a cursor on the root."""

TRIES_MAX: Final = 50
"""Most runs of one change; it runs again only if another writer changed the same slots."""

_RETRY_S: Final = 0.002
"""Pause before the second run; it doubles up to `_RETRY_MAX_S`."""

_RETRY_MAX_S: Final = 0.1

_BATCH_BYTES: Final = 4_000_000
"""Most bytes of cells in one request to a node; further cells are sent ahead in requests."""

OFFER_RECORDS_MAX: Final = 10_000
"""Records that a node appends by one request; more, or more than `_BATCH_BYTES`, are an edit."""

KEEP_EVERY_S: Final = 10 * 60
"""Seconds between two leases of staged values: well within the grace of a store."""

KEPT_MAX: Final = 256
"""Most leases of one editor, at least 8; beyond it the values are put under one Vector."""

_WAITING_MAX: Final = 65_536
"""Most staged values that wait for their edit, at least 32; beyond it they are put under one
Vector, so that memory does not grow with their number."""

_REF: Final = b"\x20"  # the tag of a reference in an encoding

TURN_SLOW_AFTER_S: Final = 2.0
"""After this time the pause between two tries is `TURN_POLL_MAX_S`: an edit takes long."""

EDIT: Final = "edit to end"
"""What a waiting edit waits for, in the text of its error."""

KEEP_S: Final = 2 * 60 * 60
"""Seconds of a lease on staged values, which outlives a killed process."""


def editing_context(store: Store | None, keys: OwnKeys) -> MergeContext:
    """Return the context in which edits of a store merge and sign."""
    return keys.context().of_copy("" if store is None else store.copy_id)


class EditRoot(RootLattice):
    """The root that one attempt of an edit changes, with the objects that its changes share."""

    __slots__ = ("_shared",)

    def __init__(self, root: Value, context: MergeContext) -> None:
        super().__init__(root_lattice(), root, context)
        self._shared: dict[object, tuple[Any, Callable[[], object]]] = {}

    def share(self, key: object, begin: Callable[[], T], finish: Callable[[T], object]) -> T:
        """Return the object that the first `begin` made for `key`.

        Its `finish` is called with it after the last change of the attempt.
        """
        found = self._shared.get(key)
        if found is None:
            made = begin()
            found = self._shared[key] = made, lambda: finish(made)
        return cast(T, found[0])

    def finished(self) -> Value:
        """Write the shared objects; return the root."""
        for _, finish in self._shared.values():
            finish()
        return self.get()


def try_change(change: Change[T]) -> T:
    """Run a change on an empty root in memory, under a key of its own; return its result.

    Raises: as the change.
    """
    keys = OwnKeys.of(KeyPair.generate())
    cursor = EditRoot(root_lattice().zero(), keys.context())
    result = change(cursor, keys.owner)
    cursor.finished()
    return result


class Editor:
    """Makes changes of a folder's data durable, in a store that this process has opened.

    A `NodeEditor` does the same through a running node. `editing` yields either.
    """

    def __init__(self, store: Store, keys: OwnKeys, context: MergeContext | None = None) -> None:
        """context: `editing_context` of store and keys, if the caller has it already."""
        self._store = store
        self._keys = keys
        self._context = editing_context(store, keys) if context is None else context

    @property
    def key_pair(self) -> KeyPair:
        """The key of the default owner."""
        return self._keys.owner

    @property
    def context(self) -> MergeContext:
        """How edits merge and sign: with the node's identity and the ring of owners' keys."""
        return self._context

    @property
    def loader(self) -> Loader:
        """The loader of the root's cells and of staged ones."""
        return self._store

    def root(self) -> Value:
        """Return the root as it is now."""
        return self._store.root()

    def stage(self, value: Value) -> object:
        """Store the cells of a value for a later edit that refers to them; free their memory."""
        return self._store.put(value)

    def stage_cells(self, cells: list[tuple[bytes, bytes]]) -> object:
        """Store cells, given as (hash, encoding), for a later edit that refers to them.

        The caller guarantees that encodings are canonical and have these hashes, and that the cells
        below them were staged or come before them.
        """
        return self._store.put_encodings(cells)

    def edit(self, change: Change[T]) -> T:
        """Make a change; return what it returned, once its writes are durable.

        Raises: Backpressure: other writers came first `TRIES_MAX` times. NoSigningKey,
                BadSignature, NotContained: it wrote what only another owner may write.
        """
        lattice = root_lattice()
        with self.turn():
            pause_s = _RETRY_S
            # "A change runs at most 50 times" (docs/design/control.md).
            for _ in range(TRIES_MAX):
                base = self._store.root_hash()
                try:
                    root = self._store.root()
                    before = lattice.zero() if root is None else root
                    cursor = EditRoot(before, self.context)
                    result = change(cursor, self.key_pair)
                    after = cursor.finished()
                    # A change that wrote nothing needs no commit.
                    if same(before, after) or self._commit(before, after):
                        return result
                except AnswerLost as lost:
                    # The change was made: if its slots prove to be set, this is its result.
                    lost.result = result
                    raise
                except (MissingData, Corruption):
                    if self._store.root_hash() == base:
                        raise
                    # A newer root replaced `base`, whose cells may have been collected: run again.
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_MAX_S)
        raise Backpressure(
            f"others changed the same data {TRIES_MAX} times while this edit was made; "
            "nothing was written, try again"
        )

    def offer_many(
        self,
        topic: Value,
        partition: Value,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        headers: Sequence[object] | None = None,
    ) -> range:
        """Append records to a topic of the folder's owner; return their offsets, once durable.

        The result is that of an edit. While a node runs it takes less time, because the node gets
        the records alone and signs them itself.

        keys, headers: one for each value, None for a record without; or None for all.
        Raises: as `edit`. UsageError: `keys` or `headers` have another length than `values`.
        """

        def append(cursor: RootLattice, own: KeyPair) -> range:
            queue = Topics.at(cursor, own.public_key).partition(topic, partition)
            return queue.offer_many(values, keys=keys, headers=headers)

        return self.edit(append)

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that keeps other editors out. Here the store's own lock does."""
        return nullcontext()

    def _commit(self, _before: Value, after: Value) -> bool:
        """Make a changed root durable; return False if another writer came first."""
        # "A writer keeps the store's lock while it writes": the root is still `_before`.
        self._store.commit(after)
        return True


class ThreadTurn:
    """The write turn among the threads of one process that share data."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._depth = 0
        self.waiting = 0
        """The number of threads that wait for it."""

        begins_anew(self)

    def begin_in_child(self) -> None:
        """Be free, except if the thread that forked holds it: it releases it as ever."""
        self._lock = threading.RLock()
        self.waiting = 0
        if not self.is_mine:
            self._holder, self._depth = None, 0
        for _ in range(self._depth):
            self._lock.acquire()

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._holder == threading.get_ident()

    def held(self, wait_s: float, awaited: str) -> AbstractContextManager[None]:
        """Return a context that holds the turn. May be nested in one thread.

        awaited: names the other holder in the text of the error.
        Raises: StoreLocked: other threads held it for `wait_s`.
        """
        return _HeldTurn(self, wait_s, awaited)

    def _take(self, wait_s: float, awaited: str) -> None:
        # `waiting` counts the threads that wait, so that delayed writes can give way to them.
        if not self._lock.acquire(blocking=False):
            self.waiting += 1
            try:
                if not self._lock.acquire(timeout=wait_s):
                    raise StoreLocked(f"waited {wait_s:g} s in vain for another {awaited}")
            finally:
                self.waiting -= 1
        self._holder = threading.get_ident()
        self._depth += 1

    def _leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
        self._lock.release()


class _HeldTurn:
    """A context of `ThreadTurn.held`; a generator would take three times as long in each write."""

    __slots__ = ("_awaited", "_turn", "_wait_s")

    def __init__(self, turn: ThreadTurn, wait_s: float, awaited: str) -> None:
        self._turn = turn
        self._wait_s = wait_s
        self._awaited = awaited

    def __enter__(self) -> None:
        self._turn._take(self._wait_s, self._awaited)

    def __exit__(self, *_error: object) -> None:
        self._turn._leave()


class EditTurn:
    """The turn of all that edit through a running node, in this and in other processes.

    They edit one after the other, so that quick edits do not starve a slow one. The node's own
    writes are detected when the slots are set.

    A process that waits for the lock file holds a second one, `.turn`, and each takes that one
    first. So one that edits without a pause lets the others edit too.
    """

    def __init__(self, path: Path) -> None:
        """path: of the lock file."""
        self._path = path
        self.threads: Final = ThreadTurn()
        self._depth = 0
        # Kept between edits: to open and close them takes ten times as long as to lock them.
        self._lock: LockFile | None = None
        self._line: LockFile | None = None

    @contextmanager
    def taken(self, wait_s: float) -> Iterator[None]:
        """Hold the turn. May be nested in one thread.

        Raises: StoreLocked: others held it for `wait_s`.
        """
        with self.threads.held(wait_s, f"{EDIT} ({self._path})"):
            # Nested edits of one thread are one turn: the file lock is held once.
            if not self._depth:
                self._take(wait_s)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._lock is not None and not self._depth:
                    self._lock.lend()

    def _take(self, wait_s: float) -> None:
        begun_s = time.monotonic()
        is_next = False
        try:
            while True:
                waited_s = time.monotonic() - begun_s
                try:
                    if not is_next:
                        self._line = _taken(self._line, self._path.with_suffix(".turn"))
                        is_next = True
                    self._lock = _taken(self._lock, self._path)
                    break
                except StoreLocked:
                    # Polled: waiting inside the system could not be limited to `wait_s`.
                    if waited_s >= wait_s:
                        raise StoreLocked(
                            f"waited {wait_s:g} s in vain for another {EDIT} ({self._path})"
                        ) from None
                except OSError as error:
                    raise write_error(error, self._path) from error
                time.sleep(TURN_POLL_S if waited_s < TURN_SLOW_AFTER_S else TURN_POLL_MAX_S)
        finally:
            if is_next and self._line is not None:
                self._line.lend()

    def close(self) -> None:
        """Close the lock files; the next edit opens them again."""
        for lock in (self._lock, self._line):
            if lock is not None:
                lock.release()


def _taken(lock: LockFile | None, path: Path) -> LockFile:
    """Take a lock file, which is opened if it is not yet. Raises: StoreLocked: another has it."""
    if lock is None:
        return RealDisk().lock(str(path))
    lock.retake()
    return lock


class AnswerLost(OutcomeUnknown):
    """The node ended before it answered. slots: those that it was asked to set."""

    node: tuple[int, int] | None = None
    """The node's `ControlClient.node`."""
    slots: list[Slot] | None = None
    result: object = None
    """The result of the change."""


class ServingNode(Protocol):
    """A node of this process that serves a folder: it alone writes; others read its store."""

    @property
    def store(self) -> CellStore:
        """The node's store."""
        ...

    def swap(self, slots: Sequence[Slot]) -> bool:
        """Set slots; return True once durable, False if one had another value and none was set.

        May be called by any thread except the node's event loop.
        Raises: NoSigningKey: the node has no key. Unfenced: it may not write yet. StoreFull,
                StoreFailed: the disk refused.
        """
        ...


class NodeEditor(Editor):
    """An editor of a running node, whose garbage collection spares staged values under lease."""

    _store: CellStore

    def __init__(
        self, store: CellStore, keys: OwnKeys, turn: EditTurn, wait_s: float | None = None
    ) -> None:
        """Make one of a store that a node has open.

        wait_s: how long an edit waits for its turn; None: as `waiting` allows.
        """
        super().__init__(store, keys)
        self._edit_turn = turn
        self._wait_s = chosen_wait_s(LOCK_WAIT_S) if wait_s is None else wait_s
        self._staged: dict[bytes, None] = {}  # staged values that no other staged value refers to
        self._leases: dict[bytes, Lease] = {}
        self._kept_s = time.monotonic()

    def stage(self, value: Value) -> object:
        """Put the cells of a value into the node's store, and free their memory."""
        return self._stage(novelty(value, self._store))

    def stage_cells(self, cells: list[tuple[bytes, bytes]]) -> object:
        """Put cells into the node's store."""
        return self._stage(
            [(hash, encoding, decode(encoding, self._store)) for hash, encoding in cells]
        )

    def _stage(self, parts: list[EncodedCell]) -> int:
        if not self._bring(parts):
            raise MissingData(self._store.missing(hash for hash, _, _ in parts))
        self._keep(parts)
        return len(parts)

    def _keep(self, parts: list[EncodedCell]) -> None:
        """Note staged cells; lease those that have waited long for their edit.

        The node may collect garbage meanwhile, which spares unreachable cells only while they are
        young. Without a node this process has the store to itself, and needs no leases.
        """
        self._staged.update((hash, None) for hash, _, _ in parts)
        for _, encoding, _ in parts:
            for below in branch_hashes(encoding):
                self._staged.pop(below, None)
        is_due = time.monotonic() - self._kept_s >= KEEP_EVERY_S
        if len(self._staged) > (KEPT_MAX if is_due else _WAITING_MAX):
            self._stage(self._together())  # recursion: notes the one Vector, and leases it when due
            return
        if not is_due:
            return
        for hash in self._staged:
            if hash in self._leases:
                self._leases[hash].renew(KEEP_S)
            else:
                self._leases[hash] = self._store.lease(hash, KEEP_S)
        for hash in self._leases.keys() - self._staged.keys():
            self._leases.pop(hash).release()
        self._kept_s = time.monotonic()

    def _together(self) -> list[EncodedCell]:
        """Return the cells of a Vector of all staged values, made from their hashes alone."""
        rows = [_REF + hash for hash in self._staged]
        ends = list(accumulate(map(len, rows)))
        made, leaves = Vector().extend_packed(b"".join(rows), ends, self._store)
        parts: list[EncodedCell] = [
            (hash, data, decode(data, self._store)) for hash, data in leaves
        ]
        return parts + novelty(made, self._store)

    def close(self) -> None:
        """Release the leases: values that were staged and never used become garbage."""
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that keeps other editors out."""
        return self._edit_turn.taken(self._wait_s)

    # While a node runs it alone commits, so its editors hand it the changed slots.
    @abstractmethod
    def _commit(self, before: Value, after: Value) -> bool:
        """Set the changed slots through the node; return False if one of them had moved."""

    @abstractmethod
    def _bring(self, parts: list[EncodedCell]) -> bool:
        """Put cells into the node's store, children first; return False if one below is missing."""


class ServedEditor(NodeEditor):
    """An editor of a node of this process: it stages in the node's store and hands over slots."""

    def __init__(
        self, node: ServingNode, keys: OwnKeys, turn: EditTurn, wait_s: float | None = None
    ) -> None:
        super().__init__(node.store, keys, turn, wait_s)
        self._node = node

    def _commit(self, before: Value, after: Value) -> bool:
        """Set the changed slots through the node; return False if one of them had moved."""
        return self._node.swap(changed_slots(root_lattice(), before, after))

    def stage(self, value: Value) -> object:
        """Put the cells of a value into the node's store, and free their memory."""
        if not isinstance(value, Blob) or len(value) < STAGED_BYTES:
            return super().stage(value)
        # `put` notes where a large blob lies, so that the commit does not walk its cells.
        count = self._store.put(value)
        self._keep([(value.hash, value.encoding, value)])
        return count

    def _bring(self, parts: list[EncodedCell]) -> bool:
        self._store.put_encodings((hash, encoding) for hash, encoding, _ in parts)
        close_cells(parts, self._store)
        return True


class RemoteEditor(NodeEditor):
    """An editor of a node of another process: it reads the store and writes through the node."""

    def __init__(
        self,
        client: ControlClient,
        store: CellStore,
        keys: OwnKeys,
        turn: EditTurn,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(store, keys, turn, wait_s)
        self._client = client

    def offer_many(
        self,
        topic: Value,
        partition: Value,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        headers: Sequence[object] | None = None,
    ) -> range:
        """Append records by one request to the node; many or large ones by an edit."""
        columns = [None if one is None else to_cell(one) for one in (values, keys, headers)]
        size = sum(len(encoding) for _, encoding, _ in novelty(Vector.of(columns), self._store))
        # "More than 10,000 records or 4 MB are an edit" (docs/design/control.md).
        if not 0 < len(values) <= OFFER_RECORDS_MAX or size > _BATCH_BYTES:
            return super().offer_many(topic, partition, values, keys, headers)
        made = self._write(
            AppendRecords(
                owner=self.key_pair.public_key,
                topic=topic,
                partition=partition,
                packed=packed(Vector.of(columns), self._store),
            )
        )
        return range(made.first, made.first + made.count)

    def _commit(self, before: Value, after: Value) -> bool:
        """Set the changed slots through the node; return False if one of them had moved."""
        slots = changed_slots(root_lattice(), before, after)
        for slot in slots:
            parts = novelty(slot.after, self._store)
            size = sum(len(encoding) for _, encoding, _ in parts)
            # "Cells beyond 4 MB go ahead in `root.stage`, 4 MB at a time; the swap then refers to
            # them." If the node lacks a cell below them, the change runs again on its newer root.
            if size > _BATCH_BYTES and not self._bring(parts):
                return False
        wanted = Vector.of([slot.to_cell() for slot in slots])
        try:
            return self._write(SwapSlots(packed=packed(wanted, self._store))).done
        except AnswerLost as lost:
            lost.slots = slots
            raise

    def _write(self, request: ActionRequest[R]) -> R:
        """Send a write once. Raises: AnswerLost: no answer came, and it may have happened."""
        try:
            return self._client.call(request)
        except (PeerUnavailable, Timeout) as error:
            # "If the connection ends during the swap, the tool says that it does not know whether
            # the edit happened, and does not repeat it." (docs/design/control.md)
            lost = AnswerLost(f"{error}; whether the edit happened is not known")
            lost.node = self._client.node
            raise lost from error

    def _bring(self, parts: list[EncodedCell]) -> bool:
        """Send cells, children first; return False if the node lacks one below them."""
        batch: list[EncodedCell] = []
        size = 0
        for part in parts:
            batch.append(part)
            size += len(part[1])
            # A request may refer only to cells that the node has: the batches are in order.
            if size >= _BATCH_BYTES or part is parts[-1]:
                values = packed(Vector.of(value for _, _, value in batch), self._store)
                if not self._client.call(StageValues(packed=values)).done:
                    return False
                close_cells(batch, self._store)
                batch, size = [], 0
        return True
