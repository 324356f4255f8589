"""Store: the log, the state and the machine of one replicated store, as one object.

    store.execute("Put", PutRequest(key=b"tea", value=b"3"))     # checked, signed, durable
    store.query("Get", GetRequest(key=b"tea"))
    store.ingest(envelopes)                                      # what other nodes sent

A command runs inside the write transaction: it reads the present state, and what it proposes is
signed, witnessed and projected there, so two commands of one node never race for the heads that
they replace. Events go out after the commit, in its order, and a subscriber that does not keep up
skips the oldest: it never blocks a writer.

Length: one store as one object: writing, reading and following share its tables.

Source: docs/design/weaver.md "Who calls whom"; docs/weaver.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from datalattice.clock import Clock
from datalattice.crypto import KeyPair
from datalattice.cursors import Listeners, Source, Stream, Wake, collector_paused
from datalattice.engine import GroupCommit, GroupTxn, ReadTxn, WriteTxn, section
from datalattice.errors import DataLatticeError, StoreClosed, StoreError, TypeMismatch
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import Message
from datalattice.weaver.dag import Branch, branches
from datalattice.weaver.events import (
    begin,
    event_mark,
    events_after,
    has_begun,
    last_event,
    record,
)
from datalattice.weaver.fence import (
    Doubt,
    check_fence,
    doubt_of,
    end_fork,
    is_fork_ended,
    settle,
    suspect,
)
from datalattice.weaver.frontier import ack_deps, observations
from datalattice.weaver.fsck import LogFault, fsck
from datalattice.weaver.ingest import Fork, Ingested
from datalattice.weaver.intention import LOG_LIMITS, LogLimits, SignedIntention, admit
from datalattice.weaver.log import Floating, IntentionLog, WitnessEntry
from datalattice.weaver.machine import EventFilter, Machine, Proposal, StateReader
from datalattice.weaver.payloads import app_envelope
from datalattice.weaver.presence import SeenMatrix
from datalattice.weaver.rewrite import rewrite
from datalattice.weaver.rows import Head, RangeSum
from datalattice.weaver.state import (
    LOG_START,
    LogDag,
    OnApplied,
    Position,
    Projection,
    Restored,
    Stall,
    State,
)
from datalattice.weaver.system import (
    GENESIS_KEY,
    SystemBatch,
    SystemEvent,
    SystemLayer,
    SystemReader,
)
from datalattice.weaver.systemops import UniversalOp
from datalattice.weaver.writing import Writing

T = TypeVar("T")

REQUESTS: Final = "requests"
"""Table of requests that carried an id, with their results. It is local, and never sent."""

CONSUMERS_TABLE: Final = "consumers"
"""Table of the positions of consumers: a name to the hash of a record."""


class Once(Protocol):
    """Runs the work of a transaction unless the same request ran it before; then it raises."""

    def __call__(self, commits: GroupCommit, work: Callable[[GroupTxn], T], /) -> T:
        """Run `work` in a transaction; return its result once that is durable."""


def run_once(commits: GroupCommit, work: Callable[[GroupTxn], T], once: Once | None) -> T:
    """Run `work` in a transaction, through `once` if it is given."""
    return commits.run(work) if once is None else once(commits, work)


_ALL_HASHES: Final = bytes(HASH_BYTES), b"\xff" * HASH_BYTES

ACK_DELAY_MS: Final = 5_000  # "resets a 5 s timer"
"""How long after the last foreign intention an acknowledgement is written."""


def store_prefix(number: int) -> bytes:
    """Return the beginning of all keys of a store: its number in 4 bytes, big-endian."""
    # Big-endian, so that stores lie one behind the other and a scan of one never meets another.
    return number.to_bytes(4, "big")


class _OwnChanges:
    """Wakes a stream after changes that this process made or met."""

    def __init__(self, store: WeaverStore) -> None:
        self._store = store

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each change; return a function that stops the calls."""
        return self._store.on_change(lambda _seq: wake())


