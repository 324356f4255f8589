"""Last use: gives back what a store holds once nothing refers to the store any more.

It is a module of its own since a compiled class has no `__del__`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from datalattice.errors import StoreError


class LastUse:
    """Calls what is in `held` when it goes away, in the process that made it."""

    def __init__(self, held: list[Callable[[], None]]) -> None:
        self._held: Final = held
        self._pid: Final = os.getpid()

    def __del__(self) -> None:
        if self._pid != os.getpid():
            return  # the tables of a parent are the parent's to close
        for close in self._held:
            with contextlib.suppress(StoreError):  # it was read only: nothing is lost
                close()
