"""The venue over its doors: jobs that are watched, whose they are, and the forms of REST."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.service.cases import World
from tests.unit.service.test_suite import BACKENDS, listening

from datalattice import actions as a
from datalattice.apps.grid import assertion_keys, venue_document
from datalattice.cells import Map
from datalattice.errors import Unauthorized, UsageError
from datalattice.service import OPERATOR, Service
from datalattice.service.access import Principal
from datalattice.testing.callers import ALICE_DID, BOB_DID


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def http(world: World) -> Iterator[Any]:
    """Ask the REST door of the world: `http("GET", "/jobs")`."""
    httpx = pytest.importorskip("httpx")
    with listening(world) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client.request


# --- watching -------------------------------------------------------------------------------------


def test_a_job_is_watched_to_its_end_over_each_door(world: World) -> None:
    for way in BACKENDS.values():
        id = world.job(is_paused=True)
        with way(world) as backend:

            def cancel(id: bytes = id) -> None:
                world.service.call(a.CancelJob(id=id), OPERATOR)

            (first,) = backend.take(a.WatchJob(id=id), 1, lambda: None)
            assert (first.status, first.resume) == ("PAUSED", str(first.updated))
            # Behind what was seen comes the next change alone, and nothing after the end.
            (last,) = backend.take(a.WatchJob(id=id, resume=first.resume), 1, cancel)
            assert last.status == "CANCELLED"
            assert last.updated > first.updated
    with world.service.stream(a.WatchJob(id=id, resume=last.resume), OPERATOR) as stream:
        assert list(stream) == []


def test_a_reader_of_a_job_waits_for_each_change(world: World) -> None:
    id, seen, more = world.job(), [], threading.Semaphore(0)

    def read() -> None:
        with world.service.stream(a.WatchJob(id=id), OPERATOR) as stream:
            for record in stream:
                seen.append(record.status)
                more.release()

    reader = threading.Thread(target=read)
    reader.start()
    for request in (None, a.PauseJob(id=id), a.ResumeJob(id=id), a.CancelJob(id=id)):
        if request is not None:
            world.service.call(request, OPERATOR)
        assert more.acquire(timeout=60), seen
    reader.join(60)
    assert not reader.is_alive()
    # It may have been read as PENDING, and states in between are skipped; the newest always comes.
    assert "PAUSED" in seen
    assert seen[-1] == "CANCELLED"
    assert seen.count("CANCELLED") == 1


@pytest.mark.parametrize("token", ["-1", "1.5", "x", "٣", "1" * 21])
def test_the_token_of_a_job_is_a_time(token: str, world: World) -> None:
    with pytest.raises(UsageError, match="resume: a number, the `updated` of the job"):
        world.service.stream(a.WatchJob(id=world.one_job, resume=token), OPERATOR)


def test_a_token_from_the_future_hides_no_state_of_a_job(world: World) -> None:
    id = world.one_job
    ended = world.service.call(a.CancelJob(id=id), OPERATOR)
    # As one of another job, or of before the folder was restored.
    token = str(ended.updated + 1)
    with world.service.stream(a.WatchJob(id=id, resume=token), OPERATOR) as stream:
        assert [one.updated for one in stream] == [ended.updated]


def test_events_of_a_job_have_the_form_of_the_specification(world: World, http: Any) -> None:
    id = world.one_job
    world.service.call(a.CancelJob(id=id), OPERATOR)
    path = f"/api/v1/jobs/{id.hex()}/sse"
    answer = http("GET", path)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [dict(line.split(": ", 1) for line in one.split("\n")) for one in _blocks(answer.text)]
    assert [one.get("event") for one in events] == [None, "job-update", "end"]
    record = json.loads(events[1]["data"])
    assert record["status"] == "CANCELLED"
    assert record["opName"] == "v/ops/ledger/pure"
    assert events[1]["id"] == str(record["updated"])
    assert json.loads(events[2]["data"]) == {"reason": "done", "resume": events[1]["id"]}
    again = http("GET", path, headers={"Last-Event-ID": events[1]["id"]})
    assert "job-update" not in again.text
    assert "event: end" in again.text


def _blocks(text: str) -> list[str]:
    found = [one for one in text.split("\n\n") if one]
    return [one.replace("\n: begun", "") for one in found]


# --- whose a job is -------------------------------------------------------------------------------


ALICE, BOB = Principal(ALICE_DID, "token"), Principal(BOB_DID, "token")


def test_a_job_is_seen_by_its_caller_alone(world: World) -> None:
    asks = a.InvokeOperation(operation="v/ops/ledger/pure", input=Map.of({"ask": "?"}))
    id = world.service.call(asks, ALICE).id
    of_one: list[Any] = [
        a.GetJob(id=id),
        a.MessageJob(id=id, message=1),
        a.PauseJob(id=id),
        a.ResumeJob(id=id),
        a.CancelJob(id=id),
        a.DeleteJob(id=id),
    ]
    for request in of_one:
        with pytest.raises(Unauthorized, match="another caller"):
            world.service.call(request, BOB)
    with pytest.raises(Unauthorized, match="another caller"):
        world.service.stream(a.WatchJob(id=id), BOB)
    assert world.service.call(a.ListJobIds(), BOB).jobs == ()
    # Nothing of that changed it, and its own caller may do all of it.
    assert world.service.call(a.ListJobIds(), ALICE).jobs == (id,)
    with world.service.stream(a.WatchJob(id=id), ALICE) as stream:
        assert stream.take()[0].caller == ALICE_DID
    assert world.service.call(a.CancelJob(id=id), ALICE).status == "CANCELLED"
    assert id in world.service.call(a.ListJobIds(), OPERATOR).jobs


# --- the forms of REST ----------------------------------------------------------------------------


def test_lists_are_answered_as_lists(world: World, http: Any) -> None:
    id = world.one_job
    assert http("GET", "/api/v1/jobs").json() == [id.hex()]
    offered = http("GET", "/api/v1/operations").json()
    assert {"v/ops/echo/back", "v/ops/echo/fail"} <= {one["path"] for one in offered}
    one = http("GET", "/api/v1/operations/v/ops/echo/back").json()
    assert one == next(each for each in offered if each["path"] == "v/ops/echo/back")


def test_a_job_is_deleted_by_either_verb(world: World, http: Any) -> None:
    first, second = world.job(), world.job()
    assert http("PUT", f"/api/v1/jobs/{first.hex()}/delete").status_code == 204
    assert http("DELETE", f"/api/v1/jobs/{second.hex()}").status_code == 204
    assert http("GET", "/api/v1/jobs").json() == []
    assert http("GET", f"/api/v1/jobs/{first.hex()}").status_code == 404


def test_an_invocation_says_where_its_job_is(http: Any) -> None:
    echo = {"operation": "v/ops/echo/back", "input": {"a": 1}}
    begun = http("POST", "/api/v1/invoke", json=echo)
    assert begun.status_code in (200, 201)
    assert begun.headers["location"] == f"/api/v1/jobs/{begun.json()['id']}"
    assert http("GET", begun.headers["location"]).json()["id"] == begun.json()["id"]
    for asked in (
        {"url": "/api/v1/invoke", "json": {**echo, "wait": True}},
        {"url": "/api/v1/invoke?wait=true", "json": echo},
    ):
        done = http("POST", asked.pop("url"), **asked)
        assert (done.status_code, done.json()["output"]) == (200, {"a": 1})
    asks = {"operation": "v/ops/ledger/pure", "input": {"ask": "?"}, "wait_ms": 1}
    assert http("POST", "/api/v1/invoke", json=asks).status_code == 201
    for path, body in (
        ("/api/v1/invoke?wait=true", {**echo, "wait": True}),  # given twice
        ("/api/v1/invoke?operation=x", echo),  # of the body alone
        ("/api/v1/invoke", {"input": 1}),
    ):
        refused = http("POST", path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"] == refused.json()["detail"]


def test_a_venue_and_its_assets_have_did_documents(world: World, http: Any) -> None:
    found = http("GET", "/.well-known/did.json")
    assert found.headers["content-type"] == "application/did+json"
    did = world.node.venue().did
    assert found.json() == venue_document(did, world.owner)
    assert assertion_keys(did, found.json()) == {world.owner}
    id = world.asset.hex()
    asset = http("GET", f"/a/{id}/did.json")
    assert (asset.status_code, asset.json()["id"]) == (200, f"{did}/a/{id}")
    assert http("GET", f"/a/{'07' * 32}/did.json").status_code == 404
    assert http("GET", "/a/07/did.json").status_code == 400
    service = Service(world.node, urls=lambda: ("https://venue.example:8443", "https://other"))
    made: Any = service.call(a.GetVenueDid(), OPERATOR).document
    (named,) = made["service"]
    assert named["serviceEndpoint"] == "https://venue.example:8443/api/v1"


def test_the_status_of_a_node_is_that_of_its_venue(world: World, http: Any) -> None:
    world.job()
    assert world.asset
    found = http("GET", "/api/v1/status").json()
    assert (found["status"], found["did"]) == ("OK", world.node.venue().did)
    assert found["ts"] > 0
    operations = len(http("GET", "/api/v1/operations").json())
    assert found["stats"] == {"assets": world.assets, "users": 1, "ops": operations}
    assert Service(world.node).call(a.GetNodeStatus(), OPERATOR).stats is None
