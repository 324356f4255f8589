"""Adapter `asset`: what is stored and pinned, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from datalattice.actions import ActionRequest
from datalattice.apps.grid import Venue
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, NoSuchPath, Unauthorized, UsageError
from datalattice.service.venue import JobCaller, Json, OperationMetadata
from datalattice.service.venue.adapters import AssetAdapter
from datalattice.testing.venue_kit import LoneJob, venue_root

KEY = KeyPair(bytes(range(32)))
WEB = "did:web:south.example"
CONTENT = b"sepal,petal\n"
TEXT = json.dumps({"name": "Iris", "content": {"sha256": hashlib.sha256(CONTENT).hexdigest()}})
ASSET = hashlib.sha256(TEXT.encode()).digest()


class South:
    """The assets of another venue: whatever the test says."""

    def __init__(self, text: str = TEXT, content: bytes = CONTENT) -> None:
        self.text, self.bytes = text, content
        self.asked: list[str] = []

    async def metadata(self, did: str, asset: bytes) -> str:
        self.asked.append(f"{did} {asset.hex()}")
        return self.text

    async def content(self, did: str, asset: bytes) -> bytes:
        self.asked.append(f"{did} content {asset.hex()}")
        return self.bytes


def allow(caller: JobCaller, request: ActionRequest[Any]) -> None:
    """Let everybody register assets."""
    assert request.action.name == "venue.register"
    assert caller == JobCaller(LoneJob().caller)


def refuse(_caller: JobCaller, _request: ActionRequest[Any]) -> None:
    raise Unauthorized("the caller does not have the right w on venue/assets")


def run(kind: str, given: Json, venue: Venue, south: South | None = None, may: Any = allow) -> Any:
    adapter = AssetAdapter(lambda: venue, may, south)
    meta: OperationMetadata = {"operation": {"adapter": f"asset:{kind}"}}
    adapter.check(meta, given)
    return asyncio.run(adapter.run(LoneJob(), meta, given))


@pytest.fixture
def venue() -> Venue:
    return Venue.at(venue_root(KEY), KEY)


def test_a_result_becomes_an_asset_with_its_content(venue: Venue) -> None:
    given: Json = {"metadata": {"name": "r", "content": {"contentType": "a/b"}}, "content": "tea"}
    found = run("store", given, venue)
    digest = hashlib.sha256(b"tea").hexdigest()
    assert found == {"id": found["id"], "sha256": digest, "bytes": 3}
    assert venue.content(found["id"]) == b"tea"
    metadata = json.loads(venue.asset(found["id"]) or "")
    assert metadata["content"] == {"contentType": "a/b", "sha256": digest}
    assert run("store", given, venue) == found, "once under its hash"
    assert run("store", {"metadata": {"name": "x"}}, venue).keys() == {"id"}
    assert len(venue.assets()) == 2


@pytest.mark.parametrize("reference", [f"{WEB}/a/{ASSET.hex()}"])
def test_an_asset_of_another_venue_is_pinned_once_its_hashes_are_right(
    venue: Venue, reference: str
) -> None:
    south = South()
    found = run("pin", {"asset": reference}, venue, south)
    assert (found["id"], found["bytes"]) == (ASSET.hex(), len(CONTENT))
    assert venue.assets() == [ASSET]
    assert venue.content(ASSET) == CONTENT
    # What is here is not asked for again, so it outlives its publisher.
    assert run("pin", {"asset": reference}, venue, south) == found
    assert run("pin", {"asset": ASSET.hex()}, venue) == found
    assert len(south.asked) == 2


def test_an_asset_that_came_by_replication_is_pinned_without_asking(venue: Venue) -> None:
    other = Venue.create(KeyPair(bytes(range(1, 33))))
    other.put_content(other.register(TEXT), CONTENT)
    venue.merge(other.grid)
    assert venue.assets() == []
    assert run("pin", {"asset": ASSET.hex()}, venue)["id"] == ASSET.hex()
    assert venue.assets() == [ASSET]


@pytest.mark.parametrize(
    ("south", "text"),
    [
        (South(text=TEXT + " "), "whose hash is not"),
        (South(content=CONTENT + b"x"), "another hash than"),
    ],
)
def test_what_has_another_hash_is_refused_and_nothing_is_kept(
    venue: Venue, south: South, text: str
) -> None:
    with pytest.raises(BadFormat, match=text):
        run("pin", {"asset": f"{WEB}/a/{ASSET.hex()}"}, venue, south)
    assert venue.assets() == []
    assert venue.asset(ASSET) is None


@pytest.mark.parametrize("reference", [ASSET.hex(), f"{WEB}/a/{ASSET.hex()}"])
def test_what_is_nowhere_is_told_as_such(venue: Venue, reference: str) -> None:
    with pytest.raises(NoSuchPath, match="this node holds no asset"):
        run("pin", {"asset": reference}, venue)
    venue.register(TEXT)
    with pytest.raises(NoSuchPath, match="the content of the asset"):
        run("pin", {"asset": reference}, venue)


@pytest.mark.parametrize(
    ("kind", "given"),
    [("store", {"metadata": {}}), ("pin", {"asset": f"{WEB}/a/{ASSET.hex()}"})],
)
def test_a_caller_needs_the_right_to_register(venue: Venue, kind: str, given: Json) -> None:
    south = South()
    with pytest.raises(Unauthorized):
        run(kind, given, venue, south, refuse)
    assert venue.assets() == []
    assert south.asked == []


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        ("store", {}, "`metadata` is an object"),
        ("store", {"metadata": "{}"}, "`metadata` is an object"),
        ("store", {"metadata": {}, "content": 7}, "`content` is a text"),
        ("store", {"metadata": {"content": 7}, "content": "x"}, "`metadata.content` is an object"),
        (
            "store",
            {"metadata": {"content": {"sha256": "00"}}, "content": "x"},
            "`metadata.content.sha256` is the content's hash",
        ),
        ("pin", {}, "`asset` is a text"),
        ("pin", {"asset": "tea"}, "an asset id is 64 hex digits"),
        ("pin", {"asset": f"{WEB}/v/ops/x/y"}, "an asset id is 64 hex digits"),
        ("pin", {"asset": "00", "venue": "x"}, "unknown member 'venue'"),
    ],
)
def test_a_malformed_input_is_refused(venue: Venue, kind: str, given: Json, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        run(kind, given, venue)
