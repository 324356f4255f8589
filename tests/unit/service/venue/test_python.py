"""Adapter `python`: what a function can do, and what it cannot in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from datalattice.client.settings import VenuePythonConfig
from datalattice.errors import LimitExceeded, UsageError
from datalattice.service.venue import Json, OperationFailed, OperationMetadata, RecoveryRule
from datalattice.service.venue.adapters import processes
from datalattice.service.venue.adapters.processes import PIPE_BYTES_MAX
from datalattice.service.venue.adapters.python import PythonAdapter, RegisteredFunction
from datalattice.testing.processes import killing
from datalattice.testing.venue_kit import LoneJob

FUNCTIONS = """
import os, signal, subprocess, sys, tempfile, time

def echo(given): return given
def keyed(given, key): return [given, key]
def loud(given):
    print("not an answer"); os.write(1, b"nor this"); sys.stderr.write("x" * 1_000_000)
    return "quiet"
def eat(given): return len(bytearray(given))
def forever(given):
    while True: pass
def wait(given): time.sleep(600)
def stubborn(given):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
def family(given):
    pids = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            time.sleep(600); os._exit(0)
        pids.append(pid)
    pids.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
    with open(given, "w") as file: file.write(" ".join(map(str, pids)))
    return pids
def family_waits(given): family(given); time.sleep(600)
def text(size): return "x" * size
def fail(given): raise ValueError(given)
def leave(code): os._exit(code)
def quit(given): sys.exit("done")
def kill_itself(given): os.kill(os.getpid(), signal.SIGSEGV)
def not_json(given):
    return {"object": object(), "nan": float("nan"), "key": {(1, 2): 3}, "set": {1}}[given]
def deep(given):
    value = []
    for _ in range(given): value = [value]
    return value
def forge(given):
    for fd in range(3, 10):
        try: os.write(fd, bytes.fromhex(given))
        except OSError: pass
    time.sleep(600)
def surroundings(given):
    with open("own.txt", "w") as file: file.write("x")
    return {"environ": dict(os.environ), "cwd": os.getcwd(), "files": os.listdir("."),
            "temp": tempfile.gettempdir(), "session": os.getsid(0) == os.getpid(),
            "open": len(os.listdir("/proc/self/fd"))}
def write_file(size):
    with open("big", "wb") as file: file.write(bytes(size))
def open_files(count): return len([open(os.devnull) for _ in range(count)])
def raise_limits(given):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
NAMES = [line.split()[1].partition("(")[0] for line in FUNCTIONS.splitlines() if line[:4] == "def "]


@pytest.fixture(autouse=True)
def _functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "venue_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)


def adapter(**limits: Any) -> PythonAdapter:
    functions = [
        RegisteredFunction(name, f"venue_functions:{name}", keyed=name == "keyed") for name in NAMES
    ]
    return PythonAdapter(functions, VenuePythonConfig(**{"cpu_s": 30, **limits}))


def meta(name: str) -> OperationMetadata:
    return {"operation": {"adapter": f"python:{name}"}}


def call(name: str, given: Json = None, **limits: Any) -> Any:
    runner = adapter(**limits)
    runner.check(meta(name), given)
    return asyncio.run(runner.run(LoneJob(), meta(name), given))


