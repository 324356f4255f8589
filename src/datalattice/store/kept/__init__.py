"""Kept: roots that stay beside the present one: pinned, leased for a time, or in the history."""

from __future__ import annotations

from datalattice.store.kept.history import (
    KEEP_NOTHING as KEEP_NOTHING,
    History as History,
    Moment as Moment,
    Retention as Retention,
)
from datalattice.store.kept.pins import (
    LEASE_SECONDS_MAX as LEASE_SECONDS_MAX,
    Lease as Lease,
    Pin as Pin,
    Pins as Pins,
    check_name as check_name,
)
