"""Commands `lattice venue ...`: assets, contents and jobs; operations that a venue runs."""
