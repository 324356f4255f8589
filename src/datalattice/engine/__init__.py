"""Engine: ordered byte tables, one writer, snapshot readers; in memory or in a folder (LMDB)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from datalattice.engine.base import (
    TABLE_KEY_BYTES_MAX as TABLE_KEY_BYTES_MAX,
    TABLES_MAX as TABLES_MAX,
    VALUE_BYTES_MAX as VALUE_BYTES_MAX,
    Engine as Engine,
    ReadTxn as ReadTxn,
    Snapshot as Snapshot,
    WriteTxn as WriteTxn,
    successor as successor,
)
from datalattice.engine.copying import copy_tables as copy_tables
from datalattice.engine.group import GroupCommit as GroupCommit, GroupTxn as GroupTxn
from datalattice.engine.journal import (
    JOURNAL_BYTES as JOURNAL_BYTES,
    JOURNAL_END_FILE as JOURNAL_END_FILE,
    JOURNAL_FILE as JOURNAL_FILE,
    JOURNAL_TABLE as JOURNAL_TABLE,
    JournaledEngine as JournaledEngine,
    JournalFile as JournalFile,
    boot_id as boot_id,
    open_journal as open_journal,
)
from datalattice.engine.lmdb import DATA_FILE as DATA_FILE, LmdbEngine as LmdbEngine
from datalattice.engine.memory import MemoryEngine as MemoryEngine, MemoryWriteTxn as MemoryWriteTxn
from datalattice.engine.section import section as section
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
        if read_only:  # it would be empty for ever
            raise UsageError("an engine in memory starts empty and cannot be opened with read_only")
        return MemoryEngine(tables)
    # Any other scheme is a mistake, not the name of a folder.
    if "://" in text:
        raise UsageError(f"an engine is opened at a folder or at {MEMORY_URL!r}, got {text!r}")
    folder = Path(text)
    if not durable and not (folder / JOURNAL_FILE).exists():
        return LmdbEngine(folder, tables, read_only=read_only, durable=False)
    base = LmdbEngine(folder, (*tables, JOURNAL_TABLE), read_only=read_only, durable=durable)
    try:
        opens = partial(open_journal, folder, create=not read_only)
        boot = boot_id()
        # With 0 bytes every transaction goes to the tables at once. A journal saves waits for the
        # disk, which tables that are not durable do not have; and without a boot id it is unknown
        # after a power failure whether its header is older than its records.
        full_bytes = JOURNAL_BYTES if durable and boot else 0
        return JournaledEngine(base, opens, boot, full_bytes=full_bytes)
    except BaseException:
        base.close()
        raise
