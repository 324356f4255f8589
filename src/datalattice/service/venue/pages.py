"""Pages: lists of jobs by caller and status, newest first.

The lists follow the records by difference: a call costs as much as the changes since the last one.
The first call reads all records.

Source: docs/design/venue.md "Lists".
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from typing import Final

from datalattice.apps.grid import job_status
from datalattice.cells import EMPTY_INDEX, Index, Map, Value
from datalattice.errors import LimitExceeded, UsageError
from datalattice.service.venue.records import JobStorage

JOBS_PAGE_MAX: Final = 1_000
"""Most jobs of one page."""


class JobPages:
    """Sorted ids of jobs by caller and status. Any thread may use it."""

    def __init__(self, storage: JobStorage) -> None:
        self._storage: Final = storage
        self._lock: Final = threading.Lock()
        self._seen: Index = EMPTY_INDEX
        self._lists: Final[dict[tuple[str | None, str | None], list[bytes]]] = {}
        self._delegated: Final[set[tuple[str, str, str]]] = set()

    def page(
        self,
        caller: str | None,
        status: str | None = None,
        before: bytes | None = None,
        count: int = 100,
    ) -> list[bytes]:
        """Return ids, newest first. caller, status: None: all. before: the last id of a page.

        Raises: UsageError: `count` is below 1. LimitExceeded: it is above 1,000.
        """
        if count < 1:
            raise UsageError(f"count: 1 to {JOBS_PAGE_MAX}, got {count}")
        if count > JOBS_PAGE_MAX:
            raise LimitExceeded(f"count: at most {JOBS_PAGE_MAX} in one answer, got {count}")
        found: list[bytes] = []
        with self._lock:
            self._follow()
            ids = self._lists.get((caller, status), [])
            at = len(ids) if before is None else bisect_left(ids, before)
            while at and len(found) < count:
                at -= 1
                # A deleted job keeps its record, which peers hold, and is hidden.
                if not self._storage.is_hidden(ids[at]):
                    found.append(ids[at])
        return found

    def all(self, status: str) -> list[bytes]:
        """Return the ids of all jobs with a status, hidden ones, too."""
        with self._lock:
            self._follow()
            return list(self._lists.get((None, status), []))

    def is_delegated(self, caller: str, venue: str, remote_id: str) -> bool:
        """Return whether this job of another venue runs, or ran, a job of a caller.

        venue, remote_id: as in the record.
        """
        with self._lock:
            self._follow()
            return (caller, venue, remote_id) in self._delegated

    def _follow(self) -> None:
        """Update the lists with the changes of the records since the last call."""
        jobs = self._storage.jobs()
        # Peers may bring records of this venue, so the lists follow the grid and not the commits.
        for id, _had, before, _has, after in self._seen.differences(jobs):
            if not isinstance(id, bytes):
                continue
            old, new = _places(before), _places(after)
            for place in old - new:
                ids = self._lists[place]
                del ids[bisect_left(ids, id)]
            for place in new - old:
                insort(self._lists.setdefault(place, []), id)
            if isinstance(after, Map) and "remoteId" in after:
                told = [str(after.get(name)) for name in ("caller", "venue", "remoteId")]
                self._delegated.add((told[0], told[1], told[2]))
        self._seen = jobs


def _places(record: Value) -> frozenset[tuple[str | None, str | None]]:
    """Return the lists that a record is in."""
    if not isinstance(record, Map):
        return frozenset()
    status, caller = job_status(record), record.get("caller")
    found: set[tuple[str | None, str | None]] = {(None, None), (None, status)}
    if isinstance(caller, str):
        found |= {(caller, None), (caller, status)}
    return frozenset(found)
