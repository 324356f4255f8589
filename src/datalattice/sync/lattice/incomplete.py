"""Incomplete cells: the cells of foreign values, from their arrival until they may be stored.

A cell moves on to the store as soon as everything below it is stored and it is sound, so the store
never holds a cell whose children are missing or whose parts do not fit together ("here" means "here
with all below, and well formed"). A huge value streams through: only cells above the gaps are kept
in memory, in a 16-way tree a few in a hundred. Each cell is checked once, just before it is stored,
when all below it was.

A *claim* is a value that somebody waits for: the references of its top. When the last of them is
stored the claim is complete.

An unsound cell is a *hole*: it counts as arrived, and so do the cells above it, which are
*tainted*. None of them is stored; a claim above them completes, and is handed on with its holes.

Length: one account of who waits for what; its parts change together with every cell that comes.

Source: docs/design/foreign-data.md "Structure", "Holes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from datalattice.cells import (
    FACTS_MAX,
    Holes,
    KnownFacts,
    check_cell,
    learn_cell,
    learn_cells,
    references,
)
from datalattice.errors import BadFormat, Corruption, MissingData
from datalattice.limits import EMBEDDED_BYTES_MAX

REFERENCE_BYTES: Final = 400
"""What a reference of a waiting cell takes in memory, measured: a hash, its gap, who waits for it,
and that it is wanted."""

BAD_CELLS_MAX: Final = 65_536
"""Unsound cells that are remembered by hash, so that they are not fetched again."""

HELD_LOOKS_MAX: Final = 256
"""Waiting cells that are looked through for the gaps below those that a message refers to."""

TAINTED_BYTES_MAX: Final = 4_000_000
"""Cells above holes that one claim may have; with more it is refused."""

REFERENCED_SHORT: Final = (
    "not a canonical value: a child that fits inside its parent is a reference"
)


class CompleteCells(Protocol):
    """Where complete cells live."""

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the lengths of those of `hashes` that are here, with all below them."""
        ...

    def get_encoding(self, hash: bytes) -> bytes | None:
        """Return the encoding of a cell, or None.

        Raises: Corruption: its bytes are damaged.
        """
        ...


