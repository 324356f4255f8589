"""Found by Spark's search for data sources: the worker that searches ends without a traceback.

Spark 4 imports every top-level module whose name begins with `pyspark_` in a worker process of its
own daemon. That worker imports nothing else of this package. It stays idle for a minute, then Spark
closes its connection, and the daemon prints a BrokenPipeError to the user's terminal or notebook.
Importing `datalattice.pipeline` in a worker changes that (`pipeline.spark.workers`).

The module has no `DefaultSource`, so Spark registers nothing: `register(spark)` does.
"""

import datalattice.pipeline  # noqa: F401
