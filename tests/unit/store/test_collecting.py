"""Collecting garbage: what is reached stays, what is not goes, and nothing ever dangles."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import (
    EncodedCell,
    Map,
    Value,
    Vector,
    branch_hashes,
    missing,
    novelty,
    same,
    value_hash,
)
from datalattice.crypto import SeededEntropy
from datalattice.engine import MemoryEngine
from datalattice.errors import (
    Corruption,
    MissingData,
    ReadOnly,
    StoreFailed,
    StoreLocked,
    StoreVersion,
    UsageError,
)
from datalattice.store import CellFetcher, CellStore, heal_store, open_damaged
from datalattice.store.files import StoreFolder
from datalattice.store.gc import collection, marking
from datalattice.store.kept import KEEP_NOTHING, LEASE_SECONDS_MAX, pins
from datalattice.store.kept.pins import PINS_LOCK
from datalattice.store.log import committer, removed as removed_module
from datalattice.store.log.hashindex import BEGINNING, STAGED, TABLES, HashIndex, LogPosition
from datalattice.store.log.logstate import LogState, Pack
from datalattice.store.log.packing import FLAG_PART, locate
from datalattice.store.log.recovery import LogReader
from datalattice.store.log.removed import DroppedRun, LocationSet, RemovedFilter, RemovedRecord
from datalattice.testing.clocks import StoppedClock

HOUR_MS = 3_600_000


@pytest.fixture(name="clock")
def fixture_clock() -> StoppedClock:
    return StoppedClock(1_000_000_000)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred bytes be worth a collection."""
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)


def text(number: int) -> str:
    return f"text {number} ".ljust(200, "x")


def texts(start: int, count: int = 20) -> Vector:
    return Vector.of([text(n) for n in range(start, start + count)])


def opened(path: Path, clock: StoppedClock, **options: Any) -> CellStore:
    return CellStore.open(
        path,
        segment_bytes=8_192,
        clock=clock,
        retention=KEEP_NOTHING,
        entropy=SeededEntropy(1),
        **options,
    )


def is_whole(store: CellStore, value: Value) -> bool:
    hash = value_hash(value)
    return store.has(hash) and missing(store.load(hash)) == []


def make_again(path: Path, clock: StoppedClock) -> CellStore:
    """Open a store whose index has to be made again from the segments."""
    (path / "index.state").unlink()
    return opened(path, clock)


def assert_clean(store: CellStore) -> None:
    report = store.check()
    assert report.is_clean, report
    assert not report.useless
    assert report.scars == ()


@pytest.mark.parametrize("garbage", [0, 5, 200])
def test_stats_a_dry_run_and_a_collection_count_the_same_bytes(
    tmp_path: Path, clock: StoppedClock, garbage: int
) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        store.put(*[text(9_000 + number) for number in range(garbage)])
        store.sync()
        clock.now += 1
        before = store.stats()
        dry = store.collect(grace_ms=0, dry_run=True)
        assert store.stats() == before, "a dry run changes nothing"
        done = store.collect(grace_ms=0)
        after = store.stats()
        assert before.bytes == dry.bytes_before == done.bytes_before
        assert after.bytes == dry.bytes_after == done.bytes_after
        assert (dry.cells_live, dry.bytes_live) == (done.cells_live, done.bytes_live)
        assert (dry.cells_dead, dry.bytes_dead) == (done.cells_dead, done.bytes_dead)
        assert before.cells == done.cells_live + done.cells_dead
        again = store.collect(grace_ms=0, dry_run=True)
        assert (again.cells_live, again.bytes_live) == (done.cells_live, done.bytes_live)
        assert again.cells_dead == after.dead_left == done.cells_dead - done.cells_removed


