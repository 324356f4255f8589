"""The kit of options: what all formats refuse in the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from datalattice.errors import UsageError
from datalattice.pipeline.cells.options import (
    CellReadOptions,
    WriteOptions,
    read_options as cells_options,
)
from datalattice.pipeline.exactly_once.job import WriteTarget
from datalattice.pipeline.files.options import FilesOptions
from datalattice.pipeline.formats import sources
from datalattice.pipeline.grid.options import GridOptions
from datalattice.pipeline.kv.options import KVOptions, parse_options as kv_options
from datalattice.pipeline.kv.sink import KVSinkOptions
from datalattice.pipeline.options import (
    MIN_PARTITIONS_MAX,
    NAMED_MAX,
    check_there,
    declared,
    option_rows,
)
from datalattice.pipeline.queue.options import QueueOptions, parse_options as queue_options
from datalattice.pipeline.queue.sink import QueueSinkOptions
from datalattice.pipeline.read_targets import ReadTarget
from datalattice.pipeline.weaver.options import WeaverOptions
from datalattice.store import CellStore


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_error_lists_so_many_names(more: int) -> None:
    there = [f"t{i:03}" for i in range(NAMED_MAX + more)]
    check_there("topic", there, there)
    with pytest.raises(UsageError, match=r"topic='x' .* it has: t000, t001") as caught:
        check_there("topic", ["t001", "x"], set(there))
    assert str(caught.value).count("t0") == min(NAMED_MAX, len(there))
    assert str(caught.value).endswith("and 1 more") is (more == 1)


def test_where_nothing_is_there() -> None:
    with pytest.raises(UsageError, match="it has: none"):
        check_there("topic", ["x"], ())


@pytest.mark.parametrize(
    "parse", [queue_options, kv_options, cells_options], ids=["queue", "kv", "cells"]
)
def test_least_numbers_of_tasks_have_a_limit(
    parse: Callable[[dict[str, str]], Any], tmp_path: Path
) -> None:
    CellStore.open(tmp_path).close()
    store = str(tmp_path)
    for count in (1, MIN_PARTITIONS_MAX - 1, MIN_PARTITIONS_MAX):
        assert parse({"store": store, "minPartitions": str(count)}).min_partitions == count
    for count in (0, MIN_PARTITIONS_MAX + 1, 2**63, 10**30):
        with pytest.raises(UsageError, match=rf"minPartitions='{count}'.* from 1 to 262144$"):
            parse({"store": store, "minPartitions": str(count)})


def test_numbers_end_where_those_of_java_do() -> None:
    for count in (1, 2**63 - 1):
        found = queue_options({"store": "s", "maxOffsetsPerTrigger": str(count)})
        assert found.max_offsets_per_trigger == count
    for text in ("0", str(2**63), "1" * 20, "\u0661", "1_0", "0x1", "1.0"):
        with pytest.raises(UsageError, match=f"from 1 to {2**63 - 1}"):
            queue_options({"store": "s", "maxOffsetsPerTrigger": text})


# --- declared once --------------------------------------------------------------------------

DOCS = Path(__file__).resolve().parents[3] / "docs"
TABLES: list[tuple[str, tuple[type, ...]]] = [
    ("spark.md", (ReadTarget,)),
    ("spark.md", (QueueOptions,)),
    ("spark-writing.md", (WriteTarget, QueueSinkOptions)),
    ("spark-kv.md", (KVOptions,)),
    ("spark-kv.md", (WriteTarget, KVSinkOptions)),
    ("spark-formats.md", (GridOptions,)),
    ("spark-formats.md", (FilesOptions,)),
    ("spark-formats.md", (CellReadOptions,)),
    ("spark-formats.md", (WriteOptions,)),
    ("spark-weaver.md", (WeaverOptions,)),
]


@pytest.mark.parametrize(("page", "records"), TABLES)
def test_records_describe_their_options_and_pages_have_these_tables(
    page: str, records: tuple[type, ...]
) -> None:
    rows = option_rows(*records)
    names = [f"| `{one.name}` | " for one in declared(*records).values()]
    assert [row[: len(name)] for row, name in zip(rows[2:], names, strict=True)] == names
    assert all(row.count(" |") == 3 for row in rows[2:])
    table = "\n".join(rows) + "\n"
    assert table in (DOCS / page).read_text(), f"docs/{page} needs this table:\n{table}"


def test_the_docstring_of_a_format_has_its_options() -> None:
    records: dict[str, tuple[type, ...]] = {
        "lattice.queue": (ReadTarget, QueueOptions),
        "lattice.kv": (ReadTarget, KVOptions),
        "lattice.grid": (ReadTarget, GridOptions),
        "lattice.files": (ReadTarget, FilesOptions),
        "lattice.cells": (CellReadOptions,),
        "lattice.weaver": (WeaverOptions,),
    }
    for source in sources():
        words = source.__doc__ or ""
        assert words.endswith("\n".join(option_rows(*records.pop(source.name()))) + "\n")
    assert not records
