"""Weaver stores of nodes: invited nodes fetch them, replicate them, and are shut out again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

import pytest

from datalattice.actions import NodeEvent
from datalattice.apps.kv import Database
from datalattice.cells import decode, encode, make_blob, references, same
from datalattice.client import parse_address
from datalattice.client.settings import NodeConfig
from datalattice.client.weaverfolder import WeaverFolder
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, SystemEntropy
from datalattice.cursors import EventRing
from datalattice.engine import GroupCommit
from datalattice.errors import IdentityCloned, StoreFull, Timeout, Unauthorized, UsageError
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.node import MemoryTransport, NodeServer, open_node, weaverhosts
from datalattice.node.fencing import CLONED
from datalattice.node.weaverhosts import WeaverHosts
from datalattice.store import MemoryStore
from datalattice.sync.weaver import WeaverReplica
from datalattice.testing.gallery import Gallery, Photos
from datalattice.weaver import Doubt, HeadReader, InviteToken, Stores, WeaverStore
from datalattice.weaver.kv import PutRequest

TIMEOUT_S = 50
STORES = 30


class Site:
    """A node with stores in memory. network: in place of the sockets of this machine."""

    def __init__(
        self, seed: int, scheme: str = "tls", network: MemoryTransport | None = None
    ) -> None:
        self.scheme = scheme
        iroh = "direct" if scheme == "iroh" else "off"
        self.key = KeyPair(bytes([seed]) * 32)
        self.folder = WeaverFolder.in_memory(self.key)
        self.stores = self.folder.stores()
        self.node: NodeServer = open_node(
            MemoryStore(),
            key_pair=self.key,
            config=NodeConfig(port=0, iroh=iroh),
            transport=None if network is None else network.keyed(self.key.public_key),
        )

    async def __aenter__(self) -> Self:
        await self.node.start()
        self.events: EventRing[NodeEvent] = EventRing()
        self.hosts = WeaverHosts(self.node, self.folder, SystemEntropy(), self.events)
        await self.hosts.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.hosts.stop()
        await self.node.close()
        self.hosts.close()

    def invite(self, store: WeaverStore) -> InviteToken:
        addresses = [a for a in str(self.node.ticket).split(",") if a.startswith("iroh:")]
        if self.scheme != "iroh":
            addresses = [f"tls://{self.node.address}"]
        return self.stores.peers.create_invite(store.id, addresses)


def put(store: WeaverStore, key: bytes, value: bytes) -> None:
    store.execute("Put", PutRequest(key=key, value=value))


def value(store: WeaverStore, key: bytes) -> bytes | None:
    with store.read() as view:
        return HeadReader(view.data).get(key)


async def until(
    condition: Callable[[], bool],
    listen: Callable[[Callable[[object], object]], Callable[[], object]],
) -> None:
    """Wait for a condition, which is looked at after each change."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    end = listen(lambda _what: loop.call_soon_threadsafe(changed.set))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                await changed.wait()
                changed.clear()
    finally:
        end()


async def has(store: WeaverStore, key: bytes, wanted: bytes) -> None:
    await until(lambda: value(store, key) == wanted, store.on_change)


async def copied(site: Site, store: WeaverStore) -> None:
    """Wait until a joined store names its node as a peer: until then it may be joined again."""
    policy = site.stores.peers.policy(store.id)
    await until(lambda: site.key.public_key in policy.authors(), store.on_change)


async def opened(stores: Stores, id: bytes) -> WeaverStore:
    await until(lambda: stores.get(id) is not None, stores.on_ready.add)
    return stores.open(id)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await work()

    asyncio.run(bounded())


@pytest.fixture(params=["tls", "iroh"])
def scheme(request: pytest.FixtureRequest) -> str:
    if request.param == "iroh":
        pytest.importorskip("iroh")
    return str(request.param)


def test_an_invited_node_fetches_the_store_and_both_go_on_writing(scheme: str) -> None:
    async def work() -> None:
        async with Site(1, scheme) as home, Site(2) as guest:
            notes = home.stores.create("kv", "notes")
            for number in range(120):
                put(notes, b"%d" % number, b"first")
            copy = await guest.hosts.join(home.invite(notes))
            await has(copy, b"119", b"first")
            put(copy, b"from guest", b"hello")
            put(notes, b"from home", b"hello")
            await has(notes, b"from guest", b"hello")
            await has(copy, b"from home", b"hello")
            assert copy.kind == "core:kvstore"
            assert copy.status().name == "notes"
            (peer,) = guest.node.peers
            assert parse_address(str(peer.address)).scheme == scheme

    run(work)


