"""Weaver: the Spark format `lattice.weaver`, intentions, state and conflicts of a weaver store.

Imports Spark only in `source`, so that the rest can be used and tested without it.
"""
