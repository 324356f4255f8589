"""Main: help, version, wrong calls and the one line that each gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import Cell
from datalattice.cli.main import run
from datalattice.crypto import HASH_LANES
from datalattice.errors import StoreFull
from datalattice.version import VERSION

COMMANDS = [
    ["key", "new"],
    ["key", "show"],
    ["key", "list"],
    ["node", "start"],
    ["node", "status"],
    ["node", "pull"],
    ["node", "config"],
    ["node", "peers"],
    ["node", "peers", "add"],
    ["node", "peers", "remove"],
    ["node", "watch"],
    ["queue", "offer"],
    ["queue", "peek"],
    ["queue", "range"],
    ["queue", "info"],
    ["queue", "truncate"],
    ["queue", "list"],
    ["get"],
    ["conformance"],
]


def test_the_version_is_one_line_and_names_the_mode(lattice: Any) -> None:
    ran = lattice("--version")
    assert (ran.code, ran.err) == (0, "")
    is_pure = (sys.modules[Cell.__module__].__file__ or "").endswith(".py")
    mode = "pure Python" if is_pure else f"compiled, hashes {max(HASH_LANES)} side by side"
    assert ran.out == f"lattice {VERSION}, {mode}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_json(lattice: Any, command: list[str]) -> None:
    ran = lattice(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "Usage: lattice" in ran.out
    assert "--json" in ran.out or command == ["node", "peers"]


def test_help_breaks_its_lines_at_the_width_of_the_terminal_only(lattice: Any) -> None:
    shown = lattice("daemon", "--help").out.split("Options")[0]
    [text] = [part for part in shown.split("\n \n") if "Other users" in part] or [shown]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    at = next(number for number, line in enumerate(lines) if line.startswith("Other users"))
    for line, after in zip(lines[at:], lines[at + 1 : -1], strict=False):
        assert len(line) + len(after.split()[0]) > 76, f"{line!r} ends early"


def test_help_keeps_brackets_of_its_text(lattice: Any) -> None:
    assert "`[hosting]`" in lattice("hosting", "show", "--help").out


def test_the_command_offers_completion(lattice: Any) -> None:
    assert "--install-completion" in lattice("--help").out


@pytest.mark.parametrize("group", [[], ["key"], ["node"], ["queue"]], ids=["all", "k", "n", "q"])
def test_without_a_command_there_is_help_and_no_error_line(lattice: Any, group: list[str]) -> None:
    ran = lattice(*group)
    assert (ran.code, ran.err) == (2, "")
    assert "Usage: lattice" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "No such command 'nope'"),
        (["--nope"], "--nope"),
        (["queue", "peek"], "Missing argument"),
        (["queue", "peek", "t", "--nope"], "No such option: --nope"),
        (["queue", "peek", "t", "x"], "integer"),
        (["queue", "peek", "t", "-1"], "-1"),
        (["queue", "offer", "t", "v", "--in", "yaml"], "--in is text, json, hex or lines"),
        (["queue", "offer", "t", "--dir"], "requires an argument"),
        (["node", "start", "-p", "x"], "integer"),
        (["conformance"], "Missing argument"),
    ],
)
def test_a_wrong_call_is_one_clear_line(lattice: Any, arguments: list[str], words: str) -> None:
    ran = lattice(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.line()
    if arguments[-1] != "--dir":  # it would take --json for its value
        ran = lattice(*arguments, "--json")
        assert ran.code == 2
        assert words in ran.error["message"]
        assert ran.error["error"] == "usage"


def test_errors_become_codes_and_one_line_each(
    lattice: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "home" / "store").mkdir(parents=True)

    def fail_with(error: BaseException) -> None:
        def fails(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("datalattice.store.CellStore.open", fails)

    fail_with(StoreFull("no\nroom"))
    assert lattice("queue", "list").line() == "no room"
    assert lattice("queue", "list", "--json").error == {
        "error": "store-full",
        "message": "no room",
    }
    assert run(["queue", "list"]) == 1
    fail_with(OSError(5, "Input/output error", "/some/file"))
    ran = lattice("queue", "list")
    assert (ran.code, ran.line()) == (1, "/some/file: Input/output error")
    fail_with(ZeroDivisionError("oops"))
    ran = lattice("queue", "list")
    assert ran.code == 70
    assert "DATALATTICE_DEBUG=1" in ran.line()
    monkeypatch.setenv("DATALATTICE_DEBUG", "1")
    assert "Traceback" in lattice("queue", "list").err
    monkeypatch.delenv("DATALATTICE_DEBUG")
    fail_with(KeyboardInterrupt())
    ran = lattice("queue", "list")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


@pytest.mark.parametrize("command", ["db get --help", "db get shop k", "db set shop k 1"])
def test_a_command_imports_no_server_and_no_module_of_another_command(
    lattice: Any, tmp_path: Path, command: str
) -> None:
    lattice("key", "new")
    lattice("db", "set", "shop", "k", "2")
    heavy = (
        "asyncio cryptography pydantic ssl datalattice.node datalattice.sync "
        "datalattice.conformance datalattice.pipeline datalattice.cli.queue "
        "datalattice.cli.disk zeroconf pyspark"
    )
    if "--help" not in command:
        heavy += " rich"
    program = (
        "import sys\n"
        "from datalattice.cli.main import run\n"
        f"assert run({[*command.split(), '--dir', str(tmp_path / 'home')]!r}) == 0\n"
        f"print(*(name for name in {heavy.split()!r} if name in sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert ran.stderr.split() == []
    written = lattice("db", "get", "shop", "k").out.strip()
    assert written == ("1" if "set" in command else "2")
