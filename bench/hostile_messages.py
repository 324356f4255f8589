"""Messages by which a stranger makes a node spend as much time as possible, kind by kind.

The payloads of a kind differ from one another, as an attacker's would: a node recognises a value
that it has, at no cost.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator

from datalattice.apps.grid.assets import sha256
from datalattice.cells import (
    EMPTY_MAP,
    Blob,
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    encode,
    encode_message,
    novelty,
    references,
    value_hash,
)
from datalattice.crypto import KeyPair, sha3_256
from datalattice.lattice.identity import did_of
from datalattice.testing.bombs import (
    database_bomb,
    drive_bomb,
    pair_bomb,
    queue_state,
    repeated_log,
    topics,
)
from datalattice.testing.malformed import cells_of, value_from_cells, with_cell
from datalattice.wire import (
    encode_announcement,
    encode_length,
    encode_patched,
    encode_ping,
    encode_query,
)
from datalattice.wire.identity import encode_challenge
from datalattice.wire.lattice import encode_request

KV, QUEUE, FS, DATA, GRID = (Keyword(name) for name in ("kv", "queue", "fs", "data", "grid"))
PLANTED = 3_000
"""Entries of the databases that the node has before an attack begins."""

CROWD = 1_500
"""Owners, and false entries of content, that the node has before an attack begins."""

AWAITED = 61_440
"""Cells of one value that the node asks for and never gets."""

Kind = Callable[[random.Random, list[bytes]], Iterator[bytes]]
"""Yields payloads, from dice and the hashes of cells that the node has."""


def key_of(dice: random.Random) -> KeyPair:
    """Return a fresh key."""
    return KeyPair(dice.randbytes(32))


OWNER, FIRST, SECOND = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))


def said(section: Keyword, owner: KeyPair, value: Value) -> bytes:
    """Return the announcement of a slot with all its cells."""
    return announced([section], Map.of([(owner.public_key, Signed.sign(owner, value))]))


def announced(path: list[Value], value: Value, known: frozenset[bytes] = frozenset()) -> bytes:
    """Return the announcement of a value with those of its cells that are not known."""
    cells = [encoding for hash, encoding, _ in novelty(value) if hash not in known]
    return encode_announcement(path, value, cells)


def database(tag: str, time: int) -> Index:
    """Return a database with `PLANTED` entries; tag and time tell it from others."""
    rows = [(f"key {n}", Vector.of((f"{tag} {n}", 0, time, None))) for n in range(PLANTED)]
    return Index.of(rows)


def planted() -> list[bytes]:
    """Return messages that the attacker sent long ago, under another key.

    Two databases; slots of many owners, in their section and as mere content; false content.
    """
    return [
        said(KV, FIRST, Map.of([("d", database("a", 1))])),
        said(KV, SECOND, Map.of([("d", database("b", 2))])),
        *(content(crowd(first)) for first in (10_000, 20_000)),
        announced([KV], crowd(10_000)),
        content(strays()),
    ]


def content(value: Value) -> bytes:
    """Return the announcement of a value as unsigned content."""
    return announced([DATA], Index.of([(value_hash(value), value)]))


@functools.cache
def crowd(first: int) -> Map:
    """Return slots of many owners."""
    keys = [KeyPair(number.to_bytes(32, "big")) for number in range(first, first + CROWD)]
    return Map.of([(key.public_key, Signed.sign(key, EMPTY_MAP)) for key in keys])


@functools.cache
def strays() -> Index:
    """Return content under hashes that are not its own."""
    dice = random.Random(5)
    return Index.of([(dice.randbytes(32), number) for number in range(CROWD)])


def pings(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send pings."""
    return (encode_ping(number) for number in range(10**6))


