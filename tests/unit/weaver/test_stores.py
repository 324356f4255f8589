"""The stores of a node: life cycle, tree, watcher, inventory, peers and invites."""

from __future__ import annotations

from typing import Any

import pytest

from datalattice.crypto import SeededEntropy
from datalattice.engine import GroupCommit, MemoryEngine
from datalattice.errors import (
    AlreadyExists,
    BadFormat,
    Conflict,
    NoSuchPath,
    StoreClosed,
    Unauthorized,
    UsageError,
)
from datalattice.testing.stores_kit import WeaverNode, envelopes_of, exchange, state_of
from datalattice.weaver import (
    STORE_TABLES,
    ChildStatus,
    InviteToken,
    PeerStatus,
    PeerStrategy,
    SystemBatch,
    WeaverStore,
    store_id_text,
)
from datalattice.weaver.kv import GetRequest, PutRequest
from datalattice.weaver.null import NullMachine
from datalattice.weaver.state import BATCH_RECORDS
from datalattice.weaver.stores import STORE_NAME_BYTES_MAX, STORE_TREE_DEPTH_MAX, Stores
from datalattice.weaver.tables import STATE_TABLES

STRANGER = b"\x77" * 32


class Tally(NullMachine):
    """A kind that only some nodes know."""

    kind = "test:tally"


def put(store: WeaverStore, key: bytes, value: bytes) -> None:
    store.execute("Put", PutRequest(key, value))


def get(store: WeaverStore, key: bytes) -> Any:
    return store.query("Get", GetRequest(key)).value  # type: ignore[attr-defined]


# --- life -----------------------------------------------------------------------------------------


def test_store_creation_and_archival() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv", "team")
    child = stores.create("log", "diary", parent=parent.id)
    assert stores.get(child.id) is child
    stores.archive(parent.id, child.id)
    assert stores.get(child.id) is None
    (info,) = stores.list(parent.id)
    assert (info.name, info.kind, info.is_archived) == ("diary", "core:logstore", True)
    with pytest.raises(StoreClosed):
        child.status()
    stores.restore(parent.id, child.id)
    assert stores.get(child.id) is not None


def test_store_emits_network_event() -> None:
    stores = WeaverNode(1).stores
    ready: list[WeaverStore] = []
    stores.on_ready.add(ready.append)
    made = stores.create("kv")
    assert ready == [made]


def test_archived_store_hidden_from_network() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv", "team")
    child = stores.create("kv", "notes", parent=parent.id)
    stores.archive(parent.id, child.id)
    assert stores.opened() == [parent]


def test_an_archived_store_and_those_below_it_are_not_opened() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv", "team")
    child = stores.create("kv", "notes", parent=parent.id)
    below = stores.create("kv", "drafts", parent=child.id)
    stores.archive(parent.id, child.id)
    for id in (child.id, below.id):
        with pytest.raises(StoreClosed, match=r"'notes' is archived; .* --restore` brings it back"):
            stores.open(id)
    assert stores.opened() == [parent]
    stores.restore(parent.id, child.id)
    assert {store.id for store in stores.opened()} == {parent.id, child.id, below.id}


def test_watcher_reacts_to_changes() -> None:
    anna = WeaverNode(1)
    parent = anna.stores.create("kv", "team")
    child = anna.stores.create("kv", "notes", parent=parent.id)
    bert = WeaverNode(2)
    theirs = bert.join(parent)
    exchange(parent, theirs)
    assert bert.stores.get(child.id) is not None
    parent.write_system(SystemBatch().set_child_status(child.id, ChildStatus.ARCHIVED))
    assert anna.stores.get(child.id) is None
    exchange(parent, theirs)
    assert bert.stores.get(child.id) is None
    parent.write_system(SystemBatch().set_child_status(child.id, ChildStatus.ACTIVE))
    exchange(parent, theirs)
    assert bert.stores.get(child.id) is not None
    parent.write_system(SystemBatch().remove_child(child.id))
    exchange(parent, theirs)
    assert bert.stores.get(child.id) is None


