"""Lattice cursors: handles that know the lattice of their value, so they create, merge and sync.

A fork is a working copy. Its `sync` merges its edits into the parent and the parent's changes into
the fork; it goes one level up and calls no callback. Only the `sync` of a root calls a callback,
which stores and replicates the value.

Source: CAD035 "Signed cursor", "Merge", "Sync", "Path navigation"; docs/cursors.md; CAD024 "Signed
    cursor", "Fork and sync", "Lattice cursors"; docs/design/decisions.md "D-SC", "D10".
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from datalattice.cells import Signed, Value, brief, same, to_cell, unchanged
from datalattice.crypto import KeyPair
from datalattice.cursors.base import (
    KEEP,
    ChangeFunction,
    Cursor,
    PathCursor,
    Reference,
    Root,
    Update,
    Watched,
    cells,
)
from datalattice.cursors.refusals import is_guarded, refusals
from datalattice.errors import BadSignature, NoSigningKey, TypeMismatch, UnsupportedOperation
from datalattice.forking import freed_in_child
from datalattice.lattice import (
    EMPTY_CONTEXT,
    Lattice,
    MergeContext,
    OwnerLattice,
    SignedLattice,
    assoc_in,
)

SyncCallback = Callable[[Value], object]
"""Called with the value of a root that syncs; returns an equal value, or one to merge."""

Gate = Callable[[MergeContext], None]
"""Called with the context before a write below an owner. It may wait; it raises to refuse."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LatticeCursor(Cursor):
    """A cursor whose value has a lattice (or none, below the last lattice of a path)."""

    __slots__ = ("_context", "_gate", "_lattice", "_strict")

    def __init__(
        self,
        lattice: Lattice | None,
        context: MergeContext,
        *,
        strict: bool,
        gate: Gate | None = None,
    ) -> None:
        self._lattice: Final = lattice
        self._context = context
        self._strict: Final = strict
        self._gate: Final = gate

    @property
    def lattice(self) -> Lattice | None:
        """The lattice of the value, None below the last lattice of a path."""
        return self._lattice

    @property
    def context(self) -> MergeContext:
        """The context of merges and signatures made here; its path is this cursor's."""
        return self._context

    def _path_shown(self) -> Sequence[object]:
        return self._context.path

    def with_context(self, context: MergeContext) -> LatticeCursor:
        """Set the context of this cursor and return it; existing child cursors keep theirs."""
        self._context = context.at(self._context.path, self._context.owner)
        return self

    def path(self, *keys: object) -> LatticeCursor:
        """Return a cursor on the value at `keys`; with no keys, this cursor.

        Inside a signed value, reads are verified and writes are signed. Keys of keyed and signed
        levels become canonical; others are used as given.
        """
        cursor: LatticeCursor = self
        lattice, context = self._lattice, self._context
        pending: list[Value] = []
        for given in cells(keys):
            # "`"data"` and `:data` write the same cell" (docs/design/decisions.md "D10").
            key = given if lattice is None else lattice.canonical_key(given)
            owner = key if isinstance(lattice, OwnerLattice) else context.owner
            below = context.at((*context.path, key), owner)
            child = None if lattice is None else lattice.child(key)
            # "Where it enters a signed value (`:value`) a `SignedCursor` takes over; everything
            # between two such borders is one `Descended`" (docs/cursors.md "Paths").
            if isinstance(lattice, SignedLattice) and child is not None:
                if pending:
                    cursor = Descended(cursor, tuple(pending), lattice, context)
                    pending = []
                cursor = SignedCursor(cursor, child, below, strict=self._strict)
            else:
                pending.append(key)
            lattice, context = child, below
        return Descended(cursor, tuple(pending), lattice, context) if pending else cursor

    def fork(self) -> ForkedLattice:
        """Return a working copy of the current value."""
        self._pass_gate()  # a fork of a stale value could not be written back
        return ForkedLattice(self)

    @abstractmethod
    def sync(self) -> Value:
        """Merge the value with the cursor above this one; return it."""

    def push(self) -> None:
        """Sync as `sync` does, without reading the value afterwards."""
        self.sync()

    def merge(self, value: object) -> Value:
        """Merge `value`, whose shape the caller has checked, into the value; return the result.

        A detached cursor replaces instead of merging: see `Cursor.merge`.
        Raises: UnsupportedOperation: there is no lattice.
        """
        lattice = self._lattice
        if lattice is None or isinstance(value, Root):
            return super().merge(value)
        cell, context = to_cell(value), self._context
        return self.adopt(lambda current: lattice.merge(current, cell, context))

    def adopt(self, function: Update) -> Value:
        """Replace the value by `function(value)` without checks; return it.

        For merges and for values that are durable already.
        """
        return self._update(function, is_checked=True)[1]

    def _accepted(self, change: ChangeFunction) -> ChangeFunction:
        """Return `change`, made to raise if its result may not be written here."""
        lattice, context = self._lattice, self._context
        # A write inside a signed value is checked when `SignedCursor` signs it.
        if lattice is None or not self._strict or context.is_signed or not is_guarded(lattice):
            return change

        def guarded(current: Value) -> Value:
            after = change(current)
            # The first refusal ends the write: nothing of it was stored.
            if after is not KEEP:
                for refused in refusals(lattice, current, after, context):
                    raise refused.error
            return after

        return guarded

    def _lattice_here(self) -> Lattice | None:
        return self._lattice

    def _pass_gate(self) -> None:
        """Wait until values below an owner may be written, if a gate restricts that."""
        # A gate guards owners' values only: sections without an owner have no offsets to repeat.
        if self._gate is not None and self._context.owner is not None:
            self._gate(self._context)