def test_events_tell_of_stores_comparisons_and_joins_that_fail() -> None:
    async def work() -> None:
        async with Site(1) as home, Site(2) as guest:
            notes = home.stores.create("kv", "notes")
            for number in range(120):
                put(notes, b"%d" % number, b"first")
            invite = home.invite(notes)
            copy = await guest.hosts.join(invite)
            await has(copy, b"119", b"first")
            await copied(guest, copy)
            below = guest.stores.create("log", "below", copy.id)
            given, taken = home.hosts._hosts[notes.id], guest.hosts._hosts[copy.id]
            assert given.replica.sent >= 120
            assert taken.replica.received >= 120
            (peer,) = await guest.hosts.sync(copy.id, TIMEOUT_S)
            assert peer.error is None
            with pytest.raises(UsageError):
                await guest.hosts.join(invite)
            ready, child, synced, failed = guest.events.after(0)[1]
            assert ready.store_ready is not None
            assert child.store_ready is not None
            assert (ready.store_ready.root_id, ready.store_ready.store_id) == (copy.id, copy.id)
            assert (child.store_ready.root_id, child.store_ready.store_id) == (copy.id, below.id)
            result = synced.sync_result
            assert result is not None
            assert (result.store_id, result.peers_synced) == (copy.id, 1)
            assert result.entries_received < 120  # of this comparison alone
            assert failed.join_failed is not None
            assert failed.join_failed.root_id == copy.id
            assert "already" in failed.join_failed.reason

    run(work)


def test_what_another_process_writes_is_noticed_by_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with Site(1) as home, Site(2) as guest:
            notes = home.stores.create("kv", "notes")
            copy = await guest.hosts.join(home.invite(notes))
            put(notes, b"k", b"here")
            await has(copy, b"k", b"here")
            monkeypatch.setattr(weaverhosts, "_LOOK_S", 10 * TIMEOUT_S)
            # As in another process: its commits are told to nobody here.
            commits = GroupCommit(home.stores._commits.engine)
            other = Stores(commits, home.key, SystemClock(), SystemEntropy()).open(notes.id)
            for number in range(3):
                put(other, b"k", b"%d" % number)
                await has(copy, b"k", b"%d" % number)

    run(work)


def test_children_of_a_joined_store_follow_by_themselves() -> None:
    async def work() -> None:
        async with Site(1) as home, Site(2) as guest:
            team = home.stores.create("kv", "team")
            notes = home.stores.create("kv", "notes", parent=team.id)
            put(notes, b"k", b"below")
            await guest.hosts.join(home.invite(team))
            await has(await opened(guest.stores, notes.id), b"k", b"below")
            later = home.stores.create("log", "later", parent=team.id)
            await opened(guest.stores, later.id)

    run(work)


def test_many_stores_share_one_connection(scheme: str) -> None:
    async def work() -> None:
        async with Site(1, scheme) as home, Site(2) as guest:
            stores = [home.stores.create("kv", f"store {number}") for number in range(STORES)]
            for store in stores:
                put(store, b"k", b"x" * 20_000)
            copies = [await guest.hosts.join(home.invite(store)) for store in stores]
            for copy in copies:
                await has(copy, b"k", b"x" * 20_000)
            assert home.node.connection_count == guest.node.connection_count == 1

    run(work)


def test_an_invite_is_used_by_the_addresses_that_can_be_dialled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with Site(1) as home, Site(2) as guest:
            monkeypatch.setitem(sys.modules, "iroh", None)
            monkeypatch.delitem(sys.modules, "datalattice.node.transport.iroh", raising=False)
            one, two = home.stores.create("kv", "one"), home.stores.create("kv", "two")
            iroh = f"iroh://{home.key.public_key.hex()}@127.0.0.1:1"
            alone = home.stores.peers.create_invite(one.id, (iroh,))
            with pytest.raises(UsageError, match=r"datalattice\[iroh\]"):
                await guest.hosts.join(alone)
            both = (iroh, f"tls://{home.node.address}")
            await guest.hosts.join(home.stores.peers.create_invite(two.id, both))

    run(work)


