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
"""Longest host name there can be (RFC 1035)."""

TLS: Final = "tls"
PLAIN_SCHEME: Final = "tcp"
IROH: Final = "iroh"
SCHEMES: Final = (TLS, PLAIN_SCHEME, IROH)
TICKET_ADDRESSES_MAX: Final = 16
"""Addresses of one node in a ticket."""

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
        # A key that is looked up is the address itself.
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

    `host:port` and `tls://host:port` are encrypted and prove keys, `tcp://host:port` is plain,
    `iroh://KEY@host:port` is QUIC and `iroh://KEY` that, too, where the host is looked up. The
    key that is expected may stand before the host: `KEY@host:port`, in 64 hex digits. IPv6 hosts
    stand in brackets.
    Raises: UsageError: anything else.
    """
    scheme, found, rest = text.rpartition("://")
    scheme = scheme.lower() if found else TLS  # encrypted unless it says otherwise
    if scheme not in SCHEMES:
        raise _no_address(text)
    if scheme == IROH and not set(rest) & set("@:"):
        return PeerAddress(scheme, "", 0, parse_key(rest))
    key, has_key, rest = rest.rpartition("@")
    if ":" in key:  # a user and a password: no key, and not to be shown
        raise _no_address(text)
    public_key = parse_key(key) if has_key else None
    if scheme == IROH and public_key is None:
        raise UsageError(
            f"an iroh address names the key of the node: iroh://KEY@host:port; {_shown(text)!r}"
        )
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]  # brackets keep the colons of IPv6 apart from the port's
    # Nothing that is a part of a URL may be in a host.
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
    """Return the public key that is written in hex digits.

    Raises: UsageError: these are not 64 hex digits.
    """
    digits = text.removeprefix("0x")
    if len(digits) != 2 * PUBLIC_KEY_BYTES or not set(digits) <= set(string.hexdigits):
        raise UsageError(f"a public key is {2 * PUBLIC_KEY_BYTES} hex digits, got {text!r}")
    return bytes.fromhex(digits)


def system_reason(error: OSError) -> str:
    """Return why the system refused, in its own words and without the address.

    What asyncio raises repeats the address; for a name with several addresses it has no number.
    """
    numbers = [error.errno] if error.errno else map(int, _SYSTEM_ERROR.findall(str(error)))
    # An address family each: both reasons, once.
    texts = dict.fromkeys(os.strerror(number) for number in numbers if number > 0)
    return "; ".join(texts) or error.strerror or str(error) or type(error).__name__


def parse_ticket(text: str) -> list[PeerAddress]:
    """Return the addresses of one node that a ticket names, separated by commas.

    Several addresses name the key of the node, each the same one.
    Raises: UsageError: anything else.
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
    """Return an address as an error shows it: a password that stands in it is in no log."""
    head, at, rest = text.rpartition("@")
    scheme, slashes, info = head.rpartition("://")
    name, colon, _ = info.partition(":")
    return f"{scheme}{slashes}{name}:***@{rest}" if at and colon else text
