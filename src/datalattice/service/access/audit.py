"""Audit: records of the decisions on calls, for the operator of the service.

A record names an action and a scope, and has no values, headers, tokens or query strings.

Source: docs/design/access.md "Audit".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Final

from datalattice.actions import AuditEntry
from datalattice.cursors import EventRing

RING_RECORDS: Final = 1_024
"""Number of newest records that are kept in memory."""

AUDITED_CHARACTERS_MAX: Final = 512
"""Longest text in a line, in characters: callers choose the text of scopes."""


def audit_line(record: AuditEntry) -> str:
    """Return a record as one line of JSON."""
    values = ((field.name, getattr(record, field.name)) for field in record.declared())
    found = {
        name: value[:AUDITED_CHARACTERS_MAX] if isinstance(value, str) else value
        for name, value in values
    }
    return json.dumps(found, separators=(",", ":"))  # line ends in texts are escaped


def is_audited(right: str, scope: str, *, is_allowed: bool) -> bool:
    """Return whether a decision is recorded: on effects, refusals and reads of `admin`."""
    # Allowed reads would push all other records out of the ring within seconds.
    return right != "r" or not is_allowed or scope.partition("/")[0] == "admin"


class Audit:
    """Keeps the newest records and passes all on. Any thread may call a method.

    ring:     the newest records.
    sink:     called with each record, in order; None: only the ring has them.
    failures: number of errors that the sink raised. last_failure: the class of the last.
    """

    def __init__(
        self, sink: Callable[[AuditEntry], None] | None = None, records_max: int = RING_RECORDS
    ) -> None:
        self._sink = sink
        self.ring: Final[EventRing[AuditEntry]] = EventRing(records_max)
        self._lock = threading.Lock()
        self.failures = 0
        self.last_failure: str | None = None

    def add(self, record: AuditEntry) -> None:
        """Keep a record and pass it on."""
        with self._lock:
            # Under the lock, so that ring and sink get the records in one order.
            self.ring.add(record)
            if self._sink is None:
                return
            try:
                self._sink(record)
            except Exception as error:  # noqa: BLE001 - counted: a call must not fail by its record
                self.failures += 1
                self.last_failure = type(error).__name__
