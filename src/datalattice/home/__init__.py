"""Home: a node's folder for any process of its owner, beside a running node or without one."""

from datalattice.home.drives import DriveOf, Drives, DriveWriter
from datalattice.home.edits import Change, Editor, edit, editing, take_turn
from datalattice.home.folder import (
    DEFAULT_FOLDER,
    HOME_VARIABLE,
    Folder,
    folder_of,
    read_key,
    write_key,
)
from datalattice.home.opening import node_or_store, open_reader, reading, root_named, whole
from datalattice.home.syncing import Direction, Outcome, Side, Sync
from datalattice.home.transfer import copy_tree, fetch, inside, pieces, pieces_of, walk_local

__all__ = [
    "DEFAULT_FOLDER",
    "HOME_VARIABLE",
    "Change",
    "Direction",
    "DriveOf",
    "DriveWriter",
    "Drives",
    "Editor",
    "Folder",
    "Outcome",
    "Side",
    "Sync",
    "copy_tree",
    "edit",
    "editing",
    "fetch",
    "folder_of",
    "inside",
    "node_or_store",
    "open_reader",
    "pieces",
    "pieces_of",
    "read_key",
    "reading",
    "root_named",
    "take_turn",
    "walk_local",
    "whole",
    "write_key",
]
