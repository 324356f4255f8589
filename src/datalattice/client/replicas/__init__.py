"""Replicas: foreign data into the store of a folder, by its own rules: imports and healings."""

from datalattice.client.replicas.importing import import_into, replica_on, taking

__all__ = ["import_into", "replica_on", "taking"]
