"""Delegations: chains that hold and chains that do not, and what they let callers do."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, strategies as st

from datalattice.client.credentials import (
    ABILITIES,
    CLOCK_SKEW_S,
    CREDENTIAL_CHARACTERS_MAX,
    DELEGATION_LIFE_S_MAX,
    DELEGATIONS,
    RESOURCES_MAX,
    make_delegation,
    split_token,
)
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.errors import LimitExceeded, RateLimited, UsageError
from datalattice.lattice import did_of
from datalattice.service.access import (
    RIGHTS,
    Allowance,
    BadCredential,
    Credentials,
    Policy,
    Principal,
    RateLimits,
    decide,
    join_scope,
    parse_grants,
)
from datalattice.service.access.delegations import LINKS_MAX
from datalattice.testing.callers import (
    ALICE,
    ALICE_DID,
    BOB,
    BOB_DID,
    CALL_TARGET,
    NODE_DID,
    NOW_MS,
    NOW_S,
    authenticator,
    signed_call,
    signed_token,
    token_of,
)

CAROL = KeyPair(b"c" * 32)
CAROL_DID = did_of(CAROL.public_key)
SHOP = join_scope("lattice", "kv", ALICE_DID, "shop")
NO_TOKEN = "malformed: a token is three parts in base64url with dots between them"
OPEN = Policy(reading="authenticated")
STRICT = Policy(
    rules={join_scope("lattice", "kv", ALICE_DID): {"r": (), "w": (ALICE_DID,), "p": ()}}
)


def from_alice(ability: str = "crud", path: str = "/kv/shop", **settings: Any) -> str:
    """Return what Alice gives to Bob."""
    settings = {"entropy": SeededEntropy(1), **settings}
    key, audience = settings.pop("key", ALICE), settings.pop("audience", BOB_DID)
    return make_delegation(key, audience, {f"{ALICE_DID}{path}": ability}, NOW_MS, **settings)


def shown(*texts: str, key: KeyPair = BOB) -> Credentials:
    """Return a request of Bob that shows delegations."""
    headers = {"Authorization": f"Bearer {token_of(key)}", "Ucans": ", ".join(texts)}
    return Credentials("GET", CALL_TARGET, headers)


def enter(*texts: str, key: KeyPair = BOB, now_ms: int = NOW_MS) -> Principal:
    return authenticator().authenticate(shown(*texts, key=key), now_ms)


def forged(changed: dict[str, Any], *, key: KeyPair = ALICE, without: str = "") -> str:
    """Return a delegation of Alice to Bob with chosen claims."""
    claims = {
        "iss": ALICE_DID,
        "aud": BOB_DID,
        "exp": NOW_S + 600,
        "nnc": "one",
        "att": [{"with": f"{ALICE_DID}/kv/shop", "can": "crud"}],
        "prf": [],
        **changed,
    }
    claims.pop(without, None)
    return signed_token({"alg": "EdDSA"}, claims, key)


def is_allowed(caller: Principal, right: str, scope: str, policy: Policy = OPEN) -> bool:
    return decide(policy, caller, right, scope).is_allowed


def test_an_owner_lets_another_write_a_part_of_its_data() -> None:
    bob = enter(from_alice())
    assert bob.did == BOB_DID
    assert decide(OPEN, bob, "w", SHOP).reason == "delegated"
    assert is_allowed(bob, "w", f"{SHOP}/below")
    for scope in (
        join_scope("lattice", "kv", ALICE_DID),
        join_scope("lattice", "kv", ALICE_DID, "shop2"),
        join_scope("lattice", "fs", ALICE_DID, "shop"),
        join_scope("lattice", "kv", CAROL_DID, "shop"),
        join_scope("pins", ALICE_DID),
        "admin",
    ):
        assert not is_allowed(bob, "w", scope)
    assert not is_allowed(enter(from_alice(audience=CAROL_DID), key=CAROL), "a", SHOP)


@pytest.mark.parametrize(
    ("ability", "rights"),
    [("*", "rwpx"), ("crud", "rw"), ("crud/read", "r"), ("crud/write", ""), ("crud/delete", "")],
)
def test_each_ability_gives_its_rights(ability: str, rights: str) -> None:
    scope = join_scope("venue", "jobs", ALICE_DID, "one")
    bob = enter(from_alice(ability, "/jobs"))
    assert "".join(right for right in RIGHTS if is_allowed(bob, right, scope)) == rights
    assert ability in ABILITIES


def test_writing_and_deleting_given_apart_do_not_add_up() -> None:
    bob = enter(from_alice("crud/write"), from_alice("crud/delete", entropy=SeededEntropy(2)))
    assert not is_allowed(bob, "w", SHOP)


def test_a_whole_owner_may_be_given() -> None:
    bob = enter(from_alice("*", ""))
    assert is_allowed(bob, "w", SHOP)
    assert is_allowed(bob, "p", join_scope("pins", ALICE_DID))
    assert is_allowed(bob, "x", join_scope("venue", "jobs", ALICE_DID))
    assert decide(OPEN, bob, "w", join_scope("lattice", "data", "rows")).reason == "default"


def test_an_owner_gives_what_it_has_and_no_more() -> None:
    bob = enter(from_alice("*", "/kv"))
    assert is_allowed(bob, "w", SHOP, STRICT)
    assert not is_allowed(bob, "r", SHOP, STRICT)
    assert not is_allowed(bob, "p", SHOP, STRICT)


def test_the_token_of_the_caller_narrows_what_was_given_to_it() -> None:
    bob = enter(from_alice())
    assert not is_allowed(bob.narrowed(parse_grants([f"r {SHOP}"])), "w", SHOP)


def test_a_signed_request_may_show_delegations() -> None:
    request = signed_call(BOB)
    request = Credentials("GET", CALL_TARGET, {**request.headers, DELEGATIONS: from_alice()})
    assert is_allowed(authenticator().authenticate(request, NOW_MS), "w", SHOP)


# --- chains -------------------------------------------------------------------------------------


def chained(ability: str, path: str, above: str | None = None, **settings: Any) -> str:
    """Return what Bob gives to Carol, from what Alice gave to Bob."""
    proof = from_alice(**settings) if above is None else above
    resource = {f"{ALICE_DID}{path}": ability}
    return make_delegation(BOB, CAROL_DID, resource, NOW_MS, proofs=[proof], life_s=900)


def test_what_was_given_is_given_on() -> None:
    carol = enter(chained("crud", "/kv/shop/books"), key=CAROL)
    assert carol.did == CAROL_DID
    assert is_allowed(carol, "w", f"{SHOP}/books/one")
    assert not is_allowed(carol, "w", SHOP)


@pytest.mark.parametrize(
    ("ability", "path"),
    [("*", "/kv/shop"), ("crud", "/kv"), ("crud", "/kv/shop2"), ("crud", ""), ("crud", "/fs/shop"),
     ("*", "/kv/shop/books")],
)  # fmt: skip
def test_no_link_is_wider_than_its_proof(ability: str, path: str) -> None:
    with pytest.raises(BadCredential) as caught:
        enter(chained(ability, path), key=CAROL)
    assert caught.value.reason == "wider"


def test_a_narrow_link_takes_a_part_of_a_wide_proof() -> None:
    carol = enter(chained("crud/read", "/kv/shop", from_alice("*", "")), key=CAROL)
    assert is_allowed(carol, "r", SHOP)
    assert not is_allowed(carol, "w", SHOP)


def test_abilities_of_two_proofs_do_not_add_up() -> None:
    proofs = [from_alice("crud/write"), from_alice("crud/delete", entropy=SeededEntropy(2))]
    text = make_delegation(BOB, CAROL_DID, {f"{ALICE_DID}/kv/shop": "crud"}, NOW_MS, proofs=proofs)
    with pytest.raises(BadCredential) as caught:
        enter(text, key=CAROL)
    assert caught.value.reason == "wider"


def test_a_chain_ends_with_its_first_link() -> None:
    carol = enter(chained("crud", "/kv/shop", life_s=60), key=CAROL)
    assert carol.expires_ms == NOW_MS + (60 + CLOCK_SKEW_S) * 1_000
    late_ms = NOW_MS + (60 + CLOCK_SKEW_S) * 1_000
    with pytest.raises(BadCredential) as caught:
        enter(chained("crud", "/kv/shop", life_s=60), key=CAROL, now_ms=late_ms)
    assert caught.value.reason == "expired"


def test_a_proof_that_was_given_to_another_is_none() -> None:
    with pytest.raises(BadCredential) as caught:
        enter(chained("crud", "/kv/shop", audience=CAROL_DID), key=CAROL)
    assert caught.value.reason == "audience"


def test_a_link_without_its_proof_gives_nothing() -> None:
    text = make_delegation(BOB, CAROL_DID, {f"{ALICE_DID}/kv": "crud"}, NOW_MS)
    with pytest.raises(BadCredential) as caught:
        enter(text, key=CAROL)
    assert caught.value.reason == "wider"


def test_a_request_has_at_most_so_many_links() -> None:
    texts = [forged({"nnc": str(number), "att": []}) for number in range(LINKS_MAX + 1)]
    assert enter(*texts[:LINKS_MAX]).delegated == ()
    with pytest.raises(BadCredential) as caught:
        enter(*texts)
    assert caught.value.reason == "links"


# --- what is not valid --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (forged({"aud": CAROL_DID}), "audience"),
        (forged({"aud": NODE_DID}), "audience"),
        (forged({}, without="aud"), "audience"),
        (forged({}, key=BOB), "signature"),
        (forged({"iss": "did:web:example.org"}), "key"),
        (forged({}, without="iss"), "key"),
        (forged({"exp": NOW_S - CLOCK_SKEW_S}), "expired"),
        (forged({}, without="exp"), "time"),
        (forged({"exp": None}), "time"),
        (forged({"exp": NOW_S + DELEGATION_LIFE_S_MAX + CLOCK_SKEW_S + 1}), "life"),
        (forged({"nbf": NOW_S + CLOCK_SKEW_S + 1}), "not-yet-valid"),
        (forged({"nbf": "soon"}), "time"),
        (forged({}, without="nnc"), "token-id"),
        (forged({"nnc": ""}), "token-id"),
        (forged({}, without="att"), "resources"),
        (forged({"att": {}}), "resources"),
        (forged({"att": ["crud"]}), "resources"),
        (forged({"att": [{"with": ALICE_DID}]}), "resources"),
        (forged({"att": [{"with": 1, "can": "crud"}]}), "resources"),
        (forged({"att": [{"with": f"{ALICE_DID}/", "can": "crud"}]}), "resources"),
        (forged({"att": [{"with": f"{ALICE_DID}/kv//a", "can": "crud"}]}), "resources"),
        (forged({"att": [{"with": f"{ALICE_DID}/%6bv", "can": "crud"}]}), "resources"),
        (forged({"att": [{"with": f"{CAROL_DID}/kv", "can": "crud"}]}), "wider"),
        (forged({"prf": "text"}), "proofs"),
        (forged({"prf": [1]}), "proofs"),
        (forged({"prf": ["a.b"]}), NO_TOKEN),
        ("", NO_TOKEN),
        (token_of(ALICE), "audience"),
    ],
)  # fmt: skip
def test_a_delegation_that_does_not_hold_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadCredential) as caught:
        enter(text)
    assert caught.value.reason == reason


def test_a_bad_delegation_beside_a_good_one_is_refused() -> None:
    with pytest.raises(BadCredential):
        enter(from_alice(), forged({}, key=BOB))


def test_callers_without_a_name_have_no_delegations() -> None:
    for local in (None, "process"):
        with pytest.raises(BadCredential) as caught:
            authenticator().authenticate(
                Credentials("GET", CALL_TARGET, {DELEGATIONS: from_alice()}, local=local),
                NOW_MS,
            )
        assert caught.value.reason == "audience"


def test_a_delegation_is_no_token() -> None:
    bearer = Credentials("GET", CALL_TARGET, {"Authorization": f"Bearer {from_alice()}"})
    with pytest.raises(BadCredential):
        authenticator().authenticate(bearer, NOW_MS)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_resources_at_their_limit(more: int) -> None:
    count = RESOURCES_MAX + more
    listed = {f"{ALICE_DID}/kv/{number}": "crud" for number in range(count)}
    att = [{"with": one, "can": can} for one, can in listed.items()]
    if more <= 0:
        assert len(enter(make_delegation(ALICE, BOB_DID, listed, NOW_MS)).delegated) == count
        return
    with pytest.raises(UsageError, match=f"1 to {RESOURCES_MAX} resources"):
        make_delegation(ALICE, BOB_DID, listed, NOW_MS)
    with pytest.raises(BadCredential) as caught:
        enter(forged({"att": att}))
    assert caught.value.reason == "resources"


def test_a_header_with_more_characters_than_fit_is_refused() -> None:
    longest = "x" * (CREDENTIAL_CHARACTERS_MAX + 1)
    with pytest.raises(BadCredential) as caught:
        enter(longest)
    assert caught.value.reason == "length"
    with pytest.raises(BadCredential) as caught:
        enter(longest[:-1])
    assert caught.value.reason.startswith("malformed")


def test_abilities_of_other_services_give_nothing() -> None:
    bob = enter(forged({"att": [{"with": f"{ALICE_DID}/kv", "can": "email/send"}]}))
    assert bob.delegated == ()


def test_bad_delegations_are_counted_by_address() -> None:
    door = authenticator(RateLimits({"failures": Allowance(0.1, 2)}))
    for _ in range(2):
        with pytest.raises(BadCredential):
            door.authenticate(shown(forged({}, key=BOB)), NOW_MS)
    with pytest.raises(RateLimited):
        door.authenticate(shown(from_alice()), NOW_MS)


@pytest.mark.parametrize("issuer", [ALICE_DID, BOB_DID])
def test_a_link_that_is_revoked_ends_the_chain(issuer: str) -> None:
    door, text = authenticator(), chained("crud", "/kv/shop")
    door.authenticate(shown(text, key=CAROL), NOW_MS)
    claims = split_token(text).claims
    link = claims if issuer == BOB_DID else split_token(claims["prf"][0]).claims
    door.revoke(issuer, link["nnc"], NOW_MS + 1_000_000, NOW_MS)
    for _ in range(2):
        with pytest.raises(BadCredential) as caught:
            door.authenticate(shown(text, key=CAROL), NOW_MS)
        assert caught.value.reason == "revoked"


def test_what_is_known_is_known_for_one_caller() -> None:
    door = authenticator()
    door.authenticate(shown(from_alice()), NOW_MS)
    with pytest.raises(BadCredential):
        door.authenticate(shown(from_alice(), key=CAROL), NOW_MS)


# --- making -------------------------------------------------------------------------------------


@pytest.mark.parametrize("life_s", [0, DELEGATION_LIFE_S_MAX + 1])
def test_a_life_out_of_range_is_refused(life_s: int) -> None:
    with pytest.raises(UsageError, match="a delegation lives 1 to"):
        from_alice(life_s=life_s)


def test_the_longest_life_is_taken() -> None:
    assert enter(from_alice(life_s=DELEGATION_LIFE_S_MAX)).delegated


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="audience: a DID"):
        from_alice(audience="bob")
    with pytest.raises(UsageError, match="an ability is one of"):
        from_alice("write")
    with pytest.raises(UsageError, match="a resource is a DID"):
        make_delegation(ALICE, BOB_DID, {"kv/shop": "crud"}, NOW_MS)
    with pytest.raises(UsageError, match="1 to 24 resources"):
        make_delegation(ALICE, BOB_DID, {}, NOW_MS)
    with pytest.raises(LimitExceeded, match="has at most 8192 characters"):
        from_alice(proofs=["x" * CREDENTIAL_CHARACTERS_MAX])


def test_another_implementation_reads_and_makes_them() -> None:
    private = Ed25519PrivateKey.from_private_bytes(ALICE.seed)
    claims = jwt.decode(
        from_alice(),
        private.public_key(),
        algorithms=["EdDSA"],
        options={"verify_exp": False, "verify_aud": False, "verify_nbf": False},
    )
    assert claims["att"] == [{"with": f"{ALICE_DID}/kv/shop", "can": "crud"}]
    made = jwt.encode({**claims, "fct": {"note": "facts are for people"}}, private, "EdDSA")
    assert is_allowed(enter(made), "w", SHOP)


@given(
    st.lists(st.sampled_from(ABILITIES), min_size=2, max_size=2),
    st.lists(st.sampled_from(["", "/kv", "/kv/shop", "/kv/shop/a", "/fs"]), min_size=2, max_size=2),
    st.sampled_from(RIGHTS),
    st.sampled_from([SHOP, f"{SHOP}/a", join_scope("lattice", "fs", ALICE_DID, "d")]),
)
def test_the_end_of_a_chain_has_no_right_that_its_middle_lacks(
    abilities: list[str], paths: list[str], right: str, scope: str
) -> None:
    proof = from_alice(abilities[0], paths[0])
    middle = enter(proof)
    resource = {f"{ALICE_DID}{paths[1]}": abilities[1]}
    text = make_delegation(BOB, CAROL_DID, resource, NOW_MS, proofs=[proof])
    try:
        end = enter(text, key=CAROL)
    except BadCredential:
        return  # it is wider than its proof: see above
    assert is_allowed(middle, right, scope) or not is_allowed(end, right, scope)
