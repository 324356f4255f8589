"""Work of the applications: bombs end within their account, legal data of any size passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.apps.dlfs import times
from datalattice.apps.dlfs.lattice import DRIVES, DLFSLattice
from datalattice.apps.dlfs.node import make_directory, make_file
from datalattice.apps.grid.lattice import STORAGE_LATTICE
from datalattice.apps.kv.lattice import KVStoreLattice
from datalattice.apps.queue.lattice import topic_map_lattice
from datalattice.cells import Blob, Index, Keyword, Map, Signed, Value, Vector, Work, novelty, same
from datalattice.crypto import KeyPair
from datalattice.errors import WorkExceeded
from datalattice.lattice import Lattice, MergeContext, MergeNotice, OwnerLattice, discard
from datalattice.limits import WORK_LIMITS
from datalattice.testing.bombs import (
    database_bomb,
    drive_bomb,
    pair_bomb,
    queue_bombs,
    queue_state,
    repeated_log,
    topics,
)
from datalattice.testing.cells_kit import CellDict

QUEUES = topic_map_lattice()
DATABASE = KVStoreLattice()
TICKS_MAX = 60_000
"""60 ms of compiled code, for two bombs of up to 25 kB each."""


def account(reports: list[MergeNotice] | None = None) -> tuple[Work, MergeContext]:
    work = Work()
    return work, MergeContext().for_foreign(discard if reports is None else reports.append, work)


def spent_on(lattice: Lattice, own: Value, other: Value) -> int:
    """Return what a merge spends before it ends, done or refused."""
    work, context = account([])
    try:
        lattice.merge(own, other, context)
    except WorkExceeded:
        assert work.left < 0
    return work.spent


def kept(value: Value) -> Value:
    return CellDict().kept(value)


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "_remembered", times._Remembered(times._REMEMBERED_MAX))


DRIVE_BOMBS: list[Callable[[], tuple[Value, Value]]] = [
    lambda: (make_directory(Index.of([("q", make_file(b"x", 300))]), 1), drive_bomb(8, 4, 30)),
    lambda: (make_directory(Index.of([("q", make_file(b"x", 300))]), 1), drive_bomb(8, 4, 70)),
    lambda: (make_file(b"x", 3), drive_bomb(8, 4, 70)),
    lambda: (drive_bomb(8, 4, 70, "a"), drive_bomb(8, 4, 70, "b")),
    lambda: (pair_bomb(16, 4, 40, "a"), pair_bomb(15, 4, 40, "b")),
]


@pytest.mark.parametrize("make", DRIVE_BOMBS, ids=range(len(DRIVE_BOMBS)))
def test_a_bomb_of_directories_ends_as_own_and_as_other(
    make: Callable[[], tuple[Value, Value]],
) -> None:
    a, b = make()
    for own, other in ((a, b), (b, a)):
        states = [kept(Map.of([("d", value)])) for value in (own, other)]
        assert spent_on(DRIVES, *states) < TICKS_MAX


def test_a_merge_earns_by_what_it_makes_no_more_than_by_what_it_was_given() -> None:
    """As many drives as one likes, whose joins are larger than both: they are read once made."""
    sides: list[Value] = []
    for side, width in (("a", 7), ("b", 9)):
        slots: list[tuple[Value, Value]] = []
        for number in range(2):
            drive = Map.of([("d", pair_bomb(width, 4, 8, f"{side}{number}"))])
            key = KeyPair(bytes([number]) * 32)
            slots.append((key.public_key, Signed.sign(key, drive)))
        sides.append(kept(Map.of(slots)))
    given = sum({hash: len(cell) for one in sides for hash, cell, _ in novelty(one)}.values())
    work = Work(WORK_LIMITS._replace(start=30_000))
    own, other = sides
    OwnerLattice(DRIVES).merge(own, other, MergeContext().for_foreign(discard, work))
    granted = work.grants * work.limits.grant
    assert given < work.spent < 30_000 + 2 * given + granted


def test_a_bomb_that_was_planted_is_not_walked_at_later_statements() -> None:
    bomb = kept(drive_bomb(8, 4, 70))
    plain = make_directory(Index.of([("q", make_file(b"x", 300))]), 1)
    own = DLFSLattice().merge(plain, bomb)
    other = kept(DLFSLattice().merge(make_file(b"x", 5), bomb))
    assert all(spent_on(DLFSLattice(), own, bomb) < 200 for _ in range(100))
    # Asking for its time, as every reader does, is a look-up.
    assert all(spent_on(DLFSLattice(), make_file(b"x", 500), other) < 200 for _ in range(100))


def test_what_a_merge_of_directories_did_is_shared_by_all_drives_of_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = drive_bomb(8, 4, 30)
    plain = make_directory(Index.of([("q", make_file(b"x", 300))]), 1)
    one, many = [
        (
            kept(Map.of([(f"d{n}", plain) for n in range(count)])),
            kept(Map.of([(f"d{n}", bomb) for n in range(count)])),
        )
        for count in (1, 50)
    ]
    first = spent_on(DRIVES, *one)
    monkeypatch.setattr(times, "_remembered", times._Remembered(times._REMEMBERED_MAX))
    assert spent_on(DRIVES, *many) < first + 50 * 20


def test_a_merge_without_an_account_looks_into_each_directory_once() -> None:
    plain = make_directory(Index.of([("q", make_file(b"x", 300))]), 1)
    merged = DLFSLattice().merge(plain, kept(drive_bomb(8, 4, 90)))
    assert DLFSLattice().check_foreign(merged)


def test_a_subtree_is_done_once_for_all_depths_that_have_room_for_it() -> None:
    small: Value = make_directory(Index.of([("f", make_file(b"x", 9))]), 0, base=5)
    for _ in range(3):
        small = make_directory(Index.of([("d", small)]), 0, base=5)
    deep: Value = make_directory(Index.of([("s", small)]), 7)
    for _ in range(60):
        deep = make_directory(Index.of([("d", deep), ("s", small)]), 7)
    shallow = make_directory(Index.of([("s", small)]), 7)
    one, many = spent_on(DLFSLattice(), None, shallow), spent_on(DLFSLattice(), None, deep)
    assert many < one + 60 * 60


@pytest.mark.parametrize("levels", [3, 4, 9])
@pytest.mark.parametrize("partitions", [1, 50])
def test_a_log_of_few_cells_and_many_records_is_neither_compared_nor_cut(
    levels: int, partitions: int
) -> None:
    for a, b in queue_bombs(levels, partitions):
        for own, other in ((a, b), (b, a)):
            assert spent_on(QUEUES, kept(own), kept(other)) < TICKS_MAX


def test_a_log_that_begins_at_the_joined_start_and_reaches_as_far_is_taken_uncut() -> None:
    log = Vector.of([f"record {n}" for n in range(100_000)])
    own = topics({0: queue_state(log, 0, 5)})
    other = topics({0: queue_state(log.drop(77), 77, 9)})
    for a, b in ((own, other), (other, own)):
        work, context = account()
        merged = QUEUES.merge(kept(a), kept(b), context)
        assert same(merged, other)
        assert work.spent < 3_000 + 4_096


def test_logs_with_other_starts_are_compared_by_the_last_records_that_both_have() -> None:
    reports: list[MergeNotice] = []
    common = [f"record {n}" for n in range(10_000)]
    own = kept(topics({0: queue_state(Vector.of([*common, "one"]), 0, 5)}))
    other = kept(topics({0: queue_state(Vector.of([*common[5:], "two"]), 5, 9)}))
    _, context = account(reports)
    QUEUES.merge(own, other, context)
    assert [(report.kind, getattr(report, "offset", None)) for report in reports] == [
        ("queue-forked", 10_000)
    ]
    old = topics({0: queue_state(Vector.of(["other", *common[1:]]), 0, 5)})
    reports.clear()
    QUEUES.merge(old, topics({0: queue_state(Vector.of(common[1:]), 1, 9)}), context)
    assert not reports


def test_a_state_of_more_positions_than_any_writer_makes_is_no_state() -> None:
    cells = [Vector.of([]), Map.of([]), 1, 0]
    assert QUEUES.path("t", Keyword("partitions"), 0).check_foreign(  # type: ignore[union-attr]
        Vector.of([*cells, *([None] * 252)])
    )
    assert not QUEUES.path("t", Keyword("partitions"), 0).check_foreign(  # type: ignore[union-attr]
        Vector.of([*cells, *([None] * 253)])
    )
    huge = repeated_log(0, 14)
    assert spent_on(QUEUES, topics({0: queue_state(Vector.of([1]), 0, 1)}), topics({0: huge})) < 300


def test_one_large_structure_under_many_keys_is_not_walked_for_each() -> None:
    for own, other in (
        (Index(), database_bomb(500, 300, 5)),
        (database_bomb(500, 290, 3), database_bomb(500, 300, 5)),
        (database_bomb(500, 300, 5), Index.of([(f"k{n}", _register(n)) for n in range(500)])),
    ):
        assert spent_on(DATABASE, kept(own), kept(other)) < 3 * TICKS_MAX


def _register(time: int) -> Vector:
    return Vector.of((1, 0, time, None))


def test_content_of_few_cells_and_many_bytes_is_not_hashed() -> None:
    chunk = b"\x00" * 4_096
    content = Blob.of(chunk * 4_000)
    assert isinstance(content, Blob)
    other = kept(Index.of([(bytes([n]) * 32, content) for n in range(9)]))
    assert spent_on(STORAGE_LATTICE, Index(), other) < TICKS_MAX


# --- legal data --------------------------------------------------------------------------------


def _database(count: int, tag: str) -> Value:
    return Index.of([(f"key {n}", Vector.of((f"{tag} {n}", 0, n, None))) for n in range(count)])


def _counters(count: int, tag: str) -> Value:
    rows: list[tuple[Value, Value]] = []
    for n in range(count):
        fields = [(f"f{i}", Vector.of((f"{tag}{i}", n + i))) for i in range(5)]
        rows.append((n.to_bytes(3, "big"), Vector.of((Index.of(fields), 1, n, None))))
    return Index.of(rows)


def _drive(count: int, tag: str) -> Value:
    folders: list[tuple[Value, Value]] = []
    for n in range(count):
        files = [(f"{i}", make_file(f"{tag}{n}{i}".encode(), n + i)) for i in range(3)]
        folders.append((f"d{n}", make_directory(Index.of(files), n + 5)))
    return Map.of([("home", make_directory(Index.of(folders), count + 9))])


def _empty_directories(count: int, tag: str) -> Value:
    names = [(f"{tag}{n}", make_directory(Index(), n)) for n in range(count)]
    return Map.of([("home", make_directory(Index.of(names), count + 9))])


def _logs(count: int, tag: str) -> Value:
    more = 0 if tag == "a" else 3
    log = Vector.of([f"record {n}" for n in range(count)])
    return topics({n: queue_state(log.drop(more + n), more + n, 5 + more) for n in range(4)})


LEGAL: dict[str, tuple[Lattice, Callable[[int, str], Value], int]] = {
    "database": (DATABASE, _database, 3_000),
    "structures": (DATABASE, _counters, 300),
    "drive": (DRIVES, _drive, 300),
    "empty directories": (DRIVES, _empty_directories, 1_500),
    "queues": (QUEUES, _logs, 5_000),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_data_earns_what_it_costs(name: str) -> None:
    lattice, make, count = LEGAL[name]
    a, b = kept(make(count, "a")), kept(make(count, "b"))
    for own, other in ((None, b), (a, b), (b, a)):
        work, context = account()
        lattice.merge(own, other, context)
        assert work.left > 0


@pytest.mark.parametrize("name", LEGAL)
def test_a_slot_of_legal_data_earns_what_it_costs(name: str) -> None:
    """The order, the join and what it leaves out are three walks."""
    lattice, make, count = LEGAL[name]
    section = OwnerLattice(lattice)
    owner = KeyPair(b"\x07" * 32)
    a, b = (kept(_slot(owner, make(count, tag))) for tag in "ab")
    for own, other in ((None, b), (a, b), (b, a)):
        reports: list[MergeNotice] = []
        work, context = account(reports)
        section.merge(own, other, context)
        assert "too-costly" not in {report.kind for report in reports}
        assert work.grants == 0
        assert work.left > 0


def _slot(owner: KeyPair, value: Value) -> Map:
    return Map.of([(owner.public_key, Signed.sign(owner, value))])


def test_limits_are_as_they_are_written_down() -> None:
    assert (WORK_LIMITS.start, WORK_LIMITS.grant, WORK_LIMITS.grants_max) == (8_000, 2_000, 16)


def test_times_that_outlive_a_merge_are_bounded_and_the_older_ones_go() -> None:
    remembered = times._Remembered(8)
    for number in range(12):
        remembered.put(bytes([number]), number)
    found = [number for number in range(12) if remembered.get(bytes([number])) is not None]
    assert found == [8, 9, 10, 11]
