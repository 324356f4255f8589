"""Views: what of a root peers are told and served.

The *announced* value is the root without what never leaves this node (`:local`). Every peer is told
its *view* of that: all of it, or what lies at the paths that are replicated with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from datalattice.cells import (
    Keyword,
    Signed,
    Value,
    brief,
    encode,
    novelty,
    value_hash,
)
from datalattice.errors import Corruption, NoSuchPath
from datalattice.lattice import (
    KeyedLattice,
    Lattice,
    StringKeyedLattice,
    canonical_path,
    replicable,
    select,
    step,
)
from datalattice.store import Store
from datalattice.sync.replica import Part

MADE_MAX: Final = 1_000
"""Cells remembered that exist only because something was cut off the root, for each view of it."""

_SIGNED_FIELDS: Final = {"public-key", "signature", "value"}


class Views:
    """The announced value of one replica, and what each peer is told of it."""

    def __init__(self, lattice: Lattice, store: Store, made_max: int = MADE_MAX) -> None:
        self._lattice = lattice
        self._store = store
        self._made_max = made_max
        self._zero: Final = lattice.zero()
        self.announced: Value = self._zero
        """What may be known of the root."""
        self._made: dict[bytes, bytes] = {}  # cells that cutting made, which no store has
        self._paths: dict[str, tuple[tuple[Value, ...], ...]] = {}
        self._views: dict[str, tuple[Value, Value]] = {}  # peer -> (announced, what it is told)

    def public(self, root: Value) -> Value:
        """Return a root without what never leaves this node."""
        return replicable(root) if isinstance(self._lattice, KeyedLattice) else root

    def announce(self, announced: Value, root: Value) -> None:
        """Announce the public part of a durable root."""
        if announced is not root:
            self._keep(announced)
        self.announced = announced

    def restrict(self, peer: str, paths: Iterable[Sequence[object]] | None) -> None:
        """Replicate with `peer` only what lies at `paths`, in both directions; None: everything.

        It bounds what is exchanged, not what may be known: a peer that learnt the hash of another
        announced cell elsewhere is given it.
        Raises: UsageError: a path that the lattice does not have, or that enters a signed value.
        """
        self._views.pop(peer, None)
        if paths is None:
            self._paths.pop(peer, None)
        else:
            self._paths[peer] = tuple(canonical_path(self._lattice, path) for path in paths)

    def paths_of(self, peer: str) -> tuple[tuple[Value, ...], ...] | None:
        """Return the paths that are replicated with a peer; None: everything is."""
        return self._paths.get(peer)

    def of(self, peer: str) -> Value:
        """Return what a peer is told of the announced value."""
        paths = self._paths.get(peer)
        if paths is None:
            return self.announced
        announced, view = self._views.get(peer, (None, None))
        if announced is not self.announced:
            view = select(self.announced, paths)
            view = self._zero if view is None else view
            self._keep(view)
            self._views[peer] = (self.announced, view)
        return view

    def query(self, path: Sequence[Value], peer: str, *, strict: bool = True) -> Value:
        """Return what is announced to `peer` at a path, nil where nothing is.

        Raises: NoSuchPath: `strict`, and a key names a section that the lattice does not have.
        """
        lattice: Lattice | None = self._lattice
        value = self.of(peer)
        for key in path:
            if lattice is not None:
                below = lattice.child(key)
                named = isinstance(lattice, (KeyedLattice, StringKeyedLattice))
                if strict and named and below is None:
                    raise NoSuchPath(f"the lattice has nothing at {brief(key)}")
                lattice = below
            value = _field(value, key) if isinstance(value, Signed) else step(value, key)
        return value

    # --- cells ----------------------------------------------------------------------------------

    @property
    def made_count(self) -> int:
        """Cells remembered that exist only because something was cut off."""
        return len(self._made)

    def load(self, hash: bytes) -> bytes | None:
        """Return the encoding of a cell, or None when it is not here, or damaged."""
        encoding = self._made.get(hash)
        try:
            return self._store.get_encoding(hash) if encoding is None else encoding
        except Corruption:
            return None  # the store tells whoever is to heal it

    def load_all(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """Return the encodings of cells, None for each that is not here, or damaged."""
        try:
            found = self._store.get_encodings(hashes)
        except Corruption:
            return [self.load(hash) for hash in hashes]
        return [
            self._made.get(hash) if encoding is None else encoding
            for hash, encoding in zip(hashes, found, strict=True)
        ]

    def supply(self, want: Sequence[bytes]) -> list[Part | None]:
        """Return cells by hash; None for each that was not announced."""
        found = ((hash, self._supplied(hash)) for hash in want)
        return [None if data is None else Part(hash, data) for hash, data in found]

    def _supplied(self, hash: bytes) -> bytes | None:
        return self.load(hash) if self._store.announced(hash) else self._made.get(hash)

    def _keep(self, value: Value) -> None:
        """Keep the cells on the way to what was cut off: they differ from the stored ones.

        Peers will ask for them, and for those of the state before this one, too.
        """
        made = {hash: encoding for hash, encoding, _ in novelty(value, self._store)}
        made[value_hash(value)] = encode(value)  # asked for by hash even where it is no branch
        known = {hash: encoding for hash, encoding in self._made.items() if hash not in made}
        room = self._made_max * (1 + len(self._paths))  # the views of all peers are kept, too
        self._made = dict([*known.items(), *made.items()][-max(room, len(made)) :])


def _field(signed: Signed, key: Value) -> Value:
    """Return a field of signed data, which a query reads like a record with three keyword keys."""
    if not isinstance(key, Keyword) or key.name not in _SIGNED_FIELDS:
        return None
    if key.name == "value":
        return signed.value
    return signed.public_key if key.name == "public-key" else signed.signature
