"""Who is let in when more come than there is room for, and who has to go for it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time

import pytest

from datalattice.cells import (
    Index,
    Keyword,
    Vector,
    encode,
    encode_message,
    references,
    value_hash,
)
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.limits import CHARGE_LIMITS
from datalattice.node import MemoryTransport, NodeServer, open_node
from datalattice.node.admission import (
    BANNED_MAX,
    BANNED_S,
    BANS_MAX,
    CROWDED,
    IDLE,
    IDLE_S,
    KEY_CONNECTIONS_MAX,
    RESERVED_MIN,
    RESERVED_SHARE,
    SHARED,
    STRANGERS_PER_S,
    USELESS_S,
    WANTED_CONNECTIONS_MAX,
    Admission,
    InboundPeer,
    NotAdmitted,
)
from datalattice.node.bounds import BURST_S
from datalattice.node.transport import Accept, Link, Listener, OnRefused
from datalattice.node.transport.memory import MemoryLink
from datalattice.store import MemoryStore
from datalattice.sync.conduct import MALFORMED_MAX
from datalattice.testing.malformed import cells_of, value_from_cells, with_cell
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import FrameBuffer, encode_frame, encode_length, encode_ping

WANTED = KeyPair(b"w" * 32).public_key
ELSEWHERE = "10.0.0.7:5"
ROOM = 80
FOR_STRANGERS = ROOM - RESERVED_MIN


class Crowd:
    """An admission, a clock, and the reasons why connections were ended."""

    def __init__(self, room: int = ROOM, per_address: int = 0) -> None:
        self.now_s = 0.0
        self.ended: dict[InboundPeer, str] = {}
        self.admission = Admission(room, per_address, lambda key: key == WANTED, lambda: self.now_s)
        self._count = 0

    def come(self, key: bytes | None = None, remote: str = "memory:1") -> InboundPeer:
        box: list[InboundPeer] = []
        box.append(self.admission.admit(remote, key, lambda why: self.ended.update({box[0]: why})))
        return box[0]

    def fill(self, count: int) -> list[InboundPeer]:
        """Let strangers in, slowly enough."""
        guests = []
        for _ in range(count):
            self.now_s += 1 / STRANGERS_PER_S
            guests.append(self.come(remote=ELSEWHERE))
        return guests


def refused(crowd: Crowd, key: bytes | None = None, remote: str = "memory:1") -> str:
    with pytest.raises(NotAdmitted) as caught:
        crowd.come(key, remote)
    return caught.value.counter


@pytest.mark.parametrize("room", [1, 2, 31, ROOM, 1_000])
def test_a_part_of_the_room_is_reserved_for_wanted_keys(room: int) -> None:
    crowd = Crowd(room)
    reserved = min(room // 2, max(RESERVED_MIN, room // RESERVED_SHARE))
    crowd.fill(room - reserved)
    crowd.now_s += 1.0
    assert refused(crowd) == "connections-refused"
    for _ in range(min(reserved, WANTED_CONNECTIONS_MAX)):
        crowd.come(WANTED)
    assert not crowd.ended


def test_a_wanted_key_takes_the_place_of_the_stranger_that_was_useful_longest_ago() -> None:
    crowd = Crowd(4)
    first, second = crowd.fill(2)
    crowd.now_s += 1
    crowd.admission.used(first)
    for _ in range(2):
        crowd.come(WANTED)
    assert not crowd.ended
    crowd.come(WANTED)
    assert crowd.ended == {second: CROWDED}
    crowd.come(WANTED)
    assert crowd.ended == {second: CROWDED, first: CROWDED}
    assert len(crowd.admission) == 4
    assert refused(crowd, WANTED) == "connections-refused"  # all that are left are wanted, too


@pytest.mark.parametrize("useless_s", [USELESS_S - 1, USELESS_S, USELESS_S + 1])
def test_a_stranger_takes_the_place_of_one_that_was_of_no_use(useless_s: float) -> None:
    crowd = Crowd()
    guests = crowd.fill(FOR_STRANGERS)
    crowd.now_s += useless_s
    for guest in guests[1:]:
        crowd.admission.used(guest)
    guests[0].used_s = crowd.now_s - useless_s
    if useless_s < USELESS_S:
        assert refused(crowd) == "connections-refused"
    else:
        crowd.come()
        assert crowd.ended == {guests[0]: CROWDED}
    assert len(crowd.admission) == FOR_STRANGERS


@pytest.mark.parametrize("idle_s", [IDLE_S - 1, IDLE_S])
@pytest.mark.parametrize("taken", [ROOM // 2, ROOM // 2 + 1])
def test_idle_strangers_end_when_more_than_half_of_the_room_is_taken(
    idle_s: float, taken: int
) -> None:
    crowd = Crowd()
    crowd.come(WANTED)
    guests = crowd.fill(taken - 2)
    crowd.now_s += idle_s
    for guest in guests[1:]:
        crowd.admission.used(guest)
    guests[0].used_s = crowd.now_s - idle_s
    crowd.come()
    is_due = idle_s >= IDLE_S and 2 * taken > ROOM
    assert crowd.ended == ({guests[0]: IDLE} if is_due else {})


@pytest.mark.parametrize(
    ("key", "limit"), [(b"s" * 32, KEY_CONNECTIONS_MAX), (WANTED, WANTED_CONNECTIONS_MAX)]
)
def test_one_key_has_so_many_connections_and_the_next_ends_the_idlest(
    key: bytes, limit: int
) -> None:
    crowd = Crowd()
    guests = [crowd.come(key) for _ in range(limit)]
    assert not crowd.ended
    crowd.now_s = 1.0
    for guest in [*guests[:1], *guests[2:]]:
        crowd.admission.used(guest)
    crowd.come(key)
    assert crowd.ended == {guests[1]: SHARED}
    assert len(crowd.admission) == limit


def test_new_strangers_come_at_a_rate_and_wanted_keys_at_any() -> None:
    crowd = Crowd(1_000)
    burst = STRANGERS_PER_S * BURST_S
    for _ in range(burst):
        crowd.come(remote=ELSEWHERE)
    for _ in range(1_000):
        assert refused(crowd, remote=ELSEWHERE) == "strangers-refused"
    crowd.come(WANTED, ELSEWHERE)
    crowd.come()  # from this machine
    crowd.now_s = 1.0
    for _ in range(STRANGERS_PER_S):
        crowd.come(remote=ELSEWHERE)
    assert refused(crowd, remote=ELSEWHERE) == "strangers-refused"


def test_an_address_that_has_all_it_may_does_not_use_up_the_rate_of_others() -> None:
    crowd = Crowd(1_000, per_address=2)
    for _ in range(2):
        crowd.come(remote="10.0.0.1:5")
    for _ in range(1_000):
        assert refused(crowd, remote="10.0.0.1:5") == "addresses-refused"
    guest = crowd.come(remote="10.0.0.2:5")
    crowd.come(WANTED, "10.0.0.1:5")  # whoever is wanted may come from there all the same
    crowd.admission.release(guest)
    crowd.admission.release(guest)
    assert len(crowd.admission) == 3


def test_who_has_to_go_gives_its_address_back_at_once() -> None:
    crowd = Crowd(2, per_address=1)
    crowd.come(remote="10.0.0.1:5")
    crowd.now_s = USELESS_S
    crowd.come(remote="10.0.0.2:5")
    crowd.now_s += USELESS_S
    crowd.come(remote="10.0.0.1:6")


@pytest.mark.parametrize("passed_s", [BANNED_S - 1, BANNED_S])
def test_a_key_that_was_cut_stays_out_for_a_while(passed_s: float) -> None:
    crowd = Crowd()
    key = b"m" * 32
    guest = crowd.come(key, "10.0.0.1:5")
    crowd.admission.ban(guest)
    crowd.admission.release(guest)
    assert refused(crowd, key, "10.0.0.9:5") == "banned-refused"
    crowd.come(b"n" * 32, "10.0.0.1:5")  # others at its address may come
    crowd.now_s = passed_s
    if passed_s < BANNED_S:
        assert refused(crowd, key) == "banned-refused"
    else:
        crowd.come(key)


@pytest.mark.parametrize("cuts", [BANS_MAX - 1, BANS_MAX])
def test_an_address_of_several_cut_keys_stays_out(cuts: int) -> None:
    crowd = Crowd()
    for number in range(cuts):
        guest = crowd.come(bytes([number]) * 32, "10.0.0.1:5")
        crowd.admission.ban(guest)
        crowd.admission.release(guest)
    if cuts < BANS_MAX:
        crowd.come(b"n" * 32, "10.0.0.1:5")
    else:
        assert refused(crowd, b"n" * 32, "10.0.0.1:5") == "banned-refused"
    crowd.come(WANTED, "10.0.0.1:5")


def test_a_wanted_key_is_never_kept_out_and_bans_are_bounded() -> None:
    crowd = Crowd()
    guest = crowd.come(WANTED, "10.0.0.1:5")
    crowd.admission.ban(guest)
    crowd.come(WANTED, "10.0.0.1:5")
    for number in range(BANNED_MAX + 1):
        crowd.admission.ban(
            InboundPeer("memory:1", number.to_bytes(32, "big"), lambda _: None, 0.0)
        )
    crowd.come(bytes(32))  # the oldest is forgotten
    assert refused(crowd, (1).to_bytes(32, "big")) == "banned-refused"


# --- a node --------------------------------------------------------------------------------------


class Keyed(MemoryTransport):
    """A network on which every dialler proves a key: a fresh one, or the one it is given."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: collections.deque[bytes] = collections.deque()

    async def listen(
        self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
    ) -> Listener:
        async def proved(link: Link) -> None:
            assert isinstance(link, MemoryLink)
            link.remote = ELSEWHERE
            link.public_key = self._keys.popleft()
            await accept(link)

        return await super().listen(bind, port, proved, refused)

    async def dial_as(self, key: bytes | None, node: NodeServer) -> Link:
        self._keys.append(key or KeyPair.generate().public_key)  # links arrive in order
        return await self.dial(str(node.address))


