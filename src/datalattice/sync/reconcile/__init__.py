"""Reconcile: two sides find out which hashes each of them lacks."""

from __future__ import annotations

from datalattice.sync.reconcile.ranges import (
    HASH_END,
    HASH_START,
    RANGE_LIMITS,
    HashSet,
    RangeFingerprint,
    RangeItems,
    RangeLimits,
    RangeMessage,
    RangeReconciliation,
    RangeStep,
    SortedHashes,
    first_cut,
    middle,
    reference_middle,
)
from datalattice.sync.reconcile.sketches import (
    FIRST_CELLS_MIN,
    SKETCH_LIMITS,
    SKETCH_NONCE_BYTES,
    ScannedHashes,
    ScannedSet,
    SketchLimits,
    SketchReceiver,
    SketchSender,
    SketchStep,
)
from datalattice.sync.reconcile.sketchmessages import (
    SketchCells,
    SketchEstimate,
    SketchMessage,
    SketchOpening,
    SketchResult,
)
from datalattice.sync.reconcile.sketchset import SketchedSet, SketchKey

__all__ = [
    "FIRST_CELLS_MIN",
    "HASH_END",
    "HASH_START",
    "RANGE_LIMITS",
    "SKETCH_LIMITS",
    "SKETCH_NONCE_BYTES",
    "HashSet",
    "RangeFingerprint",
    "RangeItems",
    "RangeLimits",
    "RangeMessage",
    "RangeReconciliation",
    "RangeStep",
    "ScannedHashes",
    "ScannedSet",
    "SketchCells",
    "SketchEstimate",
    "SketchKey",
    "SketchLimits",
    "SketchMessage",
    "SketchOpening",
    "SketchReceiver",
    "SketchResult",
    "SketchSender",
    "SketchStep",
    "SketchedSet",
    "SortedHashes",
    "first_cut",
    "middle",
    "reference_middle",
]
