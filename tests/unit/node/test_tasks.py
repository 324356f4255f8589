"""Tasks: joined by equal requests, run in turn by operation, kept for all that wait for them."""

from __future__ import annotations

import asyncio

import pytest

from datalattice.cells import Map, Value, to_cell
from datalattice.errors import Backpressure, StoreFull, UsageError
from datalattice.node import tasks as module
from datalattice.node.tasks import NodeTask, NodeTasks, Work

WAIT_S = 30.0


def asked(**arguments: object) -> Map:
    cell = to_cell(arguments)
    assert isinstance(cell, Map)
    return cell


def returns(value: Value) -> Work:
    async def work(_task: NodeTask) -> Value:
        return value

    return work


def held(release: asyncio.Event, begun: list[str], name: str = "") -> Work:
    async def work(_task: NodeTask) -> Value:
        begun.append(name)
        await release.wait()
        return name

    return work


async def end_of(tasks: NodeTasks, id: int) -> Value:
    state = await tasks.wait(id, WAIT_S)
    assert isinstance(state, Map)
    assert state.get("done") is True
    return state.get("result")


def test_a_task_tells_how_far_it_is_and_then_its_result() -> None:
    async def run() -> None:
        tasks, release = NodeTasks(), asyncio.Event()

        async def work(task: NodeTask) -> Value:
            task.on_progress(3)
            await release.wait()
            task.on_progress(4, 9)
            return Map.of({"cells": 9})

        id = tasks.begin("store.gc", asked(), work)
        await asyncio.sleep(0)
        assert await tasks.wait(id, 0) == to_cell({"done": False, "count": 3, "total": None})
        release.set()
        assert await end_of(tasks, id) == Map.of({"cells": 9})
        assert await end_of(tasks, id) == Map.of({"cells": 9})  # whoever joined it is told, too

    asyncio.run(run())


def test_an_error_is_kept_for_whoever_asks() -> None:
    async def run() -> None:
        tasks = NodeTasks()

        async def work(_task: NodeTask) -> Value:
            raise StoreFull("no room")

        id = tasks.begin("store.heal", asked(), work)
        for _ in range(2):
            with pytest.raises(StoreFull, match="no room"):
                await tasks.wait(id, WAIT_S)

    asyncio.run(run())


def test_an_equal_request_joins_a_task_until_that_has_ended() -> None:
    async def run() -> None:
        tasks, release, begun = NodeTasks(), asyncio.Event(), list[str]()
        work = held(release, begun)
        first = tasks.begin("store.import", asked(path="a", pin=""), work)
        assert tasks.begin("store.import", asked(pin="", path="a"), work) == first
        assert tasks.begin("store.import", asked(path="b", pin=""), work) != first
        assert tasks.begin("store.gc", asked(path="a", pin=""), work) != first
        release.set()
        await end_of(tasks, first)
        assert tasks.begin("store.import", asked(path="a", pin=""), work) != first

    asyncio.run(run())


def test_tasks_of_one_operation_run_one_after_the_other() -> None:
    async def run() -> None:
        tasks, release, begun = NodeTasks(), asyncio.Event(), list[str]()
        first = tasks.begin("store.gc", asked(grace_ms=1), held(release, begun, "first"))
        second = tasks.begin("store.gc", asked(grace_ms=2), held(release, begun, "second"))
        other = tasks.begin("store.heal", asked(), returns("other"))
        assert await end_of(tasks, other) == "other"
        assert begun == ["first"]
        release.set()
        assert [await end_of(tasks, id) for id in (first, second)] == ["first", "second"]
        assert begun == ["first", "second"]

    asyncio.run(run())


def test_a_task_that_failed_lets_the_next_one_begin() -> None:
    async def run() -> None:
        tasks = NodeTasks()

        async def fails(_task: NodeTask) -> Value:
            raise StoreFull("no room")

        first = tasks.begin("store.gc", asked(grace_ms=1), fails)
        second = tasks.begin("store.gc", asked(grace_ms=2), returns("done"))
        assert await end_of(tasks, second) == "done"
        with pytest.raises(StoreFull):
            await tasks.wait(first, WAIT_S)

    asyncio.run(run())


def test_as_many_tasks_are_remembered_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODE_TASKS_MAX", 3)

    async def run() -> None:
        tasks, release, begun = NodeTasks(), asyncio.Event(), list[str]()
        ids = [tasks.begin("op", asked(n=n), held(release, begun)) for n in range(3)]
        with pytest.raises(Backpressure, match="3 long operations"):
            tasks.begin("op", asked(n=3), held(release, begun))
        assert tasks.begin("op", asked(n=2), held(release, begun)) == ids[2]
        release.set()
        for id in ids:
            await end_of(tasks, id)
        tasks.begin("op", asked(n=3), held(release, begun))
        with pytest.raises(UsageError, match=f"no task {ids[0]}"):
            await tasks.wait(ids[0], 0)
        await end_of(tasks, ids[1])

    asyncio.run(run())


@pytest.mark.parametrize("id", [0, 1, -1, "1", True, None], ids=repr)
def test_what_is_no_task_is_refused(id: Value) -> None:
    async def run() -> None:
        with pytest.raises(UsageError, match="this node has no task"):
            await NodeTasks().wait(id, 0)

    asyncio.run(run())
