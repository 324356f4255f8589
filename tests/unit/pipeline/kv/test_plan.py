"""Plans: every key is in one task once, tasks are alike, and what is equal is not looked into."""

from __future__ import annotations

import pickle

import pytest

from datalattice.cells import Index, Value, decode, encode
from datalattice.errors import BadFormat, MissingData
from datalattice.pipeline.kv import plan as planning
from datalattice.pipeline.kv.plan import DatabaseSubtrees, Task, plan
from datalattice.pipeline.kv.view import DatabaseName, DatabasePair
from datalattice.testing.cells_kit import CellDict

SHOP, BANK = DatabaseName("0xaa", "shop"), DatabaseName("0xaa", "bank")


class Indexes(CellDict):
    """Indexes as they are read from a store."""

    def index(self, entries: dict[str, object]) -> Index:
        return self.kept(Index.of(entries))


def numbered(count: int, prefix: str = "key") -> dict[str, object]:
    return {f"{prefix}{i:06}": f"value {i}" * 5 for i in range(count)}


def keys_of(task: Task, cells: CellDict) -> list[Value]:
    return [
        change[0]
        for piece in pickle.loads(pickle.dumps(task))
        for change in piece.part(cells).differences()
    ]


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "KEYS_PER_TASK_MAX", 512)
    monkeypatch.setattr(planning, "FINE_KEYS_MIN", 16)


@pytest.mark.usefixtures("small_tasks")
def test_every_key_is_in_one_task_in_order_and_tasks_are_alike() -> None:
    cells = Indexes()
    index = cells.index(numbered(4_000))
    tasks = plan([DatabasePair(SHOP, None, index)])
    keys = [keys_of(task, cells) for task in tasks]
    assert [key for part in keys for key in part] == sorted(numbered(4_000))
    assert len(tasks) == 8
    assert all(400 < len(part) < 600 for part in keys)


@pytest.mark.usefixtures("small_tasks")
def test_a_task_has_up_to_so_many_keys_and_one_more_makes_two() -> None:
    cells = Indexes()
    for count, tasks in ((511, 1), (512, 1), (513, 2)):
        assert len(plan([DatabasePair(SHOP, None, cells.index(numbered(count)))])) == tasks


def test_a_plan_is_bounded_whatever_an_index_says_of_its_size() -> None:
    cells = Indexes()
    entries = numbered(40)
    honest = encode(cells.index(entries))
    assert honest[1] == len(entries)
    liar = decode(honest[:1] + b"\xc0" + b"\x80" * 7 + b"\x00" + honest[2:], cells)
    assert isinstance(liar, Index)
    assert len(liar) == 2**62
    assert len(plan([DatabasePair(SHOP, None, liar)])) <= 40


@pytest.mark.usefixtures("small_tasks")
def test_small_databases_share_a_task() -> None:
    cells = Indexes()
    pairs = [
        DatabasePair(DatabaseName("0xaa", f"d{i}"), None, cells.index(numbered(3)))
        for i in range(50)
    ]
    (task,) = plan(pairs)
    assert {piece.name.database for piece in task} == {f"d{i}" for i in range(50)}


@pytest.mark.parametrize(("least", "made"), [(1, 1), (4, 4), (7, 7), (5_000, 100)])
def test_at_least_so_many_tasks_keys_permitting(least: int, made: int) -> None:
    cells = Indexes()
    tasks = plan([DatabasePair(SHOP, None, cells.index(numbered(100)))], least)
    assert len(tasks) == made
    assert sum(len(keys_of(task, cells)) for task in tasks) == 100


def test_nothing_gives_no_task() -> None:
    assert plan([]) == []
    assert plan([], 8) == []
    assert plan([DatabasePair(SHOP, Index(), None)]) == []


@pytest.mark.usefixtures("small_tasks")
def test_a_few_changes_in_a_large_database_make_one_small_task() -> None:
    cells = Indexes()
    entries = numbered(10_000)
    before = cells.index(entries)
    changed = dict.fromkeys(("key000007", "key009999", "key009998"), "other")
    after = cells.index({**entries, **changed})
    cells.loads = 0
    tasks = plan([DatabasePair(SHOP, before, after)])
    assert len(tasks) == 1
    assert keys_of(tasks[0], cells) == sorted(changed)
    assert cells.loads < 400
    assert len(pickle.dumps(tasks)) < 2_000


@pytest.mark.usefixtures("small_tasks")
def test_many_changes_make_many_tasks() -> None:
    cells = Indexes()
    entries = numbered(4_000)
    tasks = plan(
        [
            DatabasePair(SHOP, cells.index(entries), cells.index(dict.fromkeys(entries, 1))),
            DatabasePair(BANK, cells.index(numbered(600)), None),
        ]
    )
    assert len(tasks) >= 8
    assert sum(len(keys_of(task, cells)) for task in tasks) == 4_600


@pytest.mark.usefixtures("small_tasks")
def test_there_are_no_more_pieces_than_a_plan_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = Indexes()
    index = cells.index(numbered(4_000))
    monkeypatch.setattr(planning, "_PIECES_MAX", 20)
    tasks = plan([DatabasePair(SHOP, None, index)])
    assert sum(map(len, tasks)) < 20 + 16
    assert sum(len(keys_of(task, cells)) for task in tasks) == 4_000


def test_differences_are_cut_finer_only_while_pieces_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = Indexes()
    entries = numbered(4_000)
    pair = DatabasePair(SHOP, cells.index(entries), cells.index(dict.fromkeys(entries, 1)))
    fine = sum(map(len, plan([pair])))
    monkeypatch.setattr(planning, "FINE_PIECES_MAX", 2)
    assert sum(map(len, plan([pair]))) < fine


def test_a_piece_of_something_else_is_refused() -> None:
    cells = Indexes()
    with pytest.raises(BadFormat, match="not an Index"):
        DatabaseSubtrees(SHOP, b"", encode("text")).part(cells)
    with pytest.raises(MissingData):
        DatabaseSubtrees(SHOP, b"\x20" + bytes(32), b"").part(cells)
