"""TLS links: what `datalattice.client.tls` proves, on top of a plain link."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

from datalattice.client.network import HandshakeFailed, TlsIdentity, explain, proven_key
from datalattice.errors import LimitExceeded
from datalattice.node.transport.base import Link
from datalattice.wire import PLAIN_PROTOCOL, READ_BYTES

RECORD_START: Final = b"\x16\x03"
"""How TLS begins: a handshake record of version 3. No plain stream begins so: there 0x16 would be
the length of a frame of 22 bytes, whose first, the tag of a cell, would be 0x03; no cell has it."""

SILENT_BYTES_MAX: Final = 65_536
"""Bytes of a stream that may come with no data among them: renewed keys and the like. A stranger
can renew keys without end, and each renewal costs as much as a small message."""


class TlsLink:
    """TLS on top of a plain link. Made by `shake_hands`."""

    public_key: bytes
    protocol: str

    def __init__(
        self, link: Link, identity: TlsIdentity, *, dialled: bool, begun: bytes = b""
    ) -> None:
        self._link = link
        self._offered = identity.protocols
        self.remote = link.remote
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._incoming.write(begun)
        context = identity.client if dialled else identity.server
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not dialled)

    async def shake_hands(self, expected: bytes | None = None) -> None:
        """Exchange proofs; return when both sides have given theirs.

        A client's proof is looked at by the server after the client is done: a client that is
        refused finds out at its first read.

        Raises: HandshakeFailed: the other end proved nothing, or another key than `expected`.
                OSError: the link broke.
        """
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except ssl.SSLError as error:
                with suppress(OSError):
                    await self._flush()  # the alert that tells the other end why
                raise HandshakeFailed(explain(error, self.remote)) from error
        # Looked at before our own proof leaves: who is not the one expected does not get it.
        self.public_key = proven_key(self._tls, self.remote, expected, self._offered)
        self.protocol = self._tls.selected_alpn_protocol() or PLAIN_PROTOCOL
        await self._flush()

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream, be it orderly or not.

        Raises: LimitExceeded: much came, and no data.
        """
        pieces: list[bytes] = []
        size = silent = 0
        while size < READ_BYTES:
            try:
                piece = self._tls.read(READ_BYTES - size)
            except ssl.SSLWantReadError:
                if pieces:
                    break
                if silent > SILENT_BYTES_MAX:
                    raise LimitExceeded(f"{silent} bytes of TLS came, and no data") from None
                count = await self._more()
                if not count:
                    break
                silent += count
                continue
            except ssl.SSLError:
                break  # a forged or cut stream; what was read before it is genuine
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def write(self, data: bytes) -> None:
        """Take bytes to be sent; return when there is room for more."""
        sent = 0
        while sent < len(data):
            sent += self._tls.write(data[sent:] if sent else data)
        await self._flush()

    async def close(self) -> None:
        """Send what was taken and the mark of an orderly end, then end the stream."""
        with suppress(OSError):
            # It goes on to wait for the other end's mark, which nobody here needs.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            await self._flush()
        await self._link.close()

    def abort(self) -> None:
        """End the stream at once."""
        self._link.abort()

    async def _more(self) -> int:
        """Wait for more of the stream, answering what the protocol itself asked.

        Returns how many bytes came; none at its end, or when it broke.
        """
        try:
            await self._flush()
        except OSError:
            return 0
        return await self._feed()

    async def _feed(self) -> int:
        data = await self._link.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)

    async def _flush(self) -> None:
        # Nothing can come between the two, so records leave in the order they were made.
        data = self._outgoing.read()
        if data:
            await self._link.write(data)