@mypyc_attr(allow_interpreted_subclasses=True)
class _Holder(LatticeCursor):  # not a Root too: a compiled class has one base
    """A lattice cursor that holds its value itself."""

    __slots__ = ("_initial", "_reference")

    _initial: Value
    _reference: Reference

    @property
    def initial_value(self) -> Value:
        """The value that this cursor began with."""
        return self._initial

    def _watched(self) -> Reference:
        return self._reference

    def _read(self) -> Value:
        return self._reference.value

    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        return self._reference.apply(change if is_checked else self._accepted(change))


@mypyc_attr(allow_interpreted_subclasses=True)
class RootLattice(_Holder):
    """The top of a tree of lattice cursors.

    strict: below an owner, read and write only values signed by a key of this owner.
            "`strict=False` leaves that out, for tests and vectors" (docs/design/decisions.md
            "D-SC").
    gate:   called before a write or a fork below an owner: see `Gate`.
    """

    __slots__ = ("_on_sync",)

    def __init__(
        self,
        lattice: Lattice | None,
        value: object = None,
        context: MergeContext = EMPTY_CONTEXT,
        on_sync: SyncCallback | None = None,
        *,
        strict: bool = True,
        gate: Gate | None = None,
    ) -> None:
        super().__init__(lattice, context, strict=strict, gate=gate)
        self._initial = to_cell(value)
        self._reference = Reference(self._initial)
        self._on_sync: Final = on_sync

    def sync(self) -> Value:
        """Pass the value to the sync callback, adopt the value that it returns, and return it.

        A write made meanwhile is merged with it. Without a callback nothing happens.
        Raises: UnsupportedOperation: there was a write meanwhile, and there is no lattice.
        """
        current = self._read()
        if self._on_sync is None:
            return current
        synced = to_cell(self._on_sync(current))
        # By identity: a write made meanwhile, even of an equal value, is another object.
        if synced is current or self._reference.swap(current, synced):
            return synced
        # Replacing the value would lose the write that was made while the callback ran.
        return self.merge(synced)


