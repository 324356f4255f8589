"""Refs: every way to name a root, and what names none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from datalattice.cells import Vector, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import UsageError
from datalattice.store import CellStore, parse_time, time_text
from datalattice.store.refs import PREFIX_DIGITS_MIN
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2027-01-15T08:00:00Z", NOW_MS),
        ("2027-01-15 08:00", NOW_MS),
        ("2027-01-15T10:00:00.250+02:00", NOW_MS + 250),
        ("2027-01-15", NOW_MS - 8 * 3_600_000),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1800000000000", NOW_MS),
        ("250ms", NOW_MS - 250),
        ("90s", NOW_MS - 90_000),
        ("10m", NOW_MS - 600_000),
        ("3h", NOW_MS - 10_800_000),
        ("2d", NOW_MS - 172_800_000),
        ("1w", NOW_MS - 604_800_000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time(text, NOW_MS) == ms
    assert parse_time(time_text(ms), 0) == ms


@pytest.mark.parametrize("text", ["", "now", "10", "10y", "2027-13-01", "-5m", "1e9", "٣d"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="a time is ISO 8601"):
        parse_time(text, NOW_MS)


def test_a_time_out_of_the_calendar_is_printed_as_a_number() -> None:
    assert time_text(1 << 60) == f"{1 << 60} ms"
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert datetime.fromisoformat(time_text(NOW_MS)) == datetime.fromtimestamp(NOW_MS / 1e3, UTC)


def filled() -> tuple[CellStore, list[bytes]]:
    clock = StoppedClock(NOW_MS)
    store = CellStore.open("s", disk=SimDisk(1), entropy=SeededEntropy(1), clock=clock)
    roots = []
    for number in range(4):
        clock.now = NOW_MS + 60_000 * number
        roots.append(store.commit(Vector.of([number])).root_hash)
    return store, roots


def test_every_way_to_name_a_root() -> None:
    store, roots = filled()
    with store:
        store.pins.pin(roots[1], "release")
        assert store.resolve("HEAD") == store.resolve("HEAD~0") == roots[3]
        assert [store.resolve(f"HEAD~{n}") for n in (1, 2, 3)] == roots[2::-1]
        assert store.resolve("release") == roots[1]
        assert store.resolve("@2m") == store.resolve("@{2m}") == roots[1]
        assert store.resolve(f"@{time_text(NOW_MS + 59_999)}") == roots[0]
        for digits in (64, 12, PREFIX_DIGITS_MIN):
            text = roots[2].hex()[:digits]
            assert store.resolve(text) == store.resolve(f"0x{text}") == roots[2]
            assert store.resolve(text.upper()) == roots[2]
        assert store.resolve(value_hash(Vector.of([0])).hex()) == roots[0]
        text = roots[2].hex()[:8]
        store.pins.pin(roots[0], text)  # a name comes before a beginning of a hash
        assert store.resolve(text) == roots[0]
        assert store.resolve(f"0x{text}") == roots[2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("HEAD~4", "goes back to HEAD~3"),
        ("HEAD~x", "there is no pin"),
        ("nope", "there is no pin 'nope'"),
        ("ab", f"at least {PREFIX_DIGITS_MIN} hex digits"),
        ("0" * 12, "no pin and no root of the history begins"),
        ("0" * 64, "there is no value"),
        ("0" * 65, "there is no pin"),
        ("@1d", "the history begins at"),
        ("@soon", "a time is"),
    ],
)
def test_what_names_nothing(text: str, words: str) -> None:
    store, _ = filled()
    with store, pytest.raises(UsageError, match=words):
        store.resolve(text)


def test_a_beginning_of_several_hashes_is_refused() -> None:
    with CellStore.open("s", disk=SimDisk(1), entropy=SeededEntropy(1)) as store:
        seen: set[str] = set()
        number = 0
        while True:  # two roots of the last thousand that begin alike: there are some soon
            begin = store.commit(Vector.of([number])).root_hash.hex()[:PREFIX_DIGITS_MIN]
            if begin in seen:
                break
            seen.add(begin)
            number += 1
        with pytest.raises(UsageError, match="2 roots begin with"):
            store.resolve(begin)


def test_an_empty_store_has_no_head() -> None:
    with (
        CellStore.open("s", disk=SimDisk(1), entropy=SeededEntropy(1)) as store,
        pytest.raises(UsageError, match="nothing was ever committed here"),
    ):
        store.resolve("HEAD")
