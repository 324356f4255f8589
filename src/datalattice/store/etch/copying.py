"""Copying: copy values between stores, and collect a file by copying what is still needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final

from datalattice.cells import NIL_HASH, branch_hashes
from datalattice.errors import MissingData, UsageError
from datalattice.store.base import Store, check_hash
from datalattice.store.checkedcells import CheckedCells
from datalattice.store.disk import Disk, RealDisk, write_error
from datalattice.store.etch.etchstore import EtchStore
from datalattice.store.etch.layout import PERSISTED
from datalattice.store.etch.writer import EtchWriter, create_etch
from datalattice.store.files import folder_of

BATCH_CELLS: Final = 1_024

Progress = Callable[[int], None]
"""Called with the number of cells done."""


def copy_cells(
    source: Store,
    top: bytes,
    target: Store,
    progress: Progress | None = None,
    *,
    apart: dict[bytes, bytes] | None = None,
) -> int:
    """Stage the cell `top` of `source`, and all below it, in `target`; return how many were new.

    apart: receives unsound cells and those above them, by hash; without it they are an error.

    A cell that the target has counts as complete, with all cells below it.
    Raises: MissingData: the source does not have a cell. Corruption: it is damaged there.
            BadFormat: a cell is not sound.
    Cost:   memory by the depth of the value, not by its size.
    """
    new = done = 0
    door = CheckedCells(target, scanned=False, apart=apart)
    batch: list[tuple[bytes, bytes]] = []
    waiting: set[bytes] = set()
    stack: list[tuple[bytes, bool]] = [(top, False)]
    while stack:
        hash, ready = stack.pop()
        if hash in waiting or target.has(hash) or (apart and hash in apart):
            continue
        encoding = source.get_encoding(hash)
        if encoding is None:
            raise MissingData([hash])
        below = [] if ready else branch_hashes(encoding)
        if below:
            stack.append((hash, True))
            stack.extend((one, False) for one in reversed(below))
            continue
        batch.append((hash, encoding))
        waiting.add(hash)
        done += 1
        if len(batch) >= BATCH_CELLS:
            new += door.put(batch)
            batch.clear()
            waiting.clear()
            if progress is not None:
                progress(done)
    new += door.put(batch)
    if progress is not None:
        progress(done)
    return new


def collect_etch(
    path: str | os.PathLike[str],
    pins: Iterable[bytes] = (),
    *,
    disk: Disk | None = None,
    progress: Progress | None = None,
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
    # Held until the rename: a writer in between would write to the file that goes.
    lock = disk.lock_contents(where)
    try:
        with EtchStore.open(where, read_only=True, disk=disk) as old:
            wanted = _wanted(old, pins)
            fresh = where + ".gc"
            try:
                after = _copy_file(disk, old, fresh, wanted, progress)
                # The copy is complete and synced; the old file stays until this moment.
                disk.replace(fresh, where)
                disk.sync_folder(folder_of(where))
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
    disk: Disk, old: EtchStore, fresh: str, wanted: list[bytes], progress: Progress | None
) -> int:
    create_etch(disk, fresh)
    writer = EtchWriter(disk, fresh)
    try:
        done = 0
        for hash in wanted:
            for position in _below(old, writer, hash):
                record = old.file.record(position)
                writer.put(record.key, record.encoding, record.status, record.memory_size)
                done += 1
                if progress is not None and done % BATCH_CELLS == 0:
                    progress(done)
        writer.set_root(old.file.root_hash)
        writer.flush()
        return writer.length
    finally:
        writer.close()


def _below(old: EtchStore, writer: EtchWriter, top: bytes) -> Iterable[int]:
    """Yield the offsets of a cell and all below it that the new file lacks, children first."""
    if top == NIL_HASH:
        return
    stack: list[tuple[bytes, bool]] = [(top, False)]
    while stack:
        hash, ready = stack.pop()
        if writer.find(hash) is not None:
            continue
        position = old.file.find(hash)
        encoding = old.get_encoding(hash)
        if position is None or encoding is None:
            raise MissingData([hash])
        # STORED promises nothing about the cells below: a missing one is no loss.
        may_lack = old.status(hash) < PERSISTED
        below = [] if ready else _needed(old, encoding, may_lack)
        if below:
            stack.append((hash, True))
            stack.extend((one, False) for one in reversed(below))
        else:
            yield position


def _needed(old: EtchStore, encoding: bytes, may_lack: bool) -> list[bytes]:
    below = list(dict.fromkeys(branch_hashes(encoding)))
    return [hash for hash in below if old.has(hash)] if may_lack else below
