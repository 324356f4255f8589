"""Spark kit: drives sources and sinks like Spark, in this process. Needs PySpark."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pyspark.sql import types as t

from datalattice.store import CellStore

_TYPES: dict[str, t.DataType] = {
    "STRING": t.StringType(),
    "BIGINT": t.LongType(),
    "BINARY": t.BinaryType(),
    "TIMESTAMP": t.TimestampType(),
    "VARIANT": t.VariantType(),
    "ARRAY<STRING>": t.ArrayType(t.StringType()),
    "ARRAY<BINARY>": t.ArrayType(t.BinaryType()),
}


def struct_of(types: Mapping[str, str]) -> t.StructType:
    """Return columns as Spark gives them to readers, from the names of their types."""
    return t.StructType([t.StructField(name, _TYPES[kind]) for name, kind in types.items()])


def rows_of(reader: Any, partitions: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of a reader's tasks, which travel as they do to other processes."""
    sent, parts = pickle.loads(pickle.dumps((reader, list(partitions))))  # noqa: S301 - ours
    return [row for part in parts for batch in sent.read(part) for row in batch.to_pylist()]


class FakeTaskContext:
    """A stand-in for Spark's TaskContext."""

    def __init__(self, task: int, query: str | None = None, batch: int | None = None) -> None:
        self._task = task
        self._properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": None if batch is None else str(batch),
        }

    def partitionId(self) -> int:  # noqa: N802 - Spark's
        return self._task

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's
        return 7

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's
        return self._properties[name]


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Let the disk be full for stores of this process after `room` more writes.

    Stores that are opened meanwhile write after every 20,000 bytes of an edit.
    """
    write, left = os.pwrite, [room]

    def refused(file: int, data: bytes, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, offset)

    stores = SimpleNamespace(open=partial(CellStore.open, pending_bytes=20_000))
    with patch.object(os, "pwrite", refused), patch("datalattice.client.opening.CellStore", stores):
        yield


def commit(writer: Any, messages: Sequence[Any], batch: int | None = None) -> None:
    """Have a writer commit a save, or a batch of a stream."""
    if batch is None:
        writer.commit(messages)
    else:
        writer.commit(messages, batch)
