"""Options of `lattice.cells`, parsed into frozen records for reading and for writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from datalattice.errors import UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.options import (
    Given,
    Refused,
    bad_option,
    columns_option,
    flag_option,
    folder_option,
    hash_of,
    min_partitions_option,
    text_option,
)
from datalattice.store import STORE_FILE, store_in
from datalattice.store.kept import check_name as check_pin_name

TYPES: Final = {"hash": "BINARY", "encoding": "BINARY", "refs": "ARRAY<BINARY>"}
"""Every column, in order, with its type in Spark's DDL."""

READ_OPTIONS: Final = ("store", "path", "columns", "verify", "minPartitions")
WRITE_OPTIONS: Final = ("store", "path", "staging", "root", "pin", "merge")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of reading; `CellsSource` documents them."""

    folder: str
    """The folder of the store, not of the node."""
    columns: tuple[str, ...]
    verify: bool
    min_partitions: int

    @property
    def types(self) -> dict[str, str]:
        """Each column's type in the order of the rows."""
        return {name: TYPES[name] for name in self.columns}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of writing; `CellsSource` documents them."""

    folder: str
    """The folder of a node, or of a store."""
    is_node: bool
    staging: str
    root: bytes
    pin: str
    merge: bool

    @property
    def store(self) -> str:
        """The folder of the store, not of the node."""
        return f"{self.folder}/store" if self.is_node else self.folder


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of reading. Raises: UsageError: one is not accepted or missing."""
    options = Given(given, READ_OPTIONS)
    path = _folder(options)
    folder = store_in(path)
    if folder is None:
        raise bad_option("store", path, "there is no store; give the folder of a store or a node")
    all_columns: tuple[str, ...] = tuple(TYPES)
    return ReadOptions(
        folder=str(folder.absolute()),
        columns=options.get("columns", columns_option(all_columns), all_columns),
        verify=options.get("verify", flag_option, True),
        min_partitions=options.get("minPartitions", min_partitions_option, 1),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of writing with absolute paths. Raises: as `read_options`."""
    options = Given(given, WRITE_OPTIONS)
    folder = Path(_folder(options)).expanduser().absolute()
    from datalattice.client import Folder

    is_node = Folder(folder).key_path.is_file() or (folder / "store" / STORE_FILE).is_file()
    if not is_node and folder.exists() and not (folder / STORE_FILE).is_file():
        raise bad_option(
            "store", folder, "it is neither the folder of a node, nor a store, nor a new folder"
        )
    root = options.get("root", _hash_option, None)
    if root is None:
        raise UsageError(
            "option root is missing: the hash of the value whose cells are written, 0x and "
            f"{2 * HASH_BYTES} hex digits"
        )
    pin = options.get("pin", _pin_option, "")
    merge = options.get("merge", flag_option, False)
    # Cells that nothing refers to are garbage from the start.
    if not pin and not merge:
        raise UsageError(
            "option pin or merge=true is missing: a name that keeps the value, or its merge into "
            "the root; otherwise the next collection would remove it"
        )
    default = folder / "staging" if is_node else folder.with_name(folder.name + ".staging")
    staging = options.get("staging", text_option, "")
    return WriteOptions(
        folder=str(folder),
        is_node=is_node,
        staging=str(Path(staging).expanduser().absolute() if staging else default),
        root=root,
        pin=pin,
        merge=merge,
    )


def _folder(options: Given) -> str:
    folder = folder_option(options)
    if not folder:
        raise UsageError(
            "option store is missing: give the folder of a store, as store or to load() or save()"
        )
    return folder


def _pin_option(text: str) -> str:
    try:
        return check_pin_name(text)
    except UsageError as error:
        raise Refused(str(error)) from None


def _hash_option(text: str) -> bytes:
    found = hash_of(text)
    if found is None:
        raise Refused(f"the hash of a cell, 0x and {2 * HASH_BYTES} hex digits")
    return found
