"""Fsck: checks the tables of one store's log, and rebuilds its indexes.

    level 1     every row of the log is there, decodes, and names the record before it
    level 2     also: every author signed, and the node sealed the log
    level 3     also: chains, heights, counts and frontiers in the rows; every row of every index

`witness` and `floating` hold the data; all other rows are derived from them. `fsck` and `rebuild`
derive these rows again in one pass over the log; `fsck` compares them, `rebuild` writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, cast

from datalattice.crypto import KeyPair, blake3
from datalattice.engine import ReadTxn, WriteTxn
from datalattice.errors import Corruption, DataLatticeError, UsageError
from datalattice.weaver.append import Appender
from datalattice.weaver.intention import ZERO_HASH, SignedIntention
from datalattice.weaver.rows import (
    AUTHOR_TIPS,
    AUTHORS,
    FLOATING,
    FLOATING_BY_DEP,
    FLOATING_BY_PREV,
    FORK_PREFIX,
    HEAD_KEY,
    LOG_META,
    RANGE_PREFIX,
    SUBMITTED_HERE,
    WITNESS,
    WITNESS_INDEX,
    FloatingRow,
    Head,
    WitnessRow,
    decode_floating,
    decode_head,
    decode_witness,
    line_key,
    seq_key,
    witness_content,
)

FSCK_LEVELS: Final = (1, 2, 3)  # each level includes the ones below it

INDEX_TABLES: Final = (
    AUTHOR_TIPS,
    AUTHORS,
    FLOATING_BY_DEP,
    FLOATING_BY_PREV,
    LOG_META,
    WITNESS_INDEX,
)
"""The tables that follow from `witness` and `floating`."""

_ROWS_AT_ONCE: Final = 1_000
"""Rows replayed between two writes: bounds the memory of a pass over a log of any length."""


class LogFault(NamedTuple):
    """One fault: the level that finds it, table and key of the row, and what is wrong with it."""

    level: int
    table: str
    key: bytes
    text: str

    def __str__(self) -> str:
        return f"{self.table} {self.key.hex()}: {self.text}"


def fsck(txn: ReadTxn, store_id: bytes, signer: KeyPair, level: int = 1) -> list[LogFault]:
    """Return what is wrong with a log; nothing is changed. `signer` is the key of the node.

    Cost: a pass over the log; from level 2 on a signature a row.

    Raises: UsageError: there is no such level.
    """
    if level not in FSCK_LEVELS:
        raise UsageError(f"fsck has the levels 1, 2 and 3, got {level}")
    faults: list[LogFault] = []
    # Links first: the other levels read rows that this one has found to be there.
    head = _check_links(txn, store_id, faults)
    # A log with a hole cannot be replayed; what follows from it is unknown.
    is_whole = not faults
    if level >= 2:
        faults += _check_signatures(txn, store_id, signer, head)
    if level >= 3 and is_whole:
        faults += _check_indexes(txn, store_id, head)
    return faults


def rebuild(txn: WriteTxn, store_id: bytes, signer: KeyPair) -> Head:
    """Rebuild every index from `witness` and `floating`; return the head.

    Clock and arrival counter are kept where the old head can be read: they may be ahead of the log.

    Raises: Corruption: a row of the log is missing or damaged, or breaks the chain.
    """
    faults: list[LogFault] = []
    old = _check_links(txn, store_id, faults)
    # A wrong head can be derived from the log; a damaged row cannot.
    broken = [fault for fault in faults if fault.table == WITNESS]
    if broken:
        raise Corruption(f"{broken[0]}; the store must be filled again from its peers")
    # All indexes: nothing shows whether one has lost rows.
    for table in INDEX_TABLES:
        txn.delete_range(table)
    derived = _derive(txn, txn, store_id)
    # "Stored stamps are never rewritten", so the new clock must not fall behind one already used.
    head = dataclasses.replace(
        derived,
        arrival=max(derived.arrival, old.arrival),
        clock=max(derived.clock, old.clock),
        # The old seal covers the old end, if there was one.
        seal=signer.seal(derived.content_hash) if derived.seq else derived.seal,
    )
    if head != Head():  # an empty log has no head row
        txn.put(LOG_META, HEAD_KEY, head.encode())
    return head


# --- the log itself ---------------------------------------------------------------------------


def _read(txn: ReadTxn, store_id: bytes) -> Iterator[tuple[int, WitnessRow, SignedIntention]]:
    """Yield the rows of the log; reads no other table.

    Raises: Corruption: one is missing or damaged.
    """
    authors: dict[int, bytes] = {}
    # In key order with a running number: a gap and a duplicate both show.
    for expected, (key, value) in enumerate(txn.scan(WITNESS), 1):
        if key != seq_key(expected):
            raise Corruption(f"{WITNESS} {expected}: the row is missing")
        row = decode_witness(value, expected)
        # `authors` is an index and may be damaged: the keys come from the authors' first rows.
        author = row.new_author or authors.get(row.number)
        if author is None:
            raise Corruption(f"{WITNESS} {expected}: author {row.number} has no first row before")
        authors[row.number] = author
        try:
            signed = row.signed(store_id, author)
        except DataLatticeError as error:
            raise Corruption(f"{WITNESS} {expected}: {error}") from error
        yield expected, row, signed


def _check_links(txn: ReadTxn, store_id: bytes, faults: list[LogFault]) -> Head:
    """Check that the log is complete and chained up to the head; return the head."""
    seq, content_hash = 0, ZERO_HASH
    try:
        for seq, row, signed in _read(txn, store_id):
            if row.before != content_hash:
                faults.append(
                    LogFault(1, WITNESS, seq_key(seq), "it does not name the record before it")
                )
            content_hash = blake3(witness_content(store_id, signed.hash, row.wall, row.before))
    except Corruption as error:
        faults.append(LogFault(1, WITNESS, seq_key(seq + 1), str(error)))
    found = txn.get(LOG_META, HEAD_KEY)
    try:  # no head: the log is still empty
        head = Head() if found is None else decode_head(found)
    except Corruption as error:
        faults.append(LogFault(1, LOG_META, HEAD_KEY, str(error)))
        return Head()
    if (head.seq, head.content_hash) != (seq, content_hash):
        text = f"the head is at {head.seq}, {head.content_hash.hex()}; the log ends at {seq}, "
        faults.append(LogFault(1, LOG_META, HEAD_KEY, text + content_hash.hex()))
    return head


def _check_signatures(
    txn: ReadTxn, store_id: bytes, signer: KeyPair, head: Head
) -> Iterator[LogFault]:
    try:
        for seq, _, signed in _read(txn, store_id):
            if not signed.verify():
                yield LogFault(2, WITNESS, seq_key(seq), "its author did not sign it")
    except Corruption:
        return  # level 1 has reported it
    # The newest record names all before it, so one seal covers the log.
    if head.seq and head.seal != signer.seal(head.content_hash):
        yield LogFault(2, LOG_META, HEAD_KEY, "the node did not seal the newest record")
    # Floating intentions are data, too: no index can bring them back.
    for hash, value in txn.scan(FLOATING):
        try:
            if not decode_floating(value).signed.verify():
                yield LogFault(2, FLOATING, hash, "its author did not sign it")
        except Corruption as error:
            yield LogFault(2, FLOATING, hash, str(error))


# --- what follows from it ---------------------------------------------------------------------


def _derive(txn: ReadTxn, out: WriteTxn, store_id: bytes) -> Head:
    """Derive all rows but the head from `witness` and `floating` of `txn`; write them to `out`.

    Return the head without a seal, with the least clock and arrival counter that the rows allow.
    """
    log = Appender(out, store_id, Head())
    for seq, row, signed in _read(txn, store_id):
        log.append(signed, row.wall, local=bool(row.flags & SUBMITTED_HERE))
        if seq % _ROWS_AT_ONCE == 0:  # in lots, so memory stays bounded
            log.write()
    log.write()
    count = size = last = 0
    for waiting in _floating_rows(txn):
        signed = waiting.signed
        intention = signed.intention
        last = waiting.arrival
        count += 1
        size += signed.size
        line = line_key(intention.store_prev, intention.author)
        out.put(FLOATING_BY_PREV, line + seq_key(last), signed.hash)
        # As `Ingest` does: one row below the predecessor, one below the first missing dependency.
        missing = log.first_missing(intention.deps)
        if missing is not None:
            out.put(FLOATING_BY_DEP, missing + seq_key(last), signed.hash)
        witnessed = log.successor(intention.author, intention.store_prev)
        if witnessed is not None:
            out.put(LOG_META, FORK_PREFIX + signed.hash, witnessed.hash)
    return Head(
        log.seq,
        log.authors,
        count,
        size,
        last + 1,
        log.clock,
        log.content_hash,
        log.fingerprint,
    )


def _floating_rows(txn: ReadTxn) -> list[FloatingRow]:
    """Return what waits, in order of arrival.

    Raises: Corruption: a row does not decode, or holds another intention than its key says.
    """
    rows = []
    for hash, value in txn.scan(FLOATING):
        row = decode_floating(value)
        # The key must be the hash, or look-ups would return another intention.
        if row.signed.hash != hash:
            raise Corruption(f"{FLOATING} {hash.hex()}: it holds {row.signed.hash.hex()}")
        rows.append(row)
    return sorted(rows, key=lambda row: row.arrival)


class _Comparison:
    """A transaction that compares what is written with what is there.

    Reads return the stored rows. Tips and sums of ranges change with every record of a pass: reads
    return what the pass has written of them so far, and `finish` compares their last values.
    """

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn
        self.faults: list[LogFault] = []
        self.counts = dict.fromkeys((WITNESS, *INDEX_TABLES), 0)
        self._moving: dict[tuple[str, bytes], bytes] = {}

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the row, a tip or sum as the pass has it so far."""
        if _is_moving(table, key):
            return self._moving.get((table, key))
        return self._txn.get(table, key)

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the rows."""
        return [self.get(table, key) for key in keys]

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Compare a row, now or at the end."""
        if _is_moving(table, key):
            self._moving[table, key] = value
        else:
            self._compare(table, key, value)

    def put_many(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Compare rows."""
        for key, value in items:
            self.put(table, key, value)

    def _compare(self, table: str, key: bytes, value: bytes) -> None:
        self.counts[table] += 1
        stored = self._txn.get(table, key)
        if stored != value:
            text = "the row is missing" if stored is None else f"{stored.hex()} is stored"
            self.faults.append(
                LogFault(3, table, key, f"{text}, {value.hex()} follows from the log")
            )

    def finish(self) -> list[LogFault]:
        """Compare tips and sums, count surplus rows, and return all faults."""
        for (table, key), value in self._moving.items():
            self._compare(table, key, value)
        for table, count in self.counts.items():
            rows = sum(1 for _ in self._txn.scan(table))
            # A missing row is reported by its key above; a surplus row has no key to look for.
            if rows > count:
                text = f"{rows - count} rows more than follow from the log"
                self.faults.append(LogFault(3, table, b"", text))
        return self.faults


def _is_moving(table: str, key: bytes) -> bool:
    # Changed by many records, so compared once, at the end.
    return table == AUTHOR_TIPS or (table == LOG_META and key.startswith(RANGE_PREFIX))


def _check_indexes(txn: ReadTxn, store_id: bytes, head: Head) -> list[LogFault]:
    comparison = _Comparison(txn)
    try:
        comparison.faults += _check_order(txn, store_id)
        derived = _derive(txn, cast("WriteTxn", comparison), store_id)
    except DataLatticeError as error:
        return [*comparison.faults, LogFault(3, WITNESS, b"", f"it cannot be replayed: {error}")]
    # Used stamps and arrival numbers leave no row behind, so both may be ahead of the log.
    expected = dataclasses.replace(
        derived,
        arrival=max(derived.arrival, head.arrival),
        clock=max(derived.clock, head.clock),
        seal=head.seal,
    )
    if expected != Head():
        comparison.put(LOG_META, HEAD_KEY, expected.encode())
    return comparison.finish()


def _check_order(txn: ReadTxn, store_id: bytes) -> Iterator[LogFault]:
    """Check that every intention stands behind its predecessor and all its dependencies."""
    tips: dict[bytes, bytes] = {}
    for seq, _, signed in _read(txn, store_id):
        intention = signed.intention
        # Rule (a): "tip(I.author) == I.store_prev"
        if intention.store_prev != tips.get(intention.author, ZERO_HASH):
            yield LogFault(3, WITNESS, seq_key(seq), "it does not follow its author's tip")
        tips[intention.author] = signed.hash
        places = txn.get_many(WITNESS_INDEX, [dep for dep in intention.deps if dep != ZERO_HASH])
        # Rule (b): "every condition hash is witnessed"
        if any(place is None or place[:4] >= seq.to_bytes(4, "big") for place in places):
            yield LogFault(3, WITNESS, seq_key(seq), "a dependency is not before it")
