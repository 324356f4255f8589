"""Rules, tokens and records as actions: who may set them, and what a token never widens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import (
    ActionRequest,
    DeletePolicy,
    GetPolicy,
    IssuedToken,
    IssueToken,
    OfferRecords,
    PutPolicy,
    RevokeToken,
    RightHolders,
    WatchAudit,
    WatchNode,
)
from datalattice.cells import Vector
from datalattice.client.credentials import CLOCK_SKEW_S, split_token
from datalattice.crypto import KeyPair
from datalattice.errors import (
    Conflict,
    NoSigningKey,
    PeerUnavailable,
    StaleToken,
    Unauthenticated,
    Unauthorized,
    UnsupportedOperation,
    UsageError,
)
from datalattice.lattice import did_of
from datalattice.service import OPERATOR, Service
from datalattice.service.access import (
    RING_RECORDS,
    AccessControl,
    Audit,
    Policies,
    Policy,
    Principal,
    RateLimits,
    audit_line,
    join_scope,
)
from datalattice.service.resuming import stream_name, write_token
from datalattice.testing.callers import (
    ALICE,
    ALICE_DID,
    BOB,
    BOB_DID,
    NODE,
    NODE_DID,
    NOW_MS,
    authenticator,
    bearer,
    token_of,
)
from datalattice.testing.clocks import StoppedClock

OFFER = OfferRecords(topic="log", values=("one",))
QUEUES = join_scope("lattice", "queue", ALICE_DID)
PUBLIC = (RightHolders(right="r", who=("public",)),)


@dataclass
class Served:
    """A folder of Alice's with an administrator, Bob."""

    access: AccessControl
    service: Service
    clock: StoppedClock

    def call(self, request: ActionRequest[Any], token: str) -> Any:
        return self.service.call(request, self.access.enter(bearer(token)))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    clock = StoppedClock(NOW_MS)
    policies = Policies(tmp_path, Policy(frozenset([BOB_DID])))
    access = AccessControl(authenticator(), policies, RateLimits(), Audit(), clock, NODE)
    with datalattice.open(tmp_path / "data", key=ALICE) as node:
        yield Served(access, Service(node, access=access), clock)


# --- rules ----------------------------------------------------------------------------------------


def test_an_owner_of_the_folder_sets_the_rules_of_its_data_alone(served: Served) -> None:
    token = token_of(ALICE)
    made = served.call(PutPolicy(scope=QUEUES, rights=PUBLIC, if_match=""), token)
    assert served.call(GetPolicy(scope=QUEUES), token) == made
    for scope in ("lattice/queue", "admin", "values", join_scope("lattice", "queue", BOB_DID)):
        with pytest.raises(Unauthorized):
            served.call(PutPolicy(scope=scope, rights=PUBLIC), token)
        with pytest.raises(Unauthorized):
            served.call(GetPolicy(scope=scope), token)
    with pytest.raises(Conflict):
        served.call(DeletePolicy(scope=QUEUES, if_match=""), token)
    served.call(DeletePolicy(scope=QUEUES, if_match=made.version), token)
    assert served.call(GetPolicy(scope=QUEUES), token).version == ""


def test_a_did_that_anybody_can_make_fills_no_table_of_rules(served: Served) -> None:
    carol = KeyPair(b"c" * 32)
    scope = join_scope("lattice", "kv", did_of(carol.public_key))
    with pytest.raises(Unauthorized, match="only an owner whose key this folder holds"):
        served.call(PutPolicy(scope=scope, rights=PUBLIC), token_of(carol))
    served.call(PutPolicy(scope=scope, rights=PUBLIC), token_of(BOB))  # an administrator may


def test_a_rule_shows_what_it_has_from_above(served: Served) -> None:
    admin = token_of(BOB)
    served.call(
        PutPolicy(scope="lattice", rights=(*PUBLIC, RightHolders(right="w", who=()))), admin
    )
    served.call(PutPolicy(scope="lattice/kv", rights=PUBLIC), admin)
    found = served.call(GetPolicy(scope="lattice/kv"), admin)
    assert [(one.right, one.scope) for one in found.rights] == [("r", "lattice/kv")]
    assert [(one.right, one.who, one.scope) for one in found.inherited] == [("w", (), "lattice")]