def test_a_revoked_peer_gets_nothing_new(scheme: str) -> None:
    async def work() -> None:
        async with Site(1, scheme) as home, Site(2) as guest, Site(3) as other:
            notes = home.stores.create("kv", "notes")
            put(notes, b"k", b"1")
            copies = [await site.hosts.join(home.invite(notes)) for site in (guest, other)]
            for copy in copies:
                await has(copy, b"k", b"1")
            home.stores.peers.revoke(notes.id, guest.key.public_key)
            put(notes, b"k", b"2")
            await has(copies[1], b"k", b"2")
            assert value(copies[0], b"k") == b"1"

    run(work)


def test_an_invite_lets_one_node_in_and_the_reason_of_a_refusal_stays_at_home() -> None:
    async def work() -> None:
        async with Site(1) as home, Site(2) as guest, Site(3) as late:
            notes = home.stores.create("kv", "notes")
            token = home.invite(notes)
            await copied(guest, await guest.hosts.join(token))
            unknown = InviteToken(b"?" * 16, token.secret, token.inviter, token.addresses)
            refusals = []
            for asked in (token, unknown):
                with pytest.raises(Unauthorized) as caught:
                    await late.hosts.join(asked)
                refusals.append(str(caught.value))
            assert refusals[0] == refusals[1]
            with pytest.raises(UsageError, match="is on this node already"):
                await guest.hosts.join(home.invite(notes))

    run(work)


def test_an_inviter_that_does_not_run_is_a_timeout() -> None:
    async def work() -> None:
        async with Site(2) as guest:
            token = InviteToken(b"s" * 16, b"x" * 32, KeyPair(b"i" * 32).public_key)
            with pytest.raises(Timeout, match="did not answer within"):
                await guest.hosts.join(token, timeout_s=0.2)

    run(work)


def test_a_node_says_why_own_writes_are_refused_and_a_peer_ends_that() -> None:
    async def work() -> None:
        async with Site(1) as home, Site(2) as guest:
            notes = home.stores.create("kv", "notes")
            invite = home.invite(notes)
            notes.suspect(Doubt.MOVED)
            assert "copied, restored or moved" in home.node.observer.health
            with pytest.raises(Unauthorized):  # to admit a node is a write, too
                await guest.hosts.join(invite)
            notes.settle(asked=False)
            assert "without having asked" in home.node.observer.health
            await guest.hosts.join(invite)
            await until(lambda: notes.doubt() is None, notes.on_change)
            assert home.node.observer.health == "ok"

    run(work)


def test_while_another_node_runs_with_its_key_a_node_writes_to_no_shared_store() -> None:
    async def work() -> None:
        async with Site(1) as home, Site(2) as guest:
            notes = home.stores.create("kv", "notes")
            copy = await guest.hosts.join(home.invite(notes))
            home.node._fence.refuse(CLONED, IdentityCloned("a peer has said so"))
            await until(lambda: notes.doubt() is Doubt.CLONED, notes.on_change)
            with pytest.raises(IdentityCloned):
                put(notes, b"k", b"v")
            put(copy, b"k", b"v")
            await has(notes, b"k", b"v")  # what others write is taken

    run(work)


def test_a_copy_with_a_key_of_its_own_joins_the_stores_that_it_has() -> None:
    async def work() -> None:
        async with Site(1) as home, Site(3) as clone:
            notes = home.stores.create("kv", "notes")
            put(notes, b"k", b"v")
            copy = clone.stores.adopt(notes.id, notes.kind)
            with notes.read() as view:
                copy.ingest([entry.signed.encode() for entry in view.entries()])
            put(copy, b"mine", b"v")
            assert await clone.hosts.join(home.invite(notes)) is copy
            await has(notes, b"mine", b"v")
            # The copy has to know that it is a peer, too.
            policy = clone.stores.peers.policy(notes.id)
            await until(lambda: clone.key.public_key in policy.authors(), copy.on_change)
            with pytest.raises(UsageError, match="is on this node already"):
                await clone.hosts.join(home.invite(notes))

    run(work)


