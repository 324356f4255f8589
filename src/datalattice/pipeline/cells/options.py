"""Options of `lattice.cells`, parsed into frozen records for reading and for writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from datalattice.arrow import CELL_TYPES
from datalattice.errors import UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.options import (
    Given,
    Refused,
    bad_option,
    checked_option,
    columns_option,
    flag_option,
    folder_option,
    hash_of,
    min_partitions_option,
    option,
    parse_option_record,
    text_option,
)
from datalattice.store import STORE_FILE, store_in
from datalattice.store.kept import check_name as check_pin_name


def _hash_option(text: str) -> bytes:
    found = hash_of(text)
    if found is None:
        raise Refused(f"the hash of a cell, 0x and {2 * HASH_BYTES} hex digits")
    return found


@dataclass(frozen=True, slots=True)
class CellReadOptions:
    """The options of reading `lattice.cells`.

    | option | meaning | default |
    |---|---|---|
    | `store` | the folder of a store, or of a node; also the argument of `load` | required |
    | `columns` | the columns to read, in this order | all |
    | `verify` | `false` skips the comparison with the hash | `true` |
    | `minPartitions` | least number of tasks, if there are enough segments; up to 262,144 | |
    """

    folder: str = option("store", text_option, "")
    columns: tuple[str, ...] = option(
        "columns", columns_option(tuple(CELL_TYPES)), tuple(CELL_TYPES)
    )
    verify: bool = option("verify", flag_option, True)
    min_partitions: int = option("minPartitions", min_partitions_option, 1)

    @property
    def types(self) -> dict[str, str]:
        """Each column's type in the order of the rows."""
        return {name: CELL_TYPES[name] for name in self.columns}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of writing `lattice.cells`.

    | option | meaning | default |
    |---|---|---|
    | `store` | the folder of a node, running or not, or of a store, made if necessary; also the
      argument of `save` | required |
    | `root` | the hash of the value | required |
    | `pin` | name of a pin that keeps the value | this or `merge` is required |
    | `merge` | `true` merges the value into the root like data from a peer | `false` |
    | `staging` | a folder that the driver and all tasks can reach | `staging` in the node's folder,
      or beside the store's |
    """

    folder: str = option("store", text_option, "")
    root: bytes = option("root", _hash_option, b"")
    pin: str = option("pin", checked_option(check_pin_name), "")
    merge: bool = option("merge", flag_option, False)
    staging: str = option("staging", text_option, "")
    is_node: bool = False

    @property
    def store(self) -> str:
        """The folder of the store, not of the node."""
        return f"{self.folder}/store" if self.is_node else self.folder


def read_options(given: Mapping[str, str]) -> CellReadOptions:
    """Parse the options of reading. Raises: UsageError: one is not accepted or missing."""
    options = Given.of(given, CellReadOptions)
    path = _folder(options)
    folder = store_in(path)
    if folder is None:
        raise bad_option("store", path, "there is no store; give the folder of a store or a node")
    return replace(parse_option_record(CellReadOptions, options), folder=str(folder.absolute()))


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of writing with absolute paths. Raises: as `read_options`."""
    from datalattice.client import Folder

    options = Given.of(given, WriteOptions)
    folder = Path(_folder(options)).expanduser().absolute()
    is_node = Folder(folder).key_path.is_file() or (folder / "store" / STORE_FILE).is_file()
    if not is_node and folder.exists() and not (folder / STORE_FILE).is_file():
        raise bad_option(
            "store", folder, "it is neither the folder of a node, nor a store, nor a new folder"
        )
    made = parse_option_record(WriteOptions, options, is_node=is_node)
    # Only the root tells which cells belong to the value, and whether all are there.
    if not made.root:
        raise UsageError(
            "option root is missing: the hash of the value whose cells are written, 0x and "
            f"{2 * HASH_BYTES} hex digits"
        )
    # A collection removes cells that no root reaches.
    if not made.pin and not made.merge:
        raise UsageError(
            "option pin or merge=true is missing: a name that keeps the value, or its merge into "
            "the root; otherwise the next collection would remove it"
        )
    # Beside the store: "a folder with anything else in it is refused rather than used"
    # (docs/store.md).
    default = folder / "staging" if is_node else folder.with_name(folder.name + ".staging")
    staging = Path(made.staging).expanduser().absolute() if made.staging else default
    return replace(made, folder=str(folder), staging=str(staging))


def _folder(options: Given) -> str:
    folder = folder_option(options)
    if not folder:
        raise UsageError(
            "option store is missing: give the folder of a store, as store or to load() or save()"
        )
    return folder
