"""Writing: store a cell with all cells below it, children first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import branch_hashes
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.store.etch.layout import PERSISTED
from datalattice.store.etch.writer import EtchWriter

Fetch = Callable[[bytes], bytes]
"""Returns the encoding of a cell, compared with its hash; raises MissingData."""

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of encodings kept until their children are stored; others are fetched again."""

CELL_OVERHEAD: Final = 64
"""What the memory size of a cell counts beside its encoding."""


def store_below(
    writer: EtchWriter,
    top: bytes,
    fetch: Fetch,
    status: int,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Store the cell `top` and all below it at `status` (PERSISTED or more); return how many new.

    Cells with at least that status are skipped, with all below them.
    Raises: MissingData: `fetch` does not have a cell; those stored by then are complete and stay.
    Cost:   memory by the depth of the value, not by its size.
    """
    assert status >= PERSISTED
    held: dict[bytes, bytes] = {}
    held_bytes = 0
    new = done = 0
    stack: list[tuple[bytes, bool]] = [(top, False)]
    while stack:
        hash, ready = stack.pop()
        if writer.status_of(hash) >= status:
            continue
        waiting = held.pop(hash, None)
        if waiting is not None:
            held_bytes -= len(waiting)
        encoding = fetch(hash) if waiting is None else waiting
        branches = branch_hashes(encoding)
        if not ready:
            below = [one for one in dict.fromkeys(branches) if writer.status_of(one) < status]
            if below:
                if held_bytes + len(encoding) <= HELD_BYTES_MAX:
                    held[hash] = encoding
                    held_bytes += len(encoding)
                stack.append((hash, True))
                stack.extend((one, False) for one in reversed(below))
                continue
        new += writer.put(hash, encoding, status, memory_of(writer, encoding, branches))
        done += 1
        if progress is not None:
            progress(done)
    return new


def memory_of(writer: EtchWriter, encoding: bytes, branches: list[bytes]) -> int:
    """Return the memory size of a cell whose branches are stored with theirs."""
    size = len(encoding) + CELL_OVERHEAD if len(encoding) > EMBEDDED_BYTES_MAX else 0
    for branch in branches:
        record = writer.get(branch)
        size += 0 if record is None else record.memory_size
    return size
