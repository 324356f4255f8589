"""KV store: the handle of a store of keys and values, a dict that several nodes write.

    notes = node.store("notes", kind="kv")
    notes["title"] = "Shopping"
    notes.history("title"), notes.conflicts("title")

Source: docs/weaver.md "Keys and values"; docs/design/front-door.md "Handles"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, NamedTuple, TypeVar

from datalattice.cells import counted
from datalattice.clock import Hlc
from datalattice.cursors import Stream
from datalattice.engine import successor
from datalattice.errors import TypeMismatch
from datalattice.weaver.handles import (
    TEXT_CODEC,
    Codec,
    LogStream,
    StoreHandle,
    StoreSource,
    WrittenValue,
    utf8_bytes,
)
from datalattice.weaver.heads import HeadReader
from datalattice.weaver.kv import (
    BatchRequest,
    DeleteOp,
    DeleteRequest,
    KvMachine,
    Operation,
    PutOp,
    PutRequest,
    WatchEvent,
    WatchParams,
    check_kv_key,
    written_by,
)
from datalattice.weaver.log import WitnessEntry
from datalattice.weaver.op import Op
from datalattice.weaver.store import StoreView
from datalattice.weaver.system import app_payload

T = TypeVar("T")


def kv_key_bytes(key: object) -> bytes:
    """Return a key as bytes.

    Raises: TypeMismatch: it is neither text nor bytes. UsageError: as `utf8_bytes`.
    """
    if isinstance(key, str):
        return utf8_bytes(key, "a key")
    if isinstance(key, bytes):
        return key
    raise TypeMismatch(f"a key is text or bytes, got {type(key).__name__}")


def kv_key_text(key: bytes) -> str:
    """Return a key as text; `kv_key_bytes` gives the same bytes again."""
    return key.decode(errors="surrogateescape")


class Version(WrittenValue[T | None]):
    """What one operation wrote to a key. value: None where it deleted the key."""

    __slots__ = ()


class KeyUpdate(NamedTuple, Generic[T]):
    """A key that was written to, and what it holds now. value: None once it is deleted."""

    key: str
    value: T | None


# --- keys and values ------------------------------------------------------------------------------

_batches: Final[ContextVar[tuple[tuple[object, dict[bytes, bytes | None]], ...]]] = ContextVar(
    "weaver_batches", default=()
)
"""The open batches of this thread or task: the source of the store, and the writes by key."""


class KVStore(StoreHandle, MutableMapping[str, T]):
    """Keys and values that several nodes write. Of concurrent writes the latest counts.

    All concurrent writes to a key are kept, as a conflict, until the next write to it. Values are
    text, or what `of=` says. Keys are text; bytes are taken too.
    """

    def __init__(self, source: StoreSource, codec: Codec[T] = TEXT_CODEC) -> None:
        super().__init__(source)
        self._codec = codec

    def __getitem__(self, key: str) -> T:
        found = self._get(kv_key_bytes(key))
        if found is None:
            raise KeyError(key)
        return self._codec.decode(found)

    def _get(self, key: bytes) -> bytes | None:
        waiting = self._waiting()
        if waiting is not None and key in waiting:  # "Reads inside see them"
            return waiting[key]
        with self._source.store().read() as view:
            return HeadReader(view.data).get(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | bytes) and self._get(kv_key_bytes(key)) is not None

    def __setitem__(self, key: str, value: T) -> None:
        self._write(kv_key_bytes(key), self._codec.encode(value))

    def __delitem__(self, key: str) -> None:
        # Like a dict: deleting a missing key is an error, though the machine would take it.
        if self._get(kv_key_bytes(key)) is None:
            raise KeyError(key)
        self._write(kv_key_bytes(key), None)

    def _write(self, key: bytes, value: bytes | None) -> None:
        store = self._source.writable()
        waiting = self._waiting()
        if waiting is not None:
            check_kv_key(key)  # refused where it is written, not when the batch ends
            waiting[key] = value
        elif value is None:
            store.execute("Delete", DeleteRequest(key))
        else:
            store.execute("Put", PutRequest(key, value))

    def _items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the live keys that begin with `prefix`, in order."""
        with self._source.store().read() as view:
            found = {
                key: value
                for key, value, _ in HeadReader(view.data).scan(prefix, successor(prefix))
                if value is not None
            }
        waiting = self._waiting()
        if waiting:
            changed = {key: value for key, value in waiting.items() if key.startswith(prefix)}
            found = {  # a batch may add keys, so the order is made anew
                key: value
                for key, value in sorted({**found, **changed}.items())
                if value is not None
            }
        yield from found.items()

    def __iter__(self) -> Iterator[str]:
        return (kv_key_text(key) for key, _ in self._items(b""))

    def __len__(self) -> int:
        return sum(1 for _ in self._items(b""))

    def scan(self, prefix: str | bytes = "") -> Iterator[tuple[str, T]]:
        """Yield keys that begin with `prefix` and their values, in order of the keys' bytes."""
        for key, value in self._items(kv_key_bytes(prefix)):
            yield kv_key_text(key), self._codec.decode(value)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Gather the writes that this thread or task makes to this store into one operation.

            with notes.batch():
                notes["from"], notes["to"] = "3", "5"

        Reads inside see them. Other nodes see all or none; an exception undoes all.
        """
        if self._waiting() is not None:
            yield  # an inner batch belongs to the outer one: "all or none"
            return
        self._source.writable()  # refused now, not after the writes were gathered
        # Of this thread or task: others write on, and their writes are not part of the batch.
        waiting: dict[bytes, bytes | None] = {}
        token = _batches.set((*_batches.get(), (self._source, waiting)))
        try:
            yield
        finally:
            _batches.reset(token)
        if waiting:
            # The heads are read in the transaction of the command, not when the batch began: what
            # others wrote to these keys meanwhile is replaced, as by single writes.
            operations = tuple(_operation(key, value) for key, value in waiting.items())
            self._source.writable().execute("Batch", BatchRequest(operations))

    def _waiting(self) -> dict[bytes, bytes | None] | None:
        for source, waiting in _batches.get():
            if source == self._source:  # one batch for each store, whatever handle writes
                return waiting
        return None

    def history(self, key: str | bytes) -> list[Version[T]]:
        """Return what was written to a key, the newest first; empty for a key never written.

        Cost: the operations on this key, and no others.
        """
        wanted = kv_key_bytes(key)
        with self._source.store().read() as view:
            found = sorted(_writes(view, wanted), key=_rank, reverse=True)
            return [self._version(wanted, op) for op in found]

    def conflicts(self, key: str | bytes) -> list[Version[T]]:
        """Return the concurrent writes to a key, the one that counts first; empty if there is one.

        The next write to the key resolves the conflict.
        """
        wanted = kv_key_bytes(key)
        with self._source.store().read() as view:
            # "heads[0] is the winner", the others in descending rank.
            heads = HeadReader(view.data).heads(wanted)
            if len(heads) < 2:  # one head is no conflict
                return []
            return [self._version(wanted, _app_op(view, head)) for head in heads]

    def conflicted(self) -> list[str]:
        """Return the keys with concurrent writes that nothing has resolved, deleted ones too."""
        with self._source.store().read() as view:
            # A tombstone may be in conflict, too.
            return [kv_key_text(key) for key, _, open in HeadReader(view.data).scan() if open]

    def _version(self, key: bytes, op: Op) -> Version[T]:
        value = written_by(op.payload).get(key)  # the last operation of this payload on the key
        shown = None if value is None else self._codec.decode(value)
        return Version(shown, op.author, op.stamp, op.hash)

    def watch(
        self,
        prefix: str | bytes = "",
        pattern: str = "",
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Stream[KeyUpdate[T]]:
        """Yield each key that is written to from now on, on any node, and what it holds then.

        prefix, pattern: only keys that begin so, and in which the regular expression is found.
        Several writes that are read at once give the newest value for each.
        Raises: InvalidParams: the pattern cannot be used.
        """
        wanted = KvMachine().event_filter("watch", WatchParams(kv_key_bytes(prefix), pattern))
        return _Watch(self._source, self._codec, wanted, wait=wait, timeout=timeout)

    def __repr__(self) -> str:
        return f"<KVStore {self.name!r}: {counted(len(self), 'key')}>"


def _operation(key: bytes, value: bytes | None) -> Operation:
    if value is None:
        return Operation(delete=DeleteOp(key))
    return Operation(put=PutOp(key, value))


def _app_op(view: StoreView, hash: bytes) -> Op:
    op = view.dag.intention(hash)
    return op.with_payload(app_payload(op.payload))


def _writes(view: StoreView, key: bytes) -> Iterator[Op]:
    """Yield every operation that wrote to a key.

    Each write names the heads that it replaced, so the present heads lead back to all of them. A
    dependency that did not write to this key belongs to another key of a batch.
    """
    pending = HeadReader(view.data).heads(key)
    seen = set(pending)
    while pending:
        op = _app_op(view, pending.pop())
        if key not in written_by(op.payload):
            continue
        yield op
        for dep in op.deps:
            if dep not in seen:
                seen.add(dep)
                pending.append(dep)


def heads_at(view: StoreView, key: bytes, seq: int) -> list[Op]:
    """Return the heads of a key as they were after the record `seq`, the winner first.

    seq: a record that the state has; later ones may have been applied since.
    Cost: the writes to the key since then, each once.
    """
    # Every write is a head or named by a later write, so the way back from the present heads meets
    # those of `seq`.
    found, later = _writes_back_to(view, key, HeadReader(view.data).heads(key), seq)
    if len(found) > 1 and later:
        # A later write may also name writes that had been replaced at `seq`: these are reached from
        # the other ones found, and are taken out.
        oldest = min(place for place, _ in found.values())
        for _, op in list(found.values()):
            until, between = _writes_back_to(view, key, op.deps, oldest)
            for hash in (*until, *between):
                found.pop(hash, None)
    return sorted((op for _, op in found.values()), key=_rank, reverse=True)


def _writes_back_to(
    view: StoreView, key: bytes, hashes: Iterable[bytes], seq: int
) -> tuple[dict[bytes, tuple[int, Op]], set[bytes]]:
    """Walk back from `hashes` along the writes to a key, down to those up to record `seq`.

    Returns: the writes at which it ended, by hash, each with the number of its record; and the
             hashes of the later writes on the way.
    """
    found: dict[bytes, tuple[int, Op]] = {}
    later: set[bytes] = set()
    pending = list(hashes)
    seen = set(pending)
    while pending:
        hash = pending.pop()
        place = view.seq_of(hash)
        # A foreign author may name ZERO, which no record has.
        op = None if place is None else _app_op(view, hash)
        if place is None or op is None or key not in written_by(op.payload):
            continue
        if place <= seq:
            found[hash] = place, op
            continue
        later.add(hash)
        new = [dep for dep in op.deps if dep not in seen]
        seen.update(new)
        pending += new
    return found, later


def _rank(op: Op) -> tuple[Hlc, bytes, int]:
    return op.stamp, op.author, op.height


class _Watch(LogStream):
    def __init__(
        self,
        source: StoreSource,
        codec: Codec[Any],
        wanted: Any,
        *,
        wait: bool,
        timeout: float | None,
    ) -> None:
        self._codec = codec
        self._wanted = wanted
        # From the end on: "from now on".
        super().__init__(source, "end", wait=wait, timeout=timeout)

    def _items(self, view: StoreView, batch: list[WitnessEntry]) -> Iterable[KeyUpdate[Any]]:
        # Each key once, in the order of its last write.
        written: dict[bytes, None] = {}
        for entry in batch:
            for key in written_by(app_payload(entry.signed.intention.payload)):
                written.pop(key, None)  # its newest write decides its place in the order
                written[key] = None
        table = HeadReader(view.data)
        for key in written:
            value = table.get(key)
            event = WatchEvent(key, value, True if value is None else None)
            if self._wanted(event) is not None:
                shown = None if value is None else self._codec.decode(value)
                yield KeyUpdate(kv_key_text(key), shown)
