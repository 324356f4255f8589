"""Grid: the Spark format `lattice.grid`, tables of the data of venues.

Imports Spark only in `source`, so that the rest can be used and tested without it.
"""
