"""Handles: the objects with which a program uses a store: a dict of keys, or a sequence of entries.

    notes = node.store("notes", kind="kv")          # KVStore
    notes["title"] = "Shopping"
    notes.history("title"), notes.conflicts("title")
    diary = node.store("diary", kind="log")         # LogStore
    diary.append("rain"); diary[-1]
    stock = node.store("stock", kind=Inventory)     # MachineStore: the methods of the machine
    stock.reserve(item="tea", count=2)

A handle may be shared by threads. It holds no lock and no transaction; a write is durable when it
returns.

Source: docs/weaver.md; docs/design/front-door.md "Handles"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from datalattice.cells import brief
from datalattice.clock import Hlc
from datalattice.cursors import Stream, Wake
from datalattice.errors import NoSuchPath, TypeMismatch, UsageError
from datalattice.protobuf import Message
from datalattice.weaver.log import WitnessEntry
from datalattice.weaver.machine import Machine, MethodKind
from datalattice.weaver.policy import PeerManager
from datalattice.weaver.presence import PeerPresence, SeenMatrix, SyncedPeer
from datalattice.weaver.state import Position
from datalattice.weaver.store import Once, StoreStatus, StoreView, Subscription, WeaverStore
from datalattice.weaver.storeid import store_id_text
from datalattice.weaver.system import StorePeer

T = TypeVar("T")

SCAN_ENTRIES_MAX: Final = 1_000  # bounds the memory of a reader that is far behind
"""Entries that a stream reads at once."""


class StoreSource(Protocol):
    """Where a handle finds its store."""

    @property
    def name(self) -> str:
        """The name of the store on this node."""

    def store(self) -> WeaverStore:
        """Return the store, open. Raises: StoreClosed: the node was closed."""

    def writable(self) -> WeaverStore:
        """Return the store for a write. Raises: ReadOnly; as `store`."""

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after changes of the store, also those of other processes."""

    def peers(self) -> PeerManager:
        """Return the manager of the peers of all stores."""

    def addresses(self) -> tuple[str, ...]:
        """Return where a running node of this folder can be reached; empty without one."""

    def presence(self) -> list[PeerPresence]:
        """Return what the running node knows of connected peers.

        Raises: PeerUnavailable: no node runs.
        """

    def sync(self, timeout_s: float) -> list[SyncedPeer]:
        """Have the running node compare the store with its peers.

        Raises: as `presence`. Timeout: no peer has finished.
        """

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name on this machine; return a function that releases it.

        Raises: StoreLocked: another caller has it.
        """

    def reopening(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the function and arguments by which pickle makes the handle in another process.

        Raises: UsageError: another process cannot reach the store.
        """


class Codec(Protocol[T]):
    """How the values of a store are written as bytes."""

    def encode(self, value: T) -> bytes:
        """Return the bytes of a value. Raises: TypeMismatch: it is of another type."""

    def decode(self, data: bytes) -> T:
        """Return the value of bytes. Raises: BadFormat: they do not encode a value."""


def utf8_bytes(text: str, what: str) -> bytes:
    """Return text as UTF-8; text that was decoded from other bytes gives those again (PEP 383).

    what: how the error names the text, such as "a key".
    Raises: UsageError: the text holds a lone surrogate, half of a character.
    """
    try:
        # Reading undoes this for any bytes.
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise UsageError(
            f"{what} must be text that UTF-8 can encode; character {error.start} is {half!r}, half "
            "of a character"
        ) from None


class _TextCodec:
    """Values as UTF-8 text. Other bytes are decoded without loss (PEP 383)."""

    def encode(self, value: str) -> bytes:
        if type(value) is not str:
            # Not converted: a number stored as text would come back as text.
            raise TypeMismatch(
                f"the values of this store are text, got {type(value).__name__}; open it with "
                "of=bytes for bytes, or of= another type"
            )
        return utf8_bytes(value, "a value")

    def decode(self, data: bytes) -> str:
        return data.decode(errors="surrogateescape")


class _RawCodec:
    """Values as bytes."""

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeMismatch(f"the values of this store are bytes, got {type(value).__name__}")
        return bytes(value)  # a copy: the caller may change its buffer later

    def decode(self, data: bytes) -> bytes:
        return data


