"""Control: a program's way to the running node of its folder, through the node's control socket.

A request is the name of an action and its protobuf bytes in a frame of the node protocol; the
answer has the bytes of the result, or the code and text of an error, which is raised as the same
class. A stream has a connection of its own, and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, Final, Protocol, TypeVar

from datalattice import errors
from datalattice.actions import ActionRequest, StartTask, TaskState, WatchTask
from datalattice.cells import Loader, Value, encode, join_cells, novelty
from datalattice.client.calling import Client, body_pieces, check_answer_kind
from datalattice.client.results import ResultStream
from datalattice.errors import (
    DataLatticeError,
    LimitExceeded,
    PeerUnavailable,
    ProtocolViolation,
    Timeout,
    Unavailable,
)
from datalattice.forking import begins_anew, check_process
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.protobuf import Field, Message
from datalattice.wire import FRAME_READ_BYTES, FrameBuffer, encode_frame

R = TypeVar("R", bound=Message)

_HASH: Final = re.compile(r"0x([0-9a-f]{64})")

NO_KEY: Final = (
    "the running node started without a key, so it cannot write below owners; "
    "make one with `lattice key new` if there is none, and start the node again"
)

CALL_TIMEOUT_S: Final = 60.0  # longer than any action takes; tasks report progress instead

# "Requests and answers have at most 49,000,000 bytes." (docs/node.md "Control socket")
REQUEST_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 1_000_000
"""Bytes of one request, with room for its envelope."""


class ControlRequest(Message, name="datalattice.v1.ControlRequest"):
    """A request to a node. caller: the DID for which the owner's process asks; "": the owner."""

    id: Annotated[int, Field(1, "uint64")] = 0
    action: Annotated[str, Field(2)] = ""
    request: Annotated[bytes, Field(3)] = b""
    caller: Annotated[str, Field(4)] = ""
    request_id: Annotated[str | None, Field(5)] = None


class ControlAnswer(Message, name="datalattice.v1.ControlAnswer"):
    """A result, or the code and text of an error. more: the stream has further answers."""

    id: Annotated[int, Field(1, "uint64")] = 0
    result: Annotated[bytes | None, Field(2)] = None
    code: Annotated[str, Field(3)] = ""
    text: Annotated[str, Field(4)] = ""
    more: Annotated[bool, Field(5)] = False


class Progress(Protocol):
    """A function that a long operation calls with its progress."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Take how many parts are done, and how many there are in all, if known."""
        ...


