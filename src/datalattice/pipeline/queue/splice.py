"""Splice: take the entries of a log as they stand in its leaves, to go on with them elsewhere.

Most entries are small and refer to nothing. They are copied as bytes, without an object for each.
Pure and compiled: no Spark, no Arrow.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from datalattice.cells import branch_hashes, skip_kid
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.pipeline.queue.leaves import Run

_REF_TAG: Final = 0x20


def take_small(run: Run, rows: list[bytes]) -> int:
    """Append the encodings of a run's entries to `rows`; return how many bytes they have.

    -1, and nothing is appended, when one of them is not small: it is a branch or refers to one.
    """
    data = run.data
    at: i64 = run.at
    begin: i64 = at
    found: list[bytes] = []
    for _ in range(run.count):
        tag: i64 = data[at]
        if tag == _REF_TAG:
            return -1
        end: i64 = skip_kid(data, at)
        row = data[at:end]
        if len(row) > EMBEDDED_BYTES_MAX:
            return -1
        found.append(row)
        at = end
    if branch_hashes(bytes((0x80, run.count)) + data[begin:at]):
        return -1
    rows.extend(found)
    return at - begin
