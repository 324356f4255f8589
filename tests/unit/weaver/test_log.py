"""The log of a store: what is witnessed, what waits, look-ups, ranges, limits, clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from pathlib import Path

import pytest

from datalattice.clock import HLC_DRIFT_MS, Hlc
from datalattice.engine import Engine, LmdbEngine, MemoryEngine, ReadTxn
from datalattice.errors import Corruption, LimitExceeded, UsageError
from datalattice.testing.log_kit import KIT_STORE, NOW, Author, LogFixture, author
from datalattice.weaver import (
    LOG_TABLES,
    ZERO_HASH,
    FloatingFull,
    IntentionLog,
    LogLimits,
    MissingPrev,
    NotInChain,
    PayloadTooLarge,
    SignedIntention,
    TooManyCausalDeps,
    WitnessEntry,
)

LOW, HIGH = bytes(32), b"\xff" * 32


@pytest.fixture(params=["memory", "lmdb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    made: Engine = (
        MemoryEngine(LOG_TABLES)
        if request.param == "memory"
        else LmdbEngine(tmp_path / "engine", LOG_TABLES, durable=False)
    )
    yield made
    made.close()


@pytest.fixture
def store(engine: Engine) -> LogFixture:
    return LogFixture(engine)


def hashes(signed: list[SignedIntention]) -> list[bytes]:
    return [each.hash for each in signed]


def xor(names: list[bytes]) -> bytes:
    return reduce(lambda a, b: bytes(x ^ y for x, y in zip(a, b, strict=True)), names, bytes(32))


# --- intention store ----------------------------------------------------------------------------


def test_empty_log(store: LogFixture) -> None:
    head = store.head()
    assert (head.seq, head.count, head.content_hash, head.fingerprint) == (
        0,
        0,
        ZERO_HASH,
        ZERO_HASH,
    )
    assert store.witnessed() == []
    assert store.floating() == {}
    assert store.rows() == {}
    assert store.fsck() == []


def test_insert_and_get(store: LogFixture) -> None:
    (signed,) = Author().chain(1)
    done = store.ingest(signed)
    assert (done.witnessed, done.floating, done.result) == ((1,), (), "applied")
    assert store.read(store.log.get, signed.hash) == signed
    assert store.read(store.log.seq_of, signed.hash) == 1
    assert store.read(store.log.get, HIGH) is None
    assert store.read(store.log.seq_of, HIGH) is None


def test_zero_counts_as_witnessed(store: LogFixture) -> None:
    done = store.ingest(Author().write(b"p", [ZERO_HASH]))
    assert done.witnessed == (1,)


def test_idempotent_ingest(store: LogFixture) -> None:
    """A duplicate makes no second record, in one call or in two, witnessed or floating."""
    writer = Author()
    first, second, third = writer.chain(3)
    store.ingest(first, first)
    rows = store.rows()
    again = store.ingest(first)
    assert (again.witnessed, again.floating, again.missing) == ((), (), ())
    assert store.rows() == rows
    store.ingest(third, third)
    waiting = store.rows()
    again = store.ingest(third, first)
    assert (again.witnessed, again.floating, again.missing) == ((), (), ())
    assert store.rows() == waiting
    assert list(store.floating()) == [third.hash]
    store.ingest(second)
    assert store.witnessed() == [first.hash, second.hash, third.hash]


def test_what_waits_changes_nothing_of_what_is_witnessed(store: LogFixture) -> None:
    """With nothing that waits, what follows a tip is witnessed without look-ups."""
    one, two, far = Author(1), Author(2), Author(3)
    first, *rest = one.chain(6)
    merge = two.write(b"m", [first.hash, rest[1].hash])
    late = two.write(b"late", stamp=Hlc(NOW + HLC_DRIFT_MS + 1, 0))
    batch = [first, rest[0], rest[0], first, rest[1], merge, rest[3], rest[2], late, rest[4]]
    done = store.ingest(*batch)
    assert done.witnessed == (1, 2, 3, 4, 5, 6, 7, 8)
    assert (done.floating, done.missing, done.forks) == ((), (), ())
    assert done.futures == (late.hash,)
    other = LogFixture()
    far.write()
    waits = far.write()
    assert other.ingest(waits).floating == (waits.hash,)
    same = other.ingest(*batch)
    assert same._replace(appended=None) == done._replace(appended=None)
    assert other.witnessed() == store.witnessed()
    assert [entry.record for entry in other.entries()] == [
        entry.record for entry in store.entries()
    ]
    assert [other.head().clock, other.head().fingerprint] == [
        store.head().clock,
        store.head().fingerprint,
    ]
    assert other.fsck() == store.fsck() == []


def test_floating_predecessor_missing(store: LogFixture) -> None:
    writer = Author()
    first, second, third = writer.chain(3)
    store.ingest(first)
    store.clock.now += 7
    done = store.ingest(third)
    assert done.missing == (MissingPrev(second.hash, first.hash, writer.public_key),)
    assert (done.result, done.floating) == ("missing", (third.hash,))
    (waiting,) = store.read(store.log.floating)
    assert (waiting.signed, waiting.received_ms, waiting.reason) == (third, NOW + 7, "prev")
    # It is stored, so it is found by its hash; it has no place in the log.
    assert store.read(store.log.get, third.hash) == third
    assert store.read(store.log.seq_of, third.hash) is None
    assert store.head().floating_count == 1
    assert store.head().floating_bytes == len(third.borsh) + 64


def test_floating_dependency_missing(store: LogFixture) -> None:
    a, b = Author(1), Author(2)
    first = a.write()
    second = b.write(b"after", [first.hash])
    done = store.ingest(second)
    assert (done.result, done.missing, done.missing_condition) == ("applied", (), (first.hash,))
    assert store.floating() == {second.hash: "condition"}
    assert store.ingest(first).witnessed == (1, 2)
    assert store.floating() == {}
    assert store.head().floating_count == store.head().floating_bytes == 0


def test_missing_reports_only_what_is_absent_from_the_store(store: LogFixture) -> None:
    writer = Author()
    chain = writer.chain(4)
    assert store.ingest(chain[3]).missing[0].prev == chain[2].hash
    # The predecessor of this one floats, so it need not be fetched.
    done = store.ingest(chain[1], chain[2])
    assert done.missing == (MissingPrev(chain[0].hash, ZERO_HASH, writer.public_key),)
    assert store.ingest(chain[0]).witnessed == (1, 2, 3, 4)


def test_missing_is_sorted_and_named_once(store: LogFixture) -> None:
    lost = Author(1).write()
    waiting = [Author(n).write(b"%d" % n, prev=lost.hash) for n in (1, 2, 3)]
    also = Author(1)
    also.write()
    beside = also.write(b"beside")
    done = store.ingest(*waiting, beside)
    assert list(done.missing) == sorted(set(done.missing))
    assert len({each for each in done.missing if each.prev == lost.hash}) == 3
    deps = [Author(n).write().hash for n in (7, 8)]
    done = store.ingest(Author(5).write(b"", deps), Author(6).write(b"", deps))
    assert done.missing_condition == tuple(sorted(deps))


def test_reverse_order_cascade(store: LogFixture) -> None:
    chain = Author().chain(6)
    for signed in reversed(chain[1:]):
        store.ingest(signed)
    assert store.witnessed() == []
    assert store.ingest(chain[0]).witnessed == (1, 2, 3, 4, 5, 6)
    assert store.witnessed() == hashes(chain)
    assert store.fsck() == []


def test_partial_chain(store: LogFixture) -> None:
    chain = Author().chain(5)
    store.ingest(chain[0], chain[1], chain[3], chain[4])
    assert store.witnessed() == hashes(chain[:2])
    assert list(store.floating().values()) == ["prev", "prev"]
    store.ingest(chain[2])
    assert store.witnessed() == hashes(chain)


def test_any_order_within_a_call(store: LogFixture) -> None:
    chain = Author().chain(5)
    assert store.ingest(*(chain[n] for n in (3, 1, 4, 0, 2))).witnessed == (1, 2, 3, 4, 5)
    assert store.witnessed() == hashes(chain)
    # What waited only for others of its own call never touched the tables of what floats.
    assert not [key for key in store.rows() if key[0].startswith("floating")]


def test_diamond(store: LogFixture) -> None:
    a, b, c = Author(1), Author(2), Author(3)
    root = a.write(b"root")
    left, right = b.write(b"left", [root.hash]), c.write(b"right", [root.hash])
    join = a.write(b"join", [left.hash, right.hash])
    for signed in (join, right, left):
        assert store.ingest(signed).witnessed == ()
    assert store.ingest(root).witnessed == (1, 2, 3, 4)
    assert store.witnessed() == hashes([root, right, left, join])


def test_cross_author_dependencies_in_both_directions(store: LogFixture) -> None:
    a, b = Author(1), Author(2)
    a1 = a.write()
    b1 = b.write(b"b1", [a1.hash])
    a2 = a.write(b"a2", [b1.hash])
    b2 = b.write(b"b2", [a2.hash])
    for signed in (b2, a2, b1):
        store.ingest(signed)
    store.ingest(a1)
    assert store.witnessed() == hashes([a1, b1, a2, b2])


def test_wake_order_follows_arrival(store: LogFixture) -> None:
    root = Author(0).write()
    waiting = [Author(n).write(b"%d" % n, [root.hash]) for n in (5, 2, 9, 1)]
    for signed in waiting:
        store.ingest(signed)
    store.ingest(root)
    assert store.witnessed() == [root.hash, *hashes(waiting)]


def test_own_next_ones_are_called_before_those_that_depend(store: LogFixture) -> None:
    a, b = Author(1), Author(2)
    first = a.write()
    dependent = b.write(b"", [first.hash])
    second = a.write()
    store.ingest(dependent)
    store.ingest(second)
    store.ingest(first)
    assert store.witnessed() == hashes([first, second, dependent])


def test_a_thousand_missing_dependencies(store: LogFixture) -> None:
    roots = [Author(n).write() for n in range(1024)]
    last = Author(5000).write(b"last", hashes(roots))
    done = store.ingest(last)
    assert len(done.missing_condition) == 1024
    assert len([key for key in store.rows() if key[0] == "floating_by_dep"]) == 1
    for start in range(0, 1024, 100):
        assert last.hash in store.floating()
        store.ingest(*roots[start : start + 100])
    assert store.head().seq == 1025
    assert store.floating() == {}
    assert not [key for key in store.rows() if key[0].startswith("floating")]


def test_a_dependency_on_itself_waits_and_ends(store: LogFixture) -> None:
    """No hash can name itself, but the walk must not rely on it."""
    signed = Author().write()
    intention = signed.intention._replace(deps=(signed.hash,))
    itself = signed._replace(intention=intention)
    done = store.ingest(itself)
    assert (done.witnessed, done.floating) == ((), (signed.hash,))


def test_deep_wake_cascade(store: LogFixture) -> None:
    chain = Author().chain(3000)
    store.ingest(*reversed(chain[1:]))
    assert store.head().floating_count == 2999
    assert len(store.ingest(chain[0]).witnessed) == 3000
    assert store.witnessed() == hashes(chain)


def test_deep_cascade_over_dependencies(store: LogFixture) -> None:
    writers = [Author(n) for n in range(7)]
    signed = [writers[0].write()]
    signed.extend(writers[n % 7].write(b"", [signed[-1].hash]) for n in range(1, 500))
    for each in reversed(signed[1:]):
        store.ingest(each)
    store.ingest(signed[0])
    assert store.witnessed() == hashes(signed)
    assert store.fsck() == []


def test_tip_follows_witnessing_and_survives_reopen(store: LogFixture) -> None:
    writer = Author()
    chain = writer.chain(3)
    store.ingest(chain[0], chain[2])
    tip = store.read(store.log.tip, writer.public_key)
    assert (tip.hash, tip.seq, tip.height, tip.contents) == (chain[0].hash, 1, 1, 1)
    store.ingest(chain[1])
    again = LogFixture(store.engine)
    tips = again.read(again.log.tips)
    assert {key: tip.hash for key, tip in tips.items()} == {writer.public_key: chain[2].hash}
    assert again.read(again.log.tip, author(9).public_key) is None
    assert again.witnessed() == hashes(chain)


def test_stores_of_one_engine_are_separate(engine: Engine) -> None:
    one = LogFixture(engine)
    other = LogFixture(engine, store_id=bytes(16), prefix=b"\0\0\0\2")
    ours, theirs = Author(1).chain(2), Author(1, bytes(16)).chain(3)
    one.ingest(*ours)
    other.ingest(*theirs)
    assert one.witnessed() == hashes(ours)
    assert other.witnessed() == hashes(theirs)
    assert one.fsck() == other.fsck() == []


def test_another_authors_predecessor_is_never_witnessed(store: LogFixture) -> None:
    """One signed intention must not stop the projection of every node."""
    a, b = Author(1), Author(2)
    first = a.write()
    wrong = b.write(b"wrong", prev=first.hash)
    store.ingest(first)
    done = store.ingest(wrong)
    assert (done.witnessed, done.missing, done.forks) == ((), (), ())
    assert store.floating() == {wrong.hash: "prev"}
    second = a.write()
    store.ingest(second)
    assert store.witnessed() == hashes([first, second])
    assert store.ingest(Author(2).write(b"right")).witnessed == (3,)
    assert store.fsck() == []


# --- look-ups -----------------------------------------------------------------------------------


def test_by_prefix(store: LogFixture) -> None:
    chain = Author().chain(300)
    store.ingest(*chain[:250], *chain[260:])

    def look(prefix: bytes) -> list[bytes]:
        return hashes(store.read(store.log.by_prefix, prefix))

    known = sorted(hashes(chain[:250] + chain[260:]))
    for first in (0, 1, 0x7F, 0xFF):
        assert look(bytes([first])) == [name for name in known if name[0] == first]
    assert look(chain[5].hash) == [chain[5].hash]
    assert look(chain[270].hash) == [chain[270].hash]
    assert look(chain[255].hash) == look(b"") == look(chain[5].hash + b"\0") == []


def test_scan_witness_log_streaming(store: LogFixture) -> None:
    """Ten ingested, ten streamed in order."""
    chain = Author().chain(10)
    store.ingest(*chain)

    def seqs(start: int, limit: int | None) -> list[int]:
        return [entry.seq for entry in store.entries(start, limit)]

    assert seqs(1, None) == list(range(1, 11))
    assert seqs(0, 3) == [1, 2, 3]
    assert seqs(9, 5) == [9, 10]
    assert seqs(11, 5) == seqs(1, 0) == []
    entry: WitnessEntry = store.read(store.log.entry, 4)
    assert (entry.seq, entry.signed, entry.height) == (4, chain[3], 4)
    for seq in (0, 11):
        with pytest.raises(UsageError, match=f"no entry {seq}"):
            store.read(store.log.entry, seq)


def test_walk_back_until(store: LogFixture) -> None:
    chain = Author().chain(10)
    store.ingest(*chain[:8], chain[9])

    def walk(target: bytes, since: bytes, limit: int = 32) -> list[bytes]:
        return hashes(store.read(store.log.walk_back_until, target, since, limit))

    assert walk(chain[7].hash, chain[3].hash) == hashes(chain[7:3:-1])
    assert walk(chain[2].hash, ZERO_HASH) == hashes(chain[2::-1])
    assert walk(chain[2].hash, ZERO_HASH, limit=3) == hashes(chain[2::-1])
    assert walk(chain[2].hash, chain[2].hash) == []
    with pytest.raises(LimitExceeded):
        walk(chain[2].hash, ZERO_HASH, limit=2)
    with pytest.raises(NotInChain, match="not here"):
        walk(chain[9].hash, chain[0].hash)
    with pytest.raises(NotInChain, match="not below"):
        walk(chain[2].hash, chain[5].hash)
    with pytest.raises(NotInChain):
        walk(HIGH, ZERO_HASH)


def test_in_log_order(store: LogFixture) -> None:
    chain = Author().chain(5)
    store.ingest(*chain)
    asked = [HIGH, *sorted(hashes(chain[:4]))]
    assert store.read(store.log.in_log_order, asked) == hashes(chain[:4])


def test_range_queries(store: LogFixture) -> None:
    chain = Author().chain(60)
    store.ingest(*chain[:50], chain[55])
    known = sorted(hashes(chain[:50]))
    middle = known[20]
    for start, end in (
        (LOW, HIGH),  # full
        (LOW, LOW),  # zero width
        (HIGH, LOW),  # inverted
        (middle, known[30]),  # partial: the start is in, the end is out
        (middle, middle),
        (known[-1], HIGH),
        (HIGH, HIGH),
    ):
        wanted = [name for name in known if start <= name < end]
        found = store.read(store.log.sum_range, start, end)
        assert (found.size, found.xor.to_bytes(32, "big")) == (len(wanted), xor(wanted))
        assert store.read(store.log.hashes_in_range, start, end) == wanted
        assert store.read(hashes_of, store.log, start, end) == wanted


def hashes_of(txn: ReadTxn, log: IntentionLog, start: bytes, end: bytes) -> list[bytes]:
    return list(log.iter_hashes(txn, start, end))


def test_range_queries_at_the_edges_of_first_bytes() -> None:
    """Whole first bytes come from sums, the rest from a scan; every cut gives the same."""
    store = LogFixture()
    for batch in range(6):
        store.ingest(*Author(batch).chain(100))
    known = sorted(store.witnessed())
    cuts = [b"", LOW, HIGH, b"\x10", b"\x10" + bytes(31), b"\x10" + bytes(30) + b"\1"]
    cuts += [b"\x11", b"\x0f" + b"\xff" * 31, b"\xff", known[40], known[300], b"\1" + bytes(31)]
    for start in cuts:
        for end in cuts:
            wanted = [name for name in known if start <= name < end]
            found = store.read(store.log.sum_range, start, end)
            assert (found.size, found.xor.to_bytes(32, "big")) == (len(wanted), xor(wanted))


def test_range_queries_of_an_empty_log(store: LogFixture) -> None:
    assert store.read(store.log.sum_range, LOW, HIGH) == (0, 0)
    assert store.read(store.log.hashes_in_range, LOW, HIGH) == []


def test_listing_more_than_2048_hashes_is_an_error(store: LogFixture) -> None:
    chain = Author().chain(2049)
    store.ingest(*chain[:2048])
    assert len(store.read(store.log.hashes_in_range, LOW, HIGH)) == 2048
    store.ingest(chain[2048])
    with pytest.raises(LimitExceeded, match="2048"):
        store.read(store.log.hashes_in_range, LOW, HIGH)


def test_fingerprint_is_incremental_and_the_same_after_reopen(store: LogFixture) -> None:
    chain = Author().chain(20)
    for signed in chain:
        store.ingest(signed)
        store.ingest(signed)
    assert store.head().fingerprint == xor(hashes(chain))
    again = LogFixture(store.engine)
    assert again.head() == store.head()
    assert again.head().fingerprint == again.read(
        lambda txn: again.log.sum_range(txn, LOW, HIGH).xor.to_bytes(32, "big")
    )


def test_divergent_logs_have_different_fingerprints_until_they_agree() -> None:
    one, other = LogFixture(), LogFixture()
    ours, theirs = Author(1).chain(3), Author(2).chain(3)
    one.ingest(*ours)
    other.ingest(*theirs)
    assert one.head().fingerprint != other.head().fingerprint
    one.ingest(*theirs)
    other.ingest(*ours)
    assert one.head().fingerprint == other.head().fingerprint
    assert one.witnessed() != other.witnessed()
    assert one.head().content_hash != other.head().content_hash


def test_opening_reads_nothing() -> None:
    """A log has no open: the head is one row, written with every change."""
    store = LogFixture()
    store.ingest(*Author().chain(50))
    rows = [key for table, key in store.rows() if table == "log_meta"]
    assert b"head" in rows
    assert all(key == b"head" or key.startswith(b"range/") for key in rows)


# --- submit -------------------------------------------------------------------------------------


def test_submit_chains_and_witnesses(store: LogFixture) -> None:
    key = author(1)
    first = store.submit(key, b"1")
    second = store.submit(key, b"2", [first.hash])
    assert first.intention.store_prev == ZERO_HASH
    assert second.intention.store_prev == first.hash
    assert second.intention.deps == (first.hash,)
    assert second.verify()
    assert store.witnessed() == hashes([first, second])
    assert first.intention.store_id == KIT_STORE
    assert store.fsck() == []


def test_submit_sorts_dependencies_and_drops_repeats(store: LogFixture) -> None:
    roots = hashes([Author(n).write() for n in (3, 1, 2)])
    signed = store.submit(author(1), b"", [*roots, roots[0]])
    assert signed.intention.deps == tuple(sorted(roots))


def test_submit_refuses_what_is_too_large() -> None:
    store = LogFixture(limits=LogLimits(own_payload_bytes=10, deps=2))
    store.submit(author(1), bytes(10))
    with pytest.raises(PayloadTooLarge) as large:
        store.submit(author(1), bytes(11))
    assert (large.value.size, large.value.max) == (11, 10)
    deps = [bytes([n]) * 32 for n in (1, 2, 3)]
    with pytest.raises(TooManyCausalDeps) as many:
        store.submit(author(1), b"", deps)
    assert (many.value.count, many.value.max) == (3, 2)
    with pytest.raises(UsageError, match="32 bytes"):
        store.submit(author(1), b"", [b"short"])
    assert store.head().seq == 1


def test_a_damaged_key_signs_nothing(store: LogFixture) -> None:
    key = author(1)
    key.public_key = author(2).public_key
    with pytest.raises(UsageError, match="damaged"):
        store.submit(key)
    assert store.head().count == 0


def test_submit_with_an_unknown_dependency_floats_and_the_chain_goes_on() -> None:
    """A second write beside the waiting one would be a fork of one's own."""
    store, other = LogFixture(), Author(2)
    awaited = other.write()
    first = store.submit(author(1), b"1")
    second = store.submit(author(1), b"2", [awaited.hash])
    third = store.submit(author(1), b"3")
    assert third.intention.store_prev == second.hash
    assert store.witnessed() == [first.hash]
    assert store.floating() == {second.hash: "condition", third.hash: "prev"}
    assert third.intention.stamp > second.intention.stamp > first.intention.stamp
    store.ingest(awaited)
    assert store.witnessed() == hashes([first, awaited, second, third])
    assert store.read(store.log.forks) == []
    assert store.fsck() == []


