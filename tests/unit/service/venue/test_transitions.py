"""Transitions: events change records as the table says, and leave them alone otherwise."""

from __future__ import annotations

import pytest

from datalattice.cells import Map
from datalattice.service.venue import (
    TRANSITIONS,
    JobEvent,
    JobStatus,
    TransitionRefused,
    is_allowed,
    status_of_job,
    step,
)

EVENTS_OF = {
    JobStatus.PENDING: "start progress pause fail cancel reject expire",
    JobStatus.STARTED: "progress need-input need-auth pause complete fail cancel expire",
    JobStatus.PAUSED: "progress resume fail cancel expire",
    JobStatus.INPUT_REQUIRED: "progress message pause fail cancel expire",
    JobStatus.AUTH_REQUIRED: "progress message pause fail cancel expire",
}


def record(status: str, updated: object = 10) -> Map:
    return Map.of({"status": status, "updated": updated, "op": "aa"})


@pytest.mark.parametrize("status", JobStatus)
@pytest.mark.parametrize("event", JobEvent)
def test_an_event_happens_where_it_may_and_nowhere_else(status: JobStatus, event: JobEvent) -> None:
    after = step(record(status), event, 20, {"error": "why"})
    if event in EVENTS_OF.get(status, "").split():
        assert isinstance(after, Map)
        became = status_of_job(after)
        assert became is not None
        assert is_allowed(status, became)
        assert (after["updated"], after["op"], after["error"]) == (20, "aa", "why")
    else:
        assert isinstance(after, TransitionRefused)
        assert (after.status, after.event) == (status, event)
        assert status in after.reason


def test_every_transition_of_the_table_has_an_event() -> None:
    reached = {
        (before, status_of_job(after))
        for before in JobStatus
        for event in JobEvent
        if isinstance(after := step(record(before), event, 1, {"error": "x"}), Map)
        and status_of_job(after) is not before
    }
    assert reached == {(before, to) for before, tos in TRANSITIONS.items() for to in tos}


@pytest.mark.parametrize(("now", "updated", "expected"), [(9, 10, 11), (10, 10, 11), (12, 10, 12)])
def test_a_version_is_later_than_the_one_before(now: int, updated: int, expected: int) -> None:
    after = step(record("PENDING", updated), JobEvent.START, now)
    assert isinstance(after, Map)
    assert after["updated"] == expected


def test_a_record_without_a_time_gets_one() -> None:
    after = step(record("PENDING", None), JobEvent.START, 0)
    assert isinstance(after, Map)
    assert after["updated"] == 0


@pytest.mark.parametrize("event", ["fail", "cancel", "reject", "expire"])
@pytest.mark.parametrize("members", [None, {"error": ""}])
def test_an_end_without_a_result_says_why(event: str, members: dict[str, str] | None) -> None:
    after = step(record("PENDING"), JobEvent(event), 1, members)
    assert isinstance(after, TransitionRefused)
    assert "`error`" in after.reason


def test_an_unknown_status_goes_nowhere() -> None:
    after = step(record("ASLEEP"), JobEvent.CANCEL, 1, {"error": "x"})
    assert isinstance(after, TransitionRefused)
    assert (after.status, after.reason) == ("ASLEEP", "its status is unknown")
