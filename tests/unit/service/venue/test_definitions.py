"""Definitions of other venues: fetched, checked by their hash, run here, and kept."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from datalattice.apps.grid import Venue, part_of
from datalattice.cells import Keyword
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor
from datalattice.errors import BadFormat, DataLatticeError, NoSuchPath, PeerUnavailable, UsageError
from datalattice.service.venue import JobCaller, VenueRunner, cell_json
from datalattice.testing.venue_kit import EchoAdapter, VenueLife, venue_root

KEY = KeyPair(bytes(range(32)))
META = Keyword("meta")
ALICE = JobCaller("did:key:z6MkAlice")
WEB = "did:web:south.example"
TEXT = json.dumps({"name": "Back", "operation": {"adapter": "echo:back"}, "of": "south"})
ASSET = hashlib.sha256(TEXT.encode()).digest()
BY_ID, BY_NAME = f"{WEB}/a/{ASSET.hex()}", f"{WEB}/v/ops/echo/back"


class Published:
    """The `Definitions` of one other venue."""

    def __init__(self, texts: dict[bytes, str]) -> None:
        self.texts = texts
        self.names = {"v/ops/echo/back": ASSET}
        self.asked: list[str] = []
        self.failure: DataLatticeError | None = None

    async def named(self, did: str, path: str) -> bytes:
        self.asked.append(path)
        if self.failure is not None:
            raise self.failure
        return self.names[path]

    async def metadata(self, did: str, asset: bytes) -> str:
        self.asked.append(f"{did}/a/{asset.hex()}")
        if self.failure is not None:
            raise self.failure
        if asset not in self.texts:
            raise NoSuchPath(f"there is no asset {asset.hex()} here")
        return self.texts[asset]


def life_of(root: LatticeCursor, published: Published | None, start_s: float = 1_000) -> VenueLife:
    life = VenueLife(root, KEY, [EchoAdapter()], start_s=start_s)
    life.runner = VenueRunner(
        life.storage,
        [EchoAdapter()],
        clock=life.clock,
        off_loop=life._off_loop,
        definitions=published,
    )
    life.run(life.runner.start())
    return life


def run(life: VenueLife, reference: str) -> dict[str, Any]:
    record = life.run(life.runner.invoke(reference, {"n": 1}, ALICE))
    id = bytes.fromhex(str(record["id"]))
    found: dict[str, Any] = cell_json(life.run(life.runner.wait(id, ALICE, 100)))
    return found


@pytest.mark.parametrize("reference", [BY_ID, BY_NAME])
def test_a_definition_is_fetched_and_runs_here(reference: str) -> None:
    root, published = venue_root(KEY), Published({ASSET: TEXT})
    life = life_of(root, published)
    done = run(life, reference)
    assert (done["status"], done["output"], done["op"]) == ("COMPLETE", {"n": 1}, ASSET.hex())
    # "`opName`: if invoked by name"
    assert done.get("opName") == (BY_NAME if reference == BY_NAME else None)
    venue = Venue.at(root, KEY)
    assert venue.asset(ASSET) == TEXT
    assert ASSET not in venue.assets(), "it is the other venue's asset"
    life.end()


def test_a_definition_that_was_fetched_outlives_its_publisher() -> None:
    root, published = venue_root(KEY), Published({ASSET: TEXT})
    life = life_of(root, published)
    run(life, BY_ID)
    published.failure = PeerUnavailable("it is away")
    assert run(life, BY_ID)["status"] == "COMPLETE"
    assert run(life, ASSET.hex())["status"] == "COMPLETE"
    with pytest.raises(PeerUnavailable):  # a name means what it means there, now
        run(life, BY_NAME)
    life.end()
    life = life_of(root, published, 2_000)
    assert run(life, BY_ID)["status"] == "COMPLETE"
    assert published.asked == [BY_ID, "v/ops/echo/back"]
    life.end()


def test_a_definition_with_another_hash_is_refused() -> None:
    check_refused(TEXT + " ", BadFormat, "a text whose hash is not")


@pytest.mark.parametrize("text", ["[]", "no JSON"])
def test_a_definition_that_is_no_metadata_is_refused(text: str) -> None:
    check_refused(text, UsageError, "one JSON object")


def check_refused(text: str, kind: type[Exception], why: str) -> None:
    """Check that a text in the place of a definition is refused, and leaves nothing."""
    root = venue_root(KEY)
    life = life_of(root, Published({ASSET: text}))
    try:
        with pytest.raises(kind, match=why):
            run(life, BY_ID)
        assert ASSET not in part_of(Venue.at(root, KEY).grid, META)
        assert life.run(life.runner.jobs(ALICE)) == []
    finally:
        life.end()


@pytest.mark.parametrize("metadata", [{"name": "x"}, {"operation": {"adapter": "other:x"}}])
def test_what_cannot_run_here_is_not_kept(metadata: dict[str, Any]) -> None:
    text = json.dumps(metadata)
    asset, root = hashlib.sha256(text.encode()).digest(), venue_root(KEY)
    life = life_of(root, Published({asset: text}))
    with pytest.raises(UsageError):
        run(life, f"{WEB}/a/{asset.hex()}")
    assert asset not in part_of(Venue.at(root, KEY).grid, META)
    life.end()


def test_without_other_venues_only_what_is_here_is_known() -> None:
    life = life_of(venue_root(KEY), None)
    with pytest.raises(NoSuchPath, match="this node holds no asset"):
        run(life, BY_ID)
    with pytest.raises(NoSuchPath, match=f"in the catalogue of {WEB}"):
        run(life, BY_NAME)
    life.end()
