"""Poison: values that strangers sign and that are bad by shape, cost or size, or signed twice.

Every hash and every signature is right. The cells of a value are sent with its announcement, or
kept for requests (`serve`), as a relay would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final

from datalattice.apps.dlfs import Drive
from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    encode,
    is_embedded,
    references,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import BadFormat, MissingData
from datalattice.lattice import MergeContext, get_in, root_lattice
from datalattice.testing.bombs import database_bomb, drive_bomb, pair_bomb, queue_bombs
from datalattice.testing.dice import Dice
from datalattice.testing.malformed import Below, cells_of, mutated, value_of, with_cell
from datalattice.testing.sim.attacks import DATA, QUEUE, Attack, Knowledge
from datalattice.testing.sim.timeline import SimClock
from datalattice.wire import encode_announcement, encode_frame

KV: Final = Keyword("kv")
FS: Final = Keyword("fs")

ENTRIES: Final = 36
"""Entries of a value that is made malformed: enough for several levels."""

OVERSIZE_BYTES: Final = 36_000
"""Size of one slot, above the quota of an owner where hosting is limited."""

KNOWN_MAX: Final = 4_000
"""Most cells that a hostile peer keeps to serve."""


def _database(root: RootLattice, clock: SimClock, owner: bytes, dice: Dice, count: int) -> None:
    entries: dict[str, object] = {f"k{dice.bits():x}": "v" * 60 for _ in range(count)}
    Database.at(root, owner, "d", clock=clock).update(entries)


def _queue(root: RootLattice, clock: SimClock, owner: bytes, dice: Dice, count: int) -> None:
    records = [f"r{dice.bits():x}".ljust(60, ".") for _ in range(count)]
    Topics.at(root, owner, clock).partition("t", 0).offer_many(records)


def _drive(root: RootLattice, clock: SimClock, owner: bytes, dice: Dice, count: int) -> None:
    drive = Drive.at(root, owner, "d", clock=clock)
    for number in range(count // 4):
        drive.write(f"f{dice.bits():x}", b"x" * (60 + number))


_Writer = Callable[[RootLattice, SimClock, bytes, Dice, int], None]

SECTIONS: Final[tuple[tuple[Keyword, _Writer], ...]] = (
    (KV, _database),
    (QUEUE, _queue),
    (FS, _drive),
)


def signed(
    keys: KeyPair, knowledge: Knowledge, section: Keyword, write: _Writer, dice: Dice, count: int
) -> Signed:
    """Return a signed slot with `count` honest entries."""
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    write(root, knowledge.victims[0].clock, keys.public_key, dice, count)
    slot = root.get(section, keys.public_key)
    assert isinstance(slot, Signed)
    return slot


# --- bad by its shape ---------------------------------------------------------------------------


def blob_as_child(value: Value, dice: Dice) -> Value:
    """Return a value in which a Blob replaces a child of one of its containers."""
    top, below = cells_of(value)
    blob = dice.bytes(200)
    below[value_hash(blob)] = encode(blob)
    inner = [name for name, cell in below.items() if references(cell)]
    if inner and dice.chance(0.5):
        old = dice.pick(references(below[dice.pick(inner)]))
    else:
        old = dice.pick(references(top)) if references(top) else b""
    if not old:
        return mutated(value, dice, {})
    return value_of(*with_cell(top, below, old, encode(blob)))


def malform(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign a tree whose cells do not fit together, or announce such content."""
    for _ in range(8):  # a change may make bytes that are no cell
        with suppress(BadFormat, MissingData):
            path, value = _malformed(knowledge, dice)
            yield from list(_announced(knowledge, path, value, dice))
            return


def _malformed(knowledge: Knowledge, dice: Dice) -> tuple[tuple[Value, ...], Value]:
    change = blob_as_child if dice.chance(0.5) else _mutated
    if dice.chance(0.25):
        blobs = [dice.bytes(160) for _ in range(ENTRIES)]
        return (DATA,), change(Index.of([(value_hash(one), one) for one in blobs]), dice)
    section, write = dice.pick(SECTIONS)
    slot = signed(knowledge.keys, knowledge, section, write, dice, ENTRIES)
    bad = Signed.sign(knowledge.keys, change(slot.value, dice))
    return (section,), Map.of([(knowledge.keys.public_key, bad)])


