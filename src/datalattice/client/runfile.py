"""Running: the node that runs in a folder, as `DIR/running.json` says, and a client of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from datalattice.client.control import ControlClient
from datalattice.errors import PeerUnavailable

RUNNING_NAME: Final = "running.json"


@dataclass(frozen=True, slots=True)
class Running:
    """A running node: its process, where peers reach it, where its owner reaches it."""

    pid: int
    address: str | None
    http: str | None
    control: str
    public_key: str | None
    started_ms: int
    version: str
    folder: str = ""
    """Which folder it runs in (`folder_id`): the file means nothing in a copy of that."""


def folder_id(folder: Path) -> str:
    """Return what a folder keeps when it is renamed, and a copy of it does not have."""
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"


def running(folder: str | os.PathLike[str]) -> Running | None:
    """Return the node that runs in a folder, None when none does.

    A file left by a killed node does not count: the socket must answer.
    """
    found = _read(Path(folder) / RUNNING_NAME)
    if found is None:
        return None
    try:
        ControlClient(found.control).close()
    except PeerUnavailable:
        return None
    return found


def connect(folder: str | os.PathLike[str]) -> ControlClient | None:
    """Return a client of the node that runs in a folder, None when none does."""
    found = _read(Path(folder) / RUNNING_NAME)
    if found is None:
        return None
    try:
        client = ControlClient(found.control)
    except PeerUnavailable:
        return None
    client.node = (found.pid, found.started_ms)
    return client


def _read(path: Path) -> Running | None:
    try:
        found = Running(**json.loads(path.read_text("utf-8")))
        is_copy = found.folder not in ("", folder_id(path.parent))
    except (OSError, ValueError, TypeError):
        # Without a file that reads as one of a node, no node runs.
        return None
    # In a copy of a folder the file names the node of the original: commands would write there.
    return None if is_copy else found
