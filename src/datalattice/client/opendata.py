"""Open data: what a node reads and writes, as `OpenFolder` has it in a folder; here in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from datalattice.cells import Value
from datalattice.client.edits import Change, Editor, ThreadTurn
from datalattice.client.folder import OwnKeys
from datalattice.client.grouped import EditGroups
from datalattice.client.opening import LOCK_WAIT_S
from datalattice.cursors import Listeners, Wake
from datalattice.errors import StoreLocked
from datalattice.store import MemoryStore, Store

T = TypeVar("T")


class OpenData(Protocol):
    """Data that a node reads and writes: that of a folder, or in memory."""

    def root(self) -> Value:
        """Return the newest durable root, None if there is none."""
        ...

    def store(self) -> Store | None:
        """Return the store, for reading; None if there is none yet."""
        ...

    def edit(self, keys: OwnKeys, change: Change[T], wait_s: float) -> T:
        """Make a change of the root; return what it returned, once it is durable."""
        ...

    def editor(self, keys: OwnKeys, wait_s: float) -> AbstractContextManager[Editor]:
        """Give an editor, which stages values while others may write through a running node."""
        ...

    def turn(self, keys: OwnKeys, wait_s: float) -> AbstractContextManager[Editor]:
        """Give an editor, and keep other writers out meanwhile. May be nested in one thread."""
        ...

    def is_awaited(self) -> bool:
        """Return whether another writer waits for this thread to leave its turn."""
        ...

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each change of the root from now on; return what ends this."""
        ...

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name; return what gives it back. Raises: StoreLocked."""
        ...

    def close(self) -> None:
        """Leave it; the last one that leaves gives back what it holds."""
        ...


class MemoryFolder:
    """Data in memory, for one node: `datalattice.open(":memory:")`."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._threads = ThreadTurn()
        self._groups = EditGroups(self._threads, self._edit_once)
        self._wakes = Listeners[[]]()
        self._held: dict[str, object] = {}

    def root(self) -> Value:
        """Return the root, None if there is none."""
        return self._store.root()

    def store(self) -> Store:
        """Return the store."""
        return self._store

    def edit(self, keys: OwnKeys, change: Change[T], wait_s: float = LOCK_WAIT_S) -> T:
        """Make a change; return what it returned. Threads that come at once share a commit."""
        return self._groups.edit(keys, change, wait_s)

    def _edit_once(self, keys: OwnKeys, change: Change[T], wait_s: float) -> T:
        with self.turn(keys, wait_s) as editor:
            result = editor.edit(change)
        self._wakes.tell()  # after the turn: a reader that is woken sees the change
        return result

    def editor(self, keys: OwnKeys, wait_s: float = LOCK_WAIT_S) -> AbstractContextManager[Editor]:
        """Give an editor, as `turn`."""
        return self.turn(keys, wait_s)

    @contextmanager
    def turn(self, keys: OwnKeys, wait_s: float = LOCK_WAIT_S) -> Iterator[Editor]:
        """Give an editor, and keep other threads out meanwhile.

        Raises: StoreLocked: another thread wrote for `wait_s`.
        """
        # As in a folder: a write waits for its turn and then raises, it never waits without end.
        with self._threads.held(wait_s, "thread that writes"):
            yield Editor(self._store, keys)

    def is_awaited(self) -> bool:
        """Return whether another thread waits for this one to leave its turn."""
        return self._threads.waiting > 0

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each change from now on; return what ends this."""
        return self._wakes.add(wake)

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name; return what gives it back.

        Raises: StoreLocked: another caller has it.
        """
        mine = object()
        # One step, so that of two threads one gets it.
        if self._held.setdefault(name, mine) is not mine:
            raise StoreLocked(f"{name}: in use by another thread")
        return lambda: self._drop(name, mine)

    def _drop(self, name: str, mine: object) -> None:
        if self._held.get(name) is mine:  # only the holder gives it back
            del self._held[name]

    def close(self) -> None:
        """Wake those who wait; values that were read stay readable."""
        self._wakes.tell()
