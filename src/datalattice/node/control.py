"""Control: the local socket through which other processes of the owner use a running node.

It uses the frames and Results of the node protocol, with one request: `[:DO id name arguments]`. By
its file permissions only the owner can connect. An error is returned as its code and text, and the
client raises it as the same class.

Source: docs/node.md "Control socket".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final, Self

from datalattice.cells import Keyword, Map, Value, Vector
from datalattice.client import KIND
from datalattice.errors import (
    BadFormat,
    DataLatticeError,
    PeerError,
    UsageError,
)
from datalattice.node.operations import NodeOperations
from datalattice.wire import (
    READ_BYTES,
    FrameBuffer,
    Result,
    Unknown,
    decode_payload,
    encode_failure,
    encode_frame,
    encode_result,
)

SOCKET_NAME: Final = "control.sock"
SOCKET_PATH_BYTES_MAX: Final = 100  # sun_path has 104 bytes on macOS and BSD, 108 on Linux
SOCKET_MODE: Final = 0o600  # the owner alone


class ControlServer:
    """The listening side, in the node's process. Make it with `start`."""

    def __init__(self, path: str, owned_folder: str | None, operations: NodeOperations) -> None:
        self.path = path
        self._owned_folder = owned_folder
        self._operations = operations
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, folder: Path, operations: NodeOperations) -> Self:
        """Listen in `folder`, or in a private short folder if its path is too long for a socket.

        The caller holds the store's lock, so a socket that exists already is a dead node's.
        """
        listening, path, owned_folder = bind_socket(folder, SOCKET_NAME)
        control = cls(path, owned_folder, operations)
        try:
            control._server = await asyncio.start_unix_server(
                control._accept, sock=listening, limit=READ_BYTES
            )
        except BaseException:
            listening.close()
            raise
        return control

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.ensure_future(_serve(reader, writer, self._operations))
        self._clients.add(client)

        def ended(client: asyncio.Task[None]) -> None:
            self._clients.discard(client)
            writer.transport.abort()  # it may have been cancelled before it began

        client.add_done_callback(ended)

    async def close(self) -> None:
        """Accept no more and drop the clients; an operation that has begun may still complete."""
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        remove_socket(self.path, self._owned_folder)


def bind_socket(folder: Path, name: str) -> tuple[socket.socket, str, str | None]:
    """Return (bound socket, its path, the private folder made for it or None).

    Only our user can open it. If the path is too long, it is in a private short folder.
    """
    path = str(folder.absolute() / name)
    owned_folder = None
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        owned_folder = _short_folder(path)
        path = str(Path(owned_folder) / name)
    Path(path).unlink(missing_ok=True)  # bind refuses a path that exists
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Security: set before the path exists, so that no other user can connect at any moment.
        os.fchmod(listening.fileno(), SOCKET_MODE)
        listening.bind(path)
        Path(path).chmod(SOCKET_MODE)
    except OSError as error:
        listening.close()
        if owned_folder is not None:
            remove_socket(path, owned_folder)
        raise UsageError(f"cannot make the socket {path}: {error.strerror}") from error
    return listening, path, owned_folder


def _short_folder(path: str) -> str:
    """Return a new private folder whose path is short enough for a socket in it.

    Raises: UsageError: none can be made.
    """
    reasons: list[str] = []
    for base in (None, "/tmp"):  # noqa: S108 - mkdtemp makes it for us alone
        try:
            made = tempfile.mkdtemp(prefix="lattice-", dir=base)
        except OSError as error:
            reasons.append(str(error))
            continue
        if len(os.fsencode(f"{made}/{SOCKET_NAME}")) <= SOCKET_PATH_BYTES_MAX:
            return made
        Path(made).rmdir()
        reasons.append(f"{made} is too long too")
    raise UsageError(
        f"the path of the socket {path} has more than {SOCKET_PATH_BYTES_MAX} bytes, and "
        f"no short one can be had ({'; '.join(reasons)}): set TMPDIR to a folder with a short path"
    )


def remove_socket(path: str, owned_folder: str | None) -> None:
    """Remove what `bind_socket` made."""
    Path(path).unlink(missing_ok=True)
    if owned_folder is not None:
        shutil.rmtree(owned_folder, ignore_errors=True)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, operations: NodeOperations
) -> None:
    """Answer one client, request by request."""
    buffer = FrameBuffer()
    try:
        while data := await reader.read(READ_BYTES):
            buffer.feed(data)
            # One request at a time, so answers come in the order of the requests.
            while (payload := buffer.next_payload()) is not None:
                writer.write(encode_frame(await _answer(payload, operations)))
                await writer.drain()
    except (OSError, PeerError):
        return  # the client disconnected, or does not speak this protocol
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answer(payload: bytes, operations: NodeOperations) -> bytes:
    id: Value = None  # until the request is decoded; a failure before that answers nil
    try:
        message, _ = decode_payload(payload, operations.loader)
        request = message.value if isinstance(message, Unknown) else None
        if not isinstance(request, Vector) or len(request) != 4 or request[0] != KIND:
            raise BadFormat("a control request is [:DO id name arguments]")
        id, name, arguments = request[1], request[2], request[3]
        if not isinstance(name, str) or not isinstance(arguments, Map):
            raise BadFormat("a control request has a name and a Map of arguments")
        return encode_result(Result(id, await operations.perform(name, arguments)))
    except DataLatticeError as error:
        return encode_failure(id, Keyword(error.code), str(error))
