"""Binding: the services of a node that its handles use beside their cursor; and `Owner`.

`Queue`, `Topic`, `Database`, `Drive` and `Venue` read and write through one cursor. Names of
owners, positions of consumers and reports concern the folder. A handle gets them through a
`Binding`: `X.at(root, owner, ..., binding=binding)` keeps it, and passes it on to the handles it
makes. The package `client` implements it. Without a binding, the calls that need one raise
`UsageError` (`bound`).

Waiting for changes needs no binding: `cursor.subscribe(wake)` calls `wake` after a change in this
process, and for a handle of an open folder also after a change by another process.

Source: docs/design/front-door.md "Handles".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final, Protocol, TypeVar

from datalattice.cells import Value, to_cell
from datalattice.cursors import LatticeCursor
from datalattice.errors import NoSigningKey, UsageError
from datalattice.lattice import MergeNotice, did_of

T = TypeVar("T")


class Owner:
    """One owner of data: a public key, or another cell such as a DID. Equal if the keys are.

    `str` gives the local name, else the first 8 hex digits of the key, or as many as are unique
    among the owners of the folder.
    """

    __slots__ = ("_text", "key")

    def __init__(self, key: Value, text: str | None = None) -> None:
        self.key: Final = key
        self._text: Final = text

    @property
    def hex(self) -> str:
        """The public key in 64 hex digits; another owner cell as text."""
        return self.key.hex() if isinstance(self.key, bytes) else str(self.key)

    @property
    def did(self) -> str:
        """The `did:key` of the public key; another owner cell as text."""
        return did_of(self.key) if isinstance(self.key, bytes) else str(self.key)

    def __str__(self) -> str:
        if self._text is not None:
            return self._text
        return self.hex[:8] if isinstance(self.key, bytes) else self.hex

    def __repr__(self) -> str:
        return f"<Owner {self}>"

    def __eq__(self, other: object) -> bool:
        # By key alone: each folder gives owners its own names.
        return isinstance(other, Owner) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def owner_cell(owner: object) -> Value:
    """Return the cell that stands for an owner in a path; `owner` is an `Owner` or such a cell."""
    return owner.key if isinstance(owner, Owner) else to_cell(owner)


class Binding(Protocol):
    """A node as its handles see it. Threads may share it."""

    @property
    def root(self) -> LatticeCursor:
        """The cursor on the root of the folder's data: every change is durable when it returns.

        Inside `node.batch()`, what this thread or task reads and writes is the batch's draft.
        """
        ...

    @property
    def own(self) -> bytes:
        """The public key of the default owner. Raises: NoSigningKey: the folder has no key."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether every write raises `ReadOnly`: the node is open with `read_only` or `as_of`."""
        ...

    def owner(self, key: Value) -> Owner:
        """Return the owner with this key, with its local name."""
        ...

    def edit(self, change: Callable[[LatticeCursor], T]) -> T:
        """Make several writes below the root one durable edit; return what `change` returned.

        `change` gets a root cursor to write below. It may run several times, on newer roots, and
        must do nothing else. Inside `node.batch()` it becomes a part of the batch.
        """
        ...

    def on_undo(self, undo: Callable[[], None]) -> bool:
        """Call `undo` if the batch of this thread or task fails; return whether it has a batch.

        For state in memory that follows the data, such as the position of a consumer.
        """
        ...

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock `name` of this folder on this machine; return the call that releases it.

        Raises: StoreLocked: another process, or another caller in this one, has it.
        """
        ...

    def file_system(self, drive: object) -> Any:
        """Return a drive as an fsspec file system."""
        ...

    def report(self, event: MergeNotice) -> None:
        """Pass a report to `node.events()`."""
        ...

    def to_arrow(self, handle: object, **options: Any) -> Any:
        """Return the rows of a handle as a `pyarrow.RecordBatchReader`; see its `to_arrow`."""
        ...

    def rows_of(
        self, table: object, key: str | None, value: str | None
    ) -> Iterator[tuple[Any, list[Any]]]:
        """Yield (keys, values) of a table's rows, in groups of as many rows as one edit takes."""
        ...


class Tabular(ABC):
    """Rows that DuckDB, Polars and pandas read in place as Arrow: `duckdb.sql("from queue")`."""

    __slots__ = ()

    @abstractmethod
    def to_arrow(self) -> Any:
        """Return the rows as they are now, as a `pyarrow.RecordBatchReader`."""

    def to_pandas(self, **options: Any) -> Any:
        """Return the rows as a `pandas.DataFrame`; the options are those of `to_arrow`.

        Raises: UsageError: pandas is missing. Others as `to_arrow`.
        """
        if find_spec("pandas") is None:
            raise UsageError("to_pandas needs pandas: pip install pandas")
        return self.to_arrow(**options).read_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as Arrow's C stream."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


def bound(binding: Binding | None, call: str) -> Binding:
    """Return the binding of a handle, for `call`, which needs one.

    Raises: UsageError: the handle was made without one.
    """
    # "A handle without one raises `UsageError` for these calls" (docs/design/front-door.md
    # "Decisions").
    if binding is None:
        raise UsageError(f"{call} needs a node: get the handle from datalattice.open(...)")
    return binding


def handle_text(
    kind: str, name: str, owner: Value, binding: Binding | None, state: Callable[[], str]
) -> str:
    """Return the `repr` of a handle: `<Database 'shop' of north (read only): 2 keys>`.

    Never raises: if `state` or a name fails, the error's type stands in place of the state.
    """
    try:
        title = f"{kind} {name}" if name else kind
        shown = _owner_text(owner, binding)
        if binding is not None and binding.is_read_only:
            shown += " (read only)"
        return f"<{title}{shown}: {state()}>"
    except Exception as error:  # noqa: BLE001 - a debugger calls it at any time, also after close
        return f"<{kind} {name}: {type(error).__name__}>"


def _owner_text(owner: Value, binding: Binding | None) -> str:
    if owner is None:
        return ""
    if binding is None:  # only a folder gives names to owners
        return f" of {Owner(owner)}"
    try:
        is_own = owner == binding.own
    except NoSigningKey:  # a folder that is only read has no key
        is_own = False
    return " of own" if is_own else f" of {binding.owner(owner)}"


__all__ = ["Binding", "Owner", "Tabular", "bound", "handle_text", "owner_cell"]