def test_what_nothing_reaches_goes_and_the_rest_stays(tmp_path: Path, clock: StoppedClock) -> None:
    kept = {name: texts(1_000 * n) for n, name in enumerate(["root", "pin", "lease", "old"], 1)}
    with opened(tmp_path / "s", clock) as store:
        for name in ("old", "lease", "pin", "root"):
            store.commit(kept[name])
        store.pins.pin(value_hash(kept["pin"]), "p")
        lease = store.lease(value_hash(kept["lease"]), 60)
        before = store.stats()
        done = store.collect(grace_ms=0)
        assert not store.has(value_hash(kept["old"]))
        assert not store.has(value_hash(text(4_000)))
        assert all(is_whole(store, kept[name]) for name in ("root", "pin", "lease"))
        assert done.cells_dead == len(novelty(texts(4_000)))
        assert done.cells_live == store.stats().cells == before.cells - done.cells_dead
        assert done.bytes_before == before.bytes
        assert done.bytes_after == store.stats().bytes < before.bytes
        assert store.stats().collected_ms == clock.now
        assert (store.stats().pins, store.stats().leases) == (1, 1)
        assert_clean(store)
        lease.release()
        store.pins.unpin("p")
        store.collect(grace_ms=0)
        assert is_whole(store, kept["root"])
        assert not store.has(value_hash(kept["pin"]))
        assert not store.has(value_hash(kept["lease"]))
        assert_clean(store)
    again = make_again(tmp_path / "s", clock)
    assert same(again.root(), kept["root"])
    assert not again.has(value_hash(kept["old"]))
    assert_clean(again)
    again.close()


