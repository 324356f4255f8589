"""Addresses: the texts that name a node, and what is said about those that name none."""

from __future__ import annotations

import socket

import pytest

from datalattice.client import (
    PORT_MAX,
    PeerAddress,
    parse_address,
    parse_key,
    parse_ticket,
    system_reason,
)
from datalattice.client.addresses import HOST_CHARS_MAX, TICKET_ADDRESSES_MAX
from datalattice.errors import UsageError

KEY = bytes(range(32))
HEX = KEY.hex()


@pytest.mark.parametrize(
    ("text", "address", "shortest"),
    [
        ("host:1", PeerAddress("tls", "host", 1), "host:1"),
        ("tls://host:1", PeerAddress("tls", "host", 1), "host:1"),
        ("TLS://host:1", PeerAddress("tls", "host", 1), "host:1"),
        ("tcp://host:1", PeerAddress("tcp", "host", 1), "tcp://host:1"),
        ("[::1]:18888", PeerAddress("tls", "::1", 18888), "[::1]:18888"),
        ("tcp://[fe80::1]:9", PeerAddress("tcp", "fe80::1", 9), "tcp://[fe80::1]:9"),
        (f"{HEX}@host:1", PeerAddress("tls", "host", 1, KEY), f"{HEX}@host:1"),
        (f"tls://{HEX.upper()}@[::1]:1", PeerAddress("tls", "::1", 1, KEY), f"{HEX}@[::1]:1"),
        (f"tcp://0x{HEX}@h:1", PeerAddress("tcp", "h", 1, KEY), f"tcp://{HEX}@h:1"),
        (f"h:{PORT_MAX}", PeerAddress("tls", "h", PORT_MAX), f"h:{PORT_MAX}"),
        (f"iroh://{HEX}@h:1", PeerAddress("iroh", "h", 1, KEY), f"iroh://{HEX}@h:1"),
        (f"IROH://0x{HEX}", PeerAddress("iroh", "", 0, KEY), f"iroh://{HEX}"),
        ("x" * HOST_CHARS_MAX + ":1", PeerAddress("tls", "x" * HOST_CHARS_MAX, 1), None),
    ],
)
def test_an_address_is_read_and_said_in_its_shortest_form(
    text: str, address: PeerAddress, shortest: str | None
) -> None:
    assert parse_address(text) == address
    assert shortest in (None, str(address))
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "host", "host:", ":1", "host:x", "host:-1", "host:1x", "a:b:1", "::1:1", "[::1]",
        "h h:1", "http://h:1", "://h:1", "tls:///h:1", "h/p:1", "u@h:1", "@h:1",
        f"{HEX[:-1]}@h:1", f"{HEX}0@h:1", "[]:1", "h:\u0661", "x" * (HOST_CHARS_MAX + 1) + ":1",
        "h\n:1", "h:000001", "iroh://", "iroh://h:1", f"iroh://{HEX[1:]}", f"iroh://{HEX}@",
        f"iroh://{HEX}@:1", f"tls://{HEX}",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"host:port|hex digits"):
        parse_address(text)


def test_an_address_that_is_a_key_stays_the_address_of_that_key() -> None:
    alone, here = parse_address(f"iroh://{HEX}"), parse_address(f"iroh://{HEX}@h:1")
    assert alone.with_key(None) == alone
    assert alone.with_key(bytes(32)).public_key == bytes(32)
    assert here.with_key(None) == PeerAddress("iroh", "h", 1)


def test_a_ticket_is_the_addresses_of_one_node() -> None:
    assert parse_ticket("h:1") == [parse_address("h:1")]
    found = parse_ticket(f"{HEX}@h:1,iroh://{HEX}@h:1,iroh://{HEX}")
    assert [one.scheme for one in found] == ["tls", "iroh", "iroh"]
    assert len(parse_ticket(",".join([f"{HEX}@h:1"] * TICKET_ADDRESSES_MAX))) == 16
    with pytest.raises(UsageError, match="at most 16 addresses, got 17"):
        parse_ticket(",".join([f"{HEX}@h:1"] * (TICKET_ADDRESSES_MAX + 1)))
    other = bytes(32).hex()
    for wrong in ("h:1,h:2", f"{HEX}@h:1,h:2", f"h:2,{HEX}@h:1", f"{HEX}@h:1,{other}@h:1"):
        with pytest.raises(UsageError, match="the key of one node"):
            parse_ticket(wrong)
    with pytest.raises(UsageError, match="an address is"):
        parse_ticket(f"{HEX}@h:1,")


@pytest.mark.parametrize("port", ["0", str(PORT_MAX + 1), "99999"])
def test_a_port_that_nobody_can_dial_is_named(port: str) -> None:
    with pytest.raises(UsageError, match=port):
        parse_address(f"h:{port}")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (
            OSError("Multiple exceptions: [Errno 111] Connect ('::1', 1), [Errno 111] Connect"),
            "Connection refused",
        ),
        (
            OSError("Multiple exceptions: [Errno 101] ('::1', 1), [Errno 111] ('127.0.0.1', 1)"),
            "Network is unreachable; Connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ConnectionResetError("it closed the connection"), "it closed the connection"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_system_s_reason_is_said_once_and_without_the_address(
    error: OSError, text: str
) -> None:
    assert system_reason(error) == text


def test_a_key_is_64_hex_digits() -> None:
    assert parse_key(HEX) == parse_key("0x" + HEX) == KEY
    for wrong in ("", "00" * 31, "00" * 33, "zz" * 32, " " + HEX, HEX[:-1] + "é"):
        with pytest.raises(UsageError, match="64 hex digits"):
            parse_key(wrong)


@pytest.mark.parametrize("begin", ["tls://me:", "http://me:", "me:", "iroh://me:"])
def test_a_password_in_an_address_is_not_shown(begin: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(f"{begin}pass:word@host:1")
    assert f"{begin}***@host:1" in str(caught.value)
    assert "word" not in str(caught.value)
