"""Database: one store of an owner, over one cursor, its batches, and the exchange of its replicas.

A batch works on a snapshot and records its steps. If the database is unchanged at commit, the
batch's version of the snapshot replaces the store. Otherwise the steps run again on the current
store, inside one update, so that concurrent writes and increments are kept.

Source: CAD037; docs/kv.md "Replicas", "Layout", "Batches", "Watching", "Forks and replicas",
    "Merge", "Counters"; CAD024 "Root layout"; docs/design/forks.md "Keys".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

from datalattice.apps.binding import Binding, Tabular, bound, handle_text, owner_cell
from datalattice.apps.kv.keys import checked_text
from datalattice.apps.kv.lattice import KV_SECTION, KVStoreLattice
from datalattice.apps.kv.operations import Operations, R, TableEdit
from datalattice.apps.kv.showing import short_value
from datalattice.apps.kv.typed import TypedOperations
from datalattice.apps.kv.watching import KeyChange, Watch, as_store, key_changes
from datalattice.apps.valuetypes import T, value_type
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    counted,
    html_table,
    html_words,
    same,
    to_cell,
)
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor, RootLattice, collector_paused
from datalattice.errors import NoSigningKey, TypeMismatch, UsageError
from datalattice.lattice import (
    VALUE_KEY,
    EntryDropped,
    MapLattice,
    MergeContext,
    MergeNotice,
    OwnerLattice,
    Verifier,
    discard,
    is_public_key,
)
from datalattice.limits import INDEX_KEY_BYTES

DEFAULT_NAME: Final = "db"
DEFAULT_REPLICA: Final = "default"

_STORE: Final = KVStoreLattice()
REPLICAS: Final = OwnerLattice(MapLattice(_STORE))


class Batch(TypedOperations[T]):
    """Writes to a database that are committed together; from `Database.batch`, for one thread."""

    __slots__ = ("_base", "_database", "_done", "_staged", "_steps")

    def __init__(self, database: Operations[T]) -> None:
        self._clock = database._clock
        self._type = database._type
        self._replica = database.replica
        self._database: Final = database
        self._base: Final = database.store()
        self._staged = self._base
        self._steps: list[TableEdit[Any]] = []
        self._done = False

    def store(self) -> Index:
        """Return the store as this batch sees it: the snapshot at its start plus its own writes."""
        return self._staged

    def _apply(self, step: TableEdit[R]) -> R:
        if self._done:
            raise UsageError("the batch is over: begin another one")
        # Checked now, as if it were committed: an error reaches the caller at once.
        self._staged, result = step(self._staged)
        self._steps.append(step)
        return result

    def commit(self) -> None:
        """Make the writes visible; `with` calls it when the block ends without an error.

        Raises: UsageError: the batch is over. WrongType: another writer has changed a key's type;
                nothing of the batch is written.
        """
        if self._done:
            raise UsageError("the batch is over: begin another one")
        # Before the update: a batch whose commit has failed cannot be committed once more.
        self._done = True
        if self._staged is not self._base:
            # "An error inside the block, or `WrongType` when it is committed, writes nothing"
            # (docs/kv.md "Batches").
            self._database._apply(self._settle)

    def _settle(self, store: Index) -> tuple[Index, None]:
        # Unchanged since: the snapshot's version is the result.
        if store is self._base or same(store, self._base):
            return self._staged, None
        # "The operations run again on the new state" (docs/kv.md "Batches").
        for step in self._steps:
            store, _result = step(store)
        return store, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._done:  # an error discards the batch
            self.commit()
        self._done = True

    def __repr__(self) -> str:
        return f"Batch(writes={len(self._steps)})"


class Database(TypedOperations[T], Tabular):
    """A database: keys with values, hashes, sets, sorted sets, lists and counters.

    It is a mutable mapping of plain values, with methods for the other types. Every write is one
    atomic update of the cursor, so threads may share a database object. `of` is the Python type of
    the plain values; without it they are cells.
    """

    __slots__ = ("_binding", "_cursor", "_held", "_name", "_owner")

    _held: tuple[object, Index] | None
    """The cursor's version at the last read, and the store read then."""

    def __init__(
        self,
        cursor: LatticeCursor,
        clock: Clock | None = None,
        replica: str | None = None,
        *,
        name: str = DEFAULT_NAME,
        owner: object = None,
        of: type[T] | None = None,
        binding: Binding | None = None,
    ) -> None:
        key_pair = cursor.context.key_pair
        self._type = value_type(of)
        self._binding = binding
        self._cursor = cursor
        self._held = None
        self._clock = clock or SystemClock()
        self._name = checked_database(name)
        self._replica = checked_replica(replica, cursor.context)
        given = owner_cell(owner)
        self._owner: Value = key_pair.public_key if given is None and key_pair else given

    @classmethod
    def create(
        cls,
        name: str = DEFAULT_NAME,
        key_pair: KeyPair | None = None,
        owner: object = None,
        replica: str | None = None,
        clock: Clock | None = None,
        *,
        of: type[T] | None = None,
        verifier: Verifier | None = None,
        report: Callable[[MergeNotice], None] = discard,
    ) -> Self:
        """Return a new empty database over its own cursor.

        With a key pair it can export signed replicas. `owner` defaults to the public key;
        `verifier` decides who may sign for owners other than public keys; `report` receives what
        merges drop.
        """
        context = MergeContext(key_pair=key_pair, verifier=verifier, report=report)
        cursor = RootLattice(_STORE, EMPTY_INDEX, context)
        return cls(cursor, clock, replica, name=name, owner=owner, of=of)

    @classmethod
    def at(
        cls,
        root: LatticeCursor,
        owner: object,
        name: str = DEFAULT_NAME,
        clock: Clock | None = None,
        replica: str | None = None,
        *,
        of: type[T] | None = None,
        binding: Binding | None = None,
    ) -> Self:
        """Return the database `name` of an `Owner`, public key or owner cell, below a root.

        Writing needs a signing key of the owner in the cursor's context; reading verifies the
        owner's signature and writes nothing.
        """
        identity = owner_cell(owner)
        cursor = root.path(KV_SECTION, identity, VALUE_KEY, checked_database(name))
        return cls(cursor, clock, replica, name=name, owner=identity, of=of, binding=binding)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor below this database."""
        return self._cursor

    @property
    def name(self) -> str:
        """The name of the database, unique for its owner."""
        return self._name

    @property
    def owner(self) -> Value:
        """The owner of the database; None if none was given."""
        return self._owner

    def store(self) -> Index:
        """Return an immutable snapshot of the store.

        Raises: BadSignature: the store is not signed by the owner.
        """
        version, held = self._cursor.version(), self._held
        # Nothing below the root was written since, so the store is not read and its signature not
        # verified again.
        if held is not None and held[0] is version:
            return held[1]
        store = as_store(self._cursor.get())
        # Kept only if no write came meanwhile: otherwise the store may be newer than the version.
        if self._cursor.version() is version:
            self._held = (version, store)
        return store

    def _apply(self, step: TableEdit[R]) -> R:
        results: list[R] = []

        def update(value: Value) -> Value:
            store = as_store(value)
            made, result = step(store)
            results.append(result)
            # The same object for a step that changes nothing, so that nothing is signed or sent.
            return value if made is store else made

        with collector_paused:  # many short-lived cells: the collector would find nothing
            self._cursor.update(update)
        return results[-1]  # the last run counts: earlier ones lost a race

    # --- batches and watching ---

    def batch(self) -> Batch[T]:
        """Return a batch: its writes become visible together, in one update, when `with` ends.

            with db.batch() as batch:
                batch["a"] = 1
                batch.incr("writes")

        The batch reads its own writes. An error inside `with` discards them.
        """
        return Batch(self)

    def watch(
        self, prefix: str = "", *, wait: bool = True, timeout: float | None = None
    ) -> Watch[T]:
        """Return the stream of changes, from now on, of live keys that begin with `prefix`.

        Use it in `with` or `async with`, or close it. `wait` and `timeout` are those of `Stream`.
        """
        text = checked_text(prefix, "a prefix")
        return Watch(self._cursor, text, self._clock, self._type, wait=wait, timeout=timeout)

    def changes_since(self, before: Value, prefix: str = "") -> Iterator[KeyChange[T]]:
        """Yield the changes, since an earlier state, of live keys that begin with `prefix`.

        before: an earlier value of this database's cursor; None for an empty database.
        Raises: MissingData: the store no longer has that state.
        """
        text = checked_text(prefix, "a prefix")
        now_ms = self._clock.now_ms()
        return key_changes(as_store(before), self.store(), text, now_ms, self._type)

    # --- tables ---

    def to_arrow(
        self,
        *,
        prefix: str = "",
        start: str | None = None,
        stop: str | None = None,
        columns: Sequence[str] | None = None,
        values: str = "json",
    ) -> Any:
        """Return the live keys as they are now, as a `pyarrow.RecordBatchReader`.

        Args:   prefix, start, stop: which keys, as for `scan`. columns: of owner, database, key,
                type, value, updated and expires; by default without owner and database. values:
                "json", "string", "bytes", "cell" or "variant".
        Raises: as `Queue.to_arrow`. TypeMismatch: a prefix, start or stop is not a str.
        """
        rows = bound(self._binding, "to_arrow")
        return rows.to_arrow(
            self, prefix=prefix, start=start, stop=stop, columns=columns, values=values
        )

    def load(self, table: object, *, key: str, value: str | None = None) -> int:
        """Set the rows of an Arrow table, data frame or reader; return their number.

        key: the column of keys, which are texts. value: the column of values; None: each value is
        a Map of all columns. A handle with a type reads each value as if it were stored. The last
        row of a key wins. Each edit has up to 100,000 rows.
        Raises: UsageError: `table` is not a table, or a column is missing. TypeMismatch: a key is
                not a str, or a value does not read as the type. Others as `set_many`.
        """
        column, count = checked_text(key, "`key`, the column of keys,"), 0
        for keys, values in bound(self._binding, "load").rows_of(table, column, value):
            # Checked before the edit of this part, so that the error names the column.
            for one in keys:
                checked_text(one, f"a key in the column {column!r}")
            self.set_many(dict(zip(keys, self._type.from_rows(values, keys), strict=True)))
            count += len(values)
        return count

    # --- forks and merges ---

    def fork(self) -> Database[T]:
        """Return a working copy with the same replica name; its `sync` merges its writes here."""
        return Database(
            self._cursor.fork(),
            self._clock,
            self._replica,
            name=self._name,
            owner=self._owner,
            of=self._type.of,  # without the binding: its writes stay in the fork until `sync`
        )

    def sync(self) -> None:
        """Merge a fork's writes into its parent; of a root cursor, write it to its store."""
        with collector_paused:
            self._cursor.push()

    def merge(self, other: Database[Any] | Index) -> None:
        """Merge another database, or a store, into this one.

        Malformed entries are skipped and reported to the cursor's context.

        Raises: TypeMismatch: `other` is neither.
        """
        store = other.store() if isinstance(other, Database) else other
        if not isinstance(store, Index):
            raise TypeMismatch(
                f"`other` is not a Database or a store (Index): {type(other).__name__}"
            )
        with collector_paused:
            self._cursor.merge(store)

    def signed_state(self) -> Signed:
        """Return a signed Map of the database's name to its store.

        Raises: NoSigningKey: the database has no key pair.
        """
        context = self._cursor.context
        key_pair = context.signer(self._owner)
        if key_pair is None and not is_public_key(self._owner):
            # The verifier of the merging node decides whether this key may sign for the owner.
            key_pair = context.key_pair
        if key_pair is None:
            raise NoSigningKey(
                "the database has no key pair to sign its state: give one to Database.create"
            )
        return Signed.sign(key_pair, Map.of([(self._name, self.store())]))

    def export_replica(self) -> Map:
        """Return this database for `merge_replicas`: a Map of its owner to its signed state.

        Raises: NoSigningKey: the database has no key pair.
        """
        return Map.of([(self._owner, self.signed_state())])

    def merge_replicas(self, replicas: Value, accept: Callable[[Value], bool] | None = None) -> int:
        """Merge the replicas of other owners into this database; return how many were merged.

        Replicas without a valid signature of their owner are skipped and reported. Only owners for
        which `accept` returns True are merged; by default all but the database's own owner.

        Shapes: replicas: a Map of owner to signed state, as from `export_replica`, or None.
        Raises: NoSigningKey: the database has no key pair. TypeMismatch: `replicas` is not a Map.
        """
        context = self._cursor.context
        if context.key_pair is None:
            raise NoSigningKey(
                "the database has no key pair to merge replicas: give one to Database.create"
            )
        given = to_cell(replicas)
        if given is None:
            return 0
        if not isinstance(given, Map):
            raise TypeMismatch(f"`replicas` is not a Map of owners: {type(given).__name__}")
        # Merging into an empty value verifies every signature and drops what fails.
        sound = REPLICAS.merge(EMPTY_MAP, given, context)
        assert isinstance(sound, Map)
        stores: list[Index] = []
        for owner, cell in sound.entries():
            # "except this database's owner key"
            if owner == self._owner or (accept is not None and not accept(owner)):
                continue
            store = self._named_store(owner, cell, context)
            if store is not None:
                stores.append(store)
        if stores:
            with collector_paused:
                # One update, one signature.
                self._cursor.update(lambda value: joined(value, stores, context))
        return len(stores)

    def _named_store(self, owner: Value, cell: Value, context: MergeContext) -> Index | None:
        """Return the store with this database's name in an owner's signed state."""
        assert isinstance(cell, Signed)
        databases = cell.value
        store = databases.get(self._name) if isinstance(databases, Map) else None
        if store is None or isinstance(store, Index):  # "absent: skip"
            return store
        context.report(EntryDropped((*context.path, owner, Keyword("value"), self._name)))
        return None

    def __repr__(self) -> str:
        """Return the name, the owner and the number of keys; never raises."""
        return handle_text("Database", repr(self._name), self._owner, self._binding, self._counted)

    def _counted(self) -> str:
        store = self.store()
        # Above the limit deleted and expired keys count too: reading each entry would load much.
        few = len(store) <= COUNTED_KEYS_MAX
        count = len(self) if few else len(store)
        return f"{'' if few else 'up to '}{counted(count, 'key')}"

    def _repr_html_(self) -> str:
        """Return the notebook's table of the first keys."""
        entries = (
            (key, html_words(entry.type_name), short_value(entry)) for key, entry in self.scan()
        )
        return html_table(f"Database {self._name!r}", ("key", "type", "value"), entries)


