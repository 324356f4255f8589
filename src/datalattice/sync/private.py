"""Private: which cells of a store lie below `:local` alone, so that nobody is given them by hash.

A store takes a root as a whole, and all of it counts as announced there. What came with a root and
is not below the announced value is private, until something public refers to it: then somebody may
need it, and it is no secret any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from datalattice.cells import (
    Index,
    Part,
    Value,
    encode,
    is_embedded,
    novelty,
    references,
    value_hash,
)
from datalattice.lattice import LOCAL_KEY, get_in
from datalattice.store import Store


class PrivateCells:
    """The private cells of one store, followed from commit to commit."""

    def __init__(
        self, store: Store, load: Callable[[bytes], bytes | None], root: Value, announced: Value
    ) -> None:
        self._store = store
        self._load = load
        self._section: Value = None
        self._cells: set[bytes] = set()
        # What was written before this process counts as private where `:local` has it now.
        if root is not announced:
            self._section = get_in(root, [LOCAL_KEY])
            self._cells = set(self._below(_names(self._section)))
            self._cells.add(value_hash(root))
        self._is_proven = not self._cells

    def prepare(self, value: Value) -> None:
        """Take note of a root that is about to be committed.

        What `:local` brings that is nowhere in the store is private, unless the rest has it, too.
        """
        section = get_in(value, [LOCAL_KEY]) if isinstance(value, Index) else None
        if section is None or section is self._section:
            return
        self._section = section
        brought = {hash for hash, _, _ in novelty(section, self._store)}
        self._cells |= brought - self._store.has_many(brought)

    def follow(
        self, root: Value, announced: Value, made: Mapping[bytes, bytes], parts: Iterable[Part]
    ) -> None:
        """Take note of a commit: what of it is public, by itself or by what refers to it.

        `made` are the cells of the announced value that were not written with the root.
        """
        if not self._cells and root is announced:
            return
        fresh = {hash: encoding for hash, encoding, _ in parts}
        public: set[bytes] = set()
        front = _names(announced)
        while front:
            hash = front.pop()
            if hash in public:
                continue
            encoding = fresh.get(hash) or made.get(hash)
            if encoding is not None:
                public.add(hash)
                front.extend(references(encoding))
            elif hash in self._cells:
                public.update(self._below([hash]))
        self._cells -= public
        if root is not announced:
            self._cells.add(value_hash(root))

    def admit(self, cells: Iterable[bytes]) -> None:
        """Take note of encodings that came from peers: they may refer to what was private."""
        if self._is_proven and self._cells:
            self._is_proven = all(self._cells.isdisjoint(references(cell)) for cell in cells)

    def withholds(self, hash: bytes, announced: Value, public: Iterable[Value] = ()) -> bool:
        """Return whether a cell is private; what is below `public` ones is not, though kept so.

        Cost: the first question for what was private when the process began looks at everything
              that is announced: it may lie there, too. So does the next one after cells of a peer
              referred to something private.
        """
        if hash not in self._cells:
            return False
        if not self._is_proven:
            self._is_proven = True
            names = [name for value in (announced, *public) for name in _names(value)]
            self._cells.difference_update(self._below(names))
        return hash in self._cells

    def _below(self, names: list[bytes]) -> dict[bytes, None]:
        """Return these cells and all below them."""
        found: dict[bytes, None] = {}
        front = list(names)
        while front:
            hash = front.pop()
            if hash not in found:
                found[hash] = None
                encoding = self._load(hash)
                if encoding is not None:
                    front.extend(references(encoding))
        return found


def _names(value: Value) -> list[bytes]:
    """Return the hash of a value, or of what it refers to when it has no cell of its own."""
    return references(encode(value)) if is_embedded(value) else [value_hash(value)]