TEXT_CODEC: Final[Codec[Any]] = _TextCodec()
RAW_CODEC: Final[Codec[Any]] = _RawCodec()


def time_of(stamp: Hlc) -> datetime:
    """Return the wall time of a stamp; the latest `datetime` for a stamp beyond it."""
    try:
        return datetime.fromtimestamp(stamp.wall / 1e3, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)  # an author may sign any 64-bit number


class WrittenValue(NamedTuple, Generic[T]):
    """A value with the operation that wrote it: its author, stamp and hash."""

    value: T
    author: bytes
    stamp: Hlc
    hash: bytes

    @property
    def time(self) -> datetime:
        """When its author wrote it, by the author's clock."""
        return time_of(self.stamp)

    def __repr__(self) -> str:
        kind, author, hash = type(self).__name__, self.author.hex()[:8], self.hash.hex()[:12]
        when = self.time.isoformat(" ", "milliseconds")
        return f"<{kind} {brief(self.value)} by {author} at {when}, hash {hash}>"


class StoreHandle:
    """Base of all handles."""

    def __init__(self, source: StoreSource) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """The name of the store."""
        return self._source.name

    @property
    def id(self) -> str:
        """The id of the store: the same on all nodes."""
        return store_id_text(self._source.store().id)

    @property
    def store(self) -> WeaverStore:
        """The store itself: its log, its system table, and what the network needs."""
        return self._source.store()

    def status(self) -> StoreStatus:
        """Return counts of intentions, authors and forks, how far they are applied, and a stall."""
        return self._source.store().status()

    def invite(self, *addresses: str, once: Once | None = None) -> str:
        """Return a token with which one node may join: `lattice peer join TOKEN`, `DagNode.join`.

        addresses: where this node can be reached, as `tls://host:port`; by default where the node
                   that serves the folder listens. Whoever has the token can join: send it as you
                   would send a password.
        once:      makes the invite unless it was made before.
        Raises: UsageError: the peers of the store are those of its parent. ReadOnly.
        """
        store = self._source.writable()
        reached = addresses or self._source.addresses()
        return self._source.peers().create_invite(store.id, reached, once).to_text()

    def peers(self) -> list[StorePeer]:
        """Return the peers of the store, or of the store that it shares them with, in key order."""
        return self._source.peers().peers(self._source.store().id)

    def presence(self) -> list[PeerPresence]:
        """Return what the running node knows of the peers that are connected, in key order.

        Raises: PeerUnavailable: no node runs in the folder.
        """
        return self._source.presence()

    def sync(self, timeout: float = 30.0) -> list[SyncedPeer]:
        """Have the running node compare the store with all connected peers, and wait for the end.

        Returns: the result for each peer; empty if no peer is connected.
        Raises: PeerUnavailable: no node runs in the folder. Timeout: no peer has finished.
        """
        return self._source.sync(timeout)

    def seen(self) -> SeenMatrix:
        """Return, for each pair of authors, how many contents of one the other has acknowledged."""
        with self._source.store().read() as view:
            return view.seen()

    def revoke(self, public_key: bytes) -> None:
        """Shut a peer out: it receives nothing new, and nothing new from it is accepted.

        Raises: UsageError: the peers of the store are those of its parent. ReadOnly.
        """
        self._source.peers().revoke(self._source.writable().id, public_key)

    @property
    def machine(self) -> Machine:
        """The machine that makes the state of the store."""
        return self._source.store().machine

    def call(self, method: str, request: Message, once: Once | None = None) -> Message:
        """Run a command, or answer a query.

        once: runs a command unless it was run before.

        Raises: UnknownMethod; what the machine raises. ReadOnly: a command on a read-only node.
        """
        if self.machine.find_method(method).kind is MethodKind.QUERY:
            return self._source.store().query(method, request)
        return self._source.writable().execute(method, request, once)

    def subscribe(
        self,
        stream: str,
        params: Message | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
        after: int | None = None,
        **fields: Any,
    ) -> Subscription:
        """Yield the events of a stream of the machine, also those of other processes.

        A node that can only read sees them once a program that can write has subscribed.
        params: the parameters of the stream, or their `fields` as keywords. after: the number of
        the event behind which the stream begins; default: the newest one.
        """
        if params is None:
            params = self.machine.find_stream(stream).params(**fields)
        return self._source.store().subscribe(
            stream, params, wait=wait, timeout=timeout, changes=self._source, after=after
        )

    def witnessed(
        self,
        start: str | bytes | Position = "start",
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Stream[WitnessEntry]:
        """Yield the records of the witness log, in the order of their arrival here.

        start: "start", "end", the hash of a record, or a position of this log.
        Raises: NoSuchPath: no record here has this hash; the log has another record there.
        """
        return _Witnessed(self._source, start, wait=wait, timeout=timeout)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._source.reopening()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._source == self._source

    def __hash__(self) -> int:
        return hash((type(self), self._source))


class LogStream(Stream[Any]):
    """A stream that reads the witness log from one sequence number on."""

    def __init__(
        self,
        source: StoreSource,
        start: str | bytes | Position,
        *,
        wait: bool,
        timeout: float | None,
    ) -> None:
        self._source = source
        # Taken before the subscription: a write in between has a greater number and is read.
        self._next_seq = 1 + self._seq_at(start)
        super().__init__(source, wait=wait, timeout=timeout)

    def _seq_at(self, to: str | bytes | Position) -> int:
        """Return the number of the record behind which reading begins, 0 for the first.

        to: as `start` of `StoreHandle.witnessed`.
        Raises: UsageError: it is none of these. NoSuchPath: no record here has this hash.
        """
        if isinstance(to, Position):
            with self._source.store().read() as view:
                if view.position(to.seq) != to:
                    raise NoSuchPath(f"the log has another record {to.seq}, or none")
            return to.seq
        if to not in ("start", "end") and not isinstance(to, bytes):
            raise UsageError(f'start is "start", "end" or the hash of a record, got {to!r}')
        if to == "start":
            return 0
        with self._source.store().read() as view:
            # By hash: the numbers of the log are this node's own, and differ on another one.
            seq = view.seq_of(to) if isinstance(to, bytes) else view.last_seq()
        if seq is None:
            assert isinstance(to, bytes)
            raise NoSuchPath(f"no record here has the hash {to.hex()}")
        return seq

    def _fetch(self) -> Iterable[Any]:
        # Read from the log: it has what other processes wrote.
        store = self._source.store()
        found: list[Any] = []
        with store.read() as view:
            # Until something is found: a lot may hold only acks and system operations.
            while not found:
                batch = list(view.entries(self._next_seq, SCAN_ENTRIES_MAX))
                if not batch:
                    break
                self._next_seq = batch[-1].seq + 1
                found += self._items(view, batch)
        return found

    def _items(self, view: StoreView, batch: list[WitnessEntry]) -> Iterable[Any]:
        raise AssertionError  # each kind of handle makes its own items


class _Witnessed(LogStream):
    def _items(self, view: StoreView, batch: list[WitnessEntry]) -> Iterable[WitnessEntry]:
        return batch


# --- machines of a program ------------------------------------------------------------------------


class MachineStore(StoreHandle):
    """A store of a program's own machine: its commands and queries are methods of this handle.

        stock.reserve(item="tea", count=2)       # fields of the request as keywords
        stock.call("Reserve", Reserve(...))      # or the request itself

    Each returns the answer, a message. A method with the name of an attribute of every handle, such
    as `name` or `status`, is reached by `call`.
    """

    def __getattr__(self, name: str) -> Any:
        # Python itself asks for such names (pickle, copy); no method of a machine has one.
        if name.startswith("_"):
            raise AttributeError(name)
        # Looked up on each access: a subclass may add methods.
        for method in self.machine.methods():
            if method.attribute == name:
                return lambda **fields: self.call(method.name, method.request(**fields))
        raise AttributeError(f"the store {self.name!r} of {self.machine.kind} has no {name!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(method.attribute for method in self.machine.methods())]

    def __repr__(self) -> str:
        return f"<MachineStore {self.name!r} of {self.machine.kind}>"
