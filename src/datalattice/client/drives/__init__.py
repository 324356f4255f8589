"""Drives: the file systems in a folder, read and written by programs, local folders and fsspec."""

from datalattice.client.drives.drives import DriveOf, Drives, DriveWriter
from datalattice.client.drives.syncing import Direction, Outcome, Side, Sync
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
    "DriveWriter",
    "Drives",
    "Outcome",
    "Side",
    "Sync",
    "copy_tree",
    "fetch",
    "inside",
    "pieces",
    "pieces_of",
    "walk_local",
]
