"""Authority: the keys that may sign for the DIDs of venues, looked up before a merge.

A merge uses no network. Before it, `KnownKeys` resolves the DIDs of the foreign value and keeps
their keys for five minutes; the merge is judged by these alone. A DID that could not be resolved
has no keys; `wanted` lists it for another try.

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

KEEP_MS: Final = 5 * 60_000  # a key that its document drops is accepted for at most this long
"""How long resolved keys are used."""

_DIDS_MAX: Final = 10_000
"""Most DIDs with known keys; the one resolved longest ago is dropped first."""

PREPARED_MAX: Final = 100  # a lookup is a request over the network
"""Most DIDs resolved for one merge, since a foreign grid may name millions."""


class DIDResolver(Protocol):
    """Finds the documents of DIDs."""

    def resolve(self, did: str) -> Mapping[str, Any]:
        """Return the document of a DID, parsed.

        Raises: DataLatticeError: it is unavailable, or is not a document.
        """
        ...


class FixedResolver:
    """A resolver of given documents, for tests and for groups without a network."""

    def __init__(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        self._documents = documents

    def resolve(self, did: str) -> Mapping[str, Any]:
        """Return the document of a DID.

        Raises: DataLatticeError: it is not among the given ones.
        """
        if did not in self._documents:
            raise DataLatticeError(f"the document of {did} is not among those given")
        return self._documents[did]


class KnownKeys:
    """The keys in the documents of DIDs: a verifier for merges, which is filled before them.

    Any thread may call it and `find`; only one at a time may call the other methods.
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
        """The reasons why DIDs could not be resolved, by DID."""

    def __call__(self, owner: Value, signer: bytes) -> bool:
        """Return whether a key is known to sign for a DID, without resolving it."""
        return self._verifier(owner, signer)

    def _is_known_key(self, owner: Value, signer: bytes) -> bool:
        if not isinstance(owner, str):
            return False
        known = self._known.get(owner)
        # "The keys are valid for five minutes" (docs/grid.md "Who may write").
        if known is None or self._is_old(known[0]):  # not resolved here: "A merge uses no network"
            if did_method(owner) == "web" and len(self._wanted) < PREPARED_MAX:
                self._wanted[owner] = None
            return False
        return signer in known[1]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The DIDs without known keys that merges met since the last `refresh`."""
        return tuple(self._wanted)

    def prepare(self, dids: Iterable[str]) -> None:
        """Resolve the DIDs of a foreign value whose keys are unknown, at most 100 of them."""
        asked = 0
        for did in dids:
            known = self._known.get(did)
            # A did:key carries its key.
            if (known is not None and not self._is_old(known[0])) or did_method(did) != "web":
                continue
            if asked == PREPARED_MAX:  # the merge adds the others to `wanted`
                return
            asked += 1
            self.learn(did, self.find(did))

    def take_wanted(self) -> tuple[str, ...]:
        """Return `wanted`, and clear it."""
        wanted = tuple(self._wanted)
        # One by one rather than `clear`: a merge in another thread may have added a DID since.
        for did in wanted:
            self._wanted.pop(did, None)
        return wanted

    def refresh(self) -> bool:
        """Resolve the wanted DIDs; return whether keys were found for any."""
        wanted = self.take_wanted()  # taken first: DIDs wanted meanwhile stay for the next time
        self.prepare(wanted)
        return any(self._known.get(did, (0, frozenset()))[1] for did in wanted)

    def find(self, did: str) -> frozenset[bytes] | str:
        """Return the keys in the document of a DID, or the reason why it is unavailable.

        Nothing is stored. Many threads may call it at once if the resolver allows that.
        """
        try:
            return assertion_keys(did, self._resolver.resolve(did))
        except DataLatticeError as error:
            return str(error)  # an error of one DID must not stop the others

    def learn(self, did: str, found: frozenset[bytes] | str) -> None:
        """Store a result of `find`."""
        self._known.pop(did, None)  # moved to the end: the oldest goes first
        # "A DID that cannot be resolved has no keys" (docs/grid.md "Who may write"): those of an
        # earlier document were dropped above.
        if isinstance(found, str):
            self.failures[did] = found
            if len(self.failures) > _DIDS_MAX:
                del self.failures[next(iter(self.failures))]
            return
        self.failures.pop(did, None)
        self._wanted.pop(did, None)
        self._known[did] = (self._clock.now_ms(), found)
        while len(self._known) > _DIDS_MAX:  # bounded: a peer names the DIDs
            del self._known[next(iter(self._known))]

    def _is_old(self, since_ms: int) -> bool:
        age_ms = self._clock.now_ms() - since_ms
        return age_ms >= self._keep_ms or age_ms < 0  # a clock that was set back proves no age


def dids_to_resolve(own: Value, other: Value) -> list[str]:
    """Return the DIDs of `other`, a grid or a root, whose keys a merge into `own` needs.

    Cost:   proportional to the venues that differ.
    """
    theirs, mine = _venues(other), _venues(own)
    found: list[str] = []

    def note(key: Value, own: Value, other: Value, _present: bool, other_present: bool) -> Value:
        # A did:key needs no document.
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
