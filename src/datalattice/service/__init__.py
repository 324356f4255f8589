"""Service: does the actions of a node for callers; the doors lead to it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from datalattice.service.statuses import (
    FAULT as FAULT,
    STATUSES as STATUSES,
    ErrorAnswer as ErrorAnswer,
    Status as Status,
    answer_to as answer_to,
    status_of as status_of,
)

if TYPE_CHECKING:
    from datalattice.service.folder import FolderService as FolderService
    from datalattice.service.local import (
        AsyncLocalClient as AsyncLocalClient,
        LocalClient as LocalClient,
    )
    from datalattice.service.registry import Streamed as Streamed, Upload as Upload
    from datalattice.service.service import OPERATOR as OPERATOR, Service as Service

_LATER = {
    "AsyncLocalClient": "local",
    "FolderService": "folder",
    "LocalClient": "local",
    "OPERATOR": "service",
    "Service": "service",
    "Streamed": "registry",
    "Upload": "registry",
}


def __getattr__(name: str) -> Any:
    # A command that fails needs the statuses, and must not import all handlers for them.
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
