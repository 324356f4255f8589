"""Base: the interface of every store of cells, and loading through a cache, which all share.

Length: everything that a store of any kind can do, in one object.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Self, overload

from mypy_extensions import mypyc_attr

from datalattice.cells import (
    Cell,
    CellRange,
    CellSink,
    EncodedCell,
    FreshCells,
    Index,
    Keyword,
    Loader,
    OpenCells,
    Value,
    branch_hashes,
    close_cells,
    decode,
    decode_trusted,
    encode,
    novelty,
    value_hash,
    whole_cells,
)
from datalattice.clock import BoundedClock, Clock, SystemClock
from datalattice.crypto import sha3_256_many
from datalattice.errors import BadFormat, Corruption, MissingData, NotContained
from datalattice.forking import freed_in_child
from datalattice.store.cache import CACHE_BYTES_MAX, CellCache
from datalattice.store.kept.history import History
from datalattice.store.kept.pins import Lease, Pins
from datalattice.store.notes import Notes
from datalattice.store.records import GRACE_MS, Collected, CollectProgress, Damage, check_hash
from datalattice.store.refs import moment_at, resolve_ref


class Any_:  # noqa: N801 - the type of ANY and nothing else
    """The type of `ANY`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = Any_()
"""For `expected` in a commit: replace the present root, whatever it is."""

Expected = bytes | None
"""The hash that the present root must have for a commit; None: there must be no root yet."""

Contains = Callable[[Value, Value], bool]
"""(new root, present root) -> whether the new one contains everything of the present one."""

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of encodings that `children_first` keeps until the cells below them are done."""

TOGETHER_MAX: Final = 64
"""Most cells that `children_first` asks for at a time."""

PRIVATE_KEY: Final = Keyword("local")
"""The root's entry for data that its node keeps to itself. It is not announced by default."""


class Commit:
    """The result of a commit, which is durable. A class compiles better than a data class."""

    __slots__ = ("novelty", "root_hash", "sequence")

    def __init__(self, root_hash: bytes, novelty: list[EncodedCell], sequence: int) -> None:
        self.root_hash: Final = root_hash
        """Hash of the root now."""
        self.novelty: Final = novelty
        """(hash, encoding, value) of those of its cells that were not loaded from this store."""
        self.sequence: Final = sequence
        """Number of the pack with the root; grows with every commit that wrote something."""


