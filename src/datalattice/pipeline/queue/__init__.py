"""Queue: the Spark format `lattice.queue`, the records of queues.

What reads (`leaves`, `rows`, `plan`, `view`) does not import Spark, so that it can be used and
tested without it.
"""
