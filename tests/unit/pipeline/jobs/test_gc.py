"""Garbage in parts: the mark is the store's own, and a sweep by its list loses nothing."""

from __future__ import annotations

import importlib
import pickle
import random
import shutil
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datalattice.cells import Map, Value, Vector, branch_hashes, missing, same, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import Corruption, ReadOnly, StoreFailed, StoreVersion, UsageError
from datalattice.store import CellStore, RealDisk
from datalattice.store.gc import (
    Collected,
    PartitionPlan,
    SweepHead,
    SweepList,
    SweptSegment,
    check_extent,
    collection,
    extent_of,
    mark_frontier,
    mark_start,
    partition_marking,
    sweep_head,
    write_sweep_list,
)
from datalattice.store.gc.marking import StoreMarker
from datalattice.store.gc.sweeping import CLOCK_SKEW_MS
from datalattice.store.kept import KEEP_NOTHING, Retention
from datalattice.store.log import locate
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.planting import flip, segment_file, text

pa = pytest.importorskip("pyarrow")
pc = importlib.import_module("pyarrow.compute")

from datalattice.arrow import record_batch  # noqa: E402
from datalattice.pipeline.jobs.gc import MarkTask  # noqa: E402
from datalattice.pipeline.jobs.stores import for_tasks, store_partitions  # noqa: E402

job = importlib.import_module("datalattice.pipeline.jobs.gc")  # not its namesake
HOUR_MS = 3_600_000


@pytest.fixture(name="clock")
def fixture_clock() -> StoppedClock:
    return StoppedClock(1_000_000_000)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred bytes be worth a collection."""
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)


def opened(path: Path, clock: StoppedClock, **given: Any) -> CellStore:
    options: dict[str, Any] = {"retention": KEEP_NOTHING, "entropy": SeededEntropy(1), **given}
    if not options.get("read_only"):
        options["segment_bytes"] = 8_192
    return CellStore.open(path, clock=clock, **options)


def batches(rows: list[tuple[Any, ...]]) -> Iterator[Any]:
    if rows:
        yield record_batch(rows, job.STATE)


class Marked:
    """A mark in parts in this process: each task gets the rows of its part, pickled as Spark does.

    Its rows are those that Spark would shuffle; with `together` one task has all parts.
    """

    def __init__(
        self, path: Path, clock: StoppedClock, grace_ms: int = 0, parts: int = 5, **how: Any
    ) -> None:
        self.rounds = 0
        together = how.pop("together", False)
        with opened(path, clock, read_only=True, **how) as reader:
            time_ms = clock.now_ms()
            extent = extent_of(reader)
            plan = store_partitions(extent, parts)
            begin = mark_start(reader, extent, reader.roots_kept(grace_ms))
            owners = PartitionPlan(str(path), plan)
            places = zip(begin.roots, begin.locations, strict=True)
            nothing = [None] * 6
            rows: list[tuple[Any, ...]] = [(one.number, *nothing, None) for one in plan]
            rows += [(owners.number(place), *nothing, hash) for hash, place in places]
            task = MarkTask(str(path), for_tasks(extent), plan, begin.start)
            while True:
                self.rounds += 1
                rows = self.run(task, rows, together)
                if all(row[-1] is None for row in rows):
                    break
                task = replace(task, start=None)
            found = [row[1:-1] for row in rows if row[1] is not None]
            check_extent(reader, extent)
        self.segments = [SweptSegment(*row[:3]) for row in found]
        self.live = sum(row[3] for row in found)
        self.dead = sum(row[4] for row in found)
        self.head = sweep_head(
            extent,
            begin.roots,
            time_ms=time_ms,
            grace_ms=grace_ms,
            cells=(self.live, self.dead),
            bytes_dead=sum(row[5] for row in found),
            segments=len(self.segments),
        )

    @staticmethod
    def run(task: Any, rows: list[tuple[Any, ...]], together: bool) -> list[tuple[Any, ...]]:
        rows = sorted(rows, key=in_order)
        numbers = [None] if together else sorted({row[0] for row in rows})
        out: list[tuple[Any, ...]] = []
        for number in numbers:
            mine = [row for row in rows if number is None or row[0] == number]
            if mine:
                for batch in pickle.loads(pickle.dumps(task))(batches(mine)):
                    out += [tuple(row.values()) for row in batch.to_pylist()]
        return out

    def write(self, path: Path) -> Path:
        write_sweep_list(RealDisk(), str(path), self.head, self.segments)
        return path


WANTED: dict[str, Any] = {
    job.FOR_DRIVER: lambda rows: pc.and_(pc.is_valid(rows["hash"]), pc.is_null(rows["live"])),
    job.NOT_SHUFFLED: lambda rows: pc.or_(pc.is_null(rows["hash"]), pc.is_null(rows["live"])),
    "segment IS NOT NULL": lambda rows: pc.is_valid(rows["segment"]),
}


class Frame:
    """A frame of Spark as far as the job needs it: rows in partitions, each one through a task."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(asc_nulls_last=lambda: name)

    def mapInArrow(self, task: Any, _schema: str) -> Frame:  # noqa: N802 - as Spark has it
        return Frame([list(pickle.loads(pickle.dumps(task))(part)) for part in self.parts])

    def localCheckpoint(self, *, eager: bool) -> Frame:  # noqa: N802 - as Spark has it
        assert not eager
        return self

    def where(self, text: str) -> Frame:
        return Frame([[batch.filter(WANTED[text](batch)) for batch in part] for part in self.parts])

    def select(self, *names: str) -> Frame:
        return Frame([[batch.select(list(names)) for batch in part] for part in self.parts])

    def repartitionById(self, count: int, _name: str) -> Frame:  # noqa: N802 - as Spark has it
        rows = [tuple(row.values()) for row in self.collect()]
        mine = [[row for row in rows if row[0] == number] for number in range(count)]
        return Frame([list(batches(sorted(one, key=in_order))) for one in mine])

    def sortWithinPartitions(self, *_names: Any) -> Frame:  # noqa: N802 - as Spark has it
        return self

    def collect(self) -> list[Any]:
        rows = [row for part in self.parts for batch in part for row in batch.to_pylist()]
        return [Row(row) for row in rows]

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802 - as Spark has it
        return iter(self.collect())


