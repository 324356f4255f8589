"""DLFS: drives of directories and files that merge directory by directory.

A `Drive` is a thin object over one cursor on the root node of a tree. Importing this package
registers the root section `:fs`, with the path `:fs, owner, :value, drive`.
"""

from __future__ import annotations

from datalattice.apps.dlfs.drive import (
    Drive as Drive,
    checked_drive as checked_drive,
    drive_names as drive_names,
)
from datalattice.apps.dlfs.lattice import FS_SECTION as FS_SECTION, DLFSLattice as DLFSLattice
from datalattice.apps.dlfs.merging import NAMES as NAMES, entries_of as entries_of
from datalattice.apps.dlfs.node import (
    DRIVE_DEPTH_MAX as DRIVE_DEPTH_MAX,
    NODE_FIELDS_MAX as NODE_FIELDS_MAX,
    DriveNode as DriveNode,
    FileContent as FileContent,
    join_path as join_path,
    make_directory as make_directory,
    make_file as make_file,
    make_tombstone as make_tombstone,
    normal_path as normal_path,
    read_node as read_node,
    split_path as split_path,
)
from datalattice.apps.dlfs.properties import (
    PROPERTIES_BYTES_MAX as PROPERTIES_BYTES_MAX,
    PROPERTIES_KEY as PROPERTIES_KEY,
    PROPERTIES_MAX as PROPERTIES_MAX,
    properties_of as properties_of,
    with_properties as with_properties,
)
from datalattice.apps.dlfs.reading import (
    DriveUsage as DriveUsage,
    DriveWatch as DriveWatch,
    FileChange as FileChange,
    Stat as Stat,
)
from datalattice.apps.dlfs.tree import PathNames as PathNames, live_entries as live_entries
