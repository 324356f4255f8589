"""Delta: the cells of a value that a holder of other values lacks.

It works on encodings and hashes, level by level, so nothing is decoded. Cells that both sides share
are not entered: the cost is that of the difference, and ends where the answer becomes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from datalattice.cells import TAG_BLOB, Value, Work, encode, is_embedded, references, value_hash
from datalattice.limits import EMBEDDED_BYTES_MAX

LoadAll = Callable[[Sequence[bytes]], "list[bytes | None]"]
"""Returns the encodings of cells in order, None for missing ones."""

FETCH_MAX: Final = 256
"""Cells fetched at a time: when the answer becomes too long, few were fetched in vain."""


def beyond(
    known: Iterable[Value], value: Value, fetch: LoadAll, bytes_max: int
) -> dict[bytes, bytes] | None:
    """Return the cells of `value`, parents first, that are not found in any of `known`.

    A cell that has moved to another level may be returned all the same. None: they have more than
    `bytes_max` bytes, or one of them is missing.

    Cost: cell reads in proportion to the cells returned, and at most `bytes_max` bytes of `known`.
    """
    peer = _PeerCells(known, fetch, bytes_max)
    hash, top = value_hash(value), encode(value)
    # The other side holds exactly this value.
    if hash in peer.have:
        return {}
    found: dict[bytes, bytes] = {} if is_embedded(value) else {hash: top}
    level = [top]
    size = sum(map(len, found.values()))
    while level:
        names: dict[bytes, None] = {}
        for cell in level:
            names.update(dict.fromkeys(references(cell)))
        peer.meet(names)
        fresh = [name for name in names if name not in peer.have and name not in found]
        # A referenced cell is longer than an embedded one can be: a bound before anything is read.
        if size + len(fresh) * EMBEDDED_BYTES_MAX > bytes_max:
            return None
        level = []
        for name, encoding in _fetched(fresh, fetch):
            if encoding is None:
                return None
            size += len(encoding)
            if size > bytes_max:
                return None
            found[name] = encoding
            level.append(encoding)
    return found


def growth(
    known: Value, value: Value, fetch: LoadAll, bytes_max: int, work: Work | None = None
) -> tuple[int, int] | None:
    """Return (bytes, cells) of the cells of `value` that are not found in `known`, each once.

    None: they have more than `bytes_max` bytes. A missing cell counts nothing.

    Cost: as `beyond`; memory for the hashes. Paid from `work`, when given.
    Raises: WorkExceeded: `work` is used up.
    """
    peer = _PeerCells([] if known is None else [known], fetch, bytes_max, work)
    hash, top = value_hash(value), encode(value)
    if hash in peer.have:
        return 0, 0
    seen = {hash}
    size, count = (0, 0) if is_embedded(value) else (len(top), 1)
    names = dict.fromkeys(references(top))
    while names:
        # Both sides go down one level at a time, so that shared subtrees are met at their tops.
        peer.meet(names)
        fresh = [name for name in names if name not in peer.have and name not in seen]
        seen.update(fresh)
        names = {}
        for name, encoding in _fetched(fresh, fetch, work):
            if encoding is not None:
                if work is not None:
                    work.earn(name, len(encoding))
                    _pay(work, encoding)
                size += len(encoding)
                count += 1
                names.update(dict.fromkeys(references(encoding)))
            if size > bytes_max:
                return None
    return (size, count) if size <= bytes_max else None


class _PeerCells:
    """What the other side holds, read one level at a time.

    have: hashes read so far.
    """

    def __init__(
        self, known: Iterable[Value], fetch: LoadAll, bytes_max: int, work: Work | None = None
    ) -> None:
        self._work = work
        tops = {value_hash(value): encode(value) for value in known}
        self.have = set(tops)
        self._fetch = fetch
        self._room = bytes_max
        self._met: set[bytes] = set()
        self._cells: dict[bytes, bytes] = {}  # hash -> the cell above it, not shared so far
        self._enter(tops.items())

    def meet(self, names: dict[bytes, None]) -> None:
        """Go one level down, except below cells with these names: both sides have them."""
        met = self._met
        met.update(names)
        # A tree that grows moves its former top one level down, so the cell above counts, too.
        entered = [
            hash for hash, above in self._cells.items() if hash not in met and above not in met
        ]
        self._cells = {}
        self._enter(_fetched(entered, self._fetch, self._work))

    def _enter(self, cells: Iterable[tuple[bytes, bytes | None]]) -> None:
        for hash, encoding in cells:
            if encoding is None:
                continue  # a missing cell makes the difference larger, not wrong
            if self._work is not None:
                _pay(self._work, encoding)
            self._room -= len(encoding)
            # What the other side holds is read up to a bound; past it the difference only grows.
            if self._room < 0:
                self._cells = {}
                return
            for ref in references(encoding):
                if ref not in self.have:
                    self.have.add(ref)
                    self._cells[ref] = hash


def _pay(work: Work, encoding: bytes) -> None:
    """Pay for a scan of a cell for references; a blob needs none."""
    scanned = 0 if encoding[0] == TAG_BLOB else len(encoding)
    work.spend(work.limits.counted + scanned // work.limits.counted_bytes)


def _fetched(
    hashes: Sequence[bytes], fetch: LoadAll, work: Work | None = None
) -> Iterable[tuple[bytes, bytes | None]]:
    """Return the cells with these hashes, fetched a batch at a time."""
    # Most levels of a difference have a few cells, often a single one.
    if len(hashes) <= (FETCH_MAX if work is None else 1):
        return zip(hashes, fetch(hashes), strict=True) if hashes else ()
    return _batches(hashes, fetch, work)


def _batches(
    hashes: Sequence[bytes], fetch: LoadAll, work: Work | None
) -> Iterator[tuple[bytes, bytes | None]]:
    begin = 0
    while begin < len(hashes):
        # Fetch what the account can pay for and one cell more, so that the one too many is noticed.
        count = FETCH_MAX if work is None else min(FETCH_MAX, 1 + work.left // work.limits.counted)
        some = hashes[begin : begin + max(count, 1)]
        yield from zip(some, fetch(some), strict=True)
        begin += len(some)
