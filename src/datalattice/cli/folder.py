"""Folder: the options that name a node's folder.

It is the option `--dir`, else the variable DATALATTICE_HOME, else `~/.datalattice`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from datalattice.client import (
    DEFAULT_FOLDER,
    HOME_VARIABLE,
    Folder,
    folder_of,
    read_key,
    read_keys,
    read_keys_or_none,
    write_key,
)
from datalattice.errors import UsageError

__all__ = [
    "SHORT_KEY",
    "DirOption",
    "Folder",
    "JsonOption",
    "choose_holder",
    "existing_folder",
    "folder_of",
    "read_key",
    "read_keys",
    "read_keys_or_none",
    "write_key",
]

DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        "-d",
        envvar=HOME_VARIABLE,
        help=f"The node's folder: its key, store and settings. Default: {DEFAULT_FOLDER}",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text.")
]

WithLocalOption = Annotated[
    bool,
    typer.Option("--with-local", help="Also what the node keeps for itself, the section :local."),
]


def existing_folder(option: Path | None) -> Folder:
    """Return the folder when a node's store is in it.

    Raises: UsageError: there is none yet.
    """
    folder = folder_of(option)
    if not folder.store_path.is_dir():
        raise UsageError(
            f"{folder.path} is not a node's folder: it has no store; name another with --dir, or "
            f"begin with {_beginning(folder)}"
        )
    return folder


def _beginning(folder: Folder) -> str:
    """Return what makes a store: what a folder without a key needs comes first."""
    writing = "a write such as `lattice db set`, `lattice fs put` or `lattice queue offer`"
    return writing if folder.key_path.exists() else f"`lattice key new` and {writing}"


SHORT_KEY: Final = 16
"""Hex digits of a public key that a table or a sentence shows."""


def choose_holder(
    folder: Folder, holders: list[bytes], wanted: bytes | None, what: str, listing: str
) -> bytes:
    """Return the owner that is meant: the wanted one, else our own, else the only one.

    holders: owners that have `what`. listing: the command that shows which ones there are.
    Raises: UsageError: the wanted owner has none, nobody has, or several do.
    """
    if wanted is not None:
        if wanted in holders:
            return wanted
        raise UsageError(f"owner {wanted.hex()} has no {what} here")
    if folder.key_path.exists():
        own = read_key(folder.key_path).public_key
        if own in holders:
            return own
    if len(holders) == 1:
        return holders[0]
    if not holders:
        raise UsageError(f"there is no {what} here; `{listing}` lists them")
    names = ", ".join(owner.hex()[:SHORT_KEY] for owner in holders)
    raise UsageError(f"{len(holders)} owners have a {what} ({names}); name one with --owner")
