"""Processes of tests: what a failing test started ends with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S", str, bytes)


@contextmanager
def killing(process: subprocess.Popen[S]) -> Iterator[subprocess.Popen[S]]:
    """Give a process; at the end kill it if it still runs, wait for it and close its pipes.

    A process that a failed test leaves would be reported in a later test, as a ResourceWarning.
    """
    with process:
        try:
            yield process
        finally:
            process.kill()
