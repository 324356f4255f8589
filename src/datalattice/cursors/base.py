"""Cursor: a mutable handle on an immutable value, and the operations that all cursors share.

Every write atomically replaces one reference at the root of a chain of cursors. A cursor class
defines how it reads, and how a change of its value becomes a change of the cursor below it.

A change is a function from the current value to the next one. It runs without a lock, and runs
again if another thread was faster; so it must be pure, and may be slow. It returns `KEEP` to leave
the value unchanged.

Source: CAD035 "Path", "Root", "Cursors"; docs/cursors.md "Paths", "Kinds", "Changes", "Operations".
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from datalattice.cells import (
    Index,
    Keyword,
    List,
    Map,
    Set,
    Signed,
    Symbol,
    Value,
    Vector,
    render,
    same,
    to_cell,
)
from datalattice.errors import DataLatticeError, UnsupportedOperation
from datalattice.forking import freed_in_child
from datalattice.lattice import Lattice, assoc_in, get_in, values_along
from datalattice.limits import HASH_BYTES

ChangeFunction = Callable[[Value], Value]
Update = Callable[[Value], object]
Accumulate = Callable[[Value, Value], object]
Wake = Callable[[], None]
"""Called by the thread that replaced a value, afterwards. It is quick and never raises."""

_COUNTED: Final = (Map, Index, Set, Vector, List)

_swapping: Final = freed_in_child(threading.Lock())
"""One for all references: it is held for a comparison and an assignment."""


class _Keep:
    """The type of `KEEP`."""

    __slots__ = ()


KEEP: Final = _Keep()
"""Returned by a change to leave the value unchanged."""


class Watched(Protocol):
    """A value that may be replaced, on which the value of a cursor depends."""

    @property
    def value(self) -> Value:
        """The present value."""
        ...

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after every replacement from now on; return a function that ends this."""
        ...


