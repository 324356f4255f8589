"""Recovery: reads the jobs of a venue at its start, and decides what to do with live ones.

`recovery_of` and `settle_check` are pure functions.

Source: docs/design/venue.md "Recovery".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from datalattice.cells import Map
from datalattice.service.venue.adapter import EffectOutcome, Known, RecoveryRule
from datalattice.service.venue.catalogue import Catalogue
from datalattice.service.venue.jobs import LiveJob
from datalattice.service.venue.pages import JobPages
from datalattice.service.venue.records import JobBatch, JobStorage
from datalattice.service.venue.schedule import job_of_call
from datalattice.service.venue.transitions import JobStatus, status_of_job


class RecoveryStep(StrEnum):
    """What to do with a job."""

    WAIT = "wait"
    """It waits for its caller."""
    RUN = "run"
    CHECK = "check"
    """Ask the adapter for the outcome."""
    COMPLETE = "complete"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A live job at the start of its venue.

    attempt: the number of the interrupted run. rule: of its operation; None: it cannot run here.
    why: the reason for that. is_delegated: a job of another venue runs it.
    """

    status: JobStatus
    attempt: int
    rule: RecoveryRule | None
    why: str = ""
    is_delegated: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryChoice:
    """What to do with a job. reason: the error of a job that fails."""

    step: RecoveryStep
    reason: str = ""


def recovery_of(found: FoundJob, attempts_max: int) -> RecoveryChoice:
    """Return what to do with a job that was live at the start."""
    if found.status.is_interactive:
        return RecoveryChoice(RecoveryStep.WAIT)
    if found.rule is None:
        return RecoveryChoice(RecoveryStep.FAIL, found.why)
    # The adapter of a PENDING job with effects never ran: "STARTED durable, then the adapter runs".
    if found.status is JobStatus.PENDING:
        return RecoveryChoice(RecoveryStep.RUN)
    # "STARTED with `remoteId`: it runs: its adapter follows the job of the other venue". Attempts
    # do not count, as nothing is done twice, and that job may outlast many starts of this venue.
    if found.is_delegated:
        return RecoveryChoice(RecoveryStep.RUN)
    if found.attempt >= attempts_max:
        return RecoveryChoice(RecoveryStep.FAIL, f"interrupted {found.attempt} times")
    if found.rule is RecoveryRule.RETRY:
        return RecoveryChoice(RecoveryStep.RUN)
    if found.rule is RecoveryRule.CHECK:
        return RecoveryChoice(RecoveryStep.CHECK)
    return RecoveryChoice(RecoveryStep.FAIL, "interrupted: it may have had effects")


def settle_check(outcome: EffectOutcome | None, why: str = "") -> RecoveryChoice:
    """Return what to do after `Adapter.outcome`. outcome: None: it failed. why: its error."""
    if outcome is None or outcome.known is Known.UNKNOWN:
        return RecoveryChoice(RecoveryStep.FAIL, "outcome unknown" + (f": {why}" if why else ""))
    if outcome.known is Known.NONE:
        return RecoveryChoice(RecoveryStep.RUN)
    if outcome.error:
        return RecoveryChoice(RecoveryStep.FAIL, outcome.error)
    return RecoveryChoice(RecoveryStep.COMPLETE)


@dataclass(frozen=True, slots=True)
class FoundVenue:
    """The state on disk when a venue starts.

    jobs: the live ones, each with the reason why it cannot run here, or "". schedule, requests: as
    of `JobStorage`. ended: removes the private parts of jobs that have ended by the records: those
    may come from peers and be newer than the folder.
    """

    jobs: list[tuple[LiveJob, str]]
    schedule: dict[bytes, Map]
    requests: dict[bytes, Map]
    ended: JobBatch = field(default_factory=JobBatch)


def found_at_start(storage: JobStorage, catalogue: Catalogue) -> FoundVenue:
    """Return the state on disk; it reads only live jobs. It waits for the disk."""
    parts, schedule = storage.private()
    found = FoundVenue([], schedule, storage.requests())
    for id, private in sorted(parts.items()):
        record = storage.job(id)
        if record is None or (status := status_of_job(record)) is None or status.is_terminal:
            found.ended.private[id] = None
            continue
        operation, why = catalogue.of_record(record)
        found.jobs.append((LiveJob(id, record, private, operation, record), why))
    records = storage.jobs()
    for handle in list(schedule):
        if records.get(job_of_call(handle)) is not None:  # the call has become a job
            del schedule[handle]
            found.ended.schedule[handle] = None
    return found


def orphans(
    storage: JobStorage, pages: JobPages, known: frozenset[bytes], before: bytes
) -> list[tuple[bytes, Map]]:
    """Return the jobs that have not ended and whose private part this node lacks.

    known: ids of the live jobs. before: only older ids are read. It waits for the disk.
    """
    found = []
    for status in [one for one in JobStatus if not one.is_terminal]:
        for id in pages.all(status):
            record = storage.job(id) if id not in known and id < before else None
            # The lists may be older than the record.
            if record is not None and status_of_job(record) is status:
                found.append((id, record))
    return found
