"""Consumers and followers of one folder in several processes, and what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import datalattice
from datalattice.client import Node
from datalattice.errors import ConsumerBusy
from datalattice.testing.processes import killing

pytestmark = pytest.mark.processes

SECONDS = 120.0
ROUNDS = 10

WORKER = """
import sys
import datalattice

with datalattice.open(sys.argv[1]) as node:
    with node.queue("todo").consumer("robot", commit_every=0.0) as tasks:
        for task in tasks:
            print(task.value, flush=True)
            if task.value == sys.argv[2]:
                sys.stdin.read()
"""

PRODUCER = """
import sys
import datalattice

with datalattice.open(sys.argv[1]) as node:
    for number in range(int(sys.argv[2])):
        node.queue("log").offer(number)
"""


def process(program: str, *arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    pipe = subprocess.PIPE
    return killing(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))


def said(worker: subprocess.Popen[str], count: int) -> list[str]:
    assert worker.stdout is not None
    return [worker.stdout.readline().strip() for _ in range(count)]


def test_a_consumer_that_is_killed_frees_its_name_and_its_task_comes_again(tmp_path: Path) -> None:
    with datalattice.open(tmp_path) as node:
        todo = node.queue("todo")
        todo.offer_many(["a", "b", "c"])
        with process(WORKER, tmp_path, "b") as worker:
            assert said(worker, 2) == ["a", "b"]
            with pytest.raises(ConsumerBusy, match="'robot' is in use by a program"):
                todo.consumer("robot")
            worker.send_signal(signal.SIGKILL)
            worker.wait(SECONDS)
            with todo.consumer("robot", wait=False) as tasks:
                assert [task.value for task in tasks] == ["b", "c"]


def test_a_follower_sees_what_another_process_appends(tmp_path: Path) -> None:
    count = 50
    with datalattice.open(tmp_path) as node:
        with (
            node.queue("log").follow(timeout=SECONDS) as entries,
            process(PRODUCER, tmp_path, count),
        ):
            assert [next(entries).value for _ in range(count)] == list(range(count))

        async def follow() -> list[int]:
            async with node.queue("log").follow(count, timeout=SECONDS) as entries:
                return [(await anext(entries)).value for _ in range(count)]

        with process(PRODUCER, tmp_path, count):
            assert asyncio.run(follow()) == list(range(count))


def descriptors() -> int:
    """Return how many are open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def use_and_abandon(node: Node) -> None:
    """Leave followers and consumers in every way but closing them."""
    queue = node.queue("log")
    next(queue.follow())
    next(queue.consumer("robot"))
    next(node.feed("log").consumer("reader"))
    gc.collect()

    async def cancelled() -> None:
        async def wait() -> None:
            async for _ in queue.follow("end"):
                raise AssertionError

        tasks = [asyncio.create_task(wait()) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(cancelled())
    gc.collect()


def test_streams_that_are_cancelled_or_abandoned_leave_no_thread_and_no_descriptor(
    tmp_path: Path,
) -> None:
    with datalattice.open(tmp_path) as node:
        node.queue("log").offer("a")
        with node.queue("log").follow("end"):  # keeps the thread that looks for changes
            use_and_abandon(node)
            before = descriptors(), threading.active_count()
            for _ in range(ROUNDS):
                use_and_abandon(node)
            # What each round leaves behind would be there so many times; others may come and go.
            assert descriptors() - before[0] < ROUNDS
            assert threading.active_count() - before[1] < ROUNDS
        with node.queue("log").consumer("robot", wait=False) as tasks:
            assert [task.value for task in tasks] == ["a"]
