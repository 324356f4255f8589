"""Databases, drives, venues and values from several processes, beside nodes that run."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from datalattice import Database, DataLatticeError, Drive, KeyPair, Venue
from datalattice.client import Folder, edit, folder_of, reading, write_key
from datalattice.cursors import RootLattice
from datalattice.lattice import root_lattice
from datalattice.testing.processes import killing

PATIENCE_S = 120.0
POLL_S = 0.2
COMMAND = [sys.executable, "-m", "datalattice.cli"]

pytestmark = [pytest.mark.once, pytest.mark.processes]

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands that go on; whatever still runs at the end is ended."""
    with ExitStack() as ending:

        def start(*arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=tmp_path,
                env={**os.environ, "DATALATTICE_DEBUG": ""},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            return ending.enter_context(killing(process))

        yield start


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """Return what a command printed; its exit code is the one that is expected."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, err
    assert "Traceback" not in err
    if code in {1, 2}:
        assert out == ""
        assert err.startswith("lattice: ")
        assert err.count("\n") == 1
        return err
    return out


def first_line(process: subprocess.Popen[str]) -> str:
    stream: IO[str] | None = process.stdout
    assert stream is not None
    return stream.readline()


def node(start: Start, folder: str, *options: str) -> tuple[subprocess.Popen[str], str]:
    process = start("node", "start", "--dir", folder, "--port", "0", *options)
    said = first_line(process)
    assert said.startswith("listening at ")
    return process, said.split()[-1]


def test_two_processes_write_through_one_node_and_another_node_has_it_all(
    tmp_path: Path, start: Start
) -> None:
    (tmp_path / "plan.txt").write_text("upstream\n", encoding="utf-8")
    (tmp_path / "asset.json").write_text('{"name":"Iris"}', encoding="utf-8")
    key = KeyPair.generate()
    write_key(folder_of(tmp_path / "here").key_path, key)
    write_key(folder_of(tmp_path / "there").key_path, KeyPair.generate())
    here, address = node(start, "here")
    there, _ = node(start, "there", "--peer", address)
    counting = [start("db", "incr", "shop", "visits", "-d", "here") for _ in range(2)]
    others = [
        start("fs", "put", "plan.txt", "papers:", "-d", "here"),
        start("venue", "register", "asset.json", "-d", "here"),
        start("put", "kv", "own", "value", "shop", "open", "--value", "true", "-d", "here"),
    ]
    assert sorted(ended(one) for one in counting) == ["1\n", "2\n"]  # neither lost the other's
    for one in others:
        ended(one)
    wait_for_all(folder_of(tmp_path / "there"), key)
    asked = [
        start("fs", "cat", "papers:plan.txt", "-d", "there"),
        start("venue", "verify", "--json", "-d", "there"),
        start("db", "get", "shop", "nothing", "--quiet", "-d", "there"),
    ]
    assert ended(asked[0]) == "upstream\n"
    assert json.loads(ended(asked[1])) == {"venues": 1, "bad": []}
    assert "has no key 'nothing'" in ended(asked[2], 1)
    for process in (there, here):
        process.send_signal(signal.SIGINT)
        assert ended(process) == ""


def wait_for_all(folder: Folder, key: KeyPair) -> None:
    """Wait until the other node's folder has what every process wrote."""
    while True:
        with contextlib.suppress(DataLatticeError), reading(folder) as root:
            cursor = RootLattice(root_lattice(), root)
            shop = Database.at(cursor, key.public_key, "shop")
            papers = Drive.at(cursor, key.public_key, "papers")
            if shop.count("visits") == 2 and shop.get("open") is True:
                assets = Venue.at(cursor, key).assets()
                if papers.exists("/plan.txt") and assets:
                    return
        time.sleep(POLL_S)


def test_ctrl_c_ends_a_watch(tmp_path: Path, start: Start) -> None:
    folder = folder_of(tmp_path / "here")
    write_key(folder.key_path, KeyPair.generate())

    def write(value: int) -> None:
        def change(cursor: RootLattice, key: KeyPair) -> None:
            Database.at(cursor, key.public_key, "shop")["k"] = value

        edit(folder, change)

    write(0)
    watch = start("db", "watch", "shop", "--json", "-d", "here")
    written = 0
    while not has_output(watch):  # it may not look yet
        written += 1
        write(written)
    assert json.loads(first_line(watch))["key"] == "k"
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=PATIENCE_S)
    assert (watch.returncode, err) == (130, "")


def has_output(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], POLL_S)[0])
