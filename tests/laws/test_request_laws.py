"""The table of requests: it finds what it should still have, whatever came and went before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datalattice.cells import EMPTY_MAP, Value
from datalattice.engine import GroupCommit, MemoryEngine
from datalattice.errors import RequestReused
from datalattice.service.requests import (
    REQUEST_LIMITS,
    CellRows,
    EngineRows,
    RequestLimits,
    RequestMark,
    RequestRows,
    RequestTable,
)
from datalattice.weaver import REQUESTS

SMALL = RequestLimits(kept_ms=20, requests=4, result_bytes=30, principals=2)


class Step(NamedTuple):
    """Time goes on, then a principal sends a request with an id; it would have this result."""

    pause_ms: int
    principal: int
    id: int
    request: int
    size: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 0, 1, 5, 19, 20, 21]),
        st.integers(0, 2),
        st.integers(0, 5),
        st.integers(0, 1),
        st.sampled_from([0, 1, 10, 29, 30, 31]),
    ),
    max_size=40,
)


class Written(NamedTuple):
    time_ms: int
    id: int
    request: int
    result: bytes


class Model:
    """What a caller can rely on: the newest requests of a principal, as far as the bounds go."""

    def __init__(self) -> None:
        self.written: dict[int, list[Written]] = {}

    def find(self, step: Step, now_ms: int) -> bytes | type[RequestReused] | None:
        for one in reversed(self.written.get(step.principal, [])):
            if one.id == step.id:
                if now_ms - one.time_ms >= SMALL.kept_ms:
                    return None
                return one.result if one.request == step.request else RequestReused
        return None

    def keep(self, step: Step, now_ms: int, result: bytes) -> None:
        if step.principal not in self.written and len(self.written) >= SMALL.principals:
            last = {who: rows[-1].time_ms for who, rows in self.written.items()}
            idle = [who for who, time_ms in last.items() if now_ms - time_ms >= SMALL.kept_ms]
            for who in idle or [min(last, key=lambda one: (last[one], one))]:
                del self.written[who]
        rows = self.written.setdefault(step.principal, [])
        rows.append(Written(now_ms, step.id, step.request, result))
        while len(rows) > 1 and (
            len(rows) > SMALL.requests or sum(len(one.result) for one in rows) > SMALL.result_bytes
        ):
            del rows[0]


class Cells:
    """Rows as the `:local` slot has them."""

    def __init__(self) -> None:
        self.books: Value = EMPTY_MAP

    @contextmanager
    def rows(self) -> Iterator[RequestRows]:
        rows = CellRows(self.books)
        yield rows
        self.books = rows.books

    def close(self) -> None:
        """Nothing is open."""


class Tables:
    """Rows as the engine of the stores has them."""

    def __init__(self) -> None:
        self.engine = MemoryEngine((REQUESTS,))

    @contextmanager
    def rows(self) -> Iterator[RequestRows]:
        with self.engine.write() as txn:
            yield EngineRows(txn)

    def close(self) -> None:
        self.engine.close()


PLACES = pytest.mark.parametrize("place", [Cells, Tables])


def mark(step: Step) -> RequestMark:
    return RequestMark(
        bytes([step.principal]) * 16, bytes([step.id]) * 16, bytes([step.request]) * 32
    )


@PLACES
@given(steps=STEPS)
@settings(max_examples=300)
def test_a_table_finds_what_its_bounds_let_it_keep(
    place: type[Cells | Tables], steps: list[Step]
) -> None:
    model, now_ms = Model(), 1_000
    with closing(place()) as held:
        for number, step in enumerate(steps):
            now_ms += step.pause_ms
            expected = model.find(step, now_ms)
            with held.rows() as rows:
                table = RequestTable(rows, now_ms, SMALL)
                if expected is RequestReused:
                    with pytest.raises(RequestReused):
                        table.find(mark(step))
                    continue
                assert table.find(mark(step)) == expected
                if expected is None:
                    result = bytes([number]) * step.size
                    table.keep(mark(step), result)
                    model.keep(step, now_ms, result)
                    assert table.find(mark(step)) == result
                assert len(list(rows.heads())) <= SMALL.principals


@PLACES
@given(pauses=st.lists(st.sampled_from([0, 1, 7, 25]), min_size=1, max_size=60))
def test_what_is_kept_is_bounded(place: type[Cells | Tables], pauses: list[int]) -> None:
    now_ms = 0
    with closing(place()) as held:
        for number, pause_ms in enumerate(pauses):
            now_ms += pause_ms
            with held.rows() as rows:
                step = Step(0, number % 3, number % 251, 0, 0)
                RequestTable(rows, now_ms, SMALL).keep(mark(step), bytes(3))
        if isinstance(held, Tables):
            with held.engine.read() as txn:
                # A head, and two rows for each result.
                assert txn.count(REQUESTS) <= SMALL.principals * (1 + 2 * SMALL.requests)
        else:
            assert isinstance(held.books, type(EMPTY_MAP))
            assert len(held.books) <= SMALL.principals
            for book in held.books.values():
                assert len(book) <= 1 + 2 * SMALL.requests  # type: ignore[arg-type]


@PLACES
def test_a_result_is_kept_for_a_day_and_no_longer(place: type[Cells | Tables]) -> None:
    assert REQUEST_LIMITS.kept_ms == 24 * 3_600_000
    one = mark(Step(0, 1, 1, 1, 0))
    with closing(place()) as held:
        with held.rows() as rows:
            RequestTable(rows, 5).keep(one, b"done")
        for age_ms, found in (
            (REQUEST_LIMITS.kept_ms - 1, b"done"),
            (REQUEST_LIMITS.kept_ms, None),
            (REQUEST_LIMITS.kept_ms + 1, None),
            (-1, b"done"),  # the clock was put back
        ):
            with held.rows() as rows:
                assert RequestTable(rows, 5 + age_ms).find(one) == found, age_ms


def test_ten_thousand_results_of_a_principal_are_kept_and_no_more() -> None:
    most = REQUEST_LIMITS.requests
    assert most == 10_000

    def numbered(number: int, principal: int = 1) -> RequestMark:
        return RequestMark(bytes([principal]) * 16, number.to_bytes(16, "big"), bytes(32))

    def held(rows: RequestRows, now_ms: int) -> list[int]:
        table = RequestTable(rows, now_ms)
        return [one for one in range(most + 2) if table.find(numbered(one)) is not None]

    def work(rows: RequestRows) -> None:
        table = RequestTable(rows, 1)
        table.keep(numbered(0, principal=2), b"another's")
        for number in range(most - 1):
            table.keep(numbered(number), b"r")
        assert held(rows, 1) == list(range(most - 1))
        table.keep(numbered(most - 1), b"r")
        assert held(rows, 1) == list(range(most))
        table.keep(numbered(most), b"r")
        assert held(rows, 1) == list(range(1, most + 1))
        assert table.find(numbered(0, principal=2)) == b"another's"

    with closing(MemoryEngine((REQUESTS,))) as engine:
        GroupCommit(engine).run(lambda txn: work(EngineRows(txn)))