class ForkedLattice(_Holder):
    """A working copy of the value of `parent`."""

    __slots__ = ("_fork_point", "_parent", "_syncing")

    def __init__(self, parent: LatticeCursor) -> None:
        super().__init__(parent.lattice, parent.context, strict=parent._strict, gate=parent._gate)
        self._parent: Final = parent
        self._initial = parent.get()
        self._fork_point: Value = self._initial
        self._reference = Reference(self._initial)
        self._syncing: Final = freed_in_child(threading.Lock())

    def sync(self) -> Value:
        """Merge the edits made here with the parent's value, on both sides; return the result.

        An unchanged parent adopts the very object held here. Without a lattice the parent's value
        is overwritten. Writes made here meanwhile are kept for the next sync.
        """
        # One sync at a time: the fork point and the value must belong together.
        with self._syncing:
            local, fork_point = self._read(), self._fork_point

            def join(theirs: Value) -> Value:
                # Parent and fork already hold the same object.
                if theirs is local:
                    return KEEP
                # "It takes over the fork's very object" (docs/cursors.md "Fork and sync"): no
                # merge, and no new cells.
                if theirs is fork_point or same(theirs, fork_point):
                    return local
                return self._joined(local, theirs)

            synced = self._parent._apply(join)[1]
            # A write was made here meanwhile: it is merged with the parent's value, and stays.
            if not self._reference.swap(local, synced) and self._lattice is not None:
                self._reference.apply(lambda current: self._joined(current, synced))
            self._fork_point = synced
            return synced

    def _joined(self, own: Value, other: Value) -> Value:
        # Without a lattice the fork overwrites: nothing says how to merge.
        return own if self._lattice is None else self._lattice.merge(own, other, self._context)


class Descended(LatticeCursor):
    """A cursor on the value at `keys` inside the value of a lattice cursor."""

    __slots__ = ("_keys", "_parent", "_path", "_reference")

    def __init__(
        self,
        parent: LatticeCursor,
        keys: tuple[Value, ...],
        lattice: Lattice | None,
        context: MergeContext,
    ) -> None:
        super().__init__(lattice, context, strict=parent._strict, gate=parent._gate)
        self._parent: Final = parent
        self._keys: Final = keys
        self._path: Final = PathCursor(parent, self._keys, parent.lattice)
        self._reference: Final[Watched] = parent._watched()

    @property
    def initial_value(self) -> Value:
        """The value at the keys in the parent's initial value."""
        return self._path.initial_value

    def sync(self) -> Value:
        """Sync the parent; return the value."""
        self.push()
        return self._read()

    def push(self) -> None:
        """Sync the parent."""
        # Only a root or a fork has something to sync with; the cursors below pass it on.
        self._parent.push()

    def merge(self, value: object) -> Value:
        """Merge `value` into the value and return the result.

        Below the last lattice of the path, the parent merges its value with `value` written in.
        Raises: UnsupportedOperation: no cursor above has a lattice.
        """
        if self._lattice is not None or isinstance(value, Root):
            return super().merge(value)
        parent = self._parent
        # No lattice knows this value, so it is merged as part of the last one that a lattice knows.
        parent.merge(assoc_in(parent.get(), self._keys, to_cell(value), parent.lattice))
        return self._read()

    def _watched(self) -> Watched:
        return self._reference

    def _read(self) -> Value:
        return self._path._read()

    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        return self._path._apply(change, is_checked=is_checked)

    def _seed(self, value: Value) -> Value:
        return self._lattice.zero() if value is None and self._lattice is not None else value


