"""Scopes, grants, and what a policy decides: worked cases, and laws for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from datalattice.crypto import KeyPair
from datalattice.errors import Unauthenticated, Unauthorized, UsageError
from datalattice.lattice import did_of
from datalattice.service.access import (
    ANONYMOUS,
    AUTHENTICATED,
    PUBLIC,
    RIGHTS,
    Grant,
    Policy,
    Principal,
    checked_rule,
    could_allow,
    decide,
    join_scope,
    parse_grant,
    parse_grants,
    split_scope,
)
from datalattice.service.access.policy import WHO_MAX
from datalattice.service.access.scopes import GRANTS_MAX, SCOPE_CHARACTERS_MAX, SCOPE_SEGMENTS_MAX

ALICE, BOB, ROOT = (did_of(KeyPair(letter * 32).public_key) for letter in (b"a", b"b", b"r"))
OWN = join_scope("lattice", "kv", ALICE, "shop")


def caller(did: str | None, *grants: str) -> Principal:
    return Principal(did, "token", parse_grants(list(grants)) if grants else None)


def test_a_segment_may_hold_a_slash() -> None:
    scope = join_scope("lattice", "queue", ALICE, "a/b%2F")
    assert scope.endswith("/a%2Fb%252F")
    assert split_scope(scope) == ("lattice", "queue", ALICE, "a/b%2F")


@given(st.lists(st.text(min_size=1, max_size=8), max_size=6))
def test_a_scope_has_one_text(names: list[str]) -> None:
    try:
        scope = join_scope("lattice", *names)
    except UsageError:
        assert any(not one.isprintable() for one in names)
        return
    assert split_scope(scope) == ("lattice", *names)
    assert join_scope(*split_scope(scope)) == scope


@pytest.mark.parametrize(
    "text",
    ["", "/", "lattice/", "/lattice", "lattice//kv", "other/kv", "Lattice", "lattice/%",
     "admin/%41", "lattice/%2f", "lattice/a\n", "lattice/\ud800", "lattice/a\x7f"],
)  # fmt: skip
def test_a_text_that_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="scope"):
        split_scope(text)


def test_a_scope_is_bounded() -> None:
    split_scope("values/" + "x" * (SCOPE_CHARACTERS_MAX - 7))
    with pytest.raises(UsageError, match="at most"):
        split_scope("values/" + "x" * (SCOPE_CHARACTERS_MAX - 6))
    split_scope("values" + "/x" * (SCOPE_SEGMENTS_MAX - 1))
    with pytest.raises(UsageError, match="at most"):
        split_scope("values" + "/x" * SCOPE_SEGMENTS_MAX)


def test_a_grant_is_rights_in_order_and_a_scope() -> None:
    assert parse_grant("rw lattice/kv") == Grant("rw", "lattice/kv")
    assert str(Grant("rw", "lattice/kv")) == "rw lattice/kv"
    for text in ("wr values", "rr values", "q values", "values", " values", "r", "r ", "r other"):
        with pytest.raises(UsageError):
            parse_grant(text)


def test_grants_are_bounded_and_name_each_scope_once() -> None:
    texts = [f"r values/{number}" for number in range(GRANTS_MAX)]
    assert len(parse_grants(texts)) == GRANTS_MAX
    with pytest.raises(UsageError, match="at most"):
        parse_grants([*texts, "r values"])
    with pytest.raises(UsageError, match="once"):
        parse_grants(["r values", "rw values"])


@pytest.mark.parametrize(
    ("who", "right", "scope", "allowed"),
    [
        (None, "r", "values", True),
        (None, "r", "lattice/data/x", True),
        (None, "r", "venue/assets/1", True),
        (None, "r", "venue/assetsother", False),
        (None, "r", "admin", False),
        (None, "r", "stores/0123", False),
        (None, "r", "pins", False),
        (None, "w", "values", False),
        (BOB, "w", "values", True),
        (BOB, "p", "values", True),
        (BOB, "w", "lattice", True),
        (BOB, "w", "lattice/data/x", True),
        (BOB, "r", OWN, True),
        (BOB, "w", OWN, False),  # a DID costs nothing: anybody is "authenticated"
        (ALICE, "w", OWN, True),
        (ALICE, "a", OWN, True),
        (ALICE, "w", join_scope("lattice", "kv", BOB), False),
        (ALICE, "r", join_scope("pins", ALICE), True),
        (BOB, "r", join_scope("pins", ALICE), False),
        (BOB, "x", join_scope("venue", "jobs", BOB), True),
        (BOB, "x", join_scope("venue", "jobs", ALICE), False),
        (BOB, "x", "venue", False),
        (BOB, "r", "venue/operations", True),
        (None, "r", "venue/operations", False),
        (BOB, "r", "stores/0123", False),
        (BOB, "a", "admin", False),
        (ROOT, "a", "admin", True),
        (ROOT, "w", OWN, True),
        (ROOT, "x", "stores/0123", True),
    ],
)
def test_without_rules(who: str | None, right: str, scope: str, allowed: bool) -> None:
    policy = Policy(frozenset([ROOT]))
    principal = ANONYMOUS if who is None else caller(who)
    assert decide(policy, principal, right, scope).is_allowed is allowed


def test_reading_may_need_a_credential() -> None:
    policy = Policy(reading=AUTHENTICATED)
    assert not decide(policy, ANONYMOUS, "r", "values").is_allowed
    assert decide(policy, caller(BOB), "r", "values").is_allowed


def test_who_uses_the_folder_may_do_all() -> None:
    policy = Policy(rules={"lattice": {"r": ()}})
    for how in ("process", "socket"):
        local = Principal(ALICE, how)
        assert all(decide(policy, local, right, "lattice/kv").is_allowed for right in RIGHTS)


def test_a_right_that_a_rule_does_not_name_is_as_above() -> None:
    policy = Policy(rules={"lattice": {"r": (ALICE,)}, "lattice/data": {"w": (BOB,)}})
    assert decide(policy, caller(ALICE), "r", "lattice/data").is_allowed
    assert not decide(policy, caller(BOB), "r", "lattice/data").is_allowed
    assert decide(policy, caller(BOB), "w", "lattice/data").is_allowed
    assert not decide(policy, caller(ALICE), "w", "lattice/data").is_allowed


def test_a_rule_covers_segments_and_not_beginnings_of_words() -> None:
    policy = Policy(rules={"stores/ab": {"r": (PUBLIC,)}})
    assert decide(policy, ANONYMOUS, "r", "stores/ab/log").is_allowed
    assert not decide(policy, ANONYMOUS, "r", "stores/abc").is_allowed


def test_a_rule_on_a_section_lets_nobody_write_for_an_owner() -> None:
    policy = Policy(rules={"lattice": {"w": (AUTHENTICATED,)}, "lattice/kv": {"w": (BOB,)}})
    assert not decide(policy, caller(BOB), "w", OWN).is_allowed
    assert decide(policy, caller(ALICE), "w", OWN).is_allowed


def test_a_rule_on_an_owner_does() -> None:
    policy = Policy(rules={join_scope("lattice", "kv", ALICE): {"w": (BOB,)}})
    assert decide(policy, caller(BOB), "w", OWN).is_allowed
    assert not decide(policy, caller(ALICE), "w", OWN).is_allowed  # it says who writes
    assert decide(policy, caller(ALICE), "r", OWN).is_allowed


def test_an_owner_reads_what_a_rule_above_hides() -> None:
    policy = Policy(rules={"lattice": {"r": ()}})
    assert decide(policy, caller(ALICE), "r", OWN).is_allowed
    assert not decide(policy, caller(BOB), "r", OWN).is_allowed


@pytest.mark.parametrize("above", ["venue", "venue/jobs"])
def test_a_rule_above_says_who_runs_jobs(above: str) -> None:
    alices, bobs = (join_scope("venue", "jobs", one) for one in (ALICE, BOB))
    policy = Policy(rules={above: {"x": (ALICE,)}})
    for who, right, scope, allowed in (
        (ALICE, "x", alices, True),
        (BOB, "x", bobs, False),
        (BOB, "r", bobs, True),
        (ALICE, "x", bobs, False),
    ):
        assert decide(policy, caller(who), right, scope).is_allowed is allowed, (who, right, scope)
    policy = Policy(rules={above: {"x": (ALICE,)}, bobs: {"x": (BOB,)}})
    assert decide(policy, caller(BOB), "x", bobs).is_allowed
    assert decide(Policy(rules={above: {"r": (ALICE,)}}), caller(BOB), "x", bobs).is_allowed


def test_a_credential_narrows_an_administrator_too() -> None:
    policy = Policy(frozenset([ROOT]))
    narrow = caller(ROOT, "r lattice/kv", "rw lattice/kv/x")
    assert decide(policy, narrow, "r", "lattice/kv/y").is_allowed
    assert decide(policy, narrow, "w", "lattice/kv/x/y").is_allowed
    for right, scope in (("w", "lattice/kv"), ("r", "lattice"), ("r", "values"), ("a", "admin")):
        refused = decide(policy, narrow, right, scope)
        assert (refused.is_allowed, refused.reason) == (False, "token")


def test_a_refusal_asks_an_anonymous_caller_for_a_credential() -> None:
    with pytest.raises(Unauthenticated, match="a credential is required"):
        decide(Policy(), ANONYMOUS, "w", "values").require()
    with pytest.raises(Unauthorized, match="the right a on admin"):
        decide(Policy(), caller(BOB), "a", "admin").require()
    decide(Policy(), caller(BOB), "w", "values").require()


@pytest.mark.parametrize("right", ["", "rw", "R", "z", "read"])
def test_a_right_is_one_letter(right: str) -> None:
    with pytest.raises(UsageError, match="a right is one of"):
        decide(Policy(), ANONYMOUS, right, "values")


def test_a_rule_names_dids() -> None:
    assert checked_rule({"r": [BOB, PUBLIC, BOB]}) == {"r": tuple(sorted({BOB, PUBLIC}))}
    for who in (["alice"], ["ab" * 32], [f"{ALICE}#key"], [3], "public", {"public": 1}):
        with pytest.raises(UsageError, match=r"the holders of the right r are|the right r has"):
            checked_rule({"r": who})
    with pytest.raises(UsageError, match="a right is one of"):
        checked_rule({"read": [PUBLIC]})
    many = [f"did:key:z{number}" for number in range(WHO_MAX)]
    assert len(checked_rule({"r": many})["r"]) == WHO_MAX
    with pytest.raises(UsageError, match="at most"):
        checked_rule({"r": [*many, PUBLIC]})


WORDS = st.sampled_from(["kv", "data", "x", ALICE, BOB])
SCOPES = st.lists(WORDS, max_size=4).map(lambda words: join_scope("lattice", *words))
RULES = st.dictionaries(
    SCOPES,
    st.dictionaries(
        st.sampled_from(RIGHTS),
        st.lists(st.sampled_from([ALICE, BOB, PUBLIC, AUTHENTICATED]), max_size=2).map(tuple),
    ),
    max_size=6,
)
GRANTS = st.dictionaries(
    SCOPES,
    st.sets(st.sampled_from(RIGHTS), min_size=1),
    max_size=4,
).map(lambda found: tuple(Grant("".join(sorted(one)), scope) for scope, one in found.items()))
POLICIES = st.builds(
    Policy,
    st.sampled_from([frozenset(), frozenset([BOB])]),
    st.sampled_from([PUBLIC, AUTHENTICATED]),
    RULES,
)
CALLERS = st.sampled_from([ANONYMOUS, caller(ALICE), caller(BOB), Principal(BOB, "socket")])


@given(POLICIES, CALLERS, GRANTS, st.sampled_from(RIGHTS), SCOPES)
def test_narrowing_never_adds_a_right(
    policy: Policy, who: Principal, grants: tuple[Grant, ...], right: str, scope: str
) -> None:
    whole = decide(policy, who, right, scope).is_allowed
    narrow = decide(policy, who.narrowed(grants), right, scope).is_allowed
    assert narrow <= whole


@given(POLICIES, CALLERS, GRANTS, st.sampled_from(RIGHTS), SCOPES)
def test_a_credential_passes_only_what_its_longest_grant_has(
    policy: Policy, who: Principal, grants: tuple[Grant, ...], right: str, scope: str
) -> None:
    if not decide(policy, who.narrowed(grants), right, scope).is_allowed:
        return
    above = [one for one in grants if f"{scope}/".startswith(f"{one.scope}/")]
    assert right in max(above, key=lambda one: len(one.scope)).rights


@given(POLICIES, CALLERS, st.sampled_from(RIGHTS), SCOPES, st.booleans())
def test_the_longest_rule_wins(
    policy: Policy, who: Principal, right: str, scope: str, opens: bool
) -> None:
    """A rule on the scope itself decides, whatever those above it say; administrators apart."""
    rules = {**policy.rules, scope: {right: (PUBLIC,) if opens else ()}}
    decided = decide(Policy(policy.admins, policy.reading, rules), who, right, scope)
    is_above_rules = who.how == "socket" or who.did in policy.admins
    assert decided.is_allowed is (opens or is_above_rules)


@given(POLICIES, CALLERS, st.sampled_from(RIGHTS), SCOPES, RULES)
def test_a_rule_elsewhere_changes_nothing(
    policy: Policy, who: Principal, right: str, scope: str, others: dict[str, object]
) -> None:
    aside = {f"stores/{one}": rule for one, rule in others.items()}
    wider = Policy(policy.admins, policy.reading, {**policy.rules, **aside})  # type: ignore[dict-item]
    assert decide(wider, who, right, scope) == decide(policy, who, right, scope)


@given(POLICIES, st.sampled_from(RIGHTS), SCOPES)
def test_an_anonymous_caller_has_no_right_that_others_lack(
    policy: Policy, right: str, scope: str
) -> None:
    stranger = caller("did:key:zStranger")
    anonymous = decide(policy, ANONYMOUS, right, scope).is_allowed
    assert anonymous <= decide(policy, stranger, right, scope).is_allowed


@given(POLICIES, CALLERS, st.none() | GRANTS, st.sampled_from(RIGHTS), SCOPES)
def test_a_right_on_a_scope_is_possible_on_all_above_it(
    policy: Policy, who: Principal, grants: tuple[Grant, ...] | None, right: str, scope: str
) -> None:
    who = who if grants is None else who.narrowed(grants)
    if decide(policy, who, right, scope).is_allowed:
        segments = split_scope(scope)
        for count in range(1, len(segments) + 1):
            assert could_allow(policy, who, right, join_scope(*segments[:count]))


def test_what_cannot_be_allowed_below_a_scope_is_known() -> None:
    policy = Policy(frozenset([ROOT]), PUBLIC, {OWN: {"w": (PUBLIC,)}, "stores/x": {"x": (BOB,)}})
    assert could_allow(policy, ANONYMOUS, "w", "lattice/kv")
    assert not could_allow(policy, ANONYMOUS, "w", "lattice/queue")
    assert not could_allow(policy, ANONYMOUS, "w", "lattice/k")  # no beginnings of words
    assert not could_allow(policy, ANONYMOUS, "x", "stores")
    assert could_allow(policy, caller(BOB), "x", "stores")
    assert not could_allow(policy, caller(ALICE), "x", "stores")
    assert could_allow(policy, caller(ALICE), "w", "lattice/fs")  # of its own
    assert not could_allow(policy, caller(ROOT, "r lattice"), "w", "lattice/fs")
    assert could_allow(policy, caller(ROOT, "w lattice/fs/x"), "w", "lattice/fs")
