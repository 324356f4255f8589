"""Frontier: what an intention has seen of every author, who has seen what, and acknowledgements.

The frontier of an intention holds, for each author, the greatest seq that is reachable from it
through `store_prev` and dependencies, itself included. Seqs are those of this node's log, so
frontiers are compared on one node only.

An ack is an intention without payload that depends on the newest contents of other authors. It
tells everyone what its author has seen, and is no content itself, so acks do not ask for acks.
"""

from __future__ import annotations

from typing import NamedTuple

from datalattice.engine import ReadTxn
from datalattice.errors import Corruption, UsageError
from datalattice.weaver.rows import (
    AUTHOR_TIPS,
    AUTHORS,
    Frontier,
    Tip,
    decode_frontier,
    decode_tip,
    number_key,
    read_place,
    read_tip,
    read_witness,
)


class Observation(NamedTuple):
    """How many contents of `observed` the newest intention of `observer` has seen."""

    observer: bytes
    observed: bytes
    seen: int


class Unacknowledged(NamedTuple):
    """An author with contents that the tip of another author has not seen.

    tip_hash: its newest content. tip_count: its contents; acknowledged_count: those seen.
    """

    author: bytes
    tip_hash: bytes
    tip_count: int
    acknowledged_count: int


def frontier(txn: ReadTxn, hash: bytes) -> dict[bytes, int]:
    """Return the frontier of a witnessed intention by author, ascending. Cost: at most 64 rows.

    Raises: UsageError: the intention is not witnessed.
    """
    place = read_place(txn, hash)
    if place is None:
        raise UsageError(f"no witnessed intention {hash.hex()}")
    return _by_key(txn, frontier_at(txn, place.seq))


def frontier_at(txn: ReadTxn, seq: int) -> Frontier:
    """Return the frontier of the row at `seq`, by author number."""
    found: Frontier = {}
    while seq:
        row = read_witness(txn, seq)
        # From newer to older rows: the first seq of an author is its greatest.
        found.setdefault(row.number, seq)
        for number, seen in decode_frontier(row.frontier, seq).items():
            found.setdefault(number, seen)
        seq = row.base
    return found


def _by_key(txn: ReadTxn, found: Frontier) -> dict[bytes, int]:
    numbers = sorted(found)
    keys = txn.get_many(AUTHORS, [number_key(number) for number in numbers])
    named = {}
    for number, key in zip(numbers, keys, strict=True):
        if key is None:
            raise Corruption(f"{AUTHORS} {number}: the row is missing")
        named[key] = found[number]
    return dict(sorted(named.items()))


def _tips(txn: ReadTxn) -> dict[bytes, Tip]:
    return {author: decode_tip(value) for author, value in txn.scan(AUTHOR_TIPS)}


def _contents_at(txn: ReadTxn, tip: Tip, seq: int) -> int:
    """Return how many contents an author has up to its intention at `seq`; 0 for seq 0."""
    if seq == tip.seq:  # the tip's count is in memory: the usual case needs no row
        return tip.contents
    return read_witness(txn, seq).contents if seq else 0  # seq 0: no intention was seen


def observations(txn: ReadTxn) -> list[Observation]:
    """Return what the newest intention of each author has seen of each author; zeros left out.

    Cost: a row for each pair of authors at most.
    """
    tips = _tips(txn)
    return [
        Observation(observer, observed, seen)
        for observer, tip in tips.items()
        for observed, other in tips.items()
        if (seen := _contents_at(txn, other, tip.frontier.get(other.number, 0)))
    ]


def unacknowledged(txn: ReadTxn, author: bytes) -> list[Unacknowledged]:
    """Return the other authors with contents that the tip of `author` has not seen, ascending."""
    own = read_tip(txn, author)
    seen: Frontier = {} if own is None else own.frontier
    found = []
    for other, tip in _tips(txn).items():
        if other == author:
            continue  # an author has seen its own
        # Contents are compared, not seqs: an ack that is not seen needs no ack.
        count = _contents_at(txn, tip, seen.get(tip.number, 0))
        if count < tip.contents:
            found.append(Unacknowledged(other, tip.content_hash, tip.contents, count))
    return found


def is_ack_pending(txn: ReadTxn, author: bytes) -> bool:
    """Return whether another author's tip is above the frontier of the tip of `author`.

    It stays true when only an ack of the other is new; `ack_deps` is empty then.
    """
    own = read_tip(txn, author)
    seen: Frontier = {} if own is None else own.frontier
    # Seqs, not contents: "pending" is about any intention, an ack included.
    return any(
        tip.seq > seen.get(tip.number, 0) for other, tip in _tips(txn).items() if other != author
    )


def ack_deps(txn: ReadTxn, author: bytes, limit: int) -> list[bytes]:
    """Return what an ack of `author` depends on, at most `limit` hashes; empty: nothing to ack."""
    # "cap foreign authors per ack at the condition limit": the next ack names the others.
    return [each.tip_hash for each in unacknowledged(txn, author)[:limit]]
