"""Replicas: brings foreign data into a folder's store under its hosting policy: imports."""

from datalattice.client.replicas.importing import (
    import_into as import_into,
    replica_on as replica_on,
    taking as taking,
)
