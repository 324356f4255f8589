"""Met owners: the DIDs of a root's owners that this node may sign for, kept up as the root changes.

What a DID other than a `did:key` stands for is known only where it is met: in the root.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from datalattice.cells import Index, Map, Value, arriving_names
from datalattice.lattice import get_in, is_bare_did, public_key_of
from datalattice.sync.lattice.forkrecords import Path

DIDS_MAX: Final = 64
"""DIDs that are named at a time, and that are looked at anew for it: anybody may add any number,
and may name a key of this node in a document."""


class MetOwners:
    """The DIDs with slots at some paths of a root, `did:key`s apart. One thread uses it.

    signs: tells whether a key of this node may sign for a DID. It may say so later than at first.
    """

    def __init__(self, paths: Sequence[Path], signs: Callable[[str], bool]) -> None:
        self._signs = signs
        self._seen: dict[Path, Map | Index] = dict.fromkeys(paths, Map())
        self._known: set[str] = set()
        self._named: deque[str] = deque()  # the known ones, those first that wait longest
        self._ours: dict[str, None] = {}

    def ours(self, root: Value) -> list[str]:
        """Return the DIDs that keys here may sign for, 64 at most, of the owners met in a root.

        Of more than 64 DIDs with slots, as many others are judged anew each time.
        Cost: what changed in the containers of owners since the last time, however many there are.
        """
        for path, seen in self._seen.items():
            owners = get_in(root, path)
            if isinstance(owners, (Map, Index)) and owners is not seen:
                self._meet(seen, owners)
                self._seen[path] = owners
        for _ in range(min(len(self._named), DIDS_MAX)):
            did = self._named[0]
            self._named.rotate(-1)
            if not self._signs(did):
                self._ours.pop(did, None)
            elif len(self._ours) < DIDS_MAX:
                self._ours[did] = None
        return list(self._ours)

    def _meet(self, seen: Map | Index, owners: Map | Index) -> None:
        for owner, _ in arriving_names(seen, owners):
            if not isinstance(owner, str) or owner in self._known or not is_bare_did(owner):
                continue
            if public_key_of(owner) is None:
                self._known.add(owner)
                self._named.append(owner)
