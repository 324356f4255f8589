"""Weaver cells: fetches the lattice values that intentions name from the peers, and pins them.

A machine says which values a payload names, by hash (`Machine.references`). Each value is walked
from its top cell down. The peers are asked for cells that are not here, and when all are here the
value is pinned. An intention stays in its log, so its pin stays too.

    read      new records of each store, from the stored position on
    walk      the cells below a named hash, down to those that are not here
    ask       the peers of the lattice, again every two seconds
    pin       as `weaver-` and the hash; a value that is named twice has one pin

The position is stored with the log: all values of the records up to it are pinned. A restart reads
the later records again, and finds their pinned values.

Source: docs/weaver.md "Values of the lattice".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import references
from datalattice.clock import Clock
from datalattice.errors import (
    BadFormat,
    Corruption,
    DataLatticeError,
    MissingData,
    StoreError,
    UsageError,
)
from datalattice.limits import HASH_BYTES
from datalattice.store import Store
from datalattice.weaver import Machine, WeaverStore, app_payload, store_id_text

MISSING_CELLS: Final = "weaver-cells"
"""Health key: values that intentions name are missing or cannot be kept."""

REFERENCES_MAX: Final = 1_024
"""Most values that one intention may name; further ones are left out."""

FETCHED_MAX: Final = 10_000
"""Most values that are fetched at a time; when some are pinned, more records are read."""

CELLS_MAX: Final = 1_000_000
"""Most cells of a named value: a peer may name one of any size. Larger ones are not fetched."""

CELLS_AT_ONCE: Final = 10_000
"""Most cells walked in one look."""

ASKED_MAX: Final = 1_024
"""Most cells that peers are asked for at a time."""

_RECORDS_AT_ONCE: Final = 1_000
"""Most records of one store that are read in one look."""

RETRY_MS: Final = 2_000
"""After this time a cell that has not come is asked for again."""

REPORT_MS: Final = 60_000
"""A value that is missing for longer is a reason for the health of the node."""

NEVER_MS: Final = 1 << 62

_CONSUMER: Final = "lattice-cells"


@dataclass(slots=True)
class _NamedValue:
    """A value that is not pinned yet.

    frontier: cells to look at next; includes the missing ones.
    seen:     all cells met so far.
    again_ms: when to continue with it.
    """

    hash: bytes
    named: str
    since_ms: int
    frontier: list[bytes]
    seen: set[bytes]
    again_ms: int = 0
    trouble: str = "cells of it are missing"


@dataclass(slots=True)
class _LogProgress:
    """How far the log of a store was read. waiting: by record, the values that are not pinned."""

    seq: int
    done: int
    waiting: dict[int, set[bytes]] = field(default_factory=dict)

    @property
    def is_pinned_to(self) -> int:
        """The last record up to which all values are pinned."""
        return min(self.waiting) - 1 if self.waiting else self.seq


class NamedCells:
    """The named values of one node. `look` from one thread at a time."""

    def __init__(
        self,
        store: Store,
        fetch: Callable[[Sequence[bytes]], None],
        clock: Clock,
        on_pinned: Callable[[], None],
    ) -> None:
        """Make an object that knows no values yet.

        fetch:     asks the peers for cells by hash.
        on_pinned: called for each value that is pinned.
        """
        self._store = store
        self._on_pinned = on_pinned
        self._fetch = fetch
        self._clock = clock
        self._logs: dict[bytes, _LogProgress] = {}
        self._values: dict[bytes, _NamedValue] = {}
        self._asked: dict[bytes, int] = {}
        self._pinned: set[bytes] = set()
        self._is_begun = False
        self.trouble: str | None = None
        """Which values are missing or cannot be kept, for the health of the node."""

    def look(self, stores: Iterable[WeaverStore]) -> None:
        """Read new records of the logs, and continue with incomplete values.

        A failure is noted in `trouble`, and the next look tries again.
        """
        # Most machines name no values, so their logs are not read.
        naming = [one for one in stores if type(one.machine).references is not Machine.references]
        if not naming:
            return
        now_ms = self._clock.now_ms()
        trouble = None
        try:
            if not self._is_begun:
                self._pinned.update(pin.root_hash for pin in self._store.pins.all())
                self._is_begun = True
            for store in naming:
                trouble = self._read(store, now_ms) or trouble
            if self._values:
                self._walk(now_ms)
            for store in naming:
                self._note(store)
        except DataLatticeError as error:
            trouble = f"the values that intentions name are not kept: {error}"
        self.trouble = trouble or self._late(now_ms)

    def _late(self, now_ms: int) -> str | None:
        late = [one for one in self._values.values() if now_ms - one.since_ms >= REPORT_MS]
        if not late:
            return None
        first = late[0]
        count = f"{len(late)} values that intentions name" if len(late) > 1 else "a value"
        return f"{count}: 0x{first.hash.hex()}, {first.named}: {first.trouble}"

    # --- logs -----------------------------------------------------------------------------------

    def _read(self, store: WeaverStore, now_ms: int) -> str | None:
        """Note what new records name; return why that failed."""
        log = self._logs.get(store.id)
        position = store.consumed(_CONSUMER) if log is None else None
        with store.read() as view:
            if log is None:
                # A folder that was set back may lack the stored record: then read from the
                # beginning.
                seq = 0 if position is None else view.seq_of(position) or 0
                log = self._logs[store.id] = _LogProgress(seq, seq)
            if view.last_seq() == log.seq:
                return None
            for entry in view.entries(log.seq + 1, _RECORDS_AT_ONCE):
                if len(self._values) >= FETCHED_MAX:
                    break
                signed = entry.signed
                try:
                    hashes = _named(store.machine, signed.intention.payload)
                except Exception as error:  # noqa: BLE001 - a machine is the user's code
                    return f"{type(store.machine).__name__}.references failed: {error!r}"
                author = signed.intention.author.hex()
                named = f"named in store {store_id_text(store.id)} by {signed.hash.hex()}"
                for hash in hashes:
                    if hash not in self._pinned:
                        log.waiting.setdefault(entry.seq, set()).add(hash)
                        fresh = _NamedValue(hash, f"{named} of {author}", now_ms, [hash], {hash})
                        self._values.setdefault(hash, fresh)
                log.seq = entry.seq
        return None

    def _note(self, store: WeaverStore) -> None:
        """Store the position of a log, if that saves a restart some work."""
        log = self._logs.get(store.id)
        if log is None or store.is_closed:
            return
        had = len(log.waiting)
        log.waiting = {
            seq: hashes
            for seq, hashes in log.waiting.items()
            if not hashes.isdisjoint(self._values)
        }
        done = log.is_pinned_to
        if done > log.done and (len(log.waiting) < had or done - log.done >= _RECORDS_AT_ONCE):
            with store.read() as view:
                (entry,) = view.entries(done, 1)
            store.set_consumed(_CONSUMER, entry.signed.hash)
            log.done = done

    # --- values ---------------------------------------------------------------------------------

    def _walk(self, now_ms: int) -> None:
        """Continue with the values: walk them, pin complete ones, ask for missing cells."""
        has = self._store.has
        self._asked = {
            hash: at for hash, at in self._asked.items() if now_ms - at < RETRY_MS and not has(hash)
        }
        wanted: list[bytes] = []
        budget = CELLS_AT_ONCE
        for value in list(self._values.values()):
            if now_ms < value.again_ms:
                continue
            missing, budget = self._descend(value, budget)
            if len(value.seen) > CELLS_MAX:
                value.seen, value.frontier, value.again_ms = set(), [], NEVER_MS
                value.trouble = f"it has more than {CELLS_MAX} cells"
                continue
            if not value.frontier:
                self._pin(value, now_ms)
            room = ASKED_MAX - len(self._asked) - len(wanted)
            fresh = [hash for hash in missing if hash not in self._asked][:room]
            wanted += fresh
            if fresh:
                # Moved to the end, so that values that no peer has do not hold up others.
                self._values[value.hash] = self._values.pop(value.hash)
        if wanted:
            self._asked |= dict.fromkeys(wanted, now_ms)
            self._fetch(wanted)

    def _descend(self, value: _NamedValue, budget: int) -> tuple[list[bytes], int]:
        """Walk down from the frontier; return the missing cells, and what is left of the budget."""
        missing: list[bytes] = []
        stack = value.frontier
        while stack and budget > 0 and len(value.seen) <= CELLS_MAX:
            budget -= 1
            hash = stack.pop()
            encoding = self._encoding(hash)
            if encoding is None:
                missing.append(hash)
                continue
            for below in references(encoding):
                if below not in value.seen:
                    value.seen.add(below)
                    stack.append(below)
        value.frontier = missing + stack
        return missing, budget

    def _encoding(self, hash: bytes) -> bytes | None:
        try:
            return self._store.get_encoding(hash)
        except Corruption:
            return None  # the store reports the damage itself; a peer may have the cell

    def _pin(self, value: _NamedValue, now_ms: int) -> None:
        """Pin a complete value."""
        try:
            self._store.pins.pin(value.hash, f"weaver-{value.hash.hex()}", "weaver", value.named)
        except MissingData:
            # A collection removed a cell meanwhile: walk again from the top.
            value.frontier, value.seen = [value.hash], {value.hash}
        except (StoreError, UsageError) as error:  # the disk, or too many pins: tried again
            value.trouble, value.again_ms = str(error), now_ms + RETRY_MS
        else:
            del self._values[value.hash]
            self._pinned.add(value.hash)
            self._on_pinned()


def _named(machine: Machine, payload: bytes) -> list[bytes]:
    """Return the hashes that the machine's part of a payload names, each once."""
    try:
        data = app_payload(payload)
        found = dict.fromkeys(machine.references(data) if data else ())
    except BadFormat:
        return []  # of the system table, or of an author who signs anything
    hashes = [hash for hash in found if len(hash) == HASH_BYTES]
    return hashes[:REFERENCES_MAX]