def test_synced_store_declaration_auto_opened() -> None:
    anna, bert = WeaverNode(1), WeaverNode(2)
    parent = anna.stores.create("kv", "team")
    child = anna.stores.create("kv", "notes", parent=parent.id)
    below = anna.stores.create("log", "diary", parent=child.id)
    theirs = bert.join(parent)
    exchange(parent, theirs)
    found = bert.stores.get(child.id)
    assert found is not None
    assert found.status().intentions == 0  # only the creator writes a genesis
    exchange(child, found)
    # The declaration of the grandchild came with the child's own intentions.
    assert bert.stores.get(below.id) is not None
    assert [info.name for info in bert.stores.list(child.id)] == ["diary"]


def test_stores_opened_on_startup() -> None:
    node = WeaverNode(1)
    parent = node.stores.create("kv", "team")
    child = node.stores.create("kv", "notes", parent=parent.id)
    again = node.restarted()
    assert again.stores.opened() == []
    assert {store.id for store in again.stores.open_all()} == {parent.id, child.id}


def test_sibling_store_isolation() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv")
    one = stores.create("kv", "one", parent=parent.id)
    two = stores.create("kv", "two", parent=parent.id)
    stores.archive(parent.id, one.id)
    put(two, b"k", b"v")
    assert get(two, b"k") == b"v"
    assert stores.get(two.id) is two


def test_cascade_close_grandchildren() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv")
    child = stores.create("kv", parent=parent.id)
    below = stores.create("kv", parent=child.id)
    stores.archive(parent.id, child.id)
    assert stores.opened() == [parent]
    assert below.is_closed
    stores.restore(parent.id, child.id)
    assert {store.id for store in stores.opened()} == {parent.id, child.id, below.id}


def test_cascade_close_deep_hierarchy() -> None:
    stores = WeaverNode(1).stores
    line = [stores.create("kv")]
    while len(line) < 6:
        line.append(stores.create("kv", parent=line[-1].id))
    stores.archive(line[0].id, line[1].id)
    assert stores.opened() == line[:1]


def test_stores_are_nested_32_deep_at_most() -> None:
    stores = WeaverNode(1).stores
    last = stores.create("core:nullstore")
    for _ in range(STORE_TREE_DEPTH_MAX - 1):
        last = stores.create("core:nullstore", parent=last.id)
    with pytest.raises(UsageError, match="32 deep"):
        stores.create("core:nullstore", parent=last.id)
    # A peer may declare what it likes.
    last.write_system(SystemBatch().add_child(bytes(16), "x", "core:nullstore"))
    assert stores.get(bytes(16)) is None


def test_a_store_that_declares_itself_or_one_above_opens_nothing() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv")
    child = stores.create("kv", parent=parent.id)
    child.write_system(SystemBatch().add_child(parent.id, "loop", "core:kvstore"))
    parent.write_system(SystemBatch().add_child(parent.id, "self", "core:kvstore"))
    assert set(stores.opened()) == {parent, child}


@pytest.mark.parametrize("id", [b"", b"place", bytes(15)])
def test_a_declaration_of_what_is_no_store_id_opens_nothing(id: bytes) -> None:
    anna, bert = WeaverNode(1), WeaverNode(2)
    parent = anna.stores.create("kv")
    parent.write_system(SystemBatch().add_child(id, "x", "core:kvstore"))
    theirs = bert.join(parent)
    exchange(parent, theirs)
    bert.stores.arrive("here")
    assert bert.stores.ids() == [parent.id]
    assert bert.stores.list(parent.id) == []
    # Five bytes would be the key under which the fence has the place of the folder.
    assert bert.stores.doubts() == {}


def test_an_unknown_kind_is_a_warning_until_it_is_registered() -> None:
    anna = WeaverNode(1, machines=(NullMachine, Tally))
    parent = anna.stores.create("core:nullstore")
    child = anna.stores.create("test:tally", "tally", parent=parent.id)
    bert = WeaverNode(2)
    theirs = bert.join(parent)
    exchange(parent, theirs)
    assert bert.stores.get(child.id) is None
    assert "'test:tally'" in bert.warnings[-1]
    bert.stores.register(Tally)
    found = bert.stores.get(child.id)
    assert found is not None
    assert found.kind == "test:tally"


