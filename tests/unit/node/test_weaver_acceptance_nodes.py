"""Acceptance of Weaver's network through whole nodes: over memory links, and over TLS."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.node.test_weaverhosts import Site, has, opened, put, run, until, value

from datalattice.errors import Unauthorized
from datalattice.node import MemoryTransport
from datalattice.weaver import InviteToken, PeerStatus, WeaverStore

MakeSite = Callable[[int], Site]


@pytest.fixture(params=["memory", "tls"])
def site(request: pytest.FixtureRequest) -> MakeSite:
    """Return what makes a node by number; all of them reach each other."""
    network = MemoryTransport(mux=True) if request.param == "memory" else None
    return lambda number: Site(number, network=network)


def log_of(store: WeaverStore) -> list[bytes]:
    with store.read() as view:
        return [entry.signed.hash for entry in view.entries()]


def equal(one: WeaverStore, other: WeaverStore) -> bool:
    return set(log_of(one)) == set(log_of(other))


async def are_equal(one: WeaverStore, other: WeaverStore) -> None:
    def listen(changed: Callable[[object], object]) -> Callable[[], object]:
        ends = [store.on_change(changed) for store in (one, other)]
        return lambda: [end() for end in ends]

    await until(lambda: equal(one, other), listen)


def test_two_nodes_store_sync(site: MakeSite) -> None:
    async def work() -> None:
        async with site(1) as home, site(2) as guest:
            notes = home.stores.create("kv", "notes")
            put(notes, b"k", b"v")
            copy = await guest.hosts.join(home.invite(notes))
            await has(copy, b"k", b"v")

    run(work)


@pytest.mark.parametrize(
    "counts", [(3, 0), (3, 4), (300, 0)], ids=["one_way", "bidirectional", "large"]
)
def test_sync_repro(site: MakeSite, counts: tuple[int, int]) -> None:
    async def work() -> None:
        async with site(1) as home, site(2) as guest:
            notes = home.stores.create("kv", "notes")
            copy = await guest.hosts.join(home.invite(notes))
            for store, count in zip((notes, copy), counts, strict=True):
                for number in range(count):
                    put(store, b"%d" % number, store.author)
            await are_equal(notes, copy)

    run(work)


def test_sync_repro_partition(site: MakeSite) -> None:
    async def work() -> None:
        first, home = site(2), site(1)
        async with home:
            notes = home.stores.create("kv", "notes")
            async with first as guest:
                copy = await guest.hosts.join(home.invite(notes))
                await are_equal(notes, copy)
            put(notes, b"at home", b"1")
            put(copy, b"away", b"1")
            again = site(2)
            again.folder, again.stores = first.folder, first.stores
            async with again:
                await has(copy, b"at home", b"1")
                await has(notes, b"away", b"1")

    run(work)


def test_recursive_discovery_and_sync(site: MakeSite) -> None:
    async def work() -> None:
        async with site(1) as home, site(2) as guest:
            team = home.stores.create("kv", "team")
            below = home.stores.create("kv", "below", parent=team.id)
            deeper = home.stores.create("kv", "deeper", parent=below.id)
            put(deeper, b"k", b"deep")
            await guest.hosts.join(home.invite(team))
            await has(await opened(guest.stores, deeper.id), b"k", b"deep")

    run(work)


def test_peer_persistence_after_bootstrap(site: MakeSite) -> None:
    async def work() -> None:
        async with site(1) as home, site(2) as guest:
            notes = home.stores.create("kv", "notes")
            copy = await guest.hosts.join(home.invite(notes))
            await are_equal(notes, copy)
            policy = guest.stores.peers.policy(notes.id)
            # The end of the copy is no change of the store.
            await guest.node.wait_until(lambda _: not policy.bootstrap)
            known = {peer.public_key: peer.status for peer in guest.stores.peers.peers(copy.id)}
            assert known[home.key.public_key] is PeerStatus.ACTIVE
            assert known[guest.key.public_key] is PeerStatus.ACTIVE

    run(work)


def test_an_unknown_store_and_a_forbidden_one_answer_alike(site: MakeSite) -> None:
    async def work() -> None:
        async with site(1) as home, site(2) as guest:
            notes = home.stores.create("kv", "notes")
            token = home.invite(notes)
            forged = InviteToken(token.store_id, b"?" * 32, token.inviter, token.addresses)
            unknown = InviteToken(b"?" * 16, token.secret, token.inviter, token.addresses)
            answers = []
            for asked in (forged, unknown):
                with pytest.raises(Unauthorized) as caught:
                    await guest.hosts.join(asked)
                answers.append(str(caught.value))
            assert answers[0] == answers[1]

    run(work)


def test_a_comparison_on_request_ends_for_every_connected_peer(site: MakeSite) -> None:
    async def work() -> None:
        async with site(1) as home, site(2) as guest, site(3) as other:
            notes = home.stores.create("kv", "notes")
            assert await home.hosts.sync(notes.id, 5.0) == []
            copies = [await one.hosts.join(home.invite(notes)) for one in (guest, other)]
            for copy in copies:
                await are_equal(notes, copy)
            found = await home.hosts.sync(notes.id, 20.0)
            assert {one.public_key for one in found} == {
                guest.key.public_key,
                other.key.public_key,
            }
            assert all(one.error is None for one in found)
            known = await home.hosts.presence(notes.id)
            assert all(not one.is_dirty for one in known)

    run(work)


def test_a_revoked_peer_hears_nothing_new_and_its_history_spreads(site: MakeSite) -> None:
    async def work() -> None:
        async with site(1) as home, site(2) as guest, site(3) as late:
            notes = home.stores.create("kv", "notes")
            copy = await guest.hosts.join(home.invite(notes))
            await are_equal(notes, copy)
            put(copy, b"before", b"1")
            await has(notes, b"before", b"1")
            home.stores.peers.revoke(notes.id, guest.key.public_key)
            put(notes, b"after", b"1")
            third = await late.hosts.join(home.invite(notes))
            await has(third, b"before", b"1")
            await has(third, b"after", b"1")
            assert value(copy, b"after") is None

    run(work)
