"""Home: a node's folder for any process of its owner, beside a running node or without one."""

from datalattice.home.drives import DriveOf, Drives, DriveWriter
from datalattice.home.edits import Change, Editor, edit, editing, take_turn
from datalattice.home.folder import (
    DEFAULT_FOLDER,
    HOME_VARIABLE,
    OWNER_NAME,
    Folder,
    OwnKeys,
    folder_of,
    read_key,
    read_keys,
    read_keys_or_none,
    write_key,
)
from datalattice.home.identity import begin_folder, renew_identity
from datalattice.home.opening import (
    ask_first,
    node_or_store,
    offline,
    open_reader,
    reading,
    root_named,
    whole,
)
from datalattice.home.replicas import replica_of, taking
from datalattice.home.syncing import Direction, Outcome, Side, Sync
from datalattice.home.transfer import copy_tree, fetch, inside, pieces, pieces_of, walk_local

__all__ = [
    "DEFAULT_FOLDER",
    "HOME_VARIABLE",
    "OWNER_NAME",
    "Change",
    "Direction",
    "DriveOf",
    "DriveWriter",
    "Drives",
    "Editor",
    "Folder",
    "Outcome",
    "OwnKeys",
    "Side",
    "Sync",
    "ask_first",
    "begin_folder",
    "copy_tree",
    "edit",
    "editing",
    "fetch",
    "folder_of",
    "inside",
    "node_or_store",
    "offline",
    "open_reader",
    "pieces",
    "pieces_of",
    "read_key",
    "read_keys",
    "read_keys_or_none",
    "reading",
    "renew_identity",
    "replica_of",
    "root_named",
    "take_turn",
    "taking",
    "walk_local",
    "whole",
    "write_key",
]
