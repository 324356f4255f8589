"""All transports keep the same protocol."""

from __future__ import annotations

import asyncio

import pytest

from datalattice.node import MemoryTransport, TcpTransport
from datalattice.node.transport import NodeTransport
from datalattice.testing.transport_kit import DIALLER, LISTENER, check_transport
from datalattice.wire import MUX_PROTOCOL, PLAIN_PROTOCOL


@pytest.mark.parametrize(("mux", "protocol"), [(False, PLAIN_PROTOCOL), (True, MUX_PROTOCOL)])
def test_memory_is_a_transport(mux: bool, protocol: str) -> None:
    asyncio.run(
        check_transport(
            lambda _key: MemoryTransport(mux=mux),
            bind="memory",
            proves_keys=False,
            protocol=protocol,
        )
    )


def test_tls_is_a_transport() -> None:
    asyncio.run(check_transport(TcpTransport, protocol=MUX_PROTOCOL))


@pytest.mark.parametrize("older", [DIALLER, LISTENER])
def test_tls_with_a_node_that_knows_one_stream_only_is_a_transport(older: object) -> None:
    asyncio.run(check_transport(lambda key: TcpTransport(key, mux=key is not older)))


def test_tls_beside_plain_streams_is_a_transport() -> None:
    asyncio.run(
        check_transport(
            lambda key: TcpTransport(key, plain=True), scheme="tls://", protocol=MUX_PROTOCOL
        )
    )


def test_plain_tcp_is_a_transport() -> None:
    asyncio.run(
        check_transport(
            lambda key: TcpTransport(key, plain=True), scheme="tcp://", proves_keys=False
        )
    )


def test_iroh_is_a_transport() -> None:
    pytest.importorskip("iroh")
    from datalattice.node.transport.iroh import IrohTransport

    asyncio.run(
        check_transport(
            IrohTransport,
            scheme="iroh://",
            protocol=MUX_PROTOCOL,
            names_keys=True,
        )
    )


@pytest.mark.parametrize("scheme", ["", "iroh://"])
def test_the_transport_of_a_node_is_one_for_each_scheme(scheme: str) -> None:
    pytest.importorskip("iroh")
    asyncio.run(
        check_transport(
            lambda key: NodeTransport(key, iroh="direct"),
            scheme=scheme,
            protocol=MUX_PROTOCOL,
            names_keys=bool(scheme),
        )
    )
