"""Helpers fill the options of formats: all of them, as the formats take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from datalattice.errors import UsageError
from datalattice.pipeline import reading
from datalattice.pipeline.cells.options import CellReadOptions
from datalattice.pipeline.files import options as files
from datalattice.pipeline.grid import options as grid
from datalattice.pipeline.kv.options import KVOptions
from datalattice.pipeline.options import declared
from datalattice.pipeline.queue import options as queue
from datalattice.pipeline.read_targets import ReadTarget
from datalattice.pipeline.reading import (
    read_cells,
    read_files,
    read_grid,
    read_kv,
    read_queue,
    read_weaver,
    text_of,
)
from datalattice.pipeline.weaver.options import WeaverOptions

pytest.importorskip("pyspark")


class Reader:
    """Takes what a DataFrameReader is told."""

    def __init__(self, name: str) -> None:
        self.told: dict[str, Any] = {"kind": name}

    def format(self, name: str) -> Reader:
        self.told["format"] = name
        return self

    def options(self, **options: str) -> Reader:
        self.told["options"] = options
        return self

    def load(self) -> dict[str, Any]:
        return self.told


class Session:
    """Takes what a session is told."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.dataSource = self

    def register(self, source: Any) -> None:
        self.registered.append(source.name())

    @property
    def read(self) -> Reader:
        return Reader("batch")

    @property
    def readStream(self) -> Reader:  # noqa: N802 - Spark's
        return Reader("stream")


SPARK: Any = Session()


@pytest.mark.parametrize(
    ("helper", "arguments", "records"),
    [
        (read_queue, reading.QueueArguments, (ReadTarget, queue.QueueOptions)),
        (read_kv, reading.KVArguments, (ReadTarget, KVOptions)),
        (read_grid, reading.GridArguments, (ReadTarget, grid.GridOptions)),
        (read_files, reading.FilesArguments, (ReadTarget, files.FilesOptions)),
        (read_cells, reading.CellsArguments, (CellReadOptions,)),
        (read_weaver, reading.WeaverArguments, (WeaverOptions,)),
    ],
)
def test_every_option_of_a_format_is_an_argument(
    helper: Callable[..., Any], arguments: type, records: tuple[type, ...]
) -> None:
    names = {"store", *get_type_hints(arguments)}
    told = helper(SPARK, **dict.fromkeys(names, "x"))
    assert set(told["options"]) == {one.name for one in declared(*records).values()}
    assert told["format"] == "lattice." + helper.__name__.removeprefix("read_")
    assert told["kind"] == "batch"


def test_streams() -> None:
    helpers: list[tuple[Any, dict[str, str]]] = [
        (read_queue, {}),
        (read_kv, {}),
        (read_grid, {"table": "jobs"}),
        (read_weaver, {"name": "notes"}),
    ]
    for helper, options in helpers:
        assert helper(SPARK, "s", stream=True, **options)["kind"] == "stream"


def test_formats_are_registered_once() -> None:
    spark: Any = Session()
    for _ in range(2):
        read_cells(spark, "s")
    assert sorted(spark.registered) == sorted(set(spark.registered))
    assert {"lattice.queue", "lattice.kv", "lattice.grid", "lattice.files", "lattice.cells"} <= set(
        spark.registered
    )


def test_what_is_left_out_is_not_an_option() -> None:
    found: Any = read_queue(SPARK, Path("/data/node"), topic="t")
    assert found["options"] == {"store": "/data/node", "topic": "t"}


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (7, "7"),
        ("a,b", "a,b"),
        (["a,b", "c"], '["a,b", "c"]'),
        (("a",), '["a"]'),
        ({"0": 5}, '{"0": 5}'),
        (Path("/x"), "/x"),
        (NOON, "@1704110400000"),
    ],
)
def test_values_become_texts(value: object, text: str) -> None:
    assert text_of("name", value) == text


@pytest.mark.parametrize("value", [1.5, [1, 2], object(), b"x"])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="columns cannot be of the type"):
        text_of("columns", value)


def test_times_are_milliseconds() -> None:
    found: Any = read_queue(SPARK, "s", starting_timestamp=NOON, as_of=NOON)
    assert found["options"]["startingTimestamp"] == "1704110400000"
    assert found["options"]["asOf"] == "@1704110400000"


def test_what_they_fill_is_accepted() -> None:
    found: Any = read_queue(
        SPARK,
        "s",
        topic=["a", "b"],
        columns=["value", "offset"],
        starting_offsets={"a": {"0": 5}},
        max_offsets_per_trigger=10,
        fail_on_data_loss=False,
        value_format="string",
    )
    parsed = queue.parse_options(found["options"])
    assert parsed.topics == ("a", "b")
    assert parsed.columns == ("value", "offset")
    assert parsed.starting.of("o", "a", "0") == 5
    assert parsed.fail_on_data_loss is False
    told: Any = read_files(SPARK, "s", drive=["d"], chunk_bytes="4m", glob="/a/**")
    assert files.parse_options(told["options"]).chunk_bytes == 4 << 20
    told = read_grid(SPARK, "s", table="storage", include_content=True, max_content_bytes=5)
    assert grid.parse_options(told["options"]).content_bytes_max == 5


def test_each_has_an_example() -> None:
    for name in dir(reading):
        if name.startswith("read_"):
            text = inspect.getdoc(getattr(reading, name)) or ""
            assert f"= {name}(spark" in text, name
