"""Replicas: foreign data into the store of a folder, by its own rules: imports and healings."""

from datalattice.client.replicas.importing import (
    import_into as import_into,
    replica_on as replica_on,
    taking as taking,
)