class SignedCursor(LatticeCursor):
    """A cursor on the value inside a signed cell: reads are verified, writes are signed.

    base:    a cursor whose value is a Signed cell or None.
    lattice: the lattice of the value inside the cell.
    context: has the key that signs and, if the path has one, the owner.
    """

    __slots__ = ("_base",)

    def __init__(
        self,
        base: Cursor,
        lattice: Lattice | None,
        context: MergeContext = EMPTY_CONTEXT,
        *,
        strict: bool = True,
    ) -> None:
        gate = base._gate if isinstance(base, LatticeCursor) else None
        super().__init__(lattice, context, strict=strict, gate=gate)
        self._base: Final = base

    @property
    def initial_value(self) -> Value:
        """The value inside the base's initial cell."""
        return self._opened(self._base.initial_value)

    def sync(self) -> Value:
        """Sync the base; return the value.

        Raises: UnsupportedOperation: the base is not a lattice cursor.
        """
        self.push()
        return self._read()

    def push(self) -> None:
        """Sync the base; raises as `sync`."""
        if not isinstance(self._base, LatticeCursor):
            raise UnsupportedOperation(
                f"sync cannot propagate: the base is a {type(self._base).__name__}, "
                "not a lattice cursor"
            )
        self._base.push()

    def _watched(self) -> Watched:
        return self._base._watched()

    def _read(self) -> Value:
        return self._opened(self._base.get())

    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        before: Value = None
        after: Value = None

        def reseal(cell: Value) -> Value:
            nonlocal before, after
            before = self._opened(cell)
            after = change(before)
            if after is KEEP:
                after = before
                return KEEP
            # Signed inside the change: if another thread was faster, it is signed again over its
            # value.
            return self._sealed(cell, before, after)

        # Before anything is signed, since a gate may refuse the write.
        self._pass_gate()
        # `_signer` takes a key of the owner, so the levels below need not check the slot again.
        is_checked = self._strict and self._context.owner is not None
        self._base._apply(reseal, is_checked=is_checked)
        return before, after

    def _seed(self, value: Value) -> Value:
        return self._lattice.zero() if value is None and self._lattice is not None else value

    def _opened(self, cell: Value) -> Value:
        """Return the value inside a cell, None for None.

        Raises: BadSignature: "were it read as nil, the next write would replace it unnoticed"
                (docs/design/decisions.md "D-SC").
        """
        if cell is None:
            return None
        if not isinstance(cell, Signed):
            raise TypeMismatch(f"the value is not Signed: {type(cell).__name__}")
        context = self._context
        signer, owner = cell.public_key, context.owner
        # Only values signed by a key of this owner count. This check is cheaper than that of the
        # signature, so it is first.
        if self._strict and owner is not None and not context.verify_owner(owner, signer):
            raise BadSignature(
                f"the value at {brief(context.path)} is signed by 0x{signer.hex()}, "
                "which may not sign for its owner"
            )
        if not cell.verify():
            raise BadSignature(
                f"the value at {list(context.path)} is not what 0x{signer.hex()} signed"
            )
        return cell.value

    def _sealed(self, cell: Value, before: Value, after: Value) -> Value:
        """Return the cell to write for a new value: the current one if its value is the same."""
        # "Writing nil stores nil (no signature needed)"; if strict, only a key of the owner may
        # remove a value.
        if after is None and (cell is None or not self._strict):
            return None
        key_pair = self._signer()
        if after is None:
            return None
        lattice = self._lattice
        # A value of the same type is not checked again: check_foreign may cost more than the write.
        is_new_kind = self._strict and type(before) is not type(after)
        if is_new_kind and lattice is not None and not lattice.check_foreign(after):
            raise TypeMismatch(
                f"a {type(after).__name__} is not accepted at {brief(self._context.path)}: "
                f"{lattice!r} takes another type"
            )
        if (
            # An equal value keeps its cell: a new signature would be a new root to replicate.
            isinstance(cell, Signed)
            and cell.public_key == key_pair.public_key
            and unchanged(before, after)
        ):
            return cell
        return Signed.sign(key_pair, after)

    def _signer(self) -> KeyPair:
        """Return the key pair that signs writes here.

        Raises: NoSigningKey: the context has no key that may sign.
        """
        context = self._context
        owner, identity = context.owner, context.key_pair
        # Without an owner in the path there is only the identity of this machine.
        key_pair = identity if owner is None else context.signer(owner)
        if key_pair is not None:
            return key_pair
        # Two different mistakes: a context without any key, or without a key of this owner.
        if identity is None and not len(context.keys):
            raise NoSigningKey(
                "a write below a signature needs a MergeContext with key_pair: see with_context"
            )
        if self._strict or identity is None:
            raise NoSigningKey(
                f"no key here may sign for the owner {brief(owner)}; it may be read, not written"
            )
        return identity