class Row(dict[str, Any]):
    """A row, by names and by numbers."""

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class Session:
    """A session of Spark as far as the job needs it."""

    def range(self, first: int, behind: int, _step: int, _parts: int) -> Frame:
        ids = [pa.array([number], pa.int64()) for number in range(first, behind)]
        return Frame([[pa.RecordBatch.from_arrays([one], names=["id"])] for one in ids])


def in_order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what rows of a task are sorted by: parts, then marks before leads."""
    return row[0], row[1] is None, row[1] or 0


def places_kept(store: CellStore, grace_ms: int = 0) -> set[int]:
    """Return the places that the store's own mark marks."""
    collector = store._collector
    run = collector._collection(store.roots_kept(grace_ms), None, None)
    run._marker.mark()
    return {place >> 1 for _, place in store._index.entries() if run._marker.marks.has(place)}


def places_listed(store: CellStore, path: Path) -> set[int]:
    """Return the places that a list says stay; every other entry has to be on it as dead."""
    plan = SweepList(RealDisk(), str(path))
    known = plan.prior_mark()
    plan.close()
    entries = [place for _, place in store._index.entries() if place >> 15 < known.end]
    live = {place >> 1 for place in entries if known.live.has(place)}
    assert live == {place >> 1 for place in entries if not known.dead.has(place)}
    return live


def sweep(store: CellStore, path: Path, **how: Any) -> Collected:
    plan = SweepList(RealDisk(), str(path))
    try:
        return store.sweep(plan, **how)
    finally:
        plan.close()


def history_of(store: CellStore, commits: int = 30, start: int = 0) -> Map:
    """Commit a map that changes all the time."""
    root = Map.of([])
    for number in range(start, start + commits):
        for key in range(6):
            root = root.put(f"key {(number * 5 + key) % 60}", text(number * 6 + key))
        store.commit(root)
    return root


def is_whole(store: CellStore, value: Value) -> bool:
    hash = value_hash(value)
    return store.has(hash) and missing(store.load(hash)) == []


def assert_clean(store: CellStore) -> None:
    report = store.check()
    assert report.is_clean, report
    assert not report.useless


