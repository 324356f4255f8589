"""Grid: the Spark format `lattice.grid`, tables of what venues publish.

Imports Spark only in `source`, so that the rest can be used and tested without it.
"""
