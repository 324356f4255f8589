"""The service of a node's folder: rules, tokens and events on the control socket, without doors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from datalattice.actions import (
    DeletePolicy,
    GetPolicy,
    IssueToken,
    JoinFailed,
    NodeEvent,
    OfferRecords,
    PutPolicy,
    RightHolders,
    WatchAudit,
    WatchNode,
)
from datalattice.client import ControlClient, write_key
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.lattice import did_of
from datalattice.service import FolderService
from datalattice.service.access.policies import POLICY_FILE
from datalattice.testing.folders import running

DID = did_of(KeyPair(b"b" * 32).public_key)


@pytest.fixture
def service(tmp_path: Path) -> FolderService:
    key = KeyPair.generate()
    write_key(tmp_path / "identity.key", key)
    return FolderService(tmp_path, key, NodeConfig())


@pytest.fixture
def control(service: FolderService, tmp_path: Path) -> Iterator[ControlClient]:
    with running(tmp_path, service=service) as found, ControlClient(found.control) as client:
        yield client


def test_the_owner_sets_rules_and_makes_tokens(control: ControlClient) -> None:
    rule = control.call(PutPolicy(scope="values", rights=(RightHolders(right="r", who=(DID,)),)))
    assert control.call(GetPolicy(scope="values")) == rule
    control.call(DeletePolicy(scope="values"))
    made = control.call(IssueToken(subject=DID, scopes=("r values",), life_s=60))
    assert made.token.count(".") == 2


def test_the_owner_follows_events_and_decisions(
    control: ControlClient, service: FolderService
) -> None:
    failed = JoinFailed(root_id=b"i" * 16, reason="refused")
    with control.stream(WatchNode()) as events, control.stream(WatchAudit()) as decisions:
        service.events.add(NodeEvent(join_failed=failed))
        assert next(events).join_failed == failed
        control.call(OfferRecords(topic="log", values=("x",)))
        record = next(decisions).record
        assert record is not None
        assert (record.action, record.how) == ("queue.offer", "process")


def test_rules_and_limits_are_read_again_together(service: FolderService, tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).write_text("{")
    with pytest.raises(UsageError, match=POLICY_FILE):
        service.prepare(NodeConfig(admins=(DID,)))
    (tmp_path / POLICY_FILE).unlink()
    take = service.prepare(NodeConfig(admins=(DID,), reads_per_s=7))
    _, access = service.at_doors((), tuple)
    assert access.policy().admins == frozenset()
    take()
    assert access.policy().admins == {DID}
    service.close()
