"""What every cursor does: reading, replacing, updating, paths and detached copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.cells import EMPTY_MAP, Index, Keyword, Map, Value, Vector, same, to_cell
from datalattice.crypto import KeyPair
from datalattice.cursors import Cursor, PathCursor, Root, RootLattice, SignedCursor
from datalattice.errors import NoSuchPath, TypeMismatch, UnsupportedOperation
from datalattice.lattice import (
    KeyedLattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    SignedLattice,
)

KEY = KeyPair(b"\x01" * 32)
ANY = LWWLattice()


def below(value: object) -> Root:
    return Root(Map.of([("at", value)]))


def plus_one(value: Value) -> Value:
    assert isinstance(value, int)
    return value + 1


def minus(current: Value, x: Value) -> Value:
    assert isinstance(current, int)
    assert isinstance(x, int)
    return current - x


def kinds(value: object) -> dict[str, Cursor]:
    """Return one cursor of every kind that can be written, holding `value`."""
    signing = MergeContext(key_pair=KEY)
    signed = RootLattice(SignedLattice(ANY), None, signing).path("value")
    signed.set(value)
    nested = RootLattice(MapLattice(MapLattice(ANY)), {"a": {"b": value}})
    return {
        "root": Root(value),
        "path": below(value).path("at"),
        "root lattice": RootLattice(ANY, value),
        "fork": RootLattice(ANY, value).fork(),
        "descended": nested.path("a", "b"),
        "descended twice": nested.path("a").path("b"),
        "fork of descended": nested.path("a", "b").fork(),
        "signed": signed,
        "fork of signed": signed.fork(),
        "below no lattice": RootLattice(MapLattice(ANY), {"a": {"b": value}}).path("a", "b"),
        "path with lattice": PathCursor(below(value), ("at",), MapLattice(ANY)),
    }


KINDS = tuple(kinds(0))
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_set_replaces_and_host_values_become_cells(kind: str) -> None:
    cursor = kinds(0)[kind]
    cursor.set({"x": [1, 2]})
    assert same(cursor.get(), Map.of([("x", Vector.of([1, 2]))]))
    assert cursor.get("x", 1) == 2
    assert cursor.get("x", 2) is None
    assert cursor.get("x", 1, "deeper") is None
    assert cursor.get_and_set(5) == to_cell({"x": [1, 2]})
    assert cursor.get() == 5


@every_kind
def test_a_value_is_not_another_that_python_takes_for_equal(kind: str) -> None:
    cursor = kinds(1)[kind]
    assert not cursor.compare_and_set(True, 2)
    assert not cursor.compare_and_set(1.0, 2)
    assert cursor.get() == 1
    assert cursor.compare_and_set(1, True)
    assert cursor.get() is True


@every_kind
def test_compare_and_set_compares_values_not_objects(kind: str) -> None:
    cursor = kinds({"x": 1})[kind]
    assert cursor.compare_and_set({"x": 1}, {"y": 1})
    assert not cursor.compare_and_set({"x": 1}, {"z": 1})
    assert same(cursor.get(), to_cell({"y": 1}))


@every_kind
def test_updates_return_the_old_or_the_new_value(kind: str) -> None:
    cursor = kinds(10)[kind]
    cursor.update(plus_one)
    assert cursor.get_and_update(plus_one) == 11
    assert cursor.update_and_get(plus_one) == 13
    assert cursor.get_and_accumulate(7, minus) == 13
    assert cursor.accumulate_and_get(2, minus) == 4
    assert cursor.get() == 4


@every_kind
def test_a_function_that_raises_changes_nothing(kind: str) -> None:
    cursor = kinds(10)[kind]

    def broken(_value: Value) -> Value:
        raise ZeroDivisionError

    before = cursor.get()
    with pytest.raises(ZeroDivisionError):
        cursor.update(broken)
    assert cursor.get() is before
    with pytest.raises(TypeMismatch, match="has no cell kind"):
        cursor.set(object())
    assert cursor.get() is before


@every_kind
def test_nested_writes_replace_what_is_there(kind: str) -> None:
    cursor = kinds({"x": {"y": 1}, "v": [1]})[kind]
    cursor.assoc("z", 3)
    cursor.assoc_in(2, "x", "y")
    cursor.assoc_in(2, "v", 1)
    assert same(cursor.get(), to_cell({"x": {"y": 2}, "v": [1, 2], "z": 3}))
    cursor.assoc_in(9)
    assert cursor.get() == 9
    with pytest.raises(TypeMismatch, match="at depth 0"):
        cursor.assoc("x", 1)


@every_kind
def test_paths_read_and_write_through(kind: str) -> None:
    cursor = kinds({"x": {"y": 1}})[kind]
    assert cursor.path() is cursor
    deep = cursor.path("x", "y")
    step_by_step = cursor.path("x").path("y")
    assert deep.get() == 1
    deep.set(2)
    assert step_by_step.get() == 2
    step_by_step.set(None)
    assert same(cursor.get(), Map.of([("x", Map.of([("y", None)]))]))
    assert cursor.path("no", "where").get() is None
    with pytest.raises((NoSuchPath, TypeMismatch)):
        cursor.path("x", "y", "z").set(1)


@every_kind
def test_detached_work_is_taken_over_if_nothing_else_happened(kind: str) -> None:
    cursor = kinds({"x": 1})[kind]
    detached = cursor.detach()
    detached.assoc("x", 2)
    assert same(cursor.get(), to_cell({"x": 1}))
    assert same(detached.initial_value, to_cell({"x": 1}))
    assert cursor.merge(detached) is True
    assert same(cursor.get(), to_cell({"x": 2}))
    late = cursor.detach()
    late.assoc("x", 3)
    cursor.assoc("x", 9)
    assert cursor.merge(late) is False
    assert same(cursor.get(), to_cell({"x": 9}))


@every_kind
def test_the_initial_value_is_remembered(kind: str) -> None:
    cursor = kinds("first")[kind]
    cursor.set("second")
    if kind in {"signed", "fork of signed"}:
        return  # written once after it was made, so it began with nil
    assert cursor.initial_value == "first"


@every_kind
def test_a_cursor_prints_its_value(kind: str) -> None:
    cursor = kinds([1, "a"])[kind]
    assert str(cursor) == "Vector([1, 'a'])"
    assert repr(cursor).startswith("<Cursor")
    assert repr(cursor).endswith(": 2 entries>")
    cursor.set(None)
    assert str(cursor) == "None"
    assert repr(cursor).endswith(": None>")


@every_kind
def test_unchanged_results_keep_the_very_objects(kind: str) -> None:
    cursor = kinds({"x": 1})[kind]
    before = cursor.get()
    cursor.update(lambda value: value)
    assert cursor.get() is before
    cursor.assoc("x", 1)
    assert cursor.get() is before
    assert not cursor.compare_and_set("other", 1)
    assert cursor.get() is before


def test_what_a_path_leaves_unchanged_leaves_the_base_identical() -> None:
    root = Root({"a": {"b": 1}, "c": [1]})
    before = root.get()
    path = root.path("a", "b")
    path.update(lambda value: value)
    path.set(1)
    path.compare_and_set(7, 8)
    root.path("missing").update(lambda value: value)
    root.path("c", 0).set(1)
    assert root.get() is before


def test_setting_nil_at_an_absent_key_stores_nil() -> None:
    root = Root(EMPTY_MAP)
    root.path("a").set(None)
    assert same(root.get(), Map.of([("a", None)]))


def test_a_plain_path_needs_its_containers() -> None:
    root = Root(None)
    writes: list[Callable[[], object]] = [
        lambda: root.path("a").set(1),
        lambda: root.path("a").update(lambda _value: 1),
        lambda: root.assoc("a", 1),
        lambda: root.assoc_in(1, "a", "b"),
    ]
    for write in writes:
        with pytest.raises(NoSuchPath):
            write()
    assert root.get() is None
    assert root.path("a", "b").get() is None


def test_a_path_with_a_lattice_creates_and_seeds() -> None:
    lattice = KeyedLattice({"n": MaxLattice(), "m": MapLattice(MaxLattice())})
    root = Root(None)
    PathCursor(root, (Keyword("n"),), lattice).update(lambda value: value)
    assert root.get() is None
    assert PathCursor(root, (Keyword("n"),), lattice).accumulate_and_get(-5, minus) == 5
    PathCursor(root, (Keyword("m"),), lattice).assoc("x", 1)
    PathCursor(root, (Keyword("m"),), lattice).path("y").set(2)
    wanted = Index.of([(Keyword("n"), 5), (Keyword("m"), to_cell({"x": 1, "y": 2}))])
    assert same(root.get(), wanted)


def test_values_are_combined_by_lattice_cursors_only() -> None:
    for cursor in (Root(1), below(1).path("at")):
        with pytest.raises(UnsupportedOperation, match="without a lattice cannot merge"):
            cursor.merge(2)


def test_a_signed_cursor_stands_on_any_cursor() -> None:
    root = Root(None)
    cursor = SignedCursor(root, MaxLattice(), MergeContext(key_pair=KEY))
    cursor.set(5)
    assert cursor.get() == 5
    with pytest.raises(UnsupportedOperation, match="sync cannot propagate: the base is a Root"):
        cursor.sync()


def test_update_functions_run_again_when_another_write_came_between() -> None:
    root = Root(0)
    calls = 0

    def slow(value: Value) -> Value:
        nonlocal calls
        calls += 1
        if calls == 1:
            root.set(10)
        return plus_one(value)

    assert root.update_and_get(slow) == 11
    assert calls == 2


@pytest.mark.parametrize("kind", ["path", "descended", "signed", "descended twice"])
def test_a_retry_below_a_path_reports_the_values_of_the_last_run(kind: str) -> None:
    cursor = kinds(0)[kind]
    runs: list[Value] = []

    def racing(value: Value) -> Value:
        runs.append(value)
        if len(runs) == 1:
            cursor.set(100)
        return plus_one(value)

    assert cursor.get_and_update(racing) == 100
    assert runs == [0, 100]
    assert cursor.get() == 101
