"""Cursors: mutable handles on immutable values: roots, paths, forks, signed values, views."""

from datalattice.cursors.base import (
    ChangeFunction as ChangeFunction,
    Cursor as Cursor,
    PathCursor as PathCursor,
    Root as Root,
    Wake as Wake,
    Watched as Watched,
)
from datalattice.cursors.collector import collector_paused as collector_paused
from datalattice.cursors.lattices import (
    Descended as Descended,
    ForkedLattice as ForkedLattice,
    Gate as Gate,
    LatticeCursor as LatticeCursor,
    RootLattice as RootLattice,
    SignedCursor as SignedCursor,
)
from datalattice.cursors.refusals import (
    Refusal as Refusal,
    refusals as refusals,
    restored as restored,
)
from datalattice.cursors.repair import (
    LeftOut as LeftOut,
    Repair as Repair,
    without_malformed as without_malformed,
)
from datalattice.cursors.rings import (
    RING_EVENTS as RING_EVENTS,
    EventRing as EventRing,
    EventsMissed as EventsMissed,
    EventStream as EventStream,
)
from datalattice.cursors.stores import open_store as open_store
from datalattice.cursors.stream import (
    Changes as Changes,
    Listeners as Listeners,
    Source as Source,
    Stream as Stream,
    Taken as Taken,
    ValueChange as ValueChange,
)
from datalattice.cursors.views import (
    TimeCache as TimeCache,
    Transformer as Transformer,
    View as View,
    cached_transform as cached_transform,
    chain as chain,
)
