"""Forking: what a forked child must not take over from its parent.

A child has a copy of the parent's memory, and of its threads the one that forked. A lock that
another thread held at the fork is held in the child too, by a thread that is not there, so it would
never be released. And what the parent has open, such as a socket or a lock file, is the parent's.

Source: docs/design/front-door.md "Open".
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final, Protocol, TypeVar

from datalattice.errors import UsageError

L = TypeVar("L")


class BeginsAnew(Protocol):
    """An object that sets itself up again in a forked child."""

    def begin_in_child(self) -> None:
        """Set the initial state; nothing of the parent's is closed."""
        ...


class _ThisProcess:
    """This process's id, without a system call."""

    def __init__(self) -> None:
        self.id = os.getpid()


this_process: Final = _ThisProcess()

_locks: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_objects: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def freed_in_child(lock: L) -> L:
    """Return a `threading` lock or condition; a forked child finds it free."""
    _locks.add(lock)
    return lock


def begins_anew(one: BeginsAnew) -> None:
    """Call `begin_in_child` of an object in every forked child, as long as the object exists."""
    _objects.add(one)


def check_process(pid: int, what: str) -> None:
    """Raise UsageError in a forked child of the process `pid`, which made `what`."""
    if pid != this_process.id:
        raise UsageError(
            f"{what} is of the parent process, from before a fork; open it again in this process"
        )


def _begin_in_child() -> None:
    this_process.id = os.getpid()
    # Locks first: an object that begins anew may take them.
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the standard library does with its own
    for one in list(_objects):
        one.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
