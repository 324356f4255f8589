"""Incomplete cells: the cells of foreign values, from their arrival until they may be stored.

"A cell enters the store only when it and everything below it is sound", so a stored cell is here
with all below it, and well formed. Each cell moves on to the store as soon as that holds, and is
checked once, just before. So a huge value streams through: only cells above *gaps*, the missing
cells, are kept in memory, in a 16-way tree a few in a hundred.

A *claim* is a value that waits for cells: the references of its top. It is complete when the last
of them is settled, that is stored or spoiled.

An unsound cell is a *hole*. It counts as arrived, and so do the *tainted* cells above it; both are
*spoiled* and never stored. A claim above them completes, and is handed on with its holes.

Length: one account of which cell waits for which; its parts change together with every cell.

Source: docs/design/foreign-data.md "Structure", "Holes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from datalattice.cells import (
    FACTS_MAX,
    Holes,
    KnownFacts,
    all_references,
    check_cell,
    learn_cell,
    learn_cells,
    references,
)
from datalattice.errors import BadFormat, Corruption, MissingData
from datalattice.limits import CELL_BYTES_MAX, EMBEDDED_BYTES_MAX

REFERENCE_BYTES: Final = 400
"""Memory for a reference of a waiting cell, measured: its hash, gap, waiters and want."""

BAD_CELLS_MAX: Final = 65_536
"""Unsound cells that are remembered by hash, so as not to fetch them again."""

HELD_LOOKS_MAX: Final = 256
"""Waiting cells that are searched for the gaps below those that a message refers to."""

TAINTED_BYTES_MAX: Final = 4_000_000
"""Bytes of cells above holes that one claim may have; with more it is refused."""

REFERENCED_SHORT: Final = (
    "not a canonical value: a child that fits inside its parent is a reference"
)


class CompleteCells(Protocol):
    """The store of complete cells."""

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the lengths of those of `hashes` that are stored."""

    def get_encoding(self, hash: bytes) -> bytes | None:
        """Return the encoding of a cell, or None.

        Raises: Corruption: its bytes are damaged.
        """


