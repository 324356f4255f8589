"""The command `lattice` as processes: nodes, signals, streams, two writers, broken stores."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from datalattice.node.admission import FILES_RESERVED
from datalattice.store import CellStore
from datalattice.testing.processes import killing

PATIENCE_S = 120.0
COMMAND = [sys.executable, "-m", "datalattice.cli"]
FULL = Path("/dev/full")

pytestmark = [pytest.mark.once, pytest.mark.processes]

Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with a key."""
    folder = tmp_path / "home"
    assert lattice(folder, "key", "new").returncode == 0
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "DATALATTICE_HOME": str(folder), "DATALATTICE_DEBUG": ""}


def lattice(folder: Path, *arguments: str, input: str | None = None, **more: Any) -> Ran:
    """Run one command to its end."""
    if "stdout" not in more and "preexec_fn" not in more:
        more["stdout"] = subprocess.PIPE
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(folder) | more.pop("env", {}),
        input=input,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **more,
    )


def line(ran: Ran) -> str:
    """Return the one line that a mistake gives."""
    assert ran.stderr.startswith("lattice: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr.removeprefix("lattice: ").rstrip("\n")


def records(folder: Path, topic: str) -> list[str]:
    return lattice(folder, "queue", "range", topic).stdout.splitlines()


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start commands that go on; whatever still runs at the end is ended."""
    with contextlib.ExitStack() as ending:

        def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                env=environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            return ending.enter_context(killing(process))

        yield start


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def node(start: Start, folder: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """Start a node; return it and its address once it serves."""
    process = start(folder, "node", "start", "--port", "0", *options)
    said = pipe(process.stdout).readline()
    assert said.startswith("listening at "), pipe(process.stderr).read()
    return process, said.split()[-1]


# --- nodes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_ends_in_order_when_told_to(home: Path, start: Start, number: int) -> None:
    process, _ = node(start, home)
    lattice(home, "queue", "offer", "t", "a")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")
    assert not (home / "running.json").exists()
    assert not (home / "control.sock").exists()
    assert records(home, "t") == ["a"]


def test_a_node_is_stopped_by_a_command_that_returns_when_its_store_is_closed(
    home: Path, start: Start
) -> None:
    process, _ = node(start, home)
    lattice(home, "queue", "offer", "t", "a")
    stopped = lattice(home, "node", "stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"process {process.pid} has ended\n")
    CellStore.open(home / "store").close()  # the lock is free
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == 0
    again = lattice(home, "node", "stop")
    assert (again.returncode, line(again)) == (
        75,
        f"no node runs in {home}; there is nothing to stop",
    )


def test_two_copies_of_a_folder_that_know_only_each_other_are_told_of(
    home: Path, start: Start, tmp_path: Path
) -> None:
    lattice(home, "queue", "offer", "t", "a")
    copy = shutil.copytree(home, tmp_path / "copy")
    _, address = node(start, home)
    node(start, copy, "--peer", address, "--accept-unfenced")
    deadline_s = time.monotonic() + PATIENCE_S
    for folder in (home, copy):
        health = ""
        while "another node runs with the identity" not in health:
            assert time.monotonic() < deadline_s, health
            health = lattice(folder, "node", "status").stdout
        refused = lattice(folder, "queue", "offer", "t", "b")
        assert refused.returncode != 0
        assert "lattice key identity new" in refused.stderr


@pytest.mark.parametrize("beside", ["a node", "nothing"])
def test_lines_of_a_pipe_are_on_disk_while_it_stays_open(
    home: Path, start: Start, beside: str
) -> None:
    if beside == "a node":
        node(start, home)
    process = start(home, "queue", "offer", "t")
    stdin = pipe(process.stdin)
    for count in (1, 2):
        stdin.write(f"line {count}\nbegun ")
        stdin.flush()
        while len(records(home, "t")) < count:
            assert process.poll() is None
    assert records(home, "t") == ["line 1", "begun line 2"]
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "t 0: offsets 0 to 2\n", "")
    assert records(home, "t")[-1] == "begun "


def test_writes_go_through_the_node_and_reads_beside_it(home: Path, start: Start) -> None:
    node(start, home)
    assert lattice(home, "queue", "offer", "t", "a", "b").stdout == "t 0: offsets 0 to 1\n"
    lines = "".join(f"line {n}\n" for n in range(2_500))
    assert lattice(home, "queue", "offer", "t", input=lines).returncode == 0
    assert records(home, "t") == ["a", "b", *lines.splitlines()]
    assert lattice(home, "queue", "truncate", "t", "2").stdout == "t 0: 2 removed\n"
    wrong = lattice(home, "queue", "truncate", "tt", "2")
    assert wrong.returncode == 1
    assert "no topic 'tt'" in line(wrong)
    status = json.loads(lattice(home, "node", "status", "--json").stdout)
    assert status["running"] is True
    assert (status["health"], status["damage"]) == ("ok", [])
    with CellStore.open(home / "store", read_only=True) as store:
        assert store.root() is not None


def test_a_second_node_and_a_port_in_use_are_one_line_each(
    home: Path, start: Start, tmp_path: Path
) -> None:
    process, address = node(start, home)
    second = lattice(home, "node", "start", "--port", "0")
    assert (second.returncode, second.stdout) == (2, "")
    assert line(second).endswith(f"already: process {process.pid} at {address}")
    port = address.rpartition(":")[2]
    other = lattice(tmp_path / "other", "node", "start", "--port", port)
    assert (other.returncode, other.stdout) == (2, "")
    assert line(other) == f"port {port} on 127.0.0.1 is in use by another process; choose another"
    as_json = lattice(tmp_path / "other", "node", "start", "--port", port, "--json")
    assert json.loads(as_json.stderr)["error"] == "usage"


def test_pull_works_with_a_node_and_without_and_a_start_makes_the_key_that_writes_need(
    home: Path, start: Start, tmp_path: Path
) -> None:
    _, address = node(start, home)
    lattice(home, "queue", "offer", "t", "a", "b")
    follower = tmp_path / "follower"
    alone = lattice(follower, "node", "pull", f"tls://{address}", "--json")
    assert alone.returncode == 0, alone.stderr
    assert records(follower, "t") == ["a", "b"]
    process, _ = node(start, follower, "--peer", address)
    made = pipe(process.stderr).readline()
    key = lattice(follower, "key", "show").stdout.strip()
    assert made == f"lattice: made the key {key} in {follower}\n"
    lattice(home, "queue", "offer", "t", "c")
    for arguments in ([], [address], [f"tls://{address}"]):
        pulled = lattice(follower, "node", "pull", *arguments)
        assert pulled.returncode == 0, pulled.stderr
    assert records(follower, "t") == ["a", "b", "c"]
    stranger = lattice(follower, "node", "pull", "127.0.0.1:1")
    assert stranger.returncode == 2
    assert "has no peer 127.0.0.1:1" in line(stranger)
    asked = json.loads(lattice(follower, "node", "status", address, "--json").stdout)
    assert asked["reply"] == "PONG"
    assert lattice(follower, "queue", "offer", "t", "x").returncode == 0
    assert records(follower, "t") == ["x"]


@pytest.mark.parametrize("arguments", [["node", "status"], ["node", "pull"]], ids=" ".join)
def test_nobody_at_an_address_is_one_line(home: Path, arguments: list[str]) -> None:
    ran = lattice(home, *arguments, "127.0.0.1:1")
    assert ran.returncode == 75
    assert line(ran) == "127.0.0.1:1 cannot be reached: Connection refused"


def test_a_crowd_of_connections_does_not_shut_the_owner_out(home: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))

    process = subprocess.Popen(
        [*COMMAND, "node", "start", "--port", "0"],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=few_files,  # noqa: PLW1509 - this process has no other threads
    )
    crowd: list[socket.socket] = []
    with contextlib.ExitStack() as ending:
        ending.enter_context(killing(process))
        host, port = pipe(process.stdout).readline().split()[-1].split(":")
        with contextlib.suppress(OSError):  # this process may have its own limit
            for _ in range(900):
                one = socket.create_connection((host, int(port)), PATIENCE_S)
                crowd.append(ending.enter_context(one))
        assert len(crowd) > 500
        assert lattice(home, "queue", "offer", "t", "a").stdout == "t 0: offset 0\n"
        status = json.loads(lattice(home, "node", "status", "--json").stdout)
        assert status["health"] == "ok"
        assert status["connections"] <= 1_024 - FILES_RESERVED
        assert status["counters"]["strangers-evicted"] > 0
        for one in crowd:
            one.close()
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")


# --- two writers -------------------------------------------------------------------------------


def test_two_offers_at_once_wait_for_each_other_and_lose_nothing(home: Path, start: Start) -> None:
    first, second = (start(home, "queue", "offer", "t") for _ in range(2))
    outs = []
    for process, name in ((first, "x"), (second, "y")):
        pipe(process.stdin).write("".join(f"{name}{n}\n" for n in range(3_000)))
        pipe(process.stdin).close()
        process.stdin = None  # else it would be flushed once more
    for process in (first, second):
        outs.append(pipe(process.stdout).read())
        assert process.wait(PATIENCE_S) == 0
    assert sorted(outs) == ["t 0: offsets 0 to 2999\n", "t 0: offsets 3000 to 5999\n"]
    found = records(home, "t")
    assert [one for one in found if one[0] == "x"] == [f"x{n}" for n in range(3_000)]
    assert [one for one in found if one[0] == "y"] == [f"y{n}" for n in range(3_000)]


def test_a_writer_that_does_not_end_is_one_line(home: Path) -> None:
    with CellStore.open(home / "store"):
        ran = lattice(home, "queue", "offer", "t", "a", "--wait", "1s")
    assert (ran.returncode, ran.stdout) == (75, "")
    assert line(ran).startswith("waited 1 s in vain: ")
    assert f"process {os.getpid()}" in line(ran)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_offer_that_is_interrupted_keeps_what_it_wrote(
    home: Path, start: Start, number: int, code: int
) -> None:
    process = start(home, "queue", "offer", "t")
    for n in range(1_500):
        pipe(process.stdin).write(f"{n}\n")
    pipe(process.stdin).flush()
    while not records(home, "t"):  # the first batch is on disk then
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (code, "", "")
    kept = records(home, "t")
    assert len(kept) >= 1_000  # a full batch; what came later is committed after a moment
    assert kept == [str(n) for n in range(len(kept))]


# --- streams -----------------------------------------------------------------------------------


def test_closed_streams_are_no_fault(home: Path) -> None:
    for closed in ((0,), (1,), (2,), (0, 1, 2)):

        def close(closed: tuple[int, ...] = closed) -> None:
            for number in closed:
                os.close(number)

        ran = subprocess.run(
            [*COMMAND, "queue", "offer", "t"],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            preexec_fn=close,
        )
        assert ran.returncode == 2
        assert ran.stdout == ""
        assert ran.stderr == "" if 2 in closed else "no values" in line(ran)


def test_a_reader_that_goes_away_ends_it_in_silence(home: Path, start: Start) -> None:
    lattice(home, "queue", "offer", "t", input="a line that is long enough\n" * 20_000)
    process = start(home, "queue", "range", "t")
    assert pipe(process.stdout).readline() == "a line that is long enough\n"
    pipe(process.stdout).close()
    assert pipe(process.stderr).read() == ""
    assert process.wait(PATIENCE_S) == 141


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_output_is_one_line(home: Path) -> None:
    lattice(home, "queue", "offer", "t", "a")
    with FULL.open("w") as full:
        ran = lattice(home, "queue", "range", "t", stdout=full)
    assert ran.returncode == 1
    assert "No space left on device" in line(ran)


def test_any_text_goes_through_any_encoding(home: Path) -> None:
    text = os.fsdecode(b"\xff \xe2\x98\x83")  # bytes that are not UTF-8, and a snowman
    lattice(home, "queue", "offer", "t", text)
    for encoding, shown in (
        ("utf-8:strict", b"\xff \xe2\x98\x83\n"),
        ("ascii", b"\\udcff \\u2603\n"),
    ):
        ran = subprocess.run(
            [*COMMAND, "queue", "peek", "t"],
            env=environment(home) | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert ran.stdout == shown
        as_json = lattice(home, "queue", "peek", "t", "--json", env={"PYTHONIOENCODING": encoding})
        assert json.loads(as_json.stdout)["value"] == text


def test_completion_is_there(home: Path) -> None:
    shown = lattice(
        home,
        env={
            "_LATTICE_COMPLETE": "complete_bash",
            "COMP_WORDS": "lattice queue o",
            "COMP_CWORD": "2",
        },
    )
    assert shown.stdout.split() == ["offer"]


def test_the_command_starts_without_what_it_does_not_need(home: Path) -> None:
    lattice(home, "queue", "offer", "t", "a")
    program = (
        "import sys\n"
        "from datalattice.cli.main import run\n"
        "assert run(['queue', 'info', 't']) == 0\n"
        "heavy = {'pyspark', 'pandas', 'pyarrow', 'numpy', 'matplotlib', 'py4j'}\n"
        "assert not heavy & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        env=environment(home),
        check=True,
        timeout=PATIENCE_S,
        stdout=subprocess.DEVNULL,
    )


# --- stores that are not as they were left -------------------------------------------------------


def fill(folder: Path) -> Path:
    """Write some batches; return the segment that holds them."""
    lattice(folder, "queue", "offer", "t", input="".join(f"record {n}\n" for n in range(5_000)))
    (segment,) = (folder / "store" / "segments").iterdir()
    return segment


def flip(path: Path, start: int, stop: int, step: int) -> None:
    """Change bytes of a file in place."""
    with path.open("r+b") as file:
        data = bytearray(file.read())
        for position in range(start, min(stop, len(data)), step):
            data[position] ^= 0x55
        file.seek(0)
        file.write(data)


def test_flipped_bytes_are_one_line_that_names_the_place(home: Path) -> None:
    segment = fill(home)
    size = segment.stat().st_size
    flip(segment, size // 4, size // 2, 97)
    for arguments in (["range", "t"], ["range", "t", "--long"], ["truncate", "t", "2500"]):
        ran = lattice(home, "queue", *arguments)
        assert ran.returncode == 1
        assert f"{segment} at byte " in line(ran)
        assert "does not fit its hash" in line(ran)
    as_json = lattice(home, "get", "--full", "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stderr)["error"] == "corruption"
    with pytest.raises(json.JSONDecodeError):  # written as it was read, so it breaks off
        json.loads(as_json.stdout)
    # What is whole stays usable.
    assert lattice(home, "queue", "peek", "t", "--last").stdout == "record 4999\n"


def test_damage_that_a_start_finds_is_said_and_shows_in_the_status(
    home: Path, start: Start
) -> None:
    segment = fill(home)
    size = segment.stat().st_size
    flip(segment, size // 4, size // 2, 97)
    shutil.rmtree(home / "store" / "index")  # so that all is read again
    offered = lattice(home, "queue", "offer", "t", "more")
    assert offered.stdout == "t 0: offset 5000\n"
    notices = offered.stderr.splitlines()
    assert notices
    assert all(one.startswith(f"lattice: {segment} at byte ") for one in notices)
    ran = lattice(home, "queue", "range", "t")
    assert ran.returncode == 1
    assert "is damaged (missing cells: 0x" in line(ran)
    assert "`lattice disk heal` fetches them from peers" in line(ran)
    shutil.rmtree(home / "store" / "index")
    node(start, home)
    status = json.loads(lattice(home, "node", "status", "--json").stdout)
    assert status["damage"]
    assert status["health"].startswith("degraded: ")
    assert set(status["reasons"]) == {"damage", "missing"}
    assert "damaged: " in lattice(home, "node", "status").stdout


def test_a_segment_that_is_gone_is_one_line(home: Path) -> None:
    segment = fill(home)
    segment.unlink()
    for arguments in (["queue", "range", "t"], ["queue", "offer", "t", "a"], ["node", "start"]):
        ran = lattice(home, *arguments)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert str(segment) in line(ran)
        assert "the segment is gone" in line(ran)


def test_a_store_of_a_newer_version_is_one_line(home: Path) -> None:
    fill(home)
    path = home / "store" / "STORE"
    path.write_text(path.read_text("ascii").replace("version 6", "version 7"), "ascii")
    for arguments in (["queue", "range", "t"], ["queue", "offer", "t", "a"], ["node", "start"]):
        ran = lattice(home, *arguments)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "a store of format version 7; this package reads up to 6" in line(ran)
    as_json = lattice(home, "queue", "info", "t", "--json")
    assert json.loads(as_json.stderr)["error"] == "store-version"


def test_a_copied_folder_and_a_damaged_index_just_work(home: Path, tmp_path: Path) -> None:
    fill(home)
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    assert lattice(copy, "queue", "peek", "t", "--last").stdout == "record 4999\n"
    for writes in (False, True):
        flip(copy / "store" / "index" / "data.mdb", 0, 1 << 20, 5)
        if writes:
            assert lattice(copy, "queue", "offer", "t", "x").stdout == "t 0: offset 5000\n"
        assert len(records(copy, "t")) == 5_000 + writes


def test_the_first_minutes_of_two_sites(start: Start, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert lattice(here, "queue", "offer", "log", "hello").returncode == 0
    assert lattice(here, "queue", "tail", "log").stdout == "hello\n"
    assert lattice(here, "db", "set", "shop", "opened", "true", "--in", "json").returncode == 0
    key = lattice(here, "key", "show").stdout.strip()
    _, address = node(start, here)
    node(start, there, "--peer", address)
    follower = start(there, "queue", "tail", "log", "-f", "--count", "2")
    assert pipe(follower.stdout).readline() == "hello\n"
    assert lattice(there, "key", "name", "north", key[:4]).returncode == 0
    assert lattice(there, "db", "get", "shop", "opened", "-o", "north").stdout == "true\n"
    assert lattice(here, "queue", "offer", "log", "again").returncode == 0
    out, _ = follower.communicate(timeout=PATIENCE_S)
    assert (out, follower.returncode) == ("again\n", 0)
    peers = json.loads(lattice(here, "node", "peers", "--json").stdout)
    assert [one["source"] for one in peers] == ["inbound"]
    assert lattice(there, "node", "stop").returncode == 0


def test_a_follower_whose_reader_goes_away_ends_in_silence(home: Path, start: Start) -> None:
    lattice(home, "queue", "offer", "t", "a")
    follower = start(home, "queue", "tail", "t", "-f")
    assert pipe(follower.stdout).readline() == "a\n"
    pipe(follower.stdout).close()
    lattice(home, "queue", "offer", "t", "b")
    assert follower.wait(PATIENCE_S) == 141
    assert pipe(follower.stderr).read() == ""
