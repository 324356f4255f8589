"""Views: computed on read, cached for a time, never written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.cells import Value, to_cell
from datalattice.cursors import (
    Cursor,
    Root,
    RootLattice,
    TimeCache,
    Transformer,
    cached_transform,
    chain,
)
from datalattice.errors import ReadOnly, TypeMismatch, UnsupportedOperation, UsageError
from datalattice.lattice import SetLattice
from datalattice.testing.clocks import StoppedClock


class Counting(Root):
    """A root that counts its reads."""

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.reads = 0

    def _read(self) -> Value:
        self.reads += 1
        return super()._read()


def double(value: Value) -> object:
    return None if value is None else [value, value]


def test_a_transformer_applies_its_function_on_every_read() -> None:
    root = Root(1)
    view = Transformer(root, double)
    assert view.get() == to_cell([1, 1])
    root.set(2)
    assert view.get() == to_cell([2, 2])
    assert view.get(1) == 2
    root.set(None)
    assert view.get() is None
    assert str(view) == "None"


def test_errors_of_the_function_come_through() -> None:
    def broken(_value: Value) -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Transformer(Root(1), broken).get()


def test_a_chain_applies_the_first_function_first() -> None:
    root = RootLattice(SetLattice(), {1})
    view = chain(root, len_of, double, str_of)
    assert view.get() == "Vector([1, 1])"
    assert chain(root) is root


def len_of(value: Value) -> object:
    return len(value)  # type: ignore[arg-type]


def str_of(value: Value) -> object:
    return str(Root(value))


@pytest.mark.parametrize("cached", [False, True], ids=["transformer", "cache"])
def test_every_write_to_a_view_is_refused(cached: bool) -> None:
    root = Root({"a": 1})
    view: Cursor = TimeCache(root, 5) if cached else Transformer(root, lambda value: value)
    path = view.path("a")
    assert path.get() == 1
    assert path.path("b").get() is None
    writes: list[Callable[[], object]] = [
        lambda: view.set(1),
        lambda: view.get_and_set(1),
        lambda: view.update(double),
        lambda: view.compare_and_set(to_cell({"a": 1}), 2),
        lambda: view.assoc("a", 1),
        lambda: view.merge(1),
        lambda: view.merge(Root(1)),
        lambda: path.set(2),
        lambda: path.update(double),
        lambda: path.compare_and_set(1, 2),
    ]
    for write in writes:
        with pytest.raises(ReadOnly, match="is read only: write to its source"):
            write()
    with pytest.raises(UnsupportedOperation, match="no initial value"):
        _ = path.initial_value
    assert view.detach().get("a") == 1


def test_a_cache_reads_its_source_once_in_its_time() -> None:
    clock, root = StoppedClock(), Counting(1)
    view = TimeCache(root, 100, clock)
    assert view.last_update_ms == -1
    assert not view.has_valid_cache()
    assert view.get() == 1
    root.set(2)
    assert view.has_valid_cache()
    clock.now += 99
    assert view.get() == 1
    assert root.reads == 1
    clock.now += 1
    assert not view.has_valid_cache()
    assert view.get() == 2
    assert view.last_update_ms == 1_100
    view.invalidate()
    assert view.last_update_ms == -1
    root.set(3)
    assert view.get() == 3
    assert view.ttl_ms == 100


def test_nil_is_cached_as_any_value() -> None:
    clock, root = StoppedClock(), Counting(None)
    view = TimeCache(root, 100, clock)
    assert [view.get(), view.get()] == [None, None]
    assert root.reads == 1


def test_a_time_of_zero_reads_every_time_and_a_huge_one_never_again() -> None:
    root = Counting(1)
    always = TimeCache(root, 0, StoppedClock())
    assert [always.get(), always.get()] == [1, 1]
    assert root.reads == 2
    clock = StoppedClock()
    never = TimeCache(root, 2**63 - 1, clock)
    never.get()
    clock.now = 2**63
    never.get()
    assert root.reads == 3


def test_a_cached_transform_runs_its_function_once_in_its_time() -> None:
    runs: list[Value] = []
    clock = StoppedClock()

    def noted(value: Value) -> Value:
        runs.append(value)
        return value

    view = cached_transform(Root(1), noted, 10, clock)
    assert [view.get(), view.get(), view.get()] == [1, 1, 1]
    assert len(runs) == 1
    clock.now += 10
    view.get()
    assert len(runs) == 2


def test_the_system_clock_is_the_default() -> None:
    view = TimeCache(Root(1), 60_000)
    view.get()
    assert view.has_valid_cache()


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(TypeMismatch, match="a Transformer needs a function, got NoneType"):
        Transformer(Root(1), None)  # type: ignore[arg-type]
    with pytest.raises(TypeMismatch, match="the source of a view is not a Cursor: int"):
        TimeCache(1, 5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ttl_ms is 0 or more, got -1"):
        TimeCache(Root(1), -1)
