"""Weaver stores of a folder, for programs and for the node that serves it."""

from __future__ import annotations

from datalattice.client.weaver.folder import NodeStores, WeaverFolder

__all__ = ["NodeStores", "WeaverFolder"]
