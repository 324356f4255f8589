"""Commands `lattice fs ...`: drives and their files."""
