"""Requests with an id: whose they are, where their results are kept, and who sees those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import (
    ActionRequest,
    CreateStore,
    GetPath,
    GetRoot,
    GetValue,
    KeyOperation,
    KeyWrite,
    OfferRecords,
    WriteKeys,
)
from datalattice.cells import Index, Keyword
from datalattice.client import Node
from datalattice.errors import NoSuchPath, StoreFull, Unauthorized, UsageError
from datalattice.lattice import LOCAL_KEY
from datalattice.service import OPERATOR, Service
from datalattice.service.access import (
    ANONYMOUS,
    AccessControl,
    Audit,
    Policies,
    Policy,
    Principal,
    RateLimits,
)
from datalattice.service.requests import RequestLimits
from datalattice.testing.callers import NODE, NOW_MS, authenticator
from datalattice.testing.clocks import StoppedClock

OFFER = OfferRecords(topic="log", values=("a",))
ADMIN = Principal("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", "token")
OTHER = Principal("did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw", "token")


@pytest.fixture
def node() -> Iterator[Node]:
    with datalattice.open(":memory:") as made:
        yield made


def with_access(node: Node, folder: Path, *admins: Principal) -> tuple[Service, Policies]:
    dids = frozenset(one.did for one in admins if one.did)
    policies = Policies(folder, Policy(dids))
    clock = StoppedClock(NOW_MS)
    access = AccessControl(authenticator(), policies, RateLimits(), Audit(), clock, NODE)
    return Service(node, access=access), policies


def test_results_are_kept_by_caller(node: Node, tmp_path: Path) -> None:
    service, _ = with_access(node, tmp_path, ADMIN, OTHER)
    for count, caller in enumerate((OPERATOR, ADMIN, OTHER), 1):
        for _ in range(2):
            service.call(OFFER, caller, request_id="one")
        assert len(node.queue("log")) == count
    # A program in the process and one at a socket are both the owner of the folder.
    service.call(OFFER, Principal(None, "socket"), request_id="one")
    service.call(OFFER, Principal(OTHER.did, "socket"), request_id="one")
    service.call(OFFER, Principal(OTHER.did, "signature"), request_id="one")
    assert len(node.queue("log")) == 3


def test_a_result_is_for_who_may_do_it_now(node: Node, tmp_path: Path) -> None:
    service, policies = with_access(node, tmp_path)
    scope = f"lattice/queue/{node.owner.did}/log"
    policies.put(scope, {"w": [str(ADMIN.did)]})
    service.call(OFFER, ADMIN, request_id="one")
    policies.put(scope, {"w": []})
    with pytest.raises(Unauthorized):
        service.call(OFFER, ADMIN, request_id="one")


@pytest.mark.parametrize("request_", [OFFER, CreateStore(store_type="core:kvstore", name="s")])
def test_a_result_is_forgotten_after_its_time(node: Node, request_: ActionRequest[Any]) -> None:
    clock = StoppedClock(1_000)
    service = Service(node, clock=clock, limits=RequestLimits(kept_ms=50))
    first = service.call(request_, OPERATOR, request_id="one")
    clock.now += 49
    assert service.call(request_, OPERATOR, request_id="one") == first
    clock.now += 1
    assert service.call(request_, OPERATOR, request_id="one") != first


def test_results_survive_the_end_of_the_program(tmp_path: Path) -> None:
    requests: tuple[ActionRequest[Any], ...] = (
        OFFER,
        WriteKeys(database="d", writes=(KeyWrite(key="n", operation=KeyOperation.INCR),)),
        CreateStore(store_type="core:kvstore", name="s"),
    )
    found = []
    for _ in range(2):
        with datalattice.open(tmp_path) as node:
            service = Service(node)
            found.append([service.call(one, OPERATOR, request_id=str(one)[:9]) for one in requests])
            assert len(node.queue("log")) == len(node.stores()) == 1
    assert found[0] == found[1]


def test_an_effect_and_its_result_are_one_root(node: Node) -> None:
    service = Service(node)
    service.call(OFFER, OPERATOR, request_id="one")
    count = len(node.history())
    service.call(OFFER, OPERATOR, request_id="two")
    assert len(node.history()) == count + 1
    service.call(OFFER, OPERATOR, request_id="two")
    assert len(node.history()) == count + 1


def test_an_effect_that_cannot_be_stored_keeps_no_result(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(node)
    store = node._data.store()
    assert store is not None

    def full(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", full)
        with pytest.raises(StoreFull):
            service.call(OFFER, OPERATOR, request_id="one")
    service.call(OFFER, OPERATOR, request_id="one")
    assert list(node.queue("log")) == ["a"]


def test_others_do_not_see_what_is_kept(node: Node) -> None:
    service = Service(node)
    service.call(OFFER, OPERATOR, request_id="one")
    root = node.cursor().get()
    assert isinstance(root, Index)
    assert LOCAL_KEY in root
    hash = service.call(GetRoot(), ANONYMOUS).hash
    hidden: list[ActionRequest[Any]] = [GetPath(path="local"), GetValue(hash=hash, path="local")]
    for request in hidden:
        assert service.call(request, OPERATOR).value == root[LOCAL_KEY]
        with pytest.raises((NoSuchPath, UsageError)):
            service.call(request, ANONYMOUS)
    around: list[ActionRequest[Any]] = [GetPath(), GetPath(at="HEAD"), GetValue(hash=hash)]
    for shown in around:
        value = service.call(shown, ANONYMOUS).value
        assert isinstance(value, Index)
        assert Keyword("queue") in value
        assert LOCAL_KEY not in value
