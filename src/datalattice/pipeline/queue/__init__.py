"""Queue: the Spark format `lattice.queue`, which needs PySpark only in `source`."""

from datalattice.pipeline.queue.options import QueueOptions, parse_options

__all__ = ["QueueOptions", "parse_options"]
