"""Audit: what was decided about whom, for those who run the service.

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
"""Newest records kept in memory."""

AUDITED_CHARACTERS_MAX: Final = 512
"""Most characters of one text of a record: a caller chooses scopes."""


def audit_line(record: AuditEntry) -> str:
    """Return a record as one line of JSON."""
    values = ((field.name, getattr(record, field.name)) for field in record.declared())
    found = {
        name: value[:AUDITED_CHARACTERS_MAX] if isinstance(value, str) else value
        for name, value in values
    }
    return json.dumps(found, separators=(",", ":"))  # JSON has no line end in a text


def is_audited(right: str, scope: str, *, is_allowed: bool) -> bool:
    """Return whether a decision is recorded: on effects, refusals and reads of `admin`."""
    # Reads that are allowed would push everything else out of the ring within seconds.
    return right != "r" or not is_allowed or scope.partition("/")[0] == "admin"


class Audit:
    """The newest records, and where all of them go. A method may be called by any thread.

    ring:     of the newest records.
    sink:     is given each record, in order; None: nothing is.
    failures: records that the sink raised at. last_failure: the class of its last error.
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
            # Under the lock together with the sink: both have the records in one order.
            self.ring.add(record)
            if self._sink is None:
                return
            try:
                self._sink(record)
            except Exception as error:  # noqa: BLE001 - counted: a call does not fail by its record
                self.failures += 1
                self.last_failure = type(error).__name__

    def after(self, number: int) -> tuple[int, list[AuditEntry]]:
        """Return the records from the one of this number on, and the number of the next one."""
        return self.ring.after(number)
