"""Catalogue: what a venue offers, and which operation a reference means."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from datalattice.apps.grid import asset_id
from datalattice.crypto import KeyPair
from datalattice.errors import NoSuchPath, UsageError
from datalattice.lattice import did_of
from datalattice.service.venue import Adapter, Catalogue, RecoveryRule, metadata_text
from datalattice.service.venue.adapters import JsonAdapter, TrialAdapter
from datalattice.testing.venue_kit import EchoAdapter

DID = did_of(KeyPair(bytes(range(32))).public_key)
OTHER = did_of(KeyPair(bytes(32)).public_key)
ADAPTERS = (JsonAdapter(), TrialAdapter(), EchoAdapter())

MERGE = "v/ops/json/merge"
OWN = '{"name":"mine","operation":{"adapter":"json:merge","recover":"check"}}'
PLAIN = '{"name":"no operation"}'
FOREIGN = '{"operation":{"adapter":"elsewhere:x"}}'
UNKNOWN = "ab" * 32


def hex_of(text: str) -> str:
    return asset_id(text).hex()


def catalogue(adapters: Iterable[Adapter] = ADAPTERS) -> Catalogue:
    """Return a catalogue over the assets that it publishes and three others."""
    assets = {asset_id(text): text for text in (OWN, PLAIN, FOREIGN)}

    def register(text: str) -> bytes:
        assets[asset_id(text)] = text
        return asset_id(text)

    made = Catalogue(DID, adapters, assets.get)
    made.publish(register)
    return made


def test_the_catalogue_lists_each_operation_with_its_asset() -> None:
    offered = catalogue().operations()
    assert list(offered) == sorted(offered)
    assert len(offered) == sum(len(adapter.operations()) for adapter in ADAPTERS)
    for reference, (asset, operation) in offered.items():
        assert reference == f"v/ops/{operation.path}"
        assert asset == asset_id(metadata_text(operation.metadata))
    # A venue that starts again, or another one, publishes the same assets.
    assert {name: asset for name, (asset, _) in catalogue().operations().items()} == {
        name: asset for name, (asset, _) in offered.items()
    }


def test_a_reference_means_one_operation_or_none() -> None:
    known = catalogue()
    merge = known.operations()[MERGE][0]
    for reference in (MERGE, f"{DID}/{MERGE}"):
        found = known.resolve(reference)
        assert (found.asset, found.given) == (merge, reference)
    forms = ("{}", "0x{}", "a/{}", "/a/{}", DID + "/a/{}", OTHER + "/a/{}")
    for asset in (merge.hex(), merge.hex().upper()):
        for form in forms:
            found = known.resolve(form.format(asset))
            assert (found.asset, found.given) == (merge, "")
    own = known.resolve(hex_of(OWN))
    assert (own.name, own.rule) == ("mine", RecoveryRule.CHECK)


@pytest.mark.parametrize(
    ("reference", "error", "named"),
    [
        ("", UsageError, "''"),
        # No name is looked for in another name space than its own.
        ("json/merge", UsageError, "'json/merge'"),
        ("json:merge", UsageError, "'json:merge'"),
        ("ops/json/merge", UsageError, "or an asset id, got"),
        ("/v/ops/json/merge", UsageError, "or an asset id, got"),
        ("o/merge", UsageError, "or an asset id, got"),
        ("v/ops/merge", NoSuchPath, "v/ops/merge"),
        ("v/ops/json/merge/", NoSuchPath, "v/ops/json/merge/"),
        ("v/ops/JSON/merge", NoSuchPath, "v/ops/JSON/merge"),
        ("v/ops/", NoSuchPath, "v/ops/"),
        (f"v/ops/{UNKNOWN}", NoSuchPath, UNKNOWN),
        # An id is a whole one.
        (UNKNOWN, NoSuchPath, UNKNOWN),
        (UNKNOWN[:-1], UsageError, "or an asset id, got"),
        (f"{UNKNOWN} ", UsageError, "or an asset id, got"),
        (f"b/{UNKNOWN}", UsageError, "or an asset id, got"),
        # A DID says where to ask, and this venue asks nobody.
        (f"{OTHER}/{MERGE}", UsageError, OTHER),
        (f"{OTHER}/o/merge", UsageError, OTHER),
        (OTHER, UsageError, OTHER),
        (f"{OTHER}/a/{UNKNOWN}", NoSuchPath, UNKNOWN),
        (f"did:web:elsewhere.example/{MERGE}", UsageError, "did:web:elsewhere.example"),
        ("did:", UsageError, "did:"),
        # What is an asset and no operation that runs here.
        (hex_of(PLAIN), UsageError, "not an operation"),
        (hex_of(FOREIGN), UsageError, "no adapter for 'elsewhere:x'; known: echo, json, test"),
    ],
)
def test_a_reference_that_means_none_says_why(
    reference: str, error: type[Exception], named: str
) -> None:
    with pytest.raises(error) as found:
        catalogue().resolve(reference)
    assert named in str(found.value)


def test_nothing_is_offered_twice() -> None:
    with pytest.raises(UsageError, match="two adapters have the name 'json'"):
        catalogue([JsonAdapter(), JsonAdapter()])