def test_a_kind_belongs_to_one_machine() -> None:
    class Other(NullMachine):
        kind = "core:kvstore"

    stores = WeaverNode(1).stores
    with pytest.raises(UsageError, match="core:kvstore"):
        stores.register(Other)
    with pytest.raises(UsageError, match="there are core:kvstore, core:logstore, core:nullstore"):
        stores.create("nothing")
    assert stores.kinds() == ["core:kvstore", "core:logstore", "core:nullstore"]


# --- inventory ------------------------------------------------------------------------------------


def test_child_store_has_correct_parent_in_meta() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv")
    child = stores.create("kv", parent=parent.id)
    (info,) = stores.list(parent.id)
    assert (info.id, info.parent) == (child.id, parent.id)


def test_create_store_populates_stores_table() -> None:
    node = WeaverNode(1)
    made = node.stores.create("kv", "notes")
    (info,) = node.stores.list()
    assert (info.id, info.kind, info.name, info.parent) == (made.id, "core:kvstore", "notes", None)
    assert info.created_at_ms > 1_000_000


def test_joined_store_populates_stores_table() -> None:
    anna, bert = WeaverNode(1), WeaverNode(2)
    theirs = bert.join(anna.stores.create("log"))
    assert [info.id for info in bert.stores.list()] == [theirs.id]


def test_open_resolves_type_from_meta() -> None:
    node = WeaverNode(1)
    made = node.stores.create("log", "diary")
    assert node.restarted().stores.open(made.id).kind == "core:logstore"
    with pytest.raises(NoSuchPath, match=store_id_text(bytes(16))):
        node.stores.open(bytes(16))


def test_a_store_is_found_by_name_by_id_and_by_its_first_digits() -> None:
    stores = WeaverNode(1).stores
    made = stores.create("kv", "notes")
    text = store_id_text(made.id)
    for name in ("notes", text, text[:4], made.id.hex()):
        found = stores.find(name)
        assert found is not None
        assert found.id == made.id
    assert stores.find("nothing") is None
    assert stores.find(text[:3]) is None
    stores.create("kv", "notes")
    with pytest.raises(UsageError, match="2 stores are called 'notes'"):
        stores.find("notes")
    with pytest.raises(AlreadyExists):
        stores.create("log", "notes", exclusive=True)


def test_a_child_is_found_by_the_names_above_it_and_any_store_by_its_id() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv", "team")
    child = stores.create("log", "diary", parent=parent.id)
    for name in ("team/diary", store_id_text(child.id), store_id_text(child.id)[:8]):
        found = stores.find(name)
        assert found is not None
        assert (found.id, found.parent) == (child.id, parent.id)
    assert stores.find("diary") is None
    assert stores.find(store_id_text(child.id)[:8], child.id) is None
    assert stores.find("team/nothing") is None
    assert stores.find("nothing/diary") is None
    for name in ("", "a/b"):
        with pytest.raises(UsageError, match="no '/'"):
            stores.create("kv", name)


def test_a_child_that_another_process_declares_is_opened_and_closed_as_it_says() -> None:
    node = WeaverNode(1)
    parent = node.stores.create("kv", "team")
    parent.on_change(lambda _seq: None)  # as what replicates it waits
    other = Stores(GroupCommit(node.engine), node.key, node.clock, SeededEntropy(2))
    child = other.create("log", "diary", parent=parent.id)
    assert node.stores.get(child.id) is None
    assert node.stores.look()
    assert node.stores.get(child.id) is not None
    other.archive(parent.id, child.id)
    node.stores.look()
    assert node.stores.get(child.id) is None
    other.restore(parent.id, child.id)
    node.stores.look()
    assert node.stores.get(child.id) is not None


def test_the_error_of_a_missing_store_names_the_children_that_are_called_so() -> None:
    stores = WeaverNode(1).stores
    team, club = stores.create("kv", "team"), stores.create("kv", "club")
    year = stores.create("kv", "year", parent=team.id)
    for parent in (year, club):
        stores.create("log", "diary", parent=parent.id)
    assert str(stores.missing("diary", "make it")) == (
        "there is no store 'diary'; a child is named with its parents, or by its id: "
        "club/diary, team/year/diary"
    )
    for name in ("team", "nothing"):
        assert str(stores.missing(name, "make it")) == f"there is no store {name!r}; make it"