def test_a_look_at_the_stores_that_fails_is_reported_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> None:
        raise StoreFull("no room")

    async def work() -> None:
        async with Site(1) as home:
            notes = home.stores.create("kv", "notes")
            monkeypatch.setattr(home.stores, "tick", full)
            await home.node.wait_until(lambda node: node.observer.counters.get("faults", 0) > 0)
            monkeypatch.undo()
            home.stores.close(notes.id)  # it is noticed by a look
            await home.node.wait_until(lambda _: notes.id not in home.hosts._hosts)

    run(work)


def test_a_peer_that_is_admitted_while_its_store_is_taken_up_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guest = KeyPair(b"g" * 32).public_key
    known: list[WeaverReplica] = []

    async def work() -> None:
        async with Site(1) as home:
            host = home.node.host

            def meanwhile(protocol: str, store_id: bytes, replica: Any, *more: Any, **options: Any):  # type: ignore[no-untyped-def]  # noqa: ANN202
                made = host(protocol, store_id, replica, *more, **options)
                assert guest not in replica.allowed  # as its lane looks at once
                secret = home.invite(home.stores.open(store_id)).secret
                home.stores.peers.accept_join(store_id, guest, secret)
                known.append(replica)
                return made

            monkeypatch.setattr(home.node, "host", meanwhile)
            home.stores.create("kv", "notes")
            await home.node.wait_until(lambda _: bool(known) and guest in known[0].allowed)

    run(work)


# --- values of the lattice --------------------------------------------------------------------


def test_a_value_that_an_intention_names_is_fetched_and_kept_by_every_peer() -> None:
    photo = make_blob(bytes(range(256)) * 400)
    # Its own encoding is short, so its parent would hold it: the payload names what is below.
    top = encode(photo)
    assert len(top) <= EMBEDDED_BYTES_MAX
    cells = references(top)

    async def work() -> None:
        async with Site(1) as home, Site(2) as guest, Site(3) as late:
            for site in (home, guest, late):
                site.folder.register(Gallery)
            # It was published and is no longer, so no merge brings it.
            shop = Database.at(home.node.cursor, home.key.public_key, "shop")
            shop.set("photo", photo)
            await home.node.sync()
            gallery = home.stores.create("test:gallery", "photos")
            gallery.execute("Add", Photos(tuple(cells)))
            await pinned(home, cells)
            shop.delete("photo")
            await home.node.sync()
            await guest.hosts.join(home.invite(gallery))
            await pinned(guest, cells)
            assert same(decode(top, guest.node.store), photo)
            assert guest.node.observer.health == "ok"
            # Who has fetched it gives it to others.
            await late.hosts.join(guest.invite(guest.stores.open(gallery.id)))
            await pinned(late, cells)

    run(work)


async def pinned(site: Site, cells: Iterable[bytes]) -> None:
    """Wait until a site keeps all of these."""
    observer = site.node.observer

    def listen(tell: Callable[[object], object]) -> Callable[[], object]:
        def count(name: str, amount: int = 1) -> None:
            type(observer).count(observer, name, amount)
            tell(name)

        observer.count = count  # type: ignore[method-assign]
        return lambda: delattr(observer, "count")

    await until(lambda: set(cells) <= set(site.node.store.pins.roots()), listen)


def test_a_fork_of_this_node_degrades_it_until_it_was_joined() -> None:
    async def work() -> None:
        async with Site(1) as home:
            notes = home.stores.create("kv", "notes")
            other = WeaverFolder.in_memory(home.key).stores().adopt(notes.id, notes.kind)
            with notes.read() as view:
                other.ingest([entry.signed.encode() for entry in view.entries()])
            put(notes, b"k", b"here")
            put(other, b"k", b"there")
            with other.read() as view:
                notes.ingest([entry.signed.encode() for entry in view.entries()])
            assert "store forks" in home.node.observer.health
            assert value(notes, b"k") == b"here"
            notes.rejoin()
            assert home.node.observer.health == "ok"
            assert notes.status().forks == 1  # the evidence stays
            with notes.read() as view:  # both wrote the key without knowing of each other
                assert HeadReader(view.data).get_with_conflict(b"k") == (b"here", True)

    run(work)
