"""Parts that are staged in another thread: in order, all of them, and no failure is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from datalattice.cells import Blob, Value, blob_from
from datalattice.errors import StoreFailed
from datalattice.store import CellStore, WriteBuffer

MIB = 1 << 20


def test_parts_are_staged_in_order_and_before_the_end() -> None:
    staged: list[tuple[Value, int]] = []
    with WriteBuffer(lambda value: staged.append((value, threading.get_ident()))) as staging:
        for number in range(30):
            staging(number)
    assert [value for value, _ in staged] == list(range(30))
    assert threading.get_ident() not in {thread for _, thread in staged}


def test_nothing_to_stage_takes_no_thread() -> None:
    before = threading.active_count()
    staged: list[Value] = []
    with WriteBuffer(staged.append):
        assert threading.active_count() == before


def fail(value: Value) -> None:
    raise StoreFailed(f"no room for {value}")


def stage(count: int, error: type[Exception] | None = None) -> None:
    with WriteBuffer(fail) as staging:
        for number in range(count):
            staging(number)
        if error is not None:
            raise error


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_failure_is_raised_soon_or_at_the_end(count: int) -> None:
    with pytest.raises(StoreFailed, match="no room for 0"):
        stage(count)


def test_a_failure_of_the_maker_goes_first() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        stage(1, ZeroDivisionError)
    assert threading.active_count() == before


def test_a_file_through_a_store_is_the_file(tmp_path: Path) -> None:
    data = [bytes([number]) * MIB for number in range(20)]
    with CellStore.open(tmp_path) as store:
        with WriteBuffer(store.put) as staging:
            made = blob_from([*data, b"end"], staging)
        store.commit(made)
    with CellStore.open(tmp_path, read_only=True) as store:
        root = store.root()
        assert isinstance(root, Blob)
        assert bytes(root) == b"".join(data) + b"end"
        assert root == blob_from([b"".join(data), b"end"])
