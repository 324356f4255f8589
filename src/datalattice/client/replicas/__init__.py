"""Replicas: the gate that data of others goes through, on a store that this process has opened."""

from datalattice.client.replicas.gate import replica_on, taking
from datalattice.client.replicas.importing import Bring, import_into

__all__ = ["Bring", "import_into", "replica_on", "taking"]
