"""Figures: a row of the benchmark, as run.py prints and stores it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from datalattice.cells import cell

COMPILED: Final = not str(cell.__file__).endswith(".py")
"""Whether the kernel is compiled: figures of both modes never stand in one comparison."""

Row = dict[str, Any]


def installed(name: str) -> Any:
    """Return the module of a peer, None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def row(name: str, value: float, unit: str, peers: Mapping[str, float] | None = None) -> Row:
    """Return a row. peers: figures of others, in the same unit where their names give no other."""
    return {
        "row": name,
        "value": value,
        "unit": unit,
        "peers": dict(peers or {}),
        "compiled": COMPILED,
    }
