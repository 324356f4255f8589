"""Adapters by settings: which are there, what is refused at the start, where contents are."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import ActionRequest, InvokeOperation, JobRecord, OfferRecords
from datalattice.cells import from_json, to_cell, to_python
from datalattice.client import write_key
from datalattice.client.settings import (
    NodeConfig,
    VenueGridConfig,
    VenueHttpConfig,
    VenuePythonConfig,
    VenueSparkConfig,
    VenueSqlConfig,
)
from datalattice.crypto import KeyPair
from datalattice.errors import Unauthenticated, UsageError
from datalattice.lattice import did_of
from datalattice.service import OPERATOR, FolderService
from datalattice.service.access import Policy, Principal, decide
from datalattice.service.venue import JobCaller, adapters
from datalattice.service.venue.adapters import (
    HttpAdapter,
    PythonAdapter,
    SparkAdapter,
    SqlAdapter,
    configured_adapters,
    configured_storage,
    configured_venues,
)

COMPACT = {"job": "compact", "fixed": {"into_database": "d"}, "open": {"topic": {}}}
WHOLE = NodeConfig(
    venue=True,
    venue_http=VenueHttpConfig(allow=("api.example.com",)),
    venue_python=VenuePythonConfig(functions={"f": "json:loads"}),
    venue_sql=VenueSqlConfig(enabled=True),
    venue_spark=VenueSparkConfig(jobs={"latest": COMPACT}),
)


def may(caller: JobCaller, request: ActionRequest[Any]) -> None:
    """Let every caller read everything."""


def test_the_settings_say_which_adapters_there_are(tmp_path: Path) -> None:
    for package in ("duckdb", "httpcore", "pyspark"):
        pytest.importorskip(package)
    with datalattice.open(tmp_path / "data") as node:
        few = configured_adapters(NodeConfig(venue=True), tmp_path)(node, may)
        assert [one.name for one in few] == ["json", "orchestrator"]
        made = configured_adapters(WHOLE, tmp_path)(node, may)
        kinds = {type(one) for one in made[2:]}
        assert kinds == {HttpAdapter, PythonAdapter, SparkAdapter, SqlAdapter}
        for one in made:
            one.close()


@pytest.mark.parametrize(
    ("package", "part", "words"),
    [
        ("httpcore", "venue_http", "http operations need httpcore: pip install 'datalattice[venue"),
        ("duckdb", "venue_sql", "sql operations need duckdb: pip install 'datalattice[venue]'"),
        ("pyspark", "venue_spark", "spark operations need pyspark: pip install 'datalattice[spar"),
    ],
)
def test_a_package_that_is_missing_ends_the_start_and_is_named(
    package: str, part: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    # Imported already by other tests.
    monkeypatch.delitem(sys.modules, f"{adapters.__name__}.guarded", raising=False)
    monkeypatch.delattr(adapters, "guarded", raising=False)
    config = NodeConfig(venue=True, **{part: getattr(WHOLE, part)})
    with pytest.raises(UsageError) as caught:
        FolderService(tmp_path, KeyPair.generate(), config)
    assert words in str(caught.value)
    # Nothing is asked for that is not switched on.
    FolderService(tmp_path, KeyPair.generate(), NodeConfig(**{part: getattr(WHOLE, part)})).close()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"function": "absent_module:f", "isolated": False}, "functions.f: No module named"),
        ({"function": "json:absent", "isolated": False}, "has no attribute 'absent'"),
    ],
)
def test_a_function_of_this_process_is_looked_for_at_the_start(
    table: dict[str, Any], words: str, tmp_path: Path
) -> None:
    config = NodeConfig(venue_python=VenuePythonConfig(functions={"f": table}))
    with pytest.raises(UsageError, match=words):
        configured_adapters(config, tmp_path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"fixed": {"topik": "t"}}, "compact has no argument 'topik'; it has: store, "),
        ({"fixed": {"write_id": "x", "topic": "t"}}, "compact has no argument 'write_id'"),
        ({}, "jobs.latest: compact needs topic: give it in `fixed`"),
        ({"fixed": {"topic": "t"}, "open": {"topic": {}}}, "'topic' is set by the venue, or"),
    ],
)
def test_arguments_of_a_job_on_spark_are_checked_at_the_start(
    table: dict[str, Any], words: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    spark = VenueSparkConfig(jobs={"latest": {"job": "compact", **table}}, master="sc://h:1")
    with pytest.raises(UsageError) as caught:
        configured_adapters(NodeConfig(venue_spark=spark), tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["file", "memory", "drive"])
def test_contents_are_where_the_settings_say(kind: str, tmp_path: Path) -> None:
    config = NodeConfig(venue_storage=kind, venue_path="kept/here", venue_content_bytes_max=1 << 32)
    digest = sha256(b"tea").digest()
    with datalattice.open(tmp_path / "data") as node:
        storage = configured_storage(config, tmp_path / "data", node.drive)
        assert storage is not None
        assert (storage.get(digest), list(storage)) == (None, [])
        assert storage.content_bytes_max == 1 << 32
        text = f'{{"content": {{"sha256": "{digest.hex()}"}}}}'
        venue = node.venue(storage=storage)
        venue.put_content(venue.register(text), b"tea")
        assert (storage.get(digest), list(storage)) == (b"tea", [digest])
        inside = {
            "file": (tmp_path / "data" / "kept" / "here" / digest.hex()).is_file(),
            "drive": node.drive("venue").exists(f"kept/here/{digest.hex()}"),
        }
        assert [name for name, there in inside.items() if there] == [kind] * (kind != "memory")
        assert configured_storage(NodeConfig(), tmp_path, node.drive) is None
        again = configured_storage(config, tmp_path / "data", node.drive)
        assert again is not None
        assert again.exists(digest) is (kind != "memory")


def test_a_folder_for_contents_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    config = NodeConfig(venue_storage="file", venue_path="file/in")
    with (
        datalattice.open(tmp_path / "data") as node,
        pytest.raises(UsageError, match=r"venue\.path"),
    ):
        configured_storage(config, tmp_path / "data", node.drive)


def test_an_open_venue_lets_anonymous_callers_run_jobs_and_nothing_else() -> None:
    anybody = Principal(None, "anonymous")
    for policy, allowed in ((Policy(open_venue=True), True), (Policy(), False)):
        for right, scope in (
            ("r", "venue/operations"),
            ("r", "venue/jobs/anybody"),
            ("x", "venue/jobs/anybody"),
        ):
            assert decide(policy, anybody, right, scope).is_allowed is allowed
    for right, scope in (
        ("w", "venue/jobs/anybody"),
        ("x", "venue/jobs/did:key:z6Mk"),
        ("x", "venue/operations"),
        ("a", "admin"),
    ):
        with pytest.raises(Unauthenticated):
            decide(Policy(open_venue=True), anybody, right, scope).require()
    # A rule comes first: it is how one door is closed again.
    closed = Policy(open_venue=True, rules={"venue/jobs/anybody": {"x": ()}})
    assert not decide(closed, anybody, "x", "venue/jobs/anybody").is_allowed


def test_the_settings_say_which_other_venues_there_are(tmp_path: Path) -> None:
    pytest.importorskip("httpcore")
    key = KeyPair.generate()
    assert configured_venues(NodeConfig(venue=True), key) is None
    grid = VenueGridConfig({"south": "http://127.0.0.1:1"}, allow=("*.example.com",))
    venues = configured_venues(NodeConfig(venue=True, venue_grid=grid), key)
    assert venues is not None
    assert str(venues.find("south")) == "http://127.0.0.1:1"
    assert str(venues.find("https://a.example.com")) == "https://a.example.com"
    wrong = NodeConfig(venue=True, venue_grid=VenueGridConfig({"south": "nowhere"}))
    with pytest.raises(UsageError, match=r"venue\.grid\.venues: a venue is at http"):
        FolderService(tmp_path, key, wrong)
    with pytest.raises(UsageError, match=r"venue\.grid\.venues: a venue is at http"):
        FolderService(tmp_path, key, NodeConfig(venue=True)).prepare(wrong)


def test_a_job_of_a_folder_is_run_by_the_grid_adapter(tmp_path: Path) -> None:
    pytest.importorskip("httpcore")
    grid = VenueGridConfig({"south": "http://127.0.0.1:1"})
    config = NodeConfig(venue=True, venue_grid=grid)
    service = FolderService(tmp_path / "data", KeyPair.generate(), config)
    inner = {"operation": "v/ops/json/merge", "input": {"values": [{"a": 1}]}}

    def run(kind: str, given: dict[str, Any]) -> JobRecord:
        operation = f"v/ops/grid/{kind}"
        value = from_json(json.dumps(given))
        return service.call(InvokeOperation(operation=operation, input=value, wait_ms=10_000))

    try:
        assert to_python(run("run", inner).output) == {"result": {"a": 1}}
        made: Any = to_python(run("invoke", inner).output)
        found: Any = to_python(run("jobResult", {"id": made["id"]}).output)
        assert found == {"result": {"a": 1}}
        failed = run("run", {**inner, "venue": "south"})
        assert failed.status == "FAILED"
        assert "cannot be reached" in failed.error
        web = "did:web:south.example/v/ops/json/merge"
        with pytest.raises(UsageError, match=r"does not allow the host south\.example"):
            service.call(InvokeOperation(operation=web))
    finally:
        service.close()


@pytest.mark.parametrize(
    ("reading", "caller", "ended"),
    [
        ("public", None, "COMPLETE"),
        ("authenticated", None, "FAILED"),
        ("authenticated", did_of(bytes(32)), "COMPLETE"),
    ],
)
def test_a_query_reads_what_its_caller_may_read(
    reading: str, caller: str | None, ended: str, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    key = KeyPair.generate()
    write_key(tmp_path / "identity.key", key)
    config = NodeConfig(
        venue=True, venue_public=True, reading=reading, venue_sql=VenueSqlConfig(enabled=True)
    )
    folder = FolderService(tmp_path, key, config)
    service, _ = folder.at_doors((), tuple)
    folder.call(OfferRecords(topic="log", values=("tea",)))
    query = {"query": "SELECT count(*) FROM t", "tables": {"t": {"topic": "log"}}}
    request = InvokeOperation(operation="v/ops/sql/query", input=to_cell(query), wait_ms=10_000)
    who = Principal(caller, "anonymous" if caller is None else "token")
    for principal, expected in ((who, ended), (OPERATOR, "COMPLETE")):
        record = service.call(request, principal)
        assert (record.status, record.caller.endswith(":public")) == (
            expected,
            principal.how == "anonymous",
        )
    folder.close()