@dataclass(slots=True)
class Completion:
    """What an addition brought.

    stored:   cells to store, children first.
    missing:  gaps.
    complete: claims that wait for nothing more.
    holes:    of a complete claim, what of it is not sound.
    refused:  of a complete claim, why nothing of it can be used.
    unsound:  (hash, reason, who brought it) of the cells that turned out to be so.
    """

    stored: list[tuple[bytes, bytes]] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    complete: list[object] = field(default_factory=list)
    holes: dict[object, Holes] = field(default_factory=dict)
    refused: dict[object, str] = field(default_factory=dict)
    unsound: list[tuple[bytes, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Cell:
    """A cell, the hashes it refers to, and who brought it.

    names_short: one of them is of a short cell.
    """

    encoding: bytes
    below: list[bytes]
    sender: str = ""
    names_short: bool = False

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory while it waits, with the bookkeeping of its references."""
        return len(self.encoding) + REFERENCE_BYTES * len(self.below)


@dataclass(slots=True)
class _Spoiled:
    """A cell that is not stored: an unsound one, with the reason, or a tainted one.

    below: the spoiled cells that it refers to. users: spoiled cells, waiting cells and claims that
    refer to it.
    """

    reason: str
    encoding: bytes = b""
    below: list[bytes] = field(default_factory=list)
    users: int = 0


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claimed value: what its top refers to, and its top if that has no cell of its own."""

    hashes: list[bytes]
    top: bytes


class IncompleteCells:
    """Cells above gaps, and who waits for what."""

    def __init__(
        self,
        home: CompleteCells,
        *,
        facts_max: int = FACTS_MAX,
        bad_max: int = BAD_CELLS_MAX,
        tainted_bytes_max: int = TAINTED_BYTES_MAX,
    ) -> None:
        self._home = home
        self._facts = KnownFacts(self._load, facts_max)
        self._cells: dict[bytes, _Cell] = {}
        self._passing: Mapping[bytes, _Cell] = {}  # those that are checked together just now
        self._gaps: dict[object, int] = {}  # cell hash or claim -> references not stored yet
        # hash not stored yet -> cells and claims above it, as the keys of a dict
        self._waiting: dict[bytes, dict[object, None]] = {}
        self._unused: dict[bytes, None] = {}  # of these, those above which nothing may be any more
        self._claims: dict[object, _Claim] = {}
        self._bad: dict[bytes, str] = {}  # unsound cells, with the reason; the oldest go
        self._bad_max = bad_max
        self._spoiled: dict[bytes, _Spoiled] = {}
        self._tainted_max = tainted_bytes_max
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._cells)

    def is_wanted(self, hash: bytes) -> bool:
        """Return whether something waits for this cell and it is not here."""
        return hash in self._waiting and hash not in self._cells

    def claim(
        self,
        claim: object,
        hashes: list[bytes],
        cells: Mapping[bytes, bytes],
        top: bytes = b"",
        sender: str = "",
    ) -> Completion:
        """Wait for `hashes` on behalf of `claim`, with these cells at hand.

        Cells that are not below the hashes are not kept. `top` is what refers to the hashes when it
        has no cell of its own; it is checked with the rest. Cells were scanned (`decode_parts`).
        """
        hashes = list(dict.fromkeys(hashes))
        reached: dict[bytes, _Cell] = {}
        outside: dict[bytes, None] = {}  # in order of first occurrence
        lengths: dict[bytes, int] = {}
        front = hashes
        while front:
            at_hand = [hash for hash in front if hash in cells and not self._is_held(hash)]
            lengths |= self._home.lengths(at_hand)  # a peer may send what is here already
            below: list[bytes] = []
            for hash in front:
                if hash in reached or hash in lengths:
                    continue
                if hash in cells and not self._is_held(hash):
                    cell = reached[hash] = _Cell(cells[hash], references(cells[hash]), sender)
                    below.extend(cell.below)
                else:
                    outside[hash] = None
            front = below
        made = _Claim(hashes, top)
        progress: Completion | None = None
        if self._waiting.keys().isdisjoint(outside):
            lengths |= self._home.lengths(outside)
            if all(hash in lengths for hash in outside):
                self._passing = reached
                try:
                    progress = self._pass(claim, made, reached, lengths)
                finally:
                    self._passing = {}
        if progress is None:
            self._claims[claim] = made
            progress = self._add(reached, claim, hashes)
        self._facts.trim()
        return progress

    def _is_held(self, hash: bytes) -> bool:
        return hash in self._cells or hash in self._spoiled

    def add(self, cells: Mapping[bytes, bytes], sender: str = "") -> Completion:
        """Take cells that something waits for; others are not kept."""
        wanted = {
            hash: _Cell(encoding, references(encoding), sender)
            for hash, encoding in cells.items()
            if self.is_wanted(hash)
        }
        progress = self._add(wanted, None, [])
        self._facts.trim()
        return progress

    def _pass(
        self,
        claim: object,
        made: _Claim,
        cells: dict[bytes, _Cell],
        lengths: Mapping[bytes, int],
    ) -> Completion | None:
        """Pass on a claim that has no gap below it, and what these cells complete.

        None: a stored cell that is needed to check one of them cannot be read.
        """
        progress = Completion()
        spoiled: dict[bytes, _Spoiled] = {}
        short = {hash for hash, length in lengths.items() if length <= EMBEDDED_BYTES_MAX}
        short.update(h for h, cell in cells.items() if len(cell.encoding) <= EMBEDDED_BYTES_MAX)
        order = _upwards(made.hashes, cells)
        if not short and self._bad.keys().isdisjoint(cells):  # all are sound, as a rule
            together = [(hash, cell.encoding) for hash, cell in order]
            sound = learn_cells(together, self._facts)
            progress.stored = together[:sound]
            order = order[sound:]
        try:
            for hash, cell in order:
                if short:
                    cell.names_short = not short.isdisjoint(cell.below)
                self._settle(hash, cell, spoiled, progress)
            self._spoiled |= spoiled
            self._finish(claim, made, progress)
        except MissingData:
            for hash in spoiled:
                self._spoiled.pop(hash, None)
            return None
        for one in spoiled.values():
            self.size_bytes += len(one.encoding)
            for ref in one.below:
                spoiled[ref].users += 1
        ready: list[object] = []
        if self._waiting:
            for hash, cell in cells.items():
                self._fill(hash, len(cell.encoding) <= EMBEDDED_BYTES_MAX, ready)
        self._advance(ready, progress)
        self._let_go(reversed(list(spoiled)))
        return progress

    def _add(self, fresh: dict[bytes, _Cell], claim: object, hashes: list[bytes]) -> Completion:
        above: list[tuple[object, list[bytes]]] = [(h, cell.below) for h, cell in fresh.items()]
        if claim is not None:
            above.append((claim, hashes))
        waiting = self._waiting
        # In order of first occurrence, so that the same messages lead to the same requests.
        outside = dict.fromkeys(
            ref for _, refs in above for ref in refs if ref not in fresh and ref not in waiting
        )
        lengths = self._home.lengths(outside)
        absent: dict[bytes, None] = {}
        for ref in outside:
            if ref in self._bad and ref not in self._spoiled:
                self._spoiled[ref] = _Spoiled(self._bad[ref])  # "not fetched again, hole at once"
            elif ref not in lengths and ref not in self._spoiled:
                absent[ref] = None
        progress = Completion(missing=list(absent))
        ready: list[object] = []
        held: dict[bytes, None] = {}
        for key, refs in above:
            gaps = 0
            for ref in refs:
                if ref in fresh or ref in absent or ref in waiting:
                    if ref in waiting and ref not in fresh:
                        held[ref] = None
                    waiting.setdefault(ref, {})[key] = None
                    gaps += 1
                elif ref in self._spoiled:
                    self._spoiled[ref].users += 1
                elif lengths[ref] <= EMBEDDED_BYTES_MAX and isinstance(key, bytes):
                    fresh[key].names_short = True
            self._gaps[key] = gaps
            if not gaps:
                ready.append(key)
        # Whoever sent this is one more to be asked for what others left open.
        progress.missing += self._open_below(held)
        self._cells.update(fresh)
        self.size_bytes += sum(cell.size_bytes for cell in fresh.values())
        self._advance(ready, progress)
        return progress

    def _open_below(self, held: Iterable[bytes]) -> list[bytes]:
        """Return those of these that are not here, and gaps below the others."""
        found: list[bytes] = []
        front = list(held)
        seen = set(front)
        looks = 0
        while front:
            hash = front.pop()
            cell = self._cells.get(hash)
            if cell is None:
                if hash in self._waiting:
                    found.append(hash)
            elif looks < HELD_LOOKS_MAX:
                looks += 1
                below = [ref for ref in cell.below if ref not in seen]
                seen.update(below)
                front += below
        return found

    def _advance(self, ready: list[object], progress: Completion) -> None:
        """Pass on what has no gap below it, and what that completes in turn."""
        while ready:
            key = ready.pop()
            try:
                if not isinstance(key, bytes):
                    made = self._claims[key]
                    self._finish(key, made, progress)
                    del self._gaps[key], self._claims[key]
                    self._release(made.hashes)
                    continue
                cell = self._cells[key]
                self._settle(key, cell, self._spoiled, progress)
            except MissingData as error:
                self._wait_for(key, error.hashes, progress)
                continue
            del self._gaps[key], self._cells[key]
            self.size_bytes -= cell.size_bytes
            if key in self._spoiled:
                self.size_bytes += len(self._spoiled[key].encoding)
            self._fill(key, len(cell.encoding) <= EMBEDDED_BYTES_MAX, ready)

    def _wait_for(self, key: object, hashes: Iterable[bytes], progress: Completion) -> None:
        """Wait once more: cells that the check must read are stored and cannot be read.

        "It is fetched or healed first": what cannot be read is no fault of the cell above it.
        """
        wanted = list(dict.fromkeys(hashes))
        if isinstance(key, bytes):
            cell = self._cells[key]
            cell.below.extend(hash for hash in wanted if hash not in cell.below)
            self.size_bytes += REFERENCE_BYTES * len(wanted)
        else:
            hashes = self._claims[key].hashes
            hashes.extend(hash for hash in wanted if hash not in hashes)
        self._gaps[key] = len(wanted)
        for hash in wanted:
            self._waiting.setdefault(hash, {})[key] = None
            if hash not in self._cells:
                progress.missing.append(hash)

    def _fill(self, hash: bytes, is_short: bool, ready: list[object]) -> None:
        """Close the gaps that a cell leaves which is settled now."""
        parents = self._waiting.pop(hash, ())
        self._unused.pop(hash, None)
        spoiled = self._spoiled.get(hash)
        if spoiled is not None:
            spoiled.users += len(parents)
        for parent in parents:
            self._gaps[parent] -= 1
            if is_short and isinstance(parent, bytes):
                self._cells[parent].names_short = True
            if not self._gaps[parent]:
                ready.append(parent)

    # --- soundness ----------------------------------------------------------------------------

    def _load(self, hash: bytes) -> bytes | None:
        """Return a sound cell: what is below a cell that is checked was checked before."""
        passing = self._passing.get(hash)
        if passing is not None:
            return passing.encoding
        try:
            return self._home.get_encoding(hash)
        except Corruption:
            return None  # the store tells whoever is to heal it

    def _settle(
        self, hash: bytes, cell: _Cell, spoiled: dict[bytes, _Spoiled], progress: Completion
    ) -> None:
        """Decide about a cell all below which is settled: it is stored, or added to `spoiled`.

        Raises: MissingData: a stored cell that must be looked at cannot be read.
        """
        if spoiled:
            below = [ref for ref in cell.below if ref in spoiled]
            if below:
                spoiled[hash] = _Spoiled("", cell.encoding, below)
                return
        reason = self._bad.get(hash, REFERENCED_SHORT if cell.names_short else "")
        if not reason:
            try:
                learn_cell(hash, cell.encoding, self._facts)
            except BadFormat as error:
                reason = str(error)
        if not reason:
            progress.stored.append((hash, cell.encoding))
            return
        spoiled[hash] = _Spoiled(reason)
        if hash not in self._bad:
            self._bad[hash] = reason
            progress.unsound.append((hash, reason, cell.sender))
            if len(self._bad) > self._bad_max:
                del self._bad[next(iter(self._bad))]

    def _finish(self, claim: object, made: _Claim, progress: Completion) -> None:
        """Hand on a claim that waits for nothing more.

        Raises: MissingData: a stored cell that must be looked at cannot be read.
        """
        bad: dict[bytes, str] = {}
        tainted: dict[bytes, bytes] = {}
        front = [hash for hash in made.hashes if hash in self._spoiled]
        while front:
            hash = front.pop()
            one = self._spoiled[hash]
            if one.reason:
                bad[hash] = one.reason
            elif hash not in tainted:
                tainted[hash] = one.encoding
                front.extend(one.below)
        if bad:
            progress.holes[claim] = Holes(bad, tainted)
            if sum(map(len, tainted.values())) > self._tainted_max:
                progress.refused[claim] = (
                    f"more than {self._tainted_max} bytes lie above unsound cells"
                )
        elif made.top:
            try:
                check_cell(made.top, self._facts)
            except BadFormat as error:
                progress.refused[claim] = str(error)
        progress.complete.append(claim)

    def _release(self, hashes: Iterable[bytes]) -> None:
        """Note that one less refers to these cells, which may be spoiled."""
        spoiled = [hash for hash in hashes if hash in self._spoiled]
        for hash in spoiled:
            self._spoiled[hash].users -= 1
        self._let_go(spoiled)

    def _let_go(self, hashes: Iterable[bytes]) -> None:
        """Forget spoiled cells that nothing refers to, and what only they referred to."""
        front = list(hashes)
        while front:
            hash = front.pop()
            one = self._spoiled.get(hash)
            if one is not None and one.users <= 0:
                del self._spoiled[hash]
                self.size_bytes -= len(one.encoding)
                for ref in one.below:
                    self._spoiled[ref].users -= 1
                front += one.below

    # --- claims -------------------------------------------------------------------------------

    def claims_above(self, hashes: Iterable[bytes]) -> list[object]:
        """Return the claims that cannot complete without these cells."""
        found: dict[object, None] = {}
        seen: set[bytes] = set()
        front = list(hashes)
        while front:
            hash = front.pop()
            if hash in seen:
                continue
            seen.add(hash)
            for parent in self._waiting.get(hash, ()):
                if isinstance(parent, bytes):
                    front.append(parent)
                else:
                    found[parent] = None
        return list(found)

    def heaviest(self, group: Callable[[object], object]) -> list[object]:
        """Return the claims of those groups that hold most, until they make up a quarter of all.

        A quarter, so that this need not be asked again at once: it looks at every cell. What
        several wait for counts for the first of them.
        """
        weights: dict[object, int] = {}
        members: dict[object, list[object]] = {}
        seen: set[bytes] = set()
        for claim, made in self._claims.items():
            name = group(claim)
            members.setdefault(name, []).append(claim)
            weights[name] = weights.get(name, 0) + self._weight(made.hashes, seen)
        found: list[object] = []
        room = self.size_bytes / 4
        for name in sorted(weights, key=lambda name: weights[name], reverse=True):
            found += members[name]
            room -= weights[name]
            if room <= 0:
                break
        return found

    def _weight(self, hashes: list[bytes], seen: set[bytes]) -> int:
        """Return what the cells below these take in memory, except those that were seen."""
        front = [hash for hash in hashes if hash not in seen]
        seen.update(front)
        weight = 0
        while front:
            hash = front.pop()
            cell = self._cells.get(hash)
            below: list[bytes] = []
            if cell is not None:
                weight += cell.size_bytes
                below = cell.below
            elif hash in self._spoiled:
                weight += len(self._spoiled[hash].encoding)
                below = self._spoiled[hash].below
            fresh = [ref for ref in below if ref not in seen]
            seen.update(fresh)
            front += fresh
        return weight

    def release(self, claim: object) -> None:
        """Forget a claim that a newer one replaces; the cells fetched for it stay."""
        made = self._claims.pop(claim, None)
        self._gaps.pop(claim, None)
        if made is not None:
            for hash in made.hashes:
                self._part(hash, claim, self._unused)
            self._release(made.hashes)

    def drop(self, claims: Iterable[object]) -> list[bytes]:
        """Forget claims, and every cell that only they waited for; return the gaps among these.

        Cost: what is forgotten, however much there is.
        """
        unused, self._unused = self._unused, {}
        loose: list[bytes] = []  # may be spoiled
        for claim in claims:
            made = self._claims.pop(claim, None)
            self._gaps.pop(claim, None)
            for hash in () if made is None else made.hashes:
                self._part(hash, claim, unused)
                loose.append(hash)
        gaps: list[bytes] = []
        while unused:
            hash, _ = unused.popitem()
            if self._waiting.get(hash, True):
                continue  # something is above it again, or it came
            del self._waiting[hash]
            cell = self._cells.pop(hash, None)
            if cell is None:
                gaps.append(hash)
                continue
            del self._gaps[hash]
            self.size_bytes -= cell.size_bytes
            for ref in cell.below:
                self._part(ref, hash, unused)
                loose.append(ref)
        self._release(loose)
        return gaps

    def _part(self, hash: bytes, above: object, unused: dict[bytes, None]) -> None:
        """Note that something waits no longer for a cell; add that to `unused` if nothing does."""
        waiting = self._waiting.get(hash)
        if waiting is not None:
            waiting.pop(above, None)
            if not waiting:
                unused[hash] = None


def _upwards(hashes: list[bytes], cells: Mapping[bytes, _Cell]) -> list[tuple[bytes, _Cell]]:
    """Return the cells below `hashes`, each after those that it refers to."""
    found: dict[bytes, _Cell] = {}
    stack = [(hash, cells[hash], False) for hash in hashes if hash in cells]
    while stack:
        hash, cell, is_done = stack.pop()
        if is_done:
            found[hash] = cell
        elif hash not in found:
            stack.append((hash, cell, True))
            for ref in cell.below:
                child = cells.get(ref)
                if child is None or ref in found:
                    continue
                if child.below:
                    stack.append((ref, child, False))
                else:
                    found[ref] = child
    return list(found.items())
