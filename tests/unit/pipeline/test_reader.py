"""What every task does around its rows: it says what became of cells that it does not find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from datalattice.errors import DataLoss, MissingData
from datalattice.pipeline.leasing import LeasedRoot
from datalattice.pipeline.read_targets import ReadTarget
from datalattice.pipeline.reader import Planned, read_part
from datalattice.store import CellStore


@pytest.fixture
def place(tmp_path: Path) -> ReadTarget:
    CellStore.open(tmp_path).close()
    return ReadTarget(str(tmp_path))


def lacking(part: bytes, _source: object, _schema: object) -> Iterator[Any]:
    yield "rows"
    raise MissingData([part])


def test_cells_that_are_gone_are_a_loss_that_says_what_keeps_them(place: ReadTarget) -> None:
    planned = Planned("drive 'main' of alice", bytes(32), LeasedRoot(None, 0))
    found = read_part(planned, place, StructType(), lacking)
    assert next(found) == "rows"
    with pytest.raises(DataLoss, match=rf"drive 'main' of alice: .*{place}.* longer leaseSeconds"):
        next(found)


def test_the_partition_that_spark_makes_itself_is_empty(place: ReadTarget) -> None:
    assert list(read_part(InputPartition(None), place, StructType(), lacking)) == []
