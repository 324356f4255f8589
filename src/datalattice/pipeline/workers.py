"""Spark's Python worker processes, each of which runs many tasks one after another."""

from __future__ import annotations

import gc
import os

_settled: set[int] = set()
"""Process ids that were settled; after a fork the id differs from the inherited one."""


def settle() -> None:
    """Exclude everything loaded so far from garbage collection, once in each worker.

    PySpark collects garbage after every task, which walks all modules: 20 to 40 ms, as long as a
    small task. Does nothing outside of a Spark task, as in a driver.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None or os.getpid() in _settled:
        return
    _settled.add(os.getpid())
    gc.collect()  # freeze() would keep present garbage for good
    gc.freeze()