def test_the_grace_keeps_what_was_the_root_or_staged_in_its_time(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        store.put(texts(100))
        store.sync()
        clock.now += HOUR_MS
        store.commit(texts(200))
        clock.now += 5_000
        store.put(texts(300))
        store.commit(texts(400))
        store.collect(grace_ms=10_000)
        assert all(is_whole(store, texts(n)) for n in (0, 200, 300, 400)), "0 was the root then"
        assert not store.has(value_hash(texts(100))), "staged, and older than the grace"
        clock.now += 7_000
        store.collect(grace_ms=10_000)
        assert not store.has(value_hash(texts(0)))
        assert is_whole(store, texts(200))
        assert not store.announced(value_hash(texts(300)))
        clock.now += HOUR_MS
    with opened(tmp_path / "s", clock) as store:  # ages outlive the process
        store.collect(grace_ms=10_000)
        assert is_whole(store, texts(400))
        assert not store.has(value_hash(texts(200)))
        assert not store.has(value_hash(texts(300)))
        assert_clean(store)


def test_what_leans_on_removed_cells_fails_or_brings_them_again(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        held = store.root()
        store.commit(texts(100))
        store.collect(grace_ms=0)
        before = store.root_hash()
        with pytest.raises(MissingData):
            store.commit(Map.of({"held": held}))
        with pytest.raises(MissingData):
            store.put_encodings([(h, e) for h, e, _ in novelty(texts(0))[-1:]])
        assert store.root_hash() == before
        store.commit(Map.of({"held": texts(0)}))
        assert missing(store.root()) == []
        assert_clean(store)


def test_what_is_put_stays_for_the_grace_though_its_cells_are_old(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        store.commit(texts(100))
        clock.now += HOUR_MS
        store.commit(texts(101))
        clock.now += HOUR_MS
        value = texts(0)
        assert store.put(value) == 0
        clock.now += 5
        store.collect(grace_ms=1_000)
        store.commit(Vector.of([value]))
        assert missing(store.root()) == []
        assert_clean(store)


@pytest.mark.parametrize("step", ["mark", "copy"])
def test_commits_while_it_goes_on_may_lean_on_anything(
    tmp_path: Path, clock: StoppedClock, step: str
) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        held = store.root()
        store.commit(texts(100, 60))
        store.commit(texts(130, 30))
        told: list[str] = []

        def work(what: str, _done: int, _total: int) -> None:
            if what == step and what not in told:
                store.commit(Map.of({"held": held, "live": store.root()}))
                store.put(Vector.of([text(900), text(901)]))
                store.pins.pin(store.root_hash() or b"", "meanwhile")
            told.append(what)

        store.collect(grace_ms=0, progress=work)
        assert {"mark", "copy", "sweep"} <= set(told)
        root = store.root()
        assert isinstance(root, Map)
        assert same(root["held"], texts(0))
        assert missing(root) == []
        assert is_whole(store, Vector.of([text(900), text(901)]))
        assert_clean(store)
    again = make_again(tmp_path / "s", clock)
    assert missing(again.root()) == []
    assert_clean(again)
    again.close()


HIGH = [text(7), *[text(n) for n in range(800, 805)]]


def test_dead_cells_of_a_kept_segment_do_not_come_back(tmp_path: Path, clock: StoppedClock) -> None:
    path = tmp_path / "s"
    low = text(7)
    high = Vector.of(HIGH)
    live = texts(500, 25)
    with opened(path, clock) as store:
        store.commit(Vector.of([low, *[text(n) for n in range(30, 60)]]))
        store.commit(Map.of({"live": live, "high": high}))
        store.commit(Map.of({"live": live}))
        segment = locate(store.location_of(value_hash(high)))[0]
        assert locate(store.location_of(value_hash(low)))[0] != segment
        done = store.collect(grace_ms=0)
        assert 0 < done.dropped < done.segments
        assert (path / "segments" / f"{segment:08d}.seg").exists(), "most of it is alive"
        assert not store.has(value_hash(high))
        assert not store.has(value_hash(low))
    store = make_again(path, clock)
    assert not store.has(value_hash(high)), "what it refers to is gone"
    assert is_whole(store, live)
    assert_clean(store)
    root: Any = store.root()
    store.commit(Map.of({"live": root["live"], "high": Vector.of(HIGH)}))
    assert missing(store.root()) == []
    store.close()


def test_staged_cells_stay_staged_and_announced_ones_announced(
    tmp_path: Path, clock: StoppedClock
) -> None:
    path = tmp_path / "s"
    staged, later = texts(1, 6), texts(11, 6)
    with opened(path, clock) as store:
        store.put(staged, later)
        store.sync()
        store.commit(texts(100))
        store.commit(Map.of({"later": later, "more": texts(200, 40)}))
        store.pins.pin(value_hash(staged), "staged")
        store.collect(grace_ms=0)
        assert not store.announced(value_hash(staged))
        assert store.announced(value_hash(later))
        assert_clean(store)
    store = make_again(path, clock)
    assert not store.announced(value_hash(staged))
    assert store.announced(value_hash(later))
    assert is_whole(store, staged)
    store.commit(Map.of({"staged": texts(1, 6)}))
    assert store.announced(value_hash(staged))
    assert_clean(store)
    store.close()


def test_readers_find_what_was_moved_and_leases_keep_what_they_need(
    tmp_path: Path, clock: StoppedClock
) -> None:
    path = tmp_path / "s"
    with opened(path, clock) as store:
        store.commit(texts(0, 60))
        store.commit(texts(10, 50))
        with opened(path, clock, read_only=True) as reader:
            assert reader.root_hash() == value_hash(texts(10, 50))
            lease = reader.lease(value_hash(texts(10, 50)), 100)
            store.commit(texts(40, 20))
            done = store.collect(grace_ms=0)
            assert done.dropped
            assert is_whole(reader, texts(10, 50)), "leased, and found in its new place"
            assert reader.get_encoding(value_hash(text(0))) is None
            assert same(reader.root(), texts(40, 20))
            assert_clean(reader)
            lease.renew(200)
            clock.now += 150_000
            store.commit(texts(41, 20))
            store.collect(grace_ms=0)
            assert is_whole(reader, texts(10, 50))
            lease.release()
            lease.release()
            store.collect(grace_ms=0)
            reader.refresh()
            assert not reader.has(value_hash(texts(10, 50)))
            with pytest.raises(MissingData):
                reader.lease(value_hash(texts(10, 50)), 100)
            with pytest.raises(UsageError, match="the lease was released"):
                lease.renew(5)
            assert_clean(reader)


def test_leases_end_by_themselves(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        lease = store.lease(value_hash(texts(0)), 10)
        store.commit(texts(100))
        clock.now += 10_000
        done = store.collect(grace_ms=0)
        assert done.leases_ended == 1
        assert not store.has(value_hash(texts(0)))
        with pytest.raises(MissingData):
            lease.renew(10)


@pytest.mark.parametrize(
    ("seconds", "fits"),
    [(0.001, True), (LEASE_SECONDS_MAX, True), (LEASE_SECONDS_MAX + 1, False), (0, False)],
)
def test_a_lease_has_a_time(tmp_path: Path, seconds: float, fits: bool) -> None:
    with opened(tmp_path / "s", StoppedClock(1_000_000_000)) as store:
        store.commit(texts(0))
        if fits:
            with store.lease(value_hash(texts(0)), seconds) as lease:
                assert lease.expires_ms == store.clock.now_ms() + round(seconds * 1_000)
            assert store.pins.leases() == []
        else:
            with pytest.raises(UsageError, match="seconds"):
                store.lease(value_hash(texts(0)), seconds)


def test_a_store_has_a_number_of_leases(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "PINS_MAX", 2)
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        store.lease(value_hash(texts(0)), 10)
        with store.lease(value_hash(texts(0)), 10), pytest.raises(UsageError, match="at most 2"):
            store.lease(value_hash(texts(0)), 10)
        store.lease(value_hash(texts(0)), 10)
        clock.now += 10_000
        store.lease(value_hash(texts(0)), 10)
        assert len(store.pins.leases()) == 1, "those that have ended make room"


def test_what_is_leased_or_pinned_is_leased_again_without_a_look_at_it(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        leased, pinned, loose = texts(0), texts(200), texts(300)
        for value in (leased, pinned, loose):
            store.put(value)
        store.pins.pin(value_hash(pinned), "named")
        store.lease(value_hash(leased), 10)
        # A look begins with an empty cache, so that it finds what the disk has.
        store.commit(texts(100))
        root = store.root()
        assert isinstance(root, Vector)
        assert len(list(root)) == 20  # all of it is in the cache now
        before = store._cache.charged_bytes
        assert before > 0
        for value in (leased, pinned):
            store.lease(value_hash(value), 10).release()
        assert store._cache.charged_bytes == before
        store.lease(value_hash(loose), 10)
        assert store._cache.charged_bytes < before


def test_a_collection_refuses_a_damaged_lease_by_the_name_of_its_file(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        store.commit(texts(100))
        store.lease(value_hash(texts(100)), 10)
        file = tmp_path / "s" / "pins"
        good = file.read_bytes()
        for offset in range(len(good)):
            file.write_bytes(
                good[:offset] + bytes([good[offset] ^ (1 << offset % 8)]) + good[offset + 1 :]
            )
            with pytest.raises(Corruption, match=file.name):
                store.collect(grace_ms=0)
        file.write_bytes(good[:50])
        with pytest.raises(Corruption, match=file.name):
            store.collect(grace_ms=0)
        assert store.has(value_hash(texts(0))), "nothing was collected"


def test_a_lease_is_released_beside_a_collection_or_ends_by_itself(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "RELEASE_WAIT_S", 0.0)
    with opened(tmp_path / "s", clock) as store:
        root = store.commit(texts(0)).root_hash
        lease, other = store.lease(root, 10), store.lease(root, 20)
        with store.pins.locked():
            lease.release()
        assert len(store.pins.leases()) == 2
        other.release()
        assert [one.expires_ms for one in store.pins.leases()] == [lease.expires_ms]
        store.pins.pin(root, "named")
        store.pins.clear()
        assert store.pins.all() == []
        assert len(store.pins.leases()) == 1, "pins are cleared, not leases"
        clock.now += 10_000
        assert store.pins.leases() == []


def test_a_lease_that_is_renewed_at_its_end_is_not_tidied_away(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "s", clock) as store:
        value = texts(0)
        store.commit(value)
        lease = store.lease(value_hash(value), 10)
        clock.now += 10_000
        tidy = store.pins.remove_ended

        def tidy_alone() -> int:
            with pytest.raises(StoreLocked):  # so nobody renews one meanwhile
                store._folder.disk.lock(f"{store.path}/{PINS_LOCK}")
            return tidy()

        monkeypatch.setattr(store.pins, "remove_ended", tidy_alone)
        assert store.collect(grace_ms=0).leases_ended == 1
        lease.renew(10)
        assert [one.root_hash for one in store.pins.leases()] == [value_hash(value)]


def test_a_lease_that_ended_is_not_renewed_by_a_clock_that_is_set_back(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        value = texts(0)
        store.commit(value)
        lease = store.lease(value_hash(value), 10)
        store.commit(texts(1_000))
        clock.now += 10_000
        assert store.collect(grace_ms=0).dropped
        clock.now -= 5_000
        with pytest.raises(MissingData):
            lease.renew(10)
        assert store.pins.leases() == []


def test_what_is_copied_in_several_packs_stays_announced(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "PACK_BYTES_MAX", 1_500)
    value = texts(0, 30)
    hashes = [hash for hash, _, _ in novelty(value)]
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(1_000, 200))
        store.commit(value)
        done = store.collect(grace_ms=0)
        assert done.copied > 10
        assert all(map(store.announced, hashes))
        assert_clean(store)
    with make_again(tmp_path / "s", clock) as store:
        assert all(map(store.announced, hashes))


def test_a_commit_in_several_packs_has_children_first_also_those_that_were_staged(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "PACK_BYTES_MAX", 1_500)
    with opened(tmp_path / "s", clock) as store:
        staged = texts(100)
        store.put(staged)
        store.commit(Vector.of([*texts(0), staged]))
        log = LogReader(store._folder, store._opened.store_id, BEGINNING.position)
        seen: set[bytes] = set()
        for pack in log.read():
            assert isinstance(pack, Pack)
            seen.update(pack.hashes)
            for hash in pack.hashes:
                assert seen.issuperset(branch_hashes(store.get_encoding(hash) or b"")), (
                    "a crash may leave no more than this pack and those before it"
                )
        assert len(seen) > 40


def test_parts_of_no_commit_do_not_stand_in_for_what_was_there() -> None:
    index = HashIndex(MemoryEngine(TABLES))
    state = LogState(index, BEGINNING)
    known, new = b"k" * 32, b"n" * 32
    index.add([known], [1 << 42 | 64 << 15 | 100 << 1])
    places = [2 << 42 | at << 15 | 100 << 1 for at in (64, 164)]
    part = Pack(
        end=LogPosition(1, 2, 300, 0),
        length=300,
        flags=FLAG_PART,
        root=None,
        hashes=[known, new],
        locations=places,
        staged=0,
        promoted=[],
        spans=[],
        time_ms=1_000,
    )
    state.apply(part)
    assert index.find(new) < 0, "what completes it may still come"
    assert state.give_up_parts() == [new]
    assert index.find(known) >> 42 == 1, "announced, as it was"
    assert index.find(new) == places[1] | STAGED
    assert state.watermark().position == part.end


def test_a_pin_whose_root_is_lost_stops_it_until_that_is_had_again(
    tmp_path: Path, clock: StoppedClock
) -> None:
    pinned = texts(1_000)
    hash = value_hash(pinned)
    cells = {hash: encoding for hash, encoding, _ in novelty(pinned)}
    with opened(tmp_path / "other", clock) as other:
        other.commit(texts(1_000))
        other.pins.pin(hash, "kept")
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        (tmp_path / "s" / "pins").write_bytes((tmp_path / "other" / "pins").read_bytes())
        assert [one.hash for one in store.check().missing] == [hash]
        with pytest.raises(StoreFailed, match="which a pin or lease keeps, is not here"):
            store.collect(grace_ms=0)
        source = CellFetcher(store, lambda wanted: [(hash, cells[hash]) for hash in wanted])
        assert heal_store(store, source).report.is_clean
        store.collect(grace_ms=0)
        assert is_whole(store, pinned)


def test_a_reader_forgets_where_cells_were_when_they_were_announced(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.put(texts(0))
        store.sync()
        with opened(tmp_path / "s", clock, read_only=True) as reader:
            store.commit(Map.of({"staged": texts(0)}))
            reader.refresh()
            assert reader.announced(value_hash(texts(0)))
            store._index.flush(store._state.watermark())
            reader._look()
            assert reader._index.recent_count == 0, "they may be somewhere else since"


def test_a_damaged_store_is_not_collected(tmp_path: Path, clock: StoppedClock) -> None:
    path = tmp_path / "s"
    with opened(path, clock) as store:
        store.commit(texts(0))
        store.commit(texts(100))
        segment, offset, _ = locate(store.location_of(value_hash(text(105))))
    file = path / "segments" / f"{segment:08d}.seg"
    data = bytearray(file.read_bytes())
    data[offset + 20] ^= 1
    file.write_bytes(data)
    with opened(path, clock) as store:
        with pytest.raises(StoreFailed, match=re.escape(str(file)) + ".*heal the store first"):
            store.collect(grace_ms=0)
        with pytest.raises(Corruption):
            store.load(value_hash(text(105)))
        with pytest.raises(StoreFailed, match="heal the store first"):
            store.collect(grace_ms=0)
        assert store.has(value_hash(texts(0)))


def test_calls_that_are_refused(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        store.commit(texts(100))
        with pytest.raises(UsageError, match="grace"):
            store.collect(grace_ms=-1)
        refused: list[str] = []

        def again(*_: object) -> None:
            with pytest.raises(UsageError, match="going on already"):
                store.collect(grace_ms=0)
            refused.append("")

        with opened(tmp_path / "s", clock, read_only=True) as reader:
            with pytest.raises(ReadOnly):
                reader.collect(grace_ms=0)
            found = reader.collect(grace_ms=0, dry_run=True)
            assert found.is_dry
            assert found.dropped
        assert store.has(value_hash(texts(0)))
        store.collect(grace_ms=0, progress=again)
        assert refused


def test_where_nothing_is_to_be_had_nothing_is_written(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        store.commit(texts(100))
        store.collect(grace_ms=0)
        before = [store.stats().segments, store.stats().bytes]
        for _ in range(5):
            assert store.collect(grace_ms=0).dropped <= 1
        assert [store.stats().segments, store.stats().bytes] == before


def test_small_segments_are_put_together(tmp_path: Path, clock: StoppedClock) -> None:
    root = Map.of({})
    with opened(tmp_path / "s", clock) as store:
        for number in range(collection.SMALL_MAX + 4):
            root = root.put(number, text(number))
            store.commit(root)
            with store._writer().lock:
                store._writer().turn_over()
        store.collect(grace_ms=0)
        assert store.stats().segments <= 3
        assert missing(store.root()) == []
        assert_clean(store)


@pytest.mark.parametrize("again", [False, True], ids=["index", "no-index"])
@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data[:10], lambda _: b"", None],
    ids=["cut", "head", "empty", "gone"],
)
def test_without_its_record_a_store_opens_and_heals(
    tmp_path: Path, clock: StoppedClock, change: Callable[[bytes], bytes] | None, again: bool
) -> None:
    path = tmp_path / "s"
    live = texts(500, 25)
    with opened(path, clock) as store:
        store.commit(texts(0))
        store.commit(Map.of({"live": live, "high": Vector.of([text(7), "y" * 200])}))
        store.commit(Map.of({"live": live}))
        assert store.collect(grace_ms=0).dropped
    file = path / "garbage"
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    if again:
        (path / "index.state").unlink()
    with open_damaged(path) as store:
        assert heal_store(store).report.is_clean
        assert is_whole(store, live)
        report = store.check()
        assert report.is_clean
        assert not report.useless
        if change is not None:
            assert any(one.file == str(file) for one in [*store.damage, *report.scars])
        root: Any = store.root()
        store.commit(Map.of({"live": root["live"], "more": texts(700, 60)}))
        store.commit(Map.of({"live": root["live"]}))
        store.history.forget(1 << 52)
        assert store.collect(grace_ms=0).dropped
    store = make_again(path, clock)
    assert is_whole(store, texts(500, 25))
    assert_clean(store)  # the record is there again
    store.close()


def test_a_record_of_a_newer_version_is_refused(tmp_path: Path, clock: StoppedClock) -> None:
    from datalattice.store.disk import RealDisk

    path = tmp_path / "s"
    with opened(path, clock) as store:
        store.commit(1)
        store_id = store._opened.store_id
    patch = pytest.MonkeyPatch()
    patch.setattr(removed_module, "GARBAGE_VERSION", 2)
    removed_module.write_removed(StoreFolder(RealDisk(), str(path)), store_id, RemovedRecord(1))
    patch.undo()
    with pytest.raises(StoreVersion, match="garbage"):
        opened(path, clock)


def test_marks_tell_neighbours_apart() -> None:
    marks = LocationSet()
    places = []
    offset = 44
    for length in [2, 3, 33, 2, 34, 200, 1, 32, 33, 16_000]:
        places.append((3 << 42) | (offset << 15) | (length << 1))
        offset += length
    for place in places[::2]:
        assert marks.add(place)
        assert not marks.add(place)
    assert [marks.has(place) for place in places] == [True, False] * 5
    staged = [(place >> 15) & 0x7FFFFFF for place in places[2:5]]
    sieve = RemovedFilter(
        RemovedRecord(4, (DroppedRun(1, 2, 1, 9),), 0, {3: marks.pack(3, staged)})
    )
    assert [sieve.is_removed(place) for place in places] == [False, True] * 5
    found = sieve.remaining([bytes([n]) * 32 for n in range(10)], places)
    assert found is not None
    assert found[1] == [places[0], places[2] | 1, places[4] | 1, places[6], places[8]]
    assert found[2] == 2
    assert sieve.is_removed((1 << 42) | (44 << 15) | (200 << 1)), "its segment was dropped"
    assert not sieve.is_removed((4 << 42) | (44 << 15) | (200 << 1))


def test_runs_that_touch_are_one() -> None:
    removed = RemovedRecord(9, (DroppedRun(2, 3, 5, 9),))
    runs = removed.with_dropped([DroppedRun(4, 4, 9, 12), DroppedRun(6, 6, 20, 22)])
    assert runs == (DroppedRun(2, 4, 5, 12), DroppedRun(6, 6, 20, 22))
    removed = RemovedRecord(9, runs)
    assert [n for n in range(9) if removed.dropped(n)] == [2, 3, 4, 6]
    assert removed.run_before(5) == DroppedRun(2, 4, 5, 12)
    assert removed.run_before(7) == DroppedRun(6, 6, 20, 22)
    assert removed.run_before(4) is None


@pytest.mark.parametrize("segment_bytes", [4_096, 1 << 20])
def test_the_age_of_cells_is_in_their_packs_and_outlives_index_and_clock(
    tmp_path: Path, clock: StoppedClock, segment_bytes: int
) -> None:
    path = tmp_path / "s"

    def opened() -> CellStore:
        return CellStore.open(path, segment_bytes=segment_bytes, clock=clock)

    with opened() as store:
        roots = []
        for number in range(6):
            roots.append(store.commit(texts(1_000 * number)).root_hash)
            clock.now += 1_000
        found = store.roots_kept(grace_ms=3_500)
        assert (found.start.sequence, found.root) == (3, roots[2])
        found = store.roots_kept(grace_ms=6_000)
        assert (found.start.sequence, found.root) == (1, roots[0])
        found = store.roots_kept(grace_ms=6_001)
        assert (found.start, found.root) == (BEGINNING.position, None), "all of the log is young"
    (path / "index.state").unlink()
    with opened() as store:
        found = store.roots_kept(grace_ms=3_500)
        assert (found.start.sequence, found.root) == (3, roots[2]), "with an index made again, too"
        clock.now += 60_000
        store.put(texts(8_000))  # no root of its own: that of the pack before counts
        store.sync()
        clock.now += 10_000
        found = store.roots_kept(grace_ms=5_000)
        assert (found.start.sequence, found.root) == (7, roots[-1])
        clock.now -= 65_000  # a clock that was set back: its packs are older than they say
        store.commit(texts(9_000))
        found = store.roots_kept(grace_ms=1)
        assert found.start.sequence == 6
        assert found.root == roots[-1]


def test_what_is_staged_right_before_the_lock_is_followed(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up = marking.StoreMarker.catch_up
    calls: list[int] = []
    parts: list[EncodedCell] = []
    with opened(tmp_path / "s", clock) as store:
        store.commit(texts(0))
        held = store.root()
        store.commit(texts(100, 40))

        def and_commit(marker: marking.StoreMarker) -> None:
            catch_up(marker)
            calls.append(1)
            if len(calls) == 3:  # the last one before the lock is taken
                staged = Vector.of([held, *[text(n) for n in range(600, 605)]])
                parts.extend(novelty(staged, store))
                store.put_encodings([(hash, encoding) for hash, encoding, _ in parts])

        monkeypatch.setattr(marking.StoreMarker, "catch_up", and_commit)
        assert store.collect(grace_ms=0).dropped
        assert len(calls) == 3
        assert missing(store.load(parts[-1][0])) == []
        assert_clean(store)


def test_a_removed_cell_between_its_siblings_is_not_read(
    tmp_path: Path, clock: StoppedClock
) -> None:
    # Its bytes stay in a segment that is kept; the cells below it may be gone.
    siblings = [text(number) for number in range(16)]
    with (
        opened(tmp_path / "s", clock) as store,
        CellStore.open(tmp_path / "s", read_only=True) as beside,
    ):
        store.commit(Vector.of([*siblings, texts(100)]))
        store.commit(Vector.of([texts(200, 60)]))
        clock.now += 1
        store.commit(Vector.of([*siblings[:7], *siblings[8:], texts(100)]))
        clock.now += 1
        store.collect(grace_ms=0)
        beside.refresh()
        hashes = [value_hash(one) for one in siblings]
        wanted = [store.get_encoding(hash) for hash in hashes]
        assert [n for n, data in enumerate(wanted) if data is None] == [7]
        assert store.get_encodings(hashes) == wanted
        assert beside.get_encodings(hashes) == wanted
        with CellStore.open(tmp_path / "s", read_only=True) as reader:
            assert reader.get_encodings(hashes) == wanted
    with opened(tmp_path / "s", clock) as store:
        assert store.get_encodings(hashes) == wanted
