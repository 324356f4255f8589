"""Home: a node's folder for any process of its owner, beside a running node or without one."""

from datalattice.home.edits import Change, Editor, edit, editing
from datalattice.home.folder import (
    DEFAULT_FOLDER,
    HOME_VARIABLE,
    Folder,
    folder_of,
    read_key,
    write_key,
)
from datalattice.home.opening import node_or_store, open_reader, reading, whole

__all__ = [
    "DEFAULT_FOLDER",
    "HOME_VARIABLE",
    "Change",
    "Editor",
    "Folder",
    "edit",
    "editing",
    "folder_of",
    "node_or_store",
    "open_reader",
    "read_key",
    "reading",
    "whole",
    "write_key",
]