def check_cells(cells: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return cells from another source, encodings by hash.

    Raises: BadFormat: an encoding is not canonical, or has another hash.
    """
    found = list(cells)
    # "Each is compared with its hash" (docs/store.md "Heal"): a source may send anything.
    digests = sha3_256_many([encoding for _, encoding in found])
    for (hash, encoding), digest in zip(found, digests, strict=True):
        if digest != hash:
            raise BadFormat(f"a cell has the hash 0x{digest.hex()}, not 0x{hash.hex()}")
        decode(encoding)
    return dict(found)


def with_top(parts: list[EncodedCell], value: Value, root: bytes) -> list[EncodedCell]:
    """Return the novelty of `value` with its top cell, which `novelty` omits when it is short."""
    # `novelty` lists children first, so the top cell is the last one when it is a branch.
    if parts and parts[-1][0] == root:
        return parts
    return [*parts, (root, encode(value), value)]


def public_part(root: Value) -> Value:
    """Return a root without its `PRIVATE_KEY`; the same object when it has none."""
    # "A committed root reached the cell, other than through `:local`: only such cells are served
    # to others" (docs/store.md "Calls").
    if isinstance(root, Index) and PRIVATE_KEY in root:
        return root.remove(PRIVATE_KEY)
    return root


def announced_parts(announced: Iterable[Value], home: Loader) -> list[EncodedCell]:
    """Return the novelty of all values that a commit announces, with their top cells."""
    return [
        part
        for value in announced
        for part in with_top(novelty(value, home), value, value_hash(value))
    ]


def announced_tops(root: Value, home: Loader) -> list[bytes]:
    """Return the cells of `home` that reach everything a root announces by default."""
    # The cells above `:local` exist only in the private root, so peers start below them.
    public = public_part(root)
    if public is root:
        return [value_hash(root)]
    made = {hash: encoding for hash, encoding, _ in announced_parts([public], home)}
    # The cells in `made` are not stored, so their stored children are returned instead.
    below = [hash for encoding in made.values() for hash in branch_hashes(encoding)]
    return [hash for hash in dict.fromkeys(below) if hash not in made]


def reachable(
    parts: Iterable[EncodedCell], inside: Callable[[list[bytes]], list[bytes | None]]
) -> list[bytes]:
    """Return the hashes below `parts` that `inside` has encodings for, each once.

    `inside` takes many hashes at a time. It returns None for a cell that must not be followed; the
    cells below that one are left out too, unless others lead to them.
    """
    found: dict[bytes, None] = {}
    # An explicit stack: values may be deeper than Python's recursion limit.
    stack = [encoding for _, encoding, _ in parts]
    while stack:
        refs: dict[bytes, None] = {}
        while stack and len(refs) < TOGETHER_MAX:
            refs.update(dict.fromkeys(branch_hashes(stack.pop())))
        # Each once: a value may share a cell any number of times.
        wanted = [hash for hash in refs if hash not in found]
        for hash, encoding in zip(wanted, inside(wanted), strict=True):
            if encoding is not None:
                found[hash] = None
                stack.append(encoding)
    return list(found)


def children_first(
    tops: Iterable[bytes],
    encodings_of: Callable[[list[bytes]], list[bytes | None]],
    is_done: Callable[[bytes], bool],
    below: Callable[[bytes, bytes], list[bytes]] = lambda _, encoding: branch_hashes(encoding),
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (hash, encoding) of cells and all cells below them, each after the cells it refers to.

    encodings_of: returns the encodings of cells in the order of their hashes, None for a missing
    one; of several hashes it may do the first ones only.
    is_done: called when a cell is reached; True leaves the cell out, with all below it. To get each
    cell once, the caller returns True for the cells it has received.
    below:   returns the references to follow from a cell, given its hash and encoding.
    Raises: MissingData: `encodings_of` returns None for a cell. Corruption: `encodings_of` raises
            it for a cell that is needed.
    Cost:   memory by the depth of the values, not by their size.
    """
    # An explicit stack: values may be deeper than Python's recursion limit.
    stack = [(top, False) for top in reversed(list(tops))]
    held: dict[bytes, bytes] = {}
    held_bytes = 0
    run = 0  # cells in a row that were not done
    while stack:
        hash, is_ready = stack.pop()
        if not is_ready and is_done(hash):
            held_bytes -= len(held.pop(hash, b""))
            run = 0
            continue
        encoding = held.pop(hash, None)
        if encoding is not None:
            held_bytes -= len(encoding)
        else:
            # A source hashes several cells faster together. After a cell that was done only a few
            # are requested, since the following ones are probably done too.
            run += 1
            wanted = [hash, *_following(stack, held, min(run, TOGETHER_MAX) - 1)]
            encoding, *others = _fetched(encodings_of, wanted)
            for other, cell in zip(wanted[1:], others, strict=False):
                if cell is not None and held_bytes + len(cell) <= HELD_BYTES_MAX:
                    held[other] = cell
                    held_bytes += len(cell)
        if encoding is None:
            raise MissingData([hash])
        refs = [] if is_ready else below(hash, encoding)
        if not refs:
            yield hash, encoding
            continue
        # Beyond this bound an encoding is read a second time once the cells below it are done.
        if held_bytes + len(encoding) <= HELD_BYTES_MAX:
            held[hash] = encoding
            held_bytes += len(encoding)
        stack.append((hash, True))
        # Reversed, so that the first child comes first from the stack.
        stack.extend((ref, False) for ref in reversed(refs))


def _following(
    stack: list[tuple[bytes, bool]], held: dict[bytes, bytes], count: int
) -> list[bytes]:
    """Return up to `count` cells that a stack returns next and that are not read yet."""
    found: dict[bytes, None] = {}
    at = len(stack)
    while at > 0 and len(found) < count and not stack[at - 1][1]:
        at -= 1
        if stack[at][0] not in held:
            found[stack[at][0]] = None
    return list(found)


def _fetched(
    encodings_of: Callable[[list[bytes]], list[bytes | None]], wanted: list[bytes]
) -> list[bytes | None]:
    """Return the encodings of cells, or of the first alone where another one is damaged."""
    try:
        return encodings_of(wanted)
    except Corruption:
        if len(wanted) == 1:
            raise
        return encodings_of(wanted[:1])  # the others may not be needed


@mypyc_attr(allow_interpreted_subclasses=True)
class Store(CellSink):
    """Cells by hash, and one root among them that moves by compare-and-set. It is a `Loader`.

    A cell is *announced* when it is reachable from a value that a commit announced, by default the
    root without its `PRIVATE_KEY`: only such cells may be served to others. All other cells are
    *staged*: cells stored by `put`, and cells that only the private part of a root reaches. An
    announced cell stays announced.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES_MAX, clock: Clock | None = None) -> None:
        self._cache = CellCache(cache_bytes)
        self._open_cells = OpenCells(self)
        self._adopting = freed_in_child(threading.Lock())
        # Bounded: a clock that jumps far into the future would end every pin and lease.
        bounded = clock if isinstance(clock, BoundedClock) else BoundedClock(clock or SystemClock())
        self.clock: Clock = bounded
        """The time of history entries, and of the ends of pins and leases."""
        self.history = History(now_ms=self.clock.now_ms)
        """The roots of this store and their times."""
        self.pins = Pins(now_ms=self.clock.now_ms, check_complete=self._check_complete)
        """Roots that stay. Any process may change them, also with a read-only store."""
        self.on_damage: Callable[[Damage], None] | None = None
        """Called on the reading thread when a cell turns out to be damaged."""
        self.root_contains: Contains | None = None
        """Compares a new root with the present one in a commit, by the lattice of the roots.

        None, the default: any value may replace any other.
        """
        self.notes = Notes()
        """Local records for the operator."""

    @property
    def path(self) -> str | None:
        """The store's folder or file; None: it is in memory."""
        return None

    @property
    def copy_id(self) -> str:
        """Distinguishes a copied folder from its original; empty if the folder was not copied."""
        return ""

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Damage that was found so far; the cells there count as missing."""
        return ()

    # --- implemented by each kind of store ---

    @abstractmethod
    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell, or None; `verify` compares it with the hash.

        Raises: Corruption: the stored bytes are damaged. From then on the cell counts as missing,
                so that it can be fetched again.
        """

    @abstractmethod
    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        """Return the encodings of cells in the order of `hashes`, None for the absent ones.

        verify, Raises: as `get_encoding`.
        """

    def get_cells(
        self,
        hashes: Sequence[bytes],
        *,
        verify: bool = True,
        below: int = 0,
    ) -> list[CellRange | None]:
        """Return cells as `get_encodings` does, as ranges of what was read with them.

        below: about how many bytes the cells below these have, if they are requested next. A store
        may read them at once; it keeps up to about twice as many bytes until the next request.
        """
        return whole_cells(self.get_encodings(hashes, verify=verify))

    @abstractmethod
    def has(self, hash: bytes) -> bool:
        """Return whether the cell is here."""

    def location_of(self, hash: bytes) -> int:
        """Return a number that identifies a durable cell of this store; negative: it has none."""
        return -1

    @abstractmethod
    def announced(self, hash: bytes) -> bool:
        """Return whether the cell may be served to others: a commit announced it."""

    @abstractmethod
    def root_hash(self) -> bytes | None:
        """Return the hash of the last root that is durable, None when none was ever committed."""

    @abstractmethod
    def _commit(
        self, value: Value, expected: Expected | Any_, announced: Sequence[Value] | None
    ) -> Commit | None:
        """Do the work of `commit`. `announced` None: all of `value` is announced."""

    @abstractmethod
    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Stage cells given as (hash, encoding) without announcing them; return how many were new.

        The caller guarantees that the encodings are canonical and have these hashes, and that the
        cells below them are here or come before them. The next commit or `sync` makes them durable.
        """

    def put_tree(self, top: bytes, cells: list[tuple[bytes, bytes]]) -> int:
        """Stage cells like `put_encodings`; they are the cell `top` and all cells below it.

        A commit that follows and reaches `top` need not follow them.
        """
        return self.put_encodings(cells)

    @abstractmethod
    def sync(self) -> None:
        """Return when everything put and committed so far is durable."""

    @abstractmethod
    def heal(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Store cells that are damaged or missing here, from any source; return how many.

        They are durable on return, and announced unless they were staged.
        Raises: BadFormat: an encoding is not canonical or has another hash; nothing is kept.
        """

    @abstractmethod
    def size_bytes(self) -> int:
        """Return how many bytes the store takes, without its index."""

    def free_bytes(self, *, ask: bool = False) -> int | None:
        """Return about how many bytes the disk can still take; None: there is no disk.

        ask: ask the disk now, instead of using the last answer.
        """
        return None

    @abstractmethod
    def collect(
        self,
        *,
        grace_ms: int = GRACE_MS,
        dry_run: bool = False,
        progress: CollectProgress | None = None,
    ) -> Collected:
        """Free the space of cells that nothing reaches; others read and write meanwhile.

        A cell stays if the present root, a pin, a lease or the history reaches it, or if it is
        younger than `grace_ms`. With `dry_run` nothing is changed.
        Raises: UsageError: a collection is running already, the grace is negative, or this kind of
            store is collected in another way. StoreFailed: cells are damaged or missing; heal the
            store first. StoreFull: there is no space for copies of live cells. ReadOnly: a reader,
            unless `dry_run`.
        Cost:   reads every cell that stays; memory is a bit for each 32 bytes of the store.
        """

    @property
    def has_failed(self) -> bool:
        """Whether a write failed, so that every write is refused until `resume`."""
        return False

    def resume(self) -> None:
        """Allow writes again after a failed one, from the durable state.

        Staged cells stay staged; a commit that failed must be repeated.
        Raises: StoreFull, StoreFailed: the disk still refuses. Corruption: durable data is gone.
        """

    @abstractmethod
    def _check_open(self) -> None:
        """Raise StoreClosed if the store is closed."""

    @abstractmethod
    def close(self) -> None:
        """Close the store. Closing twice is allowed; any other later use raises StoreClosed."""

    # --- shared ---

    @overload
    def commit(
        self,
        value: Value,
        expected: Any_ = ANY,
        *,
        contains: bool = True,
        announced: Sequence[Value] | None = None,
    ) -> Commit: ...

    @overload
    def commit(
        self,
        value: Value,
        expected: Expected,
        *,
        contains: bool = True,
        announced: Sequence[Value] | None = None,
    ) -> Commit | None: ...

    def commit(
        self,
        value: Value,
        expected: Expected | Any_ = ANY,
        *,
        contains: bool = True,
        announced: Sequence[Value] | None = None,
    ) -> Commit | None:
        """Make `value` the root: store its novelty and move the root, all or nothing, durably.

        Afterwards the cells of `value` load their children from this store.
        expected:  if the root has another hash, nothing happens, and the result is None.
        contains:  False allows a value that lacks something of the present root; it matters only in
                   a store with `root_contains`.
        announced: the values that may be served to others, made of parts of `value`; by default
        `value` without its `PRIVATE_KEY`. The rest is stored and stays staged.
        Raises: NotContained: the present root has something that `value` lacks; nothing was
                written. MissingData: a cell of `value` cannot be loaded. ReadOnly.
                StoreFull, StoreFailed: it could not be written; the store must be opened again.
        Cost:   one write and one sync, shared with commits that wait at the same time; with
                `root_contains` also a merge of `value` with the present root.
        """
        # The check needs no lock: if the root moves meanwhile, the compare-and-set fails and the
        # loop checks again.
        check = self.root_contains
        announced = (public_part(value),) if announced is None else announced
        # None means that all stored cells are announced, so they need not be walked twice.
        if len(announced) == 1 and announced[0] is value:
            announced = None
        if not contains or check is None:
            return self._commit(value, expected, announced)
        present = self.root_hash()
        while True:
            if isinstance(expected, Any_) or expected == present:
                self._check_contained(value, present, check)
                done = self._commit(value, present, announced)
                if done is not None:
                    return done
            # Another thread's commit came in between: compare with its root, once that is durable.
            self.sync()
            present = self.root_hash()
            if not isinstance(expected, Any_) and expected != present:
                return None

    def put(self, *values: Value) -> int:
        """Stage the cells of `values` without announcing them; return how many were new.

        They are durable with the next commit or `sync`.
        """
        count = 0
        for value in values:
            top = value_hash(value)
            # Before the look-ups: from here on a collection keeps the value and all below it.
            self._touch(top)
            if isinstance(value, Cell) and isinstance(value._loader, FreshCells):
                count += self._put_fresh(value, value._loader)
                value._close(self)
                continue
            parts = novelty(value, self)
            tops = with_top(parts, value, top)
            count += self._put_cells(value, [(hash, encoding) for hash, encoding, _ in tops])
            close_cells(parts, self)
        return count

    def _put_cells(self, value: Value, cells: list[tuple[bytes, bytes]]) -> int:
        """Stage the cells of a value that this store does not load; return how many were new."""
        return self.put_encodings(cells)

    def _put_fresh(self, value: Value, cells: FreshCells) -> int:
        """Stage the cells of a value that was made closed; return how many were new."""
        return self.put_encodings([*cells.chunks.cells(), *cells.nodes])

    def _adopt(self, parts: list[EncodedCell]) -> None:
        """Let the cells of a commit, which are stored, load their children through this store."""
        with self._adopting:
            self._open_cells.follow(parts)

    def _touch(self, hash: bytes) -> None:
        """Note that a value is put, so that a collection keeps it even if its cells are old."""

    def _check_contained(self, value: Value, present: bytes | None, check: Contains) -> None:
        # The first root, and the same root again, contain the present one.
        if present is None or present == value_hash(value):
            return
        if not check(value, self.load(present)):
            raise NotContained(
                "the new root lacks something that the present root of the store has; start from "
                "store.root() and merge, or replace it with contains=False"
            )

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash.

        Raises: MissingData: it is not here. Corruption: its bytes are damaged.
        """
        found = self._cached(hash)
        if found is not None:
            return found
        encoding = self.get_encoding(hash)
        if encoding is None:
            raise MissingData([check_hash(hash)])
        return self._decoded(encoding, hash)

    def load_many(self, hashes: list[bytes]) -> list[Value]:
        """Return what `load` returns for each; cells that are not in the cache are read together.

        Raises: MissingData: names all that are missing. Corruption: bytes are damaged.
        """
        values = [self._cached(hash) for hash in hashes]
        unread = [place for place, value in enumerate(values) if value is None]
        if not unread:
            return values
        missing: list[bytes] = []
        found = self.get_encodings([hashes[place] for place in unread])
        for place, encoding in zip(unread, found, strict=True):
            if encoding is None:
                missing.append(hashes[place])
            else:
                values[place] = self._decoded(encoding, hashes[place])
        if missing:
            raise MissingData(missing)
        return values

    def _cached(self, hash: bytes) -> Value:
        """Return a cell of the cache, or None."""
        found = self._cache.get(hash)
        if isinstance(found, Cell) and found._loader is not None and found._loader is not self:
            # The cell was committed to another store since and loads through that one, which may be
            # closed.
            self._cache.forget(hash)
            return None
        return found

    def _decoded(self, encoding: bytes, hash: bytes) -> Value:
        """Return the value of a cell that was read, and keep it in the cache."""
        # Trusted: the bytes were compared with the hash, and only sound cells are stored.
        value = decode_trusted(encoding, hash, self)
        self._cache.add(hash, value, len(encoding))
        return value

    def get(self, hash: bytes, default: Value = None) -> Value:
        """Return the value with this hash, or `default`."""
        return self.load(hash) if self.has(check_hash(hash)) else default

    def get_many(self, hashes: Iterable[bytes]) -> list[Value]:
        """Return the values with these hashes, in their order.

        Raises: MissingData: names all that are not here.
        """
        wanted = list(hashes)
        found = self.get_encodings(wanted)
        # All that are missing are named at once, so that one request fetches them.
        missing = [hash for hash, encoding in zip(wanted, found, strict=True) if encoding is None]
        if missing:
            raise MissingData(missing)
        return [
            decode_trusted(encoding, hash, self)
            for hash, encoding in zip(wanted, found, strict=True)
            if encoding is not None
        ]

    def has_many(self, hashes: Iterable[bytes]) -> set[bytes]:
        """Return those of `hashes` that are here."""
        return {hash for hash in hashes if self.has(hash)}

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the lengths of the encodings of those of `hashes` that are here."""
        wanted = list(hashes)
        # Not verified: only the length is used, and a later read compares the bytes with the hash.
        found = self.get_encodings(wanted, verify=False)
        return {
            hash: len(encoding)
            for hash, encoding in zip(wanted, found, strict=True)
            if encoding is not None
        }

    def missing(self, hashes: Iterable[bytes]) -> list[bytes]:
        """Return those of `hashes` that are not here, in their order."""
        return [hash for hash in hashes if not self.has(hash)]

    def root(self) -> Value:
        """Return the last root that is durable, None when none was ever committed.

        A nil root reads as None too; `root_hash` distinguishes them.
        """
        hash = self.root_hash()
        return None if hash is None else self.load(hash)

    # --- the past ---

    def resolve(self, text: str) -> bytes:
        """Return the hash of the root that `text` names.

        That is `HEAD`; `HEAD~n`, n entries back in the history; the name of a pin; `@TIME` (ISO
        8601, Unix milliseconds, or a time ago such as `@10m`); or a hash in hex, full or shortened.
        Raises: UsageError: it names no root of this store, or several.
        """
        self._check_open()
        return resolve_ref(self, text)

    def as_of(self, time_ms: int) -> Value:
        """Return the root at a time: the last one that the history has from then or before.

        Raises: UsageError: the history begins later. MissingData: a collection removed the root.
        """
        self._check_open()
        return self.load(moment_at(self, time_ms))

    def lease(self, hash: bytes, seconds: float) -> Lease:
        """Keep a root with all cells below it for `seconds`, even if it is not the present root.

        Readers may lease too. Use the result in `with`, or call `release`; a longer job calls
        `renew`. Durable on return.
        Raises: MissingData: a cell below the root is missing. UsageError: seconds out of range.
                StoreLocked: a collection is removing cells, and did not finish in time.
        Cost:   as `Pins.pin`.
        """
        self._check_open()
        return self.pins.lease(hash, seconds)

    def _check_complete(self, hash: bytes) -> None:
        """Check that a root is here with all cells below it, durably.

        Raises: MissingData: a cell is missing. StoreFull, StoreFailed: a sync fails.
        """
        seen: set[bytes] = set()
        for one, _ in children_first([hash], self.get_encodings, seen.__contains__):
            seen.add(one)

    def __contains__(self, hash: object) -> bool:
        return isinstance(hash, bytes) and self.has(hash)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
