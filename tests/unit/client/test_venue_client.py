"""The verbs of a venue, blocking and with an event loop, in the process and over REST."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.service.cases import LATER_MS, World
from tests.unit.service.test_suite import listening

from datalattice.actions import AssetMetadata
from datalattice.client import AsyncVenueClient, VenueClient, has_ended
from datalattice.errors import (
    Conflict,
    NoSuchPath,
    OperationFailed,
    ProtocolViolation,
    UsageError,
)
from datalattice.service import AsyncLocalClient, LocalClient

BACK, FAIL, ASKS = "v/ops/echo/back", "v/ops/echo/fail", "v/ops/ledger/pure"


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(params=["process", "rest"])
def venue(request: pytest.FixtureRequest, world: World) -> Iterator[VenueClient]:
    with ExitStack() as held:
        if request.param == "process":
            yield VenueClient(LocalClient(world.service))
        else:
            url = held.enter_context(listening(world))
            yield held.enter_context(VenueClient.connect(url))


def test_an_operation_is_run(venue: VenueClient) -> None:
    values: list[Any] = [{"a": [1, None, "x", True, 0.5]}, [], "text", None]
    for value in values:
        assert venue.run(BACK, value) == value
    with pytest.raises(OperationFailed, match="is FAILED: nothing left"):
        venue.run(FAIL, {"text": "nothing left"})
    with pytest.raises(NoSuchPath):
        venue.run("v/ops/none")
    for wrong in (float("nan"), object(), {1, 2}):
        with pytest.raises(UsageError, match="input is not JSON"):
            venue.run(BACK, wrong)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(UsageError, match="input is not JSON"):
        venue.run(BACK, circle)
    named: list[Any] = [{1: 2}, {"a": [{None: 1}]}, [({True: 1},)]]
    for wrong in named:
        with pytest.raises(UsageError, match="input: names of members are text, got "):
            venue.run(BACK, wrong)
    assert {one.path for one in venue.operations()} >= {BACK, FAIL}


def test_a_wait_ends_with_its_limit_and_the_job_goes_on(venue: VenueClient) -> None:
    with pytest.raises(OperationFailed, match="goes on: "):
        venue.run(ASKS, {"ask": "?"}, limit_s=0.05)
    (id,) = venue.jobs()
    assert not has_ended(venue.wait(id, 0.0))
    assert venue.message(id, "yes") == 0
    assert venue.wait(id.hex(), 60).status == "COMPLETE"


def test_a_job_is_steered(venue: VenueClient) -> None:
    id = venue.invoke(ASKS, {"ask": "?"}).id
    assert venue.pause(id).status == "PAUSED"
    with pytest.raises(Conflict):
        venue.pause(id)
    assert venue.jobs("PAUSED") == (id,)
    assert venue.resume(id).status == "STARTED"
    assert venue.cancel(id).status == "CANCELLED"
    assert venue.job(id).status == "CANCELLED"
    assert venue.jobs(before=id) == ()
    venue.delete(id)
    assert venue.jobs() == ()


def test_a_call_with_an_id_is_made_once(venue: VenueClient) -> None:
    first = venue.invoke(BACK, 1, request_id="one")
    assert venue.invoke(BACK, 1, request_id="one").id == first.id
    assert venue.invoke(BACK, 1).id != first.id


def test_calls_wait_for_their_time(venue: VenueClient) -> None:
    late = venue.schedule(BACK, 1, time_ms=LATER_MS)
    later = venue.schedule(BACK, 2, time_ms=LATER_MS + 1)
    assert venue.scheduled() == (late, later)
    assert venue.scheduled(late.handle) == (later,)
    venue.unschedule(late.handle)
    assert venue.scheduled() == (later,)
    begun = venue.schedule(BACK, 3, after_ms=0, request_id="one")
    assert venue.schedule(BACK, 3, after_ms=0, request_id="one") == begun
    while begun.job not in venue.jobs():
        pass
    assert venue.wait(begun.job, 60).output == 3


def test_newer_records_alone_are_watched(venue: VenueClient) -> None:
    id = venue.invoke(ASKS, {"ask": "?"}).id
    paused = venue.pause(id)
    with venue.watch(id, after=paused.updated) as records:
        venue.cancel(id)
        assert [record.status for record in records] == ["CANCELLED"]


CONTENT = hashlib.sha256(b"seed").digest() * 10_000


def declared(content: bytes) -> dict[str, Any]:
    return {"content": {"sha256": hashlib.sha256(content).hexdigest()}}


def test_assets_go_there_and_back(venue: VenueClient, world: World, tmp_path: Path) -> None:
    text = '{ "exact" : 1.0 }\n'
    exact, id = venue.register(text), venue.register(declared(CONTENT))
    assert venue.asset(exact) == text
    assert venue.asset(f"a/{exact.hex()}") == text
    assert list(venue.assets()) == world.node.venue().assets()
    (tmp_path / "content").write_bytes(CONTENT)
    with (tmp_path / "content").open("rb") as file:
        assert venue.upload(id, file) == hashlib.sha256(CONTENT).digest()
    assert venue.upload(id, CONTENT) == venue.upload(id, [CONTENT[:9], CONTENT[9:]])
    assert b"".join(venue.download(id.hex())) == CONTENT
    assert b"".join(venue.download(id, 3, 4)) == CONTENT[3:7]
    with pytest.raises(UsageError):
        venue.upload(id, CONTENT[1:])
    with pytest.raises(NoSuchPath):
        list(venue.download(exact))
    with pytest.raises(UsageError, match="metadata is not JSON"):
        venue.register({"x": object()})


def test_a_venue_that_answers_another_text_is_not_believed(world: World) -> None:
    class Forging(LocalClient):
        def call(self, request: Any, **more: Any) -> Any:
            return AssetMetadata(metadata="{}")

    with pytest.raises(ProtocolViolation, match="has another hash"):
        VenueClient(Forging(world.service)).asset(b"\x07" * 32)


# --- with an event loop ---------------------------------------------------------------------------


@asynccontextmanager
async def over_process(world: World) -> AsyncIterator[AsyncVenueClient]:
    async with AsyncVenueClient(AsyncLocalClient(world.service)) as venue:
        yield venue


@asynccontextmanager
async def over_rest(world: World) -> AsyncIterator[AsyncVenueClient]:
    pytest.importorskip("httpx")
    with listening(world) as url:
        async with AsyncVenueClient.connect(url) as venue:
            yield venue


@pytest.mark.parametrize("connect", [over_process, over_rest])
def test_the_verbs_with_an_event_loop(connect: Callable[[World], Any], world: World) -> None:
    async def use() -> None:
        async with connect(world) as venue:
            assert await venue.run(BACK, {"a": 1}) == {"a": 1}
            with pytest.raises(OperationFailed, match="is FAILED: no"):
                await venue.run(FAIL, {"text": "no"})
            assert BACK in [one.path for one in await venue.operations()]
            id = (await venue.invoke(ASKS, {"ask": "?"})).id
            assert not has_ended(await venue.wait(id, 0.05))
            assert (await venue.pause(id)).status == "PAUSED"
            assert await venue.jobs("PAUSED") == (id,)
            assert await venue.message(id, "yes") == 1
            paused = await venue.job(id)
            async with venue.watch(id, after=paused.updated) as records:
                await venue.resume(id)
                seen = [record.status async for record in records]
            assert seen[-1] == "COMPLETE"
            assert (await venue.cancel(id)).status == "COMPLETE"
            await venue.delete(id)
            assert id not in await venue.jobs()
            call = await venue.schedule(BACK, 1, time_ms=LATER_MS)
            assert await venue.scheduled() == (call,)
            await venue.unschedule(call.handle)
            assert await venue.scheduled() == ()
            asset = await venue.register(declared(CONTENT))
            assert json.loads(await venue.asset(asset)) == declared(CONTENT)
            assert await venue.upload(asset, CONTENT) == hashlib.sha256(CONTENT).digest()
            assert b"".join([one async for one in venue.download(asset)]) == CONTENT
            assert asset in [one async for one in venue.assets()]

    asyncio.run(use())
