"""Cursors: mutable handles on immutable values: roots, paths, forks, signed values, views."""

from datalattice.cursors.base import ChangeFunction, Cursor, PathCursor, Root, Wake, Watched
from datalattice.cursors.collector import collector_paused
from datalattice.cursors.lattices import (
    Descended,
    ForkedLattice,
    Gate,
    LatticeCursor,
    RootLattice,
    SignedCursor,
)
from datalattice.cursors.refusals import Refusal, refusals, restored
from datalattice.cursors.repair import LeftOut, Repair, without_malformed
from datalattice.cursors.rings import RING_EVENTS, EventRing, EventsMissed, EventStream
from datalattice.cursors.stores import open_store
from datalattice.cursors.stream import Changes, Listeners, Source, Stream, Taken, ValueChange
from datalattice.cursors.views import TimeCache, Transformer, View, cached_transform, chain

__all__ = [
    "RING_EVENTS",
    "ChangeFunction",
    "Changes",
    "Cursor",
    "Descended",
    "EventRing",
    "EventStream",
    "EventsMissed",
    "ForkedLattice",
    "Gate",
    "LatticeCursor",
    "LeftOut",
    "Listeners",
    "PathCursor",
    "Refusal",
    "Repair",
    "Root",
    "RootLattice",
    "SignedCursor",
    "Source",
    "Stream",
    "Taken",
    "TimeCache",
    "Transformer",
    "ValueChange",
    "View",
    "Wake",
    "Watched",
    "cached_transform",
    "chain",
    "collector_paused",
    "open_store",
    "refusals",
    "restored",
    "without_malformed",
]
