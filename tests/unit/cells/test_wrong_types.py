"""Wrong types: each call says what it was given and what it takes, interpreted and compiled alike.

Compiled code refuses arguments of a fixed type by itself, with Python's own `TypeError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from datalattice.apps.queue import Queue
from datalattice.cells import (
    Address,
    Blob,
    Char,
    Coded,
    Extension,
    Flag,
    Index,
    List,
    Map,
    NanBits,
    Record,
    Set,
    Signed,
    Text,
    Vector,
    decode,
    decode_message,
    vector_fork_offset,
)
from datalattice.errors import TypeMismatch

VECTOR: Any = Vector.of([1, 2, 3])
LIST: Any = List.of([1, 2])
MAP: Any = Map.of([(1, 2)])
INDEX: Any = Index.of([("a", 1)])
SET: Any = Set.of([1])
BLOB: Any = Blob.of(bytes(5_000))

CALLS: dict[str, Callable[[Any], object]] = {
    "Vector()": Vector,
    "Vector.of": Vector.of,
    "Vector.get": VECTOR.get,
    "Vector.set": lambda bad: VECTOR.set(bad, 1),
    "Vector[]": lambda bad: VECTOR[bad],
    "Vector.drop": VECTOR.drop,
    "Vector.to_list": lambda bad: VECTOR.to_list(bad, 2),
    "Vector.iter_range": lambda bad: list(VECTOR.iter_range(bad, 2)),
    "Vector.extend": VECTOR.extend,
    "Vector.concat": VECTOR.concat,
    "Vector.merge_with": lambda bad: VECTOR.merge_with(bad, lambda _at, own, _other: own),
    "vector_fork_offset": lambda bad: vector_fork_offset(VECTOR, bad),
    "List()": List.of,
    "List[]": lambda bad: LIST[bad],
    "List.get": LIST.get,
    "Blob.of": Blob.of,
    "Text.of": Text.of,
    "Blob[]": lambda bad: BLOB[bad],
    "Blob.read": lambda bad: BLOB.read(bad, 3),
    "Map()": Map,
    "Map.of": Map.of,
    "Map.of one entry": lambda bad: Map.of([bad]),
    "Map.put_many": MAP.put_many,
    "Map.merge_with": lambda bad: MAP.merge_with(bad, lambda *_: 1),
    "Index.of": Index.of,
    "Index.of one entry": lambda bad: Index.of([bad]),
    "Index.put_many": INDEX.put_many,
    "Index.merge_with": lambda bad: INDEX.merge_with(bad, lambda *_: 1),
    "Set.of": Set.of,
    "Set.union": SET.union,
    "Set <=": lambda bad: bad >= SET,
    "Char": Char,
    "Address": Address,
    "Flag": Flag,
    "Extension": lambda bad: Extension(bad, 1),
    "NanBits": NanBits,
    "Record": lambda bad: Record(bad, []),
    "Record fields": lambda bad: Record(1, bad),
    "Coded": lambda bad: Coded(bad, 1, 2),
    "Signed key": lambda bad: Signed(bad, bytes(64), 1),
    "Signed signature": lambda bad: Signed(bytes(32), bad, 1),
    "Signed.sign": lambda bad: Signed.sign(bad, 1),
    "decode": decode,
    "decode_message": decode_message,
    "Queue.offer_many": Queue.create().offer_many,
    "Queue.offer_many keys": lambda bad: Queue.create().offer_many([1], keys=bad),
}

KERNEL = sys.modules[Map.__module__].__file__ or ""
KIND: type[TypeError] = TypeMismatch if KERNEL.endswith(".py") else TypeError


@pytest.mark.parametrize("bad", [object(), 1.5], ids=["object", "float"])
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_named(name: str, bad: object) -> None:
    with pytest.raises(KIND, match=type(bad).__name__):
        CALLS[name](bad)


@pytest.mark.parametrize("pair", ["ab", b"cd", (1,), (1, 2, 3), 5, None])
@pytest.mark.parametrize("name", ["Map()", "Map.of", "Map.put_many", "Index.of", "Index.put_many"])
def test_what_is_no_pair_is_refused(name: str, pair: object) -> None:
    with pytest.raises(TypeMismatch, match=r"\(key, value\) pairs"):
        CALLS[name]([("k", "v"), pair])


def test_pairs_may_be_any_sequence_of_two() -> None:
    wanted = Map.of({"a": 1, "b": 2})
    assert Map.of([["a", 1], Vector.of(["b", 2])]) == wanted  # type: ignore[list-item]
    assert Map.of(Vector.of([("a", 1), ("b", 2)])) == wanted  # type: ignore[arg-type]
