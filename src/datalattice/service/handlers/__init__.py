"""Handlers: the functions that do the actions, by group. Importing this registers all of them."""

from __future__ import annotations

from datalattice.service.handlers import (
    access as access,
    assets as assets,
    drive as drive,
    events as events,
    forks as forks,
    kv as kv,
    lattice as lattice,
    node as node,
    queue as queue,
    stores as stores,
    venue as venue,
)
