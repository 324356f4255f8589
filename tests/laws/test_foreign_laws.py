"""Law of foreign data: whatever comes, nothing of own goes, and a second merge changes nothing.

Own is a state that a writer made; other is it, or a later state of it, with one cell changed and
everything above hashed again. Such a value may be refused; what of it is taken must keep the law.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from random import Random

import pytest

from datalattice.apps.dlfs.lattice import DRIVES
from datalattice.apps.dlfs.node import make_directory, make_file, make_tombstone
from datalattice.apps.grid.lattice import ASSETS_LATTICE, META_LATTICE, STORAGE_LATTICE, VENUE
from datalattice.apps.kv import KVStoreLattice
from datalattice.apps.queue.lattice import topic_map_lattice
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    key_bytes,
    missing,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, MissingData, TypeMismatch
from datalattice.lattice import (
    CASLattice,
    DataLattice,
    IndexLattice,
    Lattice,
    MapLattice,
    MaxLattice,
    OwnerLattice,
    SetLattice,
    VectorLattice,
)
from datalattice.testing.dice import Dice
from datalattice.testing.malformed import another_key, mutated

MUTANTS = {"quick": 300, "full": 1_500, "long": 20_000}[
    os.environ.get("DATALATTICE_PROFILE", "quick")
]
KEYS = [KeyPair(bytes([n]) * 32) for n in range(1, 25)]
SIZES = (1, 2, 3, 8, 20, 40)

Make = Callable[[Random, int], Value]


def texts(random: Random, count: int) -> list[str]:
    return [f"t{random.randrange(10**9)}" + "x" * random.choice((0, 150)) for _ in range(count)]


def data(random: Random, count: int) -> Value:
    values = [random.randbytes(random.choice((20, 200))) for _ in range(count)]
    return Index.of([(value_hash(value), value) for value in values])


def hashed(random: Random, count: int) -> Value:
    return Index.of(
        [(hashlib.sha256(text.encode()).digest(), text) for text in texts(random, count)]
    )


def assets(random: Random, count: int) -> Value:
    return Index.of(
        [
            (hashlib.sha256(text.encode()).digest(), Map.of([("metadata", text)]))
            for text in texts(random, count)
        ]
    )


def contents(random: Random, count: int) -> Value:
    values = [random.randbytes(random.choice((20, 200))) for _ in range(count)]
    return Index.of([(hashlib.sha256(value).digest(), value) for value in values])


def keyed(random: Random, count: int) -> Value:
    keys = [random.randbytes(random.choice((1, 2, 8, 32, 40))) for _ in range(count)]
    return Index.of([(key, random.randrange(9)) for key in keys])


def mapped(random: Random, count: int) -> Value:
    return Map.of([(random.randrange(10**6), random.randrange(9)) for _ in range(count)])


def elements(random: Random, count: int) -> Value:
    return Set.of([random.randrange(10**6) for _ in range(count)])


def numbers(random: Random, count: int) -> Value:
    return Vector.of([random.randrange(9) for _ in range(count * 7)])


def owners(random: Random, count: int) -> Value:
    pairs = random.sample(KEYS, min(count, len(KEYS)))
    return Map.of([(k.public_key, Signed.sign(k, Set.of([random.randrange(9)]))) for k in pairs])


def database(random: Random, count: int) -> Value:
    rows: list[tuple[Value, Value]] = []
    for text in texts(random, count):
        time = random.randrange(9)
        kind = random.randrange(3)
        if kind == 0:
            rows.append((text, Vector.of((random.randbytes(150), 0, time, None))))
        elif kind == 1:
            fields = Index.of([(name, Vector.of((1, time))) for name in texts(random, 5)])
            rows.append((text, Vector.of((fields, 1, time, None))))
        else:
            members = [(value_hash(m), Vector.of((m, time, 0))) for m in texts(random, 5)]
            rows.append((text, Vector.of((Index.of(members), 2, time, None))))
    return Index.of(rows)


def directory(random: Random, count: int, depth: int = 0) -> Value:
    nodes: list[tuple[str, Value]] = []
    for name in texts(random, count):
        time = random.randrange(9)
        if depth < 2 and random.random() < 0.3:
            nodes.append((name, directory(random, 3, depth + 1)))
        elif random.random() < 0.2:
            nodes.append((name, make_tombstone(time)))
        else:
            nodes.append((name, make_file(random.randbytes(200), time)))
    base = random.choice((-1, -1, 3))
    return make_directory(Index.of(nodes), 5 + random.randrange(9), base=base)


def drives(random: Random, count: int) -> Value:
    return Map.of([("home", directory(random, count)), ("other", directory(random, 2))])


def topics(random: Random, count: int) -> Value:
    def state() -> Value:
        log = Vector.of([random.randbytes(20) for _ in range(count)])
        return Vector.of((log, Map.of([("k", 1)]), random.randrange(9), random.randrange(40)))

    partitions = Map.of([(number, state()) for number in range(random.randrange(1, 5))])
    return Map.of([("log", Index.of([(Keyword("partitions"), partitions)]))])


def venue(random: Random, count: int) -> Value:
    return Index.of(
        [
            (Keyword("assets"), assets(random, count)),
            (Keyword("jobs"), EMPTY_INDEX),
            (Keyword("storage"), contents(random, 3)),
        ]
    )


KINDS: dict[str, tuple[Lattice, Make]] = {
    "data": (DataLattice(), data),
    "cas": (CASLattice(), hashed),
    "meta": (META_LATTICE, hashed),
    "assets": (ASSETS_LATTICE, assets),
    "storage": (STORAGE_LATTICE, contents),
    "index": (IndexLattice(MaxLattice()), keyed),
    "map": (MapLattice(MaxLattice()), mapped),
    "set": (SetLattice(), elements),
    "vector": (VectorLattice(MaxLattice()), numbers),
    "owners": (OwnerLattice(SetLattice()), owners),
    "database": (KVStoreLattice(), database),
    "drives": (DRIVES, drives),
    "topics": (topic_map_lattice(), topics),
    "venue": (VENUE, venue),
}


def keys_of(value: Value) -> set[bytes]:
    """Return what names the entries of a container: nothing of it may go."""
    if isinstance(value, Index):
        return {key_bytes(key) for key, _ in value.entries()}
    if isinstance(value, Map):
        return {value_hash(key) for key, _ in value.entries()}
    return {value_hash(one) for one in value} if isinstance(value, Set) else set()


def is_true(name: str, key: Value, value: Value) -> bool:
    """Return whether an entry of a content store stands under its hash."""
    if name == "data":
        return isinstance(key, bytes) and key == value_hash(value)
    if name == "assets":
        value = value.get("metadata") if isinstance(value, Map) else None
    raw = value.encode() if isinstance(value, str) else value
    return isinstance(raw, bytes) and key == hashlib.sha256(raw).digest()


def check(name: str, lattice: Lattice, own: Value, other: Value) -> bool:
    """Check the law of one merge; return whether the value was taken."""
    try:
        merged = lattice.merge(own, other)
    except (BadFormat, TypeMismatch, MissingData):
        return False
    assert keys_of(own) <= keys_of(merged), f"{name}: an own entry went"
    assert same(lattice.merge(merged, own), merged), f"{name}: own is not contained"
    try:
        again = lattice.merge(merged, other)
    except BadFormat:
        again = merged  # what was taken unseen, as a first value is, may be refused when it is met
    assert same(again, merged), f"{name}: a second merge changes the first"
    if name in ("data", "meta", "assets", "storage"):
        assert isinstance(merged, Index)
        known = {key_bytes(key) for key, value in merged.entries() if is_true(name, key, value)}
        assert known == keys_of(merged), f"{name}: an entry is not under its hash"
    return True


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", KINDS)
def test_nothing_of_own_goes_and_a_second_merge_changes_nothing(name: str) -> None:
    lattice, make = KINDS[name]
    random, dice = Random(name), Dice(0, name)
    tried = 0
    for _ in range(MUTANTS):
        own = make(random, random.choice(SIZES))
        source = own
        if random.random() < 0.5:
            source = lattice.merge(own, make(random, random.choice((1, 3, 20))))
        other = mutated(source, dice, {}, another_key)
        # A foreign value is merged once all of its cells are here.
        if missing(other) or not lattice.check_foreign(other):
            continue
        tried += 1
        check(name, lattice, own, other)
    assert tried > MUTANTS // 10
