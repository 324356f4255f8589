"""Lattices of the grid: the root section, a venue, its collections, one job.

Content-addressed collections are unions of entries whose key is the SHA-256 of what they hold; a
job is the latest of its versions; a venue is three collections; the grid is the venues, each signed
for its DID, beside the metadata of all.

Foreign entries are checked one by one where they differ from the own ones; a bad one is left out
and reported by its path. A merge returns the normal form: every part is present, even if empty.

Source: docs/design/decisions.md "D9"; COG-4 "Merge", "Zero values", "Validation", "Layout",
    "Venue", "Security", "Grid"; docs/grid.md "Merge", "Layout", "What is checked", "Plain grids";
    docs/design/forks.md "The order".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from datalattice.apps.grid.assets import METADATA, SHA256_BYTES, content_hash
from datalattice.apps.grid.dids import is_venue_did
from datalattice.apps.grid.jobs import JobLattice, is_job_entry
from datalattice.cells import (
    EMPTY_INDEX,
    Blob,
    Index,
    Keyword,
    Map,
    Signed,
    Text,
    Value,
    Work,
    same,
)
from datalattice.lattice import (
    EMPTY_CONTEXT,
    ENTRY_DROPPED,
    NOT_OWNER,
    ChildOrder,
    DIDOwnerLattice,
    DIDVerifier,
    EntryDropped,
    Judge,
    KeyedLattice,
    Latest,
    Lattice,
    MergeContext,
    MergeNotice,
    NamedOrder,
    Walk,
    as_operand,
    content_latest,
    contrast,
    greater,
    isolated,
    merge_judged,
    present,
    register_section,
    wider,
)

GRID_SECTION: Final = Keyword("grid")
VENUES_KEY: Final = Keyword("venues")
META_KEY: Final = Keyword("meta")
ASSETS_KEY: Final = Keyword("assets")
JOBS_KEY: Final = Keyword("jobs")
STORAGE_KEY: Final = Keyword("storage")

BAD_META: Final = "bad-metadata"
BAD_ASSET: Final = "bad-asset"
BAD_JOB: Final = "bad-job"
BAD_CONTENT: Final = "bad-content"
"""Rejection reasons, used as metric labels."""

EntryCheck = Callable[[Value, Value, Work | None], bool]
"""Returns whether an entry (key, value) is valid; raises only `WorkExceeded`."""


class _Judged(Lattice):
    """An Index; a judge admits or drops each foreign entry, and merges it with the own one."""

    def __init__(self, kind: str = ENTRY_DROPPED) -> None:
        self.kind: Final = kind

    def judge(self, context: MergeContext) -> Judge:
        """Return the judge of one merge; the base class's judge admits nothing."""
        return Judge()

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own, merged with the entries of other that the judge admits.

        Cost:   proportional to the entries that differ; each of them is judged.
        """
        if other is None or own is other:
            return own
        theirs = as_index(other)
        if theirs is None:
            context.report(EntryDropped(context.path, self.kind))
            return own  # own stays, and the foreign part is left out whole
        judge = self.judge(context)
        if isinstance(own, Index):
            return merge_judged(own, theirs, judge, context.work)
        # Other itself if every entry was admitted, because its hash is already known.
        return as_operand(merge_judged(EMPTY_INDEX, theirs, judge, context.work), theirs, theirs)

    def zero(self) -> Value:
        """Return the empty Index."""
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Index; an empty Map counts as an empty one."""
        return as_index(value) is not None


class _EntryJudge(Judge):
    """Checks the foreign entries of one collection, and merges two entries of one key."""

    def __init__(self, collection: Collection, context: MergeContext) -> None:
        self._collection = collection
        self._context = context

    def admits(self, key: Value, value: Value) -> bool:
        context = self._context
        # "A bad entry is left out, and the others are merged" (docs/grid.md "What is checked").
        if self._collection.check(key, value, context.work):
            return True
        context.report(EntryDropped((*context.path, key), self._collection.kind))
        return False

    def join(self, key: Value, own: Value, other: Value) -> Value:
        if own is None:
            return other  # `admits` has checked it
        record = self._collection.child(key)
        if record is not None:
            return record.merge(own, other, self._context.child(key))
        # "Of two valid asset records with one id ... the one with the greater value hash stays"
        # (docs/grid.md "Merge").
        sound = self._collection.check(key, own, self._context.work)
        # "if own fails and other passes, other is taken"
        return greater(own, other) if sound else other