async def replies(link: Link) -> list[bytes]:
    """Return the frames that come until the end of a link, or one reply to a ping."""
    buffer, frames = FrameBuffer(), []
    with contextlib.suppress(OSError):
        await link.write(encode_frame(encode_ping(1)))
    while data := await link.read():
        buffer.feed(data)
        while (frame := buffer.next_payload()) is not None:
            frames.append(frame)
            if b"PONG" in frame:
                return frames
    return frames


def test_wanted_peers_get_in_at_once_among_a_thousand_strangers() -> None:
    wanted = [KeyPair(bytes([number]) * 32).public_key for number in range(1, 5)]

    async def work() -> None:
        transport = Keyed()
        config = NodeConfig(
            bind="memory", port=0, connections_max=100, connections_per_address_max=0
        )
        async with open_node(
            MemoryStore(), key_pair=KeyPair(b"n" * 32), transport=transport, config=config
        ) as node:
            for key in wanted:
                node.add_peer(public_key=key)
            # All of them come in one second, however long that takes here.
            began_s = time.monotonic()
            node._network._admission._now_s = lambda: began_s
            strangers = [await transport.dial_as(None, node) for _ in range(1_000)]
            async with asyncio.timeout(LIMIT_S):
                for key in wanted:
                    link = await transport.dial_as(key, node)
                    assert b"PONG" in (await replies(link))[-1]
            assert [peer.connected for peer in node.peers] == [True] * 4
            assert node.connection_count == 100 - RESERVED_MIN + 4
            assert node.observer.counters["connections-refused"] > 0
            (reason,) = await replies(strangers[-1])
            assert b"new strangers in a second" in reason
            for link in strangers:
                link.abort()

    asyncio.run(work())


