"""Commands `lattice fs ...`: the files of drives."""
