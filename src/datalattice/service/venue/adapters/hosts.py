"""Hosts: the rules for hosts that jobs may call over HTTP, by name and by address.

Callers choose the URLs, and the venue is in a network that callers cannot reach. So the operator
allows names, and each address is checked, because the owner of a name can give it any address.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from datalattice.errors import PeerUnavailable, UsageError

HostAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA_ADDRESSES: Final = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
"""The addresses where clouds serve the credentials of a machine: always refused."""

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_PATTERN: Final = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


class HostUnreached(PeerUnavailable):
    """No connection was made, so that nothing was sent."""


@dataclass(frozen=True, slots=True)
class HostRules:
    """The hosts that jobs may call: by default none.

    allow: names such as `api.example.com`, `*.example.com` for those below it, or `*` for every
    host; in lower case, those of other scripts as `xn--...`. block: names that are refused even if
    `allow` has them. private: whether private and loopback addresses are allowed.
    Raises: UsageError: a pattern has another form.
    """

    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    private: bool = False

    def __post_init__(self) -> None:
        for name in ("allow", "block"):
            # A text is a sequence of texts, too: its letters would be the hosts.
            if isinstance(getattr(self, name), str):
                raise UsageError(
                    f"{name} is a tuple of hosts, got the text {getattr(self, name)!r}"
                )
        for pattern in (*self.allow, *self.block):
            if not _PATTERN.fullmatch(pattern) and not _is_ipv6(pattern):
                raise UsageError(
                    f"a host is a name in lower case, *.name or *, without a port, got {pattern!r}"
                )

    def refused_name(self, host: str) -> str | None:
        """Return why the name of a host, in lower case, is refused; None: it is allowed."""
        # "block list before allow list"
        if _is_listed(host, self.block):
            return f"this venue blocks the host {host}"
        if not _is_listed(host, self.allow):
            return f"this venue does not allow the host {host}"
        return None

    def refused_address(self, text: str) -> str | None:
        """Return why an IP address is refused; None: it is allowed."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])  # without the zone
        except ValueError:
            return f"{text} is not an IP address"
        for one in _all_of(address):
            # Before `private`: these are refused even where private addresses are allowed.
            if one in METADATA_ADDRESSES:
                return f"{text} is an address where clouds serve credentials"
            if one.is_multicast or one.is_unspecified or one.is_link_local or _is_reserved(one):
                return f"{text} is not the address of one host"
            if not self.private and not one.is_global:
                return f"{text} is not a public address"
        return None


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.IPv6Address(text).compressed == text
    except ValueError:
        return False


def _is_listed(host: str, patterns: tuple[str, ...]) -> bool:
    return any(
        # "`*.name` for those below a name, `*` for all" (docs/node.md): not for the name itself.
        pattern in {"*", host} or (pattern.startswith("*.") and host.endswith(pattern[1:]))
        for pattern in patterns
    )


def _all_of(address: HostAddress) -> list[HostAddress]:
    """Return the addresses that a connection to one may reach: itself, and IPv4 ones inside it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    # "IPv4-Mapped IPv6 Address" (RFC 4291): the same host as the IPv4 address.
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inner: list[HostAddress] = []
    if address.sixtofour is not None:  # 2002::/16, the IPv4 address of the router (RFC 3056)
        inner.append(address.sixtofour)
    if address.teredo is not None:  # the server, and the client behind it (RFC 4380)
        inner += address.teredo
    # The IPv4 address is in the last 32 bits (RFC 6052), and is the only one that is reached.
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)]
    return [address, *inner]


def _is_reserved(address: HostAddress) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_reserved or int(address) >> 24 == 0  # "this network"
    # Site-local addresses are deprecated, and a local NAT64 prefix leads to any IPv4 address.
    is_special = address.is_site_local or address in _LOCAL_NAT64
    return is_special or (address.is_reserved and not address.is_loopback)
