"""Handlers: what does each action, by group. Loading this registers all of them."""

from __future__ import annotations

from datalattice.service.handlers import drive, kv, lattice, node, queue, stores

__all__ = ["drive", "kv", "lattice", "node", "queue", "stores"]
