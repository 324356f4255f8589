"""KV: the Spark format `lattice.kv`, the keys of databases.

Imports Spark only in `source` and `sink`, so that the rest can be used and tested without it.
"""