def test_one_thousand_submissions_under_a_frozen_clock() -> None:
    store = LogFixture()
    stamps = [store.submit(author(1)).intention.stamp for _ in range(1000)]
    assert all(one < two for one, two in pairwise(stamps))
    assert stamps[:3] == [Hlc(NOW, 0), Hlc(NOW, 1), Hlc(NOW, 2)]
    assert store.head().seq == 1000


def test_stamps_increase_when_the_clock_steps_back(store: LogFixture) -> None:
    first = store.submit(author(1))
    store.clock.now -= 100_000
    second = store.submit(author(1))
    assert second.intention.stamp == first.intention.stamp.after()


def test_a_write_outranks_what_it_saw(store: LogFixture) -> None:
    ahead = Author(2).write(stamp=Hlc(NOW + 1000, 7))
    store.ingest(ahead)
    assert store.head().clock == Hlc(NOW + 1000, 8)
    assert store.submit(author(1)).intention.stamp == Hlc(NOW + 1000, 9)


def test_far_future_stamp_does_not_drag_the_clock(store: LogFixture) -> None:
    limit = Author(2).write(stamp=Hlc(NOW + HLC_DRIFT_MS, 0))
    far = Author(3).write(stamp=Hlc(NOW + HLC_DRIFT_MS + 1, 0))
    assert store.ingest(far).futures == (far.hash,)
    assert store.head().clock <= Hlc(NOW, 5)
    assert store.ingest(far).futures == ()
    assert store.ingest(limit).futures == ()
    assert store.head().clock.wall == NOW + HLC_DRIFT_MS
    # The stamp is stored as it was signed.
    assert store.read(store.log.get, far.hash) == far


