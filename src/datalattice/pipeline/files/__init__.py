"""Files: the Spark format `lattice.files`, the files of drives and their contents.

Imports Spark only in `source`, so that the rest can be used and tested without it.
"""