def test_state_db_recovery() -> None:
    node = WeaverNode(1)
    made = node.stores.create("kv")
    put(made, b"k", b"v")
    before = made.status()
    node.stores.close_all()
    with node.engine.write() as txn:
        for table in STATE_TABLES:
            txn.delete_range(table)
    again = node.restarted().stores.open(made.id)
    assert get(again, b"k") == b"v"
    assert again.status() == before


def test_rebuild_live_store() -> None:
    store = WeaverNode(1).stores.create("kv")
    put(store, b"k", b"v")
    before = state_of(store)
    store.rebuild()
    assert state_of(store) == before
    put(store, b"k", b"w")
    assert get(store, b"k") == b"w"
    assert store.status().applied == store.status().intentions


def test_a_rebuild_that_is_ended_on_its_way_leaves_the_old_state() -> None:
    store = WeaverNode(1).stores.create("kv")
    for number in range(BATCH_RECORDS):
        put(store, b"k", b"%d" % number)
    before, told = state_of(store), []

    def cancel(count: int, total: int) -> None:
        told.append((count, total))
        raise Conflict("cancelled")

    with pytest.raises(Conflict):
        store.rebuild(cancel)
    count = store.status().applied
    assert told == [(BATCH_RECORDS, count)]
    assert count > BATCH_RECORDS
    assert state_of(store) == before
    put(store, b"k", b"w")
    assert get(store, b"k") == b"w"


def test_existing_store_gets_synthetic_genesis() -> None:
    node = WeaverNode(1)
    made = node.stores.create("core:nullstore")
    envelopes = envelopes_of(made)
    # The same store as an older node would have made it: without a genesis.
    old = WeaverNode(1, MemoryEngine(STORE_TABLES))
    with old.engine.write() as txn, node.engine.read() as snapshot:
        txn.put("stores", made.id, snapshot.get("stores", made.id) or b"")
    plain = old.stores.open(made.id)
    plain.submit(b"data")
    assert len(envelopes) > 1
    again = old.restarted().stores.open(made.id)
    with again.read() as view:
        genesis = view.genesis()
        assert genesis is not None
        assert view.dag.intention(genesis).stamp == (0, 0)
    assert again.status().intentions == 2


def test_a_node_that_joined_makes_no_genesis() -> None:
    anna, bert = WeaverNode(1), WeaverNode(2)
    theirs = bert.join(anna.stores.create("core:nullstore"))
    theirs.submit(b"data")
    again = bert.restarted().stores.open(theirs.id)
    assert again.status().intentions == 1


# --- peers ----------------------------------------------------------------------------------------


def test_set_name_does_not_duplicate_across_child_stores() -> None:
    node = WeaverNode(1)
    parent = node.stores.create("kv")
    child = node.stores.create("kv", parent=parent.id)
    before = [store.status().intentions for store in (parent, child)]
    node.stores.peers.set_name("anna")
    after = [store.status().intentions for store in (parent, child)]
    assert after == [before[0] + 1, before[1]]
    with parent.read() as view:
        assert view.system.peers()[node.key.public_key].name == "anna"


def test_the_creator_is_the_first_peer() -> None:
    node = WeaverNode(1)
    store = node.stores.create("kv", peer_name="anna")
    own = node.key.public_key
    with store.read() as view:
        (peer,) = view.system.peers().values()
        assert view.system.strategy() == PeerStrategy(independent=True)
    assert (peer.public_key, peer.status, peer.name) == (own, PeerStatus.ACTIVE, "anna")
    assert peer.added_by == own
    assert peer.added_at_ms is not None