def test_a_write_after_a_far_future_one_outranks_it_and_only_it(store: LogFixture) -> None:
    far = Author(2).write(stamp=Hlc(NOW + 10 * HLC_DRIFT_MS, 3))
    store.ingest(far)
    over = store.submit(author(1), b"over", [far.hash])
    assert over.intention.stamp == far.intention.stamp.after()
    assert store.head().clock.wall <= NOW + HLC_DRIFT_MS
    again = store.submit(author(1))
    assert again.intention.stamp > over.intention.stamp
    assert store.submit(author(4)).intention.stamp.wall <= NOW + HLC_DRIFT_MS


def test_a_dependency_stamped_with_the_end_of_time_cannot_be_replaced(store: LogFixture) -> None:
    last = Author(2).write(stamp=Hlc(2**64 - 1, 2**32 - 1))
    store.ingest(last)
    with pytest.raises(UsageError, match="does not fit"):
        store.submit(author(1), b"", [last.hash])
    assert store.submit(author(1)).intention.stamp.wall == NOW


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waiting", "fits"), [(4, True), (5, True), (6, False)])
def test_floating_is_bounded_in_entries(waiting: int, fits: bool) -> None:
    store = LogFixture(limits=LogLimits(floating_entries=5))
    chain = Author().chain(8)
    if fits:
        store.ingest(*chain[1 : waiting + 1])
        assert store.head().floating_count == waiting
    else:
        with pytest.raises(FloatingFull, match="at most 5"):
            store.ingest(*chain[1 : waiting + 1])
        assert store.rows() == {}


