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

__all__ = [
    "HASH_END",
    "HASH_START",
    "RANGE_LIMITS",
    "HashSet",
    "RangeFingerprint",
    "RangeItems",
    "RangeLimits",
    "RangeMessage",
    "RangeReconciliation",
    "RangeStep",
    "SortedHashes",
    "first_cut",
    "middle",
    "reference_middle",
]
