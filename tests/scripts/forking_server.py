"""Forking server: runs commands and programs as processes that need not import the package.

    python forking_server.py SOCKET         # serves until it is killed
    python forking_server.py SOCKET lattice ARGUMENTS...
    python forking_server.py SOCKET program CODE

The second and third forms send the server their descriptors, folder, environment and arguments. It
forks a process that runs them, and they end with its exit code. An interpreter with the package
takes half a second of CPU to start, a fork 30 ms. Errors of imports show at the server's start.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

SIZE_MAX = 1 << 20


def call(path: str, request: list[str]) -> int:
    """Have the server run a request with our descriptors; return its exit code."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(path)
        message = json.dumps([request, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(stream, [message], [0, 1, 2])
        return (stream.recv(1) or b"\1")[0]


def serve(path: str) -> None:
    """Fork a process for each call; report its end to the caller."""
    import signal
    from select import select

    load()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    callers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select([listener, woken], [], [])
        if listener in ready:
            stream, _ = listener.accept()
            message, descriptors, _, _ = socket.recv_fds(stream, SIZE_MAX, 3)
            child = os.fork()
            if not child:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (listener, woken, waker, stream, *callers.values()):
                    one.close()
                run(message, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            callers[child] = stream
        if woken in ready:
            woken.recv(SIZE_MAX)
            reap(callers)


def load() -> None:
    """Import all modules of the node and of the commands."""
    import warnings
    from importlib import import_module

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("datalattice.node", "datalattice.cli.main", "asyncio"):
            import_module(name)
        commands = import_module("datalattice.cli.main").COMMANDS
        for module in {module for module, _ in commands.values()}:
            import_module(f"datalattice.cli.{module}")


def reap(callers: dict[int, socket.socket]) -> None:
    """Report the processes that have ended."""
    for child in list(callers):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            # A caller that was killed waits for no answer.
            with callers.pop(child) as stream, contextlib.suppress(OSError):
                code = os.waitstatus_to_exitcode(status)
                stream.send(bytes([code if code >= 0 else 128 - code]))


def run(message: bytes, descriptors: list[int]) -> None:
    """Run a request in this process, which ends with it like any other program."""
    (kind, *arguments), folder, environment = json.loads(message)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # The streams of the server may be of another kind: a pipe cannot be sought, a file can.
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering, closefd=False)  # noqa: SIM115 - of the process to its end
        for number, mode, buffering in ((0, "r", -1), (1, "w", -1), (2, "w", 1))
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if kind == "lattice":
        from datalattice.cli.main import main

        sys.argv = ["lattice", *arguments]
        main()
    import types
    import warnings

    warnings.simplefilter("error")
    sys.path.insert(0, "")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(arguments[0], "<program>", "exec"), module.__dict__)
    sys.exit()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(call(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
