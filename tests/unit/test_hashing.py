"""SHA3-256 of one message and of many at once, beside the standard library's."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
import threading

import pytest
from hypothesis import given, strategies as st

from datalattice.crypto import (
    HASH_LANES,
    HashNumbers,
    PlainHashNumbers,
    find_hashes,
    sha3_256,
    sha3_256_cut,
    sha3_256_ends,
    sha3_256_many,
    sha3_256_sorted,
)

RATE = 136  # bytes of a block
KINDS = list(dict.fromkeys([HashNumbers, PlainHashNumbers]))  # one if it is not compiled
CHOICES = (0, *HASH_LANES)  # 0: the most that there are


def expected(messages: list[bytes]) -> list[bytes]:
    return [hashlib.sha3_256(one).digest() for one in messages]


def test_the_compiled_build_has_lanes() -> None:
    is_compiled = os.environ.get("DATALATTICE_EXPECT_COMPILED") == "1"
    assert (1 in HASH_LANES) or not is_compiled
    assert set(HASH_LANES) <= {1, 2, 4, 8}


def test_every_length_up_to_1000() -> None:
    dice = random.Random(1)
    for length in range(1_001):
        messages = [dice.randbytes(length) for _ in range(9)]
        for lanes in CHOICES:
            assert sha3_256_many(messages, lanes) == expected(messages)
        assert sha3_256(messages[0]) == hashlib.sha3_256(messages[0]).digest()


def test_every_size_of_batch_with_mixed_lengths() -> None:
    dice = random.Random(2)
    lengths = (0, 1, RATE - 1, RATE, RATE + 1, 4 * RATE - 1, 5_000)
    for count in range(18):
        for _ in range(10):
            messages = [dice.randbytes(dice.choice(lengths)) for _ in range(count)]
            for lanes in CHOICES:
                assert sha3_256_many(messages, lanes) == expected(messages)


@given(st.lists(st.binary(max_size=3 * RATE), max_size=20), st.sampled_from(CHOICES))
def test_any_messages(messages: list[bytes], lanes: int) -> None:
    assert sha3_256_many(messages, lanes) == expected(messages)


def test_messages_come_from_any_iterable_and_other_bytes_are_hashed_alone() -> None:
    assert sha3_256_many(iter([b"a", b"b"])) == expected([b"a", b"b"])
    for given_as in (bytearray, memoryview):
        assert sha3_256(given_as(b"abc")) == hashlib.sha3_256(b"abc").digest()
    with pytest.raises(TypeError):
        sha3_256("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sha3_256_many([b"a", "text"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        sha3_256_many(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", [b"", b"1", b"abc"])
@pytest.mark.parametrize(
    ("start", "count", "size"), [(0, 0, 1), (3, 9, 100), (1, 1, 999), (0, 5, 200)]
)
def test_parts_are_cut_and_hashed(start: int, count: int, size: int, head: bytes) -> None:
    data = random.Random(4).randbytes(1_000)
    messages = [head + data[start + i * size : start + (i + 1) * size] for i in range(count)]
    wanted = (expected(messages), b"".join(messages))
    assert sha3_256_cut(data, start, count, size, head) == wanted


@pytest.mark.parametrize(
    ("start", "count", "size"),
    [(-1, 1, 1), (0, -1, 1), (0, 1, 0), (0, 1, -1), (4, 0, 1), (1, 1, 3), (0, 2, 2), (0, 2**62, 8)],
)
def test_parts_outside_of_the_bytes_are_refused(start: int, count: int, size: int) -> None:
    with pytest.raises(ValueError, match="lie outside of the bytes"):
        sha3_256_cut(b"abc", start, count, size, b"")


@pytest.mark.parametrize("count", [0, 1, 2, 9, 300])
def test_messages_that_lie_end_to_end_are_hashed_in_place(count: int) -> None:
    dice = random.Random(count)
    messages = [dice.randbytes(dice.choice((0, 3, RATE, 300, 2_000))) for _ in range(count)]
    ends = [sum(map(len, messages[: i + 1])) for i in range(count)]
    digests = sha3_256_ends(b"".join(messages) + b"behind", ends)
    assert digests == b"".join(expected(messages))


@pytest.mark.parametrize("ends", [[4], [2, 1], [-1], [1, -1], [2**62]])
def test_ends_outside_of_the_bytes_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="decrease or lie outside of the bytes"):
        sha3_256_ends(b"abc", ends)


@given(st.data())
def test_hashes_are_found_among_digests(data: st.DataObject) -> None:
    known = expected([bytes([n]) for n in range(data.draw(st.integers(0, 40)))])
    others = expected([b"another", b"one more"])
    wanted = data.draw(st.lists(st.sampled_from([*known, *others])))
    numbers = find_hashes(b"".join(known), wanted)
    assert numbers == [known.index(hash) if hash in known else -1 for hash in wanted]


@pytest.mark.parametrize("wrong", [b"", bytes(31), bytes(33), None])
def test_what_is_no_hash_is_not_looked_for(wrong: bytes | None) -> None:
    with pytest.raises(ValueError, match="hash 1 is not 32 bytes"):
        find_hashes(bytes(64), [bytes(32), wrong])  # type: ignore[list-item]


def sorted_rows(rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes, int]]:
    """Return the hash, the row and the number of each, from `sha3_256_sorted`."""
    ends, at = [], 0
    for key, rest in rows:
        ends += [at + len(key), at + len(key) + len(rest)]
        at = ends[-1]
    data = b"".join(key + rest for key, rest in rows)
    hashes, ordered, stops, numbers = sha3_256_sorted(data, struct.pack(f"<{len(ends)}q", *ends))
    count = len(hashes) // 32
    stop = struct.unpack(f"<{count}q", stops)
    return [
        (hashes[32 * i : 32 * i + 32], ordered[stop[i - 1] if i else 0 : stop[i]], number)
        for i, number in enumerate(struct.unpack(f"<{count}q", numbers))
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 255, 256, 257, 1_000])
def test_rows_are_sorted_by_the_hashes_of_their_keys(count: int) -> None:
    dice = random.Random(count)
    keys = [dice.randbytes(dice.choice((0, 3, RATE, 300))) for _ in range(count)]
    keys += keys[::3]  # of equal keys, the last row stays
    rows = [(key, dice.randbytes(dice.randrange(9))) for key in keys]
    last = {hashlib.sha3_256(key).digest(): i for i, (key, _) in enumerate(rows)}
    wanted = [(hash, b"".join(rows[i]), i) for hash, i in sorted(last.items())]
    assert sorted_rows(rows) == wanted


@pytest.mark.parametrize("spans", [b"1" * 8, b"1" * 15, [0, 4], [3, 2], [1, 2, 1, 3], [-1, 2]])
def test_rows_that_end_elsewhere_are_refused(spans: bytes | list[int]) -> None:
    given = spans if isinstance(spans, bytes) else struct.pack(f"<{len(spans)}q", *spans)
    with pytest.raises(ValueError, match="decrease or end outside of the rows"):
        sha3_256_sorted(b"abc", given)


@pytest.mark.parametrize("lanes", [-1, 3, 9, 16])
def test_a_number_of_lanes_that_is_not_there_is_refused(lanes: int) -> None:
    if not HASH_LANES:  # the standard library knows no lanes
        assert sha3_256_many([b"a"], lanes) == expected([b"a"])
        return
    with pytest.raises(ValueError, match=f"does not hash {lanes} messages at once"):
        sha3_256_many([b"a"], lanes)


def test_messages_may_be_taken_from_the_list_while_they_are_hashed() -> None:
    messages = [bytes([number]) * 50_000 for number in range(64)]
    wanted, found = expected(messages), []
    given_up = list(messages)
    thread = threading.Thread(target=lambda: found.extend(sha3_256_many(given_up)))
    del messages
    thread.start()
    given_up.clear()
    thread.join()
    # The list was read before or after it was emptied, never in between.
    assert found in (wanted, [])


def test_other_threads_run_while_a_large_batch_is_hashed() -> None:
    messages = [bytes(100_000)] * 64
    begun, ran = threading.Event(), threading.Event()

    def other() -> None:
        begun.wait()
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)  # nothing but giving the lock back lets the other one run
    try:
        begun.set()
        for _ in range(1_000):
            sha3_256_many(messages)
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_numbers_by_hash_are_those_of_a_dict(kind: type[HashNumbers], data: st.DataObject) -> None:
    dice = random.Random(data.draw(st.integers(0, 1 << 32)))
    # Few hashes are removed and set again; many make the table grow.
    pool = [dice.randbytes(32) for _ in range(data.draw(st.sampled_from((3, 47, 49, 300))))]
    pool += [bytes(31) + bytes([byte]) for byte in range(9)]  # they differ in their last byte alone
    table, numbers = kind(), dict[bytes, int]()
    for _ in range(data.draw(st.integers(0, 30))):
        hashes = [dice.choice(pool) for _ in range(dice.randrange(40))]
        given_numbers = [dice.randrange(1 - (1 << 63), 1 << 63) for _ in hashes]
        table.add(hashes, given_numbers)
        numbers |= zip(hashes, given_numbers, strict=True)
        for hash in hashes[:: dice.randrange(1, 4)]:
            table.remove(hash)
            numbers.pop(hash, None)
        assert table.get_many(pool, -1) == [numbers.get(hash, -1) for hash in pool]
        assert [table.get(hash) for hash in pool] == [numbers.get(hash) for hash in pool]
        assert table.has_any(hashes) == any(hash in numbers for hash in hashes)
    assert len(table) == len(numbers)
    assert dict(table.items()) == numbers
    assert table.sorted_rows() == b"".join(
        hash + numbers[hash].to_bytes(8, "big", signed=True) for hash in sorted(numbers)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_numbers_as_hashes(kind: type[HashNumbers]) -> None:
    for numbers in ([], [1, 2]):
        with pytest.raises(ValueError):
            kind().add([bytes(32)], numbers)
