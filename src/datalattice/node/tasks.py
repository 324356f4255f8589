"""Tasks: the long operations of a running node. They continue after the request that began them.

    task = tasks.begin("collect", request, caller, work)
    async for info in tasks.watch(task.id, caller): ...         # ends with the task

A task continues if the client that began it disconnects. If the same request comes again before the
task has ended, it joins that task. Tasks of one kind run one after the other, in the order in which
they began.

Source: docs/node.md "Control socket".
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from datalattice.actions import (
    CollectedGarbage,
    Empty,
    HealedStore,
    ImportedRoot,
    TaskInfo,
    TaskState,
)
from datalattice.errors import Backpressure, Conflict, DataLatticeError, NoSuchPath
from datalattice.protobuf import Message

NODE_TASKS_MAX: Final = 64  # remembered; the oldest one that has ended makes room for the next

TELL_S: Final = 0.5  # a bar moves twice a second
"""Time between two reports of a task's progress to its watchers; its end is reported at once."""

_RESULTS: Final[dict[type[Message], str]] = {
    HealedStore: "healed",
    CollectedGarbage: "collected",
    ImportedRoot: "imported",
    Empty: "rebuilt",
}
"""The field of `TaskInfo` for each type of result."""


class NodeTask:
    """One long operation: its progress, and in the end its result or error.

    request: the bytes of the request. caller: the DID of its sender, "" for the folder's owner.
    """

    def __init__(self, id: int, kind: str, request: bytes, caller: str) -> None:
        self.id: Final = id
        self.kind: Final = kind
        self.request: Final = request
        self.caller: Final = caller
        self.progress: tuple[int, int | None] = (0, None)
        self.is_running = self.is_cancelled = False
        self.ended: asyncio.Task[Message]

    def on_progress(self, count: int, total: int | None = None) -> None:
        """Note how many parts are done, and of how many; from any thread.

        Raises: Conflict: the task was cancelled, so the work ends here.
        """
        self.progress = (count, total)
        self.check_wanted()

    def check_wanted(self) -> None:
        """Raise `Conflict` if the task was cancelled."""
        if self.is_cancelled:
            raise Conflict(self._cancelled_text)

    @property
    def _cancelled_text(self) -> str:
        return f"task {self.id} ({self.kind}) was cancelled"

    def cancel(self) -> None:
        """Have it end at its next step; at once while it waits for its turn."""
        self.is_cancelled = True
        if not self.is_running:
            self.ended.cancel()

    def info(self) -> TaskInfo:
        """Return how far it is, or its result or error."""
        count, total = self.progress
        state = TaskState.RUNNING if self.is_running else TaskState.WAITING
        code = text = ""
        results: dict[str, Message] = {}
        if self.ended.done():
            try:
                result = self.ended.result()
                state, results = TaskState.DONE, {_RESULTS[type(result)]: result}
            except asyncio.CancelledError:  # while it waited for its turn
                state, code, text = TaskState.CANCELLED, Conflict.code, self._cancelled_text
            except DataLatticeError as error:
                is_cancelled = self.is_cancelled and isinstance(error, Conflict)
                state = TaskState.CANCELLED if is_cancelled else TaskState.FAILED
                code, text = error.code, str(error)
        return TaskInfo(
            id=self.id,
            kind=self.kind,
            caller=self.caller,
            state=state,
            count=count,
            total=total,
            code=code,
            text=text,
            **results,  # type: ignore[arg-type]
        )


# What a task does: it reports its progress to the task and returns the operation's result.
TaskWork = Callable[[NodeTask], Awaitable[Message]]


class NodeTasks:
    """The tasks of one node, by id. Lives on its event loop."""

    def __init__(self) -> None:
        self._tasks: dict[int, NodeTask] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._last_id = 0

    def begin(self, kind: str, request: bytes, caller: str, work: TaskWork) -> NodeTask:
        """Begin a task, or join the one of an equal request of this caller.

        Raises: Backpressure: `NODE_TASKS_MAX` tasks have not ended yet.
        """
        # "An equal request of the same caller joins it": a client that timed out asks again and
        # must find its task.
        for task in self._tasks.values():
            same = (task.kind, task.request, task.caller) == (kind, request, caller)
            if same and not task.is_cancelled and not task.ended.done():
                return task
        self._make_room()
        self._last_id += 1
        task = self._tasks[self._last_id] = NodeTask(self._last_id, kind, request, caller)
        task.ended = asyncio.ensure_future(self._run(task, work))
        # Read here, so that asyncio does not log the error: `info` reports it.
        task.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return task

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

    async def _run(self, task: NodeTask, work: TaskWork) -> Message:
        async with self._turns[task.kind]:  # two collections, or two checks, hinder each other
            task.check_wanted()
            task.is_running = True
            return await work(task)

    def list(self, caller: str) -> tuple[NodeTask, ...]:
        """Return the tasks that a caller may see, the oldest first."""
        # "A task belongs to its caller"; the owner of the folder sees all.
        return tuple([task for task in self._tasks.values() if caller in ("", task.caller)])

    def get(self, id: int, caller: str) -> NodeTask:
        """Return a task. Raises: NoSuchPath: there is none, or it is another caller's."""
        for task in self.list(caller):
            if task.id == id:
                return task
        raise NoSuchPath(f"this node has no task {id}")

    async def watch(self, task: NodeTask) -> AsyncGenerator[Message, None]:
        """Yield how far a task is, each `TELL_S` seconds and at its end."""
        while not task.ended.done():
            yield task.info()
            # `wait` leaves the task running when its time is over, which `wait_for` would cancel.
            await asyncio.wait([task.ended], timeout=TELL_S)
        yield task.info()
