"""The table of requests: it finds what it should still have, whatever came and went before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from datalattice.cells import EMPTY_MAP, Map, Value, Vector
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
    """What a caller can rely on."""

    def __init__(self) -> None:
        self.written: dict[int, list[Written]] = {}

    def kept(self, step: Step, now_ms: int) -> Written | None:
        """Return what was written last for an id, if its time is not over."""
        found = [one for one in self.written.get(step.principal, []) if one.id == step.id][-1:]
        return found[0] if found and now_ms - found[0].time_ms < SMALL.kept_ms else None

    def is_sure(self, step: Step, one: Written) -> bool:
        """Return whether it must be found still: it and its principal are among the newest."""
        rows = self.written[step.principal]
        newer = rows[rows.index(one) :]
        others = [who for who in self.written if self.written[who][-1].time_ms >= rows[-1].time_ms]
        return (
            len(newer) <= SMALL.requests // 2
            and sum(len(row.result) for row in newer) <= SMALL.result_bytes // 2
            and len(others) <= SMALL.principals
        )


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


def rows_in(held: Cells | Tables) -> dict[bytes, list[bytes]]:
    """Return the ids that are held, by principal."""
    found: dict[bytes, list[bytes]] = {}
    if isinstance(held, Tables):
        with held.engine.read() as txn:
            for key, _ in txn.scan(REQUESTS, b"r", b"s"):
                found.setdefault(key[1:17], []).append(key[18:])
    else:
        assert isinstance(held.books, Map)
        for principal, book in held.books.entries():
            assert isinstance(principal, bytes)
            assert isinstance(book, Vector)
            for part in (book[1], book[2]):
                assert isinstance(part, Map)
                found.setdefault(principal, []).extend(part.keys())  # type: ignore[arg-type]
    return found


@PLACES
@given(steps=STEPS)
@settings(max_examples=400)
def test_a_table_finds_what_its_bounds_let_it_keep(
    place: type[Cells | Tables], steps: list[Step]
) -> None:
    model, now_ms = Model(), 1_000
    with closing(place()) as held:
        for number, step in enumerate(steps):
            now_ms += step.pause_ms
            kept = model.kept(step, now_ms)
            with held.rows() as rows:
                table = RequestTable(rows, now_ms, SMALL)
                try:
                    found = table.find(mark(step))
                except RequestReused:
                    assert kept is not None
                    assert kept.request != step.request
                    continue
                if found is not None:
                    assert kept is not None
                    assert (kept.request, kept.result) == (step.request, found)
                    continue
                assert kept is None or not model.is_sure(step, kept)
                result = bytes([number]) * step.size
                table.keep(mark(step), result)
                written = Written(now_ms, step.id, step.request, result)
                model.written.setdefault(step.principal, []).append(written)
                assert table.find(mark(step)) == result
            counts = [len(ids) for ids in rows_in(held).values()]
            assert len(counts) <= SMALL.principals
            assert all(count <= SMALL.requests for count in counts)


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


@pytest.mark.parametrize("limits", [REQUEST_LIMITS, RequestLimits(requests=2)])
def test_at_most_ten_thousand_results_of_a_principal_are_kept(limits: RequestLimits) -> None:
    assert REQUEST_LIMITS.requests == 10_000
    most = limits.requests

    def numbered(number: int, principal: int = 1) -> RequestMark:
        return RequestMark(bytes([principal]) * 16, number.to_bytes(16, "big"), bytes(32))

    def work(rows: RequestRows) -> None:
        table = RequestTable(rows, 1, limits)

        def held() -> list[int]:
            return [one for one in range(most + 2) if table.find(numbered(one)) is not None]

        table.keep(numbered(0, principal=2), b"another's")
        for number in range(most - 1):
            table.keep(numbered(number), b"r")
        assert held() == list(range(most - 1))
        table.keep(numbered(most - 1), b"r")
        assert held() == list(range(most))
        table.keep(numbered(most), b"r")
        assert held() == list(range(most // 2, most + 1))  # the older half went
        assert table.find(numbered(0, principal=2)) == b"another's"

    with closing(MemoryEngine((REQUESTS,))) as engine:
        GroupCommit(engine).run(lambda txn: work(EngineRows(txn)))


@PLACES
def test_results_have_so_many_bytes_at_most(place: type[Cells | Tables]) -> None:
    half = SMALL.result_bytes // 2
    for sizes, kept in (
        ([half - 1, 1], [0, 1]),
        ([half, half], [0, 1]),
        ([half, 1, half], [1, 2]),
        ([1, half, half], [1, 2]),
        ([1, 2 * half, 1], [1, 2]),  # one that is longer than a half is kept, too
        ([1, 3 * half, 1, half], [2, 3]),
    ):
        with closing(place()) as held:
            found = []
            for id, size in enumerate(sizes):
                with held.rows() as rows:
                    RequestTable(rows, 1, SMALL).keep(mark(Step(0, 1, id, 0, 0)), bytes(size))
            for id in range(len(sizes)):
                with held.rows() as rows:
                    if RequestTable(rows, 1, SMALL).find(mark(Step(0, 1, id, 0, 0))) is not None:
                        found.append(id)
            assert found == kept, sizes
