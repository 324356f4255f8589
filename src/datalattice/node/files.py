"""Files: how many a process may have open, and what a node keeps of them for itself.

A connection is an open file. A node that gave all of them to its peers could not open its own
segments, nor hear its owner.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

FILES_RESERVED: Final = 640
"""Open files that are no inbound connections: the store, the control socket, connections to peers,
and those just accepted to be closed again (the backlog of 128, four times over in a rush)."""


def files_max() -> int:
    """Return how many files this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_files(wanted: int) -> int:
    """Let this process have `wanted` files open, as far as it may; return how many it may now."""
    if files_max() < wanted:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return files_max()
