"""DAG: questions about operations linked by their dependencies.

    find_lca(look_up, a, b)     is_ancestor(look_up, a, d)
    path(look_up, start, to)    branches(look_up, heads)

`look_up(hash)` returns a node or None. A node's `seq` is its place in an order in which
dependencies come first, such as the witness log. No ancestor of a node has a greater seq, so every
walk stops early. Chains of one author (`store_prev`) are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from datalattice.clock import Hlc
from datalattice.errors import LimitExceeded, UsageError
from datalattice.weaver.intention import ZERO_HASH

# "at most 100 000 nodes": a peer's history must not hold memory without end.
PATH_NODES_MAX: Final = 100_000
"""Most operations that a path visits."""


class DagNode(NamedTuple):
    """One operation: its dependencies, stamp and place in the witness log."""

    hash: bytes
    deps: tuple[bytes, ...]
    stamp: Hlc
    seq: int


LookUp = Callable[[bytes], DagNode | None]


class NoCommonAncestor(UsageError):
    """Two operations have no common ancestor."""

    code = "no-common-ancestor"


class Branch(NamedTuple):
    """The operations that lead to one head, the common ancestor in front."""

    head: bytes
    path: tuple[bytes, ...]


def known(look_up: LookUp, hash: bytes) -> DagNode:
    """Return a node.

    Raises: UsageError: the hash is unknown.
    """
    node = look_up(hash)
    if node is None:
        raise UsageError(f"no witnessed intention {hash.hex()}")
    return node


def is_ancestor(look_up: LookUp, ancestor: bytes, descendant: bytes) -> bool:
    """Return whether dependencies lead from `descendant` to `ancestor`; true if they are equal.

    ZERO is an ancestor of everything.

    Raises: UsageError: one of them is unknown.
    """
    if ancestor == ZERO_HASH:  # "ZERO is an ancestor of everything"
        return True
    target, first = known(look_up, ancestor), known(look_up, descendant)
    seen, stack = {first.hash}, [first]
    while stack:
        node = stack.pop()
        if node.hash == ancestor:
            return True
        for dep in node.deps:
            if dep not in seen and dep != ZERO_HASH:
                seen.add(dep)
                below = known(look_up, dep)
                # A dependency is witnessed before: what is older than the target cannot lead to it.
                if below.seq >= target.seq:
                    stack.append(below)
    return False


def path(look_up: LookUp, start: bytes, to: bytes) -> list[bytes]:
    """Return the operations between `start`, excluded, and `to`, included, dependencies first.

    All of them descend from `start`. Empty if both are equal, or `to` does not descend from it.

    Raises: UsageError: one of them is unknown. LimitExceeded: over 100,000 operations to visit.
    """
    if start == to:  # "equal ends or unreachable: empty"
        return []
    last = known(look_up, to)
    # Nothing at or below the floor can descend from `start`.
    floor = 0 if start == ZERO_HASH else known(look_up, start).seq
    nodes, stack = {to: last}, [last]
    while stack:
        for dep in stack.pop().deps:
            if dep in nodes or dep in {start, ZERO_HASH}:
                continue
            below = known(look_up, dep)
            if below.seq > floor:
                if len(nodes) >= PATH_NODES_MAX:  # counted before it is kept
                    raise LimitExceeded(f"a path visits at most {PATH_NODES_MAX} operations")
                nodes[dep] = below
                stack.append(below)
    descending = {start}
    found = []
    # In the order of the log, so that a node comes after all that it may descend from.
    for node in sorted(nodes.values(), key=lambda node: node.seq):
        if start == ZERO_HASH or not descending.isdisjoint(node.deps):
            descending.add(node.hash)
            found.append(node.hash)
    return found if to in descending else []


_FIRST: Final = 1
_SECOND: Final = 2
_COMMON: Final = _FIRST | _SECOND
_BELOW: Final = 4
"""Marks: below the first node, below the second, below a common ancestor that was found."""


def find_lca(look_up: LookUp, first: bytes, second: bytes) -> bytes:
    """Return the lowest common ancestor: one without a common ancestor above it.

    Of several the one with the greatest (stamp, hash), so every node of the network answers alike.

    Raises: UsageError: one of them is unknown. NoCommonAncestor: they share no ancestor.
    """
    one, other = known(look_up, first), known(look_up, second)
    if first == second:
        return first
    marks = {first: _FIRST, second: _SECOND}
    nodes = {first: one, second: other}
    heap = [(-one.seq, first), (-other.seq, second)]  # seqs negated: heapq pops the newest first
    heap.sort()
    open_count = 2  # entries of the heap that are not below a common ancestor
    lowest: list[DagNode] = []
    # By descending seq a node comes after all above it, so its marks are complete.
    while open_count:
        hash = heappop(heap)[1]
        mark, node = marks.pop(hash), nodes.pop(hash)
        if not mark & _BELOW:
            open_count -= 1
            # "common ancestors with no common-ancestor descendant"
            if mark == _COMMON:
                lowest.append(node)
                mark |= _BELOW  # its ancestors are common too, and not lowest
        for dep in node.deps:
            if dep == ZERO_HASH:
                continue
            before = marks.get(dep)
            if before is None:
                below = known(look_up, dep)
                nodes[dep] = below
                heappush(heap, (-below.seq, dep))
                open_count += not mark & _BELOW
                marks[dep] = mark
            else:
                marks[dep] = before | mark
                open_count -= bool(mark & _BELOW) and not before & _BELOW
    if not lowest:  # "error if none"
        raise NoCommonAncestor(f"{first.hex()} and {second.hex()} have no common ancestor")
    # Stamp and hash are the same everywhere, seqs are not.
    return max(lowest, key=lambda node: (node.stamp, node.hash)).hash


def branches(look_up: LookUp, heads: Sequence[bytes]) -> list[Branch]:
    """Return the path to each head from the common ancestor of all, in the order of `heads`.

    A single head is its own ancestor; without heads there are no branches.

    Raises: UsageError, NoCommonAncestor, LimitExceeded: as `find_lca` and `path`.
    """
    if not heads:
        return []
    root = known(look_up, heads[0]).hash
    for head in heads[1:]:  # "fold find_lca over heads"
        root = find_lca(look_up, root, head)
    return [Branch(head, (root, *path(look_up, root, head))) for head in heads]