def test_policy_of_an_independent_store() -> None:
    node = WeaverNode(1)
    store = node.stores.create("kv")
    policy = node.stores.peers.policy(store.id)
    own = node.key.public_key
    assert policy.can_connect(own)
    assert policy.can_accept_gossip(own)
    assert policy.can_join(own)
    assert not policy.can_connect(STRANGER)
    assert policy.authors() == [own]
    store.write_system(SystemBatch().set_peer_status(STRANGER, PeerStatus.DORMANT))
    assert policy.can_connect(STRANGER)
    assert not policy.can_join(STRANGER)
    store.write_system(SystemBatch().set_peer_status(STRANGER, PeerStatus.INVITED))
    assert not policy.can_connect(STRANGER)
    policy.bootstrap.add(STRANGER)
    assert policy.can_connect(STRANGER)
    assert policy.authors() == sorted([own, STRANGER])


def test_a_child_shares_the_policy_of_its_parent() -> None:
    stores = WeaverNode(1).stores
    parent = stores.create("kv")
    child = stores.create("kv", parent=parent.id)
    below = stores.create("kv", parent=child.id)
    assert stores.peers.policy(below.id) is stores.peers.policy(parent.id)
    for call in (
        lambda: stores.peers.create_invite(child.id),
        lambda: stores.peers.revoke(child.id, STRANGER),
    ):
        with pytest.raises(UsageError, match=f"its parent {store_id_text(parent.id)}"):
            call()


