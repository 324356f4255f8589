"""Every command in every form, the shared options, closed pipes, and each exit code."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Lattice

from datalattice.cli import main
from datalattice.cli.main import built, run
from datalattice.errors import (
    Corruption,
    DataLoss,
    NoSuchPath,
    StoreLocked,
    Timeout,
    Unauthenticated,
    Unauthorized,
    UsageError,
)
from datalattice.lattice import did_of
from datalattice.testing.folders import running_node

OTHER = "11" * 32

CALLS: dict[str, str] = {
    "init": "init {tmp}/device",
    "key new": "key new robot",
    "key show": "key show",
    "key list": "key list",
    "key name": f"key name north {OTHER}",
    "key names": "key names",
    "key token": "key token http://127.0.0.1:18080",
    "key delegate": f"key delegate {did_of(bytes(32))} kv/a=crud",
    "key identity show": "key identity show",
    "key identity new": "key identity new",
    "node init": "node init --dir {tmp}/other",
    "node config": "node config",
    "node status": "node status",
    "node ticket": "node ticket",
    "node peers list": "node peers",
    "node peers add": "node peers add 127.0.0.1:1",
    "node peers remove": "node peers remove 127.0.0.1:1",
    "node watch": "node watch --count 1",
    "node pull": "node pull",
    "node reload": "node reload",
    "node drain": "node drain",
    "node stop": "node stop",
    "queue create": "queue create parted --partitions 2",
    "queue offer": "queue offer log a b",
    "queue peek": "queue peek log",
    "queue range": "queue range log",
    "queue tail": "queue tail log",
    "queue info": "queue info log",
    "queue list": "queue list",
    "queue consumers": "queue consumers",
    "queue seek": "queue seek robot start",
    "queue truncate": "queue truncate log 1",
    "store create": "store create made",
    "store list": "store list",
    "store open": "store open notes",
    "store status": "store status notes",
    "store watch": "store watch notes --count 1",
    "store archive": "store archive team child",
    "store forks": "store forks notes",
    "store fsck": "store fsck notes",
    "kv put": "kv put notes k v",
    "kv get": "kv get notes k",
    "kv list": "kv list notes",
    "kv history": "kv history notes k",
    "kv conflicts": "kv conflicts notes",
    "kv delete": "kv delete notes k",
    "log append": "log append diary x",
    "log read": "log read diary",
    "log tail": "log tail diary",
    "weave history": "weave history notes",
    "weave graph": "weave graph notes",
    "peer invite": "peer invite notes",
    "peer list": "peer list notes",
    "db list": "db list",
    "db keys": "db keys shop",
    "db get": "db get shop k",
    "db type": "db type shop k",
    "db ttl": "db ttl shop k",
    "db hget": "db hget shop h f",
    "db watch": "db watch shop --for 0",
    "db set": "db set shop k 2",
    "db del": "db del shop k",
    "db expire": "db expire shop h 1h",
    "db persist": "db persist shop h",
    "db hset": "db hset shop h g 1",
    "db hdel": "db hdel shop h g",
    "db sadd": "db sadd shop s 1",
    "db srem": "db srem shop s 1",
    "db zadd": "db zadd shop z 1 m",
    "db zrem": "db zrem shop z m",
    "db push": "db push shop l 1 2",
    "db pop": "db pop shop l",
    "db incr": "db incr shop n",
    "db gc": "db gc shop",
    "fs drives": "fs drives",
    "fs ls": "fs ls home:",
    "fs tree": "fs tree home:",
    "fs du": "fs du home:",
    "fs mkdir": "fs mkdir -p home:/y",
    "fs put": "fs put {file} home:/y/",
    "fs cp": "fs cp {file} home:/y/b",
    "fs get": "fs get home:/y/b {tmp}/got",
    "fs mv": "fs mv home:/y/b home:/y/c",
    "fs sync": "fs sync {tmp}/folder home:/z",
    "fs rm": "fs rm -r home:/y",
    "venue register": "venue register {metadata}",
    "venue upload": "venue upload {asset} {content}",
    "venue assets": "venue assets",
    "venue jobs": "venue jobs",
    "venue show": "venue show",
    "venue verify": "venue verify",
    "venue operations": "venue operations",
    "venue invoke": "venue invoke v/ops/json/merge values=[]",
    "get": "get",
    "put": "put data --value 1",
    "history": "history",
    "show": "show HEAD",
    "diff": "diff HEAD~1",
    "checkout": "checkout HEAD --into {tmp}/fork",
    "audit": "audit",
    "pin add": "pin add keep",
    "pin list": "pin list",
    "pin remove": "pin remove keep",
    "forks list": "forks list",
    "hosting show": "hosting",
    "hosting allow": f"hosting allow {OTHER}",
    "hosting refuse": f"hosting refuse {OTHER}",
    "hosting limit": f"hosting limit {OTHER} 1MB",
    "host": f"host {OTHER}",
    "forget": f"forget {OTHER}",
    "disk check": "disk check",
    "disk heal": "disk heal",
    "disk repair": "disk repair",
    "disk stats": "disk stats",
    "disk gc": "disk gc",
    "disk forget": "disk forget 1h",
    "disk export": "disk export HEAD {tmp}/archive",
    "disk import": "disk import {tmp}/archive --pin got",
    "disk backup": "disk backup {tmp}/backup",
    "etch write": "etch write {tmp}/e --text 1 --root",
    "etch info": "etch info {tmp}/e",
    "etch dump": "etch dump {tmp}/e",
    "etch read": f"etch read {{tmp}}/e {OTHER}",
    "etch validate": "etch validate {tmp}/e",
    "etch gc": "etch gc {tmp}/e",
    "etch clear": "etch clear {tmp}/e",
    "etch export": "etch export {tmp}/e2",
    "etch import": "etch import {tmp}/e2",
}
"""A call of each command that succeeds, in an order in which each has what it needs."""

ELSEWHERE = {
    "node start": "tests/integration/test_cli_processes.py",
    "daemon": "tests/integration/test_doors.py",
    "mcp": "tests/integration/test_mcp.py",
    "forks show": "tests/unit/cli/test_forks_commands.py",
    "forks resolve": "tests/unit/cli/test_forks_commands.py",
    "forks export": "tests/unit/cli/test_forks_commands.py",
    "forks verify": "tests/unit/cli/test_forks_commands.py",
    "disk sweep": "tests/unit/cli/test_garbage_commands.py",
    "repl": "tests/unit/cli/repl",
    "conformance": "tests/unit/cli/test_conformance_command.py",
    "fs cat": "tests/unit/cli/test_fs.py",
    "venue download": "tests/unit/cli/test_venue.py",
    "venue start": "tests/integration/test_venue_adapters.py",
    "venue job": "tests/unit/cli/test_venue_running.py",
    "venue message": "tests/unit/cli/test_venue_running.py",
    "venue pause": "tests/unit/cli/test_venue_running.py",
    "venue resume": "tests/unit/cli/test_venue_running.py",
    "venue cancel": "tests/unit/cli/test_venue_running.py",
    "venue delete": "tests/unit/cli/test_venue_running.py",
    "kv watch": "tests/unit/cli/test_store_commands.py",
    "weave inspect": "tests/unit/cli/test_store_commands.py",
    "weave branch": "tests/unit/cli/test_store_commands.py",
    "store sync": "tests/unit/cli/test_convergence_commands.py",
    "peer join": "tests/unit/cli/test_peer_commands.py",
    "peer revoke": "tests/unit/cli/test_peer_commands.py",
    "spark": "tests/integration",
}
"""Commands that other tests call: they need Spark or a fork, or print bytes."""

LIVE = {"db watch", "node watch", "store watch"}
"""They print a document a line."""


def leaves(command: Any, path: str = "") -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path.strip()
        return
    for name, one in below.items():
        yield from leaves(one, f"{path} {name}")


def test_the_table_has_every_command() -> None:
    others = {path for path in leaves(built()) if path.startswith("spark ")}
    assert set(leaves(built())) - others == set(CALLS) | set(ELSEWHERE) - {"spark"}


@pytest.fixture
def words(lattice: Lattice, tmp_path: Path) -> dict[str, str]:
    """Fill a folder, and return what the calls name."""
    for setting in (
        "queue offer log one two",
        "db set shop k 1",
        "db hset shop h f 1",
        "fs mkdir -p home:/x",
        "queue tail log --consumer robot",
        "kv put notes k v",
        "log append diary x",
        "store create team",
        "store create child --parent team",
    ):
        assert lattice(*setting.split()).code == 0
    (tmp_path / "folder").mkdir()
    files = {
        "file": "text",
        "content": "text",
        "metadata": json.dumps({"name": "a", "content": {"sha256": sha256(b"text").hexdigest()}}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    asset = lattice("venue", "register", tmp_path / "metadata").out.strip()
    return {"tmp": str(tmp_path), "asset": asset, **{name: str(tmp_path / name) for name in files}}


def test_every_command_prints_json_lines_and_text(lattice: Lattice, words: dict[str, str]) -> None:
    """The shared options stand before the command here; other tests have them behind it."""
    wrong = []

    def check(path: str, form: str) -> None:
        ran = lattice("--as", form, *CALLS[path].format(**words).split())
        if ran.code != 0:
            wrong.append(f"{path} --as {form}: {ran.err}")
        try:
            if form == "json" and path not in LIVE:
                json.loads(ran.out)
            elif form != "text":
                [json.loads(line) for line in ran.out.splitlines()]
        except ValueError as error:
            wrong.append(f"{path} --as {form}: {error}")

    with_node = [path for path in CALLS if path.startswith("node ")]
    for path in CALLS:
        if path not in with_node[2:]:
            check(path, "json")
    for path in ("queue range", "queue list", "db keys", "history", "pin list", "disk stats"):
        check(path, "lines")
        check(path, "text")
    assert not wrong, "\n".join(wrong)


def test_commands_of_a_running_node_print_json(lattice: Lattice, words: dict[str, str]) -> None:
    home = Path(words["tmp"]) / "home"
    with running_node(home):
        for path in ("node status", "node ticket", "node peers list", "node watch"):
            ran = lattice(*CALLS[path].split(), "--json")
            assert ran.code == 0, ran.err
            json.loads(ran.out)


# --- forms --------------------------------------------------------------------------------------


def test_lists_are_tab_separated_in_a_pipe_and_tables_on_demand(
    lattice: Lattice, owner: str
) -> None:
    lattice("queue", "offer", "log", "a\tb")
    assert lattice("queue", "list").out == f"{owner[:16]}\tlog\t1\t1\n"
    assert "\u2502" in lattice("queue", "list", "--as", "table").out
    records = lattice("queue", "tail", "log", "--as", "table").out
    assert "offset" in records, "records are a table on demand, too"
    assert "\u2502" in records
    cells = [cell.strip() for cell in records.splitlines()[3].split("\u2502")[1:-1]]
    assert [*cells[:3], cells[4], cells[5][:1]] == [owner[:8], "0", "0", "", "a"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", cells[3])
    assert lattice("key", "name", "north", owner[:6]).code == 0
    assert lattice("queue", "list", "-o", "north").out == "north\tlog\t1\t1\n"
    assert lattice("queue", "peek", "log", "-o", owner[:4]).out == "a\tb\n"
    assert "at least 4" in lattice("queue", "peek", "log", "-o", owner[:3]).line()


def test_reading_the_only_other_owner_is_said_and_quiet_keeps_it_back(
    lattice: Lattice, tmp_path: Path
) -> None:
    lattice("queue", "offer", "log", "theirs", "-d", tmp_path / "a")
    lattice("disk", "export", "HEAD", tmp_path / "file", "-d", tmp_path / "a")
    lattice("queue", "offer", "mine", "x")
    lattice("disk", "import", tmp_path / "file", "--merge")
    ran = lattice("queue", "tail", "log")
    assert ran.out == "theirs\n"
    assert ran.line().startswith("this is the topic 'log' of ")
    assert lattice("--quiet", "queue", "tail", "log").err == ""


@pytest.mark.usefixtures("owner")
def test_tail_prints_the_last_records_and_a_consumer_goes_on(lattice: Lattice) -> None:
    lattice("queue", "offer", "log", *[f"{n}" for n in range(20)])
    assert lattice("queue", "tail", "log").out.split() == [f"{n}" for n in range(10, 20)]
    assert lattice("queue", "tail", "log", "-n", 2, "--count", 1).out == "18\n"
    assert lattice("queue", "tail", "log", "-f", "-n", 1, "--for", "0.01").out == "19\n"
    taken = lattice("queue", "tail", "log", "--consumer", "c", "--count", 3).out
    assert taken == "0\n1\n2\n"
    assert lattice("queue", "tail", "log", "--consumer", "c", "--count", 1).out == "3\n"
    (at,) = lattice("queue", "consumers", "--json").document
    assert (at["consumer"], at["topic"], at["next"]) == ("c", "log", 4)
    assert lattice("queue", "seek", "c", "18").out == "log 0: 18\n"
    assert len(lattice("queue", "tail", "log", "--consumer", "c", "--json").document) == 2
    assert lattice("queue", "seek", "d", "start").code == 1


@pytest.mark.usefixtures("owner")
def test_every_reading_command_takes_a_former_root(lattice: Lattice) -> None:
    lattice("db", "set", "shop", "k", "old")
    lattice("queue", "offer", "log", "first")
    lattice("db", "set", "shop", "k", "new")
    lattice("queue", "offer", "log", "second")
    assert lattice("db", "get", "shop", "k", "--as-of", "HEAD~2").out == "old\n"
    assert lattice("queue", "range", "log", "--as-of", "HEAD~1").out == "first\n"
    assert lattice("queue", "tail", "log", "--as-of", "HEAD~1").out == "first\n"
    assert lattice("queue", "tail", "log", "-f", "--as-of", "HEAD~1").code == 2
    lattice("fs", "mkdir", "-p", "home:/new")
    assert lattice("fs", "ls", "home:").out == "new/\n"
    assert lattice("fs", "ls", "home:", "--as-of", "HEAD~1").code == 1
    assert lattice("fs", "drives", "--as-of", "HEAD~1", "--json").document == []
    assert lattice("--as-of", "0s ago", "queue", "range", "log").out == "first\nsecond\n"


def test_options_stand_before_the_group_the_command_or_behind(
    lattice: Lattice, tmp_path: Path
) -> None:
    there = str(tmp_path / "there")
    lattice("queue", "offer", "log", "x", f"--dir={there}")
    for call in (
        ("--dir", there, "queue", "tail", "log"),
        ("queue", "-d", there, "tail", "log"),
        ("queue", "tail", "log", "-d", there),
    ):
        assert lattice(*call).out == "x\n"
    assert lattice("--owner", "own", "key", "list").line().startswith("No such option: --owner")


# --- exit codes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoSuchPath("absent"), 1),
        (Corruption("damaged"), 1),
        (DataLoss("gone"), 1),
        (OSError(5, "broken"), 1),
        (UsageError("wrong"), 2),
        (ZeroDivisionError("fault"), 70),
        (StoreLocked("held"), 75),
        (Timeout("late"), 75),
        (Unauthorized("no"), 77),
        (Unauthenticated("who"), 77),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (main._Terminated(), 143),
    ],
    ids=str,
)
@pytest.mark.usefixtures("owner")
def test_each_error_has_its_exit_code(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    lattice("queue", "offer", "log", "x")
    monkeypatch.setattr("datalattice.cli.command.reading", fails)
    ran = lattice("queue", "peek", "log")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == (0 if code in (130, 141, 143) else 1)
    assert "Traceback" in lattice("queue", "peek", "log", "--debug").err or code in (130, 141, 143)


def test_the_wait_for_another_writer_is_chosen(lattice: Lattice, tmp_path: Path) -> None:
    lattice("db", "set", "shop", "k", "1")
    code = (
        "import fcntl, sys; held = open(sys.argv[1]); fcntl.flock(held, fcntl.LOCK_EX); "
        "print('held', flush=True); input()"
    )
    lock = tmp_path / "home" / "store" / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        ran = lattice("db", "set", "shop", "k", "2", "--wait", "50ms")
        assert ran.code == 75
        assert "0.05 s" in ran.line()
        holder.communicate(b"\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_comes_in_a_finalizer_is_not_lost(number: int, code: int) -> None:
    """Python drops what a signal raises in `__del__`: the command would go on."""
    program = (
        "import os, time\n"
        "from datalattice.cli import main\n"
        "class Last:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        time.sleep(0)\n"
        "def work(*_, **__):\n"
        "    last = Last()\n"
        "    del last\n"
        "    print('it goes on', flush=True)\n"
        "    time.sleep(30)\n"
        "main.main(work)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ran.returncode, ran.stderr) == (code, "")


def test_run_again_prints_as_it_is_asked_to(lattice: Lattice, owner: str) -> None:
    """A form is that of one call: the next one in this process has its own."""
    assert lattice("key", "show", "--json").document["public_key"] == owner
    assert lattice("key", "show").out == f"{owner}\n"
    assert run(["key", "show"]) == 0
