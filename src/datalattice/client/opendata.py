"""Open data: the interface of a node to its data, and data in memory (on disk: `OpenFolder`)."""

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
from datalattice.forking import begins_anew
from datalattice.store import MemoryStore, Store

T = TypeVar("T")


class OpenData(Protocol):
    """The data of a node: in a folder (`OpenFolder`) or in memory (`MemoryFolder`)."""

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
        """Yield an editor to stage values; meanwhile others may write through a running node."""
        ...

    def turn(self, keys: OwnKeys, wait_s: float) -> AbstractContextManager[Editor]:
        """Yield an editor, and keep other writers out. May be nested in one thread."""
        ...

    def is_awaited(self) -> bool:
        """Return whether another writer waits for this thread to leave its turn."""
        ...

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each later change of the root; return a function that stops this."""
        ...

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name; return its release. Raises: StoreLocked: it is taken."""
        ...

    def close(self) -> None:
        """End one use; the last use releases everything."""
        ...


class MemoryFolder:
    """Data in memory, for one node: `datalattice.open(":memory:")`."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._threads = ThreadTurn()
        self._groups = EditGroups(self._threads, self._edit_once)
        self._held: dict[str, object] = {}
        self.begin_in_child()
        begins_anew(self)

    def begin_in_child(self) -> None:
        """Begin without listeners, also in a forked child, where they are the parent's streams."""
        self._wakes = Listeners[[]]()

    def root(self) -> Value:
        """Return the root, None if there is none."""
        return self._store.root()

    def store(self) -> Store:
        """Return the store."""
        return self._store

    def edit(self, keys: OwnKeys, change: Change[T], wait_s: float = LOCK_WAIT_S) -> T:
        """Make a change; return what it returned. Simultaneous edits of threads share a commit."""
        return self._groups.edit(keys, change, wait_s)

    def _edit_once(self, keys: OwnKeys, change: Change[T], wait_s: float) -> T:
        with self.turn(keys, wait_s) as editor:
            result = editor.edit(change)
        self._wakes.tell()  # after the turn, when readers see the change
        return result

    def editor(self, keys: OwnKeys, wait_s: float = LOCK_WAIT_S) -> AbstractContextManager[Editor]:
        """Yield an editor, as `turn`."""
        return self.turn(keys, wait_s)

    @contextmanager
    def turn(self, keys: OwnKeys, wait_s: float = LOCK_WAIT_S) -> Iterator[Editor]:
        """Yield an editor, and keep other threads out.

        Raises: StoreLocked: other threads wrote for `wait_s`.
        """
        with self._threads.held(wait_s, "thread that writes"):
            yield Editor(self._store, keys)

    def is_awaited(self) -> bool:
        """Return whether another thread waits for this one to leave its turn."""
        return self._threads.waiting > 0

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each later change; return a function that stops this."""
        return self._wakes.add(wake)

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name; return its release.

        Raises: StoreLocked: another caller has it.
        """
        mine = object()
        # `setdefault` is atomic: one of two threads gets the lock.
        if self._held.setdefault(name, mine) is not mine:
            raise StoreLocked(f"{name}: in use by another thread")
        return lambda: self._drop(name, mine)

    def _drop(self, name: str, mine: object) -> None:
        if self._held.get(name) is mine:  # a second release must not free the next holder's lock
            del self._held[name]

    def close(self) -> None:
        """Wake waiting readers; values that were read stay readable."""
        self._wakes.tell()
