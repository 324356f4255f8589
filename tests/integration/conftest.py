"""What integration tests share: one Spark, since each would take seconds to start; multicast."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from datalattice.testing.ports import held_port

LOOPBACK = "127.0.0.1"
MDNS_GROUP = "224.0.0.251"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Give a local Spark of two cores with our formats; tests leave it as it is."""
    pytest.importorskip("pyspark")
    from datalattice.pipeline import end_session, register, spark_session

    session = spark_session("tests", cores=2, memory="1g")
    register(session)
    yield session
    end_session(session)


@pytest.fixture
def port() -> Iterator[int]:
    """Give a port at which a node can be started, and again after it ended."""
    with held_port() as port:
        yield port


@pytest.fixture
def multicast() -> None:
    """Skip the test where mDNS on loopback is not to be had."""
    pytest.importorskip("zeroconf")
    if not has_multicast():
        pytest.skip("this machine carries no multicast on loopback")


def has_multicast() -> bool:
    """Return whether this machine carries multicast on loopback: not every container does."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(2)]
        one, two = sockets
        member = socket.inet_aton(MDNS_GROUP) + socket.inet_aton(LOOPBACK)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("", 0))
            one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            one.settimeout(5)
            two.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
            two.sendto(b"?", (MDNS_GROUP, one.getsockname()[1]))
            return one.recv(1) == b"?"
        except OSError:
            return False
