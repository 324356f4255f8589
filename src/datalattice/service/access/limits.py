"""Limits: rates of calls for each caller, as token buckets.

A bucket holds up to `burst` tokens and gains `per_s` tokens a second; each call takes one.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from datalattice.errors import RateLimited, UsageError
from datalattice.service.access.principal import Principal

BUCKETS_MAX: Final = 10_000
"""Most buckets of each use."""

_IPV6_PREFIX: Final = 64  # a household gets 2**64 addresses or more: a bound by address is useless

Use = Literal["reads", "effects", "failures"]
"""The counted events; `failures`: invalid credentials."""


class Allowance(NamedTuple):
    """The rate of one use. per_s: calls a second on average. burst: most calls at once."""

    per_s: float
    burst: int


ALLOWANCES: Final[Mapping[Use, Allowance]] = {
    "reads": Allowance(200, 200),
    "effects": Allowance(50, 50),
    "failures": Allowance(10 / 60, 10),
}


class RateLimits:
    """The buckets of all callers. Any thread may call a method."""

    def __init__(
        self, allowances: Mapping[Use, Allowance] = ALLOWANCES, buckets_max: int = BUCKETS_MAX
    ) -> None:
        self._allowances = _checked(allowances)
        self._buckets_max = buckets_max
        # By use and caller: (tokens, the time at which they were counted).
        self._buckets: dict[Use, OrderedDict[str, tuple[float, int]]] = {
            use: OrderedDict() for use in self._allowances
        }
        self._lock = threading.Lock()

    def change(self, allowances: Mapping[Use, Allowance]) -> None:
        """Use other allowances from now on; callers keep their tokens.

        Raises: UsageError: one allows no calls.
        """
        self._allowances = _checked(allowances)

    def take(self, use: Use, caller: Principal, now_ms: int) -> None:
        """Count a call of a caller, by its address if it is anonymous. Local callers are exempt.

        Raises: RateLimited: there were too many.
        """
        self._take_of(use, caller, now_ms, 1)

    def check(self, use: Use, caller: Principal, now_ms: int) -> None:
        """Raise RateLimited if `take` would; count nothing."""
        self._take_of(use, caller, now_ms, 0)

    def check_failures(self, address: str | None, now_ms: int) -> None:
        """Raise RateLimited if too many invalid credentials came from an address."""
        self._take("failures", address_key(address), now_ms, 0)

    def count_failure(self, address: str | None, now_ms: int) -> None:
        """Count an invalid credential."""
        with self._lock:
            key = address_key(address)
            # Not below 0: many calls may pass `check_failures` before the first of them fails.
            self._put("failures", key, max(0.0, self._tokens("failures", key, now_ms) - 1), now_ms)

    def _take_of(self, use: Use, caller: Principal, now_ms: int, count: int) -> None:
        if not caller.is_local:
            self._take(use, caller.did or address_key(caller.origin.address), now_ms, count)

    def _take(self, use: Use, key: str, now_ms: int, count: int) -> None:
        with self._lock:
            tokens = self._tokens(use, key, now_ms)
            if tokens < 1:
                retry_s = (1 - tokens) / self._allowances[use].per_s
                raise RateLimited(f"too many {use}; try again in {retry_s:.3g} s", retry_s)
            if count:
                self._put(use, key, tokens - count, now_ms)

    def _tokens(self, use: Use, key: str, now_ms: int) -> float:
        per_s, burst = self._allowances[use]
        found = self._buckets[use].get(key)
        if found is None:
            # A bucket that was dropped had refilled the most, so an unknown caller has a full one.
            return burst
        tokens, counted_ms = found
        # After the clock was set back, the bucket gains nothing for that time.
        return min(burst, tokens + max(0, now_ms - counted_ms) / 1_000 * per_s)

    def _put(self, use: Use, key: str, tokens: float, now_ms: int) -> None:
        buckets = self._buckets[use]
        buckets[key] = (tokens, now_ms)
        buckets.move_to_end(key)
        if len(buckets) > self._buckets_max:
            buckets.popitem(last=False)  # the one unused for longest: it is the fullest


def _checked(allowances: Mapping[Use, Allowance]) -> dict[Use, Allowance]:
    found = {**ALLOWANCES, **allowances}
    for use, (per_s, burst) in found.items():
        if not (per_s > 0 and burst >= 1):  # else no call would ever pass again
            raise UsageError(
                f"{use}: above 0 a second and at least 1 at once, got {per_s} and {burst}"
            )
    return found


def address_key(address: str | None) -> str:
    """Return the name under which an address is counted: IPv6 by its first 64 bits."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        # No address, as on a Unix socket: all such callers share a bucket.
        return address or ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            # A listener of both families shows IPv4 callers so; by their first 64 bits all would be
            # one.
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found), _IPV6_PREFIX), strict=False))
    return str(found)
