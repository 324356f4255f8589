"""Gossip: each intention reaches each node once, and a broken tree is mended."""

from __future__ import annotations

import pytest

import datalattice.sync.conversation as talk
from datalattice.crypto import SeededEntropy
from datalattice.protobuf import varint
from datalattice.sync import Offer, Peer
from datalattice.sync.weaver import (
    ANNOUNCED_MAX,
    GRAFT_MS,
    NEIGHBOURS_MAX,
    GossipOffer,
    Neighbours,
    NewsMessage,
    WeaverConversation,
)
from datalattice.testing.mesh_kit import MESH_STORE, WeaverMesh, message_name


def settled(size: int) -> WeaverMesh:
    """Return a mesh in which every node has written, so that a tree has been found."""
    mesh = WeaverMesh(size)
    mesh.connect_all()
    for number in range(2 * size):
        mesh.write(number % size, b"before %d" % number)
        mesh.pass_time(200)
    mesh.sent.clear()
    return mesh


def test_among_nine_nodes_each_intention_is_sent_eight_times() -> None:
    mesh = settled(9)
    for number in range(20):
        mesh.write(number % 9, b"%d" % number)
        mesh.pass_time(1_000)
        assert mesh.is_equal()
    assert mesh.sent["news"] == 20 * 8
    assert mesh.sent["announcement"] <= 20 * 56
    assert not mesh.sent["fetch_intentions"]


def test_between_two_nodes_nothing_is_announced() -> None:
    mesh = settled(2)
    mesh.write(0, b"news")
    mesh.pass_time(1_000)
    assert mesh.sent == {"news": 1, "statement": 1}


def test_the_writer_learns_that_its_peer_has_it() -> None:
    mesh = settled(2)
    mesh.write(0, b"news")
    mesh.pass_time(100)
    (standing,) = mesh.nodes[0].replicator.standings
    assert standing.equal
    assert standing.stated == mesh.nodes[1].replica.probe


def test_what_is_lost_on_the_tree_is_fetched_from_who_announced_it() -> None:
    mesh = settled(5)
    mesh.lose = lambda _sender, receiver, payload: receiver == 3 and message_name(payload) == "news"
    hash = mesh.write(0, b"lost on the way to one node")
    mesh.pass_time(GRAFT_MS - 20)
    assert mesh.nodes[3].get(hash) is None
    mesh.pass_time(200)
    assert mesh.nodes[3].get(hash) is not None
    assert 1 <= mesh.sent["fetch_intentions"] <= 3  # one for each that announced it


def test_a_node_of_the_tree_that_goes_away_is_replaced() -> None:
    mesh = settled(6)
    for gone in (1, 2):
        mesh.isolate(gone)
    left = [0, 3, 4, 5]
    for number in range(8):
        mesh.write(left[number % 4], b"without them %d" % number)
        mesh.pass_time(2 * GRAFT_MS)
    assert mesh.is_equal(left)
    mesh.sent.clear()
    for number in range(4):
        mesh.write(left[number], b"again %d" % number)
        mesh.pass_time(1_000)
    assert mesh.is_equal(left)
    assert mesh.sent["news"] == 4 * 3


def test_a_store_with_many_peers_pushes_to_eight_and_the_others_are_compared() -> None:
    mesh = WeaverMesh(16)
    mesh.connect_all()
    for number in range(16):
        mesh.write(number, b"%d" % number)
    mesh.pass_time(35_000)
    assert mesh.is_equal()
    mesh.sent.clear()
    mesh.write(0, b"news")
    # The writer alone has sent by now, to its neighbours.
    assert mesh.sent["news"] + mesh.sent["announcement"] <= 16 * NEIGHBOURS_MAX
    mesh.pass_time(35_000)
    assert mesh.is_equal()


def test_a_node_that_is_no_neighbour_of_ours_hears_that_we_have_it_already() -> None:
    """Of sixteen nodes each has eight neighbours, which need not have it in turn."""
    mesh = settled(16)
    for number in range(16):
        mesh.write(number, b"%d" % number)
        mesh.pass_time(1_000)
    assert mesh.is_equal()
    assert mesh.sent["news"] + mesh.sent["fetch_intentions"] < 1.6 * 16 * 15


