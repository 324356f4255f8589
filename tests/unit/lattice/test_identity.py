"""Owners named by a `did:key`."""

from __future__ import annotations

import pytest

from datalattice.cells import Map, Set, Signed
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.lattice import (
    MergeContext,
    MergeNotice,
    OwnerLattice,
    ResolvingVerifier,
    SetLattice,
    did_of,
    is_bare_did,
    public_key_of,
    verify_did,
)
from datalattice.lattice.identity import DID_CHARACTERS_MAX, KEYS_MAX

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
        "did:key:z1" + NAME.removeprefix("did:key:z"),
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


# --- other DIDs ---------------------------------------------------------------------------------


def test_a_resolver_says_whose_keys_speak_for_a_did() -> None:
    asked: list[str] = []

    def resolver(did: str) -> list[bytes]:
        asked.append(did)
        return [PUBLIC, KEY.public_key] if did == "did:web:example.com" else []

    verifier = ResolvingVerifier(resolver)
    assert verifier("did:web:example.com", KEY.public_key)
    assert not verifier("did:web:example.com", bytes(32))
    assert not verifier("did:web:example.org", KEY.public_key)
    assert asked == ["did:web:example.com", "did:web:example.com", "did:web:example.org"]
    assert verifier.failures == 0
    assert "resolver" in repr(verifier)


def test_a_name_that_carries_its_key_is_not_resolved() -> None:
    def resolver(did: str) -> list[bytes]:
        raise AssertionError(did)

    verifier = ResolvingVerifier(resolver)
    assert verifier(did_of(KEY.public_key), KEY.public_key)
    assert not verifier("did:key:zBad", KEY.public_key)
    for owner in (None, 7, b"x", "example.com", Map.of({})):
        assert not verifier(owner, KEY.public_key)
    assert verifier.failures == 0


def test_a_resolver_that_fails_authorises_nobody_and_is_counted() -> None:
    def resolver(did: str) -> list[bytes]:
        raise TimeoutError(f"no answer about {did}")

    verifier = ResolvingVerifier(resolver)
    assert not verifier("did:web:example.com", KEY.public_key)
    assert not ResolvingVerifier(lambda _: None)("did:web:x", PUBLIC)  # type: ignore[arg-type,return-value]
    assert (verifier.failures, verifier.last_failure) == (
        1,
        "did:web:example.com: TimeoutError: no answer about did:web:example.com",
    )


def test_only_so_long_names_and_so_many_keys_are_looked_at() -> None:
    verifier = ResolvingVerifier(lambda _: [KEY.public_key])
    name = "did:web:" + "x" * (DID_CHARACTERS_MAX - 8)
    assert len(name) == DID_CHARACTERS_MAX
    assert verifier(name[:-1], KEY.public_key)
    assert verifier(name, KEY.public_key)
    assert not verifier(name + "x", KEY.public_key)
    for before, found in ((KEYS_MAX - 2, True), (KEYS_MAX - 1, True), (KEYS_MAX, False)):
        many = ResolvingVerifier(lambda _, n=before: [PUBLIC] * n + [KEY.public_key])  # type: ignore[misc]
        assert many("did:web:x", KEY.public_key) is found


def test_owners_by_resolved_name_may_sign_and_others_are_reported() -> None:
    reports: list[MergeNotice] = []
    lattice = OwnerLattice(SetLattice())
    verifier = ResolvingVerifier(lambda did: [KEY.public_key] if did == "did:web:a" else [])
    context = MergeContext(verifier=verifier, report=reports.append)
    signed = Signed.sign(KEY, Set.of([1]))
    merged = lattice.merge(
        lattice.zero(), Map.of({"did:web:a": signed, "did:web:b": signed}), context
    )
    assert merged == Map.of({"did:web:a": signed})
    assert [report.kind for report in reports] == ["not-owner"]


def test_reports_say_why_an_entry_was_dropped() -> None:
    reports: list[MergeNotice] = []
    lattice = OwnerLattice(SetLattice())
    good = Signed.sign(KEY, Set.of([1]))
    forged = Signed(KEY.public_key, bytes(64), Set.of([1]))
    for entry in (forged, Set.of([1]), Signed.sign(KEY, 5)):
        lattice.merge(
            lattice.zero(),
            Map.of({KEY.public_key: entry}),
            MergeContext(report=reports.append),
        )
    assert [report.kind for report in reports] == [
        "bad-signature",
        "entry-dropped",
        "entry-dropped",
    ]
    assert lattice.merge(lattice.zero(), Map.of({KEY.public_key: good})) != lattice.zero()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("did:web:example.org", True),
        ("did:web:example.org%3A8443:a:b_c", True),
        ("did:convex:13", True),
        (NAME, True),
        ("did:web:a ", False),
        ("did:web:a\n", False),
        ("did:web:\u00e9.org", False),
        ("did:web:a%", False),
        ("did:web:a%zz", False),
        ("did:web:a:", False),
        ("did:WEB:a", False),
        ("DID:web:a", False),
        ("did:web:", False),
        ("did::a", False),
        ("did:web:a/b", False),
        ("did:web:a?b", False),
        ("did:web:a#b", False),
        (b"did:web:a", False),
    ],
)
def test_a_bare_did_has_the_characters_of_one(text: object, is_one: bool) -> None:
    assert is_bare_did(text) is is_one
