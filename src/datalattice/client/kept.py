"""Kept: an editor that lives long, and keeps the store of its folder open between its edits.

`editing` opens the store, and closes it after one edit or a few in a row. A program that edits now
and then, for as long as it runs, keeps a `KeptEditor`: an edit costs one sync, and other processes
write in between. A node may start and end meanwhile: each edit goes to the one that runs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Self, TypeVar

from datalattice.cells import Loader, Value
from datalattice.client.control import ControlClient
from datalattice.client.edits import Change, Editor, EditTurn, NodeEditor
from datalattice.client.folder import Folder, read_keys
from datalattice.client.opening import LOCK_WAIT_S, check_writable, open_reader, whole
from datalattice.client.runfile import connect
from datalattice.errors import PeerUnavailable, StoreLocked, Timeout
from datalattice.lattice import MergeContext
from datalattice.store import CellStore, WriteTurn

T = TypeVar("T")

KEEP_S: Final = 0.05
"""How long the lock of the store is kept after an edit."""

SLICE_S: Final = 0.25
"""After so long a wait for the lock it is looked whether a node has it."""

_log = logging.getLogger("datalattice.client")


class KeptEditor(Editor):
    """An editor of a folder's data for as long as a program runs. Use it as a context, or `close`.

        with KeptEditor(Folder(path)) as editor:
            editor.offer_many("log", 0, ["hello"])         # on disk when it returns

    Any thread may use it; a forked child begins anew. What its edits returned loads until it is
    closed.
    """

    def __init__(self, folder: Folder, *, keep_s: float = KEEP_S) -> None:
        """Read the folder's keys; the store is opened when it is needed.

        Raises: NoSigningKey: the folder has none.
        """
        self._folder = folder
        self._keys = read_keys(folder)
        self._turns = WriteTurn(self._open, keep_s=keep_s, check=self._check)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._own: Editor | None = None
        self._client: ControlClient | None = None
        self._node: NodeEditor | None = None
        self._reader: CellStore | None = None

    def _open(self) -> CellStore:
        store = CellStore.open(self._folder.store_path, wait_s=SLICE_S)
        for damage in store.damage:
            _log.warning("%s; what was there is missing", damage)
        return store

    def _check(self, store: CellStore) -> None:
        check_writable(self._folder, store, self._keys, fenced=True)
        self._own = Editor(store, self._keys)  # it says which copy of the folder signs

    @property
    def context(self) -> MergeContext:
        """What edits merge and sign with: the node's identity, and the ring of owners' keys."""
        return self._with_editor(lambda editor: editor.context)

    @property
    def loader(self) -> Loader:
        """Where the cells of the root, and those that were staged, come from."""
        return self._reading()

    def root(self) -> Value:
        """Return the root as it is now; no lock is needed once the store is open."""
        with whole(self._folder):
            return self._reading().root()

    def stage(self, value: Value) -> object:
        """Put the cells of a value where a later edit will refer to them, and free their memory."""
        return self._with_editor(lambda editor: editor.stage(value))

    def stage_cells(self, cells: list[tuple[bytes, bytes]]) -> object:
        """Put cells, given as (hash, encoding), where a later edit will refer to them."""
        return self._with_editor(lambda editor: editor.stage_cells(cells))

    def edit(self, change: Change[T]) -> T:
        """Make a change; return what it returned, when what it wrote is durable.

        Raises: as `Editor.edit`. StoreLocked: another process wrote all the time; it is named.
                PeerUnavailable, Timeout: a node ended meanwhile; whether it was made is not known.
        """
        return self._with_editor(lambda editor: editor.edit(change))

    def offer_many(
        self,
        topic: Value,
        partition: Value,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        headers: Sequence[object] | None = None,
    ) -> range:
        """Append records to a topic of the folder's owner; return their offsets, once durable.

        Raises: as `edit`. UsageError: `keys` or `headers` of another length.
        """
        return self._with_editor(
            lambda editor: editor.offer_many(topic, partition, values, keys, headers)
        )

    def close(self) -> None:
        """Close the store. Closing twice is fine."""
        if self._pid == os.getpid():
            with self._lock:
                self._leave_node()
                reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        self._turns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- which way ---

    def _with_editor(self, work: Callable[[Editor], T]) -> T:
        with whole(self._folder), self._editor() as editor:
            return work(editor)

    @contextmanager
    def _editor(self) -> Iterator[Editor]:
        """Give the editor of the running node, or else of the store, with its lock."""
        give_up_s = time.monotonic() + LOCK_WAIT_S
        with self._serial(), ExitStack() as stack:
            while True:
                node = self._through_node()
                if node is not None:
                    yield from self._using(node)
                    return
                try:
                    stack.enter_context(self._turns.write(SLICE_S))
                    break
                except StoreLocked as error:  # a node may have started
                    if time.monotonic() >= give_up_s:
                        reason = error.__cause__ or error
                        raise StoreLocked(f"waited {LOCK_WAIT_S:g} s in vain: {reason}") from error
            assert self._own is not None, "made when the store was opened"
            yield self._own

    def _serial(self) -> AbstractContextManager[object]:
        """Return the lock that lets one thread edit at a time: each begins at the root it finds."""
        if self._pid != os.getpid():  # the connection and the reader are the parent's
            self._begin()
        return self._lock

    def _using(self, node: NodeEditor) -> Iterator[Editor]:
        try:
            yield node
        except (PeerUnavailable, Timeout):
            self._leave_node()
            raise

    def _through_node(self) -> NodeEditor | None:
        """Return the editor of the node that runs, None when none does."""
        if self._client is not None and self._client.has_ended():
            self._leave_node()
        if self._node is None:
            client = connect(self._folder.path)
            if client is None:
                return None
            self._client = client
            lock = self._folder.edit_lock_path
            self._node = NodeEditor(client, self._reading(), self._keys, EditTurn(lock))
        return self._node

    def _leave_node(self) -> None:
        node, self._node = self._node, None
        client, self._client = self._client, None
        if node is not None:
            node.close()
        if client is not None:
            client.close()

    def _reading(self) -> CellStore:
        """Return the store, to be read."""
        opened = self._turns.opened
        if opened is not None:
            return opened
        with self._serial():
            if self._reader is None and self._folder.store_path.is_dir():
                self._reader = open_reader(self._folder)
            return self._turns.store if self._reader is None else self._reader
