"""Stores: how the jobs that go through a whole store are told which one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datalattice.cli.folder import existing_folder

StoreArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Folder of a store, or of a node. Default: the store of the folder (--dir).",
        show_default=False,
    ),
]
PartsOption = Annotated[
    int | None,
    typer.Option(
        "--parts", help="Cut the store into so many tasks. Default: one for about 256 MB.", min=1
    ),
]


def store_path(store: Path | None, dir: Path | None) -> str:
    """Return the folder that a command is about, absolute: workers have another present folder."""
    return str((existing_folder(dir).path if store is None else store).absolute())
