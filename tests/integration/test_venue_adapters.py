"""A daemon runs what its settings offer: functions, SQL, HTTP, and jobs on Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import (
    GetJob,
    InvokeOperation,
    JobRecord,
    ListOperations,
    OfferRecords,
    ReloadSettings,
)
from datalattice.cells import to_cell, to_json
from datalattice.client import ControlClient, connect
from datalattice.testing.processes import killing

pytestmark = pytest.mark.processes

WAIT_S = 120

FUNCTIONS = """
import os

def double(given):
    return given["n"] * 2

def who(given):
    return {"pid": os.getpid(), "home": os.environ.get("HOME")}

def greedy(given):
    return len(bytearray(given["bytes"]))
"""


@contextmanager
def daemon(folder: Path, settings: str) -> Iterator[ControlClient]:
    """Run `lattice venue start` on a folder, and give a client of its owner."""
    folder.mkdir(exist_ok=True)
    (folder / "node.toml").write_text(settings)
    command = [
        sys.executable,
        "-m",
        "datalattice.cli",
        "venue",
        "start",
        "--port",
        "0",
        "--attached",
    ]
    process = subprocess.Popen(
        [*command, "--dir", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with killing(process):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline(), "it did not start"
        client = connect(folder)
        assert client is not None
        with client:
            yield client
        process.stdin.close()  # it ends with its input
        process.wait(WAIT_S)


def run(client: ControlClient, operation: str, given: Any) -> JobRecord:
    """Run an operation to its end."""
    value = to_cell(given)
    job = client.call(InvokeOperation(operation=operation, input=value, wait_ms=10_000))
    while job.status in {"PENDING", "STARTED"}:
        job = client.call(GetJob(id=job.id, wait_ms=10_000))
    return job


@contextmanager
def web_server() -> Iterator[str]:
    """Run a server on loopback that says which path it was asked for; give its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"this is {self.path}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_daemon_runs_functions_sql_and_http(tmp_path: Path) -> None:
    for package in ("duckdb", "httpcore", "starlette"):
        pytest.importorskip(package)
    folder = tmp_path / "data"
    (folder / "functions").mkdir(parents=True)
    (folder / "functions" / "mine.py").write_text(FUNCTIONS)
    settings = """
        [venue]
        public = false

        [venue.http]
        allow = ["127.0.0.1"]
        private = true
        answer_bytes = 20

        [venue.python]
        path = ["functions"]
        memory_bytes = 300_000_000

        [venue.python.functions]
        double = "mine:double"
        greedy = "mine:greedy"
        who = { function = "mine:who", description = "Tells where it runs", effects = false }

        [venue.sql]
        enabled = true
        rows = 2
    """
    with web_server() as url, daemon(folder, settings) as client:
        offered = {one.path: one for one in client.call(ListOperations()).operations}
        assert offered["v/ops/python/who"].description == "Tells where it runs"
        assert {"v/ops/http/get", "v/ops/sql/query"} <= set(offered)
        assert run(client, "v/ops/python/double", {"n": 21}).output == 42
        where = json.loads(to_json(run(client, "v/ops/python/who", {}).output))
        assert where["home"] is None
        greedy = run(client, "v/ops/python/greedy", {"bytes": 10**9})
        assert (greedy.status, greedy.error) == ("FAILED", "MemoryError: ")
        client.call(OfferRecords(topic="log", values=("a", "b", "c")))
        query = {"query": "SELECT value FROM t ORDER BY 1", "tables": {"t": {"topic": "log"}}}
        answer = json.loads(to_json(run(client, "v/ops/sql/query", query).output))
        assert answer["rows"] == [['"a"'], ['"b"']]
        assert answer["truncated"] is True
        found = run(client, "v/ops/http/get", {"url": f"{url}/tea"})
        assert json.loads(to_json(found.output))["body"] == "this is /tea"
        long = run(client, "v/ops/http/get", {"url": f"{url}/{'x' * 30}"})
        assert (long.status, "more than 20 bytes" in long.error) == ("FAILED", True)
        # What is read again: who may call; the adapters are those of the start.
        text = settings.replace("public = false", "public = true")
        (folder / "node.toml").write_text(text.replace("rows = 2", "rows = 3"))
        assert client.call(ReloadSettings()).waiting == ("venue.sql.rows",)


def test_contents_go_through_the_daemon_into_its_own_storage(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    folder, content = tmp_path / "data", tmp_path / "content"
    content.write_bytes(b"tea" * 500_000)
    digest = sha256(content.read_bytes()).hexdigest()
    (tmp_path / "metadata").write_text(json.dumps({"content": {"sha256": digest}}))

    def lattice(*words: object) -> str:
        command = [sys.executable, "-m", "datalattice.cli", "--dir", folder, "venue", *words]
        done = subprocess.run([str(one) for one in command], capture_output=True, check=False)
        return (done.stdout + done.stderr).decode()

    for kind in ("memory", "file"):
        with daemon(folder, f"[venue]\nstorage = '{kind}'\npath = 'kept'\n"):
            asset = lattice("register", tmp_path / "metadata").strip()
            assert lattice("upload", asset, content).strip() == digest
            assert lattice("upload", asset, tmp_path / "metadata").strip() != digest
            lattice("download", asset, "--output", tmp_path / kind)
            assert (tmp_path / kind).read_bytes() == content.read_bytes()
        assert (folder / "kept" / digest).exists() is (kind == "file")
        gone = kind == "memory"
        assert ("has the content" in lattice("download", asset)) is gone


@pytest.mark.once
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_daemon_runs_a_job_on_spark_and_shows_how_far_it_is(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("starlette")
    folder = tmp_path / "data"
    settings = """
        [venue.spark]
        master = "local[2]"
        memory = "1g"
        conf = { "spark.sql.shuffle.partitions" = "2" }

        [venue.spark.jobs.latest]
        job = "compact"
        description = "The latest record of each key"
        fixed = { into_database = "latest" }
        open = { topic = { type = "string" } }
    """
    with daemon(folder, settings) as client:
        for value in ("old", "new"):
            client.call(OfferRecords(topic="orders", values=(value,), key="k", partition=0))
        given = to_cell({"topic": "orders"})
        job = client.call(InvokeOperation(operation="v/ops/spark/latest", input=given))
        messages = set()
        while job.status in {"PENDING", "STARTED"}:
            job = client.call(GetJob(id=job.id, wait_ms=300))
            messages.add(job.message)
        assert job.status == "COMPLETE", job.error
        assert any("tasks" in message for message in messages), messages
    with datalattice.open(folder) as node:
        assert node.database("latest")["k"] == "new"
