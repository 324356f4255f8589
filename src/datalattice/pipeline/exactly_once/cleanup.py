"""Removal of staging folders that no query needs any more.

A user may name any folder for staging, so only folders with names of the form
`<query or save>/<batch>/<task>-<attempt>-<random>` are removed.

Source: docs/spark-writing.md "Staging".
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

STALE_MS: Final = 7 * 24 * 60 * 60 * 1_000
"""Age at which the staged data of any query is removed."""

_QUERY: Final = re.compile(r"(query|save)-[A-Za-z0-9_.:-]+")
_BATCH: Final = re.compile(r"[0-9]+")
_TASK: Final = re.compile(r"[0-9]+-[0-9]+-[0-9a-f]{16}")
_MILLIS: Final = 1_000


def remove_folder(folder: Path) -> None:
    """Remove a folder as far as possible; `remove_stale` removes the rest later."""
    # The data is written: an undeletable folder must not make the commit fail.
    shutil.rmtree(folder, ignore_errors=True)


def remove_batches(query: Path, last: int) -> None:
    """Remove the batches of a query up to the one with the number `last`."""
    for batch in _listed(query):
        # "Of its batch and of all earlier batches" (docs/spark-writing.md, Staging).
        if _BATCH.fullmatch(batch.name) and int(batch.name) <= last:
            remove_folder(batch)
    with suppress(OSError):  # not empty: a later batch is being staged
        query.rmdir()


def remove_stale(staging: Path, now_ms: int) -> None:
    """Remove batches in which no task has begun for `STALE_MS`."""
    for query in _listed(staging):
        if _QUERY.fullmatch(query.name):
            for batch in _listed(query):
                if _BATCH.fullmatch(batch.name) and _is_stale(batch, now_ms):
                    remove_folder(batch)
            # A new folder may belong to a query that stages now.
            if _is_old(query, now_ms):
                with suppress(OSError):  # not empty
                    query.rmdir()


def _is_stale(batch: Path, now_ms: int) -> bool:
    tasks = _listed(batch)
    # If there is a file with another name, the folder belongs to the user.
    return all(_TASK.fullmatch(task.name) for task in tasks) and all(
        _is_old(path, now_ms) for path in (batch, *tasks)
    )


def _is_old(path: Path, now_ms: int) -> bool:
    try:
        return path.stat().st_mtime * _MILLIS < now_ms - STALE_MS
    except OSError:
        return True  # removed meanwhile


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []  # removed meanwhile, perhaps by another query's cleanup
