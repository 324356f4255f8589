"""Cursor vectors: recorded sequences of cursor operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import EMPTY_SET, Set, Value
from datalattice.conformance.checks import (
    expect,
    need,
    need_int,
    need_list,
    need_text,
    only_fields,
)
from datalattice.conformance.lattices import error_word
from datalattice.conformance.notation import (
    read_cell,
    read_cells,
    read_context,
    read_lattice,
)
from datalattice.conformance.registry import Fields, Mismatch, register_kind
from datalattice.conformance.sequences import (
    SEQUENCE_FIELDS,
    handle_of,
    new_name,
    returned,
    returns_nothing,
    run_steps,
    step_fields,
)
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import DataLatticeError

WORDS: Final = {"state": "state-error", "argument": "argument-error", "unsupported": "unsupported"}


class _Run:
    """One sequence being performed: the named cursors, and the sync callbacks counted."""

    def __init__(self) -> None:
        self.cursors: dict[str, LatticeCursor] = {}
        self.callbacks = 0

    def states(self) -> dict[str, Value]:
        return {name: cursor.get() for name, cursor in self.cursors.items()}

    def perform(self, step: Fields) -> None:
        operation = need_text(step, "op")
        known = _OPERATIONS.get(operation)
        if known is None:
            names = ", ".join(sorted(_OPERATIONS))
            raise Mismatch(f"unknown operation {operation!r} on a cursor; known: {names}")
        known(self, step)
        expect("sync_callbacks", need_int(step, "sync_callbacks"), self.callbacks)

    # --- handles ---

    def root(self, step: Fields) -> None:
        step_fields(step, "lattice", "context", "value", "sync_callbacks")
        returns_nothing(step)
        self.cursors[new_name(self.cursors, need_text(step, "on"))] = RootLattice(
            read_lattice(need(step, "lattice")),
            read_cell(need(step, "value"), "value"),
            read_context(need(step, "context")),
            on_sync=self._synced,
            strict=False,  # the seed writes whatever it is given
        )

    def path(self, step: Fields) -> None:
        step_fields(step, "as", "keys", "sync_callbacks")
        returns_nothing(step)
        keys = read_cells(need_list(step, "keys"), "keys")
        self._name(step, self._cursor(step).path(*keys))

    def fork(self, step: Fields) -> None:
        step_fields(step, "as", "sync_callbacks")
        returns_nothing(step)
        self._name(step, self._cursor(step).fork())

    # --- writes ---

    def set(self, step: Fields) -> None:
        step_fields(step, "value", "sync_callbacks")
        cursor, value = self._cursor(step), read_cell(need(step, "value"), "value")
        self._attempt(step, lambda: cursor.set(value))

    def assoc(self, step: Fields) -> None:
        step_fields(step, "key", "value", "sync_callbacks")
        cursor, value = self._cursor(step), read_cell(need(step, "value"), "value")
        key = read_cell(need(step, "key"), "key")
        self._attempt(step, lambda: cursor.assoc(key, value))

    def assoc_in(self, step: Fields) -> None:
        step_fields(step, "keys", "value", "sync_callbacks")
        cursor, value = self._cursor(step), read_cell(need(step, "value"), "value")
        keys = read_cells(need_list(step, "keys"), "keys")
        self._attempt(step, lambda: cursor.assoc_in(value, *keys))

    def merge(self, step: Fields) -> None:
        step_fields(step, "value", "sync_callbacks")
        cursor, value = self._cursor(step), read_cell(need(step, "value"), "value")
        self._attempt(step, lambda: cursor.merge(value))

    def update_include(self, step: Fields) -> None:
        step_fields(step, "value", "sync_callbacks")
        cursor, value = self._cursor(step), read_cell(need(step, "value"), "value")
        self._attempt(step, lambda: cursor.update(lambda current: _include(current, value)))

    def compare_and_set(self, step: Fields) -> None:
        step_fields(step, "expected", "value", "sync_callbacks")
        cursor, value = self._cursor(step), read_cell(need(step, "value"), "value")
        expected = read_cell(need(step, "expected"), "expected")
        returned(step, cursor.compare_and_set(expected, value))

    def sync(self, step: Fields) -> None:
        step_fields(step, "sync_callbacks")
        self._attempt(step, self._cursor(step).sync)

    # --- shared ---

    def _cursor(self, step: Fields) -> LatticeCursor:
        return handle_of(self.cursors, need_text(step, "on"))

    def _name(self, step: Fields, cursor: LatticeCursor) -> None:
        self.cursors[new_name(self.cursors, need_text(step, "as"))] = cursor

    def _synced(self, value: Value) -> Value:
        self.callbacks += 1
        return value

    def _attempt(self, step: Fields, action: Callable[[], object]) -> None:
        try:
            action()
        except DataLatticeError as error:
            returned(step, WORDS[error_word(error)])
            return
        returned(step, "ok")


def _include(current: Value, element: Value) -> Value:
    if current is not None and not isinstance(current, Set):
        raise Mismatch("update_include works on a set")
    return (EMPTY_SET if current is None else current).add(element)


_OPERATIONS: Final[dict[str, Callable[[_Run, Fields], None]]] = {
    "root": _Run.root,
    "path": _Run.path,
    "fork": _Run.fork,
    "set": _Run.set,
    "assoc": _Run.assoc,
    "assoc_in": _Run.assoc_in,
    "merge": _Run.merge,
    "update_include": _Run.update_include,
    "compare_and_set": _Run.compare_and_set,
    "sync": _Run.sync,
}


def run_cursor_sequence(fields: Fields) -> None:
    """Check a recorded sequence of cursor operations."""
    only_fields(fields, SEQUENCE_FIELDS)
    run = _Run()
    run_steps(fields, run.states, run.perform)


register_kind("cursor-sequence", run_cursor_sequence)
