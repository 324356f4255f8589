"""Heads of a key and its winner, however the operations arrive."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, strategies as st

from datalattice.clock import Hlc
from datalattice.errors import UsageError
from datalattice.testing.machine_kit import KIT_AUTHORS
from datalattice.weaver.heads import (
    HeadReader,
    HeadTable,
    Winner,
    decode_row,
    encode_row,
)
from datalattice.weaver.headvalue import HeadValue
from datalattice.weaver.op import Op
from datalattice.weaver.tables import Overlay

A, B, C = KIT_AUTHORS[:3]


def op(name: int, author: bytes, wall: int, *deps: int, height: int = 1) -> Op:
    hashes = tuple(bytes([dep]) * 32 for dep in deps)
    return Op(bytes([name]) * 32, b"%d" % name, Hlc(wall, 0), author, hashes, height=height)


class Table:
    """A table over operations whose payload is the value of every key."""

    def __init__(self, *ops: Op) -> None:
        self.state = Overlay()
        self.known = {op.hash: op for op in ops}
        self.looked_up: list[bytes] = []
        self.read: list[bytes] = []
        self.heads = HeadTable(self.state, self.look_up, self.values_of)

    def look_up(self, hash: bytes) -> Op:
        self.looked_up.append(hash)
        if hash not in self.known:
            raise UsageError("unknown")
        return self.known[hash]

    def values_of(self, payload: bytes) -> dict[bytes, bytes | None]:
        self.read.append(payload)
        return {b"k": payload, b"l": payload}

    def apply(self, *ops: Op) -> list[Winner | None]:
        return [self.heads.apply(b"k", op, op.payload) for op in ops]


@given(
    st.none() | st.binary(max_size=300),
    st.lists(st.binary(min_size=32, max_size=32), max_size=5),
)
def test_rows_are_the_encoding_of_their_message(value: bytes | None, heads: list[bytes]) -> None:
    message = HeadValue(value, True if value is None else None, tuple(heads))
    assert encode_row(value, heads) == message.encode()
    assert decode_row(message.encode()) == (value, heads)


def test_a_row_without_kind_exists_and_has_no_value() -> None:
    row = HeadValue(heads=(b"\x01" * 32,)).encode()
    assert decode_row(row) == (None, [b"\x01" * 32])
    state = Overlay()
    state.put(b"k", row)
    found = HeadReader(state).inspect(b"k")
    assert (found.exists, found.value, found.tombstone) == (True, None, False)


def test_a_row_in_another_encoding_is_read() -> None:
    head = b"\x1a\x20" + b"\x01" * 32
    assert decode_row(head + b"\x0a\x01v") == (b"v", [b"\x01" * 32])
    assert decode_row(b"\x0a\x01v\x22\x00" + head) == (b"v", [b"\x01" * 32])


def test_the_first_write_needs_no_look_up() -> None:
    table = Table()
    assert table.apply(op(1, A, 1)) == [Winner(b"1", (b"\x01" * 32,))]
    assert table.apply(op(2, A, 2, 1)) == [Winner(b"2", (b"\x02" * 32,))]
    assert table.looked_up == []


def test_the_same_operation_again_changes_nothing() -> None:
    first = op(1, A, 1)
    table = Table(first)
    table.apply(first)
    before = dict(table.state.changes)
    assert table.apply(first) == [None]
    assert table.state.changes == before


def test_a_promoted_head_gets_its_value_back() -> None:
    ops = [op(1, A, 10), op(2, B, 5), op(3, C, 3, 1)]
    for order in ([0, 1, 2], [1, 0, 2], [0, 2, 1]):
        table = Table(*ops)
        table.apply(*[ops[index] for index in order])
        assert table.heads.inspect(b"k").value == b"2"
        assert table.heads.heads(b"k") == [b"\x02" * 32, b"\x03" * 32]


def test_of_one_author_with_equal_stamps_the_later_in_its_chain_wins() -> None:
    first, second = op(9, A, 5, height=1), op(1, A, 5, height=2)
    for order in permutations([first, second]):
        table = Table(first, second)
        table.apply(*order)
        assert table.heads.heads(b"k") == [second.hash, first.hash]


def test_a_payload_is_read_once_for_all_keys_it_wins() -> None:
    ops = [op(1, A, 10), op(2, B, 5), op(3, C, 3, 1)]
    table = Table(*ops)
    for one in ops[:2]:
        table.heads.apply_all(one, {b"k": one.payload, b"l": one.payload})
    winners = table.heads.apply_all(ops[2], {b"l": b"3", b"k": b"3"})
    assert table.read == [b"2"]
    assert list(winners) == [b"l", b"k"]
    assert {winner.value for winner in winners.values()} == {b"2"}


def test_ranks_are_looked_up_once_for_all_keys() -> None:
    ops = [op(number, KIT_AUTHORS[number % 7], number) for number in range(1, 8)]
    table = Table(*ops)
    for one in ops:
        table.heads.apply_all(one, {b"%d" % key: one.payload for key in range(50)})
    assert len(table.looked_up) == len(set(table.looked_up))


def test_many_dependencies_and_heads() -> None:
    ops = [op(number, KIT_AUTHORS[number % 7], number) for number in range(1, 100)]
    merge = op(200, A, 300, *range(1, 99))
    table = Table(*ops)
    table.apply(*ops)
    assert table.apply(merge) == [Winner(b"200", (merge.hash, ops[-1].hash))]


def test_reading_a_table() -> None:
    first, second, gone = op(1, A, 2), op(2, B, 1), op(3, A, 3)
    table = Table(first, second, gone)
    table.apply(first, second)
    table.heads.apply(b"gone", gone, None)
    assert table.heads.get(b"k") == b"1"
    assert table.heads.get_with_conflict(b"k") == (b"1", True)
    assert table.heads.get_with_conflict(b"gone") == (None, False)
    assert table.heads.get_with_conflict(b"missing") == (None, False)
    assert table.heads.get(b"missing") is None
    assert table.heads.heads(b"missing") == []
    assert list(table.heads.scan()) == [(b"gone", None, False), (b"k", b"1", True)]
    assert list(table.heads.scan(b"h", reverse=True)) == [(b"k", b"1", True)]
    assert not table.heads.inspect(b"missing").exists
    assert table.heads.inspect(b"gone").tombstone


def test_a_head_that_is_not_in_the_log_is_an_error() -> None:
    table = Table()
    table.apply(op(1, A, 1))
    with pytest.raises(UsageError, match="unknown"):
        table.apply(op(2, B, 2))
