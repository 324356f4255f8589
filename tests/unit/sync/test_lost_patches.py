"""A peer that lost one patch of many gets what it lacks at once, while the writer goes on."""

from __future__ import annotations

from collections import deque

from datalattice.apps.kv import Database
from datalattice.cells import Value, encode, references
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeProtocol, LatticeReplica, Replicator
from datalattice.sync.partner import REPUSH_MS
from datalattice.wire import (
    Announcement,
    DataRequest,
    LatticeMessage,
    Patched,
    Result,
    decode_payload,
    encode_request,
)

WRITER = KeyPair(b"w" * 32)
STEP_MS = 100


class Node:
    """A replicator, and the frames on their way to it."""

    def __init__(self, keys: KeyPair) -> None:
        self.replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=keys))
        self.replicator = Replicator(self.replica, LatticeProtocol(SystemClock()))
        self.inbox: deque[bytes] = deque()

    @property
    def database(self) -> Database:
        return Database.at(self.replica.cursor, WRITER.public_key, "d")


class Link:
    """Two nodes; a frame takes one step from the one to the other."""

    def __init__(self) -> None:
        self.writer, self.reader = Node(WRITER), Node(KeyPair(b"r" * 32))
        self.now_ms = 0
        self.asked: list[LatticeMessage] = []  # by the reader
        self.told: list[LatticeMessage] = []  # to the reader
        self.loses = False  # whether frames to the reader are lost

    def open(self) -> None:
        self.writer.replicator.open("link", 0, outbound=False)
        self.reader.replicator.open("link", 0, outbound=True)

    def write(self, key: str, value: Value) -> None:
        self.writer.database[key] = value
        self.writer.replicator.publish(self.now_ms)

    def step(self) -> None:
        self.now_ms += STEP_MS
        for node in (self.writer, self.reader):
            for _ in range(len(node.inbox)):
                node.replicator.receive("link", node.inbox.popleft(), self.now_ms)
            node.replicator.tick(self.now_ms)
        self._carry(self.writer, self.reader, self.told)
        self._carry(self.reader, self.writer, self.asked)

    def _carry(self, sender: Node, receiver: Node, said: list[LatticeMessage]) -> None:
        for _, payload in sender.replicator.take_effects().sends:
            sender.replicator.written("link", 1, self.now_ms)
            said.append(decode_payload(payload, None)[0])
            if not (self.loses and receiver is self.reader):
                receiver.inbox.append(payload)


def joined() -> Link:
    """Return a link over which a tree of several levels was exchanged."""
    link = Link()
    link.writer.database.update({f"key {number}": number for number in range(5_000)})
    link.writer.replicator.publish(0)
    link.open()
    for _ in range(20):
        link.step()
    for number in range(3):
        link.write("last", -number)
        link.step()
    assert len(link.reader.database) == 5_001
    return link


def lose_one(link: Link) -> None:
    link.loses = True
    link.write("key 7", "lost")
    link.step()
    link.loses = False
    link.told.clear()
    link.asked.clear()


def test_the_reader_catches_up_while_the_writer_goes_on() -> None:
    link = joined()
    lose_one(link)
    behind: list[int] = []
    for number in range(30):
        link.write("last", number)
        link.step()
        seen = link.reader.database.get("last")
        behind.append(number - seen if isinstance(seen, int) else number + 1)
    assert max(behind) <= 5
    assert behind[-1] <= 1
    assert link.reader.database["key 7"] == "lost"


def test_it_asks_once_and_is_told_all_that_it_lacks_by_the_state_it_has() -> None:
    link = joined()
    lose_one(link)
    link.write("last", 1)
    for _ in range(6):
        link.step()
    assert link.reader.database["last"] == 1
    assert [type(one) for one in link.told if isinstance(one, Patched | Announcement)] == [
        Patched,  # made of the state that was lost
        Announcement,
    ]
    assert len([one for one in link.asked if isinstance(one, DataRequest)]) == 1


def test_a_peer_that_asks_for_cells_below_the_top_is_just_given_them() -> None:
    link = joined()
    link.told.clear()
    below = references(encode(link.writer.replica.announced))
    link.writer.inbox.append(encode_request(99, below))
    for _ in range(3):
        link.step()
    assert [type(one) for one in link.told] == [Result]


def ask_for_the_top(link: Link) -> int:
    """Have the reader ask for the root that it was told last; return how often it was told one."""
    link.told.clear()
    link.writer.inbox.append(encode_request(99, [link.writer.replica.announced_hash]))
    link.step()
    return len([one for one in link.told if isinstance(one, Patched | Announcement)])


def test_a_stranger_is_told_again_once_a_second() -> None:
    link = joined()
    steps = REPUSH_MS // STEP_MS
    assert [ask_for_the_top(link) for _ in range(steps + 1)] == [1] + [0] * (steps - 1) + [1]


def test_a_wanted_peer_is_told_again_whenever_it_asks() -> None:
    link = joined()
    link.writer.replica.charges.introduce("link", "link", is_wanted=True, is_known=True)
    assert [ask_for_the_top(link) for _ in range(4)] == [1, 1, 1, 1]
