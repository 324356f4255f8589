"""Kept: roots that stay beside the present one: pinned, leased for a time, or in the history."""

from __future__ import annotations

from datalattice.store.kept.history import NOTHING, RETENTION, History, Moment, Retention
from datalattice.store.kept.pins import LEASE_SECONDS_MAX, Lease, Pin, Pins, check_name

__all__ = [
    "LEASE_SECONDS_MAX",
    "NOTHING",
    "RETENTION",
    "History",
    "Lease",
    "Moment",
    "Pin",
    "Pins",
    "Retention",
    "check_name",
]