def test_floating_is_bounded_in_bytes() -> None:
    chain = [Author(n).chain(2)[1] for n in range(3)]
    size = sum(len(signed.borsh) + 64 for signed in chain)
    for limit, fits in ((size + 1, True), (size, True), (size - 1, False)):
        store = LogFixture(limits=LogLimits(floating_bytes=limit))
        if fits:
            store.ingest(*chain)
            assert store.head().floating_bytes == size
        else:
            with pytest.raises(FloatingFull):
                store.ingest(*chain)


def test_a_full_store_takes_what_wakes_others_and_what_was_fetched() -> None:
    store = LogFixture(limits=LogLimits(floating_entries=2))
    chain = Author().chain(6)
    store.ingest(chain[2], chain[3])
    with pytest.raises(FloatingFull):
        store.ingest(chain[4])
    assert store.ingest(chain[4], bounded=False).floating == (chain[4].hash,)
    assert store.head().floating_count == 3
    # Above the bound nothing more may wait, but what ends the waiting is welcome.
    with pytest.raises(FloatingFull):
        store.ingest(chain[5])
    assert store.ingest(Author(2).write()).witnessed == (1,)
    assert len(store.ingest(chain[0], chain[1]).witnessed) == 5
    assert store.head().floating_count == 0


def test_waiting_intentions_cannot_be_exchanged_for_larger_ones() -> None:
    """As many wait as before, with more bytes."""
    small = Author(1).chain(2)
    size = len(small[1].borsh) + 64
    store = LogFixture(limits=LogLimits(floating_bytes=size))
    store.ingest(small[1])
    large = Author(2)
    large.write()
    with pytest.raises(FloatingFull):
        store.ingest(small[0], large.write(bytes(50)))
    assert list(store.floating()) == [small[1].hash]