@pytest.mark.parametrize("count", [NEIGHBOURS_MAX - 1, NEIGHBOURS_MAX, NEIGHBOURS_MAX + 1, 40])
def test_a_store_has_so_many_neighbours(count: int) -> None:
    neighbours = Neighbours(SeededEntropy(1))
    names = [f"link {number}" for number in range(count)]
    for name in [*names, *names]:
        neighbours.meet(name)
    assert sum(name in neighbours for name in names) == min(count, NEIGHBOURS_MAX)


def test_neighbours_are_chosen_at_random_and_replaced_when_lost() -> None:
    names = [f"link {number}" for number in range(16)]
    chosen = dict.fromkeys(names, 0)
    for seed in range(200):
        neighbours = Neighbours(SeededEntropy(seed))
        for name in names:
            neighbours.meet(name)
        for name in names:
            chosen[name] += name in neighbours
    assert all(60 < times < 140 for times in chosen.values())  # 100 of 200 is even
    gone = [name for name in names if name in neighbours][:5]
    for name in gone:
        neighbours.leave(name)
    assert sum(name in neighbours for name in names) == NEIGHBOURS_MAX
    assert not any(name in neighbours for name in gone)


class Hearing:
    """A conversation, and the events of what the peer says."""

    def __init__(self) -> None:
        self.own = WeaverConversation(Peer("p", dialled=True), MESH_STORE)
        self.own.send(talk.Greet(), 0)
        self.own.events()

    def hear(self, news: NewsMessage, now_ms: int = 0) -> list[talk.PeerEvent]:
        self.own.receive(varint(0) + news.encode(), now_ms)
        return self.own.events()


def test_an_announcement_is_heeded_when_its_time_is_over() -> None:
    hearing = Hearing()
    first, second = bytes(32), bytes(31) + b"2"
    assert hearing.hear(NewsMessage(announced=(first,)), 5) == [talk.Offered(GossipOffer())]
    hearing.hear(NewsMessage(announced=(first, second)), 100)
    assert hearing.own.deadline_ms == GRAFT_MS + 5
    hearing.own.expire(GRAFT_MS + 4)
    assert not hearing.own.events()
    hearing.own.expire(GRAFT_MS + 5)
    assert hearing.own.events() == [talk.Offered(GossipOffer(announced=(first,)))]
    assert hearing.own.deadline_ms == GRAFT_MS + 100


@pytest.mark.parametrize("count", [ANNOUNCED_MAX - 1, ANNOUNCED_MAX, ANNOUNCED_MAX + 1])
def test_more_announcements_than_may_wait_are_left_to_a_comparison(count: int) -> None:
    hashes = tuple(number.to_bytes(32, "big") for number in range(count))
    events = Hearing().hear(NewsMessage(announced=hashes))
    assert any(isinstance(one, talk.Doubted) for one in events) == (count > ANNOUNCED_MAX)


@pytest.mark.parametrize("length", [31, 32, 33])
def test_an_announced_hash_has_32_bytes(length: int) -> None:
    events = Hearing().hear(NewsMessage(announced=(bytes(length),)))
    assert any(isinstance(one, talk.Fault) for one in events) == (length != 32)


def test_many_news_are_announced_in_lots() -> None:
    mesh = settled(2)
    node, (peer,) = mesh.nodes[0], mesh.nodes[0].replicator._partners.values()
    known = [node.replica.probe]
    node.replica.absorb(GossipOffer(is_redundant=True), peer.peer)
    for number in range(ANNOUNCED_MAX + 1):
        node.store.submit(b"%d" % number)
    node.replica.publish()
    news = node.replica.news(peer.peer, known)
    assert news is not None
    sizes = [len(one.announced) for one in news.offers if isinstance(one, GossipOffer)]
    assert sizes == [ANNOUNCED_MAX, 1]
    assert all(not one.parts for one in news.offers)
    assert isinstance(news.offers[-1], Offer)