class Subscription(Stream[Message]):
    """The events of one stream of a machine, from now on, whichever process wrote."""

    def __init__(
        self,
        store: WeaverStore,
        changes: Source,
        wanted: EventFilter,
        *,
        wait: bool,
        timeout: float | None,
        after: int | None = None,
    ) -> None:
        """after: the number of the event behind which it begins; None: the newest one."""
        self._store = store
        self._wanted = wanted
        newest = store.begin_events()
        self.seen = newest if after is None else after
        """The number of the last event that was looked at."""
        self.numbers: list[int] = []
        """The numbers of the events that the last look found."""
        self.skipped = 0
        """How many events of the store were lost because more than 1,024 had not been read."""
        super().__init__(changes, wait=wait, timeout=timeout)

    def _fetch(self) -> Iterable[Message]:
        found, self.numbers = [], []
        with self._store.read() as view:
            for number, event in view.events(self.seen, type(self._store.machine).__module__):
                # "A slow subscriber skips, it never blocks the writer."
                self.skipped += number - self.seen - 1
                self.seen = number
                wanted = None if event is None else self._wanted(event)
                if wanted is not None:
                    found.append(wanted)
                    self.numbers.append(number)
        return found


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Name, log and state of a store.

    intentions: how many are witnessed. applied: the sequence number up to which they are applied;
    less than `intentions` after a stall, whose reason is then in `stall`. forks: branches of
    authors that are not in the log. doubt: why this node may lack intentions of its own.
    """

    id: bytes
    name: str | None
    authors: int
    intentions: int
    applied: int
    floating: int
    forks: int
    head: bytes
    stall: str | None
    doubt: str | None


class StoreView:
    """One store as it was at one moment. It lives as long as the snapshot behind it."""

    def __init__(self, txn: ReadTxn, log: IntentionLog, state: State) -> None:
        """Use `WeaverStore.read` or `Stores.view`."""
        self._txn: Final = txn
        self._log: Final = log
        self._state: Final = state
        self._summed: tuple[bytes, bytes, RangeSum] | None = None

    @property
    def data(self) -> StateReader:
        """The table of the machine."""
        return self._state.reader(self._txn)

    @property
    def system(self) -> SystemReader:
        """Peers, children, invites and names."""
        return SystemReader(self._state.system_reader(self._txn))

    @property
    def dag(self) -> LogDag:
        """The operations, with their payloads in the envelope."""
        return self._state.dag(self._txn)

    def genesis(self) -> bytes | None:
        """Return the hash of the genesis, None if it has not arrived."""
        return self._state.meta_reader(self._txn).get(GENESIS_KEY)

    @property
    def has_events(self) -> bool:
        """Whether events are recorded."""
        return has_begun(self._txn)

    @property
    def last_event(self) -> int:
        """The number of the newest event, 0 for none."""
        return last_event(self._txn)

    def event_mark(self, number: int) -> bytes | None:
        """Return a mark that no other event with this number has, None where it is not kept."""
        return event_mark(self._txn, number)

    def events(self, number: int, home: str) -> Iterator[tuple[int, Message | None]]:
        """Yield number and message of every event after `number`: as `events_after`."""
        return events_after(self._txn, number, home)

    def last_seq(self) -> int:
        """Return the sequence number of the newest intention, 0 for an empty log."""
        return self._log.head(self._txn).seq

    def position(self, seq: int) -> Position | None:
        """Return a record of the log as a position, `LOG_START` for 0, None if there is none."""
        if seq == 0:
            return LOG_START
        found = self._log.content_hash(self._txn, seq)
        return None if found is None else Position(seq, found)

    def applied(self) -> Position:
        """Return the last record that was applied: before `last_seq` after a stall."""
        return self._state.position(self._txn)

    def head(self) -> Head:
        """Return the end of the log: number, fingerprint and chain."""
        return self._log.head(self._txn)

    def count(self, start: bytes, end: bytes) -> int:
        """Return how many witnessed hashes lie in start <= hash < end."""
        return self._sum(start, end).size

    def fingerprint(self, start: bytes, end: bytes) -> bytes:
        """Return the XOR of the witnessed hashes in a range."""
        return self._sum(start, end).xor.to_bytes(HASH_BYTES, "big")

    def _sum(self, start: bytes, end: bytes) -> RangeSum:
        # Count and fingerprint of a range are asked for one after the other.
        if self._summed is None or self._summed[:2] != (start, end):
            if (start, end) == _ALL_HASHES:  # every comparison begins so, and the head has this sum
                head = self.head()
                total = RangeSum(head.count, int.from_bytes(head.fingerprint, "big"))
            else:
                total = self._log.sum_range(self._txn, start, end)
            self._summed = start, end, total
        return self._summed[2]

    def hashes(self, start: bytes, end: bytes) -> Sequence[bytes]:
        """Return the witnessed hashes in a range, ascending.

        Raises: LimitExceeded: they are more than 2,048.
        """
        return self._log.hashes_in_range(self._txn, start, end)

    def iter_hashes(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the witnessed hashes in a range, ascending."""
        return self._log.iter_hashes(self._txn, start, end)

    def in_log_order(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Return those of `hashes` that are witnessed, dependencies first."""
        return self._log.in_log_order(self._txn, hashes)

    def get(self, hash: bytes) -> SignedIntention | None:
        """Return an intention, witnessed or floating, or None."""
        return self._log.get(self._txn, hash)

    def chain(self, target: bytes, since: bytes, limit: int) -> list[SignedIntention]:
        """Return an author's chain from `target` back to just after `since`, newest first.

        Raises: NotInChain, LimitExceeded: as `IntentionLog.walk_back_until`.
        """
        return self._log.walk_back_until(self._txn, target, since, limit)

    def progress(self) -> StoreStatus:
        """Return the status as the tables have it: without stall and doubt."""
        head = self._log.head(self._txn)
        return StoreStatus(
            id=self._log.store_id,
            name=self.system.name(),
            authors=len(self._log.tips(self._txn)),
            intentions=head.seq,
            applied=self.applied().seq,
            floating=head.floating_count,
            forks=len(self._log.forks(self._txn)),
            head=head.content_hash,
            stall=None,
            doubt=None,
        )

    def entries(self, start_seq: int = 1, limit: int | None = None) -> Iterator[WitnessEntry]:
        """Yield the witness log from a sequence number on."""
        return self._log.scan(self._txn, start_seq, limit)

    def seen(self) -> SeenMatrix:
        """Return, for each pair of authors, how many contents of one the other has acknowledged.

        Cost: a row for each pair of authors.
        """
        seen: dict[bytes, dict[bytes, int]] = {}
        for one in observations(self._txn):
            seen.setdefault(one.observer, {})[one.observed] = one.seen
        tips = self._log.tips(self._txn)
        return SeenMatrix({author: tip.contents for author, tip in sorted(tips.items())}, seen)

    def snapshot(self) -> Iterator[bytes]:
        """Yield all rows of the state with a checksum, in parts, for `WeaverStore.restore`."""
        return self._state.snapshot(self._txn)

    def find(self, hash_prefix: bytes) -> list[SignedIntention]:
        """Return the intentions whose hash begins with a prefix of 1 to 32 bytes."""
        return self._log.by_prefix(self._txn, hash_prefix)

    def seq_of(self, hash: bytes) -> int | None:
        """Return the sequence number of a witnessed intention, None for any other."""
        return self._log.seq_of(self._txn, hash)

    def tips(self) -> dict[bytes, bytes]:
        """Return each author's newest witnessed intention."""
        return {author: tip.hash for author, tip in self._log.tips(self._txn).items()}

    def branches(self, heads: Sequence[bytes]) -> list[Branch]:
        """Return the path to each of several operations from their common ancestor.

        Raises: NoCommonAncestor: they share no ancestor.
        """
        return branches(partial(self._log.node, self._txn), heads)

    def fsck(self, level: int) -> list[LogFault]:
        """Return what is wrong with the log: 1 links, 2 signatures too, 3 indexes too."""
        return fsck(self._txn, self._log.store_id, self._log.signer, level)

    def other_branch(self, fork: Fork) -> list[SignedIntention]:
        """Return what waits behind the branch of a fork that is not in the log, oldest first."""
        return self._log.other_branch(self._txn, fork)

    def floating(self) -> list[Floating]:
        """Return what waits, in the order of arrival."""
        return self._log.floating(self._txn)

    def forks(self) -> list[Fork]:
        """Return the pairs of intentions in which an author contradicts itself."""
        return self._log.forks(self._txn)


def _check_bytes(parts: Iterable[object], what: str) -> None:
    for part in parts:  # a single bytes object in place of a list gives numbers
        if not isinstance(part, bytes):
            raise TypeMismatch(f"{what} is bytes, got {type(part).__name__}")


class WeaverStore:
    """One open store. Any thread may use it; get it from `Stores`."""

    def __init__(
        self,
        commits: GroupCommit,
        number: int,
        id: bytes,
        machine: Machine,
        key: KeyPair,
        clock: Clock,
        limits: LogLimits = LOG_LIMITS,
        *,
        parent: bytes | None = None,
    ) -> None:
        """Use `Stores`. number: begins all keys of the store. key: signs intentions and records."""
        self.id: Final = id
        self.parent: Final = parent
        self.machine: Final = machine
        self.layer: Final = SystemLayer(machine)
        self._commits = commits
        self._prefix = store_prefix(number)
        self._key = key
        self._clock = clock
        self._limits = limits
        self._log = IntentionLog(id, key, clock, limits)
        self._state = State(id, self.layer, self._log)
        self._system: Final[Listeners[[SystemEvent]]] = Listeners()
        self._intentions: Final[Listeners[[SignedIntention]]] = Listeners()
        self._changes: Final[Listeners[[int]]] = Listeners()
        self._seen_seq = 0
        self._stall: Stall | None = None
        self._ack_due_ms: int | None = None
        self.is_closed = False

    @property
    def kind(self) -> str:
        """The kind of the machine."""
        return self.layer.kind

    @property
    def author(self) -> bytes:
        """The public key that this node writes under."""
        return self._key.public_key

    # --- writing ----------------------------------------------------------------------------

    def execute(self, method: str, request: Message, once: Once | None = None) -> Message:
        """Run a command of the machine; return its answer once its intention is durable.

        once: runs it unless it was run before.
        Raises: UnknownMethod; what the command raises, with nothing written; PayloadTooLarge,
                TooManyCausalDeps.
        """
        # A request with an id has a transaction of its own, in which its result is stored, too. Any
        # other shares one, and its sync, with concurrent writers.
        if once is None:
            return self.execute_all(method, [request])[0]
        make = self._making(method, [request])
        self._check_open()
        return once(self._commits, lambda txn: self._write_one(txn, make)[0])

    def execute_all(self, method: str, requests: Iterable[Message]) -> list[Message]:
        """Run a command for several requests, an intention each, in one transaction.

        Raises: as `execute`: nothing of the call is written then.
        """
        return self._write_with(self._making(method, requests))

    def _making(
        self, method: str, requests: Iterable[Message]
    ) -> Callable[[Writing], list[Message]]:
        def make(writing: Writing) -> list[Message]:
            # Inside the transaction: two commands never race for the heads that they replace.
            answers = []
            for request in requests:
                proposal = self.layer.execute(method, request, writing.data, writing.dag)
                # One after the other: each sees the write before it.
                hash = writing.write(proposal.payload, proposal.deps)
                answers.append(proposal.answer(hash))
            return answers

        return make

    def submit(self, payload: bytes, deps: Iterable[bytes] = ()) -> bytes:
        """Write a payload of the machine as one intention; return its hash once it is durable.

        An intention with an unknown dependency floats until that arrives.
        Raises: PayloadTooLarge, TooManyCausalDeps. TypeMismatch: a part is not bytes.
        """
        deps = tuple(deps)
        _check_bytes((payload, *deps), "a payload or dependency")
        envelope = app_envelope(payload)
        return self._write_with(lambda writing: writing.write(envelope, deps))

    def write(self, proposal: Proposal[Any]) -> bytes:
        """Write a payload that is in its envelope; return the hash once it is durable."""
        payload, deps = proposal.payload, proposal.deps
        return self._write_with(lambda writing: writing.write(payload, deps))

    def write_in(self, txn: GroupTxn, proposal: Proposal[Any]) -> bytes:
        """Write a payload that is in its envelope, in a transaction."""
        return self._write(txn, proposal)

    def system_in(self, txn: GroupTxn) -> SystemReader:
        """Return the system table as it is in a transaction."""
        return SystemReader(self._state.system_reader(self._section(txn)))

    def write_system(self, batch: SystemBatch) -> bytes | None:
        """Write system operations as one intention; return its hash, None if there are none."""
        return self._run(lambda txn: self.write_system_in(txn, lambda _: batch))

    def write_system_in(
        self, txn: GroupTxn, make: Callable[[SystemReader], SystemBatch | None]
    ) -> bytes | None:
        """Write, in a transaction, the system operations that `make` returns.

        make: gets the system table as it is in the transaction; may return None, to write nothing.
        """
        # Read and written in one transaction, so that what `make` found still holds.
        part = self._section(txn)
        reader = SystemReader(self._state.system_reader(part))
        batch = make(reader)
        proposal = None if batch is None else batch.proposal(reader)
        return None if proposal is None else self._write(txn, proposal)

    def ingest(self, envelopes: Sequence[bytes]) -> Ingested:
        """Take intentions that another node sent; return what was done with them, once durable.

        Raises: IntentionRefused: one of them failed a check, and nothing of the call was kept.
                TypeMismatch: one is not bytes.
        """
        _check_bytes(envelopes, "an envelope")
        # Outside the transaction: verifying is most of the work, and other writers go on.
        return self.take(admit(envelopes, self.id, self._limits))

    def take(self, signed: Sequence[SignedIntention], *, bounded: bool = True) -> Ingested:
        """Take intentions that `admit` accepted; return what was done with them, once durable.

        bounded: False for what was fetched on purpose, which may wait beyond the bound.
        Raises: FloatingFull: more would wait than is kept, and nothing of the call was.
        """

        def work(txn: GroupTxn) -> Ingested:
            part = self._section(txn)
            with collector_paused:  # rows form no cycles; looking for some costs a seventh
                ingested = self._log.ingest(part, signed, bounded=bounded)
                self._project(txn, part, ingested)
            return ingested

        return self._run(work)

    def acknowledge(self) -> bytes | None:
        """Write an ack of all foreign content so far; return the hash of its intention.

        None: there is nothing to acknowledge, and nothing was written.
        """

        def work(txn: GroupTxn) -> bytes | None:
            doubt = doubt_of(txn, self.id)
            if doubt is not None and doubt.refuses:
                return None  # no caller waits for an ack; the next foreign intention arms the timer
            part = self._section(txn)
            # "cap foreign authors per ack at the condition limit"
            deps = ack_deps(part, self.author, self._limits.deps)
            # An intention without payload; without dependencies it would say nothing.
            return self._write(txn, Proposal(b"", deps)) if deps else None

        self._ack_due_ms = None  # before the write: an intention that comes meanwhile arms it anew
        return self._run(work)

    def tick(self) -> bytes | None:
        """Acknowledge if content is not acknowledged and no foreign intention came for 5 seconds.

        Call it regularly; the node does so from its loop.
        """
        due = self._ack_due_ms
        if due is None or self._clock.now_ms() < due:
            return None
        return self.acknowledge()

    def consumed(self, consumer: str) -> bytes | None:
        """Return the hash of the last record that a consumer is done with, None for a new one."""
        self._check_open()
        with self._commits.read() as snapshot:
            return section(snapshot, self._prefix).get(CONSUMERS_TABLE, consumer.encode())

    def set_consumed(self, consumer: str, hash: bytes) -> None:
        """Store the last record that a consumer is done with. It is local, and never sent."""
        self._run(lambda txn: self._section(txn).put(CONSUMERS_TABLE, consumer.encode(), hash))

    def rebuild(self, on_progress: OnApplied | None = None) -> Projection:
        """Make the state anew from the log. Reads meanwhile see the old state.

        on_progress: called every 256 records with how many are applied, and of how many.
        Raises: what `on_progress` raises; the old state stays.
        """

        def work(txn: GroupTxn) -> Projection:
            part = self._section(txn)
            self._state.rebuild(part, on_progress)
            return self._project(txn, part)

        return self._run(work)

    def restore(self, parts: Iterable[bytes]) -> Restored:
        """Replace the state by a snapshot, and apply what the log has behind it.

        A snapshot that does not fit this log or machine is dropped, and the state made from the
        log. parts: of a snapshot of this store, each bytes.
        Raises: SnapshotRefused, StoreTypeMismatch: the old state stays.
        """

        def work(txn: GroupTxn) -> Restored:
            part = self._section(txn)
            until = self._state.position(part).seq
            restored = self._state.restore(part, parts)
            # Up to where the old state was without events: subscribers saw these before.
            again = max(0, until - self._state.position(part).seq)
            self._state.project(part, again, events=False)
            self._project(txn, part)
            return restored

        return self._run(work)

    def own_forks(self) -> list[Fork]:
        """Return the forks of this node that `rejoin` has not ended."""
        with self._commits.read() as snapshot:
            return self._own_forks(snapshot)

    def _own_forks(self, txn: ReadTxn) -> list[Fork]:
        found = self._log.forks(section(txn, self._prefix))
        own = [fork for fork in found if fork.author == self.author]
        return [fork for fork in own if not is_fork_ended(txn, self.id, fork.other.hash)]

    def rejoin(self) -> list[bytes]:
        """End a fork of this node: take the other history, and write its own behind it.

        Returns: the hashes of what was written once more; empty if this node has not forked.
        Cost:    a pass over the log. No node may replicate the store meanwhile.
        Raises:  UsageError: other authors have written behind the history that is in the log.
        """

        def work(txn: GroupTxn) -> list[bytes]:
            # In doubt, a peer may have more of this history than is here: it is asked first.
            check_fence(txn, self.id)
            part = self._section(txn)
            own = self._own_forks(txn.reader)
            if not own:
                return []
            leaving = rewrite(part, self._log, own[0])
            end_fork(txn, self.id, leaving[0].hash)
            self._project(txn, part)  # the records have other hashes now, so it rebuilds the state
            again: dict[bytes, bytes] = {}
            for signed in leaving:
                intention = signed.intention
                is_genesis = UniversalOp.decode(intention.payload).genesis is not None
                # An ack says what was here at its time, and a store has one genesis.
                if intention.payload and not is_genesis:
                    # What is written once more has a new hash, also as a dependency.
                    deps = [again.get(dep, dep) for dep in intention.deps]
                    again[signed.hash] = self._write(txn, Proposal(intention.payload, deps))
            return list(again.values())

        return self._run(work)

    def open(self) -> None:
        """Check that the stored data is this store's, and bring the state up to the log.

        Raises: StoreIdMismatch, StoreTypeMismatch, StoreVersion.
        """
        self._run(self.open_in)

    def open_in(self, txn: GroupTxn) -> None:
        """Do what `open` does, in a transaction."""
        part = self._section(txn)
        self._state.open(part)
        self._project(txn, part)  # "witnessed but not projected" is repaired here
        # "At open the timer is armed if an ack is pending."
        if ack_deps(part, self.author, self._limits.deps):
            self._ack_due_ms = self._clock.now_ms() + ACK_DELAY_MS

    def _write_with(self, make: Callable[[Writing], T]) -> T:
        """Have `make` write in a transaction; return its result once that is durable."""
        self._check_open()
        return self._commits.run_shared(self._write_all, make)

    def _write_all(
        self, txn: GroupTxn, makes: Sequence[Callable[[Writing], T]]
    ) -> list[T | Exception]:
        """Run several writers in one pass over the tables; return result or error of each."""
        check_fence(txn, self.id)
        part = self._section(txn)
        writing = Writing(part, self._log, self._state, self._key)
        found: list[T | Exception] = []
        for make in makes:
            before = writing.count
            try:
                found.append(make(writing))
            except Exception as error:
                # A command that refuses has written nothing, so it fails alone. Any other error may
                # have left writes behind, and fails the group.
                if isinstance(error, StoreError) or writing.count != before:
                    raise
                found.append(error)
        own, projection = writing.finish()
        self._announce(txn, part, projection, writing.seq, own)
        return found

    def _write(self, txn: GroupTxn, proposal: Proposal[Any]) -> bytes:
        payload, deps = proposal.payload, proposal.deps
        return self._write_one(txn, lambda writing: writing.write(payload, deps))

    def _write_one(self, txn: GroupTxn, make: Callable[[Writing], T]) -> T:
        found = self._write_all(txn, [make])
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def _project(
        self, txn: GroupTxn, part: WriteTxn, ingested: Ingested | None = None
    ) -> Projection:
        """Bring the state up to the log, and have the events delivered after the commit."""
        appended = None if ingested is None else ingested.appended
        projection = self._state.project(part, appended=appended)
        seq = self._log.head(part).seq if appended is None else appended.last
        is_foreign = ingested is not None and bool(ingested.witnessed)
        self._announce(txn, part, projection, seq, is_foreign=is_foreign)
        return projection

    def _announce(
        self,
        txn: GroupTxn,
        part: WriteTxn,
        projection: Projection,
        seq: int,
        own: Sequence[SignedIntention] = (),
        *,
        is_foreign: bool = False,
    ) -> None:
        """Announce after the commit what was written. is_foreign: it needs an ack."""
        # Witness, state and position in one transaction: a crash leaves all of it or nothing. A
        # stall rolls nothing back: the log goes on.
        if projection.events:
            messages = [event.message for event in projection.events]
            # Streams are those of the machine: events of the system table have listeners instead.
            record(part, [one for one in messages if not isinstance(one, SystemEvent)])
        txn.after_commit(lambda: self._deliver(projection, own, seq, is_foreign=is_foreign))

    def _deliver(
        self, projection: Projection, own: Sequence[SignedIntention], seq: int, *, is_foreign: bool
    ) -> None:
        self._stall = projection.stall
        # `look` may have met a later commit of another process already.
        self._seen_seq = max(self._seen_seq, seq)
        if is_foreign:
            # "Every witnessed foreign intention resets a 5 s timer."
            self._ack_due_ms = self._clock.now_ms() + ACK_DELAY_MS
        # After the commit, in its order: a listener that reads finds what the event says.
        for event in projection.events:
            if isinstance(event.message, SystemEvent):
                self._system.tell(event.message)
        for signed in own:
            self._intentions.tell(signed)  # "Only local writes are announced."
        self._changes.tell(seq)

    # --- the fence --------------------------------------------------------------------------

    def doubt(self) -> Doubt | None:
        """Return why this node may lack intentions of its own, None if nothing says so."""
        self._check_open()
        with self._commits.read() as snapshot:
            return doubt_of(snapshot, self.id)

    def suspect(self, doubt: Doubt) -> None:
        """Refuse own writes until a peer was asked."""
        if self.doubt() is not doubt:
            self._run(lambda txn: suspect(txn, self.id, doubt))
            self.tell_doubt()

    def settle(self, *, asked: bool) -> None:
        """End a doubt.

        asked: True: the store was compared with a peer, and all that it has is here. False: the
        user allows writes without that.
        """
        if self.doubt() is not None:
            self._run(lambda txn: settle(txn, self.id, asked=asked))
            self.tell_doubt()

    def tell_doubt(self) -> None:
        """Wake what waits for changes: a doubt has begun or ended."""
        self._changes.tell(self._seen_seq)

    def _run(self, work: Callable[[GroupTxn], T]) -> T:
        self._check_open()
        return self._commits.run(work)

    def _section(self, txn: WriteTxn) -> WriteTxn:
        return section(txn, self._prefix)

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreClosed("the store is closed; open it again")

    # --- reading ----------------------------------------------------------------------------

    def query(self, method: str, request: Message) -> Message:
        """Answer a query of the machine from the newest committed state.

        Raises: UnknownMethod; what the query raises.
        """
        with self.read() as view:
            return self.layer.query(method, request, view.data, view.dag)

    @contextmanager
    def read(self) -> Iterator[StoreView]:
        """Give a view that does not change. Keep it short: the engine keeps what it shows."""
        self._check_open()
        with self._commits.read() as snapshot:
            yield StoreView(section(snapshot, self._prefix), self._log, self._state)

    def status(self) -> StoreStatus:
        """Return name, log and state of the store, with stall and doubt."""
        with self.read() as view:
            found = view.progress()
        # The stall that was noted may be over: only a state behind the log is stalled.
        behind, stall, doubt = found.applied < found.intentions, self._stall, self.doubt()
        return replace(
            found,
            stall=str(stall.error) if behind and stall is not None else None,
            doubt=None if doubt is None else doubt.text,
        )

    # --- following --------------------------------------------------------------------------

    def subscribe(
        self,
        stream: str,
        params: Message,
        *,
        wait: bool = True,
        timeout: float | None = None,
        changes: Source | None = None,
        after: int | None = None,
    ) -> Subscription:
        """Return the events of a stream of the machine, from now on.

        after: the number of the event behind which the stream begins instead.
        changes: wakes a waiting stream after changes of any process; by default only changes of
                 this process wake it, and it then finds those of others, too.
        Raises: UnknownMethod, InvalidParams.
        """
        wanted = self.machine.event_filter(stream, params)
        source = _OwnChanges(self) if changes is None else changes
        return Subscription(self, source, wanted, wait=wait, timeout=timeout, after=after)

    def begin_events(self) -> int:
        """Have events recorded; return the number of the last one so far."""
        with self.read() as view:
            # A reader writes nothing: it sees events once a writer has subscribed.
            if self._commits.engine.read_only or view.has_events:
                return view.last_event
        self._run(lambda txn: begin(self._section(txn)))
        return 0

    def on_intention(self, listener: Callable[[SignedIntention], object]) -> Wake:
        """Call `listener` with each intention written here; return what stops the calls."""
        return self._intentions.add(listener)

    def on_system(self, listener: Callable[[SystemEvent], object]) -> Wake:
        """Call `listener` with each event of the system table; return what stops the calls."""
        return self._system.add(listener)

    def on_change(self, listener: Callable[[int], object]) -> Wake:
        """Call `listener` with the last sequence number after each change of the log or state."""
        return self._changes.add(listener)

    def look(self) -> bool:
        """Return whether another process has written; if so, wake what waits for changes."""
        if not self._changes or self.is_closed:  # no one listens: no snapshot is opened
            return False
        try:
            with self.read() as view:
                seq = view.last_seq()
        except DataLatticeError:
            # The readers that this wakes read the store themselves and get the error.
            self._changes.tell(self._seen_seq)
            return True
        if seq <= self._seen_seq:
            return False
        self._seen_seq = seq
        self._changes.tell(seq)
        return True

    def close(self) -> None:
        """Close the store; streams that wait wake, and find it closed. Closing twice is allowed."""
        if not self.is_closed:
            self.is_closed = True
            self._changes.tell(self._seen_seq)  # readers that wait find it closed