COUNTED_KEYS_MAX: Final = 16
"""Entries up to which `repr` counts the live keys one by one."""


def joined(value: Value, stores: list[Index], context: MergeContext) -> Value:
    """Return the merge of the store `value` with other stores."""
    for store in stores:
        value = _STORE.merge(value, store, context)
    return value


def checked_database(name: object) -> str:
    """Return `name` if it is valid for a database.

    Raises: TypeMismatch: it is not a str. UsageError: it is empty.
    """
    text = checked_text(name, "the name of a database")
    if not text:
        raise UsageError("the database's name is empty; give a str of at least 1 character")
    return text


def replica_name(context: MergeContext) -> str:
    """Return the counter column of writes made with a context: the identity in hex.

    It is the identity, not the owner's key: two devices of one owner need separate columns, because
    concurrent counts in one column lose one of them. A copied folder has the same identity, so its
    copy id comes first: an Index compares only the first 32 bytes of a key.
    """
    identity = context.key_pair
    if identity is None:
        return DEFAULT_REPLICA
    name = identity.public_key.hex()
    # "A folder that was copied, restored or moved to another disk counts under a name of its own,
    # whatever its identity" (docs/kv.md "Counters").
    return f"{context.copy_id}-{name}" if context.copy_id else name


def checked_replica(replica: object, context: MergeContext) -> str:
    """Return the name of the counter column: `replica`, or by default the context's identity.

    Raises: UsageError: it is empty, or longer than the key bytes that an Index compares.
    """
    if replica is None:
        return replica_name(context)
    text = checked_text(replica, "the replica")
    is_key = context.key_pair is not None and text == replica_name(context)
    # The identity in hex may be longer than an Index key.
    if not text or (len(text.encode()) > INDEX_KEY_BYTES and not is_key):
        raise UsageError(
            f"`replica` is not 1 to {INDEX_KEY_BYTES} bytes of UTF-8 nor this node's identity: "
            f"{text!r}"
        )
    return text
