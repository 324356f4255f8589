"""Control: a program's way to the running node of its folder, through the node's control socket.

It speaks the framing and Results of the node protocol with one request of its own,
`[:DO id name arguments]`. Errors come back as the error's code and text, and are raised as the same
class.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from datalattice import errors
from datalattice.cells import Keyword, Loader, Map, Value, Vector, encode, novelty, to_cell
from datalattice.errors import (
    DataLatticeError,
    LimitExceeded,
    PeerUnavailable,
    ProtocolViolation,
    Timeout,
    Unavailable,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.wire import (
    READ_BYTES,
    FrameBuffer,
    Result,
    decode_payload,
    encode_frame,
    join_cells,
)

KIND: Final = Keyword("DO")
"""How a request begins."""

_HASH: Final = re.compile(r"0x([0-9a-f]{64})")

NO_KEY: Final = (
    "the running node started without a key, so it cannot write below owners; "
    "make one with `lattice key new` if there is none, and start the node again"
)

CALL_TIMEOUT_S: Final = 60.0  # longer than any single operation takes
TELL_MS: Final = 500  # a bar moves twice a second
"""How often the progress of a long operation is asked for; its end is reported at once."""

REQUEST_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 1_000_000  # "with room for their lengths"
"""Cells of one request, with room for their lengths."""


class Progress(Protocol):
    """Receives how many parts of a long operation are done, and of how many if that is known."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Take note of it."""
        ...


class ControlClient:
    """The calling side: blocking, for tools. One call at a time."""

    def __init__(self, path: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._buffer = FrameBuffer()
        self._last_id = 0
        self.home: Loader | None = None
        """A reader of the node's store. What is behind it is not sent along."""
        self.node: tuple[int, int] | None = None
        """The node's process and when it started, if known: no two nodes have the same."""
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()  # closed: a failed client holds no socket
            raise PeerUnavailable(f"no node answers at {path}: {error.strerror}") from error

    def call(self, operation: str, **arguments: object) -> Value:
        """Have the node perform an operation; return its result, durable if it writes.

        Raises: the node's error, as the same class. PeerUnavailable: it ended. Timeout: it did
                not answer; the operation may have happened, and the connection is closed.
        """
        self._last_id += 1
        request = Vector.of((KIND, self._last_id, operation, to_cell(arguments)))
        try:
            self._socket.sendall(encode_frame(self._payload(request)))
            payload = self._receive()
        except TimeoutError as error:
            self.close()  # the answer may come yet, and would be taken for that to another call
            raise Timeout(f"the node did not answer {operation} in {self._timeout_s} s") from error
        except OSError as error:
            raise PeerUnavailable(f"the node went away during {operation}") from error
        message, _ = decode_payload(payload)
        # One call at a time, so one answer.
        if not isinstance(message, Result) or message.id != self._last_id:
            raise ProtocolViolation(f"the node's answer to {operation} is not a Result")
        if message.error is not None:
            raise error_of(message.error.name, str(message.value))
        return message.value

    def finish(self, operation: str, progress: Progress, **arguments: object) -> Value:
        """Have the node run a long operation to its end; return its result.

        Raises: as `call`.
        """
        task = self.call(operation, **arguments)
        while True:
            state = self.call("task.wait", task=task, timeout_ms=TELL_MS)
            if not isinstance(state, Map):
                raise ProtocolViolation(f"the node does not say how far {operation} is")
            # The wait ends with the operation, so its end is reported at once and not at the next
            # look.
            if state.get("done") is True:
                return state.get("result")
            count, total = state.get("count"), state.get("total")
            if type(count) is int:  # an operation without parts tells nothing
                progress(count, total if type(total) is int else None)

    def _payload(self, request: Vector) -> bytes:
        top = encode(request)
        # The node has what is in its store: only cells that it lacks are sent.
        cells = [cell for _, cell, value in novelty(request, self.home) if value is not request]
        if len(top) + sum(map(len, cells)) > REQUEST_BYTES_MAX:
            raise LimitExceeded(f"a request has at most {REQUEST_BYTES_MAX} bytes of cells")
        return join_cells(top, cells)

    def _receive(self) -> bytes:
        while (payload := self._buffer.next_payload()) is None:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("end of stream")
            self._buffer.feed(data)
        return payload

    def has_ended(self) -> bool:
        """Return whether the node has ended the connection; no call is going on."""
        try:
            # Between calls a node says nothing: what can be read is the end.
            look = select.poll()
            look.register(self._socket, select.POLLIN)
            return bool(look.poll(0))
        except (OSError, ValueError):
            return True  # closed here

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def error_of(code: str, text: str) -> DataLatticeError:
    """Return the error that has this code; an unknown one is a plain failure."""
    if code == errors.MissingData.code:
        return errors.MissingData(map(bytes.fromhex, _HASH.findall(text)))  # those that it shows
    for kind in _kinds(DataLatticeError):
        if kind.code == code:
            return kind(text)
    return Unavailable(f"{code}: {text}")


def _kinds(base: type[DataLatticeError]) -> Iterator[type[DataLatticeError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


# --- the node that runs in a folder, as `DIR/running.json` says ---

RUNNING_NAME: Final = "running.json"


@dataclass(frozen=True, slots=True)
class Running:
    """A running node: its process, where peers reach it, where its owner reaches it."""

    pid: int
    address: str | None
    http: str | None
    control: str
    public_key: str | None
    started_ms: int
    version: str
    folder: str = ""  # older nodes do not say it
    """Which folder it runs in (`folder_id`): the file means nothing in a copy of that."""
    ticket: str | None = None
    """Its addresses with its key, from which another node can connect to it."""
    doors: dict[str, str] | None = None
    """Where its users reach it: a URL or the path of a socket, by the name of the door."""


def folder_id(folder: Path) -> str:
    """Return what a folder keeps when it is renamed, and a copy of it does not have."""
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"  # device and inode


def running(folder: str | os.PathLike[str]) -> Running | None:
    """Return the node that runs in a folder, None when none does.

    A file left by a killed node does not count: the socket must answer.
    """
    found = _read(Path(folder) / RUNNING_NAME)
    # "The store's lock says who runs; a socket or `running.json` left by a killed node is replaced
    # by whoever gets the lock" (docs/design/control.md).
    if found is None:
        return None
    try:
        ControlClient(found.control).close()
    except PeerUnavailable:
        return None
    return found


def connect(folder: str | os.PathLike[str]) -> ControlClient | None:
    """Return a client of the node that runs in a folder, None when none does."""
    found = _read(Path(folder) / RUNNING_NAME)
    if found is None:
        return None
    try:
        client = ControlClient(found.control)
    except PeerUnavailable:
        return None
    client.node = (found.pid, found.started_ms)  # before the first call
    return client


def _read(path: Path) -> Running | None:
    try:
        found = Running(**json.loads(path.read_text("utf-8")))
        is_copy = found.folder not in ("", folder_id(path.parent))
    except (OSError, ValueError, TypeError):
        # Without a file that reads as one of a node, no node runs.
        return None  # damaged, or being written
    # In a copy of a folder the file names the node of the original: commands would write there.
    return None if is_copy else found
