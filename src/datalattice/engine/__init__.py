"""Engine: ordered byte tables, one writer, snapshot readers; in memory or in a folder (LMDB)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from datalattice.engine.base import (
    KEY_BYTES_MAX,
    TABLES_MAX,
    VALUE_BYTES_MAX,
    Engine,
    ReadTxn,
    Snapshot,
    WriteTxn,
    successor,
)
from datalattice.engine.group import GroupCommit, GroupTxn
from datalattice.engine.lmdb import DATA_FILE, LmdbEngine
from datalattice.engine.memory import MemoryEngine, MemoryWriteTxn
from datalattice.engine.section import section
from datalattice.engine.snapshot import export_tables, restore_tables
from datalattice.errors import UsageError

MEMORY_URL = "memory://"


def open_engine(
    where: str | os.PathLike[str],
    tables: Iterable[str],
    *,
    read_only: bool = False,
    durable: bool = True,
) -> Engine:
    """Open the tables at `where`: a folder, created if needed, or `"memory://"`.

    With `durable`, a commit returns when it is on disk. Without it only `sync` waits for the disk,
    and the tables must be rebuilt after a power failure.
    Raises: UsageError: a bad table name, a folder without tables (read_only), or another scheme.
            Corruption, StoreVersion: the folder holds something else.
    """
    text = os.fspath(where)  # a Path and its text are the same engine
    if text == MEMORY_URL:
        if read_only:  # it would never show anything
            raise UsageError("an engine in memory starts empty and cannot be opened with read_only")
        return MemoryEngine(tables)
    # Any other scheme is a mistake, not the name of a folder.
    if "://" in text:
        raise UsageError(f"an engine is opened at a folder or at {MEMORY_URL!r}, got {text!r}")
    return LmdbEngine(text, tables, read_only=read_only, durable=durable)


__all__ = [
    "DATA_FILE",
    "KEY_BYTES_MAX",
    "MEMORY_URL",
    "TABLES_MAX",
    "VALUE_BYTES_MAX",
    "Engine",
    "GroupCommit",
    "GroupTxn",
    "LmdbEngine",
    "MemoryEngine",
    "MemoryWriteTxn",
    "ReadTxn",
    "Snapshot",
    "WriteTxn",
    "export_tables",
    "open_engine",
    "restore_tables",
    "section",
    "successor",
]
