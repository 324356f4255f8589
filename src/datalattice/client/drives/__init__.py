"""Drives: the file systems in a folder, for programs, local folders and fsspec."""

from datalattice.client.drives.drives import DriveOf as DriveOf, Drives as Drives
from datalattice.client.drives.syncing import (
    Direction as Direction,
    Side as Side,
    Sync as Sync,
    SyncResult as SyncResult,
)
from datalattice.client.drives.transfer import (
    copy_tree as copy_tree,
    inside as inside,
    pieces as pieces,
    pieces_of as pieces_of,
    walk_local as walk_local,
    write_local as write_local,
)
