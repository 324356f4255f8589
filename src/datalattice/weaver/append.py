"""Append: adds records to the end of a log and keeps what follows from them.

    appender = Appender(txn, store_id, read_head(txn))
    appender.append(signed, wall_ms)        # once predecessor and dependencies are witnessed
    appender.write()

Nothing is written before `write`; look-ups see what was appended. A rebuild appends the log to
itself with the same code, so an index is the same bytes however it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from datalattice.clock import HLC_COUNTER_MAX, Hlc, clamp_future, update
from datalattice.crypto import blake3
from datalattice.engine import WriteTxn
from datalattice.errors import StoreFull
from datalattice.weaver.intention import ZERO_HASH, SignedIntention
from datalattice.weaver.op import Op
from datalattice.weaver.rows import (
    AUTHOR_TIPS,
    AUTHORS,
    LOG_META,
    SEQ_MAX,
    SUBMITTED_HERE,
    WITNESS,
    WITNESS_INDEX,
    Frontier,
    Head,
    Place,
    RangeSum,
    Tip,
    WitnessRow,
    body_of,
    decode_frontier,
    decode_place,
    decode_range,
    decode_tip,
    encode_frontier,
    number_key,
    range_key,
    read_author,
    read_witness,
    seq_at,
    seq_key,
    witness_content,
)

# Chosen here: a full frontier takes bytes for every author, a longer chain a read for every row.
FRONTIER_DEPTH_MAX: Final = 63
"""Rows that a frontier may build on: reading one takes at most 64."""

FRONTIER_ENTRIES_MAX: Final = 65_536
"""Most entries of other frontiers that are merged into that of one intention: 256 dependencies that
have seen 256 authors each. A peer may send an intention with a thousand dependencies."""

FRONTIER_ROW_COST: Final = 16
"""How many entries the reading of one row counts as."""


class Appender:
    """The end of a log and the tips of its authors.

    seq, content_hash: of the newest record. clock: the store's. authors: how many there are.
    """

    # In the caller's transaction: rows, indexes and tips commit together or not at all
    def __init__(self, txn: WriteTxn, store_id: bytes, head: Head) -> None:
        self._txn = txn
        self._store_id = store_id
        self.seq = head.seq
        self.authors = head.authors
        self.content_hash = head.content_hash
        self.clock = head.clock
        # An int, since XOR of ints is one operation
        self._fingerprint = int.from_bytes(head.fingerprint, "big")  # of what is written
        self._tips: dict[bytes, Tip | None] = {}
        self._keys: dict[int, bytes] = {}  # authors by number, those that were looked up
        self._places: dict[bytes, Place | None] = {}
        self._ranges: dict[int, RangeSum] = {}  # by the first byte of the hashes
        # What `write` writes.
        self._moved: set[bytes] = set()
        self._new_authors: dict[int, bytes] = {}
        self._rows: dict[int, WitnessRow] = {}
        self.appended: list[Op] = []

    @property
    def fingerprint(self) -> bytes:
        """The XOR of the hashes of all witnessed intentions that are written."""
        return self._fingerprint.to_bytes(32, "big")

    # --- looking up ---------------------------------------------------------------------------

    def read_places(self, hashes: Iterable[bytes]) -> None:
        """Read where intentions are witnessed, all in one call."""
        # In key order: neighbours share pages of the index
        wanted = sorted({hash for hash in hashes if hash not in self._places})
        found = self._txn.get_many(WITNESS_INDEX, wanted)
        for hash, value in zip(wanted, found, strict=True):
            self._places[hash] = None if value is None else decode_place(value)

    def place(self, hash: bytes) -> Place | None:
        """Return where an intention is witnessed, or None."""
        if hash not in self._places:
            self.read_places((hash,))
        return self._places[hash]

    def first_missing(self, deps: Sequence[bytes]) -> bytes | None:
        """Return the first dependency that is not witnessed, or None."""
        for dep in deps:
            if dep != ZERO_HASH and self.place(dep) is None:  # "ZERO counts as witnessed"
                return dep
        return None

    def read_tips(self, authors: Iterable[bytes]) -> None:
        """Read the tips of authors, all in one call."""
        wanted = sorted({author for author in authors if author not in self._tips})
        # Decoded once a call, then moved in memory
        for author, value in zip(wanted, self._txn.get_many(AUTHOR_TIPS, wanted), strict=True):
            tip = self._tips[author] = None if value is None else decode_tip(value)
            if tip is not None:
                self._keys[tip.number] = author

    def tip(self, author: bytes) -> Tip | None:
        """Return an author's tip, or None."""
        if author not in self._tips:
            self.read_tips((author,))
        return self._tips[author]

    def tip_hash(self, author: bytes) -> bytes:
        """Return the hash of an author's tip; ZERO for an author without one."""
        tip = self.tip(author)
        # "tip of an unknown author is ZERO", so that a first intention fits
        return ZERO_HASH if tip is None else tip.hash

    def successor(self, author: bytes, prev: bytes) -> SignedIntention | None:
        """Return the author's witnessed intention after `prev`, or None."""
        tip = self.tip(author)
        place = Place(0, 0) if prev == ZERO_HASH else self.place(prev)
        if tip is None or place is None or tip.hash == prev:
            return None  # `prev` is not witnessed, or is the tip itself
        height = 0
        if place.seq:
            # A predecessor of another author has no successor, and proves nothing about two.
            if place.number != tip.number:
                return None
            height = self.row(place.seq).height
        # By skip rows: a few hundred reads for a million heights
        row = self.row(seq_at(self.row, tip.seq, tip.height, height + 1))
        return row.signed(self._store_id, author)

    def _key(self, number: int) -> bytes:
        found = self._keys.get(number)
        if found is None:
            found = self._keys[number] = read_author(self._txn, number)
        return found

    def row(self, seq: int) -> WitnessRow:
        """Return the row of a record, one that is not in the tables yet included."""
        return self._rows.get(seq) or read_witness(self._txn, seq)

    def operation(self, hash: bytes) -> tuple[int, Op] | None:
        """Return seq and operation of an intention that is not written yet; None for any other."""
        place = self._places.get(hash)
        at = -1 if place is None else len(self.appended) - 1 - (self.seq - place.seq)
        return None if place is None or at < 0 else (place.seq, self.appended[at])

    # --- appending ----------------------------------------------------------------------------

    def append(self, signed: SignedIntention, wall_ms: int, *, local: bool = False) -> None:
        """Add a record and move the author's tip.

        local: written here, so its stamp came from the clock.

        Raises: StoreFull: the log has `SEQ_MAX` records.
        """
        # Refused before anything is changed: the caller may catch it and go on in this transaction.
        if self.seq >= SEQ_MAX:
            raise StoreFull(f"a store holds at most {SEQ_MAX} intentions")
        author, stamp, _, prev, deps, payload = signed.intention
        tip = self.tip(author) or self._new_author(author)
        self._moved.add(author)
        seq = self.seq = self.seq + 1
        height = tip.height + 1
        # An ack has no payload and is not counted as content: acks must not ask for acks.
        contents = tip.contents + (1 if payload else 0)
        # store_prev is the tip, by the rule of witnessing, so a chain has one intention a height.
        skip = tip.seq  # at an odd height, `height & (height - 1)` is the height before
        if not height & 1:
            skip = seq_at(self.row, tip.seq, tip.height, height & (height - 1))
        base, depth, frontier = self._merge(tip, deps, seq)
        self._rows[seq] = WitnessRow(
            tip.number,
            height,
            contents,
            tip.seq,
            skip,
            base,
            wall_ms,
            depth,
            SUBMITTED_HERE if local else 0,
            self.content_hash,
            frontier,
            signed.signature,
            body_of(signed, height),
        )
        # Each record names the one before it, so the order of the log cannot be changed unseen.
        self.content_hash = blake3(
            witness_content(self._store_id, signed.hash, wall_ms, self.content_hash)
        )
        self._see(stamp, wall_ms, local=local)
        self.appended.append(Op(signed.hash, payload, stamp, author, deps, prev, height))
        self._places[signed.hash] = Place(seq, tip.number)
        tip.seq = seq
        tip.hash = signed.hash
        tip.height = height
        tip.contents = contents
        tip.stamp = stamp  # as signed: "stored stamps are never rewritten"
        tip.depth = depth
        if payload:
            tip.content_hash = signed.hash  # what an ack of others will name

    def _see(self, stamp: Hlc, wall_ms: int, *, local: bool) -> None:
        """Move the clock past the stamp of a new record."""
        wall, counter = self.clock
        is_behind = stamp[0] <= wall_ms and stamp[0] < wall and wall_ms <= wall
        if is_behind and not local and counter < HLC_COUNTER_MAX:
            # The result of the rule below while the clock is ahead: from a call's second record on.
            self.clock = Hlc(wall, counter + 1)
            return
        # A stamp from the future is kept as signed, but moves the clock by one step only.
        stamp = clamp_future(stamp, self.clock, wall_ms)
        # "every witnessed foreign intention does update"; a local stamp came from this clock.
        self.clock = max(self.clock, stamp) if local else update(self.clock, stamp, wall_ms)

    def _new_author(self, author: bytes) -> Tip:
        self.authors += 1
        # Numbers keep the author's 32 bytes out of every row
        tip = self._tips[author] = Tip(self.authors)
        self._keys[tip.number] = self._new_authors[tip.number] = author
        return tip

    def _merge(self, tip: Tip, deps: Sequence[bytes], seq: int) -> tuple[int, int, bytes]:
        """Move the frontier of `tip` to a new intention; return base, depth and difference.

        base: seq of the row whose frontier the new one is the difference to; 0: it is complete.
        depth: rows to read for all of it. difference: encoded, without the author's own entry,
        which is the row's seq.
        """
        frontier = tip.frontier
        # The difference to `store_prev` first: one author's rows follow one another
        base, depth = tip.seq, tip.depth
        if not deps and base and depth < FRONTIER_DEPTH_MAX:  # the usual case: no difference
            frontier[tip.number] = seq
            return base, depth + 1, b""
        found: Frontier = {}  # the difference
        left = FRONTIER_ENTRIES_MAX
        for place in self._newest_first(deps, seq):
            # A seq at or below the frontier is an ancestor already, and so is all below it.
            if frontier.get(place.number, 0) >= place.seq:
                continue
            other = self.tip(self._key(place.number)) if left > 0 else None
            if other is not None and other.seq != place.seq:
                seen, cost = self._walk_frontier(place.seq, frontier, left)
                left -= cost
                found |= seen
                frontier |= seen
            elif other is not None:
                left -= len(other.frontier)
                is_first = base == tip.seq and not found
                if left >= 0 and is_first and other.frontier.get(tip.number, 0) == base:
                    # It has seen this author's newest intention, and so all that the author saw.
                    frontier = other.frontier.copy()
                    base, depth = other.seq, other.depth
                    continue
                for number, last in other.frontier.items() if left >= 0 else ():
                    if last > frontier.get(number, 0):
                        found[number] = frontier[number] = last
            # Beyond the bound only the dependency itself is entered: the frontier is a lower bound
            # then, and an ack may repeat what was seen.
            found[place.number] = frontier[place.number] = place.seq
        frontier[tip.number] = seq
        tip.frontier = frontier
        found.pop(tip.number, None)
        # "store it as the difference": a full one takes some 100 bytes at 50 authors.
        # At depth 63 a full one is stored: the next reader needs one row, not a longer chain.
        if base and depth < FRONTIER_DEPTH_MAX:
            return base, depth + 1, encode_frontier(found.items(), seq)
        others = [pair for pair in frontier.items() if pair[0] != tip.number]
        return 0, 0, encode_frontier(others, seq)

    def _newest_first(self, deps: Sequence[bytes], seq: int) -> list[Place]:
        """Return where dependencies are witnessed, the newest first: it may have seen the others.

        A dependency at `seq` or behind is damage: it is left out here, and fsck reports it.
        """
        if not deps:
            return []
        places = [self.place(dep) for dep in deps if dep != ZERO_HASH]
        before = [one for one in places if one is not None and one.seq < seq]
        return sorted(before, key=lambda place: place.seq, reverse=True)

    def _walk_frontier(self, seq: int, frontier: Frontier, most: int) -> tuple[Frontier, int]:
        """Return the entries of the frontier at `seq` above those of `frontier`, and their cost.

        Stops at the first row that `frontier` covers, or once the cost reaches `most` entries.
        """
        found: Frontier = {}
        cost = 0
        while seq and cost < most:
            row = self.row(seq)
            # A row at or below a known seq adds nothing: its ancestors are in the frontier too.
            if frontier.get(row.number, 0) >= seq:
                break
            entries = decode_frontier(row.frontier, seq)
            cost += FRONTIER_ROW_COST + len(entries)
            for number, seen in ((row.number, seq), *entries.items()):
                if seen > frontier.get(number, 0) and seen > found.get(number, 0):
                    found[number] = seen
            seq = row.base
        return found, cost

    # --- writing ------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what was appended since the last `write`: rows, index, authors and tips."""
        txn, places = self._txn, self._places
        txn.put_many(WITNESS, [(seq_key(seq), row.encode()) for seq, row in self._rows.items()])
        # Ascending keys fill the pages of the index in order
        hashes = sorted([op.hash for op in self.appended])
        found = [(hash, places[hash]) for hash in hashes]
        txn.put_many(WITNESS_INDEX, [(hash, place.encode()) for hash, place in found if place])
        self._write_ranges(hashes)
        tips = [(author, self._tips[author]) for author in sorted(self._moved)]
        txn.put_many(AUTHOR_TIPS, [(author, tip.encode()) for author, tip in tips if tip])
        if self._new_authors:
            txn.put_many(
                AUTHORS, [(number_key(number), key) for number, key in self._new_authors.items()]
            )
        # One Appender serves a long rebuild in lots, so tips and sums stay and the rest is dropped.
        self._rows.clear()
        self.appended = []  # the caller may hold the list
        self._moved.clear()
        self._new_authors.clear()
        self._places.clear()

    def _write_ranges(self, hashes: Sequence[bytes]) -> None:
        """Add new hashes, sorted, to the fingerprint and the sums that reconciliation asks for."""
        ranges = self._ranges
        # One row a first byte: 256 sums, however many hashes
        added: dict[int, list[bytes]] = {}
        for hash in hashes:
            added.setdefault(hash[0], []).append(hash)
        touched = list(added)
        unread = [first for first in touched if first not in ranges]
        rows = self._txn.get_many(LOG_META, [range_key(first) for first in unread])
        ranges.update(zip(unread, map(decode_range, rows), strict=True))
        for first, found in added.items():
            xor = 0
            for hash in found:
                xor ^= int.from_bytes(hash, "big")
            ranges[first] = RangeSum(ranges[first].size + len(found), ranges[first].xor ^ xor)
            self._fingerprint ^= xor  # "fingerprint": the XOR of all witnessed hashes
        self._txn.put_many(
            LOG_META, [(range_key(first), ranges[first].encode()) for first in touched]
        )
