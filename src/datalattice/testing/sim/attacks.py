"""Attacks: functions that yield what a hostile peer sends, frames or other bytes.

`ATTACKS` break the protocol or its rules. `POISON` are values whose hashes and signatures are all
right: their shape, cost or size is bad, or their owner signed two histories. Their cells are sent
with the announcement, or kept and sent on request (`serve`), as by a relay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
    Vector,
    encode,
    encode_message,
    is_embedded,
    novelty,
    references,
    value_hash,
)
from datalattice.crypto import SIGNATURE_BYTES, KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import BadFormat, MissingData
from datalattice.lattice import (
    LOCAL_KEY,
    TIMESTAMP,
    MergeContext,
    did_of,
    get_in,
    local_slot,
    root_lattice,
)
from datalattice.store import MemoryStore
from datalattice.testing.bombs import database_bomb, drive_bomb, pair_bomb, queue_bombs
from datalattice.testing.dice import Dice
from datalattice.testing.malformed import Below, cells_of, mutated, value_from_cells, with_cell
from datalattice.testing.sim.node import SIM_MESSAGE_BYTES_MAX, SimNode
from datalattice.testing.sim.timeline import EPOCH_MS, SimClock
from datalattice.wire import (
    Result,
    encode_announcement,
    encode_challenge,
    encode_frame,
    encode_goodbye,
    encode_length,
    encode_ping,
    encode_query,
    encode_request,
    encode_result,
)

QUEUE: Final = Keyword("queue")
_P2P: Final = Keyword("p2p")
NODES: Final = Keyword("nodes")
_DATA: Final = Keyword("data")
_VALUE: Final = Keyword("value")
KV: Final = Keyword("kv")
FS: Final = Keyword("fs")

_ENTRIES: Final = 36  # one level has 16
"""Entries of a value that is made malformed: enough for several levels."""

OVERSIZE_BYTES: Final = 36_000
"""Size of one slot, above the quota of an owner where hosting is limited."""

KNOWN_MAX: Final = 4_000  # bounded: runs of many attacks stay small
"""Most cells that a hostile peer keeps to serve."""

_PEER: Final = Keyword("PEER")
"""Extra element of a PING that asks to be told of changes."""

_BLOB_TAG: Final = b"\x31"
_VECTOR_TAG: Final = b"\x80"
_REF_TAG: Final = b"\x20"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a hostile peer knows: its key, its victims, and the messages it has heard.

    known:    cells that it serves.
    branches: histories of its own slots that it has signed, by section.
    """

    keys: KeyPair
    victims: Sequence[SimNode]
    captured: deque[bytes]
    known: dict[bytes, bytes] = field(default_factory=dict)
    branches: dict[str, list[Signed]] = field(default_factory=dict)

    def hello(self, id: int) -> bytes:
        """Return a greeting after which nodes tell the peer of changes."""
        return encode_ping(id, _PEER)

    def lie(self, id: Value, dice: Dice) -> bytes:
        """Return an answer to a query for its root."""
        if dice.chance(0.5):  # nothing, or a root of its own making
            return encode_result(Result(id, None))
        return encode_message(_wrapped(Vector.of([dice.bytes(200)])))


def _said(path: Sequence[Value], value: Value) -> bytes:
    """Return the frame that announces a value at a path, with all its cells."""
    return encode_frame(encode_message(Vector.of([Keyword("LV"), Vector.of(path), value])))


def _wrapped(value: Value) -> Index:
    """Return a root that holds a value as content."""
    return Index.of([(_DATA, Index.of([(value_hash(value), value)]))])


