"""Handlers: what does each action, by group. Loading this registers all of them."""

from __future__ import annotations

from datalattice.service.handlers import (
    access,
    assets,
    drive,
    events,
    forks,
    kv,
    lattice,
    node,
    queue,
    stores,
    venue,
)

__all__ = [
    "access",
    "assets",
    "drive",
    "events",
    "forks",
    "kv",
    "lattice",
    "node",
    "queue",
    "stores",
    "venue",
]