def test_the_name_of_a_store_is_bounded() -> None:
    stores = WeaverNode(1).stores
    assert stores.find("n" * STORE_NAME_BYTES_MAX) is None
    for length in (STORE_NAME_BYTES_MAX - 1, STORE_NAME_BYTES_MAX):
        stores.create("kv", "n" * length)
        assert stores.find("n" * length) is not None
    with pytest.raises(UsageError, match="at most 255 bytes, got 256"):
        stores.create("kv", "n" * (STORE_NAME_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="text that UTF-8 can encode"):
        stores.create("kv", "half a character \ud800")


def test_a_child_that_is_written_to_before_it_is_fetched_has_the_peers_of_its_parent() -> None:
    anna, bert = WeaverNode(1), WeaverNode(2)
    parent = anna.stores.create("kv", "team")
    child = anna.stores.create("kv", "notes", parent=parent.id)
    theirs = bert.join(parent)
    exchange(parent, theirs)
    copy = bert.stores.open(child.id)
    copy.execute("Put", PutRequest(key=b"k", value=b"v"))
    assert bert.stores.peers.policy(child.id) is bert.stores.peers.policy(parent.id)
    # Without a parent, a store that states nothing has peers of its own: none.
    alone = bert.stores.adopt(b"\x07" * 16, "kv")
    alone.execute("Put", PutRequest(key=b"k", value=b"v"))
    assert bert.stores.peers.policy(alone.id).authors() == []


def test_peers_are_copied_once_for_a_snapshot() -> None:
    stores = WeaverNode(1).stores
    source = stores.create("kv")
    source.write_system(SystemBatch().set_peer_status(STRANGER, PeerStatus.ACTIVE))
    copy = stores.create("kv", peers_of=source.id)
    source.write_system(SystemBatch().set_peer_status(STRANGER, PeerStatus.REVOKED))
    assert not stores.peers.policy(source.id).can_connect(STRANGER)
    assert stores.peers.policy(copy.id).can_connect(STRANGER)
    with pytest.raises(UsageError, match="copied"):
        stores.peers.create_invite(copy.id)


def test_invite_create_and_consume() -> None:
    stores = WeaverNode(1).stores
    store = stores.create("kv")
    token = stores.peers.create_invite(store.id, ["tls://localhost:9"])
    read = InviteToken.from_text(token.to_text())
    assert read == token
    assert stores.peers.consume_invite(store.id, read.secret, STRANGER)
    assert not stores.peers.consume_invite(store.id, read.secret, STRANGER)
    with store.read() as view:
        (invite,) = view.system.invites().values()
    assert invite.claimed_by == STRANGER
    assert invite.invited_by == store.author
    assert token.secret not in b"".join(envelopes_of(store))


def test_consume_unknown_invite() -> None:
    stores = WeaverNode(1).stores
    store = stores.create("kv")
    assert not stores.peers.consume_invite(store.id, b"guess", STRANGER)


@pytest.mark.parametrize("text", ["", "0OIl", "not a token", "11111"])
def test_invite_parse_invalid_format(text: str) -> None:
    with pytest.raises(BadFormat):
        InviteToken.from_text(text)


def test_revoke_peer() -> None:
    stores = WeaverNode(1).stores
    store = stores.create("kv")
    token = stores.peers.create_invite(store.id)
    stores.peers.accept_join(store.id, STRANGER, token.secret)
    assert stores.peers.policy(store.id).can_connect(STRANGER)
    stores.peers.revoke(store.id, STRANGER)
    with store.read() as view:
        assert view.system.peer_status(STRANGER) is PeerStatus.REVOKED
    assert not stores.peers.policy(store.id).can_connect(STRANGER)
    assert not stores.peers.policy(store.id).can_accept_gossip(STRANGER)


@pytest.mark.parametrize("key", [b"", STRANGER[:31], STRANGER + b"x", STRANGER.hex()])
def test_what_is_not_a_public_key_is_not_written_as_a_peer(key: Any) -> None:
    stores = WeaverNode(1).stores
    store = stores.create("kv")
    before = store.status().intentions
    with pytest.raises(UsageError, match="the key of a peer is 32 bytes, got"):
        stores.peers.revoke(store.id, key)
    assert store.status().intentions == before


def test_rejoin_after_revoke() -> None:
    stores = WeaverNode(1).stores
    store = stores.create("kv")
    stores.peers.accept_join(store.id, STRANGER, stores.peers.create_invite(store.id).secret)
    stores.peers.accept_join(
        store.id, STRANGER, b""
    )  # an active peer joins again without an invite
    stores.peers.revoke(store.id, STRANGER)
    with pytest.raises(Unauthorized):
        stores.peers.accept_join(store.id, STRANGER, b"")
    stores.peers.accept_join(store.id, STRANGER, stores.peers.create_invite(store.id).secret)
    assert stores.peers.policy(store.id).can_connect(STRANGER)


def test_handle_peer_join_rejects_unauthorized() -> None:
    stores = WeaverNode(1).stores
    store = stores.create("kv")
    before = store.status().intentions
    with pytest.raises(Unauthorized):
        stores.peers.accept_join(store.id, STRANGER, b"guess")
    assert store.status().intentions == before


def test_the_claim_and_the_activation_of_a_join_are_one_intention() -> None:
    stores = WeaverNode(1).stores
    store = stores.create("kv")
    token = stores.peers.create_invite(store.id)
    before = store.status().intentions
    stores.peers.accept_join(store.id, STRANGER, token.secret)
    assert store.status().intentions == before + 1


# --- several authors ------------------------------------------------------------------------------


def test_multi_author_convergence() -> None:
    nodes = [WeaverNode(number) for number in (1, 2, 3)]
    replicas = [nodes[0].stores.create("kv")]
    replicas += [node.join(replicas[0]) for node in nodes[1:]]
    exchange(*replicas)
    for at, replica in enumerate(replicas):
        put(replica, b"shared", b"by %d" % at)
        put(replica, b"own %d" % at, b"x")
    exchange(*replicas)
    assert state_of(replicas[0]) == state_of(replicas[1]) == state_of(replicas[2])
    assert len({get(replica, b"shared") for replica in replicas}) == 1


def test_500_stores_open_at_once_in_one_engine() -> None:
    node = WeaverNode(1)
    made = [node.stores.create("core:nullstore") for _ in range(500)]
    for store in made[::50]:
        store.submit(b"data")
    assert len(node.stores.list()) == 500
    again = node.restarted()
    assert len(again.stores.open_all()) == 500
    counts = [again.stores.open(store.id).status().intentions for store in made]
    assert counts == [3 if at % 50 == 0 else 2 for at in range(500)]


def test_one_transaction_makes_a_store_or_nothing() -> None:
    class Broken(NullMachine):
        kind = "test:broken"

        def __init__(self) -> None:
            raise RuntimeError("cannot be made")

    node = WeaverNode(1)
    parent = node.stores.create("kv")
    before = parent.status()
    node.stores.register(Broken)
    with pytest.raises(RuntimeError):
        node.stores.create("test:broken", "x", parent=parent.id)
    assert parent.status() == before
    assert node.stores.list(parent.id) == []
