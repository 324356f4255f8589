"""KV: the Spark format `lattice.kv`, the keys of databases.

What reads (`rows`, `plan`, `view`) does not import Spark, so that it can be used and tested without
it.
"""
