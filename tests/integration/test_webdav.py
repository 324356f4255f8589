"""Drives over WebDAV with the programs that people use, and when the daemon is killed."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_doors import WAIT_S, Process

import datalattice

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

pytestmark = [pytest.mark.once, pytest.mark.processes]

SUITES = {"basic": 16, "copymove": 13, "props": 30, "locks": 41, "http": 4}
"""Tests of litmus 0.13, by suite."""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Process]:
    with Process(tmp_path / "node", "--rest", "127.0.0.1:0") as made:
        with datalattice.open(made.folder) as node:
            node.drive("files").ensure()
        yield made


@contextmanager
def forwarded(path: str) -> Iterator[int]:
    """Forward a port of this machine to a socket, for programs that know only TCP."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as service:
            service.connect(path)
            back = threading.Thread(target=pump, args=(service, client))
            back.start()
            pump(client, service)
            back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listening.accept()[0],)))
                threads[-1].start()

    taking = threading.Thread(target=accept)
    taking.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    for one in (taking, *threads):
        one.join(WAIT_S)


def test_litmus_passes(daemon: Process, tmp_path: Path) -> None:
    litmus = program("litmus")
    with forwarded(daemon.ready["doors"]["socket"]) as port:
        ran = subprocess.run(
            [litmus, "-k", f"http://127.0.0.1:{port}/dlfs/own/files/"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            cwd=tmp_path,
        )
    assert "FAIL" not in ran.stdout, ran.stdout
    for suite, count in SUITES.items():
        wanted = f"summary for `{suite}': of {count} tests run: {count} passed, 0 failed"
        assert wanted in ran.stdout, ran.stdout


def test_cadaver_works(daemon: Process, tmp_path: Path) -> None:
    cadaver = program("cadaver")
    (tmp_path / "local.txt").write_text("first\n")
    script = (
        "mkcol notes\ncd notes\nput local.txt\nls\ncopy local.txt copied.txt\n"
        "move copied.txt moved.txt\npropset local.txt author Ann\npropget local.txt author\n"
        "lock local.txt\ndiscover local.txt\nunlock local.txt\nget moved.txt back.txt\n"
        "delete moved.txt\nquit\n"
    )
    with forwarded(daemon.ready["doors"]["socket"]) as port:
        ran = subprocess.run(
            [cadaver, f"http://127.0.0.1:{port}/dlfs/own/files/"],
            input=script,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
        )
    assert "failed" not in ran.stdout + ran.stderr, ran.stdout
    assert "Ann" in ran.stdout
    assert (tmp_path / "back.txt").read_text() == "first\n"
    with datalattice.open(daemon.folder) as node:
        drive = node.drive("files")
        assert drive.list("/notes") == ["local.txt"]
        assert list(drive.stat("/notes/local.txt").properties.values()) == ["Ann"]


def test_rclone_copies_syncs_and_checks(daemon: Process, tmp_path: Path) -> None:
    rclone = program("rclone")
    url = daemon.ready["doors"]["webdav"]
    rest = daemon.ready["doors"]["rest"]
    lattice = f"{sys.executable} -m datalattice.cli --dir {daemon.folder}"
    local = tmp_path / "local"
    (local / "below" / "deeper").mkdir(parents=True)
    for number in range(12):
        (local / f"file {number} ü.txt").write_text(f"{number}\n" * number)
    (local / "below" / "deeper" / "data.bin").write_bytes(os.urandom(9_000_000))

    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [rclone, "--config", "", "--webdav-url", url, "--retries", "1",
             "--webdav-bearer-token-command", f"{lattice} key token {rest}", *arguments],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
            env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout + ran.stderr

    remote = ":webdav:own/files/kept"
    run("copy", str(local), remote)
    run("check", "--download", str(local), remote)
    (local / "file 3 ü.txt").unlink()
    (local / "below" / "new.txt").write_text("new")
    run("sync", str(local), remote)
    run("check", "--download", str(local), remote)
    run("moveto", f"{remote}/below", f"{remote}/elsewhere")
    run("copy", remote, str(tmp_path / "back"))
    assert (tmp_path / "back" / "elsewhere" / "new.txt").read_text() == "new"
    assert "file 5 ü.txt" in run("lsf", remote)
    with datalattice.open(daemon.folder) as node:
        assert not node.drive("files").exists("/kept/file 3 ü.txt")
        data = (local / "below" / "deeper" / "data.bin").read_bytes()
        assert node.drive("files").read("/kept/elsewhere/deeper/data.bin") == data


class SocketConnection(http.client.HTTPConnection):
    """A connection to the socket of a daemon."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WAIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self._path)

    def do(self, method: str, path: str, body: bytes = b"", **headers: str) -> Any:
        self.request(method, f"/dlfs/own/files{path}", body, headers)
        answer = self.getresponse()
        answer.read()
        return answer


def test_what_was_answered_survives_kill_9(daemon: Process, ending: ExitStack) -> None:
    written: dict[str, bytes] = {}
    path = daemon.ready["doors"]["socket"]
    enough = threading.Event()

    def write(who: int) -> None:
        connection = SocketConnection(path)
        with suppress(OSError, http.client.HTTPException):
            for number in range(10_000):
                name, data = f"/{who}-{number}", f"{who} {number}".encode() * 400
                if connection.do("PUT", name, data).status == 201:
                    written[name] = data
                if number == 15:
                    enough.set()
        connection.close()

    writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for one in writers:
        one.start()
    assert enough.wait(WAIT_S)
    daemon.end(signal.SIGKILL)
    for one in writers:
        one.join(WAIT_S)
    assert len(written) >= 16
    again = ending.enter_context(Process(daemon.folder))
    connection = SocketConnection(again.ready["doors"]["socket"])
    with datalattice.open(daemon.folder) as node:
        drive = node.drive("files")
        for name, data in written.items():
            assert drive.read(name) == data
    # Nothing is there in part, and the locks of the former process are gone.
    assert connection.do("PUT", "/0-0", b"new").status == 204
    connection.close()
    again.end()


def test_two_clients_with_locks_lose_nothing(daemon: Process) -> None:
    path = daemon.ready["doors"]["socket"]
    lock = (
        b'<D:lockinfo xmlns:D="DAV:"><D:lockscope><D:exclusive/></D:lockscope>'
        b"<D:locktype><D:write/></D:locktype></D:lockinfo>"
    )

    def count() -> None:
        connection = SocketConnection(path)
        for _ in range(10):
            while (held := connection.do("LOCK", "/count", lock)).status == 423:
                pass
            token = held.getheader("lock-token")
            connection.request("GET", "/dlfs/own/files/count")
            number = int(connection.getresponse().read() or b"0")
            put = connection.do("PUT", "/count", b"%d" % (number + 1), If=f"({token})")
            assert put.status == 204
            assert connection.do("UNLOCK", "/count", **{"Lock-Token": token}).status == 204
        connection.close()

    clients = [threading.Thread(target=count) for _ in range(2)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(WAIT_S)
    with datalattice.open(daemon.folder) as node:
        assert node.drive("files").read("/count") == b"20"


def test_the_door_can_be_switched_off(tmp_path: Path, ending: ExitStack) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "node.toml").write_text("[doors.webdav]\nenabled = false\n")
    daemon = ending.enter_context(Process(folder, "--rest", "127.0.0.1:0"))
    assert "webdav" not in daemon.ready["doors"]
    connection = SocketConnection(daemon.ready["doors"]["socket"])
    assert connection.do("OPTIONS", "/").status == 404
    connection.close()
    daemon.end()