@pytest.mark.parametrize("parts", [1, 2, 7, 1_000])
@pytest.mark.parametrize("together", [False, True])
def test_the_mark_is_the_stores_own(
    tmp_path: Path, clock: StoppedClock, parts: int, together: bool
) -> None:
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 10)
        store.pins.pin(store.root_hash() or b"", "pinned")
        history_of(store, 5, start=40)
        lease = store.lease(store.root_hash() or b"", 6_000)
        history_of(store, 15, start=70)
        store.put(Vector.of([text(9_000 + n) for n in range(20)]))
        store.sync()
        clock.now += CLOCK_SKEW_MS + 1  # what was put is as old as all else
        marked = Marked(tmp_path / "s", clock, parts=parts, together=together)
        path = marked.write(tmp_path / "list")
        own = places_kept(store)
        assert places_listed(store, path) == own
        assert marked.live == len(own)
        assert marked.live + marked.dead == store.stats().cells
        dry = store.collect(grace_ms=0, dry_run=True)
        assert (dry.cells_live, dry.cells_dead) == (marked.live, marked.dead)
        assert (
            sweep(store, path, dry_run=True)
            == replace(dry, seconds=sweep(store, path, dry_run=True).seconds)
            or sweep(store, path, dry_run=True).cells_live == dry.cells_live
        )
        lease.release()


@pytest.mark.parametrize(
    ("waiting", "tops", "handed", "rounds", "collected"),
    [
        (4_096, 16_384, 65_536, 1, 0),  # all by the driver
        (3, 16_384, 65_536, 2, 1 << 20),
        (4_096, 9, 65_536, 2, 0),
        (3, 9, 0, 3, 1 << 20),  # all shuffled
        (3, 9, 60, 2, 0),  # now and then
        (0, 0, 65_536, 3, 1 << 20),  # nothing by the driver
    ],
)
def test_a_mark_is_the_same_whoever_follows(
    tmp_path: Path,
    clock: StoppedClock,
    monkeypatch: pytest.MonkeyPatch,
    waiting: int,
    tops: int,
    handed: int,
    rounds: int,
    collected: int,
) -> None:
    monkeypatch.setattr(partition_marking, "WAITING_MIN", waiting)
    monkeypatch.setattr(partition_marking, "FRONTIER_MAX", tops)
    monkeypatch.setattr(partition_marking, "MARK_CELLS", 8)
    monkeypatch.setattr(job, "HANDED_MAX", handed)
    monkeypatch.setattr(job, "COLLECTED_BYTES", collected)
    monkeypatch.setattr(job, "LEADS_MAX", 16)
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 10)
        store.pins.pin(store.root_hash() or b"", "pinned")
        history_of(store, 20, start=40)
        own = places_kept(store)
        session: Any = Session()
        path = tmp_path / "list"
        found = job.gc(session, str(tmp_path / "s"), str(path), grace_ms=0, parts=5, clock=clock)
        assert places_listed(store, path) == own
        assert found.cells_live == len(own)
        assert found.cells_live + found.cells_dead == store.stats().cells
        assert found.segments == found.as_json()["segments"] > 5
        assert found.rounds >= rounds


