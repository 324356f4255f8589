"""Records: the durable part of a venue's jobs: public records, and parts private to this node.

The records are in `:jobs` of the venue's signed state. The private parts of live jobs and the
schedule are in the node's `:local` slot, which is never sent: the input with its secrets, answers,
waiting messages, values of `checkpoint`. Both change in one commit.

Source: docs/design/venue.md "What is durable when".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self, TypeVar

from datalattice.apps.grid import (
    GRID_SECTION,
    JOBS_KEY,
    META_KEY,
    VENUE,
    VENUES_KEY,
    Venue,
    part_of,
)
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Value,
    Vector,
    from_json,
    make_text,
    to_python,
)
from datalattice.client import Node
from datalattice.clock import Clock, SystemClock, next_stamp, present_ms
from datalattice.crypto import Entropy, KeyPair, SystemEntropy
from datalattice.cursors import LatticeCursor, SignedCursor
from datalattice.errors import BadFormat, LimitExceeded, NoSigningKey, UsageError
from datalattice.lattice import (
    LOCAL_KEY,
    TIMESTAMP,
    DIDVerifier,
    LWWLattice,
    MapLattice,
    MergeContext,
    map_timestamp,
)
from datalattice.service.venue.sealing import SECRET, PartSealer

T = TypeVar("T")

JOBS_SLOT: Final = Keyword("grid-jobs")
_JOBS: Final = "jobs"
_SCHEDULE: Final = "schedule"
_REQUESTS: Final = "requests"

JSON_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest input, output, message or checkpoint, in bytes of JSON text."""


def json_cell(value: object, name: str) -> Value:
    """Return a JSON value as a cell. name: of the value, for errors.

    Raises: UsageError: it is not JSON. LimitExceeded: it is longer than 4 MiB.
    """
    try:
        # Without NaN, which Python writes and other readers of JSON refuse.
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
        if size > JSON_BYTES_MAX:
            raise LimitExceeded(f"{name}: at most {JSON_BYTES_MAX} bytes of JSON, got {size}")
        return from_json(text)
    # RecursionError: `json.dumps` of a value that is nested too deeply.
    except (TypeError, ValueError, RecursionError, BadFormat) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error


def cell_json(value: Value) -> Any:
    """Return the JSON value of a cell that `json_cell` made."""
    return to_python(value)


def texts_cell(texts: tuple[str, ...] | None) -> Value:
    """Return texts as a cell; `read_texts` is the reverse."""
    return None if texts is None else Vector.of(texts)


def read_texts(cell: Value) -> tuple[str, ...] | None:
    """Return the texts in a cell; None for nil, no texts for a cell of another shape."""
    if cell is None:
        return None
    # Of another shape: no grants, where None would mean all.
    return tuple(map(str, cell)) if isinstance(cell, Vector) else ()


@dataclass(frozen=True, slots=True)
class PrivatePart:
    """The part of a live job that stays on this node. Values are cells of JSON.

    input: with its secrets. attempt: number of the run, from 1. stops: runs that ended with an
    orderly stop of the venue. answers: to `ask`, in order. queue: messages that wait. saved: the
    last `checkpoint`. children: ids of the jobs that it invoked, by key. parent: the job that
    invoked it. depth: of such invocations. deadline_ms: the time at which it ends as TIMEOUT.
    is_secret: it is sealed on the disk. grants: those that narrow the caller's credential; None: it
    is not narrowed.
    """

    input: Value = None
    attempt: int = 1
    answers: tuple[Value, ...] = ()
    queue: tuple[Value, ...] = ()
    saved: Value = None
    children: Map = EMPTY_MAP
    parent: bytes | None = None
    depth: int = 0
    deadline_ms: int | None = None
    is_secret: bool = False
    grants: tuple[str, ...] | None = None
    stops: int = 0

    def cell(self) -> Map:
        """Return it as a Map; `read` is the reverse."""
        found = Map.of(
            {
                "input": self.input,
                "attempt": self.attempt,
                "answers": Vector.of(self.answers),
                "queue": Vector.of(self.queue),
                "saved": self.saved,
                "children": self.children,
                "parent": self.parent,
                "depth": self.depth,
                "deadline": self.deadline_ms,
                "grants": texts_cell(self.grants),
                "stops": self.stops,
            }
        )
        return found.put(SECRET, True) if self.is_secret else found

    @classmethod
    def read(cls, cell: Value) -> Self | None:
        """Return the private part in a cell; None: it has none."""
        # Members of another type read as defaults: another version of this package wrote them.
        if not isinstance(cell, Map):
            return None
        children, answers, queue = (cell.get(name) for name in ("children", "answers", "queue"))
        attempt, depth, parent = cell.get("attempt"), cell.get("depth"), cell.get("parent")
        deadline, stops = cell.get("deadline"), cell.get("stops")
        return cls(
            cell.get("input"),
            attempt if isinstance(attempt, int) else 1,
            tuple(answers) if isinstance(answers, Vector) else (),
            tuple(queue) if isinstance(queue, Vector) else (),
            cell.get("saved"),
            children if isinstance(children, Map) else EMPTY_MAP,
            parent if isinstance(parent, bytes) else None,
            depth if isinstance(depth, int) else 0,
            deadline if isinstance(deadline, int) else None,
            cell.get(SECRET) is True,
            read_texts(cell.get("grants")),
            stops if isinstance(stops, int) else 0,
        )

    def next_attempt(self) -> PrivatePart:
        """Return the part for the next attempt."""
        return replace(self, attempt=self.attempt + 1)

    def stopped(self) -> PrivatePart:
        """Return the part after an orderly stop of the venue ended the run."""
        return replace(self, stops=self.stops + 1)

    @property
    def interruptions(self) -> int:
        """The number of attempts, without those that an orderly stop ended."""
        return self.attempt - self.stops

    def answered(self, message: Value) -> PrivatePart:
        """Return the part with one more answer."""
        return replace(self, answers=(*self.answers, message))


