"""Tasks: the long operations of a running node. They continue after the request that began them.

    id = tasks.begin("store.gc", arguments, work)       # the answer to the client
    await tasks.wait(id, timeout_s)                     # its progress, or its result

A task continues if the client that began it disconnects. If the same request comes again before the
task has ended, it joins that task. Tasks of one operation run one after the other, in the order in
which they began.

Source: docs/node.md "Control socket".
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final

from datalattice.cells import Map, Value, Vector, to_cell, value_hash
from datalattice.errors import Backpressure, UsageError

NODE_TASKS_MAX: Final = 64  # remembered; the oldest one that has ended makes room for the next


class NodeTask:
    """One long operation: its progress, and in the end its result or error.

    request: the hash of the operation's name and arguments.
    """

    def __init__(self, request: bytes) -> None:
        self.request: Final = request
        self.progress: tuple[int, int | None] = (0, None)
        self.ended: asyncio.Task[Value]

    def on_progress(self, count: int, total: int | None = None) -> None:
        """Note how many parts are done, and of how many; from any thread."""
        self.progress = (count, total)


# What a task does: it reports its progress to the task and returns the operation's result.
Work = Callable[[NodeTask], Awaitable[Value]]


class NodeTasks:
    """The tasks of one node, by id. Lives on its event loop."""

    def __init__(self) -> None:
        self._tasks: dict[int, NodeTask] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._last_id = 0

    def begin(self, name: str, arguments: Map, work: Work) -> int:
        """Begin a task, or join the one of an equal request; return its id.

        Raises: Backpressure: `NODE_TASKS_MAX` tasks have not ended yet.
        """
        # "An equal request meanwhile joins it": a client that timed out asks again and must find
        # its task.
        request = value_hash(Vector.of((name, arguments)))
        for id, task in self._tasks.items():
            if task.request == request and not task.ended.done():
                return id
        self._make_room()
        task = NodeTask(request)
        task.ended = asyncio.ensure_future(self._run(name, task, work))
        # Read here, so that asyncio does not log the error; the waiting client gets it.
        task.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._last_id += 1
        self._tasks[self._last_id] = task
        return self._last_id

    def _make_room(self) -> None:
        if len(self._tasks) < NODE_TASKS_MAX:
            return
        for id, task in self._tasks.items():
            if task.ended.done():
                del self._tasks[id]
                return
        raise Backpressure(
            f"{NODE_TASKS_MAX} long operations of this node have not ended; try again"
        )

    async def _run(self, name: str, task: NodeTask, work: Work) -> Value:
        async with self._turns[name]:  # two collections, or two checks, would hinder each other
            return await work(task)

    async def wait(self, id: Value, timeout_s: float) -> Value:
        """Wait for the end of a task; return `{done result}`, or `{done count total}` before it.

        Raises: what the task raised. UsageError: there is no such task.
        """
        task = self._tasks.get(id) if type(id) is int else None
        if task is None:
            raise UsageError(f"this node has no task {id!r}")
        # `wait` leaves the task running when its time is over, which `wait_for` would cancel.
        await asyncio.wait([task.ended], timeout=timeout_s)
        if task.ended.done():
            return to_cell({"done": True, "result": task.ended.result()})
        count, total = task.progress
        return to_cell({"done": False, "count": count, "total": total})
