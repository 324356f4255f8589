"""Workers: the Python processes of Spark, each of which runs many tasks one after another."""

from __future__ import annotations

import gc
import os

_settled: set[int] = set()
"""This process, once it is settled: what a fork inherits is the number of another."""


def settle() -> None:
    """Take what is loaded by now out of reach of the garbage collector, once in each worker.

    After every task a worker collects its garbage, and looks at all modules to find none: 20 to
    40 ms, as much as a small task takes. Nothing is done in a process that runs no task of Spark,
    such as a driver.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None or os.getpid() in _settled:
        return
    _settled.add(os.getpid())
    gc.collect()  # what is garbage now would stay for good
    gc.freeze()