@dataclass(slots=True)
class JobBatch:
    """The changes of one commit. None removes an entry of `private`, `schedule` or `requests`."""

    records: dict[bytes, Map] = field(default_factory=dict)
    private: dict[bytes, Map | None] = field(default_factory=dict)
    schedule: dict[bytes, Map | None] = field(default_factory=dict)
    requests: dict[bytes, Map | None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there are no changes."""
        return not (self.records or self.private or self.schedule or self.requests)

    def update(self, newer: JobBatch) -> None:
        """Add newer changes; they replace the older ones of the same entries."""
        self.records.update(newer.records)
        self.private.update(newer.private)
        self.schedule.update(newer.schedule)
        self.requests.update(newer.requests)


class JobStorage(Protocol):
    """The storage of a venue's jobs. Its methods may wait for the disk."""

    @property
    def did(self) -> str:
        """The DID of the venue."""
        ...

    def begin(self) -> None:
        """Make a durable write, which waits for the fence, as every write below an owner.

        Reads after it include the data of this venue that peers held.
        Raises: Unfenced, IdentityCloned: the node may not write.
        """
        ...

    def write(self, batch: JobBatch) -> None:
        """Write a batch in one commit, durable when it returns."""
        ...

    def job(self, id: bytes) -> Map | None:
        """Return the durable record of a job; None: there is none, or it is hidden."""
        ...

    def jobs(self) -> Index:
        """Return all durable records by id."""
        ...

    def private(self) -> tuple[dict[bytes, PrivatePart], dict[bytes, Map]]:
        """Return the private parts of live jobs by id, and the schedule by handle."""
        ...

    def requests(self) -> dict[bytes, Map]:
        """Return the requests with ids that made jobs, by the hash of caller and id."""
        ...

    def hide(self, id: bytes) -> None:
        """Hide a job; durable when it returns."""
        ...

    def is_hidden(self, id: bytes) -> bool:
        """Return whether a job is hidden."""
        ...

    def register(self, metadata: str) -> bytes:
        """Register an asset; return its id."""
        ...

    def keep(self, asset: bytes, metadata: str) -> None:
        """Keep the metadata of another venue's asset; the caller has checked its hash."""
        ...

    def metadata(self, asset_id: bytes) -> str | None:
        """Return the metadata text of an asset; None: it is unknown."""
        ...


class GridJobs:
    """The jobs of a venue below a root."""

    def __init__(
        self,
        root: LatticeCursor,
        key_pair: KeyPair,
        did: str | None = None,
        *,
        atomically: Callable[[Callable[[], None]], None] = lambda work: work(),
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        """did: of the venue; None: the key's. atomically: makes the writes of a call one commit."""
        self._clock: Final = clock or SystemClock()
        self._atomically: Final = atomically
        owner = key_pair if did is None else did
        self._venue: Final = Venue.at(root, owner, key_pair=key_pair, clock=self._clock)
        self.did: Final = self._venue.did
        self._sealer: Final = PartSealer(key_pair, self.did, entropy or SystemEntropy())
        own = key_pair.public_key
        # The caller vouches that the key signs for this DID, which may be a `did:web`.
        verifier = DIDVerifier(lambda owner, signer: owner == self.did and signer == own)
        self._meta: Final = root.path(GRID_SECTION, META_KEY)
        context = MergeContext(key_pair=key_pair, verifier=verifier, owner=self.did)
        self._state: Final = SignedCursor(
            root.path(GRID_SECTION, VENUES_KEY, self.did), VENUE, context
        )
        # The slot belongs to the node, whose key may differ from the venue's.
        identity = root.context.key_pair or key_pair
        slot = SignedCursor(
            root.path(LOCAL_KEY, identity.public_key),
            MapLattice(LWWLattice()),
            MergeContext(key_pair=identity, owner=identity.public_key),
        )
        self._slot: Final = slot.path(JOBS_SLOT)

    @classmethod
    def of_node(cls, node: Node, clock: Clock | None = None) -> GridJobs:
        """Return the jobs of the venue of a node's DID. Raises: NoSigningKey: it has no key."""
        root = node.cursor()
        pair = root.context.key_pair
        if pair is None:
            raise NoSigningKey("a venue signs its jobs; make a key with `lattice key new`")
        return cls(root, pair, atomically=node.atomically, clock=clock)

    def begin(self) -> None:
        """Make a durable write, which waits for the fence."""
        # It sets a new stamp: a write that changes nothing would not wait.
        self._atomically(lambda: self._slot.update(lambda held: self._register(held, JobBatch())))

    def write(self, batch: JobBatch) -> None:
        """Write a batch in one commit, durable when it returns."""
        # In one commit: no crash leaves a record without its private part, or the other way round.
        self._atomically(lambda: self._write(batch))

    def _write(self, batch: JobBatch) -> None:
        if batch.records:
            # All records in one put: one pass over the tree, one signature.
            self._state.path(JOBS_KEY).update(lambda jobs: _index(jobs).put_many(batch.records))
        if batch.private or batch.schedule or batch.requests:
            self._slot.update(lambda held: self._register(held, batch))

    def _register(self, held: Value, batch: JobBatch) -> Map:
        register = _map(held)
        own = _map(register.get(self.did))
        parts = {_JOBS: batch.private, _SCHEDULE: batch.schedule, _REQUESTS: batch.requests}
        for name, changes in parts.items():
            if not changes:
                continue
            part = _map(own.get(name))
            part = part.put_many(
                {
                    id: self._sealer.sealed(id, cell)
                    for id, cell in changes.items()
                    if cell is not None
                }
            )
            for id, cell in changes.items():
                if cell is None:
                    part = part.remove(id)
            own = own.put(name, part)
        # "The registers of `:local` are last-write-wins" (docs/design/forks.md "Evidence").
        stamp = next_stamp(present_ms(self._clock), map_timestamp(register))
        return register.put(self.did, own).put(TIMESTAMP, stamp)

    def job(self, id: bytes) -> Map | None:
        """Return the durable record of a job; None: there is none, or it is hidden."""
        return None if self.is_hidden(id) else self._venue.job(id)

    def is_hidden(self, id: bytes) -> bool:
        """Return whether a job is hidden."""
        return self._venue.is_hidden("jobs", id)

    def jobs(self) -> Index:
        """Return all durable records by id, hidden ones, too."""
        return _index(part_of(_index(self._state.get()), JOBS_KEY))

    def private(self) -> tuple[dict[bytes, PrivatePart], dict[bytes, Map]]:
        """Return the private parts of live jobs by id, and the schedule by handle."""
        own = self._own()
        parts = {
            id: part
            for id, cell in self._opened(own.get(_JOBS)).items()
            if (part := PrivatePart.read(cell)) is not None
        }
        return parts, _maps(self._opened(own.get(_SCHEDULE)))

    def requests(self) -> dict[bytes, Map]:
        """Return the requests with ids that made jobs, by the hash of caller and id."""
        return _maps(_entries(self._own().get(_REQUESTS)))

    def _opened(self, part: Value) -> dict[bytes, Value]:
        return {id: self._sealer.opened(id, cell) for id, cell in _entries(part).items()}

    def _own(self) -> Map:
        return _map(_map(self._slot.get()).get(self.did))

    def hide(self, id: bytes) -> None:
        """Hide a job; durable when it returns."""
        self._atomically(lambda: self._venue.hide("jobs", id))

    def register(self, metadata: str) -> bytes:
        """Register an asset; return its id."""
        return self._venue.register(metadata)

    def keep(self, asset: bytes, metadata: str) -> None:
        """Keep the metadata of another venue's asset in `:meta`, outside the venue's own assets."""
        text = make_text(metadata)
        self._atomically(lambda: self._meta.update(lambda meta: _index(meta).put(asset, text)))

    def metadata(self, asset_id: bytes) -> str | None:
        """Return the metadata text of an asset; None: it is unknown."""
        return self._venue.asset(asset_id)


def _index(value: Value) -> Index:
    return value if isinstance(value, Index) else EMPTY_INDEX


def _map(value: Value) -> Map:
    return value if isinstance(value, Map) else EMPTY_MAP


def _maps(entries: Mapping[bytes, Value]) -> dict[bytes, Map]:
    return {key: cell for key, cell in entries.items() if isinstance(cell, Map)}


def _entries(value: Value) -> Mapping[bytes, Value]:
    return {key: cell for key, cell in _map(value).items() if isinstance(key, bytes)}
