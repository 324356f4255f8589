"""How often a caller may ask."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from datalattice.errors import RateLimited, UsageError
from datalattice.service.access import (
    ALLOWANCES,
    ANONYMOUS,
    Allowance,
    Origin,
    Principal,
    RateLimits,
    Use,
)
from datalattice.service.access.limits import BUCKETS_MAX, address_key

ALICE, BOB = Principal("did:key:zA", "token"), Principal("did:key:zB", "token")


def passed(limits: RateLimits, use: Use, caller: Principal, address: str, now_ms: int) -> int:
    """Return how many calls pass at once."""
    for count in range(10_000):
        try:
            limits.take(use, replace(caller, origin=Origin("rest", 1, address)), now_ms)
        except RateLimited:
            return count
    return 10_000


def test_the_allowances() -> None:
    limits = RateLimits()
    assert passed(limits, "reads", ALICE, "", 0) == 200
    assert passed(limits, "effects", ALICE, "", 0) == 50
    assert passed(limits, "reads", ALICE, "", 500) == 100
    assert passed(limits, "effects", ALICE, "", 500) == 25
    assert ALLOWANCES["failures"] == Allowance(10 / 60, 10)
    assert BUCKETS_MAX == 10_000


def test_the_time_of_the_next_call_is_told_and_holds() -> None:
    limits = RateLimits({"reads": Allowance(4, 1)})
    limits.take("reads", ALICE, 0)
    with pytest.raises(RateLimited, match="too many reads") as caught:
        limits.take("reads", ALICE, 100)
    assert caught.value.retry_s == pytest.approx(0.15)
    with pytest.raises(RateLimited):
        limits.take("reads", ALICE, 249)
    limits.take("reads", ALICE, 250)


def test_each_caller_has_its_own_bucket_wherever_it_calls_from() -> None:
    limits = RateLimits({"reads": Allowance(1, 2)})
    assert passed(limits, "reads", ALICE, "192.0.2.1", 0) == 2
    assert passed(limits, "reads", ALICE, "192.0.2.2", 0) == 0
    assert passed(limits, "reads", BOB, "192.0.2.1", 0) == 2
    assert passed(limits, "reads", ANONYMOUS, "192.0.2.1", 0) == 2
    assert passed(limits, "reads", ANONYMOUS, "192.0.2.2", 0) == 2
    assert passed(limits, "reads", ANONYMOUS, "192.0.2.1", 0) == 0


def test_a_look_counts_nothing() -> None:
    limits = RateLimits({"reads": Allowance(1, 2)})
    for _ in range(5):
        limits.check("reads", ALICE, 0)
    assert passed(limits, "reads", ALICE, "", 0) == 2
    with pytest.raises(RateLimited) as caught:
        limits.check("reads", ALICE, 500)
    assert caught.value.retry_s == pytest.approx(0.5)
    limits.check("reads", replace(ALICE, how="socket"), 500)
    limits.check("reads", BOB, 500)


def test_whoever_opens_the_folder_is_not_counted() -> None:
    limits = RateLimits({"reads": Allowance(1, 1)})
    for how in ("process", "socket"):
        caller = Principal("did:key:zA", how)
        assert passed(limits, "reads", caller, "", 0) == 10_000


def test_failures_are_looked_at_apart_from_counting() -> None:
    limits = RateLimits({"failures": Allowance(1, 2)})
    for _ in range(5):
        limits.check_failures("192.0.2.1", 0)
    for _ in range(2):
        limits.count_failure("192.0.2.1", 0)
    with pytest.raises(RateLimited, match="too many failures"):
        limits.check_failures("192.0.2.1", 0)
    limits.count_failure("192.0.2.1", 0)  # no debt grows from it
    limits.check_failures("192.0.2.1", 1_000)


def test_one_household_has_one_bucket() -> None:
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff") == "2001:db8::/64"
    assert address_key("2001:db8:0:1::1") != address_key("2001:db8::1")
    assert address_key("::ffff:192.0.2.1") == address_key("192.0.2.1") == "192.0.2.1"
    assert address_key("fe80::1%eth0") == address_key("fe80::2%eth0")
    assert address_key("a socket") == "a socket"
    assert address_key(None) == ""


def test_buckets_are_bounded_and_the_one_unused_for_longest_goes() -> None:
    limits = RateLimits({"reads": Allowance(1, 1)}, buckets_max=2)
    for address in ("a", "b", "c"):
        assert passed(limits, "reads", ANONYMOUS, address, 0) == 1
    assert passed(limits, "reads", ANONYMOUS, "b", 0) == 0
    assert passed(limits, "reads", ANONYMOUS, "c", 0) == 0
    assert passed(limits, "reads", ANONYMOUS, "a", 0) == 1  # forgotten


def test_a_clock_that_is_set_back_gives_nothing_and_takes_nothing() -> None:
    limits = RateLimits({"reads": Allowance(1, 2)})
    limits.take("reads", ALICE, 1_000_000)
    limits.take("reads", ALICE, 0)
    with pytest.raises(RateLimited):
        limits.take("reads", ALICE, 0)
    limits.take("reads", ALICE, 1_000)


@pytest.mark.parametrize("allowance", [Allowance(0, 1), Allowance(-1, 1), Allowance(1, 0)])
def test_an_allowance_of_nothing_is_refused(allowance: Allowance) -> None:
    with pytest.raises(UsageError, match="reads"):
        RateLimits({"reads": allowance})


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60))
def test_no_more_pass_than_the_burst_and_the_rate_allow(gaps: list[int]) -> None:
    limits, now_ms, count, waits = RateLimits({"effects": Allowance(5, 3)}), 0, 0, [0.1]
    for gap in gaps:
        now_ms += gap
        try:
            limits.take("effects", ALICE, now_ms)
        except RateLimited as error:
            waits.append(error.retry_s)
        else:
            count += 1
    assert min(waits) > 0
    assert max(waits) <= 0.2
    assert count <= 3 + now_ms / 1_000 * 5 + 1e-6
