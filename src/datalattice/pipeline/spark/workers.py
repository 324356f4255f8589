"""Spark's Python worker processes, each of which runs many tasks one after another."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from types import ModuleType, SimpleNamespace

_settled: set[int] = set()
"""Process ids that were settled; after a fork the id differs from the inherited one."""


def settle() -> None:
    """Exclude everything loaded so far from garbage collection, once in each worker.

    PySpark collects garbage after every task, which walks all modules: 20 to 40 ms, as long as a
    small task. Does nothing outside of a Spark task, as in a driver.
    """
    from pyspark import TaskContext

    # A driver's collector works for the user's own program.
    if TaskContext.get() is None or os.getpid() in _settled:
        return
    _settled.add(os.getpid())
    gc.collect()  # freeze() would keep present garbage for good
    gc.freeze()


def quiet_when_unheard(daemon: ModuleType) -> None:
    """Make Spark's daemon module print no traceback when a worker's connection was closed.

    Spark closes it when it needs no more rows (`show()`, LIMIT) and when its driver has gone. The
    worker then ends with BrokenPipeError and status 1, as before; every other error is printed.
    """

    def print_exc() -> None:
        # No process reads what this worker writes, so its end is not a failure.
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()

    # The daemon looks this name up in its own module; the standard module stays as it is.
    vars(daemon)["traceback"] = SimpleNamespace(
        print_exc=print_exc, format_exc=traceback.format_exc
    )


def quiet_own_daemon() -> None:
    """Do that in a worker that Spark's own daemon forked; nothing in any other process.

    Spark 4 forks the workers that plan queries from `pyspark.daemon` whatever
    `spark.python.daemon.module` says, and sessions of a user fork all workers from it.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        quiet_when_unheard(main)
