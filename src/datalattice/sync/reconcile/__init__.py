"""Reconcile: two sides find out which hashes each of them lacks."""

from __future__ import annotations

from datalattice.sync.reconcile.ranges import (
    HASH_END as HASH_END,
    HASH_START as HASH_START,
    RANGE_LIMITS as RANGE_LIMITS,
    HashSet as HashSet,
    RangeFingerprint as RangeFingerprint,
    RangeItems as RangeItems,
    RangeLimits as RangeLimits,
    RangeMessage as RangeMessage,
    RangeReconciliation as RangeReconciliation,
    SortedHashes as SortedHashes,
    first_cut as first_cut,
    middle as middle,
    reference_middle as reference_middle,
)
from datalattice.sync.reconcile.sketches import (
    FIRST_CELLS_MIN as FIRST_CELLS_MIN,
    SKETCH_LIMITS as SKETCH_LIMITS,
    SKETCH_NONCE_BYTES as SKETCH_NONCE_BYTES,
    SketchLimits as SketchLimits,
    SketchReceiver as SketchReceiver,
    SketchSender as SketchSender,
    SketchStep as SketchStep,
)
from datalattice.sync.reconcile.sketchmessages import (
    SketchCells as SketchCells,
    SketchEstimate as SketchEstimate,
    SketchMessage as SketchMessage,
    SketchOpening as SketchOpening,
    SketchResult as SketchResult,
)
from datalattice.sync.reconcile.sketchset import SketchedSet as SketchedSet, SketchKey as SketchKey