def queries(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Ask for the root, for a slot of it, and for the value in the slot."""
    paths: list[list[Value]] = [
        [],
        [KV, FIRST.public_key],
        [KV, FIRST.public_key, Keyword("value")],
    ]
    return (encode_query(number, paths[number % 3]) for number in range(10**6))


def requests(_dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """Ask for cells that the node has."""
    return (encode_request(number, known[:64]) for number in range(10**6))


def idle_requests(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Ask for cells that nobody has."""
    while True:
        yield encode_request(dice.randrange(10**6), [dice.randbytes(32) for _ in range(64)])


def challenges(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Have the node sign answers to challenges."""
    while True:
        yield encode_challenge(dice.randrange(10**6), OWNER, dice.randbytes(16), None)


def noise(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send random bytes."""
    while True:
        yield dice.randbytes(300)


def hashes(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State values of which the node has no cell."""
    while True:
        held = Map.of([(dice.randbytes(32), Blob.of(dice.randbytes(300))) for _ in range(4)])
        yield encode_announcement([KV], held, [])


def backward(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Join, and state tiny values again and again: each time the node sends what they lack."""
    yield encode_ping(1, Keyword("PEER"), Keyword("LP"))
    while True:
        yield said(KV, key_of(dice), EMPTY_MAP)


def forged(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send slots with wrong signatures."""
    while True:
        slots = [(key := dice.randbytes(32), Signed(key, dice.randbytes(64), 1)) for _ in range(20)]
        yield announced([KV], Map.of(slots))


def owners(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send slots of new keys each time."""
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
        value = value_from_cells(*with_cell(top, below, references(top)[0], blob))
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
    """Sign trees of more directories than any machine can visit."""
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
    """Sign a planted value again, in a few bytes: own and other then differ everywhere."""
    held = database("b", 2)
    have = frozenset(known)
    for number in range(10**6):
        value = Map.of([("d", held), ("n", Index.of([("n", Vector.of((number, 0, 5, None)))]))])
        slot = Map.of([(FIRST.public_key, Signed.sign(FIRST, value))])
        yield announced([KV], slot, have)


def pills(dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """State one slot of `swaps` again and again."""
    one = next(swaps(dice, known))
    while True:
        yield one


def forks(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Sign another branch of one log each time."""
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


def crowds(_dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """State again and again, in a few bytes, slots that the node has as mere content."""
    one = announced([KV], crowd(20_000), frozenset(known))
    while True:
        yield one


def grown_crowds(dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """State such slots with a malformed one, so that the cells above differ each time."""
    have = frozenset(known)
    for number in range(10**6):
        yield announced([KV], crowd(20_000).put(dice.randbytes(32), number), have)


def stray_content(dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """State content under hashes that are not its own, most of it planted."""
    have = frozenset(known)
    for number in range(10**6):
        yield announced([DATA], strays().put(dice.randbytes(32), number), have)


def single_entries(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Write one small value of unsigned content at a time: each is merged and committed."""
    while True:
        value = dice.getrandbits(40)
        yield announced([DATA], Index.of([(value_hash(value), value)]))


def single_writes(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Write one entry of a small database at a time."""
    for number in range(10**6):
        entry = Vector.of((number, 0, 5 + number, None))
        yield said(KV, OWNER, Map.of([("d", Index.of([("n", entry)]))]))


def single_slots(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Sign one empty slot of a new key at a time, where there are many."""
    while True:
        yield said(KV, key_of(dice), EMPTY_MAP)


def strange_sections(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State values of a section that nobody has."""
    for number in range(10**6):
        yield announced([Keyword("zz")], number)


def empty_roots(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State an empty root, in the fewest bytes that are a statement."""
    while True:
        yield announced([], Index())


def tiny_statements(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State values of the wrong kind for their section, in the fewest bytes that are decoded."""
    for number in range(10**6):
        yield encode_message(Vector.of((Keyword("LV"), (KV, QUEUE, FS)[number % 3], number % 100)))


def tiny_roots(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State roots of the wrong kind."""
    return (encode_message(Vector.of((Keyword("LV"), None, number))) for number in range(10**6))


def empty_sections(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State empty sections."""
    empty = [(KV, EMPTY_MAP), (DATA, Index()), (QUEUE, EMPTY_MAP), (GRID, Index())]
    while True:
        for section, value in empty:
            yield encode_message(Vector.of((Keyword("LV"), section, value)))


def tiny_content(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State content under short keys that are no hashes."""
    for number in range(10**6):
        content = Index.of([(number.to_bytes(4, "big"), number)])
        yield encode_message(Vector.of((Keyword("LV"), DATA, content)))


def awaited(dice: random.Random) -> bytes:
    """Return the announcement of content that lacks many cells, for which the node then waits."""
    rows = Vector.of([Blob.of(dice.randbytes(200)) for _ in range(AWAITED)])
    held = Index.of([(value_hash(rows), rows)])
    nodes = [encoding for _, encoding, _ in novelty(held) if references(encoding)]
    return encode_announcement([DATA], held, nodes)


def given_up(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State values that lack a cell, one instead of the other, while many cells are awaited."""
    yield awaited(dice)
    while True:
        yield encode_announcement([KV], Map.of([(dice.randbytes(32), b"x" * 200)]), [])


def merged_meanwhile(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Sign one empty slot of a new key at a time, while many cells are awaited."""
    yield awaited(dice)
    while True:
        yield said(KV, key_of(dice), EMPTY_MAP)


def absent_roots(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """State roots by their hashes alone."""
    while True:
        yield b"\x80\x03" + encode(Keyword("LV")) + b"\x00\x20" + dice.randbytes(32)


def hellos(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Join again and again."""
    return (encode_ping(number, Keyword("PEER"), Keyword("LP")) for number in range(10**6))


def long_paths(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Ask for values at paths of a thousand keys, and state values there."""
    path = repeated_log("value", 2).take(992)
    for number in range(10**6):
        yield encode_message(Vector.of((Keyword("LQ" if number % 2 else "LV"), number, path)))
        yield encode_message(Vector.of((Keyword("LV"), path, number)))


def same_requests(_dice: random.Random, known: list[bytes]) -> Iterator[bytes]:
    """Ask for one cell 254 times in a message."""
    for number in range(10**6):
        yield encode_message(Vector.of((Keyword("DR"), number, *[known[number % 64]] * 254)))


def fork_queries(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Ask for branches of owners that have none."""
    return (encode_query(number, [Keyword("forks"), dice.randbytes(32)]) for number in range(10**6))


def small_keys(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send sets of short elements, each of which is hashed to check the order."""
    while True:
        yield content(Set.of([dice.getrandbits(16) for _ in range(3_000)]))


def large_integers(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Write counters as large as integers may be."""
    for number in range(10**6):
        entry = Vector.of((dice.getrandbits(32_000), 0, 5 + number, None))
        yield said(KV, OWNER, Map.of([("d", Index.of([("n", entry)]))]))


def long_names(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Name owners by texts that begin like a DID and are as long as a cell may be."""
    while True:
        name = "did:web:" + "a" * 4_000 + str(dice.random())
        slot = Signed.sign(OWNER, EMPTY_MAP)
        yield announced([GRID, Keyword("venues")], Index.of([(name, slot)]))


def deep_trees(dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Send values nested thousands of levels deep."""
    while True:
        value: Value = dice.random()
        for _ in range(2_000):
            value = Vector.of([value, "x" * 110])
        yield content(value)


def dense_patches(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Patch a value into thousands of cells, by a few edits that repeat."""
    unknown = b"\x20" + sha3_256(b"a hash to be computed")
    row = b"\x80\x10" + (b"\x80\x04" + unknown * 4) * 16
    many = encode_length(64 * 4 + 2) + bytes(64) + encode_length(len(row)) + row
    edits = b"\x01" + encode_length(251) + b"\x01\x01\x01x" * 250
    leaf = edits + b"\x01\x01" + encode_length(17) + b"y" * 17
    unit = (many + leaf * 63 + leaf).ljust(-(-len(many + leaf * 64) // 4_096) * 4_096, b"\x00")
    for number in range(10**6):
        yield encode_patched(Vector.of((number,)), bytes(32), many + unit * 60)


def idle_patches(_dice: random.Random, _known: list[bytes]) -> Iterator[bytes]:
    """Patch a value that the node has into itself, cell by cell, below another top each time."""
    base = Index.of([(DATA, Index.of([(value_hash(crowd(20_000)), crowd(20_000))]))])
    cells = {hash: data for hash, data, _ in novelty(base)}
    for number in range(10**6):
        made = base.put(Keyword("kv"), Map.of([(bytes(32), number)]))
        yield encode_patched(base, value_hash(made), _unchanged(encode(base), cells))


def _unchanged(top: bytes, cells: dict[bytes, bytes]) -> bytes:
    """Return the patch in which all cells below a top stay as they are."""
    out = bytearray()
    stack, seen = [top], set[bytes]()
    while stack:
        below = [one for one in references(stack.pop()) if one in cells and one not in seen]
        seen.update(below)
        out += encode_length(len(below) * 4) + bytes(len(below))
        stack += [cells[one] for one in reversed(below)]
    return bytes(out)


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
    crowds,
    grown_crowds,
    stray_content,
    single_entries,
    single_writes,
    single_slots,
    strange_sections,
    empty_roots,
    tiny_statements,
    tiny_roots,
    empty_sections,
    tiny_content,
    given_up,
    merged_meanwhile,
    absent_roots,
    hellos,
    long_paths,
    same_requests,
    fork_queries,
    small_keys,
    large_integers,
    long_names,
    deep_trees,
    dense_patches,
    idle_patches,
)
