"""datalattice: immutable Merkle values that merge, kept by cursors, stores and nodes."""

__version__ = "0.1.0"

__all__ = ["__version__"]
