"""Times: the greatest time in the subtree of a directory, cached by its hash.

The time depends only on the hash, not on the path, so it is cached beyond a single merge. A few
foreign cells that share subtrees can encode more nodes than a machine can visit, so each distinct
directory is read once.

Source: docs/design/decisions.md "Base"; docs/design/foreign-data.md "Work".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.dlfs.node import DriveNode, deletions_of, is_name, is_time, read_node
from datalattice.cells import Value, Work, value_hash
from datalattice.limits import WORK_LIMITS

_REMEMBERED_MAX: Final = 65_536  # some megabytes, and most directories of a large drive
"""Most directories whose times are cached beyond a merge."""

DirectoryTimes = dict[bytes, int]
"""Times by hash of the directory, as computed by one merge."""


def directory_ticks(node: DriveNode) -> int:
    """Return the work of reading a directory; an empty one costs less."""
    # Reading entries loads a cell.
    return WORK_LIMITS.directory if node.entries else WORK_LIMITS.joined


class _Remembered:
    """A cache of times in two halves; when full, the older half is dropped.

    It is never iterated, so threads may use it without a lock; at worst a time is computed twice.
    """

    def __init__(self, limit: int) -> None:
        self._half: Final = limit // 2
        self._young: DirectoryTimes = {}
        self._old: DirectoryTimes = {}

    def get(self, hash: bytes) -> int | None:
        """Return the cached time of a directory, or None."""
        found = self._young.get(hash)
        return self._old.get(hash) if found is None else found

    def put(self, hash: bytes, time: int) -> None:
        """Cache the time of a directory."""
        young = self._young
        young[hash] = time
        if len(young) >= self._half:
            # The older half is dropped at once: no order of use is kept.
            self._old, self._young = young, {}


_remembered: Final = _Remembered(_REMEMBERED_MAX)


def directory_time(
    directory: Value, node: DriveNode, known: DirectoryTimes | None = None, work: Work | None = None
) -> int:
    """Return the time of a directory: the greatest time of well-formed nodes in its subtree.

    Shapes: known: times that this merge has computed; extended.
    Cost:   reads each uncached directory below once; charged to `work`.
    Raises: MissingData: a directory is not in the store. WorkExceeded: `work` is used up.
    """
    if known is None:
        known = {}
    hash = value_hash(directory)
    found = _look_up(hash, known)
    if found is not None:
        return found
    # Chains of directories can exceed the recursion limit, so this uses its own stack.
    stack = [_Walked(hash, node, work)]
    while True:
        top = stack[-1]
        if top.waiting:
            child, child_node = top.waiting.pop()
            hash = value_hash(child)
            found = _look_up(hash, known)
            if found is None:
                stack.append(_Walked(hash, child_node, work))
            else:
                top.take(child_node.base, found)
            continue
        known[top.hash] = top.time
        _remembered.put(top.hash, top.time)
        stack.pop()
        if not stack:
            return top.time
        stack[-1].take(top.base, top.time)


def _look_up(hash: bytes, known: DirectoryTimes) -> int | None:
    found = known.get(hash)
    return _remembered.get(hash) if found is None else found


class _Walked:
    """A directory during the walk: its time so far, and its directories still to be read."""

    def __init__(self, hash: bytes, node: DriveNode, work: Work | None) -> None:
        if work is not None:
            work.spend(directory_ticks(node))  # charged to the message that brought it
        self.hash: Final = hash
        self.base: Final = node.base
        self.time = node.utime
        self.waiting: Final[list[tuple[Value, DriveNode]]] = []
        for name, deleted in deletions_of(node):
            # A malformed deletion has no time.
            if is_name(name) and isinstance(deleted, int) and is_time(deleted):
                self.time = max(self.time, deleted)
        assert node.entries is not None
        for name, value in node.entries.entries(work):
            child = read_node(value) if is_name(name) else None
            if child is not None and child.is_directory:
                self.waiting.append((value, child))
            elif child is not None:
                self.time = max(self.time, child.utime)

    def take(self, base: int, time: int) -> None:
        """Include the time of a directory below, unless that directory is malformed."""
        # A directory that is not newer than its base is malformed. A merge drops it with all its
        # entries, and the time of the rest must stay the same.
        if time > base:
            self.time = max(self.time, time)