def test_a_peer_learns_why_it_is_not_let_in() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        config = NodeConfig(bind="memory", port=0, connections_max=1)
        async with open_node(
            MemoryStore(), key_pair=KeyPair(b"n" * 32), transport=transport, config=config
        ) as full:
            taken = await transport.dial(str(full.address))
            assert await replies(taken)
            late = open_node(
                MemoryStore(),
                key_pair=KeyPair(b"l" * 32),
                transport=transport,
                config=NodeConfig(bind="memory", port=-1, peers=(str(full.address),)),
            )
            async with late, asyncio.timeout(LIMIT_S):
                while "refused" not in late.peers[0].reason:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0)
                assert late.peers[0].reason == (
                    "the peer refused: 'all connections for strangers are taken'"
                )
            taken.abort()

    asyncio.run(work())


def test_a_key_that_sends_no_messages_at_all_is_not_let_in_again() -> None:
    async def work() -> None:
        transport = Keyed()
        config = NodeConfig(bind="memory", port=0)
        async with (
            open_node(
                MemoryStore(), key_pair=KeyPair(b"n" * 32), transport=transport, config=config
            ) as node,
            asyncio.timeout(LIMIT_S),
        ):
            link = await transport.dial_as(b"m" * 32, node)
            for _ in range(MALFORMED_MAX):
                await link.write(encode_length(3) + b"\xff\xff\xff")
            while await link.read():
                pass
            again = await transport.dial_as(b"m" * 32, node)
            (reason,) = await replies(again)
            assert b"breach of the protocol" in reason
            other = await transport.dial_as(b"o" * 32, node)
            assert b"PONG" in (await replies(other))[-1]

    asyncio.run(work())


