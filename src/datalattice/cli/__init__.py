"""CLI: the command `lattice`."""

import sys

__all__ = ["start"]


def start() -> None:
    """Run the command line of this process and end it."""
    try:
        from datalattice.cli.main import main
    except KeyboardInterrupt:  # loading takes long enough for a Ctrl-C
        sys.exit(130)
    main()
