"""What a daemon keeps to itself: secrets in no log or text, sockets for its own user alone."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.integration.test_doors import Process

import datalattice
from datalattice.actions import (
    ActionRequest,
    AddPeer,
    AuditEvent,
    GetNodeHealth,
    InvitePeer,
    IssueToken,
    JoinStore,
    WatchAudit,
    to_document,
)
from datalattice.client import Client, connect
from datalattice.client.credentials import make_token, sign_request
from datalattice.client.rest import RestClient
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import DataLatticeError
from datalattice.lattice import did_of
from datalattice.testing.ports import held_port

pytest.importorskip("grpc_reflection")
pytest.importorskip("uvicorn")
pytest.importorskip("mcp")

from datalattice.client.grpc import GrpcClient

pytestmark = [pytest.mark.once, pytest.mark.processes]

PASSWORD = "correct-horse-battery-staple"
BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
BASE = "/api/v1"
NOBODY = 65_534


class Told:
    """What a daemon says that others than the holder of a secret may read, and the secrets."""

    def __init__(self, daemon: Process) -> None:
        self.folder = daemon.folder
        self.rest, self.grpc = daemon.ready["doors"]["rest"], daemon.ready["doors"]["grpc"]
        self.texts: list[str] = []
        self.secrets: list[str] = [PASSWORD, BASIC]

    def refused(self, client: Client, requests: Iterable[ActionRequest[Any]]) -> None:
        """Keep the errors of requests."""
        for request in requests:
            with pytest.raises(DataLatticeError) as caught:
                client.call(request)
            self.texts.append(str(caught.value))

    def asked(self, verb: str, path: str, headers: dict[str, str]) -> None:
        """Keep the answer to a request of HTTP that is refused."""
        connection = http.client.HTTPConnection(urlsplit(self.rest).netloc, timeout=60)
        connection.request(verb, path, "{}" if verb == "POST" else "", headers)
        answer = connection.getresponse()
        assert answer.status in (400, 401, 429), answer.status
        self.texts.append(f"{answer.headers}\n{answer.read().decode()}")
        connection.close()

    def shown(self, token: str) -> None:
        """Show a token that is not valid at each door."""
        bearer = {"authorization": f"Bearer {token}"}
        self.secrets += [token, token.rpartition(".")[2]]
        self.asked("GET", f"{BASE}/hosting", bearer)
        self.asked("GET", f"{BASE}/hosting?access_token={token}", {})
        self.asked("PROPFIND", "/dlfs/", bearer)
        self.asked("POST", "/mcp", bearer)
        with GrpcClient(self.grpc, token=token) as remote:
            self.refused(remote, [GetNodeHealth()])

    def commands(self, *commands: Sequence[str]) -> None:
        """Keep what commands print that fail."""
        for words in commands:
            ran = subprocess.run(
                [sys.executable, "-m", "datalattice.cli", *words, "--dir", str(self.folder)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode
            self.texts.append(ran.stdout + ran.stderr)

    def pages(self) -> None:
        """Keep what monitors read."""
        place = json.loads((self.folder / "running.json").read_text())["http"]
        for page in ("/metrics", "/health"):
            connection = http.client.HTTPConnection(place, timeout=60)
            connection.request("GET", page)
            self.texts.append(connection.getresponse().read().decode())
            connection.close()

    def decided(self, audit: Iterator[AuditEvent], action: str, count: int) -> None:
        """Keep the records of decisions, until so many are about an action."""
        while count:
            event = next(audit)
            self.texts.append(str(to_document(event)))
            count -= event.record is not None and event.record.action == action


@contextmanager
def debugging(folder: Path, admin: str, log: Path) -> Iterator[Process]:
    environment = {"LATTICE_NODE_HTTP_PORT": "0"}
    with held_port() as port, log.open("wb") as stderr:
        options = ("--rest", "127.0.0.1:0", "--grpc", f"127.0.0.1:{port}", "--mcp", "all")
        made = Process(
            folder, *options, "--admin", admin, "--log-level", "debug",
            environment=environment, stderr=stderr,
        )  # fmt: skip
        with made:
            yield made
            made.end()


def test_no_secret_is_in_a_log_a_record_a_status_or_an_error(tmp_path: Path) -> None:
    admin, folder, log = KeyPair.generate(), tmp_path / "node", tmp_path / "log"
    with debugging(folder, did_of(admin.public_key), log) as daemon:
        told, now_ms = Told(daemon), SystemClock().now_ms()
        good = make_token(admin, told.rest, now_ms)
        control = connect(folder)
        assert control is not None
        with (
            control,
            control.stream(WatchAudit()) as audit,
            RestClient(told.rest, token=lambda: good) as rest,
            GrpcClient(told.grpc, token=good) as grpc,
            datalattice.open(folder) as node,
        ):
            store = node.store("notes", "kv").store.id
            made = rest.call(IssueToken(subject=did_of(admin.public_key), life_s=60)).token
            invites = [client.call(InvitePeer(id=store)).token for client in (rest, grpc, control)]
            told.secrets += [good, good.rpartition(".")[2], made, made.rpartition(".")[2], *invites]
            broken = invites[0][:-1] + ("2" if invites[0][-1] != "2" else "3")
            peers = [f"{kind}://me:{PASSWORD}@127.0.0.1:1" for kind in ("http", "tls")]
            bad: list[ActionRequest[Any]] = [AddPeer(address=one) for one in peers]
            bad += [JoinStore(token=broken), JoinStore(token=f"{PASSWORD}!")]
            for client in (rest, grpc, control):
                told.refused(client, bad)
            told.commands(("store", "join", broken), ("node", "peers", "add", peers[0]))
            for token in (good[:-8] + "AAAAAAAA", PASSWORD):
                told.shown(token)
            signed = sign_request(admin, "GET", f"{told.rest}{BASE}/hosting", now_ms - 600_000)
            told.asked("GET", f"{BASE}/hosting", signed)
            told.asked("PROPFIND", "/dlfs/", {"authorization": f"Basic {BASIC}"})
            told.shown(make_token(admin, told.rest, now_ms - 7_200_000))
            told.texts.append(str(to_document(control.call(GetNodeHealth()))))
            told.pages()
            told.decided(audit, "stores.invite", len(invites))
    told.texts.append(log.read_text())
    assert "authenticate" in told.texts[-1]  # refusals are logged
    told.secrets += [broken, signed["signature"].partition(":")[2][:40]]
    told.secrets += (folder / "identity.key").read_text().split()
    found = [(secret, text) for secret in told.secrets for text in told.texts if secret in text]
    assert found == []


def reached_by_nobody(paths: list[str]) -> list[bool]:
    """Return which of the sockets another user can connect to."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = 0
            for place, path in enumerate(paths):
                with socket.socket(socket.AF_UNIX) as made:
                    try:
                        made.connect(path)
                        code |= 1 << place
                    except PermissionError:
                        pass
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert 0 <= code < 255, "it could not become another user, or failed otherwise"
    return [bool(code >> place & 1) for place in range(len(paths))]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect_to_any_socket() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "node"
        with Process(folder) as daemon:
            doors = daemon.ready["doors"]
            paths = [str(folder / "control.sock"), doors["socket"], doors["grpc socket"]]
            # All may enter the folders above, as where a node's folder was made by hand.
            Path(place).chmod(0o755)
            folder.chmod(0o755)
            assert reached_by_nobody(paths) == [False, False, False]
            Path(paths[0]).chmod(0o666)  # the sockets are what keeps others out
            assert reached_by_nobody(paths) == [True, False, False]
