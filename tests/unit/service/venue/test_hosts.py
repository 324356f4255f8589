"""Hosts that jobs may ask: by name, and by each address that a name has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.client.settings import VenueGridConfig, VenueHttpConfig
from datalattice.errors import UsageError
from datalattice.service.venue.adapters.hosts import METADATA_ADDRESSES, HostRules

OPEN = HostRules(allow=("*",))
PRIVATE = HostRules(allow=("*",), private=True)

PUBLIC = ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "::ffff:93.184.216.34"]

LOCAL = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "198.18.0.1",
    "::1",
    "fd12:3456::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "2002:7f00:1::1",
]
"""Refused by default, and asked where private addresses are allowed."""

NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.1.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "::127.0.0.1",
    "::ffff:0.0.0.0",
    "::ffff:169.254.169.254",
    "::ffff:224.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:a9fe:a9fe::1",
    "not an address",
    "",
    *map(str, METADATA_ADDRESSES),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_may_be_asked(address: str) -> None:
    assert OPEN.refused_address(address) is None
    assert PRIVATE.refused_address(address) is None


@pytest.mark.parametrize("address", LOCAL)
def test_private_addresses_only_where_they_are_allowed(address: str) -> None:
    assert OPEN.refused_address(address) == f"{address} is not a public address"
    assert PRIVATE.refused_address(address) is None


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_asked(address: str) -> None:
    assert OPEN.refused_address(address) is not None
    assert PRIVATE.refused_address(address) is not None


def test_no_host_is_allowed_by_default() -> None:
    assert HostRules().refused_name("example.com") is not None


@pytest.mark.parametrize(
    ("allow", "host", "allowed"),
    [
        ("example.com", "example.com", True),
        ("example.com", "a.example.com", False),
        ("example.com", "example.com.evil.org", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "notexample.com", False),
        ("*", "anything.org", True),
        ("::1", "::1", True),
    ],
)
def test_a_pattern_allows_what_it_names(allow: str, host: str, allowed: bool) -> None:
    assert (HostRules(allow=(allow,)).refused_name(host) is None) is allowed


def test_a_blocked_host_is_refused_even_if_allowed() -> None:
    rules = HostRules(allow=("*",), block=("*.internal", "db.example.com"))
    assert rules.refused_name("example.com") is None
    assert rules.refused_name("metadata.google.internal") is not None
    assert rules.refused_name("db.example.com") is not None


@pytest.mark.parametrize(
    "pattern", ["", "Example.com", "a.*", "*.", "**", "https://a", "a:80", "a/b"]
)
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="a host is a name"):
        HostRules(allow=(pattern,))
    with pytest.raises(UsageError, match="a host is a name"):
        HostRules(block=(pattern,))


@pytest.mark.parametrize("rules", [HostRules, VenueHttpConfig, VenueGridConfig])
@pytest.mark.parametrize("name", ["allow", "block"])
def test_one_text_is_no_list_of_hosts(rules: Callable[..., object], name: str) -> None:
    # Letter by letter, "*.example.com" would allow every host, and block none.
    with pytest.raises(UsageError, match=rf"{name} is a tuple of hosts, got the text '\*\.example"):
        rules(**{name: "*.example.com"})
