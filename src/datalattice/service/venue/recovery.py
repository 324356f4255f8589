"""Recovery: what is found when a venue starts, and what happens to a job that is live then.

The rule is pure.

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
    """A live job at the start.

    attempt: the one that was interrupted. rule: of its operation; None: that cannot run here, and
    why. is_delegated: another venue has a job for it.
    """

    status: JobStatus
    attempt: int
    rule: RecoveryRule | None
    why: str = ""
    is_delegated: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryChoice:
    """What to do, and the error of a job that fails."""

    step: RecoveryStep
    reason: str = ""


def recovery_of(found: FoundJob, attempts_max: int) -> RecoveryChoice:
    """Return what to do with a job that is found at the start."""
    if found.status.is_interactive:
        return RecoveryChoice(RecoveryStep.WAIT)
    if found.rule is None:
        return RecoveryChoice(RecoveryStep.FAIL, found.why)
    # PENDING: the adapter never ran, since STARTED is durable before.
    if found.status is JobStatus.PENDING:
        return RecoveryChoice(RecoveryStep.RUN)
    # "STARTED with `remoteId`: it runs: its adapter follows the job of the other venue". Nothing
    # runs anew, so attempts do not count: that job may take longer than three lives of this venue.
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
    """Return what to do after the adapter was asked. None: it could not tell, and why."""
    if outcome is None or outcome.known is Known.UNKNOWN:
        return RecoveryChoice(RecoveryStep.FAIL, "outcome unknown" + (f": {why}" if why else ""))
    if outcome.known is Known.NONE:
        return RecoveryChoice(RecoveryStep.RUN)
    if outcome.error:
        return RecoveryChoice(RecoveryStep.FAIL, outcome.error)
    return RecoveryChoice(RecoveryStep.COMPLETE)


@dataclass(frozen=True, slots=True)
class FoundVenue:
    """What is on the disk when a venue starts.

    jobs: the live ones, each with why it cannot run here, or "". schedule, requests: as kept.
    ended: drops what has ended elsewhere, since a folder may be older than what its peers held.
    """

    jobs: list[tuple[LiveJob, str]]
    schedule: dict[bytes, Map]
    requests: dict[bytes, Map]
    ended: JobBatch = field(default_factory=JobBatch)


def found_at_start(storage: JobStorage, catalogue: Catalogue) -> FoundVenue:
    """Return what is on the disk; the cost is that of the live jobs. It waits for the disk."""
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
        if records.get(job_of_call(handle)) is not None:  # it has fired
            del schedule[handle]
            found.ended.schedule[handle] = None
    return found


def orphans(
    storage: JobStorage, pages: JobPages, known: frozenset[bytes], before: bytes
) -> list[tuple[bytes, Map]]:
    """Return the jobs that have not ended and of which this node has no private part.

    known: the live jobs. before: an id; later ones are not looked at. It waits for the disk.
    """
    found = []
    for status in [one for one in JobStatus if not one.is_terminal]:
        for id in pages.all(status):
            record = storage.job(id) if id not in known and id < before else None
            if record is not None and status_of_job(record) is status:
                found.append((id, record))
    return found
