"""Addresses: how the address of a node is written and read."""

from __future__ import annotations

import os
import re
import string
from dataclasses import dataclass, replace
from typing import Final

from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import UsageError

PORT_MAX: Final = 65_535
HOST_CHARS_MAX: Final = 253
"""Longest host name, in characters (RFC 1035)."""

TLS: Final = "tls"
PLAIN_SCHEME: Final = "tcp"
IROH: Final = "iroh"
SCHEMES: Final = (TLS, PLAIN_SCHEME, IROH)
# "all addresses of a node, at most 16, with commas" (docs/node.md "Addresses")
TICKET_ADDRESSES_MAX: Final = 16
"""Most addresses of one node in a ticket."""

_SYSTEM_ERROR: Final = re.compile(r"\[Errno (\d+)\]")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The host and port of a node, its transport, and the public key that it must prove.

    An iroh address without a host and a port (empty and 0) is looked up by its key.
    """

    scheme: str
    host: str
    port: int
    public_key: bytes | None = None

    def with_key(self, public_key: bytes | None) -> PeerAddress:
        """Return this address with another expected key, or none."""
        # Without a host, the key is all that finds the node, so it is never removed.
        return replace(self, public_key=public_key) if self.host or public_key else self

    def __str__(self) -> str:
        """Return the shortest text that `parse_address` reads as this."""
        scheme = "" if self.scheme == TLS else f"{self.scheme}://"  # the default needs no scheme
        key = "" if self.public_key is None else self.public_key.hex()
        if not self.host:
            return scheme + key
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}{key}{'@' if key else ''}{host}:{self.port}"


def parse_address(text: str) -> PeerAddress:
    """Return the address that a text names.

    `host:port` and `tls://host:port` are encrypted and prove keys; `tcp://host:port` is plain;
    `iroh://KEY@host:port` is QUIC; `iroh://KEY` is QUIC to a host that is looked up. The expected
    key may stand before any host, in 64 hex digits: `KEY@host:port`. IPv6 hosts stand in brackets.
    Raises: UsageError: `text` has another form.
    """
    scheme, found, rest = text.rpartition("://")
    scheme = scheme.lower() if found else TLS  # encrypted by default
    if scheme not in SCHEMES:
        raise _no_address(text)
    if scheme == IROH and not set(rest) & set("@:"):
        return PeerAddress(scheme, "", 0, parse_key(rest))
    key, has_key, rest = rest.rpartition("@")
    if ":" in key:  # a user and a password in place of a key
        raise _no_address(text)
    public_key = parse_key(key) if has_key else None
    if scheme == IROH and public_key is None:
        raise UsageError(
            f"an iroh address names the node's key: iroh://KEY@host:port; got {_shown(text)!r}"
        )
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]  # brackets keep the colons of IPv6 apart from the port's
    # A host has none of the characters that separate the parts of a URL.
    elif not host.isprintable() or set(host) & set(":/[]?#% "):
        host = ""
    if not colon or not 0 < len(host) <= HOST_CHARS_MAX:
        raise _no_address(text)
    if not (port.isascii() and port.isdigit()) or len(port) > 5:
        raise _no_address(text)
    if not 0 < int(port) <= PORT_MAX:  # 0 listens, and cannot be dialled
        raise UsageError(f"a port to dial is 1 to {PORT_MAX}, got {port} in {_shown(text)!r}")
    return PeerAddress(scheme, host, int(port), public_key)


def parse_key(text: str) -> bytes:
    """Return the public key that `text` gives in hex digits, with or without `0x`.

    Raises: UsageError: `text` is not 64 hex digits.
    """
    digits = text.removeprefix("0x")
    if len(digits) != 2 * PUBLIC_KEY_BYTES or not set(digits) <= set(string.hexdigits):
        raise UsageError(f"a public key is {2 * PUBLIC_KEY_BYTES} hex digits, got {text!r}")
    return bytes.fromhex(digits)


def system_reason(error: OSError) -> str:
    """Return why the system refused, in its own words and without the address.

    The text of an asyncio error repeats the address. If the name has several addresses, the error
    has no errno, and its text has one for each.
    """
    numbers = [error.errno] if error.errno else map(int, _SYSTEM_ERROR.findall(str(error)))
    # IPv4 and IPv6 may fail for one reason: it is given once.
    texts = dict.fromkeys(os.strerror(number) for number in numbers if number > 0)
    return "; ".join(texts) or error.strerror or str(error) or type(error).__name__


def parse_ticket(text: str) -> list[PeerAddress]:
    """Return the addresses of one node that a ticket names, separated by commas.

    If there are several, each names the node's key.
    Raises: UsageError: an address is malformed, there are too many, or they name different keys.
    """
    texts = text.split(",")
    if len(texts) > TICKET_ADDRESSES_MAX:
        raise UsageError(f"a ticket has at most {TICKET_ADDRESSES_MAX} addresses, got {len(texts)}")
    found = [parse_address(one) for one in texts]
    if len(found) > 1 and (found[0].public_key is None or len({a.public_key for a in found}) > 1):
        raise UsageError(
            f"the addresses of a ticket all name the key of one node, got {_shown(text)!r}"
        )
    return found


def _no_address(text: str) -> UsageError:
    return UsageError(
        "an address is host:port or tls://host:port (encrypted), iroh://KEY@host:port (QUIC) or "
        "tcp://host:port (plain), with KEY@ before the host where the node's public key is known; "
        f"got {_shown(text)!r}"
    )


def _shown(text: str) -> str:
    """Return an address as errors show it, so that a password in it reaches no log."""
    head, at, rest = text.rpartition("@")
    scheme, slashes, info = head.rpartition("://")
    name, colon, _ = info.partition(":")
    return f"{scheme}{slashes}{name}:***@{rest}" if at and colon else text
