"""Daemon: the process that a local Spark forks its Python workers from.

Spark runs it as `python -m datalattice.pipeline.daemon pyspark.worker`. It is Spark's own daemon
but for two things. It has imported what the formats need before it forks, so that no worker of a
task has to; those that plan a query Spark forks from its own daemon all the same. And it is quiet
when whoever asked a worker hangs up early, as after a LIMIT: on a Unix socket the last words of the
worker fail then, and Spark's daemon prints a traceback although nothing is wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from pyspark import daemon

from datalattice.pipeline.formats import sources


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Return a worker that ends when nobody listens any more, without a word."""

    def run(*asked: object) -> int:
        try:
            return worker(*asked)
        except BrokenPipeError:
            return 1  # the daemon ends a worker of this code

    return run


if __name__ == "__main__":
    sources()
    gc.freeze()  # forked workers share this memory as long as their collectors leave it alone
    daemon.worker = quiet(daemon.worker)
    daemon.manager()