def forge(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Announce data of others, unsigned, signed by the attacker, or with an old signature."""
    victim = dice.pick(knowledge.victims)
    owner = victim.keys.public_key
    topics = Map.of([("t", Vector.of([dice.below(10**6)]))])
    # A stamp far ahead would win, were it accepted.
    info = Map.of([(TIMESTAMP, EPOCH_MS + 10**12), (Keyword("type"), "forged")])
    value = dice.pick((topics, info))
    signature = dice.bytes(SIGNATURE_BYTES)
    # An old signature of the victim, over other data.
    if victim.keys.signatures and dice.chance(0.5):
        signature = list(victim.keys.signatures)[
            -1 - dice.below(min(5, len(victim.keys.signatures)))
        ]
    entry: Value = dice.pick(
        (Signed(owner, signature, value), Signed.sign(knowledge.keys, value), value)
    )
    name: Value = did_of(owner) if dice.chance(0.3) else owner  # by DID, too: both name the owner
    section = (QUEUE,) if value is topics else (_P2P, NODES)
    kind = dice.below(4)
    if kind == 0:
        yield _said((*section, name), entry)
    elif kind == 1:
        yield _said(section, Map.of([(name, entry)]))
    elif kind == 2:
        yield _said((*section, name, _VALUE), value)
    else:
        entries = Map.of([(name, entry)])
        below = entries if len(section) == 1 else Index.of([(NODES, entries)])
        yield _said((), Index.of([(section[0], below)]))


def intrude(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Write to `:local` of others, and to sections that do not exist."""
    owner = dice.pick(knowledge.victims).keys.public_key
    slot = Signed.sign(knowledge.keys, Map.of([("x", Map.of([(TIMESTAMP, EPOCH_MS)]))]))
    yield _said((LOCAL_KEY, owner), slot)
    yield _said((LOCAL_KEY,), Map.of([(owner, slot)]))
    yield _said((), Index.of([(LOCAL_KEY, Map.of([(owner, slot)])), (Keyword("nowhere"), 1)]))
    yield _said((Keyword("nowhere"), 1), dice.below(100))


def ask_for_private_cells(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Request `:local` by its path, and by the hashes of its cells as if these had leaked."""
    victim = dice.pick(knowledge.victims)
    yield encode_frame(encode_query(1, (LOCAL_KEY,)))
    yield encode_frame(encode_query(2, (LOCAL_KEY, victim.keys.public_key)))
    if victim.is_up:
        slot = local_slot(victim.cursor.get(), victim.keys.public_key)
        # As if the hashes had leaked.
        hashes = [hash for hash, _, _ in novelty(slot, MemoryStore())]
        if isinstance(slot, Signed):
            hashes.append(value_hash(slot))
        yield encode_frame(encode_request(3, hashes[:50]))


def replay(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Send again what others have sent."""
    for _ in range(dice.between(1, 8)):
        if knowledge.captured:
            yield encode_frame(dice.pick(list(knowledge.captured)))


def tamper(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Send what others have sent, with one bit changed, and cut."""
    for _ in range(dice.between(1, 4)):
        if knowledge.captured:
            data = bytearray(dice.pick(list(knowledge.captured)))
            # One bit: checksums and signatures must notice.
            data[dice.below(len(data))] ^= 1 << dice.below(8)
            yield encode_frame(bytes(data[: dice.between(1, len(data))]))


def withhold(_knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Announce a root without the cells below it, or without its leaves, which nobody has."""
    if dice.chance(0.5):
        # A cell that was never made.
        top = Index.of([(_DATA, Vector.of([dice.bytes(200), dice.bytes(200)]))])
        yield encode_frame(encode_announcement((), top, []))
    else:
        yield _incomplete(dice, 3)


def never_end(_knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Announce a new incomplete root, again and again."""
    for _ in range(4):
        yield _incomplete(dice, 12)


def _incomplete(dice: Dice, leaves: int) -> bytes:
    """Return the frame of a root with its inner cells and without its leaves."""
    blobs = [dice.bytes(160) for _ in range(leaves)]
    root = Index.of([(_DATA, Index.of([(value_hash(blob), blob) for blob in blobs]))])
    lost = {value_hash(blob) for blob in blobs}  # inner cells come, leaves never
    cells = [data for hash, data, _ in novelty(root, MemoryStore()) if hash not in lost]
    return encode_frame(encode_announcement((), root, cells))


def bomb(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Send few bytes that stand for a huge value."""
    kind = dice.below(6)
    if kind == 0:  # nested beyond any stack
        yield encode_frame(b"\x80\x01" * dice.pick((100, 5_000, 200_000)) + b"\x00")
    elif kind == 1:
        count = encode_length(2**60)
        yield encode_frame(_VECTOR_TAG + count + _REF_TAG + dice.bytes(32))
        yield encode_frame(_BLOB_TAG + count + _REF_TAG + dice.bytes(32))
    elif kind == 2:  # 16 ** 12 leaves in a dozen cells
        value: Value = b"bomb".ljust(200, b".")
        for _ in range(12):
            value = Vector.of([value] * 16)
        yield _said((), _wrapped(value))
    elif kind == 3:  # the longest frame
        yield _said((), _wrapped(bytes(SIM_MESSAGE_BYTES_MAX - 60_000)))
    elif kind == 4:  # the same hashes many times over
        hashes = [dice.bytes(32)] * 254
        yield encode_frame(encode_request(5, hashes))
    else:
        deep = Map.of([("t", 1)])
        for _ in range(60):
            deep = Map.of([("t", deep)])
        yield _said((QUEUE, knowledge.keys.public_key), Signed.sign(knowledge.keys, deep))


def flood(_knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Send many questions at once."""
    for number in range(25):
        kind = dice.below(3)
        if kind == 0:
            yield encode_frame(encode_ping(number))
        elif kind == 1:
            yield encode_frame(encode_query(number, ()))
        else:
            yield encode_frame(encode_request(number, [dice.bytes(32)] * 20))


def babble(_knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Send frames that are no messages, and bytes that are no frames."""
    kind = dice.below(4)
    if kind == 0:
        yield encode_frame(dice.bytes(dice.between(1, 200)))
    elif kind == 1:
        yield encode_frame(b"")  # an empty frame is legal
        yield encode_frame(encode(Vector.of([Keyword("PING")])))
        yield encode_frame(encode(Vector.of([Keyword("LV"), 1])))
    elif kind == 2:
        yield b"\x80" + dice.bytes(10)  # no length that any frame has
    else:
        yield encode_frame(encode_goodbye())


def dribble(_knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Begin a frame that never ends, or one that is too long to begin with."""
    # Just below, just above, far above.
    length = dice.pick((SIM_MESSAGE_BYTES_MAX - 1, SIM_MESSAGE_BYTES_MAX + 1, 2**34))
    yield encode_length(length) + bytes(100)
    for _ in range(1 if length < SIM_MESSAGE_BYTES_MAX else 6):  # longer than any frame may be
        yield bytes(250_000)


def use_as_oracle(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Have a node sign things, as answers to challenges."""
    for number in range(3):
        token = dice.pick((b"", dice.bytes(32), dice.bytes(200)))
        # A token for a victim: a node must not sign it for others.
        wanted = dice.pick((None, dice.pick(knowledge.victims).keys.public_key))
        yield encode_frame(encode_challenge(number, knowledge.keys, token, wanted))


# --- values of strangers ------------------------------------------------------------------------


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

_SECTIONS: Final[tuple[tuple[Keyword, _Writer], ...]] = (
    (KV, _database),
    (QUEUE, _queue),
    (FS, _drive),
)


def signed_slot(
    keys: KeyPair, knowledge: Knowledge, section: Keyword, write: _Writer, dice: Dice, count: int
) -> Signed:
    """Return a signed slot with `count` honest entries."""
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    # A victim's clock: stamps are plausible.
    write(root, knowledge.victims[0].clock, keys.public_key, dice, count)
    slot = root.get(section, keys.public_key)
    assert isinstance(slot, Signed)
    return slot


# --- bad shapes ---------------------------------------------------------------------------------


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
        return mutated(value, dice, {})  # nothing to replace: any change will do
    return value_from_cells(*with_cell(top, below, old, encode(blob)))


def malform(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign a tree whose cells do not fit together, or announce such content."""
    for _ in range(8):  # a change may make bytes that are no cell
        with suppress(BadFormat, MissingData):
            path, value = _malformed(knowledge, dice)
            yield from list(_announced(knowledge, path, value, dice))
            return


def _malformed(knowledge: Knowledge, dice: Dice) -> tuple[tuple[Value, ...], Value]:
    change = blob_as_child if dice.chance(0.5) else lambda value, dice: mutated(value, dice, {})
    if dice.chance(0.25):
        blobs = [dice.bytes(160) for _ in range(_ENTRIES)]
        return (_DATA,), change(Index.of([(value_hash(one), one) for one in blobs]), dice)
    section, write = dice.pick(_SECTIONS)
    slot = signed_slot(knowledge.keys, knowledge, section, write, dice, _ENTRIES)
    # Signed by the attacker: only the shape is wrong.
    bad = Signed.sign(knowledge.keys, change(slot.value, dice))
    return (section,), Map.of([(knowledge.keys.public_key, bad)])


# --- high costs ---------------------------------------------------------------------------------


def explode(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign two states whose merge costs far more than their size, one after the other."""
    keys = knowledge.keys
    section, states = _bombs()[dice.below(len(_bombs()))]
    for state in states:
        slot = Signed.sign(keys, state)
        yield from _announced(knowledge, (section,), Map.of([(keys.public_key, slot)]), dice)


@cache  # made once: it takes seconds
def _bombs() -> list[tuple[Keyword, tuple[Value, Value]]]:
    """Return (section, two states of a slot): making them costs more than sending them."""
    drives = [
        (drive_bomb(6, 4, 16, "a"), drive_bomb(6, 4, 16, "b")),
        (pair_bomb(8, 4, 12, "a"), pair_bomb(7, 4, 12, "b")),
    ]
    return [
        *((QUEUE, pair) for partitions in (1, 6) for pair in queue_bombs(3, partitions)),
        *((FS, (Map.of([("d", one)]), Map.of([("d", two)]))) for one, two in drives),
        # In both orders: one may be cheap.
        *((FS, (Map.of([("d", two)]), Map.of([("d", one)]))) for one, two in drives),
        (KV, (_database_bomb(5), _database_bomb(40))),
    ]


def _database_bomb(time: int) -> Value:
    return Map.of([("d", database_bomb(24, 60, time))])


# --- large sizes, and two histories ---------------------------------------------------------------


def overfill(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign more than a node that limits what it hosts has room for, or put it into content."""
    keys = knowledge.keys
    if dice.chance(0.3):
        blob = dice.bytes(32) * (OVERSIZE_BYTES // 32)  # cheap to make, and over the quota
        yield from _announced(knowledge, (_DATA,), Index.of([(value_hash(blob), blob)]), dice)
        return
    section, write = dice.pick(_SECTIONS[:2])
    slot = signed_slot(keys, knowledge, section, write, dice, OVERSIZE_BYTES // 100)
    yield from _announced(knowledge, (section,), Map.of([(keys.public_key, slot)]), dice)


def equivocate(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Sign a new history of a slot, or continue one of those signed before; send one or two."""
    keys = knowledge.keys
    section, write = dice.pick(_SECTIONS)
    branches = knowledge.branches.setdefault(section.name, [])
    for _ in range(2 if dice.chance(0.2) else 1):  # sometimes both branches to one peer
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
            slot = signed_slot(keys, knowledge, section, write, dice, dice.pick((4, 8, 20)))
        branches.append(slot)
        del branches[:-6]  # the latest histories only
        yield from _announced(knowledge, (section,), Map.of([(keys.public_key, slot)]), dice)


def _announced(
    knowledge: Knowledge, path: tuple[Value, ...], value: Value, dice: Dice
) -> Iterator[bytes]:
    """Yield an announcement at a path or of a root, with its cells or with some of them."""
    if dice.chance(0.3):
        value, path = Index.of([(path[0], value)]), ()  # as a root, too
    top, cells = cells_of(value)
    if not is_embedded(value):
        cells[value_hash(value)] = top
    _keep(knowledge, cells)
    along = dice.pick((1.0, 1.0, 0.5, 0.0))  # with all its cells, half of them, or none
    sent = [cell for cell in cells.values() if dice.chance(along)]
    yield encode_frame(encode_announcement(path, value, sent))


def _keep(knowledge: Knowledge, cells: Below) -> None:
    known = knowledge.known
    known.update(cells)
    while len(known) > KNOWN_MAX:  # the oldest go
        del known[next(iter(known))]


Attack = Callable[[Knowledge, Dice], Iterator[bytes]]

ATTACKS: Final[tuple[Attack, ...]] = (
    forge,
    intrude,
    ask_for_private_cells,
    replay,
    tamper,
    withhold,
    never_end,
    bomb,
    flood,
    babble,
    dribble,
    use_as_oracle,
)

POISON: Final[tuple[Attack, ...]] = (malform, explode, overfill, equivocate)
