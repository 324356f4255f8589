"""A node as its operator sees it: settings, pages, logs, peers, the live view, signals."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from datalattice.cli.main import run
from datalattice.cli.node.peers import health_document
from datalattice.client import connect, write_key
from datalattice.crypto import KeyPair
from datalattice.testing.polling import until
from datalattice.testing.processes import killing

PATIENCE_S = 120.0
POLL_S = 0.1
COMMAND = [sys.executable, "-m", "datalattice.cli"]

pytestmark = [pytest.mark.once, pytest.mark.processes]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "DATALATTICE_HOME": str(folder), "DATALATTICE_DEBUG": "", **more}


def lattice(folder: Path, *arguments: str) -> str:
    """Run one command that succeeds, in this process; return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*arguments, "--dir", str(folder)])
    assert code == 0, err.getvalue()
    return out.getvalue()


class Node:
    """A node process, and what it said at its start."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.folder = folder
        process = subprocess.Popen(
            [*COMMAND, "node", "start", "--json", *options],
            env=environment(folder, **variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with contextlib.ExitStack() as stack:
            self.process = stack.enter_context(killing(process))
            lines: list[str] = []
            while not lines or lines[-1] != "}\n":
                lines.append(pipe(process.stdout).readline())
                assert lines[-1], pipe(process.stderr).read()
            self.said: dict[str, Any] = json.loads("".join(lines))
            self.address = str(self.said["address"])
            self._killing = stack.pop_all()

    def close(self) -> None:
        self._killing.close()

    def get(self, page: str) -> tuple[int, str, str]:
        """Return status, content type and body of a page."""
        host, port = self.said["http"].split(":")
        client = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        client.request("GET", page)
        answer = client.getresponse()
        found = answer.status, str(answer.getheader("Content-Type")), answer.read().decode()
        client.close()
        return found

    def status(self) -> dict[str, Any]:
        client = connect(self.folder)
        assert client is not None
        with client:
            return health_document(client)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it; return its exit code and what it logged."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


Start = Callable[..., Node]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as ending:

        def start(folder: Path, *options: str, **variables: str) -> Node:
            write_key(folder / "key", KeyPair.generate())
            return ending.enter_context(contextlib.closing(Node(folder, *options, **variables)))

        yield start


def test_a_node_with_a_file_and_variables_serves_its_pages_and_ends_in_order(
    start: Start, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "node.toml").write_text(
        "[node]\nport = 1  # not this one\nhttp_port = 0\nrounds_max = 5\n"
    )
    node = start(home, "--log-format", "json", LATTICE_NODE_PORT="0", LATTICE_LOG_LEVEL="info")
    assert not node.address.endswith(":1")
    status, kind, body = node.get("/health")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body)["status"] == "ok"
    lattice(home, "queue", "offer", "t", "a")
    status, kind, body = node.get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "\ndatalattice_changes_total 1\n" in body
    assert '\ndatalattice_publish_seconds_bucket{le="+Inf"} ' in body
    assert node.get("/")[0] == 404
    shown = node.status()
    assert (shown["http"], shown["health"], shown["reasons"]) == (node.said["http"], "ok", {})
    code, log = node.end()
    assert code == 0
    events = [json.loads(line) for line in log.splitlines()]
    assert [one["event"] for one in events] == ["serving", "stopping"]
    assert events[0]["address"] == node.address
    assert events[1]["root_hash"] == shown["root_hash"]
    assert sorted(path.name for path in home.iterdir()) == [
        "edit.lock",
        "format.json",
        "key",
        "node.toml",
        "store",
    ]


def test_peers_are_added_listed_watched_and_removed(start: Start, tmp_path: Path) -> None:
    one = start(tmp_path / "one", "--port", "0")
    two = start(tmp_path / "two", "--port", "0")
    watching = subprocess.Popen(
        [*COMMAND, "node", "watch", "--json", "--count", "3"],
        env=environment(two.folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = json.loads(pipe(watching.stdout).readline())
        lattice(one.folder, "queue", "offer", "t", "a")
        lattice(two.folder, "node", "peers", "add", one.address)
        until(lambda: two.status()["root_hash"] == one.status()["root_hash"])
        # Not `communicate`, which leaves out what `readline` has taken from the pipe already.
        out, err = pipe(watching.stdout).read(), pipe(watching.stderr).read()
        assert (watching.wait(PATIENCE_S), err) == (0, "")
    finally:
        watching.kill()
        watching.communicate()
    assert len(out.splitlines()) == 2
    assert first["changed"] == []
    ran = lattice(two.folder, "node", "watch", "--for", "0.5")
    assert two.status()["root_hash"][:16] in ran

    until(lambda: two.status()["peers"][0]["equal"] is True)
    (peer,) = json.loads(lattice(two.folder, "node", "peers", "--json"))
    assert (peer["address"], peer["connected"]) == (one.address, True)
    assert peer["bytes_in"] > 0
    until(lambda: one.status()["guests"][0]["equal"] is True)
    (guest,) = json.loads(lattice(one.folder, "node", "peers", "--json"))
    assert guest["source"] == "inbound"
    assert "inbound" in lattice(one.folder, "node", "peers")
    assert one.address in lattice(two.folder, "node", "peers")
    lattice(two.folder, "node", "peers", "remove", one.address)
    assert "no peers" in lattice(two.folder, "node", "peers")
    assert two.end() == (0, "")
    assert one.end() == (0, "")


def test_settings_are_read_again_when_told_to(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "home" / "node.toml"
    node = start(tmp_path / "home", "--port", "0")
    file.write_text("node.peers = ['127.0.0.1:1']\nlog.level = 'info'\n")
    node.process.send_signal(signal.SIGHUP)
    until(lambda: [one["address"] for one in node.status()["peers"]] == ["127.0.0.1:1"])
    file.write_text("node.peers = 7")
    node.process.send_signal(signal.SIGHUP)
    assert " info reloaded peers=1 log_level=info" in pipe(node.process.stderr).readline()
    refused = pipe(node.process.stderr).readline()
    assert "error reload-refused" in refused
    assert "peers is a list of texts, got 7" in refused
    assert len(node.status()["peers"]) == 1
    file.write_text("")
    node.process.send_signal(signal.SIGHUP)
    until(lambda: node.status()["peers"] == [])
    assert node.end(signal.SIGINT)[0] == 0
