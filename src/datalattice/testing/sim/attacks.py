"""Attacks: functions that yield what a hostile peer sends, with valid frames or without."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    encode,
    encode_message,
    novelty,
    value_hash,
)
from datalattice.crypto import SIGNATURE_BYTES, KeyPair
from datalattice.lattice import LOCAL_KEY, TIMESTAMP, did_of, local_slot
from datalattice.store import MemoryStore
from datalattice.testing.dice import Dice
from datalattice.testing.sim.node import MESSAGE_BYTES_MAX, SimNode
from datalattice.testing.sim.timeline import EPOCH_MS
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
P2P: Final = Keyword("p2p")
NODES: Final = Keyword("nodes")
DATA: Final = Keyword("data")
VALUE: Final = Keyword("value")

PEER: Final = Keyword("PEER")
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
        return encode_ping(id, PEER)

    def lie(self, id: Value, dice: Dice) -> bytes:
        """Return an answer to a query for its root."""
        if dice.chance(0.5):
            return encode_result(Result(id, None))
        return encode_message(_wrapped(Vector.of([dice.bytes(200)])))


def _said(path: Sequence[Value], value: Value) -> bytes:
    """Return the frame of an announcement with all its cells."""
    return encode_frame(encode_message(Vector.of([Keyword("LV"), Vector.of(path), value])))


def _wrapped(value: Value) -> Index:
    """Return a root that holds a value as content."""
    return Index.of([(DATA, Index.of([(value_hash(value), value)]))])


def forge(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Announce data of others, unsigned, signed by the attacker, or with an old signature."""
    victim = dice.pick(knowledge.victims)
    owner = victim.keys.public_key
    topics = Map.of([("t", Vector.of([dice.below(10**6)]))])
    info = Map.of([(TIMESTAMP, EPOCH_MS + 10**12), (Keyword("type"), "forged")])
    value = dice.pick((topics, info))
    signature = dice.bytes(SIGNATURE_BYTES)
    if victim.keys.signatures and dice.chance(0.5):
        signature = list(victim.keys.signatures)[
            -1 - dice.below(min(5, len(victim.keys.signatures)))
        ]
    entry: Value = dice.pick(
        (Signed(owner, signature, value), Signed.sign(knowledge.keys, value), value)
    )
    name: Value = did_of(owner) if dice.chance(0.3) else owner
    section = (QUEUE,) if value is topics else (P2P, NODES)
    kind = dice.below(4)
    if kind == 0:
        yield _said((*section, name), entry)
    elif kind == 1:
        yield _said(section, Map.of([(name, entry)]))
    elif kind == 2:
        yield _said((*section, name, VALUE), value)
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
            data[dice.below(len(data))] ^= 1 << dice.below(8)
            yield encode_frame(bytes(data[: dice.between(1, len(data))]))


def withhold(_knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Announce a root that does not exist, or some of whose cells do not."""
    if dice.chance(0.5):
        top = Index.of([(DATA, Vector.of([dice.bytes(200), dice.bytes(200)]))])
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
    root = Index.of([(DATA, Index.of([(value_hash(blob), blob) for blob in blobs]))])
    lost = {value_hash(blob) for blob in blobs}
    cells = [data for hash, data, _ in novelty(root, MemoryStore()) if hash not in lost]
    return encode_frame(encode_announcement((), root, cells))


def bomb(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Send few bytes that stand for a huge value."""
    kind = dice.below(6)
    if kind == 0:  # nested beyond any stack
        yield encode_frame(b"\x80\x01" * dice.pick((100, 5_000, 200_000)) + b"\x00")
    elif kind == 1:  # a vector and a blob of 2**60 elements
        count = encode_length(2**60)
        yield encode_frame(_VECTOR_TAG + count + _REF_TAG + dice.bytes(32))
        yield encode_frame(_BLOB_TAG + count + _REF_TAG + dice.bytes(32))
    elif kind == 2:  # 16 ** 12 leaves in a dozen cells
        value: Value = b"bomb".ljust(200, b".")
        for _ in range(12):
            value = Vector.of([value] * 16)
        yield _said((), _wrapped(value))
    elif kind == 3:  # the longest frame
        yield _said((), _wrapped(bytes(MESSAGE_BYTES_MAX - 60_000)))
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
        yield encode_frame(b"")
        yield encode_frame(encode(Vector.of([Keyword("PING")])))
        yield encode_frame(encode(Vector.of([Keyword("LV"), 1])))
    elif kind == 2:
        yield b"\x80" + dice.bytes(10)
    else:
        yield encode_frame(encode_goodbye())


def dribble(_knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Begin a frame that never ends, or one that is too long to begin with."""
    length = dice.pick((MESSAGE_BYTES_MAX - 1, MESSAGE_BYTES_MAX + 1, 2**34))
    yield encode_length(length) + bytes(100)
    for _ in range(1 if length < MESSAGE_BYTES_MAX else 6):  # longer than any frame may be
        yield bytes(250_000)


def use_as_oracle(knowledge: Knowledge, dice: Dice) -> Iterator[bytes]:
    """Have a node sign things, as answers to challenges."""
    for number in range(3):
        token = dice.pick((b"", dice.bytes(32), dice.bytes(200)))
        wanted = dice.pick((None, dice.pick(knowledge.victims).keys.public_key))
        yield encode_frame(encode_challenge(number, knowledge.keys, token, wanted))


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
