"""Log: packs of cells in segment files, and the index that is derived from them."""

from __future__ import annotations

from datalattice.store.log.hashindex import LogPosition as LogPosition
from datalattice.store.log.packing import locate as locate
from datalattice.store.log.recovery import Gap as Gap
from datalattice.store.log.removed import LocationSet as LocationSet
