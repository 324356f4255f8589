"""Transitions: the table of the allowed changes of a job's status.

An event leads from some statuses to one. `step` is a pure function: of a record and an event it
returns the next record, or the reason why the event is refused.

Source: COG-8 "Jobs"; docs/design/venue.md "Statuses".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from datalattice.apps.grid import ACTIVE, INTERACTIVE, JOB_STATUSES, TERMINAL, job_status, job_time
from datalattice.cells import Map, Value
from datalattice.clock import next_stamp


class JobStatus(StrEnum):
    """The status of a job, as in its record."""

    PENDING = "PENDING"
    STARTED = "STARTED"
    PAUSED = "PAUSED"
    INPUT_REQUIRED = "INPUT_REQUIRED"
    AUTH_REQUIRED = "AUTH_REQUIRED"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REJECTED = "REJECTED"
    TIMEOUT = "TIMEOUT"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended; its record no longer changes."""
        return self in TERMINAL

    @property
    def is_active(self) -> bool:
        """Whether the job runs, or will."""
        return self in ACTIVE

    @property
    def is_interactive(self) -> bool:
        """Whether the job waits for its caller."""
        return self in INTERACTIVE


assert {status.value for status in JobStatus} == JOB_STATUSES == ACTIVE | INTERACTIVE | TERMINAL

_S = JobStatus
_ENDINGS: Final = frozenset({_S.CANCELLED, _S.TIMEOUT, _S.FAILED})  # from every live status

TRANSITIONS: Final[Mapping[JobStatus, frozenset[JobStatus]]] = {
    _S.PENDING: _ENDINGS | {_S.STARTED, _S.REJECTED, _S.PAUSED},
    _S.STARTED: _ENDINGS | {_S.COMPLETE, _S.PAUSED, _S.INPUT_REQUIRED, _S.AUTH_REQUIRED},
    _S.PAUSED: _ENDINGS | {_S.STARTED},
    _S.INPUT_REQUIRED: _ENDINGS | {_S.STARTED, _S.PAUSED},
    _S.AUTH_REQUIRED: _ENDINGS | {_S.STARTED, _S.PAUSED},
    **{status: frozenset[JobStatus]() for status in JobStatus if status.is_terminal},
}
"""The statuses to which each status may change."""


class JobEvent(StrEnum):
    """An event in the life of a job."""

    START = "start"
    PROGRESS = "progress"
    NEED_INPUT = "need-input"
    NEED_AUTH = "need-auth"
    MESSAGE = "message"
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    REJECT = "reject"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class EventRule:
    """The effect of an event.

    to: the next status; None: the same. only: the statuses in which it may happen; None: all from
    which the table allows `to`. needs_error: the record gets an `error`.
    """

    to: JobStatus | None
    only: frozenset[JobStatus] | None = None
    needs_error: bool = False


EVENT_RULES: Final[Mapping[JobEvent, EventRule]] = {
    JobEvent.START: EventRule(_S.STARTED, frozenset({_S.PENDING})),
    JobEvent.PROGRESS: EventRule(None),
    JobEvent.NEED_INPUT: EventRule(_S.INPUT_REQUIRED),
    JobEvent.NEED_AUTH: EventRule(_S.AUTH_REQUIRED),
    JobEvent.MESSAGE: EventRule(_S.STARTED, frozenset({_S.INPUT_REQUIRED, _S.AUTH_REQUIRED})),
    JobEvent.PAUSE: EventRule(_S.PAUSED),
    # "resume: only from PAUSED, sets STARTED"
    JobEvent.RESUME: EventRule(_S.STARTED, frozenset({_S.PAUSED})),
    JobEvent.COMPLETE: EventRule(_S.COMPLETE),
    JobEvent.FAIL: EventRule(_S.FAILED, needs_error=True),
    JobEvent.CANCEL: EventRule(_S.CANCELLED, needs_error=True),
    JobEvent.REJECT: EventRule(_S.REJECTED, needs_error=True),
    JobEvent.EXPIRE: EventRule(_S.TIMEOUT, needs_error=True),
}


@dataclass(frozen=True, slots=True)
class TransitionRefused:
    """An event that a job in this status refuses, and why."""

    status: str
    event: JobEvent
    reason: str


def is_allowed(before: JobStatus, after: JobStatus) -> bool:
    """Return whether a record with status `before` may be replaced by one with `after`."""
    # "Writing the same live status again is a progress update."
    return after in TRANSITIONS[before] or (before is after and not before.is_terminal)


def status_of_job(record: Value) -> JobStatus | None:
    """Return the status of a record; None: it has no known status."""
    found = job_status(record)
    return JobStatus(found) if found in JOB_STATUSES else None


def step(
    record: Map, event: JobEvent, now_ms: int, members: Mapping[str, Value] | None = None
) -> Map | TransitionRefused:
    """Return the record after an event, with the given members changed, or the refusal.

    Its `updated` is max(now, previous `updated` + 1).
    Raises: UsageError: the clock, or `updated`, is outside 0..2**63-1.
    """
    given, rule, before = members or {}, EVENT_RULES[event], status_of_job(record)
    if before is None:
        return TransitionRefused(str(job_status(record)), event, "its status is unknown")
    after = before if rule.to is None else rule.to
    # "Its record never changes": no event, and no late result, replaces an end.
    if before.is_terminal:
        return TransitionRefused(before, event, f"it has ended: {before}")
    if not is_allowed(before, after) or (rule.only is not None and before not in rule.only):
        return TransitionRefused(before, event, f"it is {before}")
    if before is after and rule.to is not None:  # such as `pause` of a paused job
        return TransitionRefused(before, event, f"it is {before} already")
    # "`error`: text, never empty"
    if rule.needs_error and not given.get("error"):
        return TransitionRefused(before, event, f"{after} needs an `error` that says why")
    stamp = next_stamp(now_ms, -1 if (last := job_time(record)) is None else last)
    return record.put_many({**given, "status": after.value, "updated": stamp})
