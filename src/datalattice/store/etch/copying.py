"""Copying: collect an Etch file by copying the cells that are still needed to a new file.

Source: docs/etch.md "Collection".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from datalattice.cells import NIL_HASH, branch_hashes
from datalattice.errors import UsageError
from datalattice.store.base import children_first
from datalattice.store.disk import Disk, RealDisk, write_error
from datalattice.store.etch.etchstore import EtchStore
from datalattice.store.etch.layout import PERSISTED
from datalattice.store.etch.writer import EtchWriter, create_etch
from datalattice.store.files import parent_folder
from datalattice.store.records import OnCells, check_hash

_BATCH_CELLS: Final = 1_024


def collect_etch(
    path: str | os.PathLike[str],
    pins: Iterable[bytes] = (),
    *,
    disk: Disk | None = None,
    progress: OnCells | None = None,
) -> tuple[int, int]:
    """Copy the root and the pinned cells, with all below them, to a file that replaces this one.

    Labels are kept. The old file stays unchanged until the new one is complete and durable. Return
    the data lengths before and after.
    Raises: MissingData, Corruption: a needed cell is lost; nothing is changed.
            UsageError: a pinned cell is not here. StoreLocked: another process writes to the file.
    """
    where = os.fspath(path)
    disk = disk or RealDisk()
    if not disk.exists(where):
        raise UsageError(f"{where}: there is no such file")
    # Held until the rename: a writer in between would write to the file that is replaced.
    lock = disk.lock_contents(where)
    try:
        with EtchStore.open(where, read_only=True, disk=disk) as old:
            wanted = _wanted(old, pins)
            fresh = where + ".gc"
            try:
                after = _copy_file(disk, old, fresh, wanted, progress)
                # "The old file is kept until the rename has succeeded": the copy is complete and
                # synced now.
                disk.replace(fresh, where)
                disk.sync_folder(parent_folder(where))
            except OSError as error:
                raise write_error(error, where) from error
            finally:
                if disk.exists(fresh):
                    disk.remove(fresh)
            return old.file.length, after
    finally:
        lock.release()


def _wanted(old: EtchStore, pins: Iterable[bytes]) -> list[bytes]:
    pinned = [check_hash(pin) for pin in pins]
    for pin in pinned:
        if not old.has(pin):
            raise UsageError(f"{old.path}: the pinned cell 0x{pin.hex()} is not here")
    root = old.root_hash()
    return pinned if root is None else [*pinned, root]


def _copy_file(
    disk: Disk, old: EtchStore, fresh: str, wanted: list[bytes], progress: OnCells | None
) -> int:
    def needed(hash: bytes, encoding: bytes) -> list[bytes]:
        below = list(dict.fromkeys(branch_hashes(encoding)))
        # STORED promises nothing about the cells below, so one that is missing is left out.
        may_lack = old.status(hash) < PERSISTED
        return [one for one in below if old.has(one)] if may_lack else below

    create_etch(disk, fresh)
    writer = EtchWriter(disk, fresh)
    try:

        def is_done(hash: bytes) -> bool:
            return hash == NIL_HASH or writer.find(hash) is not None  # nil is never stored

        cells = children_first(wanted, old.get_encodings, is_done, needed)
        for done, (hash, encoding) in enumerate(cells, 1):
            record = old.file.get(hash)
            assert record is not None
            # "Labels kept" (docs/etch.md "Collection").
            writer.put(hash, encoding, record.status, record.memory_size)
            if progress is not None and done % _BATCH_CELLS == 0:
                progress(done)
        writer.set_root(old.file.root_hash)
        writer.flush()
        return writer.length
    finally:
        writer.close()
