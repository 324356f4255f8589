"""Hidden entries: what a venue leaves out of its listings on this node, as a grid only grows.

The list is in the node's own `:local` slot, signed with its identity: it survives a restart, and
never leaves the node. A venue without a node signs it with its own key.

Source: COG-4 "Lattice storage", "Deletion"; docs/grid.md "Hiding".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeGuard

from datalattice.apps.grid.contents import ContentReader, ContentStaging, MemoryStaging
from datalattice.apps.grid.lattice import STORAGE_KEY
from datalattice.apps.grid.storage import LatticeBackend
from datalattice.cells import (
    EMPTY_MAP,
    EMPTY_SET,
    Blob,
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    same,
)
from datalattice.clock import Clock, next_stamp, present_ms
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor, SignedCursor
from datalattice.errors import NoSigningKey
from datalattice.lattice import (
    LOCAL_KEY,
    TIMESTAMP,
    LWWLattice,
    MapLattice,
    MergeContext,
    map_timestamp,
)

HIDDEN_KEY: Final = Keyword("grid-hidden")
_ENTRIES: Final = Keyword("entries")
ENTRY_FIELDS: Final = 3  # DID, part, key


class HiddenEntries:
    """The hidden entries of a key's venues: a register, a Set of [DID, part, key]."""

    def __init__(self, root: LatticeCursor, key_pair: KeyPair | None, clock: Clock) -> None:
        self._clock = clock
        self._cursor: LatticeCursor | None = None  # None: reading needs no key
        if key_pair is not None:
            # "The list of hidden entries is kept in `:local`, so it is not replicated"
            # (docs/grid.md "Hiding"): the node's identity signs it, which need not be the venue's
            # key.
            key_pair = root.context.key_pair or key_pair
            owner = key_pair.public_key
            slot = SignedCursor(
                root.path(LOCAL_KEY, owner),
                MapLattice(LWWLattice()),
                MergeContext(key_pair=key_pair, owner=owner),
            )
            self._cursor = slot.path(HIDDEN_KEY)

    def of(self, did: str, part: Keyword) -> frozenset[Value]:
        """Return the hidden keys of a part of a venue."""
        return frozenset(
            entry[2] for entry in self._entries() if _is_entry(entry) and _names(entry, did, part)
        )

    def is_hidden(self, did: str, part: Keyword, key: bytes) -> bool:
        """Return whether an entry is hidden."""
        return Vector.of([did, part, key]) in self._entries()

    def hide(self, did: str, part: Keyword, key: bytes) -> None:
        """Hide an entry. Raises: NoSigningKey: the venue has no key pair."""
        if self._cursor is None:
            raise NoSigningKey(f"hiding an entry of {did} needs its key pair; give one to Venue.at")
        self._change(lambda entries: entries.add(Vector.of([did, part, key])))

    def show(self, did: str, part: Keyword, key: bytes) -> None:
        """Show an entry again; an entry that is not hidden stays as it is."""
        if self.is_hidden(did, part, key):  # no write, so no signature
            self._change(lambda entries: entries.remove(Vector.of([did, part, key])))

    def _entries(self) -> Set:
        held = None if self._cursor is None else self._cursor.get()
        # A register of another shape reads as empty.
        entries = held.get(_ENTRIES) if isinstance(held, Map) else None
        return entries if isinstance(entries, Set) else EMPTY_SET

    def _change(self, change: Callable[[Set], Set]) -> None:
        cursor = self._cursor
        if cursor is None:
            return

        def changed(held: Value) -> Value:
            register = held if isinstance(held, Map) else EMPTY_MAP
            entries = register.get(_ENTRIES)
            after = change(entries if isinstance(entries, Set) else EMPTY_SET)
            # Later than the last version: a register keeps the newest.
            stamp = next_stamp(present_ms(self._clock), map_timestamp(register))
            return register.put(_ENTRIES, after).put(TIMESTAMP, stamp)

        cursor.update(changed)


class VenueBackend(LatticeBackend):
    """The contents of a venue in the lattice. Removing a content hides it on this node.

    A signed state has to contain the earlier ones: without that, nodes that cannot sign would hold
    two different states of one venue.
    """

    def __init__(
        self,
        cursor: LatticeCursor,
        hidden: HiddenEntries,
        did: str,
        staging: Callable[[], ContentStaging] = MemoryStaging,
    ) -> None:
        super().__init__(cursor, staging)
        self._hidden: Final = hidden
        self._did: Final = did

    def _name(self, digest: bytes, made: bytes | Blob) -> None:
        super()._name(digest, made)
        self._hidden.show(self._did, STORAGE_KEY, digest)

    def reader(self, digest: bytes) -> ContentReader | None:
        """Return a reader of a content, None if it is absent or hidden."""
        if self._hidden.is_hidden(self._did, STORAGE_KEY, digest):
            return None
        return super().reader(digest)

    def remove(self, digest: bytes) -> bool:
        """Hide a content; return whether it was visible."""
        if self.size(digest) is None:
            return False
        self._hidden.hide(self._did, STORAGE_KEY, digest)
        return True

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents that are not hidden, in order."""
        hidden = self._hidden.of(self._did, STORAGE_KEY)
        return (digest for digest in super().digests() if digest not in hidden)


def hidden_entries(root: Value) -> list[Set]:
    """Return the hidden entries of the venues of a root: Sets of [DID, part, key].

    Lists that are not signed by the key above them are left out.
    """
    slots = root.get(LOCAL_KEY) if isinstance(root, Index) else None
    found: list[Set] = []
    for owner, slot in slots.entries() if isinstance(slots, Map) else ():
        # A root from elsewhere may have any signer: only the key of the slot counts.
        if not isinstance(slot, Signed) or slot.public_key != owner:
            continue
        register = slot.value.get(HIDDEN_KEY) if isinstance(slot.value, Map) else None
        entries = register.get(_ENTRIES) if isinstance(register, Map) else None
        # The signature last: it costs the most.
        if isinstance(entries, Set) and len(entries) and slot.verify():
            found.append(entries)
    return found


def _is_entry(entry: Value) -> TypeGuard[Vector]:
    return isinstance(entry, Vector) and len(entry) == ENTRY_FIELDS


def _names(entry: Vector, did: str, part: Keyword) -> bool:
    return same(entry[0], did) and same(entry[1], part)
