"""`lattice repl` with commands of a script: in the folder, and at the doors of a service."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.api.serving import serving
from tests.unit.cli.conftest import Lattice, Ran
from tests.unit.service.cases import World
from tests.unit.service.test_suite import listening

from datalattice.cli.main import run


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


# --- in the folder --------------------------------------------------------------------------------


@pytest.mark.usefixtures("owner")
def test_commands_are_done_one_by_one(lattice: Lattice) -> None:
    ran = lattice("repl", "-c", "queue.offer log hello", "-c", "queue.range log count=1")
    assert (ran.code, ran.out.splitlines()[1].rsplit("\t", 1)[1]) == (0, "hello")
    assert lattice("queue", "tail", "log").out == "hello\n"


def test_a_file_is_a_script(lattice: Lattice, tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text(
        "# what is done\n\nstores.create name=notes store_type=core:kvstore\nuse notes\n"
        "put title Shopping\nbatch ((put a 1)\n  (put b 'two\nlines'))\nget b\n"
    )
    ran = lattice("repl", script, "--as", "lines")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.splitlines()[-1])["value"] == "two\nlines"


def test_a_pipe_is_a_script(lattice: Lattice) -> None:
    for arguments in (("repl",), ("repl", "-")):
        ran = lattice(*arguments, stdin="queue.offer log hello\nqueue.topics\n")
        assert ran.code == 0
        assert ran.out.splitlines()[-1].split("\t")[0] == "log"


@pytest.mark.usefixtures("owner")
def test_the_first_failure_ends_a_script_with_its_exit_code(
    lattice: Lattice, tmp_path: Path
) -> None:
    script = tmp_path / "script.txt"
    script.write_text("queue.offer log a\nkv.get shop k\nqueue.offer log b\nquit\nnothing\n")
    ran = lattice("repl", script)
    assert ran.code == 1
    assert ran.line().startswith(f"{script}:2: ")
    assert lattice("queue", "tail", "log").out == "a\n"
    ran = lattice("repl", script, "--keep-going")
    assert ran.code == 1
    assert lattice("queue", "tail", "log").out == "a\na\nb\n"
    script.write_text("nothing\nkv.get shop k\n")
    ran = lattice("repl", script, "--keep-going", "--json")
    assert ran.code == 2
    assert [json.loads(line)["error"] for line in ran.err.splitlines()] == ["usage", "no-such-path"]


@pytest.mark.usefixtures("owner")
def test_an_open_list_at_the_end_is_said_with_its_first_line(lattice: Lattice) -> None:
    ran = lattice("repl", stdin="queue.topics\nqueue.offer log (a\nb\n")
    assert (ran.code, ran.line()) == (2, "line 2: a '(' has no ')'")


def test_what_does_not_go_together_is_refused(lattice: Lattice, tmp_path: Path) -> None:
    for arguments, said in (
        (("x.txt", "-c", "help"), "a script or -c"),
        (
            ("-c", "help", "--rest", "http://127.0.0.1:1", "--grpc", "127.0.0.1:1"),
            "--rest or --grpc",
        ),
        (("-c", "help", "--token", "x"), "name it with --rest"),
        (("-c", "help", "--token", "x", "--sign-for", "y"), "--token or --sign-for"),
        (("-c", "help", "--rest", "ftp://x"), "a service is at http://host:port"),
        (("-c", "help", "--rest", tmp_path / "none"), "there is no socket at"),
        (("-c", "help", "--grpc", "nowhere"), "a door is the file of a socket"),
        (("-c", "help", "--grpc", "127.0.0.1:\u00b2"), "a door is the file of a socket"),
        ((tmp_path / "none.txt",), "No such file"),
    ):
        ran = lattice("repl", *arguments)
        assert ran.code in (1, 2, 75), said
        assert said in ran.line()


def test_a_script_ends_when_its_streams_have(lattice: Lattice) -> None:
    ran = lattice(
        "repl",
        "-c", "queue.offer log a",
        "-c", "queue.follow log",
        "-c", "take 1 queue.follow log",
        "-c", "stop all",
    )  # fmt: skip
    assert ran.code == 0
    assert "[1] queue.follow log; `stop 1` ends it" in ran.err


def test_a_command_that_shows_no_prompt_loads_none(lattice: Lattice) -> None:
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if "prompt_toolkit" in name}
    try:
        assert lattice("repl", "-c", "help").code == 0
        assert lattice("kv", "get", "notes", "k").code == 1
        assert not [name for name in sys.modules if "prompt_toolkit" in name]
    finally:
        sys.modules.update(kept)


# --- at a service ---------------------------------------------------------------------------------

SCRIPT = """queue.offer log (c 7)
queue.range log start=-1
use notes
put title Shopping
get title
take 1 queue.follow log
"""


def done(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    capsys.readouterr()
    code = run(["repl", "--as", "lines", *arguments])
    captured = capsys.readouterr()
    return Ran(code, captured.out, captured.err)


def test_the_same_script_runs_at_each_door(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    with listening(world) as url, serving(world.service) as served:
        for option, target in (("--rest", url), ("--grpc", os.fspath(served.path))):
            monkeypatch.setattr(sys, "stdin", io.StringIO(SCRIPT))
            ran = done(capsys, option, target)
            assert ran.code == 0, ran.err
            documents = [json.loads(line) for line in ran.out.splitlines()]
            assert documents[1]["records"][0]["value"] == 7
            assert documents[4]["value"] == "Shopping"
            assert documents[5]["value"] == "a"
            found.append([sorted(one) for one in documents])
            ran = done(capsys, option, target, "-c", "kv.get shop none")
            assert (ran.code, json.loads(ran.err)["error"]) == (1, "no-such-path")
    assert found[0] == found[1]


def test_a_service_that_is_away_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert done(capsys, "--rest", "http://127.0.0.1:1", "-c", "queue.topics").code == 75
    assert done(capsys, "--grpc", "127.0.0.1:1", "-c", "queue.topics").code == 75
