"""Open folder: the data of one folder in this process, shared with other processes.

A process has one `OpenFolder` for each folder (by its real path), shared by all nodes that opened
it. A read sees the newest durable root. A write goes through the running node; without one it takes
the write turn for its duration. A node may start and end between any two operations.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar, cast

from datalattice.actions import WaitForRoot
from datalattice.cells import Value, value_hash
from datalattice.client.control import (
    NO_KEY,
    ControlClient,
    connect,
)
from datalattice.client.edits import (
    AnswerLost,
    Change,
    Editor,
    EditTurn,
    RemoteEditor,
    ServedEditor,
    ServingNode,
    editing_context,
)
from datalattice.client.folder import Folder, OwnKeys, read_key_pairs, read_keys_or_none
from datalattice.client.grouped import EditGroups
from datalattice.client.opening import (
    LOCK_WAIT_S,
    check_writable,
    chosen_wait_s,
    damaged_store,
    explaining_missing,
    open_store_reader,
    raise_format,
)
from datalattice.cursors import Listeners, Wake
from datalattice.errors import (
    DataLatticeError,
    MissingData,
    NoSigningKey,
    OutcomeUnknown,
    PeerUnavailable,
    StoreClosed,
    StoreLocked,
    Timeout,
)
from datalattice.forking import begins_anew, freed_in_child
from datalattice.lattice import MergeContext, get_in
from datalattice.store import (
    CACHE_BYTES_MAX,
    STORE_FILE,
    CellStore,
    Lock,
    RealDisk,
    WriteTurn,
    write_error,
)

T = TypeVar("T")

SLICE_S: Final = 0.25
"""Longest single wait for the store's lock; after each, a running node is looked for."""

LOOK_S: Final = 0.01
"""Pause between two looks for writes of other processes, while readers wait for changes."""

_log = logging.getLogger("datalattice.client")


