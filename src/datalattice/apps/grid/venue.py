"""Venue: one writer's part of the grid, and its view of the other venues.

A venue is a thin object over a root cursor. It writes only below its own DID, signed with its key;
each operation is one atomic update. It reads the whole grid, and verifies what it serves.

Length: one class with many short methods.

Source: COG-4 "Venue", "Grid", "Assets", "Deletion", "Synchronisation", "Validation"; docs/grid.md
    "Venues", "Assets", "Content", "Jobs", "Hiding", "Merge", "What is checked"; CAD024 "Fork and
    sync"; CAD035 "Sync"; COG-5 "Metadata"; COG-6 "Content"; COG-8 "Jobs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Self, TypedDict, Unpack

from datalattice.apps.binding import (
    Binding,
    Owner,
    Tabular,
    bound,
    handle_text,
    owner_cell,
)
from datalattice.apps.grid.assets import (
    asset_record,
    declared_hash,
    parse_asset_id,
    read_metadata,
    record_text,
)
from datalattice.apps.grid.authority import KnownKeys, dids_to_resolve
from datalattice.apps.grid.contents import ContentStaging, MemoryStaging, StoredContent
from datalattice.apps.grid.dids import checked_did, is_venue_did
from datalattice.apps.grid.hidden import HiddenEntries, VenueBackend
from datalattice.apps.grid.jobs import (
    CREATED,
    ID,
    PENDING,
    STATUS,
    TERMINAL,
    UPDATED,
    job_members,
    job_status,
    job_time,
    make_job_id,
    parse_job_id,
)
from datalattice.apps.grid.lattice import (
    ASSETS_KEY,
    GRID,
    GRID_SECTION,
    JOBS_KEY,
    META_KEY,
    STORAGE_KEY,
    VENUE,
    VENUES_KEY,
    Rejection,
    as_index,
    sanitise,
    venue_state,
    view,
)
from datalattice.apps.grid.states import MergeReport, changes_of, part_key, part_of, with_all_parts
from datalattice.apps.grid.storage import (
    BadContent,
    Content,
    ContentWriter,
    LatticeBackend,
    Storage,
)
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    counted,
    to_cell,
)
from datalattice.clock import Clock, SystemClock, next_stamp, present_ms
from datalattice.crypto import Entropy, KeyPair, SystemEntropy
from datalattice.cursors import LatticeCursor, RootLattice, SignedCursor
from datalattice.errors import BadSignature, Corruption, NoSigningKey, NoSuchPath, UsageError
from datalattice.lattice import (
    LOCAL_KEY,
    LOCAL_LATTICE,
    DIDVerifier,
    KeyedLattice,
    MergeContext,
    MergeNotice,
    did_of,
    public_key_of,
)

STANDALONE: Final = KeyedLattice({GRID_SECTION: GRID, LOCAL_KEY: LOCAL_LATTICE})
"""The root of a venue without a node: the grid and the local section."""


class VenueParts(TypedDict, total=False):
    """The exchangeable parts of a venue.

    storage: the storage of content; by default the lattice. staging: builds the value of a content
    that goes into the lattice; by default in memory. keys: the known keys of other DIDs.
    """

    storage: Storage | None
    staging: Callable[[], ContentStaging]
    keys: KnownKeys | None
    clock: Clock | None
    entropy: Entropy | None


class Venue(Tabular):
    """A venue: assets, jobs and content under one DID.

    Writing needs a key that is authorized for the DID; reading needs no key.
    """

    def __init__(
        self,
        root: LatticeCursor,
        key_pair: KeyPair | None,
        did: str,
        *,
        storage: Storage | None = None,
        staging: Callable[[], ContentStaging] = MemoryStaging,
        keys: KnownKeys | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        binding: Binding | None = None,
    ) -> None:
        self._binding: Final = binding
        self.did: Final = checked_did(did)
        named = public_key_of(did)
        # Every other node would refuse a state signed by a key that cannot sign for the DID.
        if key_pair is not None and named is not None and named != key_pair.public_key:
            raise NoSigningKey(f"the key 0x{key_pair.public_key.hex()} is not that of {did}")
        self._root: Final = root
        self._last_job: bytes | None = None
        self._key_pair: Final = key_pair
        self._keys: Final = keys
        self._clock: Final = clock or SystemClock()
        self._entropy: Final = entropy or SystemEntropy()
        self._grid: Final = root.path(GRID_SECTION)
        context = MergeContext(key_pair=key_pair, verifier=self._verifier(), owner=did)
        self._own: Final = SignedCursor(self._grid.path(VENUES_KEY, did), VENUE, context)
        self._hidden: Final = HiddenEntries(root, key_pair, self._clock)
        if storage is None:
            own = VenueBackend(self._own.path(STORAGE_KEY), self._hidden, did, staging)
            # In the lattice, content replicates with the venue's state.
            storage = Storage(own)
            storage.initialise()  # the caller's own storage is opened by the caller
        self.storage: Final = storage

    @classmethod
    def at(
        cls,
        root: LatticeCursor,
        owner: KeyPair | Owner | bytes | str,
        *,
        key_pair: KeyPair | None = None,
        binding: Binding | None = None,
        **parts: Unpack[VenueParts],
    ) -> Self:
        """Return the venue of an owner below a root.

        owner: the DID, or the `Owner`, public key or key pair of a `did:key`. key_pair: signs what
        the venue writes; by default the key pair given as `owner`, or that of the `did:key` in the
        cursor's context.
        Raises: UsageError: the DID is invalid. NoSigningKey: the key is not that of the `did:key`.
        """
        if isinstance(owner, KeyPair):
            key_pair = owner if key_pair is None else key_pair
            owner = owner.public_key
        given = owner_cell(owner)
        did = checked_did(did_of(given) if isinstance(given, bytes) else given)
        named = public_key_of(did)
        if key_pair is None and named is not None:
            key_pair = root.context.signer(named)  # the node's key, if it is this owner's
        return cls(root, key_pair, did, binding=binding, **parts)

    @classmethod
    def create(cls, key_pair: KeyPair, did: str | None = None, **parts: Unpack[VenueParts]) -> Self:
        """Return a venue over its own new grid."""
        root = RootLattice(STANDALONE, STANDALONE.zero(), MergeContext(key_pair=key_pair))
        owner = key_pair if did is None else did
        return cls.at(root, owner, key_pair=key_pair, **parts)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor on the whole grid."""
        return self._grid

    @property
    def grid(self) -> Index:
        """The local copy of the grid, with signatures."""
        return as_index(self._grid.get()) or EMPTY_INDEX

    def view(self) -> dict[str, Index]:
        """Return the states of all venues by DID."""
        return view(self._grid.get())

    def fork(self) -> Venue:
        """Return a working copy; its `sync` merges its writes into this venue.

        Content is part of the copy only if its storage is the lattice.
        """
        in_lattice = isinstance(self.storage.backend, LatticeBackend)
        return Venue(
            self._root.fork(),
            self._key_pair,
            self.did,
            storage=None if in_lattice else self.storage,
            keys=self._keys,
            clock=self._clock,
            entropy=self._entropy,
        )

    def sync(self) -> None:
        """Write the root to its store; merge a fork into its parent."""
        self._root.sync()

    # --- assets -------------------------------------------------------------------------------

    def register(self, metadata: str | bytes) -> bytes:
        """Register the asset with this metadata text, kept exactly; return its id.

        Registering the same text again changes nothing.
        Raises: UsageError: it is not one JSON object. NoSigningKey: the venue has no key.
        """
        found, record, text = asset_record(metadata)

        def added(grid: Index, state: Index) -> tuple[Index, Index]:
            meta, assets = part_of(grid, META_KEY), part_of(state, ASSETS_KEY)
            # "The same text again changes nothing" (docs/grid.md "Assets").
            if found not in meta:
                grid = grid.put(META_KEY, meta.put(found, text))
            if found not in assets:
                state = state.put(ASSETS_KEY, assets.put(found, record))
            return grid, state

        self._write(added)
        self._hidden.show(self.did, ASSETS_KEY, found)  # registering brings a hidden asset back
        return found

    def asset(self, asset_id: object) -> str | None:
        """Return the metadata text of an asset of any venue, None if it is unknown.

        Raises: UsageError: `asset_id` is invalid. Corruption: the stored text has another hash.
        """
        wanted = parse_asset_id(asset_id)
        record = part_of(self._state(), ASSETS_KEY).get(wanted)
        text = record_text(record)
        if text is None:
            # "`:meta`": the text of any venue's asset.
            text = record_text(Map.of({"metadata": part_of(self.grid, META_KEY).get(wanted)}))
        # `asset` "returns the text of any venue's asset, after hashing it again" (docs/grid.md
        # "Assets").
        if text is not None and asset_record(text)[0] != wanted:
            raise Corruption(f"the asset {wanted.hex()} is damaged: its text has another hash")
        return text

    def metadata(self, asset_id: object) -> Map:
        """Return the parsed metadata of an asset.

        Raises: NoSuchPath: the asset is unknown. UsageError, Corruption: as `asset`.
        """
        text = self.asset(asset_id)
        if text is None:
            raise NoSuchPath(f"there is no asset {parse_asset_id(asset_id).hex()} here")
        return read_metadata(text)

    def assets(self, did: str | None = None) -> list[bytes]:
        """Return the ids of the visible assets of venue `did`; of this venue by default."""
        return list(self._listed(did, ASSETS_KEY))

    def asset_page(self, offset: int, limit: int) -> tuple[int, list[bytes]]:
        """Return how many visible assets this venue has, and the ids of some of them.

        offset: number of ids to skip. limit: most ids to return.
        """
        total = self.asset_count()
        first = min(offset, total)  # a caller may name any number
        return total, list(islice(self._listed(None, ASSETS_KEY), first, first + limit))

    def asset_count(self) -> int:
        """Return how many visible assets this venue has."""
        held = part_of(self._state(), ASSETS_KEY)
        return len(held) - sum(one in held for one in self._hidden.of(self.did, ASSETS_KEY))

    # --- content ------------------------------------------------------------------------------

    def put_content(self, asset_id: object, content: Content) -> bytes:
        """Store the content of an asset; return its SHA-256, which the metadata declares.

        Raises: NoSuchPath: the asset is unknown. UsageError: its metadata declares no content, or
                another hash. LimitExceeded: the content is too long.
        """
        digest = declared_hash(self.metadata(asset_id))
        self.storage.store(digest, content)
        self._hidden.show(self.did, STORAGE_KEY, digest)
        return digest

    def content_writer(self, asset_id: object) -> ContentWriter:
        """Return a writer of an asset's content; raises as `put_content`. Close it."""
        digest = declared_hash(self.metadata(asset_id))
        return self.storage.writer(digest, lambda: self._hidden.show(self.did, STORAGE_KEY, digest))

    def content_reader(self, asset_id: object) -> StoredContent | None:
        """Return a reader of an asset's content; None if this node does not have it.

        Raises: as `stream`.
        """
        digest = declared_hash(self.metadata(asset_id))
        storage = self._storage_of(digest)
        return None if storage is None else storage.reader(digest)

    def stream(self, asset_id: object) -> Iterator[bytes] | None:
        """Return the verified content of an asset in pieces; None if this node does not have it.

        Reads from this venue's storage first, then from the content of other venues in the lattice.
        Raises: NoSuchPath, UsageError: as `put_content`. Corruption: the content is damaged.
        """
        digest = declared_hash(self.metadata(asset_id))
        storage = self._storage_of(digest)
        return None if storage is None else storage.stream(digest)

    def has_content(self, asset_id: object) -> bool | None:
        """Return whether this node has the content of an asset; None if the asset declares none."""
        try:
            digest = declared_hash(self.metadata(asset_id))
        except UsageError:
            return None
        return self._storage_of(digest) is not None

    def _storage_of(self, digest: bytes) -> Storage | None:
        """Return the storage that has the content: this venue's, else another's in the lattice."""
        if self._hidden.is_hidden(self.did, STORAGE_KEY, digest):  # "It is no longer served here"
            return None
        if self.storage.exists(digest):
            return self.storage
        for state in self.view().values():
            held = part_of(state, STORAGE_KEY)
            if digest in held:
                one = Index.of({digest: held.get(digest)})
                found = Storage(LatticeBackend(RootLattice(None, one)))
                found.initialise()
                return found
        return None

    def content(self, asset_id: object) -> bytes | None:
        """Return the verified content of an asset; None if this node does not have it.

        Raises: as `stream`.
        """
        pieces = self.stream(asset_id)
        return None if pieces is None else b"".join(pieces)

    # --- jobs ---------------------------------------------------------------------------------

    def create_job(self, members: Mapping[str, Any] | None = None) -> bytes:
        """Make the record of a new job, by default with status PENDING; return its id.

        Raises: UsageError: a member is invalid, or the status is unknown.
        """
        record = job_members(members or {})
        made = b""

        def added(grid: Index, state: Index) -> tuple[Index, Index]:
            nonlocal made
            jobs = part_of(state, JOBS_KEY)
            now_ms = present_ms(self._clock)  # inside the update: a lost race takes a new id
            made = make_job_id(now_ms, self._last_job, self._entropy)
            fresh = EMPTY_MAP.put(STATUS, PENDING).put_many(record.items())
            fresh = fresh.put(ID, made.hex()).put(CREATED, now_ms).put(UPDATED, now_ms)
            return grid, state.put(JOBS_KEY, jobs.put(made, fresh))

        self._write(added)
        self._last_job = made  # after the commit, so ids of failed writes are used again
        return made

    def update_job(self, job_id: object, members: Mapping[str, Any]) -> Map:
        """Change members of a job's record, with a later stamp; return the record.

        Raises: NoSuchPath: this venue has no such job. UsageError: the job has ended, so its record
                is final; or a member is invalid.
        """
        wanted, changes = parse_job_id(job_id), job_members(members)
        record = EMPTY_MAP

        def changed(grid: Index, state: Index) -> tuple[Index, Index]:
            nonlocal record
            jobs = part_of(state, JOBS_KEY)
            before = jobs.get(wanted)
            if not isinstance(before, Map):
                raise NoSuchPath(f"there is no job {wanted.hex()} of {self.did}")
            # "A record that is `COMPLETE`, `FAILED`, `CANCELLED`, `REJECTED` or `TIMEOUT` is never
            # changed" (docs/grid.md "Jobs").
            if job_status(before) in TERMINAL:
                raise UsageError(f"the job {wanted.hex()} is {job_status(before)}: it has ended")
            last_ms = job_time(before)
            now_ms = present_ms(self._clock)
            # "The present time, or one more than before if the clock did not advance" (docs/grid.md
            # "Jobs").
            stamp = now_ms if last_ms is None else next_stamp(now_ms, last_ms)
            record = before.put_many(changes.items()).put(UPDATED, stamp)
            return grid, state.put(JOBS_KEY, jobs.put(wanted, record))

        self._write(changed)
        return record

    def job(self, job_id: object, did: str | None = None) -> Map | None:
        """Return the record of a job of venue `did`, by default this venue; None if unknown.

        Raises: UsageError: `job_id` is invalid.
        """
        record = part_of(self._state(did), JOBS_KEY).get(parse_job_id(job_id))
        return record if isinstance(record, Map) else None

    def jobs(
        self, did: str | None = None, *, status: str | None = None, since_ms: int | None = None
    ) -> list[bytes]:
        """Return the ids of the visible jobs of a venue, in order.

        status, since_ms: if given, only jobs with this status, or changed at or after this time.
        """
        held = part_of(self._state(did), JOBS_KEY)
        found: list[bytes] = []
        for job_id in self._listed(did, JOBS_KEY):
            record = held.get(job_id)
            time_ms = job_time(record)
            if status is not None and job_status(record) != status:
                continue
            # A record without a time was changed at no known time, so "since" leaves it out.
            if since_ms is None or (time_ms is not None and time_ms >= since_ms):
                found.append(job_id)
        return found

    def entries(self, part: str) -> Iterator[tuple[bytes, Value]]:
        """Yield the visible entries of this venue's "assets", "jobs" or "storage" as they are now.

        Raises: UsageError: there is no such part.
        """
        key = part_key(part)
        hidden, held = self._hidden.of(self.did, key), part_of(self._state(), key)
        return (
            (id, value)
            for id, value in held.entries()
            if isinstance(id, bytes) and id not in hidden
        )

    def to_arrow(
        self,
        *,
        table: str = "assets",
        columns: Sequence[str] | None = None,
        values: str = "json",
    ) -> Any:
        """Return a table of this venue as it is now, as a `pyarrow.RecordBatchReader`.

        Args:   table: "assets" (venue, asset, name, content, metadata), "jobs" (venue, job, status,
                created, updated, record) or "storage" (venue, hash, size, and content if named in
                `columns`). columns: those of the table to read. values: the form of a job's record.
        Raises: as `Queue.to_arrow`.
        """
        return bound(self._binding, "to_arrow").to_arrow(
            self, table=table, columns=columns, values=values
        )

    # --- hiding, merging, checking ------------------------------------------------------------

    def hide(self, part: str, key: bytes) -> None:
        """Hide an asset, job or content of this venue, so that this node stops listing it.

        It is no longer served here. The grid only grows, so other nodes still see it.
        Raises: UsageError: the part is unknown.
        """
        self._hidden.hide(self.did, part_key(part), key)

    def is_hidden(self, part: str, key: bytes) -> bool:
        """Return whether an asset, job or content of this venue is hidden on this node."""
        return self._hidden.is_hidden(self.did, part_key(part), key)

    def unhide(self, part: str, key: bytes) -> None:
        """List and serve a hidden asset, job or content again."""
        self._hidden.show(self.did, part_key(part), key)

    def merge(self, foreign: object) -> MergeReport:
        """Merge a foreign grid, or a root that contains one; return a report of the merge.

        The keys of its DIDs are looked up first. Invalid entries are skipped.
        """
        other = to_cell(foreign)
        # A root contains a grid under `:grid`.
        if isinstance(other, Index) and GRID_SECTION in other and VENUES_KEY not in other:
            other = other.get(GRID_SECTION)
        if self._keys is not None:
            self._keys.prepare(dids_to_resolve(self._grid.get(), other))
        reports: list[MergeNotice] = []
        before: Value = None
        context = MergeContext(
            key_pair=self._key_pair, verifier=self._verifier(), report=reports.append
        )

        def joined(grid: Value) -> Value:
            nonlocal before
            reports.clear()  # the update may run again: only the last run counts
            before = grid
            return GRID.merge(grid, other, context)

        after = self._grid.adopt(joined)
        changed = changes_of(before, after)
        rejected = tuple((report.path, report.kind) for report in reports)
        return MergeReport(tuple(changed), changed, rejected)

    def verify(self) -> tuple[list[Rejection], list[BadContent]]:
        """Return the entries of the grid and stored contents that do not match their keys.

        Reads and hashes all data.
        """
        grid = self._grid.get()
        if self._keys is not None:
            self._keys.prepare(dids_to_resolve(None, grid))
        context = MergeContext(verifier=self._verifier())  # reading only: no key to sign with
        return sanitise(grid, GRID, context)[1], self.storage.verify()

    # --- inside -------------------------------------------------------------------------------

    def _verifier(self) -> Callable[[Value, bytes], bool]:
        keys, own, did = self._keys, self._key_pair, self.did

        def others(owner: Value, signer: bytes) -> bool:
            # The caller gave the venue its key, so that key is accepted for the venue's own DID.
            if owner == did and own is not None and signer == own.public_key:
                return True
            return keys is not None and keys(owner, signer)

        return DIDVerifier(others)

    def _state(self, did: str | None = None) -> Index:
        """Return the state of a venue; verify the signature of this venue's own state."""
        if did is None or did == self.did:
            return as_index(self._own.get()) or EMPTY_INDEX
        if not is_venue_did(did):
            raise UsageError(f"a venue is named by its DID, got {did!r}")
        return venue_state(part_of(self.grid, VENUES_KEY).get(did)) or EMPTY_INDEX

    def _listed(self, did: str | None, part: Keyword) -> Iterator[bytes]:
        hidden = self._hidden.of(did or self.did, part)
        for key, _ in part_of(self._state(did), part).entries():
            if isinstance(key, bytes) and key not in hidden:
                yield key

    def _write(self, change: Callable[[Index, Index], tuple[Index, Index]]) -> None:
        """Change the grid and this venue's signed state in one update."""
        key_pair = self._key_pair
        if key_pair is None:
            raise NoSigningKey(f"writing for {self.did} needs its key pair, and none was given")

        def written(value: Value) -> Value:
            grid = with_all_parts(as_index(value), GRID)
            venues = part_of(grid, VENUES_KEY)
            cell = venues.get(self.did)
            # A state that another key signed is kept as evidence; signing over it would hide the
            # fork.
            if isinstance(cell, Signed) and not cell.verify():
                raise BadSignature(f"the state of {self.did} is not what its key signed")
            before = with_all_parts(venue_state(cell), VENUE)
            changed, state = change(grid, before)
            if state is before and changed is grid:  # nothing changed: nothing is signed
                return value
            if state is not before:
                signed = Signed.sign(key_pair, state)
                changed = changed.put(VENUES_KEY, venues.put(self.did, signed))
            return changed

        self._grid.update(written)

    def __repr__(self) -> str:
        """Return the DID and the number of assets and jobs; never raises."""
        return handle_text("Venue", self.did, None, self._binding, self._counted)

    def _counted(self) -> str:
        state = self._state()
        assets, jobs = len(part_of(state, ASSETS_KEY)), len(part_of(state, JOBS_KEY))
        return f"{counted(assets, 'asset')}, {counted(jobs, 'job')}"