def await_end(pid: int) -> None:
    """Return once a process has ended; if it never does, the test fails by its time limit."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        select.select([handle], [], [])
        os.close(handle)


# --- in a process of its own ------------------------------------------------------------------


def test_a_function_gets_and_returns_json() -> None:
    value: Json = {"a": [1, 2.5, None, True, "é\ud800"]}
    assert call("echo", value) == value
    assert call("keyed", 1) == [1, LoneJob().effect_key().hex()]


def test_what_it_prints_is_not_in_the_answer() -> None:
    assert call("loud") == "quiet"


def test_what_it_raises_is_the_error() -> None:
    with pytest.raises(OperationFailed, match=r"^ValueError: it broke$"):
        call("fail", "it broke")
    with pytest.raises(OperationFailed, match=r"^SystemExit: done$"):
        call("quit")
    with pytest.raises(OperationFailed) as caught:
        call("fail", "x" * 10_000)
    assert len(str(caught.value)) == 4_096


@pytest.mark.parametrize("kind", ["object", "nan", "key", "set"])
def test_what_is_not_json_is_an_error(kind: str) -> None:
    with pytest.raises(OperationFailed, match="its result is not JSON"):
        call("not_json", kind)


def test_values_that_nest_too_deep_are_an_error() -> None:
    with pytest.raises(OperationFailed, match=r"no result|not JSON"):
        call("deep", 100_000)


def test_a_process_that_ends_is_an_error() -> None:
    with pytest.raises(OperationFailed, match="ended with code 3 without a result"):
        call("leave", 3)
    with pytest.raises(OperationFailed, match="ended by signal 11 without a result"):
        call("kill_itself")


def test_memory_is_limited() -> None:
    assert call("eat", 64 << 20, memory_bytes=512 << 20) == 64 << 20
    with pytest.raises(OperationFailed, match="MemoryError"):
        call("eat", 512 << 20, memory_bytes=512 << 20)
    with pytest.raises(OperationFailed, match=r"ValueError|PermissionError"):
        call("raise_limits")


def test_processor_time_is_limited() -> None:
    with pytest.raises(OperationFailed, match="may use 1 s of processor time"):
        call("forever", cpu_s=1)


def test_time_is_limited() -> None:
    with pytest.raises(OperationFailed, match=r"took more than 0.5 s"):
        call("wait", time_s=0.5)


def test_who_ignores_the_first_signal_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_S", 0.1)
    with pytest.raises(OperationFailed, match=r"took more than 1 s"):
        call("stubborn", time_s=1)


def test_files_are_limited() -> None:
    call("write_file", 1 << 16, file_bytes=1 << 16)
    with pytest.raises(OperationFailed, match="File too large"):
        call("write_file", (1 << 16) + 1, file_bytes=1 << 16)
    assert call("open_files", 8, files=20) == 8
    with pytest.raises(OperationFailed, match="Too many open files"):
        call("open_files", 20, files=20)


def test_a_result_has_so_many_bytes() -> None:
    fits = PIPE_BYTES_MAX - len('{"result": ""}')
    assert len(call("text", fits - 1)) == fits - 1
    assert len(call("text", fits)) == fits
    with pytest.raises(LimitExceeded, match=f"result .* at most {PIPE_BYTES_MAX}"):
        call("text", fits + 1)


def test_an_input_has_so_many_bytes() -> None:
    with pytest.raises(LimitExceeded, match=f"input .* at most {PIPE_BYTES_MAX}"):
        call("echo", "x" * PIPE_BYTES_MAX)


def test_its_children_end_with_it(tmp_path: Path) -> None:
    pids = call("family", str(tmp_path / "pids"))
    assert len(pids) == 4
    for pid in pids:
        await_end(pid)


def test_cancelling_the_job_ends_the_process_and_its_children(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    os.mkfifo(path)

    async def run() -> list[str]:
        running = asyncio.create_task(adapter().run(LoneJob(), meta("family_waits"), str(path)))
        pids = (await asyncio.to_thread(path.read_text)).split()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return pids

    pids = asyncio.run(run())
    assert len(pids) == 4
    for pid in pids:
        await_end(int(pid))


def test_the_process_ends_with_the_venue(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    os.mkfifo(path)
    code = (
        "import asyncio, sys; from datalattice.client.settings import VenuePythonConfig\n"
        "from datalattice.service.venue.adapters.processes import call_in_process\n"
        "limits = VenuePythonConfig()\n"
        "call = call_in_process('venue_functions:family_waits', [sys.argv[1]], limits)\n"
        "asyncio.run(call)"
    )
    temp = tmp_path / "temp"
    temp.mkdir()
    modules = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": modules, "TMPDIR": str(temp)}
    started = subprocess.Popen([sys.executable, "-c", code, str(path)], env=environment)
    with killing(started) as venue:
        pids = path.read_text().split()
        assert len(list(temp.iterdir())) == 1
        venue.kill()
    assert len(pids) == 4
    for pid in pids:
        await_end(int(pid))
    assert list(temp.iterdir()) == []


def test_its_surroundings_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "value")
    with Path(os.devnull).open() as ours:
        os.set_inheritable(ours.fileno(), True)
        found = call("surroundings")
    assert set(found["environ"]) <= {"TMPDIR", "LC_CTYPE"}  # Python sets the latter by itself
    assert found["files"] == ["own.txt"]
    assert found["cwd"] == found["temp"]
    assert not Path(found["cwd"]).exists()
    assert found["session"]
    assert found["open"] <= 6  # three of each process, the pipe, devnull, and the listing itself


@pytest.mark.parametrize(
    "forged",
    ["0000000000000002" + b"[]".hex(), "0000000000000003" + b"nul".hex(), "ff" * 8],
)
def test_a_forged_answer_is_no_result(forged: str) -> None:
    with pytest.raises((OperationFailed, LimitExceeded)):
        call("forge", forged)


def test_so_many_calls_run_at_once() -> None:
    async def run() -> list[Any]:
        runner = adapter(at_once=2)
        calls = [runner.run(LoneJob(), meta("echo"), n) for n in range(5)]
        return await asyncio.gather(*calls)

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


# --- in a thread ------------------------------------------------------------------------------


def in_thread(function: Any, given: Json = None, **more: Any) -> Any:
    runner = PythonAdapter([RegisteredFunction("f", function, **more)])
    try:
        return asyncio.run(runner.run(LoneJob(), meta("f"), given))
    finally:
        runner.close()


def test_a_function_itself_runs_in_a_thread() -> None:
    name = in_thread(lambda _given: threading.current_thread().name)
    assert name.startswith("venue-python")
    assert in_thread(lambda given: (given, 2), 1) == [1, 2]
    assert in_thread(lambda _given, key: key, keyed=True) == LoneJob().effect_key().hex()


def test_an_async_function_runs_on_the_loop() -> None:
    async def function(given: Json) -> Json:
        return [given, threading.current_thread() is threading.main_thread()]

    assert in_thread(function, 1) == [1, True]


def test_a_result_that_is_not_json_is_refused_in_a_thread_too() -> None:
    with pytest.raises(OperationFailed, match="not JSON"):
        in_thread(lambda _given: object())
    with pytest.raises(LimitExceeded, match="at most"):
        in_thread(lambda _given: "x" * PIPE_BYTES_MAX)


# --- registering ------------------------------------------------------------------------------


def test_an_operation_says_what_was_registered() -> None:
    function = RegisteredFunction(
        "sum", "m:f", "Adds", {"type": "array"}, has_effects=False, recover=RecoveryRule.RETRY
    )
    (operation,) = PythonAdapter([function]).operations()
    assert operation.path == "python/sum"
    assert operation.metadata["operation"] == {"adapter": "python:sum", "input": {"type": "array"}}
    assert (operation.has_effects, operation.rule) == (False, RecoveryRule.RETRY)


def test_a_function_that_is_not_registered_is_refused() -> None:
    with pytest.raises(UsageError, match=r"python:echo.* got 'python:os\.system'"):
        adapter().check(meta("os.system"), "id")


@pytest.mark.parametrize("name", ["", "A", "a b", "a:b", "a/b", "x" * 65])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="the name of a function"):
        RegisteredFunction(name, "m:f")


@pytest.mark.parametrize("function", ["", "m", "m:", ":f", "m:f()", "m f:g", "../m:f"])
def test_a_malformed_reference_is_refused(function: str) -> None:
    with pytest.raises(UsageError, match="`module:name`"):
        RegisteredFunction("f", function)


def test_a_name_stands_for_one_function() -> None:
    with pytest.raises(UsageError, match="two functions"):
        PythonAdapter([RegisteredFunction("f", "m:f"), RegisteredFunction("f", "m:g")])


@pytest.mark.parametrize("name", ["cpu_s", "memory_bytes", "file_bytes", "files", "at_once"])
def test_a_limit_of_zero_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        VenuePythonConfig(**dict[str, Any]({name: 0}))
