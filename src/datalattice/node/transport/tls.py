"""TLS links: TLS with proofs of keys (`datalattice.client.network`), on top of a plain link.

Source: RFC 8446; docs/node.md "Peers".
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

from datalattice.client.network import HandshakeFailed, TlsIdentity, explain, proven_key
from datalattice.errors import LimitExceeded
from datalattice.node.transport.base import Link
from datalattice.wire import FRAME_READ_BYTES, PLAIN_PROTOCOL

# A TLS stream begins with a handshake record of version 3. As a plain frame, 0x16 would be a length
# of 22 bytes and 0x03 the tag of its cell, but no cell has this tag.
RECORD_START: Final = b"\x16\x03"

# Most bytes in a row that carry no data. A peer can renew keys without end, and each renewal costs
# as much as a small message.
SILENT_BYTES_MAX: Final = 65_536


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
        """Exchange proofs of keys; return when both sides have given theirs.

        The server checks the client's proof after the client has finished, so a refused client
        notices it at its first read.

        Raises: HandshakeFailed: the other end proved no key, or another one than `expected`.
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
                    await self._flush()  # the alert, which names the reason to the other end
                raise HandshakeFailed(explain(error, self.remote)) from error
        # Security: checked before our own proof is sent, so that only the expected node learns our
        # key.
        self.public_key = proven_key(self._tls, self.remote, expected, self._offered)
        self.protocol = self._tls.selected_alpn_protocol() or PLAIN_PROTOCOL
        await self._flush()

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream or when it broke.

        Raises: LimitExceeded: many bytes arrived without data.
        """
        pieces: list[bytes] = []
        size = silent = 0
        while size < FRAME_READ_BYTES:
            try:
                piece = self._tls.read(FRAME_READ_BYTES - size)
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
                break  # a forged or cut stream; the bytes read before it are genuine
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def write(self, data: bytes) -> None:
        """Queue bytes to be sent; return when there is room for more."""
        sent = 0
        while sent < len(data):
            sent += self._tls.write(data[sent:] if sent else data)
        await self._flush()

    async def close(self) -> None:
        """Send what is queued and a close_notify, then end the stream."""
        with suppress(OSError):
            # unwrap() also waits for the peer's close_notify, which is not needed.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            await self._flush()
        await self._link.close()

    def abort(self) -> None:
        """End the stream at once."""
        self._link.abort()

    async def _more(self) -> int:
        """Send pending TLS records, and read; return how many bytes arrived, 0 at the end."""
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
        # No await between the two: records leave in the order they were made.
        data = self._outgoing.read()
        if data:
            await self._link.write(data)
