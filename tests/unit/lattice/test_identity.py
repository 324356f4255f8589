"""Owners named by a `did:key`."""

from __future__ import annotations

import pytest

from datalattice.cells import Map, Set, Signed
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.lattice import (
    MergeContext,
    OwnerLattice,
    SetLattice,
    did_of,
    public_key_of,
    verify_did,
)

KEY = KeyPair(b"\x01" * 32)
# RFC 8032 test 1, as the did:key method writes it.
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
NAME = "did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw"


def test_a_name_carries_its_key() -> None:
    assert did_of(PUBLIC) == NAME
    assert public_key_of(NAME) == PUBLIC
    assert public_key_of(did_of(KEY.public_key)) == KEY.public_key
    assert public_key_of(did_of(bytes(32))) == bytes(32)
    assert public_key_of(did_of(b"\xff" * 32)) == b"\xff" * 32


@pytest.mark.parametrize(
    "text",
    [
        "did:key:z",
        "did:key:" + NAME.removeprefix("did:key:z"),
        NAME[:-1],
        NAME + "w",
        NAME.replace("w", "0"),
        NAME.replace("w", "l"),
        "did:key:z" + "1" * 48,
        "did:key:z" + "z" * 49,
        "did:key:z" + "z" * 48,
        "did:web:example.org",
        "",
    ],
)
def test_anything_else_carries_none(text: str) -> None:
    assert public_key_of(text) is None


@pytest.mark.parametrize("owner", [None, 5, b"did", PUBLIC, Map.of([])])
def test_a_name_is_a_string(owner: object) -> None:
    assert public_key_of(owner) is None
    assert not verify_did(owner, PUBLIC)


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        did_of(PUBLIC[:31])


def test_the_verifier_admits_the_key_in_the_name_and_no_other() -> None:
    lattice, context = OwnerLattice(SetLattice()), MergeContext(verifier=verify_did)
    name = did_of(KEY.public_key)
    good = Map.of([(name, Signed.sign(KEY, Set.of([1])))])
    assert lattice.merge(None, good, context) is good
    bad = Map.of([(name, Signed.sign(KeyPair(b"\x02" * 32), Set.of([1, 2])))])
    assert lattice.merge(good, bad, context) is good
