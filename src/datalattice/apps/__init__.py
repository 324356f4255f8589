"""Applications: each an entry format, a lattice and a thin object over one cursor."""
