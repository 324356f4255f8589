"""A second kind of replica on nodes that are real processes, beside the lattice, over TLS."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from datalattice.testing.processes import killing

SCRIPT = Path(__file__).parents[1] / "scripts" / "counting.py"
PATIENCE_S = 120.0

pytestmark = [pytest.mark.once, pytest.mark.processes]


class Counting:
    """A node in a process of its own."""

    def __init__(self, folder: Path, seed: int, *peers: str) -> None:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(seed), *peers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with ExitStack() as stack:
            self._process = stack.enter_context(killing(process))
            self.address = self._line()
            self._killing = stack.pop_all()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def kill(self) -> None:
        self._killing.close()

    def end(self) -> None:
        with self._killing:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(PATIENCE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Counting]]:
    with ExitStack() as running:

        def begin(seed: int, *peers: str) -> Counting:
            folder = tmp_path / str(seed)
            folder.mkdir(exist_ok=True)
            one = Counting(folder, seed, *peers)
            running.callback(one.kill)
            return one

        yield begin


def until_equal(nodes: list[Counting], counts: dict[str, int]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        found = [node.say("read") for node in nodes]
        is_counted = all(one["counts"] == counts for one in found)
        if is_counted and len({one["root"] for one in found}) == 1:
            return
        assert time.monotonic() < end_s, found
        time.sleep(0.05)


def test_counters_and_a_lattice_converge_and_a_killed_node_has_what_it_acknowledged(
    start: Callable[..., Counting],
) -> None:
    first = start(1)
    second = start(2, first.address)
    nodes = [first, second]
    for number, node in enumerate(nodes):
        node.say(f"count of {number}")
        node.say(f"write record {number}")
    until_equal(nodes, {"of 0": 1, "of 1": 1})
    second.say("count of 1")
    second.kill()
    first.say("count of 0")
    first.say("write another record")
    alone = start(2)
    assert alone.say("read")["counts"]["of 1"] == 2, "it was acknowledged"
    alone.end()
    until_equal([first, start(2, first.address)], {"of 0": 2, "of 1": 2})
