"""Tasks: joined by equal requests, run in turn by operation, kept for all that wait for them."""

from __future__ import annotations

import asyncio

import pytest

from datalattice.actions import CollectedGarbage, TaskInfo, TaskState
from datalattice.errors import Backpressure, Conflict, NoSuchPath, StoreFull
from datalattice.node import tasks as module
from datalattice.node.tasks import NodeTask, NodeTasks, TaskWork
from datalattice.protobuf import Message
from datalattice.testing.polling import LIMIT_S

WAIT_S = LIMIT_S


def found(cells: int) -> CollectedGarbage:
    return CollectedGarbage(cells_live=cells)


def returns(cells: int) -> TaskWork:
    async def work(_task: NodeTask) -> Message:
        return found(cells)

    return work


def held(release: asyncio.Event, begun: list[int], number: int = 0) -> TaskWork:
    async def work(_task: NodeTask) -> Message:
        begun.append(number)
        await release.wait()
        return found(number)

    return work


async def end_of(tasks: NodeTasks, task: NodeTask) -> TaskInfo:
    async with asyncio.timeout(WAIT_S):
        infos = [info async for info in tasks.watch(task)]
    assert isinstance(infos[-1], TaskInfo)
    return infos[-1]


async def cells_of(tasks: NodeTasks, task: NodeTask) -> int:
    info = await end_of(tasks, task)
    assert info.state is TaskState.DONE
    assert info.collected is not None
    return info.collected.cells_live


def test_a_task_tells_how_far_it_is_and_then_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.001)

    async def run() -> None:
        tasks, release = NodeTasks(), asyncio.Event()

        async def work(task: NodeTask) -> Message:
            task.on_progress(3)
            await release.wait()
            task.on_progress(4, 9)
            return found(9)

        task = tasks.begin("collect", b"", "", work)
        assert task.info().state is TaskState.WAITING
        watching = tasks.watch(task)
        async for info in watching:
            assert isinstance(info, TaskInfo)
            if info.state is TaskState.RUNNING:
                break
        assert isinstance(info, TaskInfo)
        assert (info.count, info.total, info.collected) == (3, None, None)
        release.set()
        assert await cells_of(tasks, task) == 9
        last = await end_of(tasks, task)  # whoever joined it is told, too
        assert (last.count, last.total, last.kind) == (4, 9, "collect")
        await watching.aclose()

    asyncio.run(run())


def test_an_error_is_kept_for_whoever_asks() -> None:
    async def run() -> None:
        tasks = NodeTasks()

        async def work(_task: NodeTask) -> Message:
            raise StoreFull("no room")

        task = tasks.begin("heal", b"", "", work)
        for _ in range(2):
            info = await end_of(tasks, task)
            assert (info.state, info.code, info.text) == (
                TaskState.FAILED,
                StoreFull.code,
                "no room",
            )

    asyncio.run(run())


def test_an_equal_request_joins_a_task_until_that_has_ended() -> None:
    async def run() -> None:
        tasks, release, begun = NodeTasks(), asyncio.Event(), list[int]()
        work = held(release, begun)
        first = tasks.begin("import_root", b"a", "", work)
        assert tasks.begin("import_root", b"a", "", work) is first
        assert tasks.begin("import_root", b"b", "", work) is not first
        assert tasks.begin("collect", b"a", "", work) is not first
        assert tasks.begin("import_root", b"a", "did:key:z", work) is not first
        release.set()
        await end_of(tasks, first)
        assert tasks.begin("import_root", b"a", "", work) is not first

    asyncio.run(run())


def test_tasks_of_one_kind_run_one_after_the_other() -> None:
    async def run() -> None:
        tasks, release, begun = NodeTasks(), asyncio.Event(), list[int]()
        first = tasks.begin("collect", b"1", "", held(release, begun, 1))
        second = tasks.begin("collect", b"2", "", held(release, begun, 2))
        other = tasks.begin("heal", b"", "", returns(7))
        assert await cells_of(tasks, other) == 7
        assert begun == [1]
        assert second.info().state is TaskState.WAITING
        release.set()
        assert [await cells_of(tasks, task) for task in (first, second)] == [1, 2]
        assert begun == [1, 2]

    asyncio.run(run())


def test_a_task_that_failed_lets_the_next_one_begin() -> None:
    async def run() -> None:
        tasks = NodeTasks()

        async def fails(_task: NodeTask) -> Message:
            raise StoreFull("no room")

        first = tasks.begin("collect", b"1", "", fails)
        second = tasks.begin("collect", b"2", "", returns(5))
        assert await cells_of(tasks, second) == 5
        assert (await end_of(tasks, first)).state is TaskState.FAILED

    asyncio.run(run())


def test_a_cancelled_task_ends_at_its_next_step_and_a_waiting_one_at_once() -> None:
    async def run() -> None:
        tasks, release, begun = NodeTasks(), asyncio.Event(), list[int]()

        async def stepping(task: NodeTask) -> Message:
            await release.wait()
            task.on_progress(1)
            begun.append(99)
            return found(0)

        first = tasks.begin("collect", b"1", "", stepping)
        second = tasks.begin("collect", b"2", "", held(release, begun))
        await asyncio.sleep(0)
        second.cancel()
        assert (await end_of(tasks, second)).state is TaskState.CANCELLED
        first.cancel()
        assert first.info().state is TaskState.RUNNING
        assert tasks.begin("collect", b"1", "", returns(3)) is not first, "it is on its way out"
        release.set()
        info = await end_of(tasks, first)
        assert (info.state, info.code) == (TaskState.CANCELLED, Conflict.code)
        assert info.text == "task 1 (collect) was cancelled"
        assert begun == []
        first.cancel()
        assert (await end_of(tasks, first)).state is TaskState.CANCELLED

    asyncio.run(run())


def test_a_task_belongs_to_its_caller_and_the_owner_sees_all() -> None:
    async def run() -> None:
        tasks = NodeTasks()
        mine = tasks.begin("collect", b"", "did:key:a", returns(1))
        other = tasks.begin("collect", b"", "did:key:b", returns(2))
        assert tasks.list("did:key:a") == (mine,)
        assert tasks.list("") == (mine, other)
        assert tasks.get(2, "") is other
        with pytest.raises(NoSuchPath, match="no task 2"):
            tasks.get(2, "did:key:a")
        await asyncio.gather(end_of(tasks, mine), end_of(tasks, other))

    asyncio.run(run())


def test_as_many_tasks_are_remembered_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODE_TASKS_MAX", 3)

    async def run() -> None:
        tasks, release, begun = NodeTasks(), asyncio.Event(), list[int]()
        made = [tasks.begin("op", bytes([n]), "", held(release, begun)) for n in range(3)]
        with pytest.raises(Backpressure, match="3 long operations"):
            tasks.begin("op", b"more", "", held(release, begun))
        assert tasks.begin("op", bytes([2]), "", held(release, begun)) is made[2]
        release.set()
        for task in made:
            await end_of(tasks, task)
        tasks.begin("op", b"more", "", held(release, begun))
        with pytest.raises(NoSuchPath, match=f"no task {made[0].id}"):
            tasks.get(made[0].id, "")
        assert tasks.get(made[1].id, "") is made[1]

    asyncio.run(run())
