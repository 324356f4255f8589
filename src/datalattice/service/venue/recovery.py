"""Recovery: what happens to a job that is found live when the venue starts, as a pure rule.

Source: docs/design/venue.md "Recovery".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from datalattice.service.venue.adapter import EffectOutcome, Known, RecoveryRule
from datalattice.service.venue.transitions import JobStatus


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
    if found.attempt >= attempts_max:
        return RecoveryChoice(RecoveryStep.FAIL, f"interrupted {found.attempt} times")
    # "delegated to another venue: follow the remote job again instead of running anew": its
    # adapter does so, by the same effect key.
    if found.rule is RecoveryRule.RETRY or found.is_delegated:
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