class Collection(_Judged):
    """A union of entries, each of which is checked; `record` merges two entries of one key.

    Without `record`, entries are content: a valid one wins over an invalid one, and of two valid
    ones that with the greater value hash.

    Shapes: an Index. kind: the rejection reason of invalid entries.
    """

    def __init__(self, check: EntryCheck, kind: str, record: Lattice | None = None) -> None:
        super().__init__(kind)
        self.check: Final = check
        self._record: Final = record
        self._order: Final = None if record is None else ChildOrder(record)

    def has_order(self) -> bool:
        """Return whether the entries are content, or records with an order."""
        return self._record is None or self._record.has_order()

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the newest record of each side; for content, the side that has more."""
        mine, theirs = as_index(own), as_index(other)
        order = self._order
        if order is None:
            return content_latest(
                own if mine is None else mine, other if theirs is None else theirs, walk
            )
        found = contrast(present(own, mine is not None), present(other, theirs is not None))
        return wider(found, order.of_index(mine, theirs, walk))

    def judge(self, context: MergeContext) -> Judge:
        """Return the judge of one merge."""
        return _EntryJudge(self, context)

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of an entry, None if entries are content."""
        return self._record

    def _arguments(self) -> tuple[object, ...]:
        return (self.check, self.kind, self._record)


def _merged_part(lattice: Lattice, own: Value, other: Value, context: MergeContext) -> Value:
    # An error in one part must not lose the others.
    return isolated(context, own, other, lambda: lattice.merge(own, other, context))


class Parts(KeyedLattice):
    """An Index of named parts; an absent part counts as its zero.

    Shapes: parts: the parts of the normal form. more: optional parts, for extensions.
    """

    def __init__(
        self, parts: Mapping[Keyword, Lattice], more: Mapping[Keyword, Lattice] | None = None
    ) -> None:
        super().__init__({**parts, **(more or {})})
        self._parts: Final = dict(parts)
        self._more: Final = dict(more or {})
        self._named: Final = NamedOrder(self)

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the greatest elements of the parts, by side."""
        mine, theirs = self._spelled_out(own), self._spelled_out(other)
        found = contrast(present(own, mine is not None), present(other, theirs is not None))
        return wider(found, self._named.of_index(mine, theirs, walk))

    def _spelled_out(self, value: Value) -> Index | None:
        """Return a value with the zeros of its absent parts; None for a malformed value."""
        found = as_index(value)
        if found is not None:
            for key, lattice in self._parts.items():
                if found.get(key) is None:
                    found = found.put(key, lattice.zero())
        return found

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the merge, part by part; unknown keys of other are dropped, those of own stay."""
        if other is None or own is other:
            return own
        theirs = as_index(other)
        if theirs is None:
            context.report(EntryDropped(context.path))
            return own
        if own is not None and same(own, other):  # "Equal inputs return own itself"
            return own
        result = own if isinstance(own, Index) else EMPTY_INDEX
        # "Other lattices drop such parts" (docs/grid.md "Layout"): unknown parts of a peer are
        # dropped.
        for key, lattice in self.children().items():
            before = result.get(key)
            # A malformed part of own is replaced by its zero.
            mine = before if lattice.check_foreign(before) else None
            merged = _merged_part(lattice, mine, theirs.get(key), context.child(key))
            if key in self._parts:
                # "An absent part, nil and an empty Map count as empty" (docs/grid.md "Layout").
                merged = lattice.zero() if as_index(merged) is None else as_index(merged)
            if merged is not None and merged is not before:
                result = result.put(key, merged)
        return as_operand(result, own, other)

    def zero(self) -> Value:
        """Return the Index of the zeros of all parts."""
        return Index.of({key: lattice.zero() for key, lattice in self._parts.items()})

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Index; an empty Map counts as an empty one."""
        return as_index(value) is not None

    def _arguments(self) -> tuple[object, ...]:
        return (self._parts, self._more)


class _PlainJudge(Judge):
    """Checks unsigned venues by their DID and the key of their sender."""

    def __init__(self, lattice: PlainVenues, context: MergeContext) -> None:
        self._lattice = lattice
        self._context = context
        self._may_write = DIDVerifier(context.verifier)

    def admits(self, key: Value, value: Value) -> bool:
        context, writer = self._context, self._lattice.writer
        if not is_venue_did(key) or as_index(value) is None:
            context.report(EntryDropped((*context.path, key)))
            return False
        # "Takes only changes of DIDs that this key speaks for" (docs/grid.md "Plain grids").
        if writer is None or self._may_write(key, writer):
            return True
        context.report(EntryDropped((*context.path, key), NOT_OWNER))
        return False

    def join(self, key: Value, own: Value, other: Value) -> Value:
        return self._lattice.venue.merge(own, other, self._context.child(key))


class PlainVenues(_Judged):
    """Unsigned venue states by DID: for files, and for groups that trust one another.

    writer: the public key of the sender of the merged states, which may change only the DIDs that
    it may sign for; None admits every DID.
    """

    def __init__(self, venue: Lattice, writer: bytes | None = None) -> None:
        super().__init__()
        self.venue: Final = venue
        self.writer: Final = writer

    def judge(self, context: MergeContext) -> Judge:
        """Return the judge of one merge."""
        return _PlainJudge(self, context)

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of a venue."""
        return self.venue

    def _arguments(self) -> tuple[object, ...]:
        return (self.venue, self.writer)


