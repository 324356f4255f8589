"""Processes: each call of a function runs in its own process, with limits.

The process is started by exec, in a new session, with a temporary folder as working directory, only
`TMPDIR` in its environment, and only its pipes open. It may use the network. At the end of the call
its whole process group is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from datalattice.client.settings import VenuePythonConfig
from datalattice.errors import LimitExceeded
from datalattice.service.venue import Json, OperationFailed

PIPE_BYTES_MAX: Final = 16 << 20
"""Longest JSON of an input or a result, in bytes."""

TERM_S: Final = 2.0
"""Seconds between SIGTERM and SIGKILL."""

_WORKER: Final = Path(__file__).with_name("python_worker.py")
_LENGTH_BYTES: Final = 8


async def call_in_process(
    function: str, arguments: Sequence[Json], limits: VenuePythonConfig, path: Sequence[str] = ()
) -> Json:
    """Call a function in a process of its own and return its result.

    function: `module:name`, imported there. arguments, result: JSON of up to `PIPE_BYTES_MAX`.
    path: folders of modules, before those of this process.
    Raises: OperationFailed: the function raised, its process ended, or it took too long.
            LimitExceeded: arguments or result are too long.
    """
    request = {
        "function": function,
        "arguments": list(arguments),
        "limits": {
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_CPU": limits.cpu_s,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_NOFILE": limits.files,
            # A core file would hold the input, which may be secret.
            "RLIMIT_CORE": 0,
        },
        "path": [*path, *(entry for entry in sys.path if entry)],
    }
    sent = json.dumps(request, allow_nan=False).encode()
    if len(sent) > PIPE_BYTES_MAX:
        raise LimitExceeded(f"the input of a function has at most {PIPE_BYTES_MAX} bytes of JSON")
    folder = tempfile.mkdtemp(prefix="venue-function-")
    try:
        answer = await _run(sent, folder, limits)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    # In a thread: parsing 16 MiB would hold up the event loop.
    return await asyncio.to_thread(_read_answer, answer)


async def _run(sent: bytes, folder: str, limits: VenuePythonConfig) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        # Isolated mode: environment and working directory add no modules.
        "-I",
        str(_WORKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=folder,
        env={"TMPDIR": folder},
        start_new_session=True,
    )
    answered = False
    try:
        async with asyncio.timeout(limits.time_s):
            answer = await _exchange(process, sent)
        answered = True
    except TimeoutError:
        raise OperationFailed(f"the function took more than {limits.time_s:g} s") from None
    except asyncio.IncompleteReadError:
        raise OperationFailed(await _why_it_ended(process, limits)) from None
    finally:
        # Also if the job was cancelled: no process outlives its call.
        await _end(process, gently=not answered)
    return answer


async def _exchange(process: asyncio.subprocess.Process, sent: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):  # `_why_it_ended` has the reason
        process.stdin.write(len(sent).to_bytes(_LENGTH_BYTES, "big") + sent)
        await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(_LENGTH_BYTES), "big")
    if size > PIPE_BYTES_MAX:
        raise LimitExceeded(f"the result of a function has at most {PIPE_BYTES_MAX} bytes of JSON")
    return await process.stdout.readexactly(size)


async def _why_it_ended(process: asyncio.subprocess.Process, limits: VenuePythonConfig) -> str:
    code = await process.wait()
    # Soft and hard limit are equal, so the kernel may send either.
    if code in {-signal.SIGXCPU, -signal.SIGKILL}:
        return f"the process was killed: it may use {limits.cpu_s} s of processor time"
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    return f"the process of the function ended {how} without a result"


async def _end(process: asyncio.subprocess.Process, *, gently: bool) -> None:
    """End the process and its group. gently: by SIGTERM first."""
    try:
        if gently and process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TERM_S):
                    await process.wait()
    finally:  # also when this is cancelled; and children may outlive the first process
        _signal(process.pid, signal.SIGKILL)
        await process.wait()
        # Close both pipes now: asyncio would read them to their end, and a child that left the
        # session may hold one open.
        process._transport.close()  # type: ignore[attr-defined]


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # all processes of the group have ended
        os.killpg(group, number)


def _read_answer(text: bytes) -> Json:
    try:
        answer: Any = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        answer = None
    # The function may write any bytes to the pipe.
    if not isinstance(answer, dict) or not {"result", "error"} & set(answer):
        raise OperationFailed("the process of the function sent no valid result")
    if "error" in answer:
        raise OperationFailed(str(answer["error"]))
    result: Json = answer["result"]
    return result


def _refuse(name: str) -> None:
    raise ValueError(name)
