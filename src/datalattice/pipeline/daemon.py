"""The process from which a local Spark forks its Python workers.

Spark runs this module with the argument `pyspark.worker`. It imports everything that the formats
need and then forks, so that the workers of tasks start faster. The workers that plan queries are
forked from Spark's own daemon.
"""

from __future__ import annotations

import gc

from pyspark import daemon

from datalattice.pipeline.formats import sources
from datalattice.pipeline.spark.workers import quiet_when_unheard

if __name__ == "__main__":
    sources()
    gc.freeze()  # keeps the memory shared with forked workers
    quiet_when_unheard(daemon)
    daemon.manager()
