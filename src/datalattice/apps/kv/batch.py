"""Batch: writes that become visible together, in one update of the database.

A batch works on a snapshot and records its steps. If the database is unchanged at commit, the
batch's version of the snapshot replaces the store. Otherwise the steps run again on the current
store, inside one update, so that concurrent writes and increments are kept.

Source: docs/kv.md "Batches".
"""

from __future__ import annotations

from typing import Any, Final, Self

from datalattice.apps.kv.operations import Operations, R, TableEdit
from datalattice.apps.kv.typed import TypedOperations
from datalattice.apps.valuetypes import T
from datalattice.cells import Index, same
from datalattice.errors import UsageError


class Batch(TypedOperations[T]):
    """Writes to a database that are committed together; from `Database.batch`, for one thread."""

    __slots__ = ("_base", "_database", "_done", "_staged", "_steps")

    def __init__(self, database: Operations[T]) -> None:
        self._clock = database._clock
        self._type = database._type
        self._replica = database.replica
        self._database: Final = database
        self._base: Final = database.store()
        self._staged = self._base
        self._steps: list[TableEdit[Any]] = []
        self._done = False

    def store(self) -> Index:
        """Return the store as this batch sees it: the snapshot at its start plus its own writes."""
        return self._staged

    def _apply(self, step: TableEdit[R]) -> R:
        if self._done:
            raise UsageError("the batch is over: begin another one")
        self._staged, result = step(self._staged)
        self._steps.append(step)
        return result

    def commit(self) -> None:
        """Make the writes visible; `with` calls it when the block ends without an error.

        Raises: UsageError: the batch is over. WrongType: another writer has changed a key's type;
                nothing of the batch is written.
        """
        if self._done:
            raise UsageError("the batch is over: begin another one")
        self._done = True
        if self._staged is not self._base:
            # "An error inside the block, or `WrongType` when it is committed, writes nothing"
            # (docs/kv.md "Batches").
            self._database._apply(self._settle)

    def _settle(self, store: Index) -> tuple[Index, None]:
        if store is self._base or same(store, self._base):
            return self._staged, None
        # "The operations run again on what is there" (docs/kv.md "Batches").
        for step in self._steps:
            store, _result = step(store)
        return store, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._done:
            self.commit()
        self._done = True

    def __repr__(self) -> str:
        return f"Batch(writes={len(self._steps)})"
