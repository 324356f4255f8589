"""Queue: the Spark format `lattice.queue`, the records of queues.

The modules that read (`leaves`, `rows`, `plan`, `view`) do not import Spark, so that they can be
used and tested without it.
"""
