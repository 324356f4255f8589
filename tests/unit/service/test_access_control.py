"""Access as a daemon uses it: a service, its policy, limits and records together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import ActionRequest, ListTopics, OfferRecords
from datalattice.engine import MemoryEngine
from datalattice.errors import RateLimited, Unauthenticated, Unauthorized, UsageError
from datalattice.service import Service
from datalattice.service.access import (
    PUBLIC,
    SPENT_TABLE,
    AccessControl,
    Allowance,
    Audit,
    Authenticator,
    BadCredential,
    Credentials,
    Origin,
    Policies,
    RateLimits,
    SpentIds,
    join_scope,
)
from datalattice.testing.callers import (
    ALICE,
    ALICE_DID,
    BOB,
    NODE_DID,
    NOW_MS,
    URL,
    bearer,
    token_of,
)

OFFER = OfferRecords(topic="log", values=("one",))


@dataclass
class SetClock:
    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Daemon:
    access: AccessControl
    service: Service
    policies: Policies
    audit: Audit
    clock: SetClock

    def call(self, request: ActionRequest[Any], credentials: Credentials) -> object:
        return self.service.call(request, self.access.enter(credentials))

    def last(self) -> tuple[str, str, bool, str, str | None]:
        record = self.audit.ring.after(0)[1][-1]
        return (record.door, record.action, record.is_allowed, record.reason, record.code)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    clock, audit, policies = SetClock(), Audit(), Policies(tmp_path)
    limits = RateLimits({"effects": Allowance(1, 3), "reads": Allowance(1, 2)})
    tell = Authenticator(NODE_DID, [URL], SpentIds(MemoryEngine([SPENT_TABLE])), limits)
    access = AccessControl(tell, policies, limits, audit, clock)
    with datalattice.open(tmp_path / "data", key=ALICE) as node:
        service = Service(node, access=access)
        yield Daemon(access, service, policies, audit, clock)


def at(credentials: Credentials, address: str = "192.0.2.1") -> Credentials:
    return replace(credentials, origin=Origin("rest", 4, address))


def test_an_owner_writes_and_another_caller_does_not(daemon: Daemon) -> None:
    daemon.call(OFFER, at(bearer(token_of())))
    assert daemon.last() == ("rest", "queue.offer", True, "owner", None)
    with pytest.raises(Unauthorized):
        daemon.call(OFFER, at(bearer(token_of(BOB))))
    assert daemon.last() == ("rest", "queue.offer", False, "policy", "unauthorized")
    with pytest.raises(Unauthenticated, match="required"):
        daemon.call(OFFER, at(Credentials()))
    assert daemon.last() == ("rest", "queue.offer", False, "policy", "unauthenticated")


def test_a_token_that_is_narrower_is_refused(daemon: Daemon) -> None:
    token = token_of(scopes=[f"r {join_scope('lattice', 'queue', ALICE_DID)}"])
    daemon.call(ListTopics(), at(bearer(token)))
    with pytest.raises(Unauthorized):
        daemon.call(OFFER, at(bearer(token)))
    assert daemon.last() == ("rest", "queue.offer", False, "token", "unauthorized")


def test_a_new_rule_counts_from_the_next_call_on(daemon: Daemon) -> None:
    asked = at(bearer(token_of(BOB)))
    with pytest.raises(Unauthorized):
        daemon.call(OFFER, asked)
    daemon.policies.put(join_scope("lattice", "queue", ALICE_DID, "log"), {"w": [PUBLIC]})
    daemon.call(OFFER, asked)
    daemon.call(OFFER, at(Credentials()))
    assert daemon.last() == ("rest", "queue.offer", True, "rule", None)


def test_reads_that_are_allowed_are_not_recorded(daemon: Daemon) -> None:
    daemon.call(ListTopics(), at(Credentials()))
    assert daemon.audit.ring.after(0) == (0, [])


def test_a_bad_credential_is_recorded_with_its_reason(daemon: Daemon) -> None:
    with pytest.raises(BadCredential):
        daemon.call(ListTopics(), at(bearer(token_of(audience=URL + "0"))))
    assert daemon.last() == ("rest", "authenticate", False, "audience", "unauthenticated")
    with pytest.raises(UsageError):
        daemon.call(ListTopics(), at(Credentials(url=f"{URL}/?access_token=canary")))
    assert daemon.last() == ("rest", "authenticate", False, "usage", "usage")
    assert "canary" not in repr(daemon.audit.ring.after(0))


def test_calls_are_counted_by_caller_or_address(daemon: Daemon) -> None:
    for _ in range(2):
        daemon.call(ListTopics(), at(Credentials()))
    with pytest.raises(RateLimited, match="too many reads"):
        daemon.call(ListTopics(), at(Credentials()))
    daemon.call(ListTopics(), at(Credentials(), "192.0.2.2"))
    daemon.call(ListTopics(), at(bearer(token_of())))
    for _ in range(3):
        daemon.call(OFFER, at(bearer(token_of())))
    count, _ = daemon.audit.ring.after(0)
    with pytest.raises(RateLimited, match="too many effects"):
        daemon.call(OFFER, at(bearer(token_of())))
    assert daemon.audit.ring.after(0)[0] == count
    daemon.clock.ms += 1_000
    daemon.call(OFFER, at(bearer(token_of())))


def test_a_credential_that_ended_is_refused_at_the_next_call(daemon: Daemon) -> None:
    caller = daemon.access.enter(at(bearer(token_of(life_s=10))))
    daemon.clock.ms += 69_999
    daemon.service.call(ListTopics(), caller)
    daemon.clock.ms += 1
    with pytest.raises(BadCredential):
        daemon.service.call(ListTopics(), caller)
    assert daemon.last() == ("rest", "queue.topics", False, "expired", "unauthenticated")


def test_a_local_socket_may_do_all_and_is_recorded(daemon: Daemon) -> None:
    for _ in range(5):
        daemon.call(OFFER, Credentials(local="socket", origin=Origin("control", 1)))
    assert daemon.last() == ("control", "queue.offer", True, "local", None)