@pytest.mark.parametrize(
    "rights",
    [
        (),
        (*PUBLIC, *PUBLIC),
        (RightHolders(right="q", who=("public",)),),
        (RightHolders(right="r", who=("bob",)),),
        (RightHolders(right="r", who=("public",), scope="values"),),
        (RightHolders(right="r", who=("public",) * 10_000),),
    ],
)
def test_rules_that_are_none_are_refused(rights: Any, served: Served) -> None:
    with pytest.raises(UsageError):
        served.call(PutPolicy(scope="stores", rights=rights), token_of(BOB))
    assert served.access.policy().rules == {}


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_speaks_for_its_subject_within_its_scopes(served: Served) -> None:
    made = served.call(IssueToken(subject=ALICE_DID, scopes=(f"w {QUEUES}",)), token_of(BOB))
    served.call(OFFER, made.token)
    with pytest.raises(Unauthorized):
        served.call(GetPolicy(scope=QUEUES), made.token)
    served.call(RevokeToken(token_id=made.token_id), token_of(BOB))
    with pytest.raises(Unauthenticated):
        served.call(OFFER, made.token)


def test_a_token_of_a_caller_is_revoked_by_its_issuer_and_id(served: Served) -> None:
    token = token_of(ALICE)
    served.call(OFFER, token)
    token_id = split_token(token).claims["jti"]
    served.call(RevokeToken(token_id=token_id), token_of(BOB))  # one of this node: not this one
    served.call(OFFER, token)
    served.call(RevokeToken(token_id=token_id, issuer=ALICE_DID), token_of(BOB))
    with pytest.raises(Unauthenticated):
        served.call(OFFER, token)


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (("a admin",), ()),
        (("a admin",), ("r lattice",)),
        (("r lattice", "a admin"), ("rw lattice",)),
        (("rw lattice/kv", "a admin"), ("r lattice",)),
        (("rw lattice", "r lattice/kv", "a admin"), ("w lattice",)),
        (("rw lattice", "r lattice/kv", "a admin"), ("w lattice/kv/x",)),
        (("a admin",), ("x admin",)),
    ],
)
def test_a_narrow_credential_makes_no_wider_token(
    held: tuple[str, ...], wanted: tuple[str, ...], served: Served
) -> None:
    narrow = token_of(BOB, scopes=list(held))
    with pytest.raises(Unauthorized):
        served.call(IssueToken(subject=BOB_DID, scopes=wanted), narrow)


def test_a_narrow_credential_makes_one_as_narrow(served: Served) -> None:
    narrow = token_of(BOB, scopes=["rw lattice", "r lattice/kv", "a admin"])
    made = served.call(
        IssueToken(subject=BOB_DID, scopes=("r lattice", "w lattice/queue", "a admin")), narrow
    )
    assert served.access.enter(bearer(made.token)).is_granted("w", "lattice/queue")


def test_a_token_ends_with_the_credential_that_made_it(served: Served) -> None:
    # Made by one that ends in 60 s.
    made = served.call(IssueToken(subject=BOB_DID, life_s=3_600), token_of(BOB, life_s=60))
    assert made.ends_ms == NOW_MS + 60_000
    served.clock.now += (60 + CLOCK_SKEW_S) * 1_000
    with pytest.raises(Unauthenticated):
        served.call(OFFER, made.token)
    free = served.service.call(IssueToken(subject=BOB_DID, life_s=3_600), OPERATOR)
    assert free.ends_ms == served.clock.now + 3_600_000


@pytest.mark.parametrize(
    "request_",
    [
        IssueToken(subject=""),
        IssueToken(subject="alice"),
        IssueToken(subject=ALICE_DID, life_s=0),
        IssueToken(subject=ALICE_DID, life_s=3_601),
        IssueToken(subject=ALICE_DID, scopes=("rw",)),
        IssueToken(subject=ALICE_DID, scopes=("r lattice",) * 65),
        RevokeToken(token_id="x" * 10_000),
        RevokeToken(token_id="x", issuer="me"),
    ],
)
def test_requests_that_make_no_token_are_refused(request_: Any, served: Served) -> None:
    with pytest.raises(UsageError):
        served.call(request_, token_of(BOB))


