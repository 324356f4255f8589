"""Cursor vectors: recorded sequences of cursor operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import EMPTY_SET, Set, Value
from datalattice.conformance.checks import Fields, Mismatch
from datalattice.conformance.lattices import error_word
from datalattice.conformance.notation import (
    lattice_field,
    need_cell,
    need_cells,
    read_context,
)
from datalattice.conformance.registry import register_kind
from datalattice.conformance.sequences import SEQUENCE_FIELDS, SequenceRun, operation, returned
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import DataLatticeError

# Sequences name errors in longer words than the lattice vectors do.
WORDS: Final = {"state": "state-error", "argument": "argument-error", "unsupported": "unsupported"}


class _Cursors(SequenceRun[LatticeCursor]):
    """One sequence on cursors, with the number of calls of the roots' sync callback."""

    what = "a cursor"
    fields = ("sync_callbacks",)

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = 0

    def value_of(self, handle: LatticeCursor) -> Value:
        return handle.get()

    def perform(self, step: Fields) -> None:
        super().perform(step)
        # After every step: a callback too many is as wrong as one too few.
        step.expect("sync_callbacks", self.callbacks)

    @operation("lattice", "context", "value", silent=True)
    def root(self, step: Fields) -> None:
        made = RootLattice(
            lattice_field(step),
            need_cell(step, "value"),
            read_context(step.need("context")),
            on_sync=self._synced,
            strict=False,  # the vectors write values that a strict cursor refuses
        )
        self.add(step, "on", made)

    @operation("as", "keys", silent=True)
    def path(self, step: Fields) -> None:
        self.add(step, "as", self.on(step).path(*need_cells(step, "keys")))

    @operation("value")
    def set(self, step: Fields) -> None:
        cursor, value = self.on(step), need_cell(step, "value")
        _attempt(step, lambda: cursor.set(value))

    @operation("key", "value")
    def assoc(self, step: Fields) -> None:
        cursor, key, value = self.on(step), need_cell(step, "key"), need_cell(step, "value")
        _attempt(step, lambda: cursor.assoc(key, value))

    @operation("keys", "value")
    def assoc_in(self, step: Fields) -> None:
        cursor, keys, value = self.on(step), need_cells(step, "keys"), need_cell(step, "value")
        _attempt(step, lambda: cursor.assoc_in(value, *keys))

    @operation("value")
    def merge(self, step: Fields) -> None:
        cursor, value = self.on(step), need_cell(step, "value")
        _attempt(step, lambda: cursor.merge(value))

    @operation("value")
    def update_include(self, step: Fields) -> None:
        cursor, value = self.on(step), need_cell(step, "value")
        _attempt(step, lambda: cursor.update(lambda current: _include(current, value)))

    @operation("expected", "value")
    def compare_and_set(self, step: Fields) -> None:
        cursor, value = self.on(step), need_cell(step, "value")
        returned(step, cursor.compare_and_set(need_cell(step, "expected"), value))

    @operation()
    def sync(self, step: Fields) -> None:
        _attempt(step, self.on(step).sync)

    def _synced(self, value: Value) -> Value:
        self.callbacks += 1
        return value


def _attempt(step: Fields, action: Callable[[], object]) -> None:
    try:
        action()
    except DataLatticeError as error:
        returned(step, WORDS[error_word(error)])
        return
    returned(step, "ok")


def _include(current: Value, element: Value) -> Value:
    # The vectors use this operation on sets only; anything else is a fault of the vector.
    if current is not None and not isinstance(current, Set):
        raise Mismatch("update_include works on a set")
    return (EMPTY_SET if current is None else current).add(element)


def run_cursor_sequence(fields: Fields) -> None:
    """Check a recorded sequence of cursor operations."""
    fields.only(*SEQUENCE_FIELDS)
    _Cursors().run(fields)


register_kind("cursor-sequence", run_cursor_sequence)
