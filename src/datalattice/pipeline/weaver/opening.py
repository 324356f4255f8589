"""The weaver stores of a folder, opened for one plan or task while other processes write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datalattice.client import Folder, WeaverFolder
from datalattice.weaver import Stores


@contextmanager
def open_weaver_stores(folder: str) -> Iterator[Stores]:
    """Return the context with the weaver stores of a node's folder, for reading.

    Raises: NoSuchPath: there are none.
    """
    held = WeaverFolder.at(Folder(Path(folder).expanduser()), None, read_only=True)
    try:
        yield held.stores()
    finally:
        held.close()