class ControlClient(Client):
    """A blocking client of a node's control socket, for one call at a time."""

    def __init__(self, path: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._buffer = FrameBuffer()
        self._last_id = 0
        self._pid = os.getpid()
        self.node: tuple[int, int] | None = None
        """The node's process id and start in Unix milliseconds, unique to it; None: not known."""
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise PeerUnavailable(f"no node answers at {path}: {error.strerror}") from error
        begins_anew(self)

    def begin_in_child(self) -> None:
        """Close the descriptor of a forked child; the connection is the parent's."""
        self._socket.close()

    def call(
        self, request: ActionRequest[R], caller: str = "", *, request_id: str | None = None
    ) -> R:
        """Perform an action in the node; return its result, durable if it writes. It is sent once.

        caller: the DID for which it is asked. request_id: of an action of kind ONCE, which the node
        performs once for each id.
        Raises: the node's error, as the same class. PeerUnavailable: the node ended. Timeout: it
                did not answer; the action may have happened, and the connection is closed.
        """
        check_answer_kind(request, stream=False)
        return self._result(request, self._exchanged(request, caller, request_id))

    def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Perform an action with a long body, sent as one request.

        Raises: as `call`. LimitExceeded: more than `REQUEST_BYTES_MAX`; REST takes any length.
        """
        data = bytearray(request.data)  # type: ignore[attr-defined]
        for piece in body_pieces(body):
            data += piece
            if len(data) > REQUEST_BYTES_MAX:
                raise LimitExceeded(f"a request has at most {REQUEST_BYTES_MAX} bytes")
        return self.call(replace(request, data=bytes(data)))  # type: ignore[call-arg]

    def stream(self, request: ActionRequest[R], caller: str = "") -> ControlStream[R]:
        """Begin a stream. Close it, or use it in `with`. Raises: as `call`."""
        check_answer_kind(request, stream=True)
        return ControlStream(ControlClient(self._path, self._timeout_s), request, caller)

    def _exchanged(
        self, request: ActionRequest[Any], caller: str, request_id: str | None = None
    ) -> ControlAnswer:
        name = request.action.name
        self._last_id += 1
        asked = ControlRequest(self._last_id, name, request.encode(), caller, request_id).encode()
        if len(asked) > REQUEST_BYTES_MAX:
            raise LimitExceeded(f"a request has at most {REQUEST_BYTES_MAX} bytes")
        return self._answered(request, encode_frame(asked))

    def _answered(self, request: ActionRequest[Any], frame: bytes | None) -> ControlAnswer:
        """Send a frame, if there is one, and return the next answer. Raises: as `call`."""
        name = request.action.name
        # Two processes would read each other's answers.
        check_process(self._pid, "a connection to the node")
        try:
            if frame is not None:
                self._socket.sendall(frame)
            answer = ControlAnswer.decode(self._receive())
        except TimeoutError as error:
            self.close()  # a late answer would be read as the answer to the next call
            raise Timeout(f"the node did not answer {name} in {self._timeout_s} s") from error
        except OSError as error:
            raise PeerUnavailable(f"the node went away during {name}") from error
        # One call at a time, so one answer; the node answers an unreadable request with id 0.
        if answer.id not in (self._last_id, 0):
            raise ProtocolViolation(
                f"the node answered {name} with id {answer.id}, expected {self._last_id}"
            )
        if answer.code:
            raise error_of(answer.code, answer.text)
        return answer

    def _result(self, request: ActionRequest[R], answer: ControlAnswer) -> R:
        if answer.result is None:
            raise ProtocolViolation(f"the node's answer to {request.action.name} has no result")
        return request.action.result.decode(answer.result)  # type: ignore[return-value]

    def _receive(self) -> bytes:
        while (payload := self._buffer.next_payload()) is None:
            data = self._socket.recv(FRAME_READ_BYTES)
            if not data:
                raise ConnectionResetError("end of stream")
            self._buffer.feed(data)
        return payload

    def has_ended(self) -> bool:
        """Return whether the node has ended the connection. Used between calls only."""
        try:
            # Between calls a node sends nothing, so a readable socket is at its end.
            look = select.poll()
            look.register(self._socket, select.POLLIN)
            return bool(look.poll(0))
        except (OSError, ValueError):
            return True  # closed here

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class ControlStream(ResultStream[R]):
    """The results of a stream, on its own connection. Any thread may close it.

    Iteration raises the node's error as the same class.
    """

    def __init__(self, client: ControlClient, request: ActionRequest[R], caller: str) -> None:
        """client: of this stream alone."""
        self._client: Final = client
        self._request: Final = request
        self._is_closed = False
        try:
            client._exchanged(request, caller)  # returns once the stream has begun
        except BaseException:
            client.close()
            raise
        # A stream may be silent for as long as nothing happens.
        client._socket.settimeout(None)

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if self._is_closed:
            raise StopIteration
        try:
            answer = self._client._answered(self._request, None)
        except PeerUnavailable:
            if self._is_closed:  # by another thread
                raise StopIteration from None
            raise
        if not answer.more:
            self.close()
            raise StopIteration
        return self._client._result(self._request, answer)

    def close(self) -> None:
        """End the stream, here and in the node; a thread that waits for a result returns.

        In a forked child the parent's stream goes on.
        """
        self._is_closed = True
        if self._client._pid == os.getpid():
            with contextlib.suppress(OSError):  # the connection has ended already
                self._client._socket.shutdown(socket.SHUT_RDWR)
        self._client.close()


def finish(client: Client, task: StartTask, progress: Progress) -> Message:
    """Run a task in a node to its end; return its result.

    Raises: as `client.call`; the error with which the task ended. Conflict: it was cancelled.
    """
    last = client.call(task)
    # A stream, because it ends with the task: polling would notice the end late.
    with client.stream(WatchTask(id=last.id)) as infos:
        for info in infos:
            last = info
            progress(info.count, info.total)
    if last.state is not TaskState.DONE:
        raise error_of(last.code, last.text)
    result = last.healed or last.collected or last.imported or last.rebuilt
    assert result is not None, last
    return result


def packed(value: Value, home: Loader | None) -> bytes:
    """Return a value and its cells in the node protocol's form, without cells that `home` has."""
    cells = (cell for _, cell, part in novelty(value, home) if part is not value)
    return join_cells(encode(value), cells)


def error_of(code: str, text: str) -> DataLatticeError:
    """Return the error with this code; for an unknown code, Unavailable."""
    if code == errors.MissingData.code:
        return errors.MissingData(map(bytes.fromhex, _HASH.findall(text)))  # the hashes it shows
    for kind in _kinds(DataLatticeError):
        if kind.code == code:
            return kind(text)
    # A newer service may have codes that this client does not know.
    return Unavailable(f"{code}: {text}")


def _kinds(base: type[DataLatticeError]) -> Iterator[type[DataLatticeError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


# --- the node that runs in a folder, read from `DIR/running.json` ---

RUNNING_NAME: Final = "running.json"


@dataclass(frozen=True, slots=True)
class Running:
    """A running node: its process, its address for peers, and its sockets for its owner."""

    pid: int
    address: str | None
    http: str | None
    control: str
    public_key: str | None
    started_ms: int
    version: str
    folder: str = ""  # older nodes do not say it
    """The `folder_id` of its folder; in a copy of the folder the file is ignored."""
    ticket: str | None = None
    """Its addresses with its key, for another node to connect to."""
    doors: dict[str, str] | None = None
    """The URL or socket path of each door, by the door's name."""


def folder_id(folder: Path) -> str:
    """Return an id that a folder keeps when it is renamed and that differs in a copy of it."""
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"  # device and inode


def running(folder: str | os.PathLike[str]) -> Running | None:
    """Return the node that runs in a folder, None if none does.

    The node's socket must answer: a killed node leaves its file behind.
    """
    found = _read(Path(folder) / RUNNING_NAME)
    # "The holder of the store's lock is the running node; it replaces the socket and
    # `running.json` that a killed node left" (docs/design/control.md).
    if found is None:
        return None
    try:
        ControlClient(found.control).close()
    except PeerUnavailable:
        return None
    return found


def connect(folder: str | os.PathLike[str]) -> ControlClient | None:
    """Return a client of the node that runs in a folder, None if none does."""
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
        return None  # missing, damaged, or being written: no node can be reached
    # In a copy of a folder the file names the node of the original: commands would write there.
    return None if is_copy else found