def _mutated(value: Value, dice: Dice) -> Value:
    return mutated(value, dice, {})


# --- bad by its cost ----------------------------------------------------------------------------


def explode(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign two states whose merge costs far more than their size, one after the other."""
    keys = knowledge.keys
    section, states = _bombs()[dice.below(len(_bombs()))]
    for state in states:
        slot = Signed.sign(keys, state)
        yield from _announced(knowledge, (section,), Map.of([(keys.public_key, slot)]), dice)


@cache
def _bombs() -> list[tuple[Keyword, tuple[Value, Value]]]:
    """Return (section, two states of a slot): making them costs more than sending them."""
    drives = [
        (drive_bomb(6, 4, 16, "a"), drive_bomb(6, 4, 16, "b")),
        (pair_bomb(8, 4, 12, "a"), pair_bomb(7, 4, 12, "b")),
    ]
    return [
        *((QUEUE, pair) for partitions in (1, 6) for pair in queue_bombs(3, partitions)),
        *((FS, (Map.of([("d", one)]), Map.of([("d", two)]))) for one, two in drives),
        *((FS, (Map.of([("d", two)]), Map.of([("d", one)]))) for one, two in drives),
        (KV, (_database_bomb(5), _database_bomb(40))),
    ]


def _database_bomb(time: int) -> Value:
    return Map.of([("d", database_bomb(24, 60, time))])


# --- bad by its size, or said twice ---------------------------------------------------------------


def overfill(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign more than a node that limits what it hosts has room for, or put it into content."""
    keys = knowledge.keys
    if dice.chance(0.3):
        blob = dice.bytes(32) * (OVERSIZE_BYTES // 32)
        yield from _announced(knowledge, (DATA,), Index.of([(value_hash(blob), blob)]), dice)
        return
    section, write = dice.pick(SECTIONS[:2])
    slot = signed(keys, knowledge, section, write, dice, OVERSIZE_BYTES // 100)
    yield from _announced(knowledge, (section,), Map.of([(keys.public_key, slot)]), dice)


def equivocate(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign another history of a slot for each peer that is told, or go on with one, or say both."""
    keys = knowledge.keys
    section, write = dice.pick(SECTIONS)
    branches = knowledge.branches.setdefault(section.name, [])
    for _ in range(2 if dice.chance(0.2) else 1):
        if branches and dice.chance(0.5):
            slot = dice.pick(branches)
            if dice.chance(0.5):
                root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
                root.assoc_in(slot, section, keys.public_key)
                write(root, knowledge.victims[0].clock, keys.public_key, dice, 4)
                found = get_in(root.get(), (section, keys.public_key))
                assert isinstance(found, Signed)
                slot = found
        else:
            slot = signed(keys, knowledge, section, write, dice, dice.pick((4, 8, 20)))
        branches.append(slot)
        del branches[:-6]  # the latest histories only
        yield from _announced(knowledge, (section,), Map.of([(keys.public_key, slot)]), dice)


def _announced(
    knowledge: Knowledge, path: tuple[Value, ...], value: Value, dice: Dice
) -> Iterator[bytes]:
    """Yield an announcement at a path or of a root, with its cells or with some of them."""
    if dice.chance(0.3):
        value, path = Index.of([(path[0], value)]), ()
    top, cells = cells_of(value)
    if not is_embedded(value):
        cells[value_hash(value)] = top
    _keep(knowledge, cells)
    along = dice.pick((1.0, 1.0, 0.5, 0.0))
    sent = [cell for cell in cells.values() if dice.chance(along)]
    yield encode_frame(encode_announcement(path, value, sent))


def _keep(knowledge: Knowledge, cells: Below) -> None:
    known = knowledge.known
    known.update(cells)
    while len(known) > KNOWN_MAX:
        del known[next(iter(known))]


POISON: Final[tuple[Attack, ...]] = (malform, explode, overfill, equivocate)
