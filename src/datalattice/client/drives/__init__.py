"""Drives: the file systems in a folder, read and written by programs, local folders and fsspec."""

from datalattice.client.drives.drives import DriveOf, Drives
from datalattice.client.drives.syncing import Direction, Side, Sync, SyncResult
from datalattice.client.drives.transfer import (
    copy_tree,
    fetch,
    inside,
    pieces,
    pieces_of,
    walk_local,
)

__all__ = [
    "Direction",
    "DriveOf",
    "Drives",
    "Side",
    "Sync",
    "SyncResult",
    "copy_tree",
    "fetch",
    "inside",
    "pieces",
    "pieces_of",
    "walk_local",
]
