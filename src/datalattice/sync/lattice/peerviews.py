"""Views: which parts of a root are replicated, and with whom.

The *announced* value is the root without what never leaves this node (`:local`). Each peer sees its
*view* of that: all of it, or only the paths that are replicated with it. From a peer's own state
this node takes the same paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from datalattice.cells import (
    Index,
    Keyword,
    Signed,
    Value,
    brief,
    encode,
    is_embedded,
    novelty,
    value_hash,
)
from datalattice.errors import Corruption, NoSuchPath, TypeMismatch
from datalattice.lattice import (
    LOCAL_KEY,
    KeyedLattice,
    Lattice,
    StringKeyedLattice,
    ValuePath,
    assoc_in,
    checked_path,
    name_bytes,
    select,
    value_below,
)
from datalattice.store import Store
from datalattice.sync.replica import Offer, Part, Probe

MADE_MAX: Final = 1_000
"""Most remembered cells, for each view, that exist only because something was cut off the root."""

SECTIONS_MAX: Final = 256
"""Most sections of a foreign root, unknown ones included: a few bytes may name a root of any size
if its cells are here already."""

_SIGNED_FIELDS: Final = {"public-key", "signature", "value"}


class Views:
    """The announced value of one replica, and each peer's view of it."""

    def __init__(self, lattice: Lattice, store: Store, made_max: int = MADE_MAX) -> None:
        self._lattice = lattice
        self._store = store
        self._made_max = made_max
        self._zero: Final = lattice.zero()
        self.announced: Value = self._zero
        """The part of the root that peers may see."""
        self._made: dict[bytes, bytes] = {}  # cells that cutting made, which the store lacks
        self._paths: dict[str, tuple[tuple[Value, ...], ...]] = {}
        self._views: dict[str, tuple[Value, Value]] = {}  # peer -> (announced, its view)
        self._sections = _sections_of(lattice)

    def announce(self, announced: Value, root: Value) -> None:
        """Announce the public part of a durable root."""
        if announced is not root:
            self._keep(announced)
        self.announced = announced

    def restrict(self, peer: str, paths: Iterable[Sequence[object]] | None) -> None:
        """Replicate with `peer` only what lies at `paths`, in both directions; None: everything.

        This saves bandwidth; it is not access control: a peer that knows the hash of another
        announced cell can fetch it.
        Raises: UsageError: a path that the lattice does not have, or that enters a signed value.
        """
        self._views.pop(peer, None)
        if paths is None:
            self._paths.pop(peer, None)
        else:
            # "Paths end at or above a signature: a signed value replicates as a whole."
            self._paths[peer] = tuple(checked_path(self._lattice, path) for path in paths)

    # --- what peers state -----------------------------------------------------------------------

    def is_replicated(self, path: ValuePath) -> bool:
        """Return whether a path leads into a section that is replicated, if there are sections."""
        return not self._sections or not path or name_bytes(path[0]) in self._sections

    def frame(self, path: ValuePath, value: Value, peer: str) -> Value:
        """Return a foreign value as a root, at its path, without what is not replicated.

        Raises: UsageError: the path leads nowhere, or through a signature; a wrong kind of value.
                MissingData: a cell that decides about it is not here yet.
        """
        lattice = self._lattice
        if path:
            # Framed as a root, a value passes every check above it: section, owner, signature.
            value = assoc_in(None, path, value, lattice)
        if not lattice.check_foreign(value):
            raise TypeMismatch(f"not a value of this lattice: {type(value).__name__}")
        if isinstance(lattice, KeyedLattice) and isinstance(value, Index):
            # "A root has at most 256 sections, known or not" (docs/design/foreign-data.md, Costs
            # outside of merges).
            if len(value) > SECTIONS_MAX:
                raise TypeMismatch(f"a root of {len(value)} sections, at most {SECTIONS_MAX}")
            sections = self._sections
            for key in [key for key, _ in value.entries() if name_bytes(key) not in sections]:
                value = value.remove(key)
            if path and not len(value):
                raise NoSuchPath("nothing of it is replicated here")
        paths = self._paths.get(peer)
        if paths is not None:
            value = select(value, paths)
            if value is None:
                raise NoSuchPath("nothing of it is replicated with this peer")
        return value

    # --- what peers see -------------------------------------------------------------------------

    def of(self, peer: str) -> Value:
        """Return a peer's view of the announced value."""
        paths = self._paths.get(peer)
        if paths is None:
            return self.announced
        # Made anew for each announced value, not for each message.
        announced, view = self._views.get(peer, (None, None))
        if announced is not self.announced:
            view = select(self.announced, paths)
            view = self._zero if view is None else view
            self._keep(view)
            self._views[peer] = (self.announced, view)
        return view

    def top(self, peer: str) -> Offer:
        """Return the offer of a peer's view, with its top cell alone."""
        value = self.of(peer)
        probe = Probe(value_hash(value), value)
        return Offer(probe, () if is_embedded(value) else (Part(probe.key, encode(value)),))

    def query(self, path: Sequence[Value], peer: str, *, strict: bool = True) -> Value:
        """Return what is announced to `peer` at a path, None where nothing is.

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
            # "Walked as plain data, through Signed values by `:value`, `:public-key` ..."
            value = _field(value, key) if isinstance(value, Signed) else value_below(value, key)
        return value

    # --- cells ----------------------------------------------------------------------------------

    @property
    def made_count(self) -> int:
        """Remembered cells that exist only because something was cut off."""
        return len(self._made)

    def load(self, hash: bytes) -> bytes | None:
        """Return the encoding of a cell, None if it is missing or damaged."""
        encoding = self._made.get(hash)
        try:
            return self._store.get_encoding(hash) if encoding is None else encoding
        except Corruption:
            return None  # the store reports it to the healer itself

    def load_all(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """Return the encodings of cells, None for each that is missing or damaged."""
        try:
            found = self._store.get_encodings(hashes)
        except Corruption:
            return [self.load(hash) for hash in hashes]
        if None not in found:
            return found
        return [
            self._made.get(hash) if encoding is None else encoding
            for hash, encoding in zip(hashes, found, strict=True)
        ]

    def supply(self, want: Sequence[bytes]) -> list[Part | None]:
        """Return cells by hash; None for each that was not announced."""
        # "A cell is served by its hash when the part of a root that peers see reached it"
        # (docs/design/foreign-data.md, What is served): a guessed hash of `:local` gets nothing.
        announced = [hash for hash in want if self._store.announced(hash)]
        stored = dict(zip(announced, self.load_all(announced), strict=True))
        found = ((hash, stored.get(hash) or self._made.get(hash)) for hash in want)
        return [None if data is None else Part(hash, data) for hash, data in found]

    def _keep(self, value: Value) -> None:
        """Keep the cells above what was cut off: they differ from the stored ones."""
        # Peers ask for them, and still for those of the state before this one.
        made = {hash: encoding for hash, encoding, _ in novelty(value, self._store)}
        made[value_hash(value)] = encode(value)  # a root is asked for by hash even when embedded
        known = {hash: encoding for hash, encoding in self._made.items() if hash not in made}
        room = self._made_max * (1 + len(self._paths))  # for the views of all peers
        self._made = dict([*known.items(), *made.items()][-max(room, len(made)) :])


def _field(signed: Signed, key: Value) -> Value:
    """Return a field of signed data; a query reads it as a record of three fields."""
    if not isinstance(key, Keyword) or key.name not in _SIGNED_FIELDS:
        return None
    if key.name == "value":
        return signed.value
    return signed.public_key if key.name == "public-key" else signed.signature


def _sections_of(lattice: Lattice) -> set[bytes | None]:
    """Return the names of the sections that a lattice replicates."""
    fixed = lattice.children() if isinstance(lattice, KeyedLattice) else ()
    return {name_bytes(key) for key in fixed} - {name_bytes(LOCAL_KEY)}