def test_what_is_young_and_what_is_remembered_stays(tmp_path: Path, clock: StoppedClock) -> None:
    keeping = Retention(recent_max=3, recent_ms=HOUR_MS * 100, steps=())
    with opened(tmp_path / "s", clock, retention=keeping) as store:
        history_of(store, 10)
        clock.now += 5 * HOUR_MS
        history_of(store, 6, start=30)
        clock.now += HOUR_MS // 2
        history_of(store, 2, start=60)
        store.sync()
    for grace_ms in (0, HOUR_MS // 4, HOUR_MS, 4 * HOUR_MS, 50 * HOUR_MS):
        with opened(tmp_path / "s", clock, read_only=True, retention=keeping) as store:
            own = places_kept(store, grace_ms)
            marked = Marked(tmp_path / "s", clock, grace_ms, retention=keeping)
            assert places_listed(store, marked.write(tmp_path / "list")) == own
            assert marked.live == len(own)
    assert marked.dead == 0


def test_random_stores_are_marked_alike(tmp_path: Path, clock: StoppedClock) -> None:
    for seed in range(6):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        with opened(folder, clock) as store:
            values: list[Value] = [None]
            for _ in range(25):
                kids = chance.sample(values, min(len(values), 3))
                made = Vector.of([*kids, text(chance.randrange(400), chance.randrange(20, 3_000))])
                values.append(made)
                if chance.random() < 0.5:
                    store.commit(made)
                else:
                    store.put(made)
                root = store.root_hash()
                if root is not None and chance.random() < 0.1:
                    store.pins.pin(root, f"pin{len(values)}")
            clock.now += 1
            store.sync()
            own = places_kept(store)
            marked = Marked(folder, clock, parts=chance.randrange(1, 9))
            assert places_listed(store, marked.write(tmp_path / "list")) == own


def test_a_long_chain_takes_as_many_rounds_as_it_leaves_parts(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        chain: Value = None
        for number in range(600):
            chain = Vector.of([chain, text(number)])
            if number % 50 == 0:
                store.commit(chain)
        store.commit(chain)
        own = places_kept(store)
    marked = Marked(tmp_path / "s", clock, parts=6)
    assert marked.live == len(own) > 700
    assert marked.rounds <= 14


def test_an_empty_store_is_marked_and_swept(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        marked = Marked(tmp_path / "s", clock)
        assert (marked.live, marked.dead, marked.rounds) == (0, 0, 1)
        path = marked.write(tmp_path / "list")
        root = history_of(store, 3)
        done = sweep(store, path)
        assert done.dropped == 0
        assert is_whole(store, root)


def test_a_sweep_leaves_what_a_collection_leaves(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        root = history_of(store)
        path = Marked(tmp_path / "s", clock).write(tmp_path / "list")
    shutil.copytree(tmp_path / "s", tmp_path / "t")
    with opened(tmp_path / "s", clock) as swept, opened(tmp_path / "t", clock) as collected:
        one = sweep(swept, path)
        two = collected.collect(grace_ms=0)
        assert replace(one, seconds=0) == replace(two, seconds=0)
        assert dict.fromkeys(h for h, _ in swept._index.entries()).keys() == (
            dict.fromkeys(h for h, _ in collected._index.entries()).keys()
        )
        assert is_whole(swept, root)
        assert_clean(swept)
    (tmp_path / "s" / "index.state").unlink()
    with opened(tmp_path / "s", clock) as again:  # the record says what was removed
        assert again.stats().cells == one.cells_live
        assert_clean(again)


def test_what_is_reached_again_since_the_mark_stays(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        old = [history_of(store, 4, start=20 * n) for n in range(5)]
        root = history_of(store, 4, start=300)
        path = Marked(tmp_path / "s", clock).write(tmp_path / "list")
        hashes = [value_hash(one) for one in old]
        assert all(store.has(hash) for hash in hashes)
        store.pins.pin(hashes[0], "again")
        lease = store.lease(hashes[1], 600)
        store.put(store.load(hashes[2]))  # all its cells are here already
        below = store.load(hashes[3])
        assert isinstance(below, Map)
        new = root.put("back", below["key 17"]).put("new", text(7_777))
        store.commit(new)
        done = sweep(store, path)
        assert done.cells_dead > 0
        assert all(is_whole(store, value) for value in (*old[:3], new))
        assert not store.has(hashes[4])
        assert_clean(store)
        lease.release()


def test_what_was_put_long_before_the_mark_goes(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        early = Vector.of([text(n) for n in range(30)])
        late = Vector.of([text(1_000 + n) for n in range(30)])
        store.put(early)
        history_of(store, 3)
        clock.now += CLOCK_SKEW_MS
        store.put(late)
        clock.now += 1
        path = Marked(tmp_path / "s", clock).write(tmp_path / "list")
        sweep(store, path)
        assert not store.has(value_hash(early))
        assert is_whole(store, late)


def test_only_what_is_new_is_followed(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "s", clock) as store:
        root = history_of(store)
        path = Marked(tmp_path / "s", clock).write(tmp_path / "list")
        before = store.stats().cells
        store.commit(root.put("one more", text(5_555)))
        new = store.stats().cells - before
        read: list[bytes] = []
        own = StoreMarker.read_many

        def noting(self: StoreMarker, hashes: list[bytes], locations: list[int]) -> list[bytes]:
            read.extend(hashes)
            return own(self, hashes, locations)

        monkeypatch.setattr(StoreMarker, "read_many", noting)
        sweep(store, path, dry_run=True)
        assert 0 < len(read) <= new


def test_sweeps_beside_commits_lose_nothing(tmp_path: Path, clock: StoppedClock) -> None:
    """A writer commits, pins, goes back to old values and stages while lists are made and swept."""
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 5)
        stop = threading.Event()
        failed: list[BaseException] = []
        kept: list[Value] = []

        def write() -> None:
            chance = random.Random(1)
            root = Map.of([])
            number = 0
            try:
                while not stop.is_set():
                    number += 1
                    key = f"key {chance.randrange(40)}"
                    root = root.put(key, text(chance.randrange(200)))
                    store.commit(root)
                    if number % 10 == 0 and len(kept) < 40:
                        store.pins.pin(value_hash(root), f"pin{number}")
                        kept.append(root)
            except BaseException as error:  # noqa: BLE001 - told by the test
                failed.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            swept = 0
            for number in range(6):
                path = Marked(tmp_path / "s", clock).write(tmp_path / f"list{number}")
                swept += sweep(store, path).dropped
        finally:
            stop.set()
            writer.join()
        assert not failed
        assert swept > 0
        assert kept
        assert all(is_whole(store, value) for value in kept)
        root = store.root()
        assert missing(root) == []
        assert_clean(store)
    with opened(tmp_path / "s", clock, read_only=True) as reader:
        assert same(reader.root(), root)


def test_an_index_that_was_made_again_does_not_mislead_a_list(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        root = history_of(store)
        store.discard([value_hash(text(0))])  # comes back with the index
    path = Marked(tmp_path / "s", clock).write(tmp_path / "list")
    (tmp_path / "s" / "index.state").unlink()
    with opened(tmp_path / "s", clock) as store:
        assert store.has(value_hash(text(0)))
        sweep(store, path)
        assert store.has(value_hash(text(0)))  # not on the list
        assert is_whole(store, root)
        assert_clean(store)


# --- lists that are refused -----------------------------------------------------------------------


@pytest.fixture(name="listed")
def fixture_listed(tmp_path: Path, clock: StoppedClock) -> Path:
    with opened(tmp_path / "s", clock) as store:
        history_of(store)
    return Marked(tmp_path / "s", clock).write(tmp_path / "list")


def test_the_list_of_another_store_is_refused(
    tmp_path: Path, clock: StoppedClock, listed: Path
) -> None:
    with opened(tmp_path / "other", clock, entropy=SeededEntropy(9)) as store:
        history_of(store)
        before = store.stats()
        with pytest.raises(UsageError, match=r"the list of another store .* swept by its own"):
            sweep(store, listed)
        assert store.stats() == before


def test_a_list_is_stale_after_a_collection_and_after_its_own_sweep(
    tmp_path: Path, clock: StoppedClock, listed: Path
) -> None:
    shutil.copytree(tmp_path / "s", tmp_path / "t")
    with opened(tmp_path / "s", clock) as store:
        assert store.collect(grace_ms=0).dropped
        with pytest.raises(UsageError, match="the list is stale: cells were removed from"):
            sweep(store, listed)
    with opened(tmp_path / "t", clock) as store:
        assert sweep(store, listed).dropped
        with pytest.raises(UsageError, match="the list is stale: cells were removed from"):
            sweep(store, listed)
        assert_clean(store)


def test_a_list_is_stale_when_the_log_is_another_one(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 5)
    shutil.copytree(tmp_path / "s", tmp_path / "early")
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 5, start=50)
    path = Marked(tmp_path / "s", clock).write(tmp_path / "list")
    with opened(tmp_path / "early", clock) as store:
        with pytest.raises(UsageError, match="the list is stale: the log of"):
            sweep(store, path)
        history_of(store, 8, start=500)  # as long, and another one
        with pytest.raises(UsageError, match="the list is stale: the log of"):
            sweep(store, path)


def test_a_list_from_the_future_is_refused(
    tmp_path: Path, clock: StoppedClock, listed: Path
) -> None:
    clock.now -= CLOCK_SKEW_MS + 1
    with opened(tmp_path / "s", clock) as store:
        with pytest.raises(UsageError, match=f"made {CLOCK_SKEW_MS // 1_000} s in the future"):
            sweep(store, listed)
        clock.now += 1
        assert sweep(store, listed).dropped


def test_every_flipped_bit_of_a_list_is_noticed(listed: Path) -> None:
    size = listed.stat().st_size
    for offset in range(0, size, max(1, size // 60)):
        flip(listed, offset, offset % 8)
        with pytest.raises((Corruption, UsageError, StoreVersion)):
            SweepList(RealDisk(), str(listed))
        flip(listed, offset, offset % 8)
    whole = listed.read_bytes()
    for length in (0, 3, 100, 239, size // 2, size - 1):
        listed.write_bytes(whole[:length])
        with pytest.raises((Corruption, UsageError)):
            SweepList(RealDisk(), str(listed))
    listed.write_bytes(whole + b"\0")
    with pytest.raises(Corruption, match="does not fit its checksum; make a new one"):
        SweepList(RealDisk(), str(listed))


def test_files_that_are_no_lists_are_refused(tmp_path: Path, listed: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("notes " * 100)
    for path, said in (
        (other, "not a sweep list; `lattice spark gc` writes them"),
        (tmp_path / "nothing", "there is no such sweep list"),
        (tmp_path, "a sweep list is a file, this is a folder"),
    ):
        with pytest.raises(UsageError, match=said):
            SweepList(RealDisk(), str(path))
    data = bytearray(listed.read_bytes())
    data[5] = 2
    listed.write_bytes(bytes(data))
    with pytest.raises(StoreVersion, match="format version 2; this package reads up to 1"):
        SweepList(RealDisk(), str(listed))


@pytest.mark.parametrize("marks", [b"", b"none", zlib.compress(b"short")])
def test_marks_that_are_none_are_refused(
    tmp_path: Path, clock: StoppedClock, listed: Path, marks: bytes
) -> None:
    plan = SweepList(RealDisk(), str(listed))
    first, *rest = plan.segments()
    plan.close()
    write_sweep_list(RealDisk(), str(listed), plan.head, [first._replace(dead=marks), *rest])
    with opened(tmp_path / "s", clock) as store:
        before = store.stats()
        with pytest.raises(Corruption, match="the marks of the sweep list are damaged"):
            sweep(store, listed)
        assert store.stats() == before


def test_a_list_says_what_it_was_made_of(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 8)
        marked = Marked(tmp_path / "s", clock, grace_ms=0)
        path = marked.write(tmp_path / "list")
        plan = SweepList(RealDisk(), str(path))
        head: SweepHead = plan.head
        assert head == marked.head
        assert head.root == store.root_hash()
        assert list(plan.segments()) == marked.segments
        plan.close()
        store.pins.pin(store.root_hash() or b"", "x")
        assert Marked(tmp_path / "s", clock).head.roots == head.roots
        store.pins.unpin("x")
        store.commit(Map.of([("a", 1)]))
        assert Marked(tmp_path / "s", clock).head.roots != head.roots
    with pytest.raises(UsageError, match="a sweep list of 2 segments was given 0"):
        write_sweep_list(RealDisk(), str(tmp_path / "l"), replace(head, segments=2), [])
    assert not (tmp_path / "l").exists()


def test_a_reader_sweeps_dry_only(tmp_path: Path, clock: StoppedClock, listed: Path) -> None:
    with opened(tmp_path / "s", clock, read_only=True) as reader:
        assert sweep(reader, listed, dry_run=True).cells_dead > 0
        with pytest.raises(ReadOnly):
            sweep(reader, listed)


# --- marks that are refused -----------------------------------------------------------------------


def test_a_damaged_store_is_not_marked(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        root = history_of(store)
        segment, offset, _ = locate(store.location_of(value_hash(root)))
    flip(segment_file(tmp_path / "s", segment), offset + 40)
    with pytest.raises(StoreFailed, match="does not fit its hash; nothing was collected"):
        Marked(tmp_path / "s", clock)


def test_a_damaged_cell_that_nothing_needs_may_go(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.commit(Vector.of([text(n) for n in range(9)]))
        store.commit(Vector.of([text(n) for n in range(20, 29)]))
        segment, offset, _ = locate(store.location_of(value_hash(text(3))))
    flip(segment_file(tmp_path / "s", segment), offset + 40)
    marked = Marked(tmp_path / "s", clock)
    with opened(tmp_path / "s", clock, read_only=True) as store:
        assert places_listed(store, marked.write(tmp_path / "list")) == places_kept(store)
    assert (marked.live, marked.dead) == (10, 10)


@pytest.mark.parametrize("waiting", [0, 4, 10_000])
def test_a_lost_cell_is_named_whoever_meets_it(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(partition_marking, "WAITING_MIN", waiting)
    lost = value_hash(text(3))
    with opened(tmp_path / "s", clock) as store:
        store.commit(Vector.of([text(n) for n in range(9)]))
        store.discard([lost])
    session: Any = Session()
    with pytest.raises(StoreFailed, match=f"0x{lost.hex()}, which others refer to, is not here"):
        job.gc(session, str(tmp_path / "s"), str(tmp_path / "list"), grace_ms=0, clock=clock)
    assert not (tmp_path / "list").exists()


def test_what_is_younger_than_a_mark_is_handed_to_nobody(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_marking, "WAITING_MIN", 0)
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 3)
        old = store.root_hash() or b""
        with opened(tmp_path / "s", clock, read_only=True) as reader:
            extent = extent_of(reader)
            history_of(store, 9, start=30)  # in segments that no part has
            new = store.root_hash() or b""
            found = mark_frontier(reader, extent, [old, new], 2)
    assert found.marked == []
    assert [hash for hash, _ in found.waiting] == [old]


def test_a_damaged_young_pack_is_not_passed_over(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        store.put(Vector.of([text(n) for n in range(9)]))
        store.sync()
        clock.now += 2 * HOUR_MS
        history_of(store, 5)
        segment, offset, _ = locate(store.location_of(value_hash(text(3))))
        clock.now += HOUR_MS
    flip(segment_file(tmp_path / "s", segment), offset + 40)
    with pytest.raises(StoreFailed, match="does not fit its checksum; nothing was collected"):
        Marked(tmp_path / "s", clock, grace_ms=10 * HOUR_MS)


def test_a_lost_root_is_not_passed_over(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        history_of(store, 5)
        old = store.root_hash() or b""
        store.pins.pin(old, "old")
        history_of(store, 5, start=30)
        store.discard([old])
    with pytest.raises(StoreFailed, match="which is the present one or is kept, is not here"):
        Marked(tmp_path / "s", clock)


def test_a_collection_meanwhile_ends_the_mark(tmp_path: Path, clock: StoppedClock) -> None:
    with opened(tmp_path / "s", clock) as store:
        history_of(store)
        with opened(tmp_path / "s", clock, read_only=True) as reader:
            extent = extent_of(reader)
        store.collect(grace_ms=0)
        task = MarkTask(str(tmp_path / "s"), for_tasks(extent), store_partitions(extent, 2), None)
        rows = [(0, *[None] * 6, extent.root)]
        with pytest.raises(StoreFailed, match="cells were removed from it meanwhile; begin again"):
            Marked.run(task, rows, together=True)


def test_a_collection_while_the_driver_marks_is_reported_as_that(
    tmp_path: Path, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "s", clock) as store:
        history_of(store)

        def collecting_first(data: bytes) -> list[bytes]:
            monkeypatch.setattr(partition_marking, "branch_hashes", branch_hashes)
            history_of(store, 20, start=60)
            store.collect(grace_ms=0)
            return branch_hashes(data)

        monkeypatch.setattr(partition_marking, "branch_hashes", collecting_first)
        session: Any = Session()
        with pytest.raises(StoreFailed, match="cells were removed from it meanwhile; begin again"):
            job.gc(session, str(tmp_path / "s"), str(tmp_path / "l"), grace_ms=0, clock=clock)


@pytest.mark.parametrize("lost", [0, 3, -1])
def test_a_lost_segment_ends_the_mark(tmp_path: Path, clock: StoppedClock, lost: int) -> None:
    with opened(tmp_path / "s", clock) as store:
        for number in range(16, 160, 16):
            store.commit(Vector.of([text(n, 1_000) for n in range(number)]))
    sorted((tmp_path / "s" / "segments").iterdir())[lost].unlink()
    for parts in (1, 3, 100):
        with pytest.raises(StoreFailed, match=r"the segment is gone; nothing was collected"):
            Marked(tmp_path / "s", clock, parts=parts)


def test_a_damaged_record_of_removed_cells_ends_the_mark(
    tmp_path: Path, clock: StoppedClock
) -> None:
    with opened(tmp_path / "s", clock) as store:
        history_of(store)
        assert store.collect(grace_ms=0).dropped
    flip(tmp_path / "s" / "garbage", 20)
    with pytest.raises(StoreFailed, match="the record of removed cells is damaged; nothing was"):
        Marked(tmp_path / "s", clock)
