"""Jobs: work on more data than one process is for, as functions of a Spark session.

Each returns a DataFrame or a report, takes `progress` (see `datalattice.pipeline.progress`), and is
a command `lattice spark JOB`. Tasks run the same code over cells as a node does, so what they make
has the same hashes.
"""
