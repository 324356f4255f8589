"""Venues on nodes: apart, then together; and what a hostile one sends is refused and counted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.grid import (
    GRID_SECTION,
    FixedResolver,
    KnownKeys,
    Venue,
    check_foreign,
    venue_document,
)
from datalattice.apps.grid.states import part_of
from datalattice.cells import Index, Keyword, value_hash
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, did_of, root_lattice
from datalattice.node import NodeServer, open_node
from datalattice.node.grids import AuthorityWatch
from datalattice.node.metrics import exposition
from datalattice.store import MemoryStore
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.venue_kit import spoil_venue

KEYS = [KeyPair.generate(SeededEntropy(number)) for number in range(5)]
VENUES, META = Keyword("venues"), Keyword("meta")


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


def node_of(number: int, store: Path | MemoryStore, **options: Any) -> NodeServer:
    return open_node(store, key_pair=KEYS[number], config=NodeConfig(port=0), **options)


async def all_equal(*nodes: NodeServer) -> None:
    """Return when all nodes announce one root."""
    while True:
        changes = [asyncio.ensure_future(node.changed()) for node in nodes]
        await asyncio.sleep(0)  # each now waits for its node's next change
        if len({node.root_hash for node in nodes}) > 1:
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        for change in changes:
            change.cancel()
        if len({node.root_hash for node in nodes}) == 1:
            return


def artifact(name: str, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    return json.dumps({"name": name, "content": {"sha256": digest}})


def grid_of(node: NodeServer) -> Index:
    root = node.root
    assert isinstance(root, Index)
    grid = root.get(GRID_SECTION)
    assert isinstance(grid, Index)
    return grid


def test_three_venues_apart_then_joined_hold_one_grid(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = [node_of(number, tmp_path / str(number)) for number in range(3)]
        for number in range(3):
            (tmp_path / str(number)).mkdir()
        async with nodes[0], nodes[1], nodes[2]:
            venues = [Venue.at(n.cursor, KEYS[i]) for i, n in enumerate(nodes)]
            shared = artifact("shared", b"shared")
            for number, venue in enumerate(venues):
                for count in range(20):
                    asset = venue.register(artifact(f"{number}-{count}", b"x" * (100 * count)))
                    venue.put_content(asset, b"x" * (100 * count))
                    job = venue.create_job({"op": asset.hex(), "input": {"n": count}})
                    venue.update_job(job, {"status": "COMPLETE", "output": count})
                venue.put_content(venue.register(shared), b"shared")
                await nodes[number].sync()
            assert len({value_hash(grid_of(node)) for node in nodes}) == len(nodes)
            nodes[1].add_peer(nodes[0].address)
            nodes[2].add_peer(nodes[1].address)
            whole = {did_of(key.public_key): 21 for key in KEYS[:3]}
            await all_equal(*nodes)
            assert all({d: len(v.assets(d)) for d in whole} == whole for v in venues)
            assert len({value_hash(grid_of(node)) for node in nodes}) == 1
            for venue in venues:
                assert venue.verify() == ([], [])
                assert all(len(venue.jobs(did, status="COMPLETE")) == 20 for did in whole)
                assert len(part_of(venue.grid, META)) == 61
            first = venues[0].assets()[0]
            assert venues[2].content(first) == venues[0].content(first) is not None
            refused = {"bad-content", "bad-metadata", "bad-asset", "not-owner", "owner-forked"}
            assert all(refused.isdisjoint(node.observer.counters) for node in nodes)

    run(work)


def test_what_is_tampered_or_forged_is_refused_and_counted() -> None:
    async def work() -> None:
        store = MemoryStore()
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS[3]), strict=False)
        hostile = Venue.at(root, KEYS[3])
        honest = hostile.register('{"name":"honest"}')
        # The good node may push its own venue before it is asked to take the forged one: hence two.
        forged = [KEYS[0].public_key, KEYS[2].public_key]
        spoil_venue(hostile, KEYS[3], forged, KEYS[1].public_key)
        store.commit(root.get())
        good, bad = node_of(0, MemoryStore()), node_of(3, store)
        async with good, bad:
            venue = Venue.at(good.cursor, KEYS[0])
            asset = venue.register(artifact("mine", b"mine"))
            venue.put_content(asset, b"mine")
            await good.sync()
            before = venue.grid[VENUES]

            bad.add_peer(good.address)
            await good.wait_until(lambda _: honest in part_of(venue.grid, META))

            # The metadata came one by one; what was forged, or signed and not true, did not come.
            assert venue.grid[VENUES] == before
            assert venue.asset(asset) == artifact("mine", b"mine")
            assert check_foreign(venue.grid)
            kinds = {"bad-metadata", "bad-asset", "bad-content", "not-owner", "bad-signature"}
            # The counters move a moment after the value is there.
            await good.wait_until(lambda node: kinds <= set(node.observer.counters))
            page = exposition(await good.monitor.status())
            assert "datalattice_bad_content_total" in page

    run(work)


def test_with_a_peer_of_that_key_one_venue_alone_is_shared() -> None:
    async def work() -> None:
        key = KEYS[0].public_key.hex()
        own, other = (did_of(KEYS[number].public_key) for number in (1, 2))
        first = open_node(MemoryStore(), key_pair=KEYS[0], config=NodeConfig(port=0))
        async with first:
            paths = (f"{key}/grid/venues/{own}", f"{key}/grid/meta")
            config = NodeConfig(port=0, peers=(f"tls://{key}@{first.address}",), partial=paths)
            second = open_node(MemoryStore(), key_pair=KEYS[1], config=config)
            elsewhere = Venue.create(KEYS[2])
            elsewhere.register('{"name":"elsewhere"}')
            async with second:
                mine = Venue.at(second.cursor, KEYS[1])
                mine.merge(elsewhere.grid)
                asset = mine.register('{"name":"shared"}')
                await second.sync()
                there = Venue.at(first.cursor, KEYS[0])
                await first.wait_until(lambda _: there.assets(own) == [asset])
                await first.wait_until(lambda _: len(part_of(there.grid, META)) == 2)
                assert other in mine.view()
                assert other not in there.view()

    run(work)


def test_a_web_venue_is_taken_once_its_document_is_known() -> None:
    did = "did:web:venue.example"
    documents: dict[str, Any] = {}

    async def work() -> None:
        keys = KnownKeys(FixedResolver(documents))
        good = node_of(0, MemoryStore(), verifier=keys)
        other = node_of(4, MemoryStore())
        async with good, other:
            venue = Venue.at(other.cursor, did, key_pair=KEYS[4])
            asset = venue.register('{"name":"of the web"}')
            await other.sync()
            good.add_peer(other.address)
            mine = Venue.at(good.cursor, KEYS[0], keys=keys)
            await good.wait_until(lambda _: asset in part_of(mine.grid, META))
            assert did not in mine.view()
            assert keys.wanted == (did,)
            documents[did] = venue_document(did, KEYS[4].public_key)
            async with AuthorityWatch(good.pull, keys, interval_s=0.05):
                await good.wait_until(lambda _: mine.assets(did) == [asset])

    run(work)


@pytest.mark.parametrize("setting", ["none", "https", "loopback"])
def test_a_node_fetches_documents_only_when_it_is_set_to(setting: str) -> None:
    served, asked_first = threading.Event(), threading.Event()
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            asked_first.set()
            body = json.dumps(venue_document(did, KEYS[4].public_key)).encode()
            self.send_response(200 if served.is_set() else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    did = f"did:web:127.0.0.1%3A{server.server_port}"

    async def work() -> None:
        config = NodeConfig(port=0, did_web=setting)
        good = open_node(MemoryStore(), key_pair=KEYS[0], config=config)
        if good._authority is not None:
            good._authority._interval_s = 0.05
        other = node_of(4, MemoryStore())
        async with good, other:
            venue = Venue.at(other.cursor, did, key_pair=KEYS[4])
            asset = venue.register('{"name":"of the web"}')
            await other.sync()
            good.add_peer(other.address)
            mine = Venue.at(good.cursor, KEYS[0])
            await good.wait_until(lambda _: asset in part_of(mine.grid, META))
            if setting == "loopback":  # what was not there at first is asked for again
                await asyncio.to_thread(asked_first.wait)
                assert did not in mine.view()
                served.set()
                await good.wait_until(lambda _: mine.assets(did) == [asset])
                assert set(asked) == {"/.well-known/did.json"}
            else:
                await good.pull()
                assert did not in mine.view()
                assert asked == []

    try:
        run(work)
    finally:
        server.shutdown()
        server.server_close()
