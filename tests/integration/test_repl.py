"""`lattice repl` as a person has it, on a terminal, in the folder and at a daemon."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_doors import Process

import datalattice
from datalattice.client import write_key
from datalattice.crypto import KeyPair
from datalattice.lattice import did_of

pexpect = pytest.importorskip("pexpect")
pytest.importorskip("prompt_toolkit")

WAIT_S = 120
USER = KeyPair(bytes([7]) * 32)

pytestmark = [pytest.mark.once, pytest.mark.processes]


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "datalattice.cli", "--dir", str(folder), "repl", *arguments]


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        program, *rest = command(folder, *arguments)
        self.child: Any = pexpect.spawn(
            program,
            rest,
            encoding="utf-8",
            timeout=WAIT_S,
            dimensions=(40, 120),
            # Without a question to the terminal where its cursor is: nobody answers here.
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )

    def close(self) -> None:
        self.child.close(force=True)

    def type(self, text: str, expected: str) -> None:
        self.child.send(text)
        self.child.expect(expected)

    def end(self) -> int:
        self.child.expect("lattice[^ ]*>")
        self.child.send("\x04")  # Ctrl-D, at the prompt
        self.child.expect(pexpect.EOF)
        self.child.close()
        code = self.child.exitstatus
        assert isinstance(code, int)
        return code


def test_a_person_works_in_the_folder(tmp_path: Path, ending: ExitStack) -> None:
    home = tmp_path / "home"
    with datalattice.open(home) as node:
        node.queue("log").offer("first")
        node.store("notes", "kv")["title"] = "Shopping"
    terminal = ending.enter_context(closing(Terminal(home)))
    terminal.child.expect("lattice>")
    terminal.type("queue.range log\r", "first")
    terminal.type("nothing\r", "there is no command 'nothing'")
    terminal.type("use notes\r", r"lattice:[0-9a-f]{8}>")
    terminal.type("get title\r", "Shopping")
    terminal.type("queue.follow log start=1\r", r"\[1\] queue.follow")
    with datalattice.open(home) as node:
        node.queue("log").offer("second")
    terminal.child.expect("second")
    terminal.type("\x03stop all\r", r"\[1\] queue.follow log start=1 has ended")
    terminal.child.expect("lattice:[0-9a-f]{8}>")
    terminal.type("take 9 queue.follow log start=1\r", "second")
    terminal.child.sendintr()  # the command that waits for more ends, and nothing else
    terminal.child.expect("interrupted")
    terminal.type("queue.topics\r", "log")
    assert terminal.end() == 0
    history = home / "repl_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+use notes\n" in history.read_text()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Process]:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    options = ("--rest", "127.0.0.1:0", "--admin", did_of(USER.public_key))
    with Process(tmp_path / "node", *options) as made:
        yield made


SCRIPT = """stores.create name=NAME store_type=core:kvstore
use NAME
put title Shopping
get title
queue.offer log (a b)
take 2 queue.follow log
node.status
"""


def test_a_script_runs_at_each_door_of_a_daemon(daemon: Process, tmp_path: Path) -> None:
    doors = daemon.ready["doors"]
    user = tmp_path / "user"
    user.mkdir()
    ways = {
        "beside": (daemon.folder, ()),
        "socket": (daemon.folder, ("--rest", doors["socket"])),
        "grpc": (daemon.folder, ("--grpc", doors["grpc socket"])),
        "tcp": (user, ("--rest", doors["rest"], "--sign-for", doors["rest"])),
    }
    write_key(user / "identity.key", USER)
    for name, (folder, way) in ways.items():
        ran = subprocess.run(
            command(folder, *way),
            input=SCRIPT.replace("NAME", name),
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        assert ran.returncode == 0, ran.stderr
        assert "value       Shopping" in ran.stdout
        assert str(daemon.folder) in ran.stdout


def test_without_a_token_a_service_on_tcp_refuses_a_write(daemon: Process, tmp_path: Path) -> None:
    ran = subprocess.run(
        command(
            tmp_path / "none", "--rest", daemon.ready["doors"]["rest"], "-c", "queue.offer log a"
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert ran.returncode == 77
    assert ran.stderr.startswith("lattice: -c 1: ")
    assert not (tmp_path / "none").exists()
