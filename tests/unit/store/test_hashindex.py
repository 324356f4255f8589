"""The hash index: what was flushed is found again, however many transactions that took."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from datalattice.engine import open_engine
from datalattice.store.log.hashindex import (
    FLUSH_ENTRIES,
    NOWHERE,
    TABLES,
    HashIndex,
    LogPosition,
    Watermark,
)


def entries(count: int) -> tuple[list[bytes], list[int]]:
    return [hashlib.sha256(b"%d" % n).digest() for n in range(count)], list(range(2, 2 + count))


@pytest.mark.parametrize("count", [0, 1, FLUSH_ENTRIES - 1, FLUSH_ENTRIES, FLUSH_ENTRIES + 1])
def test_what_was_flushed_is_found_after_opening(tmp_path: Path, count: int) -> None:
    hashes, places = entries(count)
    mark = Watermark(LogPosition(7, 1, 99, 5), 0, bytes(32))
    index = HashIndex(open_engine(tmp_path, TABLES, durable=False))
    index.add(hashes, places)
    assert index.recent_count == count
    index.flush(mark)
    assert index.recent_count == 0
    assert index.find_many(hashes) == places
    index.close()
    again = HashIndex(open_engine(tmp_path, TABLES, durable=False))
    assert again.watermark() == mark
    assert again.find_many(hashes) == places
    assert again.find(bytes(32)) == NOWHERE
    again.close()
