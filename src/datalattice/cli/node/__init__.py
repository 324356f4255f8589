"""Commands `lattice node ...`: a node and its peers."""
