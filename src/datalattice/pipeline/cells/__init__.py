"""Cells: the Spark format `lattice.cells`, every cell of a store, and cells into a store.

Imports Spark only in `source` and `sink`, so that the rest can be used and tested without it.
"""
