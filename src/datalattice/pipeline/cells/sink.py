"""Write all cells of a value into a store, and keep the value by a pin or a merge.

A task checks its cells and puts them into a store of its own, in any order. The driver walks the
value from its root through these stores and notes the cells that the target lacks. If the value is
complete, it copies these cells and compares each with its hash again. If a node runs, the driver
writes an archive instead, and the node imports it like any other archive. The value becomes visible
only when all its cells are there.

Source: docs/spark-formats.md "Cells".
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from datalattice.actions import ImportedRoot, ImportRoot, StartTask
from datalattice.arrow import store_cells
from datalattice.cells import branch_hashes, decode
from datalattice.client import Folder, finish, node_or_store
from datalattice.client.replicas import import_into, taking
from datalattice.clock import SystemClock
from datalattice.crypto import sha3_256_many
from datalattice.errors import BadFormat, DataLatticeError, MissingData, UsageError
from datalattice.pipeline.cells.options import WriteOptions, write_options
from datalattice.pipeline.columns import check_type, ddl_type, entries_or_nulls
from datalattice.pipeline.exactly_once.cleanup import remove_folder, remove_stale
from datalattice.pipeline.exactly_once.job import STAGE_BYTES_MAX, Job, Staged, WriteTarget
from datalattice.pipeline.exactly_once.scratch_store import unsynced_store
from datalattice.store import STORE_FILE, CellStore, CheckedCells, export_cells
from datalattice.store.gc import extent_of
from datalattice.store.log import LocationSet

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_COLUMNS: Final = ("encoding", "hash", "refs")
"""Accepted columns; only the first is required, the last is ignored."""

OPEN_STORES_MAX: Final = 16
"""Most stores of tasks that are open at a time; more are combined into one first."""

NOTES_MAX: Final = 512
"""Most cells copied at a time; a cell has at most 16 KiB."""

_NOTE: Final = struct.Struct("<I32s")

_log: Final = logging.getLogger("datalattice.pipeline")


class CellsWriter(DataSourceArrowWriter):
    """Writes the cells of one value."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            # Other values in the store may share the cells.
            raise UsageError("a store only grows: write cells with mode append")
        # At planning, before any task stages a row.
        check_columns(schema)
        self._options = write_options(given)
        target = WriteTarget(self._options.folder, self._options.staging, None, 0)
        self._job = Job.begin(target, streaming=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Check and stage the cells of a task. Runs in the task's process.

        Raises: BadFormat: an encoding is not canonical, or does not have the hash of its row.
        """
        with self._job.stage() as stage:
            count = size = 0
            waiting: list[tuple[bytes, bytes]] = []
            for batch in iterator:
                for cell in _checked(batch):
                    waiting.append(cell)
                    size += len(cell[1])
                    count += 1
                    # Bounds the memory of the task; the order of cells does not matter here.
                    if size >= STAGE_BYTES_MAX:
                        stage.put_cells(waiting)
                        waiting, size = [], 0
            stage.put_cells(waiting)
            return stage.done(count)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Copy the cells of all tasks into the store, and keep them.

        Raises: MissingData: a cell below the root is neither among the rows nor in the store.
        """
        staged = [Path(one.path) for one in messages if isinstance(one, Staged) and one.records]
        # A unique name: after a killed driver, the node may still be importing from the old folder.
        folder = self._folder / "0" / f"{len(messages)}-0-{self._job.save[:16]}"
        try:
            load_cells(self._options, staged, folder)
        finally:
            self._tidy()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what the tasks staged."""
        self._tidy()

    @property
    def _folder(self) -> Path:
        return Path(self._options.staging, f"save-{self._job.save}")

    def _tidy(self) -> None:
        remove_folder(self._folder)
        remove_stale(Path(self._options.staging), SystemClock().now_ms())


def check_columns(schema: StructType) -> None:
    """Check the columns of rows to be written.

    Raises: UsageError: encoding is missing, a column is unknown, or a type is wrong.
    """
    types = {field.name: field.dataType for field in schema.fields}
    strange = [name for name in types if name not in _COLUMNS]
    # Only the encoding is needed: the hash is computed from it.
    if strange or "encoding" not in types:
        what = f"no column {strange[0]}" if strange else "always a column encoding"
        raise UsageError(f"rows of cells have {what}; they are encoding, and hash and refs if any")
    for name in ("encoding", "hash"):
        check_type(types, name, ("BINARY",))
    if "refs" in types and ddl_type(types["refs"]) != "ARRAY<BINARY>":
        raise UsageError(f"column refs has the type {ddl_type(types['refs'])}: ARRAY<BINARY>")


def _checked(batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    """Yield (hash, encoding) of the rows of a batch, checked."""
    encodings = entries_or_nulls(batch, "encoding")
    if None in encodings:
        raise UsageError("the column encoding has a NULL; every row is a cell")
    # The hash is computed, never taken from the row: a wrong hash would put one cell in place of
    # another.
    hashes = sha3_256_many(encodings)
    for said, hash, encoding in zip(
        entries_or_nulls(batch, "hash"), hashes, encodings, strict=True
    ):
        if said is not None and said != hash:
            raise BadFormat(f"a cell of a row with the hash 0x{said.hex()} has another hash")
        try:
            # "Every encoding must be canonical" (docs/spark-formats.md, Cells).
            decode(encoding)
        except DataLatticeError as error:
            raise BadFormat(f"the cell 0x{hash.hex()} is not canonical: {error}") from None
        yield hash, encoding


def load_cells(options: WriteOptions, staged: Sequence[Path], folder: Path) -> None:
    """Copy the staged cells below the root into the store, and keep them there.

    folder: a new folder for the work; removed at the end.
    Cost:   copies each cell once, beside a node up to three times; memory of one bit for each byte
            of cells.
    Raises: MissingData: a cell is missing. StoreLocked: another process holds the store.
    """
    folder.mkdir(mode=0o700, parents=True)
    try:
        # A store without a node has no key and no intake rules: the value is pinned or merged as it
        # is.
        if not options.is_node:
            with CellStore.open(options.folder) as store:
                _take(options, store, staged, folder)
            return
        node = Folder(Path(options.folder))
        with node_or_store(node) as found:
            if isinstance(found, CellStore):
                _take(options, found, staged, folder, node)
                return
        archive = folder / "archive"
        with _together(staged, folder / "cells") as cells_of_all:
            _export(options, cells_of_all, archive)
        _import(options, archive)
    finally:
        remove_folder(folder)


# --- into a store ---------------------------------------------------------------------------


def _take(
    options: WriteOptions,
    target: CellStore,
    staged: Sequence[Path],
    folder: Path,
    node: Folder | None = None,
) -> None:
    """Copy the cells below the root that the target lacks, and keep them; `node`: the target's."""
    wanted, archive = folder / "wanted", folder / "archive"
    with ExitStack() as open_stores:
        if len(staged) <= OPEN_STORES_MAX:
            sources = [
                open_stores.enter_context(CellStore.open(path, read_only=True)) for path in staged
            ]
        else:
            sources = [open_stores.enter_context(_together(staged, folder / "cells"))]
        with wanted.open("w+b") as notes:
            for number, hash in _below(options.root, sources, target):
                notes.write(_NOTE.pack(number, hash))
            notes.seek(0)
            _copy(notes, sources, target)
    with archive.open("wb") as file:  # names the root; the target has all cells
        export_cells(target, options.root, file.write, receiver=target)
    _keep(options, target, archive, node)


def _keep(options: WriteOptions, target: CellStore, archive: Path, node: Folder | None) -> None:
    """Pin or merge an archive's value; a node's intake rules apply to a merge."""
    gate = None if node is None else taking(node, target, is_known=True)
    done = import_into(target, str(archive), pin=options.pin, merge=options.merge, taking=gate)
    _warn(done.dropped)


def _warn(left_out: int) -> None:
    if left_out:
        _log.warning("the node refused %s parts of the value", left_out)


def _below(
    root: bytes, sources: Sequence[CellStore], target: CellStore
) -> Iterator[tuple[int, bytes]]:
    """Yield (number of a source, hash) of the cells below a root that the target lacks.

    Each once, children before parents: a copy that stops halfway leaves only complete values.
    Raises: MissingData: a cell is in no source.
    """
    seen = [LocationSet() for _ in sources]
    stack = [(root, -1)]  # hash, number of its source once all below it is done
    while stack:
        hash, number = stack.pop()
        if number >= 0:
            yield number, hash
            continue
        locations = ((n, source.location_of(hash)) for n, source in enumerate(sources))
        number, location = next((found for found in locations if found[1] >= 0), (-1, -1))
        # A store holds a cell only with all cells below it, so the walk ends at each cell that
        # the target has.
        if target.has(hash) or (location >= 0 and not seen[number].add(location)):
            continue
        if location < 0:
            raise MissingData([hash])
        # Not verified here: `_copy` compares it with its hash.
        encoding = sources[number].get_encoding(hash, verify=False)
        if encoding is None:
            raise MissingData([hash])
        # Pushed before its children, so yielded after them.
        stack.append((hash, number))
        stack += [(below, -1) for below in branch_hashes(encoding)]


def _copy(notes: BinaryIO, sources: Sequence[CellStore], target: CellStore) -> None:
    # The tasks have decoded the cells. What is left to check are hashes, and children before
    # parents.
    checked = CheckedCells(target, scanned=True)
    while found := notes.read(NOTES_MAX * _NOTE.size):
        order = list(_NOTE.iter_unpack(found))
        wanted: dict[int, list[bytes]] = {}
        for number, hash in order:
            wanted.setdefault(number, []).append(hash)
        encodings: dict[bytes, bytes | None] = {}
        for number, hashes in wanted.items():
            encodings.update(zip(hashes, sources[number].get_encodings(hashes), strict=True))
        copied: list[tuple[bytes, bytes]] = []
        for _, hash in order:
            encoding = encodings[hash]
            if encoding is None:
                raise MissingData([hash])
            copied.append((hash, encoding))
        checked.put(copied)


# --- beside a node --------------------------------------------------------------------------


def _together(staged: Sequence[Path], folder: Path) -> CellStore:
    """Return a store with the cells of all tasks: that of a single task, or a new one."""
    if len(staged) == 1:
        return CellStore.open(staged[0], read_only=True)
    # One store for the export: cells of one value are spread over the tasks.
    with unsynced_store(folder) as together:
        for path in staged:
            with CellStore.open(path, read_only=True) as store:
                extent = extent_of(store)
                for partition in extent.partitions(1):
                    together.put_encodings(store_cells(store, extent, partition, verify=True))
    return CellStore.open(folder, read_only=True)


def _export(options: WriteOptions, together: CellStore, archive: Path) -> None:
    """Write the cells below the root that the target lacks as an archive."""
    if not Path(options.store, STORE_FILE).is_file():
        CellStore.open(options.store).close()
    with (
        CellStore.open(options.store, read_only=True) as target,
        archive.open("wb") as file,
    ):
        # Without the cells that the target has, the node imports less.
        count = export_cells(together, options.root, file.write, receiver=target)
    _log.info("%d new cells below 0x%s", count, options.root.hex())


def _import(options: WriteOptions, archive: Path) -> None:
    node = Folder(Path(options.folder))
    found = node_or_store(node)
    with found:
        if isinstance(found, CellStore):
            _keep(options, found, archive, node)
            return
        wanted = ImportRoot(path=str(archive), pin=options.pin, merge=options.merge, known=True)
        done = finish(found, StartTask(import_root=wanted), lambda _done, _total=None: None)
        assert isinstance(done, ImportedRoot)
        _warn(done.dropped)
