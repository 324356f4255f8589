"""Worker: the process of one registered function. It imports only the standard library.

As a script, it reads a frame from its input, limits itself, calls the function, and writes a frame
to its output. A frame is a length of 8 bytes, big-endian, and JSON. Then it waits to be killed with
its group. If its input ends before that, the venue has gone, and it kills the group itself.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

_ERROR_CHARS_MAX = 4_096
"""Longest text of an error that is sent, in characters."""


def main() -> None:
    """Serve one call."""
    request = json.loads(_frame(sys.stdin.buffer))
    # The answer gets a descriptor of its own: the function may print to standard output.
    answer = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    for name, most in request["limits"].items():
        _limit(getattr(resource, name), most)
    # The folder is read now, because the function may change the working directory.
    threading.Thread(target=_end_with_the_venue, args=[str(Path.cwd())], daemon=True).start()
    sys.path += [entry for entry in request["path"] if entry not in sys.path]
    text = _answer(request).encode()
    with contextlib.suppress(OSError):  # the venue has gone
        answer.write(len(text).to_bytes(8, "big") + text)
        answer.flush()
    threading.Event().wait()


def _frame(stream: BinaryIO) -> bytes:
    return stream.read(int.from_bytes(stream.read(8), "big"))


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    # The hard limit, too, so that the function cannot raise it again.
    resource.setrlimit(kind, (most, most))


def _end_with_the_venue(folder: str) -> NoReturn:
    # The venue sends one frame: the next thing to be read is its end.
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
    raise SystemExit


def _answer(request: dict[str, Any]) -> str:
    """Return the JSON of the function's result or error."""
    try:
        module, _, path = request["function"].partition(":")
        function: Any = importlib.import_module(module)
        for name in path.split("."):
            function = getattr(function, name)
        result = function(*request["arguments"])
    except BaseException as error:  # noqa: BLE001  # whatever it raises, also SystemExit, is its answer
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:_ERROR_CHARS_MAX]})
    try:
        return json.dumps({"result": result}, allow_nan=False)
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        return json.dumps({"error": f"its result is not JSON: {error}"[:_ERROR_CHARS_MAX]})


if __name__ == "__main__":
    main()