def test_an_intention_of_another_store_is_a_mistake_of_the_caller(store: LogFixture) -> None:
    with pytest.raises(UsageError, match="another store"):
        store.ingest(Author(1).write(), Author(2, bytes(16)).write())
    assert store.rows() == {}


def test_the_bounds_are_those_that_were_decided() -> None:
    assert (LogLimits().floating_entries, LogLimits().floating_bytes) == (65_536, 256 << 20)


# --- size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depends", [False, True])
def test_the_tables_take_at_most_twice_the_envelopes(tmp_path: Path, depends: bool) -> None:
    """50 authors, payloads of 100 bytes, as they come from a peer; pages of the file are counted.

    The second case is the worst one for frontiers: every author depends on the newest of all, and
    so has seen something new of all others since it wrote last.
    """
    with contextlib.closing(LmdbEngine(tmp_path, LOG_TABLES, durable=False)) as engine:
        store = LogFixture(engine)
        writers = [Author(n) for n in range(50)]
        size, last = 0, b""
        for start in range(0, 10_000, 100):
            batch = []
            for n in range(start, start + 100):
                batch.append(writers[n % 50].write(bytes(100), [last] if depends and last else ()))
                last = batch[-1].hash
            size += sum(len(signed.encode()) for signed in batch)
            store.ingest(*batch)
        pages = _pages(engine)
    assert pages <= 2 * size
    assert pages <= 1.7 * size  # as built


