"""Authority: which keys speak for the DIDs of venues, looked up before a merge and kept.

A merge asks nobody. Whoever merges first prepares a `KnownKeys`: what the resolver says of each
DID is kept for a while, and the merge is judged by that alone. A DID that could not be resolved has
no keys, and is on a list of those to be tried again.

Source: COG-2 "DID documents"; docs/grid.md "Who may write"; COG-4 "Security".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from datalattice.apps.grid.dids import assertion_keys, did_method
from datalattice.apps.grid.lattice import GRID_SECTION, VENUES_KEY, as_index
from datalattice.cells import EMPTY_INDEX, Index, Signed, Value
from datalattice.clock import Clock, SystemClock
from datalattice.errors import DataLatticeError
from datalattice.lattice import DIDVerifier

KEEP_MS: Final = 5 * 60_000
"""How long what a resolver said is believed."""

DIDS_MAX: Final = 10_000
"""DIDs remembered; the one looked up longest ago is forgotten first."""

PREPARED_MAX: Final = 100
"""DIDs resolved for one merge; a foreign grid may name millions."""


class DIDResolver(Protocol):
    """Finds the documents of DIDs."""

    def resolve(self, did: str) -> Mapping[str, Any]:
        """Return the document of a DID, parsed.

        Raises: DataLatticeError: it cannot be had, or is no document.
        """
        ...


class FixedResolver:
    """Documents that are known beforehand: for tests, and for groups without a network."""

    def __init__(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        self._documents = documents

    def resolve(self, did: str) -> Mapping[str, Any]:
        """Return the document of a DID.

        Raises: DataLatticeError: none is known.
        """
        if did not in self._documents:
            raise DataLatticeError(f"no document of {did} is known")
        return self._documents[did]


class KnownKeys:
    """The keys of DIDs, by their documents: a verifier for merges, filled before them.

    Asking it, and `find`, is for every thread; what changes it is for one at a time.
    """

    def __init__(
        self, resolver: DIDResolver, clock: Clock | None = None, keep_ms: int = KEEP_MS
    ) -> None:
        self._resolver = resolver
        self._clock = clock or SystemClock()
        self._keep_ms = keep_ms
        self._known: dict[str, tuple[int, frozenset[bytes]]] = {}
        self._wanted: dict[str, None] = {}
        self._verifier = DIDVerifier(self._is_known_key)
        self.failures: dict[str, str] = {}
        """Why DIDs could not be resolved, the last time each."""

    def __call__(self, owner: Value, signer: bytes) -> bool:
        """Return whether a key is known to speak for a DID. Nobody is asked."""
        return self._verifier(owner, signer)

    def _is_known_key(self, owner: Value, signer: bytes) -> bool:
        if not isinstance(owner, str):
            return False
        known = self._known.get(owner)
        if known is None or self._is_old(known[0]):
            if did_method(owner) == "web" and len(self._wanted) < PREPARED_MAX:
                self._wanted[owner] = None
            return False
        return signer in known[1]

    @property
    def wanted(self) -> tuple[str, ...]:
        """DIDs that merges asked about in vain, since the last `refresh`."""
        return tuple(self._wanted)

    def prepare(self, dids: Iterable[str]) -> None:
        """Look up those DIDs of a foreign value whose keys are not known, up to 100 of them."""
        asked = 0
        for did in dids:
            known = self._known.get(did)
            if (known is not None and not self._is_old(known[0])) or did_method(did) != "web":
                continue
            if asked == PREPARED_MAX:
                return
            asked += 1
            self.learn(did, self.find(did))

    def take_wanted(self) -> tuple[str, ...]:
        """Return `wanted`, and begin it anew."""
        wanted = tuple(self._wanted)
        for did in wanted:
            self._wanted.pop(did, None)
        return wanted

    def refresh(self) -> bool:
        """Look up what merges asked about in vain; return whether keys were found for any."""
        wanted = self.take_wanted()
        self.prepare(wanted)
        return any(self._known.get(did, (0, frozenset()))[1] for did in wanted)

    def find(self, did: str) -> frozenset[bytes] | str:
        """Return the keys of a DID by its document, or why that cannot be had; nothing is kept.

        May be called from many threads at once, if the resolver may.
        """
        try:
            return assertion_keys(did, self._resolver.resolve(did))
        except DataLatticeError as error:
            return str(error)

    def learn(self, did: str, found: frozenset[bytes] | str) -> None:
        """Keep what `find` returned."""
        self._known.pop(did, None)
        if isinstance(found, str):
            self.failures[did] = found
            if len(self.failures) > DIDS_MAX:
                del self.failures[next(iter(self.failures))]
            return
        self.failures.pop(did, None)
        self._wanted.pop(did, None)
        self._known[did] = (self._clock.now_ms(), found)
        while len(self._known) > DIDS_MAX:
            del self._known[next(iter(self._known))]

    def _is_old(self, since_ms: int) -> bool:
        age_ms = self._clock.now_ms() - since_ms
        return age_ms >= self._keep_ms or age_ms < 0


def dids_to_resolve(own: Value, other: Value) -> list[str]:
    """Return the DIDs of `other`, a grid or a root, whose keys a merge into `own` needs to know.

    Cost: venues that differ.
    """
    theirs, mine = _venues(other), _venues(own)
    found: list[str] = []

    def note(key: Value, own: Value, other: Value, _present: bool, other_present: bool) -> Value:
        if isinstance(key, str) and isinstance(other, Signed) and did_method(key) == "web":
            found.append(key)
        return other if other_present else own

    mine.merge_with(theirs, note, own_keys=True)
    return found


def _venues(value: Value) -> Index:
    inner = value.get(GRID_SECTION) if isinstance(value, Index) else None
    grid = inner if isinstance(inner, Index) else value
    venues = grid.get(VENUES_KEY) if isinstance(grid, Index) else None
    return as_index(venues) or EMPTY_INDEX
