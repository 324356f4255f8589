"""Replay: the witness log read as operations, in one pass over the bytes of each row.

Projection reads every row once, and a rebuild of the state reads all of them, so fields that only
the log needs are skipped. `rows` describes the layout.

Source: docs/design/weaver.md "Tables of a store".
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from datalattice.clock import Hlc
from datalattice.crypto import SIGNATURE_BYTES, blake3
from datalattice.engine import ReadTxn
from datalattice.errors import Corruption
from datalattice.limits import HASH_BYTES
from datalattice.weaver.intention import ZERO_HASH
from datalattice.weaver.op import Op
from datalattice.weaver.rows import WITNESS, WITNESS_ROW, read_author, seq_key

_BODY: Final = Struct("<QI32sBI")  # stamp, author or store_prev, variant of the condition, count
_LENGTH: Final = Struct("<I")


def read_operations(txn: ReadTxn, store_id: bytes, start_seq: int, limit: int) -> Iterator[Op]:
    """Yield the operations of at most `limit` rows from `start_seq` on.

    Raises: Corruption: a row is missing or damaged.
    """
    authors: dict[int, bytes] = {}
    seq = start_seq
    # One scan: rows come in order, a page at a time.
    for key, row in txn.scan(WITNESS, seq_key(seq), seq_key(seq + limit)):
        if key != seq_key(seq):
            raise Corruption(f"{WITNESS} {seq}: the row is missing")
        yield _operation(txn, store_id, row, seq, authors)
        seq += 1


def read_operation(txn: ReadTxn, store_id: bytes, seq: int) -> Op:
    """Return the operation of one row.

    Raises: Corruption: the row is missing or damaged.
    """
    row = txn.get(WITNESS, seq_key(seq))
    if row is None:
        raise Corruption(f"{WITNESS} {seq}: the row is missing")
    return _operation(txn, store_id, row, seq, {})


def _operation(
    txn: ReadTxn, store_id: bytes, row: bytes, seq: int, authors: dict[int, bytes]
) -> Op:
    size = len(row)
    if size < WITNESS_ROW.size:
        raise Corruption(f"{WITNESS} {seq}: a row of {size} bytes is too short")
    fields = WITNESS_ROW.unpack_from(row)
    number: int = fields[0]
    height: int = fields[1]
    frontier_bytes: int = fields[9]
    # Frontier and signature are skipped: projection needs neither.
    body = WITNESS_ROW.size + frontier_bytes + SIGNATURE_BYTES
    at = body + _BODY.size
    if at + _LENGTH.size > size:
        raise Corruption(f"{WITNESS} {seq}: a row of {size} bytes is too short")
    head = _BODY.unpack_from(row, body)
    link: bytes = head[2]
    count: int = head[4]
    end = at + HASH_BYTES * count
    # The variant and the exact length: nothing is left over.
    if head[3] != 0 or end + _LENGTH.size + int.from_bytes(row[end : end + 4], "little") != size:
        raise Corruption(f"{WITNESS} {seq}: the row does not hold one intention")
    deps: tuple[bytes, ...] = ()
    if count:
        deps = tuple([row[i : i + HASH_BYTES] for i in range(at, end, HASH_BYTES)])
    # An author's first row has its key where the others have the predecessor.
    author, prev = link, ZERO_HASH
    if height == 1:
        authors[number] = author
    else:
        prev = link
        known = authors.get(number)
        if known is None:
            known = authors[number] = read_author(txn, number)
        author = known
    borsh = b"".join((author, row[body : body + 12], store_id, prev, row[body + 44 :]))
    stamp = Hlc(head[0], head[1])
    # Recomputed: a damaged row gets another name and breaks the chain.
    return Op(blake3(borsh), row[end + 4 :], stamp, author, deps, prev, height)
