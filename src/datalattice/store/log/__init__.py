"""Log: packs of cells in segment files, and the index that is derived from them."""

from __future__ import annotations

from datalattice.store.log.hashindex import LogPosition
from datalattice.store.log.packing import locate
from datalattice.store.log.recovery import Gap
from datalattice.store.log.removed import LocationSet

__all__ = ["Gap", "LocationSet", "LogPosition", "locate"]
