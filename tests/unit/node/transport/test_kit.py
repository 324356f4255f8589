"""All transports keep the same protocol."""

from __future__ import annotations

import asyncio

from datalattice.node import MemoryTransport, TcpTransport
from datalattice.testing.transport_kit import check_transport


def test_memory_is_a_transport() -> None:
    asyncio.run(check_transport(lambda _key: MemoryTransport(), bind="memory", proves_keys=False))


def test_tls_is_a_transport() -> None:
    asyncio.run(check_transport(TcpTransport))


def test_tls_beside_plain_streams_is_a_transport() -> None:
    asyncio.run(check_transport(lambda key: TcpTransport(key, plain=True), scheme="tls://"))


def test_plain_tcp_is_a_transport() -> None:
    asyncio.run(
        check_transport(
            lambda key: TcpTransport(key, plain=True), scheme="tcp://", proves_keys=False
        )
    )
