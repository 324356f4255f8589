"""Operations read from the rows of a log are those of its entries; damage is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.engine import MemoryEngine, WriteTxn
from datalattice.errors import Corruption
from datalattice.weaver.log import IntentionLog
from datalattice.weaver.op import Op
from datalattice.weaver.rows import LOG_TABLES, WITNESS, WITNESS_ROW, seq_key

KEYS = [KeyPair(bytes([number]) * 32) for number in range(3)]


@contextmanager
def filled() -> Iterator[tuple[IntentionLog, WriteTxn]]:
    log = IntentionLog(bytes(range(16)), KEYS[0], SystemClock())
    with MemoryEngine(LOG_TABLES).write() as txn:
        deps: list[bytes] = []
        for number in range(9):
            payload = b"%d" % number * (number * 40)
            signed, _ = log.submit(txn, KEYS[number % 3], payload, deps[: number % 4])
            deps.append(signed.hash)
        yield log, txn


def test_operations_are_those_of_the_entries() -> None:
    with filled() as (log, txn):
        expected = []
        for entry in log.scan(txn):
            intention = entry.signed.intention
            expected.append(
                Op(
                    entry.signed.hash,
                    intention.payload,
                    intention.stamp,
                    intention.author,
                    intention.deps,
                    intention.store_prev,
                    entry.height,
                )
            )
        assert len({op.author for op in expected}) == 3
        assert {len(op.deps) for op in expected} > {0, 1, 3}
        assert list(log.operations(txn, 1, 100)) == expected
        # Begun in the middle, authors are looked up.
        assert list(log.operations(txn, 5, 3)) == expected[4:7]
        assert [log.operation(txn, op.hash) for op in expected] == expected
        assert log.operation(txn, b"\x07" * 32) is None


def test_a_missing_row_is_found() -> None:
    with filled() as (log, txn):
        txn.delete(WITNESS, seq_key(4))
        assert len(list(log.operations(txn, 1, 3))) == 3
        with pytest.raises(Corruption, match="witness 4: the row is missing"):
            list(log.operations(txn, 1, 9))


def test_a_damaged_row_is_found() -> None:
    with filled() as (log, txn):
        row = txn.get(WITNESS, seq_key(5))
        assert row is not None
        frontier = int.from_bytes(row[34:38], "little")
        variant = WITNESS_ROW.size + frontier + 64 + 44
        for damaged in (
            row[:10],
            row[: WITNESS_ROW.size + 70],
            row[:-1],
            row + b"x",
            row[:variant] + b"\x01" + row[variant + 1 :],
            row[: variant + 1] + b"\xff" + row[variant + 2 :],
        ):
            txn.put(WITNESS, seq_key(5), damaged)
            with pytest.raises(Corruption, match="witness 5: "):
                list(log.operations(txn, 5, 1))