def as_index(value: Value) -> Index | None:
    """Return a value as an Index: an empty Map as an empty Index, another value as None."""
    # "an empty Map found in a foreign value counts as an empty Index"
    if isinstance(value, Map) and not len(value):
        return EMPTY_INDEX
    return value if isinstance(value, Index) else None


def is_meta_entry(key: Value, text: Value, work: Work | None = None) -> bool:
    """Return whether an entry of `:meta` is valid: a String under its SHA-256."""
    return isinstance(text, (str, Text)) and _is_hash_of(key, text, work)


def is_asset_entry(key: Value, record: Value, work: Work | None = None) -> bool:
    """Return whether an entry of `:assets` is valid: a Map, its metadata under its SHA-256."""
    return isinstance(record, Map) and is_meta_entry(key, record.get(METADATA), work)


def is_content_entry(key: Value, content: Value, work: Work | None = None) -> bool:
    """Return whether an entry of `:storage` is valid: a Blob under its SHA-256."""
    return isinstance(content, (bytes, Blob)) and _is_hash_of(key, content, work)


def _is_hash_of(key: Value, value: Value, work: Work | None) -> bool:
    # "a Blob of 32 bytes"; a Hash comes back as a Blob.
    if not isinstance(key, bytes) or len(key) != SHA256_BYTES:
        return False
    return content_hash(value, work) == key


JOB_LATTICE: Final = JobLattice()
META_LATTICE: Final = Collection(is_meta_entry, BAD_META)
ASSETS_LATTICE: Final = Collection(is_asset_entry, BAD_ASSET)
JOBS_LATTICE: Final = Collection(is_job_entry, BAD_JOB, JOB_LATTICE)
STORAGE_LATTICE: Final = Collection(is_content_entry, BAD_CONTENT)
_VENUE_PARTS: Final[dict[Keyword, Lattice]] = {
    ASSETS_KEY: ASSETS_LATTICE,
    JOBS_KEY: JOBS_LATTICE,
    STORAGE_KEY: STORAGE_LATTICE,
}
VENUE: Final = Parts(_VENUE_PARTS)
"""A venue: `:assets`, `:jobs` and `:storage`."""

GRID: Final = Parts({VENUES_KEY: DIDOwnerLattice(VENUE), META_KEY: META_LATTICE})
"""The grid: `:venues`, each signed for its DID, and `:meta`."""

PLAIN_GRID: Final = Parts({VENUES_KEY: PlainVenues(VENUE), META_KEY: META_LATTICE})
"""The grid of unsigned venue states."""

GRID_ROOT: Final = KeyedLattice({GRID_SECTION: GRID})
"""A root with the grid alone."""


def venue_lattice(extensions: Mapping[Keyword, Lattice]) -> Lattice:
    """Return the lattice of venues with further parts."""
    return Parts(_VENUE_PARTS, extensions)


def plain_grid(writer: bytes | None = None, venue: Lattice = VENUE) -> Lattice:
    """Return the lattice of unsigned venue states; `writer` is as for `PlainVenues`."""
    return Parts({VENUES_KEY: PlainVenues(venue, writer), META_KEY: META_LATTICE})


def initial_root() -> Index:
    """Return a root with an empty grid."""
    return Index.of({GRID_SECTION: GRID.zero()})


Rejection = tuple[tuple[Value, ...], str]
"""The path and the reason of a part that was left out."""


def sanitise(
    value: Value, lattice: Lattice = GRID, context: MergeContext = EMPTY_CONTEXT
) -> tuple[Value, list[Rejection]]:
    """Return the valid parts of a foreign value, in normal form, and what was left out.

    Cost:   reads the value completely, and hashes its content.
    """
    rejected: list[Rejection] = []

    def note(report: MergeNotice) -> None:
        rejected.append((report.path, report.kind))

    noting = MergeContext(
        context.timestamp, verifier=context.verifier, path=context.path, report=note
    )
    # Into the zero: every entry is foreign and judged.
    return lattice.merge(lattice.zero(), value, noting), rejected


def check_foreign(
    value: Value, lattice: Lattice = GRID, context: MergeContext = EMPTY_CONTEXT
) -> bool:
    """Return whether a foreign value has no invalid part."""
    return not sanitise(value, lattice, context)[1]


def venue_state(entry: Value) -> Index | None:
    """Return the state in an entry of `:venues`, signed or not."""
    return as_index(entry.value if isinstance(entry, Signed) else entry)


def view(grid: Value) -> dict[str, Index]:
    """Return the venue states of a grid by DID, signed or not, in the order of the DIDs."""
    venues = grid.get(VENUES_KEY) if isinstance(grid, Index) else None
    found: dict[str, Index] = {}
    if isinstance(venues, Index):
        for did, entry in venues.entries():
            state = venue_state(entry)
            if isinstance(did, str) and state is not None:
                found[did] = state
    return found


register_section(GRID_SECTION, GRID)  # at import: a root merges every section it knows