@dataclass(slots=True)
class Completion:
    """The result of adding cells.

    stored:   (hash, encoding) to store, children first.
    tree:     the cell that these and no others are at or below; None: it is not known.
    missing:  gaps to fetch.
    complete: claims that wait for nothing more.
    holes:    the holes of complete claims that have any.
    refused:  complete claims of which nothing can be used, and why.
    unsound:  (hash, reason, sender) of cells newly found to be unsound.
    """

    stored: list[tuple[bytes, bytes]] = field(default_factory=list)
    tree: bytes | None = None
    missing: list[bytes] = field(default_factory=list)
    complete: list[object] = field(default_factory=list)
    holes: dict[object, Holes] = field(default_factory=dict)
    refused: dict[object, str] = field(default_factory=dict)
    unsound: list[tuple[bytes, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Cell:
    """A cell, the hashes that it refers to, and who brought it.

    names_short: it refers to a cell that is short enough to be embedded.
    """

    encoding: bytes
    below: list[bytes]
    sender: str = ""
    names_short: bool = False

    @property
    def size_bytes(self) -> int:
        """About its memory while it waits, with the bookkeeping of its references."""
        return len(self.encoding) + REFERENCE_BYTES * len(self.below)


@dataclass(slots=True)
class _Spoiled:
    """A cell that is never stored.

    reason: why it is unsound; "": it is tainted.
    below:  the spoiled cells that it refers to.
    users:  number of spoiled cells, waiting cells and claims that refer to it.
    """

    reason: str
    encoding: bytes = b""
    below: list[bytes] = field(default_factory=list)
    users: int = 0


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claimed value: the hashes that its top refers to, and its top if that is embedded."""

    hashes: list[bytes]
    top: bytes


class IncompleteCells:
    """Cells above gaps, and what waits for which cell. One thread uses it."""

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
        self._passing: Mapping[bytes, bytes] = {}  # cells that are checked together just now
        self._gaps: dict[object, int] = {}  # cell hash or claim -> references not stored yet
        # hash not stored yet -> cells and claims above it, as the keys of a dict
        self._waiting: dict[bytes, dict[object, None]] = {}
        self._unused: dict[bytes, None] = {}  # of these, those that nothing may wait for any more
        self._claims: dict[object, _Claim] = {}
        self._bad: dict[bytes, str] = {}  # unsound cell -> reason; the oldest are dropped
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
        """Wait for `hashes` on behalf of `claim`; `cells` came with it.

        cells: scanned encodings by hash (`decode_parts`); those not below `hashes` are not kept.
        top:   the encoding that refers to `hashes`, if it has no cell of its own.
        """
        hashes = list(dict.fromkeys(hashes))
        reached, outside, lengths, is_tree = self._reach(hashes, cells)
        made = _Claim(hashes, top)
        progress: Completion | None = None
        # Most messages are complete in themselves: nothing of them has to wait.
        if self._waiting.keys().isdisjoint(outside):
            lengths |= self._home.lengths(outside)
            if outside.keys() <= lengths.keys():
                # Of a tree, what was reached later is not above what was reached before.
                order = list(reached.items())[::-1] if is_tree else _upwards(hashes, reached)
                self._passing = reached
                try:
                    progress = self._pass_complete(claim, made, order, lengths, sender)
                finally:
                    self._passing = {}
                # Nothing of it was here before, and all of it is sound.
                is_whole = len(hashes) == 1 and not lengths
                if is_whole and progress is not None and progress.stored == order:
                    progress.tree = hashes[0]
        if progress is None:
            self._claims[claim] = made
            progress = self._add(_parsed(reached.items(), sender), claim, hashes)
        self._facts.trim()
        return progress

    def _reach(
        self, hashes: list[bytes], cells: Mapping[bytes, bytes]
    ) -> tuple[Mapping[bytes, bytes], dict[bytes, None], dict[bytes, int], bool]:
        """Follow `hashes` through the cells of a message, level by level.

        Returns: (cells below them that are new here, hashes that lead out of the message, lengths
                 of stored cells, whether no new cell is below two others).
        """
        if not self._cells and not self._spoiled and _are_levels(hashes, cells):
            lengths = self._home.lengths(cells)
            if not lengths:
                return cells, {}, {}, True
        reached: dict[bytes, bytes] = {}
        outside: dict[bytes, None] = {}
        lengths = {}
        is_tree = True
        front = hashes
        while front:
            found = zip(front, map(cells.get, front), strict=True)
            fresh = {hash: encoding for hash, encoding in found if encoding is not None}
            if len(fresh) < len(front):
                absent = [hash for hash in front if hash not in cells]
                outside |= dict.fromkeys(absent)
                is_tree = is_tree and len(fresh) + len(absent) == len(front)
            if self._cells or self._spoiled:
                held = [hash for hash in fresh if hash in self._cells or hash in self._spoiled]
                outside |= dict.fromkeys(held)
                for hash in held:
                    del fresh[hash]
            # A peer may send what is stored already. A stored cell is here with all below it, so
            # nothing of it is awaited.
            stored = self._home.lengths(fresh)
            lengths |= stored
            for hash in stored:
                if hash not in reached:
                    del fresh[hash]
            before = len(reached)
            reached |= fresh
            added = len(reached) - before
            if added < len(fresh):  # what is below the others was followed before
                is_tree = False
                fresh = dict([*islice(reversed(reached.items()), added)][::-1])
            front = all_references(fresh.values())
        return reached, outside, lengths, is_tree

    def add(self, cells: Mapping[bytes, bytes], sender: str = "") -> Completion:
        """Take cells that something waits for; ignore all others."""
        came = [(hash, encoding) for hash, encoding in cells.items() if self.is_wanted(hash)]
        progress = self._add(_parsed(came, sender), None, [])
        self._facts.trim()
        return progress

    def _pass_complete(
        self,
        claim: object,
        made: _Claim,
        cells: list[tuple[bytes, bytes]],
        lengths: Mapping[bytes, int],
        sender: str,
    ) -> Completion | None:
        """Pass on a claim without gaps, and what its cells, children first, complete.

        None: a stored cell that is needed to check one of them cannot be read.
        """
        progress = Completion()
        spoiled: dict[bytes, _Spoiled] = {}
        short = {hash for hash, length in lengths.items() if length <= EMBEDDED_BYTES_MAX}
        # As a rule none: a message with such a cell is refused when it is decoded.
        if min(map(len, self._passing.values()), default=CELL_BYTES_MAX) <= EMBEDDED_BYTES_MAX:
            short |= {hash for hash, encoding in cells if len(encoding) <= EMBEDDED_BYTES_MAX}
        sound = 0
        # All are sound, as a rule: they are checked in one go up to the first that is not.
        if not short and not (self._bad and any(hash in self._bad for hash, _ in cells)):
            sound = learn_cells(cells, self._facts)
            progress.stored = cells if sound == len(cells) else cells[:sound]
        try:
            for hash, cell in _parsed(cells[sound:], sender).items():
                cell.names_short = not short.isdisjoint(cell.below)
                self._settle(hash, cell, spoiled, progress)
            # Joined only now: if the checks above must wait, nothing of this message may stay.
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
        for hash, encoding in cells if self._waiting else ():
            if hash in self._waiting:
                self._close_gaps(hash, len(encoding) <= EMBEDDED_BYTES_MAX, ready)
        self._advance(ready, progress)
        self._forget_unused(reversed(list(spoiled)))
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
                # Known to be unsound: a hole at once, which is not fetched again.
                self._spoiled[ref] = _Spoiled(self._bad[ref])
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
        # The sender states these cells too, so it can be asked for gaps that other peers left.
        progress.missing += self._open_below(held)
        self._cells.update(fresh)
        self.size_bytes += sum(cell.size_bytes for cell in fresh.values())
        self._advance(ready, progress)
        return progress

    def _open_below(self, held: Iterable[bytes]) -> list[bytes]:
        """Return those of `held` that are missing, and gaps below the others."""
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
        """Settle cells and claims without gaps, and those whose last gap that closes."""
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
                self._wait_again(key, error.hashes, progress)
                continue
            del self._gaps[key], self._cells[key]
            self.size_bytes -= cell.size_bytes
            if key in self._spoiled:
                self.size_bytes += len(self._spoiled[key].encoding)
            self._close_gaps(key, len(cell.encoding) <= EMBEDDED_BYTES_MAX, ready)

    def _wait_again(self, key: object, hashes: Iterable[bytes], progress: Completion) -> None:
        """Have a cell or claim wait for damaged stored cells that its check must read."""
        # They are fetched or healed first: the cell above them is not at fault.
        wanted = list(dict.fromkeys(hashes))
        if isinstance(key, bytes):
            cell = self._cells[key]
            deeper = [hash for hash in wanted if hash not in cell.below]
            cell.below.extend(deeper)
            self.size_bytes += REFERENCE_BYTES * len(deeper)
        else:
            hashes = self._claims[key].hashes
            hashes.extend(hash for hash in wanted if hash not in hashes)
        self._gaps[key] = len(wanted)
        for hash in wanted:
            self._waiting.setdefault(hash, {})[key] = None
            if hash not in self._cells:
                progress.missing.append(hash)

    def _close_gaps(self, hash: bytes, is_short: bool, ready: list[object]) -> None:
        """Close the gaps of a cell that is settled now."""
        parents = self._waiting.pop(hash, ())
        self._unused.pop(hash, None)
        spoiled = self._spoiled.get(hash)
        if spoiled is not None:
            spoiled.users += len(parents)
        for parent in parents:
            self._gaps[parent] -= 1
            # Its parent should have embedded it, which shows only now that its length is known.
            if is_short and isinstance(parent, bytes):
                self._cells[parent].names_short = True
            if not self._gaps[parent]:
                ready.append(parent)

    # --- soundness ----------------------------------------------------------------------------

    def _load(self, hash: bytes) -> bytes | None:
        """Return a cell below one that is checked, so it was checked before."""
        passing = self._passing.get(hash)
        if passing is not None:
            return passing
        try:
            return self._home.get_encoding(hash)
        except Corruption:
            return None  # the store reports it to the healer itself

    def _settle(
        self, hash: bytes, cell: _Cell, spoiled: dict[bytes, _Spoiled], progress: Completion
    ) -> None:
        """Store a cell whose children are settled, or add it to `spoiled`.

        Raises: MissingData: a stored cell that the check needs cannot be read.
        """
        # A cell above a spoiled one is tainted, whatever it says itself.
        if spoiled:
            below = [ref for ref in cell.below if ref in spoiled]
            if below:
                spoiled[hash] = _Spoiled("", cell.encoding, below)
                return
        # Canonical values embed short cells, so a reference to one is unsound.
        reason = self._bad.get(hash, REFERENCED_SHORT if cell.names_short else "")
        if not reason:
            try:
                learn_cell(hash, cell.encoding, self._facts)
            except BadFormat as error:
                reason = str(error)
        # Sound, and so is all below it: "a cell enters the store only when" both hold.
        if not reason:
            progress.stored.append((hash, cell.encoding))
            return
        spoiled[hash] = _Spoiled(reason)
        if hash not in self._bad:
            self._bad[hash] = reason
            progress.unsound.append((hash, reason, cell.sender))
            # The oldest is dropped; it would only be fetched and found unsound once more.
            if len(self._bad) > self._bad_max:
                del self._bad[next(iter(self._bad))]

    def _finish(self, claim: object, made: _Claim, progress: Completion) -> None:
        """Hand on a claim that waits for nothing more.

        Raises: MissingData: a stored cell that the check needs cannot be read.
        """
        bad: dict[bytes, str] = {}
        tainted: dict[bytes, bytes] = {}
        front = [hash for hash in made.hashes if hash in self._spoiled]
        while front:
            hash = front.pop()
            one = self._spoiled[hash]
            # The holes themselves; what lies between them and the top is tainted.
            if one.reason:
                bad[hash] = one.reason
            elif hash not in tainted:
                tainted[hash] = one.encoding
                front.extend(one.below)
        if bad:
            progress.holes[claim] = Holes(bad, tainted)
            # Tainted cells stay in memory while claims use them, since they are never stored.
            if sum(map(len, tainted.values())) > self._tainted_max:
                progress.refused[claim] = (
                    f"more than {self._tainted_max} bytes lie above unsound cells"
                )
        # A top without a cell of its own was not checked with the cells.
        elif made.top:
            try:
                check_cell(made.top, self._facts)
            except BadFormat as error:
                progress.refused[claim] = str(error)
        progress.complete.append(claim)

    def _release(self, hashes: Iterable[bytes]) -> None:
        """Note that one user fewer refers to these cells; some may be spoiled."""
        spoiled = [hash for hash in hashes if hash in self._spoiled]
        for hash in spoiled:
            self._spoiled[hash].users -= 1
        self._forget_unused(spoiled)

    def _forget_unused(self, hashes: Iterable[bytes]) -> None:
        """Forget spoiled cells without users, and those that only they used."""
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
        """Return the claims of the groups that hold most memory, up to a quarter of all.

        Cost: it visits every cell. A cell that several groups wait for counts for the first.
        """
        # A quarter, so that the next message does not need it again.
        weights: dict[object, int] = {}
        members: dict[object, list[object]] = {}
        seen: set[bytes] = set()
        for claim, made in self._claims.items():
            name = group(claim)
            members.setdefault(name, []).append(claim)
            weights[name] = weights.get(name, 0) + self._memory_of(made.hashes, seen)
        found: list[object] = []
        room = self.size_bytes / 4
        # The peer that holds most loses its values, whoever sent the last byte.
        for name in sorted(weights, key=lambda name: weights[name], reverse=True):
            found += members[name]
            room -= weights[name]
            if room <= 0:
                break
        return found

    def _memory_of(self, hashes: list[bytes], seen: set[bytes]) -> int:
        """Return the memory of the cells below these, except those in `seen`."""
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
                self._stop_waiting(hash, claim, self._unused)
            self._release(made.hashes)

    def drop(self, claims: Iterable[object]) -> list[bytes]:
        """Forget claims, and every cell that only they waited for; return the gaps among these.

        Cost: in proportion to what is forgotten.
        """
        unused, self._unused = self._unused, {}
        loose: list[bytes] = []  # may be spoiled
        for claim in claims:
            made = self._claims.pop(claim, None)
            self._gaps.pop(claim, None)
            for hash in () if made is None else made.hashes:
                self._stop_waiting(hash, claim, unused)
                loose.append(hash)
        gaps: list[bytes] = []
        while unused:
            hash, _ = unused.popitem()
            if self._waiting.get(hash, True):
                continue  # something waits for it again, or it has come
            del self._waiting[hash]
            cell = self._cells.pop(hash, None)
            if cell is None:
                gaps.append(hash)
                continue
            del self._gaps[hash]
            self.size_bytes -= cell.size_bytes
            for ref in cell.below:
                self._stop_waiting(ref, hash, unused)
                loose.append(ref)
        self._release(loose)
        return gaps

    def _stop_waiting(self, hash: bytes, above: object, unused: dict[bytes, None]) -> None:
        """Note that `above` no longer waits for a cell; if nothing does, add it to `unused`."""
        waiting = self._waiting.get(hash)
        if waiting is not None:
            waiting.pop(above, None)
            if not waiting:
                unused[hash] = None


def _parsed(cells: Iterable[tuple[bytes, bytes]], sender: str) -> dict[bytes, _Cell]:
    """Return cells by hash, in their order, with what each refers to."""
    return {hash: _Cell(encoding, references(encoding), sender) for hash, encoding in cells}


def _are_levels(hashes: list[bytes], cells: Mapping[bytes, bytes]) -> bool:
    """Return whether the cells of a message are a tree below `hashes`, level by level.

    So are those of an answer to a node without data. Cost: no look-up.
    """
    order, encodings = list(cells), list(cells.values())
    front, begin = hashes, 0
    while front:
        end = begin + len(front)
        if order[begin:end] != front:
            return False
        front = all_references(encodings[begin:end])
        begin = end
    return begin == len(order)


def _upwards(hashes: list[bytes], cells: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the cells below `hashes`, each after those that it refers to."""
    found: dict[bytes, bytes] = {}
    stack = [(hash, False) for hash in hashes if hash in cells]
    while stack:
        hash, is_done = stack.pop()
        if is_done:
            found[hash] = cells[hash]
        elif hash not in found:
            stack.append((hash, True))
            stack += [(ref, False) for ref in references(cells[hash]) if ref in cells]
    return list(found.items())
