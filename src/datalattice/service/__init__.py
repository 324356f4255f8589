"""Service: what a daemon offers, apart from the doors through which it is asked."""

from __future__ import annotations

from datalattice.service.registry import Streamed
from datalattice.service.service import OPERATOR, Service
from datalattice.service.statuses import FAULT, STATUSES, ErrorAnswer, Status, answer_to, status_of

__all__ = [
    "FAULT",
    "OPERATOR",
    "STATUSES",
    "ErrorAnswer",
    "Service",
    "Status",
    "Streamed",
    "answer_to",
    "status_of",
]
