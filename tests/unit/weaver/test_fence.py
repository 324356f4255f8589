"""Fence: a store of a copied folder refuses own writes until a peer was asked."""

from __future__ import annotations

import pytest

from datalattice.crypto import KeyPair
from datalattice.engine import GroupCommit
from datalattice.errors import Corruption, IdentityCloned, Unfenced, UsageError
from datalattice.testing.stores_kit import WeaverNode, envelopes_of, exchange
from datalattice.weaver import (
    Doubt,
    HeadReader,
    PeerStatus,
    PeerStrategy,
    SystemBatch,
    WeaverStore,
)
from datalattice.weaver.kv import PutRequest

PEER = KeyPair(b"p" * 32).public_key


def put(store: WeaverStore, key: bytes = b"k") -> None:
    store.execute("Put", PutRequest(key=key, value=b"v"))


def shared(node: WeaverNode, name: str = "notes") -> WeaverStore:
    """Return a new store that has another peer."""
    store = node.stores.create("kv", name)
    store.write_system(SystemBatch().set_peer_status(PEER, PeerStatus.ACTIVE))
    return store


def moved(node: WeaverNode) -> WeaverNode:
    """Return the node as it starts in a copy of its folder."""
    node.stores.arrive("here")
    there = node.restarted()
    there.stores.arrive("there")
    return there


def test_a_copy_refuses_own_writes_until_a_peer_was_asked() -> None:
    node = WeaverNode(1)
    id = shared(node).id
    there = moved(node)
    store = there.stores.open(id)
    for _ in range(2):  # the refusal is stored, and the place was noted
        with pytest.raises(Unfenced, match=r"copied, restored or moved.*lattice node start"):
            put(store)
        there = there.restarted()
        there.stores.arrive("there")
        store = there.stores.open(id)
    assert store.status().doubt == Doubt.MOVED.text
    assert there.stores.doubts() == {id: Doubt.MOVED}
    store.settle(asked=True)
    put(store)
    assert store.status().doubt is None


def test_a_folder_at_its_place_and_a_store_without_other_peers_are_written_to() -> None:
    node = WeaverNode(1)
    alone = node.stores.create("kv", "alone")
    node.stores.arrive("here")
    store = shared(node)
    node = node.restarted()
    node.stores.arrive("here")
    put(node.stores.open(store.id))
    there = moved(node)
    put(there.stores.open(alone.id))
    assert set(there.stores.doubts()) == {store.id}


@pytest.mark.parametrize("status", [PeerStatus.REVOKED, PeerStatus.INVITED])
def test_who_may_not_connect_is_nobody_to_ask(status: PeerStatus) -> None:
    node = WeaverNode(1)
    store = shared(node)
    store.write_system(SystemBatch().set_peer_status(PEER, status))
    put(moved(node).stores.open(store.id))


def test_a_child_is_in_doubt_with_the_peers_of_its_parent() -> None:
    node = WeaverNode(1)
    team = shared(node, "team")
    child = node.stores.create("kv", "child", parent=team.id)
    own = node.stores.create("kv", "own", parent=team.id)
    own.write_system(SystemBatch().set_strategy(PeerStrategy(independent=True)))
    there = moved(node)
    assert set(there.stores.doubts()) == {team.id, child.id}
    with pytest.raises(Unfenced):
        there.stores.create("kv", "another", parent=team.id)


def test_another_key_begins_chains_of_its_own() -> None:
    node = WeaverNode(1)
    store = shared(node)
    there = moved(node)
    other = WeaverNode(2, there.engine)
    other.stores.arrive("there")
    with other.stores.view(store.id) as view:
        assert view.fsck(2) == []  # the records are signed by the new key
    put(other.stores.open(store.id))


def test_the_user_may_accept_that_no_peer_was_asked() -> None:
    node = WeaverNode(1)
    shared(node)
    there = moved(node)
    (id,) = there.stores.doubts()
    store = there.stores.open(id)
    there.stores.accept_unasked()
    put(store)
    assert store.doubt() is Doubt.UNASKED
    store.suspect(Doubt.BEHIND)  # a peer has more after all
    with pytest.raises(Unfenced, match="set back"):
        put(store)


def test_a_clone_stays_refused_whatever_a_peer_says() -> None:
    node = WeaverNode(1)
    store = shared(node)
    node.stores.suspect_all(Doubt.CLONED)
    store.settle(asked=True)
    with pytest.raises(IdentityCloned, match="identity new"):
        put(store)
    node.stores.suspect_all(Doubt.BEHIND, only=Doubt.CLONED)  # the next start
    store.settle(asked=True)
    put(store)


def test_an_acknowledgement_waits_without_an_error() -> None:
    node, peer = WeaverNode(1), WeaverNode(2)
    store = shared(node)
    copy = peer.join(store)
    with store.read() as view:
        copy.ingest([entry.signed.encode() for entry in view.entries()])
    put(copy)
    with copy.read() as view:
        store.ingest([entry.signed.encode() for entry in view.entries()])
    store.suspect(Doubt.BEHIND)
    assert store.acknowledge() is None
    store.settle(asked=True)
    assert store.acknowledge() is not None


def test_a_damaged_row_is_an_error_and_no_permission() -> None:
    node = WeaverNode(1)
    store = shared(node)
    GroupCommit(node.engine).run(lambda txn: txn.put("fence", store.id, b"\xff?"))
    with pytest.raises(Corruption, match="fence"):
        put(store)


def forked() -> tuple[WeaverNode, WeaverStore, WeaverStore]:
    """Return a node, its store, and the store of a copy of it that went on in another way."""
    node, copy = WeaverNode(1), WeaverNode(1)
    store = node.stores.create("kv", "notes")
    other = copy.join(store)
    exchange(store, other)
    for number in range(3):
        put(store, b"here %d" % number)
        put(other, b"there %d" % number)
    return node, store, other


def test_a_node_joins_its_fork_once_and_its_peers_follow() -> None:
    node, store, other = forked()
    peer = WeaverNode(2).join(store)
    exchange(other, peer)  # the peer met the other history first
    exchange(store, peer)
    assert [one.status().forks for one in (store, peer)] == [1, 1]
    with store.read() as view:
        (fork,) = view.forks()
        assert len(view.other_branch(fork)) == 3
    store = node.restarted().stores.open(store.id)
    assert len(store.rejoin()) == 3
    assert store.rejoin() == []
    assert store.own_forks() == []
    exchange(store, peer)
    put(store, b"after")
    exchange(store, peer)
    for one in (store, peer):
        with one.read() as view:
            keys = {key for key, _, _ in HeadReader(view.data).scan()}
            assert view.fsck(3) == []
        assert keys >= {b"here 0", b"here 2", b"there 0", b"there 2", b"after"}
        assert one.status().applied == one.status().intentions


def test_a_history_that_others_have_built_on_stays() -> None:
    _, store, other = forked()
    peer = WeaverNode(2).join(store)
    exchange(store, peer)
    put(peer, b"here 1")  # replaces, so it depends on, what the node has in its log
    exchange(store, peer)
    store.ingest(envelopes_of(other))
    before = store.status()
    with pytest.raises(UsageError, match=peer.author.hex()):
        store.rejoin()
    assert store.status() == before
