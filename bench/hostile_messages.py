"""Messages that a stranger may send to cost a node as much time as it can, kind by kind.

Each kind yields payloads that differ from one to the next, as an attacker would have them: what is
the same is known and costs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from datalattice.apps.grid.assets import sha256
from datalattice.cells import (
    EMPTY_MAP,
    Blob,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    encode,
    encode_message,
    novelty,
    references,
    value_hash,
)
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.lattice import root_lattice
from datalattice.lattice.identity import did_of
from datalattice.store import MemoryStore
from datalattice.sync import LatticeCodec, LatticeReplica
from datalattice.testing.bombs import (
    database_bomb,
    drive_bomb,
    pair_bomb,
    queue_state,
    repeated_log,
    topics,
)
from datalattice.testing.malformed import cells_of, value_of, with_cell
from datalattice.wire import encode_announcement, encode_ping, encode_query
from datalattice.wire.identity import encode_challenge
from datalattice.wire.lattice import encode_request

KV, QUEUE, FS, DATA, GRID = (Keyword(name) for name in ("kv", "queue", "fs", "data", "grid"))
PLANTED = 3_000
"""Entries of the databases that are here before an attack begins."""

Kind = Callable[[random.Random, list[bytes]], Iterator[bytes]]
"""Yields payloads; given dice, and hashes of cells that the node has."""


def key_of(dice: random.Random) -> KeyPair:
    """Return a fresh key."""
    return KeyPair(dice.randbytes(32))


OWNER, FIRST, SECOND = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))


def said(section: Keyword, owner: KeyPair, value: Value) -> bytes:
    """Return the announcement of a slot with all its cells."""
    return announced([section], Map.of([(owner.public_key, Signed.sign(owner, value))]))


def announced(path: list[Value], value: Value, known: frozenset[bytes] = frozenset()) -> bytes:
    """Return the announcement of a value with its cells, but for those that are known."""
    cells = [encoding for hash, encoding, _ in novelty(value) if hash not in known]
    return encode_announcement(path, value, cells)


def database(tag: str, time: int) -> Index:
    """Return a database."""
    rows = [(f"key {n}", Vector.of((f"{tag} {n}", 0, time, None))) for n in range(PLANTED)]
    return Index.of(rows)


def planted() -> list[bytes]:
    """Return what the attacker has sent long ago, by another key: two databases."""
    return [
        said(KV, FIRST, Map.of([("d", database("a", 1))])),
        said(KV, SECOND, Map.of([("d", database("b", 2))])),
    ]


def pings(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Ask for signs of life."""
    return (encode_ping(number) for number in range(10**6))


def queries(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Ask for the root, and for what a slot of it holds."""
    paths: list[list[Value]] = [
        [],
        [KV, FIRST.public_key],
        [KV, FIRST.public_key, Keyword("value")],
    ]
    return (encode_query(number, paths[number % 3]) for number in range(10**6))


def requests(_dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """Ask for cells that are here."""
    return (encode_request(number, known[:64]) for number in range(10**6))


def idle_requests(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Ask for cells that nobody has."""
    while True:
        yield encode_request(dice.randrange(10**6), [dice.randbytes(32) for _ in range(64)])


def challenges(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Have it sign."""
    while True:
        yield encode_challenge(dice.randrange(10**6), OWNER, dice.randbytes(16), None)


def noise(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send what is no message."""
    while True:
        yield dice.randbytes(300)


def hashes(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State roots of which nothing is here."""
    while True:
        held = Map.of([(dice.randbytes(32), Blob.of(dice.randbytes(300))) for _ in range(4)])
        yield encode_announcement([KV], held, [])


def backward(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Join, and state next to nothing again and again: each time it is told what it lacks."""
    other = LatticeReplica(MemoryStore(), root_lattice())
    yield LatticeCodec(other, SystemClock()).hello(1)
    while True:
        yield said(KV, key_of(dice), EMPTY_MAP)


def forged(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send slots with signatures that are not good."""
    while True:
        slots = [(key := dice.randbytes(32), Signed(key, dice.randbytes(64), 1)) for _ in range(20)]
        yield announced([KV], Map.of(slots))


def owners(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send slots of ever new keys."""
    while True:
        keys = [key_of(dice) for _ in range(20)]
        slots = [(key.public_key, Signed.sign(key, EMPTY_MAP)) for key in keys]
        yield announced([KV], Map.of(slots))


def unsound(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send cells that do not fit together."""
    while True:
        entries = Index.of([(dice.randbytes(8), "x" * 90) for _ in range(60)])
        top, below = cells_of(entries)
        blob = below[value_hash(b"b" * 200)] = encode(b"b" * 200)
        value = value_of(*with_cell(top, below, references(top)[0], blob))
        yield encode_message(Vector.of((Keyword("LV"), Vector.of((DATA,)), value)))


def queue_bombs(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Sign logs of a few cells that stand for 65,536 records."""
    number = 0
    while True:
        number += 1
        log = repeated_log(dice.getrandbits(60), 3)
        state = queue_state(log, number % 16, 5 + number)
        yield said(QUEUE, OWNER, topics(dict.fromkeys(range(8), state)))


def drive_bombs(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Sign directories of which there are more than anybody can visit."""
    for number in range(10**6):
        bomb = (
            drive_bomb(8, 4, 30, str(number)) if number % 2 else pair_bomb(16, 4, 30, str(number))
        )
        yield said(FS, OWNER, Map.of([("d", bomb)]))


def database_bombs(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Sign many keys that hold one large structure."""
    for number in range(10**6):
        yield said(KV, OWNER, Map.of([("d", database_bomb(60, 60, 5 + number))]))


def swaps(_dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """Sign anew, in a few bytes, what was planted: own and other differ everywhere."""
    held = database("b", 2)
    have = frozenset(known)
    for number in range(10**6):
        value = Map.of([("d", held), ("n", Index.of([("n", Vector.of((number, 0, 5, None)))]))])
        slot = Map.of([(FIRST.public_key, Signed.sign(FIRST, value))])
        yield announced([KV], slot, have)


def pills(dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """State one such slot again and again."""
    one = next(swaps(dice, known))
    while True:
        yield one


def forks(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Sign branches of one log, each another."""
    for number in range(10**6):
        log = Vector.of([f"{dice.random()} {n}" for n in range(20)])
        yield said(QUEUE, OWNER, topics({0: queue_state(log, 0, 5 + number)}))


def zeros(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send contents of many bytes in few cells."""
    for number in range(10**6):
        content = bytes((8 << 20) - number)
        stored = Index.of([(sha256(content), Blob.of(content))])
        venue = Index.of([(Keyword("storage"), stored)])
        venues = Index.of([(did_of(OWNER.public_key), Signed.sign(OWNER, venue))])
        yield announced([GRID, Keyword("venues")], venues)


KINDS: tuple[Kind, ...] = (
    pings,
    queries,
    requests,
    idle_requests,
    challenges,
    noise,
    hashes,
    backward,
    forged,
    owners,
    unsound,
    queue_bombs,
    drive_bombs,
    database_bombs,
    swaps,
    pills,
    forks,
    zeros,
)
