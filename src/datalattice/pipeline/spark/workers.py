"""Spark's Python worker processes, each of which runs many tasks one after another."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from types import ModuleType, SimpleNamespace

_settled: set[int] = set()
"""Process ids that were settled; after a fork the id differs from the inherited one."""


def freeze_objects() -> None:
    """Exclude all present objects from garbage collection, once in each worker.

    PySpark collects garbage after every task and so visits all modules. That takes 20 to 40 ms, as
    long as a small task. Outside of a Spark task, as in a driver, the function does nothing.
    """
    from pyspark import TaskContext

    # In a driver the objects belong to the user's program.
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
        # Spark closed the connection on purpose, so this is not a failure.
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()

    # The daemon looks `traceback` up in its own module. The standard module is not changed.
    vars(daemon)["traceback"] = SimpleNamespace(
        print_exc=print_exc, format_exc=traceback.format_exc
    )


def quiet_own_daemon() -> None:
    """Call `quiet_when_unheard` if Spark's own daemon forked this process; else do nothing.

    Spark 4 always forks the workers that plan queries from `pyspark.daemon`, even if
    `spark.python.daemon.module` names another module. In a user's own session it forks all workers
    from `pyspark.daemon`.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        quiet_when_unheard(main)