def test_only_administrators_have_tokens_and_records(served: Served) -> None:
    for request in (IssueToken(subject=ALICE_DID), RevokeToken(token_id="x")):
        with pytest.raises(Unauthorized):
            served.call(request, token_of(ALICE))
    with pytest.raises(Unauthorized):
        served.service.stream(WatchAudit(), served.access.enter(bearer(token_of(ALICE))))


def test_a_token_is_shown_once_and_nowhere_else(served: Served) -> None:
    made = served.call(IssueToken(subject=ALICE_DID), token_of(BOB))
    assert isinstance(made, IssuedToken)
    assert made.token not in repr(made)
    lines = [audit_line(record) for record in served.access.audit.ring.after(0)[1]]
    assert lines
    assert not any(made.token in line for line in lines)


def test_a_node_without_a_key_signs_no_token(tmp_path: Path) -> None:
    access = AccessControl(
        authenticator(), Policies(tmp_path), RateLimits(), Audit(), StoppedClock(NOW_MS)
    )
    with pytest.raises(NoSigningKey):
        access.issue(NODE_DID, [], 60, issued_for=OPERATOR)


def test_a_service_without_callers_has_no_rules() -> None:
    with (
        datalattice.open(":memory:") as node,
        pytest.raises(UnsupportedOperation, match="lattice node start"),
    ):
        Service(node).call(GetPolicy(scope="values"), Principal(None, "process"))


def test_a_service_apart_from_a_daemon_has_no_events() -> None:
    with (
        datalattice.open(":memory:") as node,
        pytest.raises(PeerUnavailable, match="lattice node start"),
    ):
        Service(node).stream(WatchNode(), OPERATOR)


# --- records --------------------------------------------------------------------------------------


def test_records_come_as_they_are_made_and_a_slow_reader_is_told(served: Served) -> None:
    admin = served.access.enter(bearer(token_of(BOB)))
    with served.service.stream(WatchAudit(), admin) as stream:
        served.call(OFFER, token_of(ALICE))
        (first,) = stream.take()
        assert first.record is not None
        assert (first.record.action, first.record.did) == ("queue.offer", ALICE_DID)
        record = served.access.audit.ring.after(0)[1][-1]
        for _ in range(RING_RECORDS + 3):
            served.access.audit.add(record)
        (last,) = stream.take()
        assert last.lagged is not None
        assert last.lagged.count == 3
        assert stream.closed


def test_a_reader_of_records_goes_on_behind_the_last_one(served: Served) -> None:
    admin = served.access.enter(bearer(token_of(BOB)))
    with served.service.stream(WatchAudit(), admin) as stream:
        begun = stream.resume
        served.call(OFFER, token_of(ALICE))
        served.call(OFFER, token_of(ALICE))
        first, second = stream.take()
    assert stream.resume == second.resume != first.resume != begun
    for token, lacking in ((begun, 2), (first.resume, 1), (second.resume, 0)):
        with served.service.stream(WatchAudit(resume=token), admin) as again:
            # It was asked for itself, which is recorded, too.
            actions = [item.record.action for item in again.take() if item.record is not None]
        assert actions[:lacking] == ["queue.offer"] * lacking
        assert set(actions[lacking:]) == {"node.audit"}


@pytest.mark.parametrize("number", [-1, 10**6, "1"])
def test_a_token_of_no_position_or_of_an_earlier_start_is_refused(
    number: Any, served: Served
) -> None:
    admin = served.access.enter(bearer(token_of(BOB)))
    name, ring = stream_name("node.audit"), served.access.audit.ring
    for position, error in (
        (Vector.of([ring.id, number]), UsageError),
        (Vector.of([ring.id]), UsageError),
        (None, UsageError),
        (Vector.of([b"earlier.", 0]), StaleToken),
    ):
        with pytest.raises(error):
            served.service.stream(WatchAudit(resume=write_token(name, position)), admin)
