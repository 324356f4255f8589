"""Doors: the network interfaces of a service: REST, WebDAV, gRPC and MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datalattice.api.doors import Doors as Doors


def __getattr__(name: str) -> Any:
    # Imported on first use: a program with one door needs only the packages of that door.
    if name != "Doors":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from datalattice.api.doors import Doors as Doors

    return Doors
