"""Service: what a daemon offers, apart from the doors through which it is asked."""

from datalattice.service.statuses import FAULT, STATUSES, ErrorAnswer, Status, answer_to, status_of

__all__ = ["FAULT", "STATUSES", "ErrorAnswer", "Status", "answer_to", "status_of"]
