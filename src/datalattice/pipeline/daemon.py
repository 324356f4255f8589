"""The process from which a local Spark forks its Python workers.

Spark runs it as `python -m datalattice.pipeline.daemon pyspark.worker`. It differs from Spark's own
daemon in two ways. It imports what the formats need before it forks, so that the workers of tasks
need not. (Spark forks the workers that plan queries from its own daemon.) And it stays quiet if
Spark closes a worker's connection early, as after a LIMIT, where Spark's own daemon prints a
traceback.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from pyspark import daemon

from datalattice.pipeline.formats import sources


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Return `worker`, made to exit with status 1 instead of raising BrokenPipeError."""

    def run(*asked: object) -> int:
        try:
            return worker(*asked)
        except BrokenPipeError:
            return 1  # the daemon ends the worker

    return run


if __name__ == "__main__":
    sources()
    gc.freeze()  # keeps the memory shared with forked workers
    daemon.worker = quiet(daemon.worker)
    daemon.manager()
