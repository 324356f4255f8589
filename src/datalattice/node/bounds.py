"""Bounds: how much one peer may make this node do and hold before it is slowed down or cut.

If a peer sends more than its share, the node reads it later; TCP slows the peer down, and nothing
is lost. The node disconnects it only for breaches: frames that do not complete, and answers that it
does not read.

Source: docs/protocol.md "Limits".
"""

from __future__ import annotations

import ipaddress
from typing import Final

BURST_S: Final = 4  # after a pause a peer may send the share of this many seconds at once

# An incomplete frame must grow by this many bytes in every period, or its connection ends.
PROGRESS_BYTES: Final = 1_000
PROGRESS_S: Final = 10.0

_IPV6_PREFIX: Final = 64  # bits of an IPv6 address that count: one customer has all behind them
_IPV6_SITE_PREFIX: Final = 48  # a larger customer has many networks of 64 bits behind these
SITE_FACTOR: Final = 4  # a site may have this many times the connections of one network


class Bucket:
    """A token bucket: a share of something per second, which may run into debt by one message."""

    __slots__ = ("_full", "_left", "_rate", "_seen_s")

    def __init__(self, per_s: int, now_s: float) -> None:
        self._rate = per_s
        # "Four seconds' worth at once": a peer that was silent may catch up.
        self._full = self._left = float(per_s * BURST_S)
        self._seen_s = now_s

    def take(self, amount: int, now_s: float) -> float:
        """Take an amount; return for how many seconds nothing more may be taken."""
        grown = self._left + (now_s - self._seen_s) * self._rate
        self._seen_s = now_s
        # May become negative: a message that has arrived is handled, and the peer waits for it
        # afterwards.
        self._left = min(self._full, grown) - amount
        return max(0.0, -self._left / self._rate)

    def try_take(self, amount: int, now_s: float) -> bool:
        """Take an amount if it is there; a refusal costs nothing."""
        left = min(self._full, self._left + (now_s - self._seen_s) * self._rate)
        self._seen_s = now_s
        self._left = left - amount if left >= amount else left
        return left >= amount


class FrameProgress:
    """The progress of one begun frame: a peer cannot hold a connection by sending byte by byte."""

    __slots__ = ("_bytes", "_end_s", "_mark_s")

    def __init__(self, timeout_s: float, count: int, now_s: float) -> None:
        self._end_s = now_s + timeout_s
        self._mark_s, self._bytes = now_s, count

    def left_s(self, count: int, now_s: float) -> float:
        """Return how long to wait for more of the frame, of which `count` bytes have arrived."""
        # "1,000 bytes in every 10 s", within the time for the whole frame.
        if count - self._bytes >= PROGRESS_BYTES:
            self._mark_s, self._bytes = now_s, count
        return max(0.0, min(self._end_s, self._mark_s + PROGRESS_S) - now_s)


class AddressQuota:
    """Counts inbound connections by the address they come from.

    Connections from this machine are not limited. An IPv6 address counts for its /64, and for its
    /48 with a limit four times as high.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def admit(self, remote: str) -> bool:
        """Count a connection from `host:port`; return False if there are too many from there."""
        limits = self._limits(remote)
        # "By their first 64 bits, and four times as many by their first 48": both must have room.
        if any(self._counts.get(name, 0) >= limit for name, limit in limits):
            return False
        for name, _ in limits:
            self._counts[name] = self._counts.get(name, 0) + 1
        return True

    def release(self, remote: str) -> None:
        """Note that an admitted connection has ended."""
        for name, _ in self._limits(remote):
            left = self._counts[name] - 1
            if left:
                self._counts[name] = left
            else:
                del self._counts[name]

    def _limits(self, remote: str) -> list[tuple[str, int]]:
        """Return the networks that `host:port` counts for, each with its limit."""
        name = source_of_remote(remote)
        if name is None or not self._limit:
            return []
        found = [(name, self._limit)]
        if "/" in name:
            site = ipaddress.ip_network(name).supernet(new_prefix=_IPV6_SITE_PREFIX)
            found.append((str(site), self._limit * SITE_FACTOR))
        return found


def source_of_remote(remote: str) -> str | None:
    """Return what connections from `host:port` are counted by; see `source_of`."""
    return source_of(remote.rpartition(":")[0])


def source_of(host: str) -> str | None:
    """Return the address or network a host counts for; None: this machine, or not an address."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        # RFC 4291, 2.5.5.2: such an address stands for an IPv4 address, and has its limit.
        if address.ipv4_mapped is not None:  # ::ffff:1.2.3.4, from a dual-stack socket
            address = address.ipv4_mapped
        elif not address.is_loopback:
            return str(ipaddress.ip_network((int(address), _IPV6_PREFIX), strict=False))
    return None if address.is_loopback else str(address)
