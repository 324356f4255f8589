"""DIDs and keys: texts taken apart, documents read, resolvers asked before merges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from datalattice.apps.grid import (
    KEEP_MS,
    DIDUrl,
    FixedResolver,
    KnownKeys,
    assertion_keys,
    did_method,
    dids_to_resolve,
    document_url,
    is_venue_did,
    may_write,
    split_did_url,
    venue_document,
)
from datalattice.apps.grid.authority import PREPARED_MAX
from datalattice.cells import EMPTY_INDEX, Index, Keyword, Signed
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.errors import PeerUnavailable, UsageError
from datalattice.lattice import did_of, is_bare_did
from datalattice.testing.clocks import StoppedClock

KEY = KeyPair.generate(SeededEntropy(1))
OTHER = KeyPair.generate(SeededEntropy(2))
DID = did_of(KEY.public_key)
WEB = "did:web:venue.example"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("did:web:a.b", DIDUrl("did:web:a.b")),
        ("did:web:a/p/q?x=1#f", DIDUrl("did:web:a", "p/q", "x=1", "f")),
        ("did:web:a#f?x/y", DIDUrl("did:web:a", None, None, "f?x/y")),
        ("did:web:a?x/y", DIDUrl("did:web:a", None, "x/y", None)),
        ("did:web:a/", DIDUrl("did:web:a", "", None, None)),
    ],
)
def test_did_urls_are_split_at_their_marks(text: str, parts: DIDUrl) -> None:
    assert split_did_url(text) == parts


@pytest.mark.parametrize("text", ["", "did", "did:web", "did::x", "http://a/b", "did:web:", "/x"])
def test_what_does_not_begin_with_a_did_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not begin with did"):
        split_did_url(text)


def test_methods_are_known_and_keys_are_looked_at() -> None:
    assert did_method(DID) == "key"
    assert did_method(DID[:-1]) is None
    assert did_method("did:convex:1234") == "convex"
    assert did_method("did:example:1") == "example"
    assert [is_venue_did(one) for one in (DID, WEB, "did:convex:1")] == [True] * 3
    for wrong in ("did:example:1", DID + "/a", WEB + "#k", WEB + "?q", b"did:web:a", None, 7):
        assert not is_venue_did(wrong)
    assert is_bare_did("did:web:" + "a" * 2_040)
    assert not is_bare_did("did:web:" + "a" * 2_041)


@pytest.mark.parametrize(
    ("did", "url"),
    [
        ("did:web:127.0.0.1%3A80", "http://127.0.0.1:80/.well-known/did.json"),
        ("did:web:LOCALHOST", "http://LOCALHOST/.well-known/did.json"),
        ("did:web:example.com%3a1", "https://example.com:1/.well-known/did.json"),
        ("did:web:example.com%3A65535:a%20b", "https://example.com:65535/a%20b/did.json"),
    ],
)
def test_documents_lie_where_the_did_says(did: str, url: str) -> None:
    assert document_url(did, allow_http=True) == url
    assert document_url(did).startswith("https://")


@pytest.mark.parametrize(
    "did",
    [
        DID,
        "did:web:",
        "did:web:a..b",
        "did:web:-a",
        "did:web:user@host",
        "did:web:a%3A",
        "did:web:a%3A0",
        "did:web:a%3A65536",
        "did:web:a%3Ax",
        "did:web:a::b",
        "did:web:a:..",
        "did:web:a:x%2Fy",
        "did:web:a:é",
        "did:web:é",
        "did:web:a/b",
    ],
)
def test_other_addresses_are_refused(did: str) -> None:
    with pytest.raises(UsageError, match="did:web"):
        document_url(did)


def test_a_venue_s_document_names_its_key_for_everything() -> None:
    document = venue_document(WEB, KEY.public_key, "https://venue.example/api/v1")
    assert assertion_keys(WEB, document) == {KEY.public_key}
    assert document["service"][0]["serviceEndpoint"] == "https://venue.example/api/v1"
    assert "service" not in venue_document(DID, KEY.public_key)
    with pytest.raises(UsageError, match="the DID of a venue"):
        venue_document("did:example:1", KEY.public_key)


def test_keys_are_found_by_reference_and_in_full() -> None:
    document = venue_document(WEB, KEY.public_key)
    method = document["verificationMethod"][0]
    short = {**document, "assertionMethod": ["#" + method["id"].partition("#")[2]]}
    full = {"id": WEB, "assertionMethod": [method]}
    elsewhere = {**document, "assertionMethod": ["did:web:other#k"]}
    assert assertion_keys(WEB, short) == assertion_keys(WEB, full) == {KEY.public_key}
    assert assertion_keys(WEB, elsewhere) == frozenset()


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        {},
        {"id": WEB},
        {"id": WEB, "assertionMethod": "x"},
        {"id": WEB, "assertionMethod": [None, 7, {}, {"publicKeyMultibase": 7}]},
        {"id": WEB, "assertionMethod": [{"publicKeyMultibase": "z123"}]},
        {"id": WEB, "verificationMethod": [7], "assertionMethod": ["#x"]},
        {"id": [WEB], "assertionMethod": []},
    ],
)
def test_other_documents_list_nobody(document: object) -> None:
    assert assertion_keys(WEB, document) == frozenset()
    assert not may_write(WEB, KEY.public_key, document)


def test_convex_cannot_be_verified() -> None:
    document = {**venue_document(WEB, KEY.public_key), "id": "did:convex:1"}
    assert not may_write("did:convex:1", KEY.public_key, document)


# --- keys that are known ---------------------------------------------------------------------


class Asked:
    """A resolver that says what it was asked."""

    def __init__(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        self.dids: list[str] = []
        self._documents = FixedResolver(documents)

    def resolve(self, did: str) -> Mapping[str, Any]:
        self.dids.append(did)
        return self._documents.resolve(did)


def test_keys_are_asked_for_once_and_believed_for_a_while() -> None:
    documents = {WEB: venue_document(WEB, KEY.public_key)}
    asked, clock = Asked(documents), StoppedClock(1_000_000)
    keys = KnownKeys(asked, clock)
    assert not keys(WEB, KEY.public_key)
    assert asked.dids == []
    assert list(keys.wanted) == [WEB]
    keys.prepare([WEB, DID, "did:convex:1", "did:example:1", "no did"])
    assert asked.dids == [WEB]
    assert list(keys.wanted) == []
    assert keys(WEB, KEY.public_key)
    assert not keys(WEB, OTHER.public_key)
    assert keys(DID, KEY.public_key)
    clock.now += KEEP_MS - 1
    keys.prepare([WEB])
    assert keys(WEB, KEY.public_key)
    assert asked.dids == [WEB]
    documents[WEB] = venue_document(WEB, OTHER.public_key)
    clock.now += 1
    assert not keys(WEB, KEY.public_key)
    assert keys.refresh()
    assert not keys(WEB, KEY.public_key)
    assert keys(WEB, OTHER.public_key)


def test_what_cannot_be_resolved_has_no_keys_and_is_tried_again() -> None:
    documents: dict[str, Mapping[str, Any]] = {}
    asked = Asked(documents)
    keys = KnownKeys(asked, StoppedClock(1_000_000))
    keys.prepare([WEB])
    assert not keys(WEB, KEY.public_key)
    assert "not among those given" in keys.failures[WEB]
    assert not keys.refresh()
    documents[WEB] = venue_document(WEB, KEY.public_key)
    assert not keys(WEB, KEY.public_key)
    assert keys.refresh()
    assert keys(WEB, KEY.public_key)
    assert keys.failures == {}
    assert asked.dids == [WEB] * 3


@pytest.mark.parametrize("count", [PREPARED_MAX - 1, PREPARED_MAX, PREPARED_MAX + 1])
def test_one_grid_has_only_so_many_dids_looked_up(count: int) -> None:
    asked = Asked({})
    keys = KnownKeys(asked, StoppedClock(1_000_000))
    keys.prepare(f"did:web:host{number}" for number in range(count))
    assert len(asked.dids) == min(count, PREPARED_MAX)


def test_only_differing_web_venues_are_looked_up() -> None:
    def grid(*dids: str) -> Index:
        venues = Index.of({did: Signed.sign(KEY, EMPTY_INDEX) for did in dids})
        return Index.of({Keyword("venues"): venues})

    root = Index.of({Keyword("grid"): grid(WEB, "did:web:b", DID)})
    assert dids_to_resolve(None, root) == ["did:web:b", WEB]
    assert dids_to_resolve(grid(WEB), root) == ["did:web:b"]
    assert dids_to_resolve(None, 7) == []
    assert dids_to_resolve(7, Index.of({Keyword("venues"): 7})) == []


def test_a_resolver_s_own_error_is_kept_as_the_reason() -> None:
    class Down:
        def resolve(self, did: str) -> Mapping[str, Any]:
            raise PeerUnavailable(f"{did} is down")

    keys = KnownKeys(Down(), StoppedClock(1_000_000))
    keys.prepare([WEB])
    assert keys.failures == {WEB: f"{WEB} is down"}
