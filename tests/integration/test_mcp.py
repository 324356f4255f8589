"""Language models at a folder: `lattice mcp` as a process, and `/mcp` of a daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_doors import WAIT_S, Process

import datalattice
from datalattice.actions import WatchJob
from datalattice.client.credentials import make_token
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import PeerUnavailable
from datalattice.lattice import did_of
from datalattice.service import LocalClient
from datalattice.testing.folders import running_node
from datalattice.testing.processes import killing

mcp = pytest.importorskip("mcp")
httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("uvicorn")

pytestmark = [pytest.mark.once, pytest.mark.processes]

Use = Callable[[Any], Coroutine[Any, Any, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with datalattice.open(tmp_path / "node") as node:
        node.database("shop")["tea"] = 3
    return tmp_path / "node"


# --- a pipe ---------------------------------------------------------------------------------------


def through_a_pipe(folder: Path, use: Use, *options: str) -> Any:
    started = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "datalattice.cli", "--dir", str(folder), "mcp", *options],
        env=dict(os.environ),
    )

    async def run() -> Any:
        async with mcp.Client(started) as client:
            return await use(client)

    return asyncio.run(run())


async def reads_and_tries_to_write(client: Any) -> None:
    found = await client.call_tool("kv_get", {"database": "shop", "key": "tea"})
    assert found.structured_content["value"] == 3
    assert (await client.call_tool("queue_offer", {"topic": "log", "values": ["a"]})).is_error
    assert "datalattice" in client.instructions


def test_a_program_reads_a_folder_through_a_pipe(folder: Path) -> None:
    through_a_pipe(folder, reads_and_tries_to_write)


def test_a_running_node_is_no_hindrance_and_writes_go_through_it(folder: Path) -> None:
    async def use(client: Any) -> None:
        offered = await client.call_tool("queue_offer", {"topic": "log", "values": ["a"]})
        assert not offered.is_error, offered
        status = await client.call_tool("node_status", {})
        assert status.structured_content["address"]

    with running_node(folder):
        through_a_pipe(folder, use, "--tools", "all")
        with datalattice.open(folder) as node:
            assert list(node.queue("log")) == ["a"]


def test_operations_of_the_daemons_venue_are_tools_through_the_pipe(folder: Path) -> None:
    async def use(client: Any) -> None:
        assert "op_json_merge" in {tool.name for tool in (await client.list_tools()).tools}
        made = await client.call_tool("op_json_merge", {"values": [{"a": 1}, {"b": 2}]})
        assert made.structured_content["output"] == {"result": {"a": 1, "b": 2}}
        with datalattice.open(folder) as node, LocalClient(node) as local:
            id = bytes.fromhex(made.structured_content["job"])
            with local.stream(WatchJob(id=id)) as records:
                assert [one.status for one in records] == ["COMPLETE"]

    async def use_without(client: Any) -> None:
        assert not [one for one in (await client.list_tools()).tools if one.name[:3] == "op_"]
        none = await client.call_tool("venue_job", {"id": "00" * 16})
        assert none.structured_content["code"] == PeerUnavailable.code

    through_a_pipe(folder, use_without, "--tools", "all")
    (folder / "node.toml").write_text("[venue]\nenabled = true\n")
    with Process(folder) as daemon:
        through_a_pipe(folder, use, "--tools", "all")
        assert daemon.end() in (0, 143)


def test_the_pipe_outlives_what_is_not_the_protocol(folder: Path) -> None:
    lines = (
        b"\xff\xfe no text\n"
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": 7}\n'
        b"[" * 100_000 + b"\n"
        b'{"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {"protocolVersion": '
        b'"2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}}\n'
        b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "datalattice.cli", "--dir", str(folder), "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with killing(started) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines)
        process.stdin.flush()
        answers = []
        for line in process.stdout:
            answers.append(line)
            if b'"id":2' in line:
                break
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert b"datalattice/" not in process.stderr.read()  # no traceback of ours
    assert b"serverInfo" in answers[-1]


@pytest.mark.parametrize(
    ("options", "said"), [(["--tools", "some"], "read or all"), (["--dir", "absent"], "folder")]
)
def test_a_wrong_call_ends_with_the_reason(folder: Path, options: list[str], said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "datalattice.cli", "--dir", str(folder), "mcp", *options],
        check=False, capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == 2
    assert said in ran.stderr
    assert ran.stdout == ""


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.fixture
def admin() -> KeyPair:
    return KeyPair.generate()


@pytest.fixture
def daemon(folder: Path, admin: KeyPair) -> Iterator[Process]:
    options = ("--rest", "127.0.0.1:0", "--mcp", "all", "--admin", did_of(admin.public_key))
    with Process(folder, *options) as made:
        yield made
        assert made.end() in (0, 143)


def headers_of(pair: KeyPair | None, audience: str) -> dict[str, str]:
    if pair is None:
        return {}
    return {"authorization": f"Bearer {make_token(pair, audience, SystemClock().now_ms())}"}


def over_http(daemon: Process, use: Use, pair: KeyPair | None, mode: str = "auto") -> Any:
    from mcp.client.streamable_http import streamable_http_client

    async def run() -> Any:
        headers = headers_of(pair, daemon.ready["doors"]["rest"])
        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(daemon.ready["doors"]["mcp"], http_client=http)
            async with mcp.Client(transport, mode=mode) as client:
                return await use(client)

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_each_caller_has_its_own_rights(daemon: Process, admin: KeyPair, mode: str) -> None:
    async def use(client: Any) -> Any:
        read = await client.call_tool("kv_get", {"database": "shop", "key": "tea"})
        assert read.structured_content["value"] == 3
        offered = await client.call_tool("queue_offer", {"topic": mode, "values": ["a"]})
        return offered.structured_content.get("code")

    assert over_http(daemon, use, None, mode) == "unauthenticated"
    assert over_http(daemon, use, KeyPair.generate(), mode) == "unauthorized"
    assert over_http(daemon, use, admin, mode) is None
    with datalattice.open(daemon.folder) as node:
        assert list(node.queue(mode)) == ["a"]


def test_requests_that_are_refused_before_the_protocol(daemon: Process, admin: KeyPair) -> None:
    url = daemon.ready["doors"]["mcp"]
    body = '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    usual = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with httpx2.Client() as http:

        def status(content: Any = body, verb: str = "POST", **headers: str) -> int:
            found = http.request(verb, url, content=content, headers={**usual, **headers})
            assert "Traceback" not in found.text
            return int(found.status_code)

        assert status(verb="GET") == status(verb="DELETE") == 405
        assert status(**headers_of(admin, "http://elsewhere")) == 401
        assert status(authorization="Bearer x") == 401
        assert status(authorization="Basic x", signature="s") == 400
        assert status(host="evil.example") == status(origin="http://evil.example") == 421
        assert status(b"x" * (5 << 20)) == 413
        assert status(b"[" * 10_000) == 400
        assert status(b"\xff") == 400
        assert status(**{"content-type": "text/plain"}) in (400, 415)
        assert status(accept="image/png") == 406
        assert status() == 200


def test_the_socket_of_the_folder_serves_our_own_user(daemon: Process) -> None:
    import httpx

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "stores_list", "arguments": {}}}  # fmt: skip
    transport = httpx.HTTPTransport(uds=daemon.ready["doors"]["socket"])
    with httpx.Client(transport=transport) as http:
        answer = http.post(
            "http://localhost/mcp", json=body, headers={"accept": "application/json"}
        )
    assert answer.json()["result"]["structuredContent"] == {"items": []}


def test_the_door_is_off_unless_it_is_asked_for(folder: Path) -> None:
    with Process(folder, "--rest", "127.0.0.1:0") as made:
        assert "mcp" not in made.ready["doors"]
        assert httpx2.post(f"{made.ready['doors']['rest']}/mcp", content="{}").status_code == 404
