"""Commands `lattice queue ...`: topics, their records and consumers."""
