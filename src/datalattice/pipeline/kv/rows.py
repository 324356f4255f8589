"""The rows of a task: one for each key, as readers see it.

Source: docs/spark-kv.md "Columns", "Changes as a stream".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.apps.kv import ENTRY_KEYS, Entry, live_entry, read_entry, shown_value
from datalattice.arrow import NotBytes, Row, micros, to_column_value
from datalattice.cells import Index, Loader, Value, key_bytes, same
from datalattice.errors import MissingData
from datalattice.lattice import is_short, key_of
from datalattice.limits import INDEX_KEY_BYTES
from datalattice.pipeline.kv.options import KVOptions
from datalattice.pipeline.kv.plan import DatabaseSubtrees, Task
from datalattice.pipeline.options import bad_option

_SHOWN_CHARS: Final = 100

_log: Final = logging.getLogger("datalattice.pipeline")


@dataclass(frozen=True, slots=True)
class Times:
    """Two times in Unix milliseconds: an entry whose expiry is earlier counts as absent.

    `before_ms` is for the entries before the changes, `after_ms` for those after them.

    Both are part of the stream's position, so a batch that Spark runs again has the same rows.
    """

    before_ms: int
    after_ms: int


def rows(task: Task, options: KVOptions, times: Times, loader: Loader) -> Iterator[Row]:
    """Yield the rows of a task: live keys with their value, deleted or expired ones without.

    Raises: UsageError: the format does not take a value. MissingData: a cell is missing; with
            `failOnDataLoss=false` only a cell of the present root. BadFormat.
    """
    for piece in task:
        makers = [_maker(name, piece, options) for name in options.columns]
        for key, was, now in _named(piece, loader, forgiving=not options.fail_on_data_loss):
            # A subtree is chosen by the first bytes of its keys, so it may have some other keys.
            if not key.startswith(options.prefix):
                continue
            entry = live_entry(now, times.after_ms)
            # "If it was live before" (docs/spark-kv.md): readers never saw a key that was
            # written and deleted between the two roots.
            if entry is None and live_entry(was, times.before_ms) is None:
                continue
            row = _KeyRow(key, entry, now)
            yield [make(row) for make in makers]


@dataclass(slots=True)
class _KeyRow:
    """A key that gets a row."""

    key: str
    entry: Entry | None
    stored: Value


def _named(
    piece: DatabaseSubtrees, loader: Loader, *, forgiving: bool
) -> Iterator[tuple[str, Value, Value]]:
    """Yield (name, entry before, entry now) of the names that differ, each once.

    An entry whose name is longer than 32 bytes may be stored twice, under the name and under its
    short key. If both differ, only the short key is reported.
    """
    after: Index | None = None
    for cell, was, now in _changes(piece, loader, forgiving=forgiving):
        name = ENTRY_KEYS.name(cell)
        # "Keys that are not text are skipped" (docs/spark-kv.md, Columns).
        if name is None:
            continue
        # The usual case: the name is also the key in the index.
        if is_short(name):
            yield name, was, now
            continue
        after = after or piece.store_after(loader)
        key = key_of(name)
        made_was = old = None
        try:
            before = piece.store_before(loader)
            made_was, old = before.get(key), ENTRY_KEYS.get(before, name)
        except MissingData:
            if not forgiving:
                raise
        # Reported once: at its short key if that entry differs, otherwise at the long one.
        if same(cell, key) or same(made_was, after.get(key)):
            yield name, old, ENTRY_KEYS.get(after, name)


def _changes(
    piece: DatabaseSubtrees, loader: Loader, *, forgiving: bool
) -> Iterator[tuple[Value, Value, Value]]:
    """Yield (key, entry before, entry now) of the keys that differ, in key order.

    forgiving: if the state before is no longer complete, report every present key as changed.
    """
    last: bytes | None = None
    try:
        part = piece.part(loader)
        for key, had, was, has, now in part.differences():
            other = _other_key(part.own, key) if had and has else None
            if other is not None:
                yield other, was, None
            yield key, None if other is not None else was, now
            last = key_bytes(key)
    except MissingData as missing:
        # "With `failOnDataLoss=false` every present key is read again" (docs/spark-kv.md).
        if not forgiving or not piece.before:
            raise
        _log.warning(
            "%s: its earlier state is no longer there (%s); reading all its keys "
            "(failOnDataLoss=false)",
            piece.name,
            missing,
        )
    else:
        return
    for key, _, _, _, now in piece.now(loader).differences():
        # Rows up to `last` are out already, so only later keys are read again.
        if last is None or key_bytes(key) > last:
            yield key, None, now


def _other_key(before: Index | None, key: Value) -> Value:
    """Return the key that `key` has replaced in the index; None if it is the same key.

    An Index holds only one key of those that begin with the same 32 bytes. When that key's entry is
    cleaned up, another such key may take its place.
    """
    prefix = key_bytes(key)
    # Shorter keys are complete in the index: no other key can take their entry.
    if before is None or len(prefix) < INDEX_KEY_BYTES:
        return None
    old = next(iter(before.under(prefix).keys()), None)
    return None if old is None or ENTRY_KEYS.name(old) == ENTRY_KEYS.name(key) else old


def _maker(name: str, piece: DatabaseSubtrees, options: KVOptions) -> Callable[[_KeyRow], object]:
    """Return the function that makes a column's entry."""
    if name in ("owner", "database"):
        text = getattr(piece.name, name)
        return lambda _row: text
    if name == "key":
        return lambda row: row.key
    if name == "type":
        return lambda row: None if row.entry is None else row.entry.type_name
    if name == "updated":
        return lambda row: _updated(row.stored)
    if name == "expires":
        return lambda row: None if row.entry is None else micros(row.entry.expire)
    return lambda row: None if row.entry is None else _value(row, piece, options)


def _updated(stored: Value) -> int | None:
    # "`updated` is the time of the deletion if it is still known" (docs/spark-kv.md).
    entry = read_entry(stored)
    return None if entry is None else micros(entry.utime)


def _value(row: _KeyRow, piece: DatabaseSubtrees, options: KVOptions) -> object:
    assert row.entry is not None
    try:
        return to_column_value(shown_value(row.entry), options.value_format)
    except NotBytes:
        raise bad_option(
            "valueFormat",
            options.value_format.value,
            f"the value of key {row.key[:_SHOWN_CHARS]!r} in {piece.name} is neither Blob nor "
            "String; cell, string, json and variant take every value",
        ) from None
