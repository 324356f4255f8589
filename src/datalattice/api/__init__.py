"""Doors: how a service is reached from outside; each turns bytes into requests and results back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datalattice.api.doors import Doors as Doors


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: a door alone needs only the packages of that door.
    if name != "Doors":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from datalattice.api.doors import Doors as Doors

    return Doors
