"""The service of a node's folder: rules, tokens and events on the control socket, without doors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import (
    DeletePolicy,
    GetJob,
    GetPolicy,
    InvokeOperation,
    IssueToken,
    JoinFailed,
    ListJobIds,
    ListOperations,
    NodeEvent,
    OfferRecords,
    PutPolicy,
    ReadRecords,
    RightHolders,
    ScheduleOperation,
    WatchAudit,
    WatchNode,
)
from datalattice.cells import Map, from_json
from datalattice.client import ControlClient, Folder, OpenFolder, write_key
from datalattice.client.settings import NodeConfig, VenueGridConfig, VenueSqlConfig
from datalattice.crypto import KeyPair
from datalattice.errors import LimitExceeded, NoSuchPath, UnsupportedOperation, UsageError
from datalattice.lattice import did_of
from datalattice.service import OPERATOR, FolderService
from datalattice.service.access import ANONYMOUS, Principal, parse_grants
from datalattice.service.access.policies import POLICY_FILE
from datalattice.testing.folders import running_node
from datalattice.testing.ports import held_port

DID = did_of(KeyPair(b"b" * 32).public_key)


@pytest.fixture
def service(tmp_path: Path) -> FolderService:
    key = KeyPair.generate()
    write_key(tmp_path / "identity.key", key)
    return FolderService(tmp_path, key, NodeConfig())


@pytest.fixture
def control(service: FolderService, tmp_path: Path) -> Iterator[ControlClient]:
    with running_node(tmp_path, service=service) as found, ControlClient(found.control) as client:
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


def test_a_folder_with_a_venue_runs_jobs_that_are_there_after_a_restart(tmp_path: Path) -> None:
    key = KeyPair.generate()
    write_key(tmp_path / "identity.key", key)
    call = InvokeOperation(
        operation="v/ops/json/merge",
        input=Map.of({"values": [{"a": 1}, {"b": 2}]}),
        wait_ms=60_000,
    )
    service = FolderService(tmp_path, key, NodeConfig(venue=True))
    done = service.call(call, request_id="once")
    service.close()
    assert (done.status, done.caller) == ("COMPLETE", did_of(key.public_key))
    assert done.output == Map.of({"result": Map.of({"a": 1, "b": 2})})
    again = FolderService(tmp_path, key, NodeConfig(venue=True))
    assert again.call(call, request_id="once") == again.call(GetJob(id=done.id)) == done
    assert again.call(ListJobIds()).jobs == (done.id,)
    assert again.call(GetJob(id=done.id, wait_ms=120_000)) == done
    with pytest.raises(LimitExceeded, match="wait_ms: at most 120000"):
        again.call(GetJob(id=done.id, wait_ms=120_001))
    again.close()


def _narrowed(did: str, *grants: str) -> Principal:
    return Principal(did, "token").narrowed(parse_grants(list(grants)))


@pytest.mark.parametrize("way", ["itself", "in a step", "through the grid", "later"])
def test_a_narrowed_credential_reads_no_more_through_a_job(tmp_path: Path, way: str) -> None:
    pytest.importorskip("duckdb")
    key = KeyPair.generate()
    write_key(tmp_path / "identity.key", key)
    with datalattice.open(tmp_path) as node:
        for topic in ("open", "closed"):
            node.topic(topic, partitions=1).offer("record")
    did = did_of(key.public_key)
    runs = "rwx venue/jobs"
    config = NodeConfig(venue=True, venue_sql=VenueSqlConfig(enabled=True))
    with closing(FolderService(tmp_path, key, config)) as service:
        asked, _ = service.at_doors((), tuple)

        def status_of(topic: str, who: Principal) -> tuple[str, str]:
            query = {"query": "SELECT * FROM t", "tables": {"t": {"topic": topic}}}
            operation = "v/ops/sql/query"
            input: dict[str, Any] = query
            if way == "in a step":
                input = {"steps": [{"op": operation, "input": ["const", query]}], "result": [0]}
                operation = "v/ops/orchestrator/steps"
            if way == "through the grid":
                input = {"operation": operation, "input": query}
                operation = "v/ops/grid/run"
            given = from_json(json.dumps(input))
            if way == "later":
                call = asked.call(ScheduleOperation(operation, given, after_ms=0), who)
                done = None
                while done is None:  # its time has come: it is made a job at once
                    with suppress(NoSuchPath):
                        done = asked.call(GetJob(id=call.job, wait_ms=60_000), who)
            else:
                done = asked.call(InvokeOperation(operation, given, wait_ms=60_000), who)
            return done.status, done.error

        who = _narrowed(did, runs, f"r lattice/queue/{did}/open")
        assert status_of("open", who)[0] == "COMPLETE"
        status, error = status_of("closed", who)
        assert status == "FAILED"
        assert "token" in error or "grant" in error, error
        assert status_of("closed", Principal(did, "token"))[0] == "COMPLETE"


def test_a_rule_says_for_whom_other_venues_are_called(tmp_path: Path, ending: ExitStack) -> None:
    key, stranger = KeyPair.generate(), Principal(DID, "token")
    url = f"http://127.0.0.1:{ending.enter_context(held_port())}"  # nobody listens there
    config = NodeConfig(venue=True, venue_grid=VenueGridConfig({"south": url}))
    write_key(tmp_path / "identity.key", key)
    with closing(FolderService(tmp_path, key, config)) as service:
        asked, access = service.at_doors((), tuple)

        def error_of(who: Principal, operation: str, input: Map) -> str:
            done = asked.call(InvokeOperation(operation, input, wait_ms=60_000), who)
            assert done.status == "FAILED"
            return done.error

        def refused(who: Principal) -> bool:
            run = Map.of([("operation", "v/ops/json/merge"), ("venue", "south")])
            inside = "the right x on venue/grid", "a credential is required"
            error = error_of(who, "v/ops/grid/run", run)
            assert "cannot be reached" in error or any(one in error for one in inside), error
            return "cannot be reached" not in error

        access.policies.put("venue/jobs/anybody", {"r": ["public"], "x": ["public"]})
        assert not refused(stranger)
        assert refused(ANONYMOUS)
        assert refused(_narrowed(DID, "rwx venue/jobs"))
        access.policies.put("venue/grid", {"x": [did_of(key.public_key)]})
        assert refused(stranger)
        assert not refused(OPERATOR)
        # An asset is fetched from another venue only for those who may register it here.
        access.policies.put("venue/assets", {"w": [DID]})
        pin = Map.of([("asset", f"did:web:localhost/a/{'00' * 32}")])
        assert "the right x on venue/grid" in error_of(stranger, "v/ops/asset/pin", pin)


def test_a_folder_without_a_venue_says_so(control: ControlClient) -> None:
    with pytest.raises(UnsupportedOperation, match=r"venue\.enabled"):
        control.call(ListOperations())


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


def test_it_keeps_no_more_cells_than_the_settings_say(tmp_path: Path) -> None:
    with datalattice.open(tmp_path) as node:
        for number in range(20):
            node.queue("log").offer(f"{number:01000}")
    config = NodeConfig(cache_bytes=20_000)
    with closing(FolderService(tmp_path, KeyPair.generate(), config)) as service:
        assert len(service.call(ReadRecords(topic="log")).records) == 20
        with closing(OpenFolder.at(Folder(tmp_path))) as data:  # the one that it has open
            store = data.store()
            assert store is not None
            assert 0 < store._cache.charged_bytes <= config.cache_bytes