class OpenFolder:
    """The data of a folder. Get it from `OpenFolder.at`, and `close` it.

    Any thread may use it; a forked child opens the folder anew.
    """

    def __init__(self, folder: Folder, cache_bytes: int = CACHE_BYTES_MAX) -> None:
        self.folder: Final = folder
        self._cache_bytes: Final = cache_bytes
        self._users = 0
        self._is_closed = False
        self._turns = WriteTurn(self._open_store, check=self._opened_anew)
        self.begin_in_child()
        begins_anew(self)

    def begin_in_child(self) -> None:
        """Set the initial state, also in a forked child."""
        self._wakes = Listeners[[]]()
        self._lock = threading.RLock()  # held briefly, for `_reader` and `_watcher`
        self._clients: list[ControlClient] = []  # idle connections to the running node
        self._edit_turn = EditTurn(self.folder.edit_lock_path)
        self._groups = EditGroups(self._edit_turn.threads, self._edit_once)
        self._reader: CellStore | None = None
        self._seen: tuple[bytes | None, Value] = (None, None)
        self._checked: dict[bytes, MergeContext] = {}  # by owner, once writing was allowed
        self._watcher: threading.Thread | None = None
        self._serving: ServingNode | None = None

    @classmethod
    def at(cls, folder: Folder, cache_bytes: int = CACHE_BYTES_MAX) -> OpenFolder:
        """Return this process's `OpenFolder`; the first caller sets its `cache_bytes`."""
        # "Shares one `OpenFolder` (by real path)" (docs/design/front-door.md "Open").
        path = Path(os.path.realpath(folder.path))
        with _opening:
            found = _open.get(path)
            if found is None:
                found = _open[path] = cls(Folder(path), cache_bytes)
            found._users += 1
            return found

    def close(self) -> None:
        """End one use; the last use releases everything."""
        with _opening:
            self._users -= 1
            if self._users > 0 or self._is_closed:
                return
            self._is_closed = True
            # Removed under the lock, so that a thread that opens the folder now makes a new object.
            if _open.get(self.folder.path) is self:
                del _open[self.folder.path]
        self._leave_node()
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.retire()
        self._turns.close()
        self._edit_turn.close()

    # --- reading ---

    def root(self) -> Value:
        """Return the newest durable root, None if there is none."""
        store = self.store()
        if store is None:
            return None
        seen = self._seen
        try:  # `with explaining_missing` would make a read half as slow again
            hash = store.root_hash()
            if hash is not None and seen[0] != hash:
                # One tuple, so that no thread pairs a hash with the root of another.
                self._seen = seen = (hash, store.load(hash))
        except MissingData as error:
            raise damaged_store(self.folder, error) from error
        return None if hash is None else seen[1]

    def store(self) -> CellStore | None:
        """Return the store for reading, None if none was made yet."""
        serving = self._serving
        opened = self._turns.opened or self._reader if serving is None else serving.store
        if opened is not None:
            return opened
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self.folder.path} is closed; open it again")
            # Without this file another process is still making the store.
            if self._reader is None and (self.folder.store_path / STORE_FILE).is_file():
                self._reader = open_store_reader(self.folder, self._cache_bytes)
            return self._turns.opened or self._reader

    # --- writing ---

    def edit(self, keys: OwnKeys, change: Change[T], wait_s: float = LOCK_WAIT_S) -> T:
        """Make a change; return what it returned, once what it wrote is durable.

        Simultaneous edits of threads share commits: `EditGroups`.
        Raises: as `Editor.edit`. StoreLocked: another process wrote for `wait_s`; it is named.
                OutcomeUnknown: a node ended meanwhile, and its store does not show whether it made
                the change.
        """
        return self._groups.edit(keys, change, wait_s)

    def _edit_once(self, keys: OwnKeys, change: Change[T], wait_s: float) -> T:
        lost: AnswerLost | None = None
        give_up_s = time.monotonic() + wait_s
        while True:
            try:
                with self.editor(keys, wait_s) as editor:
                    if lost is not None and _has_happened(lost, editor.root()):
                        result = cast(T, lost.result)
                        break
                    lost = None
                    result = editor.edit(change)
                    break
            # "A write whose answer was lost is decided by the new root" (docs/design/front-door.md
            # "Open"), which the next editor shows.
            except AnswerLost as error:
                lost = error
                self._end_of(lost, wait_s)
            except PeerUnavailable:
                # Only cells were staged so far, which may be repeated.
                if time.monotonic() >= give_up_s:
                    raise
            except MissingData as error:
                raise damaged_store(self.folder, error) from error
        self._wakes.tell()
        return result

    def _end_of(self, lost: AnswerLost, wait_s: float) -> None:
        """Return once the node whose answer was lost has certainly ended.

        Raises: OutcomeUnknown: it still runs.
        """
        self._leave_node()
        give_up_s = time.monotonic() + wait_s
        while time.monotonic() < give_up_s:
            client = connect(self.folder.path)
            if client is None:
                # A node keeps the store's lock until its last write is done.
                with contextlib.suppress(StoreLocked), self._turns.write(SLICE_S):
                    return
                continue
            with client, contextlib.suppress(PeerUnavailable, Timeout):
                # Another node has the lock now, so the asked one has ended.
                if client.node != lost.node:
                    return
                client.call(WaitForRoot())
                break  # it answers, so it may still write
        raise OutcomeUnknown(str(lost)) from lost

    @contextmanager
    def turn(self, keys: OwnKeys, wait_s: float = LOCK_WAIT_S) -> Iterator[Editor]:
        """Yield an editor, and keep other writers out. May be nested in one thread.

        Raises: as `editor`.
        """
        with self.editor(keys, wait_s) as editor, editor.turn():
            yield editor

    @contextmanager
    def editor(self, keys: OwnKeys, wait_s: float = LOCK_WAIT_S) -> Iterator[Editor]:
        """Yield an editor of the running node, or of the store, whose lock is then held.

        Raises: StoreLocked: another process or thread wrote for `wait_s`. NoSigningKey: a node
                runs, and the folder has no key. Others as `check_writable`.
        """
        give_up_s = time.monotonic() + wait_s
        awaited = f"thread of this process that writes to {self.folder.path}"
        is_entered = False
        while not is_entered:
            serving = self._serving
            if serving is not None:
                self._check_can_sign()
                with closing(ServedEditor(serving, keys, self._edit_turn, wait_s)) as editor:
                    yield editor
                return
            # "A store has one writer": no node runs while this process has the lock.
            client = None if self._turns.is_held else self._take_client()
            if client is not None:
                yield from self._through(client, keys, wait_s)
                return
            try:
                # Threads share one turn for both ways: a batch that began through a node keeps
                # out threads that write to the store once the node has ended.
                with self._edit_turn.threads.held(wait_s, awaited):
                    if self._is_closed:
                        raise StoreClosed(f"{self.folder.path} is closed; open it again")
                    with self._turns.write(min(SLICE_S, wait_s)) as store:
                        is_entered = True
                        yield Editor(store, keys, self._context(store, keys))
            except StoreLocked as error:  # by a command, or by a node that is starting
                if is_entered:
                    raise
                if time.monotonic() >= give_up_s:
                    reason = error.__cause__ or error
                    raise StoreLocked(f"waited {wait_s:g} s in vain: {reason}") from error

    def _context(self, store: CellStore, keys: OwnKeys) -> MergeContext:
        """Return the context of edits with these keys, after the checks of a new writer."""
        if store.has_failed:
            store.resume()  # of an earlier write, whose cells are stored again with this one
        owner = keys.owner.public_key
        context = self._checked.get(owner)
        if context is None:
            check_writable(self.folder, store, keys, fenced=True)
            context = self._checked[owner] = editing_context(store, keys)
        return context

    def _through(self, client: ControlClient, keys: OwnKeys, wait_s: float) -> Iterator[Editor]:
        """Yield an editor of the running node."""
        try:
            self._check_can_sign()
            store = self.store()
            assert store is not None, "a node runs on it"
            with closing(RemoteEditor(client, store, keys, self._edit_turn, wait_s)) as editor:
                yield editor
        except (OutcomeUnknown, PeerUnavailable, Timeout):
            client.close()
            raise
        finally:
            # The connection is kept for the next write: connecting takes as long as a write.
            if self._is_closed or client.has_ended():
                client.close()
            else:
                self._clients.append(client)

    def _check_can_sign(self) -> None:
        # The node signs what it commits, so it needs the folder's keys.
        if read_keys_or_none(self.folder) is None:
            raise NoSigningKey(NO_KEY)

    @contextmanager
    def served_by(self, node: ServingNode) -> Iterator[None]:
        """Let all of this process read and write through its own `node` in a `with` block.

        Values that are read meanwhile load their cells from the node's store, until that is closed.
        """
        self._serving = node
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.retire()
        try:
            yield
        finally:
            self._serving = None
            self._seen = (None, None)  # that root would load its cells from the node's store

    def is_awaited(self) -> bool:
        """Return whether another writer waits for this thread to leave its turn."""
        return self._edit_turn.threads.waiting > 0 or self._turns.is_awaited()

    def _open_store(self) -> CellStore:
        raise_format(self.folder)
        store = CellStore.open(
            self.folder.store_path, wait_s=SLICE_S, cache_bytes=self._cache_bytes
        )
        for damage in store.damage:
            _log.warning("%s; its cells are missing", damage)
        return store

    def _opened_anew(self, _store: CellStore) -> None:
        # The folder may have been replaced by a copy: the checks before a write are made again.
        self._checked.clear()

    def _take_client(self) -> ControlClient | None:
        """Return a connection to the running node, None if none runs."""
        while True:
            try:
                client = self._clients.pop()
            except IndexError:
                return connect(self.folder.path)
            if not client.has_ended():
                return client
            client.close()

    def _leave_node(self) -> None:
        while self._clients:
            self._clients.pop().close()

    # --- changes ---

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each later change of the root; return a function that stops this.

        Changes of this process wake at once, those of others within `LOOK_S`.
        """
        end = self._wakes.add(wake)
        # One thread serves all subscribers of the folder, and ends with the last of them.
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="changes", daemon=True)
                self._watcher.start()
        return end

    def _watch(self) -> None:
        # `seen` equals no root: a change between a subscriber's last read and now wakes it too.
        me, seen = self._watcher, object()
        while True:
            with self._lock:
                if self._is_closed or not self._wakes or self._watcher is not me:
                    if self._watcher is me:
                        self._watcher = None
                    break
            time.sleep(LOOK_S)
            found = self._look()
            if found != seen:
                seen = found
                self._wakes.tell()
        if self._is_closed:
            self._wakes.tell()  # waiting readers find the folder closed

    def _look(self) -> object:
        """Return a value that changes with the root: its hash, or the text of an error."""
        try:
            store = self.store()
            return None if store is None else store.root_hash()
        except DataLatticeError as error:
            return str(error)  # a woken reader meets the error itself

    # --- locks by name ---

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name on this machine; return its release.

        Raises: StoreLocked: another process, or another caller in this one, has it.
        """
        # "`ConsumerBusy(Unavailable)` by a lock file" (docs/design/front-door.md "Handles"): it
        # ends with its process, however that ends. The name is hashed, because it may have any
        # characters.
        folder = self.folder.path / "locks"
        path = str(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock")
        try:
            RealDisk().create_folder(str(folder))
            lock: Lock = RealDisk().lock(path)
        except StoreLocked as error:
            raise StoreLocked(f"{name}: in use by another process or thread ({error})") from error
        except OSError as error:
            raise write_error(error, path) from error
        return lock.release


@contextmanager
def editing(folder: Folder) -> Iterator[Editor]:
    """Yield an editor of a folder, for several edits, or for values that are staged before one.

    Raises: as `OpenFolder.editor`. NoSigningKey: the folder has no key.
    """
    keys = _keys_to_edit_with(folder)
    with (
        closing(OpenFolder.at(folder)) as data,
        explaining_missing(folder),
        data.editor(keys, chosen_wait_s(LOCK_WAIT_S)) as editor,
    ):
        yield editor


def edit(folder: Folder, change: Change[T]) -> T:
    """Make one change of a folder's data; return what it returned, once it is durable.

    Raises: as `OpenFolder.edit`; any error of the change, with nothing written.
    """
    with closing(OpenFolder.at(folder)) as data:
        return data.edit(_keys_to_edit_with(folder), change, chosen_wait_s(LOCK_WAIT_S))


def _keys_to_edit_with(folder: Folder) -> OwnKeys:
    try:
        return read_key_pairs(folder)
    except NoSigningKey:
        client = connect(folder.path)
        if client is None:
            raise
        client.close()
        raise NoSigningKey(NO_KEY) from None  # this text says that the node must be restarted


def _has_happened(lost: AnswerLost, root: Value) -> bool:
    """Return whether an ended node set the slots of an edit.

    Raises: OutcomeUnknown: a slot has neither the value before nor the one after the edit.
    """
    # Offered records name no slots, and the log may have grown since.
    slots = lost.slots
    if slots is None:
        raise OutcomeUnknown(str(lost)) from lost
    found = [value_hash(get_in(root, slot.path)) for slot in slots]
    if all(hash == value_hash(slot.after) for hash, slot in zip(found, slots, strict=True)):
        return True
    if all(hash == value_hash(slot.before) for hash, slot in zip(found, slots, strict=True)):
        return False
    raise OutcomeUnknown(str(lost)) from lost


_opening: Final = freed_in_child(threading.Lock())
_open: Final[dict[Path, OpenFolder]] = {}
