"""Files: the Spark format `lattice.files`, what is in drives and what it holds.

Imports Spark only in `source`, so that the rest can be used and tested without it.
"""
