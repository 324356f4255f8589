"""Driver: Spark in a separate process group, which the demo ends.

Spark is a Java process and Python workers. Ctrl-C would interrupt them at any point, and Spark's
launcher, interrupted, leaves its Java process running. So a child process in another session runs
Spark, and ends with all processes that it has started when its standard input ends.

The demo writes the task as one line of JSON, then one line for each answered micro-batch. It reads
lines of JSON: `groups` after every micro-batch, then `done`, `error` (ours) or `failure` (Spark's).
All these processes hold that stream open, so its end shows that all have ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

from datalattice.errors import Unavailable
from flights.figures import Figure
from flights.stream import MESSAGE, Groups, Task

PROGRAM: Final = "from flights.stream import serve; serve()"
END_TIMEOUT_S: Final = 30.0
READ_BYTES: Final = 1 << 16


def compute(task: Task, scratch: Path, receive: Callable[[Groups, int], None]) -> None:
    """Run the stream over all records that it has not read; return at its end.

    `receive` gets the figures so far, and Spark's process number, after every micro-batch. After an
    interruption a micro-batch may come twice. `scratch` is for temporary files; Java's output is
    kept beside it.

    Raises: Unavailable: Spark failed. Whatever `receive` raises.
    """
    _remove(scratch)
    scratch.mkdir(parents=True)
    folders = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    log_path = scratch.with_suffix(".log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # The child finds `flights` as this process did, however that was started.
            env={**os.environ, **folders, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        failure = _converse(process, process.stdin, process.stdout, task, receive)
        if failure:
            raise Unavailable(f"Spark failed: {failure}; {log_path} may have more")
    finally:
        _end(process, process.stdin, process.stdout)
        _remove(scratch)


def _converse(
    process: subprocess.Popen[bytes],
    answers: IO[bytes],
    messages: IO[bytes],
    task: Task,
    receive: Callable[[Groups, int], None],
) -> str:
    """Return the text of a failure in Spark; empty if it succeeded."""
    _write(answers, json.dumps(asdict(task)))
    for line in messages:
        text = line.decode("utf-8", "replace")
        if not text.startswith(MESSAGE):
            continue
        message = json.loads(text.removeprefix(MESSAGE))
        if "error" in message:
            raise Unavailable(message["error"])
        if "done" in message:
            return ""
        if "failure" in message:
            return str(message["failure"])
        rows = message["groups"]
        receive([(carrier, hour, Figure(**figure)) for carrier, hour, figure in rows], process.pid)
        _write(answers, "written")
    return "its process ended without a result"


def _write(answers: IO[bytes], line: str) -> None:
    # If the process has ended, the reader of its messages reports it.
    with contextlib.suppress(BrokenPipeError):
        answers.write(line.encode("utf-8") + b"\n")
        answers.flush()


def _end(process: subprocess.Popen[bytes], answers: IO[bytes], messages: IO[bytes]) -> None:
    """Return when Spark's processes have ended."""
    with contextlib.suppress(BrokenPipeError):
        answers.close()
    # The end of this stream, not of the process: Java and the workers hold it open, too. What still
    # comes is read, so that no writer waits for room in the pipe.
    handle = messages.fileno()
    while select.select([handle], [], [], END_TIMEOUT_S)[0] and os.read(handle, READ_BYTES):
        pass
    # Ends the processes of the group that did not end in time.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    messages.close()


def _remove(folder: Path) -> None:
    # Java's last threads may still be writing there when it is told to end.
    shutil.rmtree(folder, ignore_errors=True)


def forget(checkpoint: Path) -> None:
    """Remove the stream's checkpoint, so that it begins again."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(checkpoint)