class Reference:
    """One value that threads replace atomically.

    Listeners are woken after the swap: a read after a wake sees that change or a later one.
    """

    __slots__ = ("_listeners", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        # Changed in single steps, without the lock: the garbage collector may end a listener in a
        # thread that holds the lock.
        self._listeners: dict[object, Wake] = {}

    def swap(self, expected: Value, new: Value) -> bool:
        """Replace the very object `expected` by `new`; return whether it was still there."""
        with _swapping:
            # By identity: another thread may have replaced the value by an equal one meanwhile.
            if self.value is not expected:
                return False
            self.value = new
        # After the lock: a listener may read or write through the same reference.
        if self._listeners:
            for wake in list(self._listeners.values()):
                wake()
        return True

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after every swap from now on; return a function that ends this."""
        # An object of its own: one function may be subscribed twice.
        token = object()
        self._listeners[token] = wake
        return lambda: self._drop(token)

    def _drop(self, token: object) -> None:
        self._listeners.pop(token, None)

    def apply(self, change: ChangeFunction) -> tuple[Value, Value]:
        """Replace the value by `change(value)`; return the value before and after."""
        while True:
            old = self.value
            new = change(old)
            # No swap, so no listener wakes: nothing was written.
            if new is KEEP:
                return old, old
            # The change runs without a lock, and runs again if another thread was faster: the lock
            # is held for the swap alone, so a slow change blocks no reader.
            if self.swap(old, new):
                return old, new


@mypyc_attr(allow_interpreted_subclasses=True)
class Cursor:  # no ABC: see `cells.CellSink`
    """A handle on an immutable value.

    Python values given to it (dict, list, set) become cells. Threads may share a cursor.
    """

    __slots__ = ()

    # --- defined by each class of cursor ---

    @abstractmethod
    def _read(self) -> Value:
        """Return the current value."""

    @abstractmethod
    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        """Replace the value by `change(value)`; return the value before and after.

        is_checked: the result was checked already, so the levels below skip their checks.
        """

    @abstractmethod
    def _watched(self) -> Watched:
        """Return the reference whose replacement may change the value."""

    def _seed(self, value: Value) -> Value:
        """Return the value to pass to an update function: the zero for a missing value."""
        return value

    def _lattice_here(self) -> Lattice | None:
        """Return the lattice that defines what to create below the value, or None."""
        return None

    @property
    def initial_value(self) -> Value:
        """The value this cursor began with."""
        raise UnsupportedOperation(f"a {type(self).__name__} has no initial value")

    # --- reading ---

    def get(self, *keys: object) -> Value:
        """Return the value, or the value at `keys` inside it; None if a step is missing."""
        value = self._read()
        return get_in(value, cells(keys)) if keys else value

    def detach(self) -> Root:
        """Return a new `Root` that begins with the current value."""
        return Root(self._read())

    def path(self, *keys: object) -> Cursor:
        """Return a cursor on the value at `keys`; with no keys, this cursor."""
        return PathCursor(self, cells(keys)) if keys else self

    def version(self) -> object:
        """Return an object that stays the same until something below the root is written.

        Results derived from the value can be cached under it; it may change without the value.
        """
        # The root's value: it is replaced by every write below it, and by nothing else.
        return self._watched().value

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after every change at the root; return a function that ends this.

        The change may be elsewhere below the root; `Changes` compares the values. A read after the
        last wake sees the last change.
        """
        return self._watched().subscribe(wake)

    # --- replacing ---

    def set(self, value: object) -> None:
        """Replace the value."""
        cell = to_cell(value)
        self._apply(lambda _current: cell)

    def get_and_set(self, value: object) -> Value:
        """Replace the value; return the previous one."""
        cell = to_cell(value)
        return self._apply(lambda _current: cell)[0]

    def compare_and_set(self, expected: object, value: object) -> bool:
        """Replace the value if it equals `expected`; return whether it did."""
        wanted, cell = to_cell(expected), to_cell(value)
        done = False

        def change(current: Value) -> Value:
            nonlocal done
            # "Values are compared everywhere" (docs/design/decisions.md "Compare-and-set").
            done = same(current, wanted)
            return cell if done else KEEP

        self._apply(change)
        return done

    def assoc(self, key: object, value: object) -> None:
        """Write `value` at `key` inside the value."""
        self.assoc_in(value, key)

    def assoc_in(self, value: object, *keys: object) -> None:
        """Write `value` at `keys` inside the value.

        A lattice cursor creates missing containers on the way.
        Raises: NoSuchPath: a container is missing. TypeMismatch: a step leads through something
                other than a container.
        """
        # Converted once: the change may run several times.
        cell, path, lattice = to_cell(value), cells(keys), self._lattice_here()
        self._apply(lambda current: assoc_in(current, path, cell, lattice))

    # --- updating ---

    def update(self, function: Update) -> None:
        """Replace the value by `function(value)`."""
        self._update(function)

    def get_and_update(self, function: Update) -> Value:
        """Replace the value by `function(value)`; return the previous value."""
        return self._update(function)[0]

    def update_and_get(self, function: Update) -> Value:
        """Replace the value by `function(value)`; return the new value."""
        return self._update(function)[1]

    def get_and_accumulate(self, value: object, function: Accumulate) -> Value:
        """Replace the current value by `function(current, value)`; return the previous value."""
        cell = to_cell(value)
        return self._update(lambda current: function(current, cell))[0]

    def accumulate_and_get(self, value: object, function: Accumulate) -> Value:
        """Replace the current value by `function(current, value)`; return the new value."""
        cell = to_cell(value)
        return self._update(lambda current: function(current, cell))[1]

    def _update(self, function: Update, *, is_checked: bool = False) -> tuple[Value, Value]:
        """Replace the value by `function(value)`; return the value before and the result.

        A function that returns its argument itself changes nothing.
        """
        result: Value = None

        def change(current: Value) -> Value:
            nonlocal result
            # A missing value is passed as the zero of its lattice, so a function need not handle
            # None.
            given = self._seed(current)
            result = to_cell(function(given))
            # "One that returns the object it was given changes nothing, not even the identity of
            # the value" (docs/cursors.md "Operations").
            return KEEP if result is given else result

        old = self._apply(change, is_checked=is_checked)[0]
        return old, result

    # --- merging ---

    def merge(self, value: object) -> Value:
        """Replace the value by that of the detached cursor `value`, if it has not changed since.

        Returns whether it was replaced. Merging values needs a lattice cursor.
        Raises: UnsupportedOperation: `value` is not a detached cursor.
        """
        # Without a lattice nothing can be merged: the detached value replaces this one, if this one
        # still is what it was detached from.
        if isinstance(value, Root):
            return self.compare_and_set(value.initial_value, value.get())
        raise UnsupportedOperation(f"a {type(self).__name__} without a lattice cannot merge values")

    def __str__(self) -> str:
        """Return the bounded text of the value; never raises."""
        try:
            return render(self._read())
        except DataLatticeError as error:
            return f"<{type(error).__name__}>"

    def __repr__(self) -> str:
        """Return the cursor's path, and its value or the number of entries in it; never raises."""
        try:
            value = self._read()
            if isinstance(value, Signed):
                value = value.value
            shown = render(value)
            # A container is counted, not shown: it may have millions of entries that are not
            # loaded.
            if isinstance(value, _COUNTED):
                shown = "1 entry" if len(value) == 1 else f"{len(value):,} entries"
        except DataLatticeError as error:
            shown = type(error).__name__
        return f"<{' '.join(['Cursor', *map(path_step, self._path_shown())])}: {shown}>"

    def _path_shown(self) -> Sequence[object]:
        """Return the keys that `repr` shows."""
        return ()


@mypyc_attr(allow_interpreted_subclasses=True)
class Root(Cursor):
    """A holder of one value."""

    __slots__ = ("_initial", "_reference")

    def __init__(self, value: object = None) -> None:
        self._initial: Final = to_cell(value)
        self._reference: Final = Reference(self._initial)

    @property
    def initial_value(self) -> Value:
        """The value at construction."""
        return self._initial

    def _watched(self) -> Reference:
        return self._reference

    def _read(self) -> Value:
        return self._reference.value

    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        return self._reference.apply(change)


class PathCursor(Cursor):
    """A cursor on the value at `keys` inside the value of `base`.

    `lattice`, if given, is that of the base's value: it defines what to create on the way.
    """

    __slots__ = ("_base", "_keys", "_lattice")

    def __init__(
        self, base: Cursor, keys: tuple[Value, ...], lattice: Lattice | None = None
    ) -> None:
        self._base: Final = base
        self._keys: Final = keys
        self._lattice: Final = lattice

    @property
    def initial_value(self) -> Value:
        """The value at the keys in the base's initial value."""
        return get_in(self._base.initial_value, self._keys)

    def path(self, *keys: object) -> Cursor:
        """Return a cursor on the value at `keys`; with no keys, this cursor."""
        # One cursor for all keys: in a chain of cursors a write would rebuild the value in each.
        return PathCursor(self._base, self._keys + cells(keys), self._lattice) if keys else self

    def _path_shown(self) -> Sequence[object]:
        return (*self._base._path_shown(), *self._keys)

    def _watched(self) -> Watched:
        return self._base._watched()

    def _read(self) -> Value:
        return get_in(self._base.get(), self._keys)

    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        before: Value = None
        after: Value = None

        def rebuild(whole: Value) -> Value:
            nonlocal before, after
            along = values_along(whole, self._keys)
            before = along[-1]
            after = change(before)
            if after is KEEP:
                after = before
                return KEEP
            # The lattice says which container to create for a missing step; without one it is an
            # error.
            return assoc_in(whole, self._keys, after, self._lattice, along)

        self._base._apply(rebuild, is_checked=is_checked)
        return before, after

    def _seed(self, value: Value) -> Value:
        # "If that is nil and a lattice is known at the end of the path, that lattice's zero".
        lattice = self._lattice_here() if value is None else None
        return value if lattice is None else lattice.zero()

    def _lattice_here(self) -> Lattice | None:
        return None if self._lattice is None else self._lattice.path(*self._keys)


def path_step(key: object) -> str:
    """Return the short text of one key of a path: an owner's public key by its first digits."""
    # A public key has as many bytes as a hash; eight digits are enough to recognise an owner.
    if isinstance(key, bytes) and len(key) == HASH_BYTES:
        return key.hex()[:8]
    return key.text() if isinstance(key, (Keyword, Symbol)) else render(key)


def cells(keys: Sequence[object]) -> tuple[Value, ...]:
    """Return the keys of a path as cells."""
    return tuple([to_cell(key) for key in keys])