def unsound(number: int) -> bytes:
    """Return a message whose cells are well formed and do not fit together."""
    entries = Index.of([(f"{number} {n}", "x" * 90) for n in range(60)])
    top, below = cells_of(entries)
    content = b"%d" % number + b"b" * 200
    blob = below[value_hash(content)] = encode(content)
    value = value_from_cells(*with_cell(top, below, references(top)[0], blob))
    message = Vector.of((Keyword("LV"), Vector.of((Keyword("data"),)), value))
    return encode_frame(encode_message(message))


@pytest.mark.parametrize("wanted", [False, True])
def test_who_sends_cells_that_do_not_fit_together_is_cut_unless_it_is_wanted(wanted: bool) -> None:
    async def work() -> None:
        transport, key = Keyed(), b"m" * 32
        config = NodeConfig(bind="memory", port=0)
        async with (
            open_node(
                MemoryStore(), key_pair=KeyPair(b"n" * 32), transport=transport, config=config
            ) as node,
            asyncio.timeout(60),
        ):
            if wanted:
                node.add_peer(public_key=key)
            # All connections of a key count together.
            links = [await transport.dial_as(key, node) for _ in range(2)]
            for number in range(CHARGE_LIMITS.unsound_max - 1):
                await links[number % 2].write(unsound(number))
            counters = node.observer.counters
            await node.wait_until(lambda _: counters.get("unsound-cells") == 7, 60)
            assert len(node.connections) == 2
            assert node.observer.health == "ok"
            await links[0].write(unsound(99))
            if wanted:
                await node.wait_until(lambda node: "unsound" in node.observer.reasons, 60)
                text = node.observer.reasons["unsound"]
                assert text.startswith(f"{key.hex()} sent 8 cells that do not fit together: ")
                assert len(node.connections) == 2
            else:
                for link in links:
                    while await link.read():
                        pass
                (reason,) = await replies(await transport.dial_as(key, node))
                assert b"breach of the protocol" in reason
                assert counters["closed-unsound"] == 1
                assert node.observer.health == "ok"

    asyncio.run(work())


def test_what_a_connection_was_of_use_for_keeps_it() -> None:
    """A request for cells that is served, and a value that changes the root, are of use."""

    async def work() -> None:
        transport = MemoryTransport()
        config = NodeConfig(bind="memory", port=0)
        async with open_node(
            MemoryStore(), key_pair=KeyPair(b"n" * 32), transport=transport, config=config
        ) as node:
            link = await transport.dial(str(node.address))
            assert await replies(link)
            (guest,) = node._network._guests.values()
            guest.used_s = -1_000.0
            assert await replies(link)
            assert guest.used_s == -1_000.0, "a ping is of no use"
            other = open_node(
                MemoryStore(),
                key_pair=KeyPair(b"o" * 32),
                transport=transport,
                config=NodeConfig(bind="memory", port=-1, peers=(str(node.address),)),
            )
            async with other, asyncio.timeout(LIMIT_S):
                while len(node._network._guests) < 2:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0)
                last = list(node._network._guests.values())[-1]
                last.used_s = -1_000.0
                other.cursor.path(Keyword("data")).merge(Index.of([(value_hash(7), 7)]))
                await other.sync()
                while last.used_s < 0:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0)
            link.abort()

    asyncio.run(work())