def _pages(engine: LmdbEngine) -> int:
    """Return the bytes of all pages that hold the tables."""
    total = 0
    with engine.write() as txn:
        for table in LOG_TABLES:
            stat = txn._raw.stat(engine.handle(table))
            pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            total += pages * stat["psize"]
    return total


# --- damage -------------------------------------------------------------------------------------


def test_damage_is_an_error_and_never_another_intention(store: LogFixture) -> None:
    (signed, *_) = Author().chain(1)
    store.ingest(signed)
    key = b"\0" * 7 + b"\1"
    row = store.rows()["witness", key]
    changed = row[:-1] + bytes([row[-1] ^ 1])
    store.plant("witness", key, changed)
    with pytest.raises(Corruption):
        store.read(store.log.get, signed.hash)
    for damaged in (row[:50], b""):
        store.plant("witness", key, damaged)
        with pytest.raises(Corruption):
            store.witnessed()
    store.plant("witness", key, None)
    with pytest.raises(Corruption, match="missing"):
        store.read(store.log.get, signed.hash)


def test_a_record_is_not_signed_before_its_successor_names_it(store: LogFixture) -> None:
    """A row changed on disk: nothing from it on is given out, at the end of a scan either."""
    store.ingest(*Author().chain(4))
    for seq in (2, 4):
        key = b"\0" * 7 + bytes([seq])
        row = store.rows()["witness", key]
        store.plant("witness", key, row[:-1] + b"X")
        with pytest.raises(Corruption):
            store.entries(seq, 1)
        assert len(store.entries(1, seq - 1)) == seq - 1
        store.plant("witness", key, row)
    store.plant("witness", key, None)
    with pytest.raises(Corruption, match="4: the row is missing"):
        store.witnessed()


def test_scan_stops_at_a_gap_and_at_a_broken_link(store: LogFixture) -> None:
    store.ingest(*Author().chain(4))
    key = b"\0" * 7 + b"\2"
    row = store.rows()["witness", key]
    store.plant("witness", key, row[:30] + row[30:40][::-1] + row[40:])
    with pytest.raises(Corruption):
        store.witnessed()
    store.plant("witness", key, None)
    with pytest.raises(Corruption, match="2: the row is missing"):
        store.witnessed()
