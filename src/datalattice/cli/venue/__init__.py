"""Commands `lattice venue ...`: assets, contents, jobs, and the operations that a venue runs."""
