"""DLFS: drives of directories and files that merge directory by directory.

A `Drive` is a thin object over one cursor on the root node of a tree. Importing this package
registers the root section `:fs`, with the path `:fs, owner, :value, drive`.
"""

from __future__ import annotations

from datalattice.apps.dlfs.drive import Drive, checked_drive, drive_names
from datalattice.apps.dlfs.lattice import FS_SECTION, DLFSLattice
from datalattice.apps.dlfs.merging import NAMES, entries_of
from datalattice.apps.dlfs.node import (
    DEPTH_MAX,
    NODE_FIELDS_MAX,
    Content,
    DriveNode,
    join_path,
    make_directory,
    make_file,
    make_tombstone,
    normal_path,
    read_node,
    split_path,
)
from datalattice.apps.dlfs.properties import (
    PROPERTIES_BYTES_MAX,
    PROPERTIES_KEY,
    PROPERTIES_MAX,
    properties_of,
    with_properties,
)
from datalattice.apps.dlfs.reading import DriveUsage, DriveWatch, FileChange, Stat
from datalattice.apps.dlfs.tree import live_entries

__all__ = [
    "DEPTH_MAX",
    "FS_SECTION",
    "NAMES",
    "NODE_FIELDS_MAX",
    "PROPERTIES_BYTES_MAX",
    "PROPERTIES_KEY",
    "PROPERTIES_MAX",
    "Content",
    "DLFSLattice",
    "Drive",
    "DriveNode",
    "DriveUsage",
    "DriveWatch",
    "FileChange",
    "Stat",
    "checked_drive",
    "drive_names",
    "entries_of",
    "join_path",
    "live_entries",
    "make_directory",
    "make_file",
    "make_tombstone",
    "normal_path",
    "properties_of",
    "read_node",
    "split_path",
    "with_properties",
]
