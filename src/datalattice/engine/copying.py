"""Copying: the tables of an engine in another folder, as they are at one moment."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Final

from datalattice.engine.base import Engine
from datalattice.engine.journal import JOURNAL_END_FILE, JOURNAL_FILE
from datalattice.engine.lmdb import DATA_FILE, LmdbEngine
from datalattice.errors import StoreFailed

UNFINISHED: Final = "unfinished"
"""The folder in the target in which a copy is made."""


def copy_tables(engine: Engine, folder: str | os.PathLike[str]) -> None:
    """Replace the tables in a folder by those of an engine now; durable on return.

    Writers of any process continue meanwhile. A crash leaves the new tables or the old ones, these
    perhaps without the transactions that only their journal had.
    Raises: StoreFull, StoreFailed: they cannot be written.
    """
    target = Path(folder)
    made = target / UNFINISHED
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700, parents=True)
        copy = LmdbEngine(made, engine.tables)
        # One transaction: a copy is whole or not there. In key order, the fastest for LMDB.
        with closing(copy), engine.read() as view, copy.write() as txn:
            for table in engine.tables:
                txn.put_many(table, view.scan(table))
        # The journal of the old tables: its records must not be read in front of the new ones. The
        # header goes first: without it every record with a right check counts, so a crash between
        # the two steps loses none.
        for name in (JOURNAL_END_FILE, JOURNAL_FILE):
            (target / name).unlink(missing_ok=True)
        (made / DATA_FILE).replace(target / DATA_FILE)
        shutil.rmtree(made)
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreFailed(f"{target}: {error.strerror}") from error
