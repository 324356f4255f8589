"""Rows: what readers see of the keys of a task, one row for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.apps.kv import ENTRIES, Entry, live_entry, read_entry, shown_value
from datalattice.cells import Index, Loader, Value, key_bytes, same
from datalattice.errors import MissingData
from datalattice.lattice import is_short, key_of
from datalattice.limits import INDEX_KEY_BYTES
from datalattice.pipeline.kv.options import KVOptions
from datalattice.pipeline.kv.plan import Piece, Task
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.tables import Row, micros
from datalattice.pipeline.values import NotBytes, render

ROW_BYTES: Final = 64
"""About what a row takes beside its texts and its value."""

_SHOWN_CHARS: Final = 100

_log: Final = logging.getLogger("datalattice.pipeline")


@dataclass(frozen=True, slots=True)
class Times:
    """When expiry is judged, Unix milliseconds: of what was before, and of what is now.

    They are part of a stream's position, so a batch that is made again has the same rows.
    """

    before_ms: int
    after_ms: int


def rows(task: Task, options: KVOptions, times: Times, loader: Loader) -> Iterator[Row]:
    """Yield the rows of a task.

    A key that is live gives its entry, one that was live and is no more gives a row without type
    and value.

    Raises: UsageError: the format does not take a value. MissingData: a cell is not here; where
            `failOnDataLoss` is false, of what is now. BadFormat.
    """
    for piece in task:
        makers = [_maker(name, piece, options) for name in options.columns]
        for key, was, now in _named(piece, loader, forgiving=not options.fail_on_data_loss):
            if not key.startswith(options.prefix):
                continue
            entry = live_entry(now, times.after_ms)
            if entry is None and live_entry(was, times.before_ms) is None:
                continue
            told = _Told(key, entry, now)
            columns = [make(told) for make in makers]
            yield columns, ROW_BYTES + _size(columns)


@dataclass(slots=True)
class _Told:
    """A key of which there is something to tell."""

    key: str
    entry: Entry | None
    stored: Value


def _named(piece: Piece, loader: Loader, *, forgiving: bool) -> Iterator[tuple[str, Value, Value]]:
    """Yield (name, entry before, entry now) of what differs, each name once.

    A name of more than 32 bytes may stand as it is beside its own key: it is told with that where
    that differs, too.
    """
    after: Index | None = None
    for cell, was, now in _changes(piece, loader, forgiving=forgiving):
        name = ENTRIES.name(cell)
        if name is None:
            continue
        if is_short(name):
            yield name, was, now
            continue
        after = after or piece.store_after(loader)
        key = key_of(name)
        made_was = old = None
        try:
            before = piece.store_before(loader)
            made_was, old = before.get(key), ENTRIES.get(before, name)
        except MissingData:
            if not forgiving:
                raise
        if same(cell, key) or same(made_was, after.get(key)):
            yield name, old, ENTRIES.get(after, name)


def _changes(
    piece: Piece, loader: Loader, *, forgiving: bool
) -> Iterator[tuple[Value, Value, Value]]:
    """Yield (key, entry before, entry now) of what differs, in the order of the keys.

    forgiving: where what was before is not here any more, all that is now counts as different.
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
        if not forgiving or not piece.before:
            raise
        _log.warning(
            "%s: what it was is not here any more (%s); telling all that is there now "
            "(failOnDataLoss=false)",
            piece.name,
            missing,
        )
    else:
        return
    for key, _, _, _, now in piece.now(loader).differences():
        if last is None or key_bytes(key) > last:
            yield key, None, now


def _other_key(before: Index | None, key: Value) -> Value:
    """Return the key in whose place `key` has come, nil where it is the same.

    Of keys that share the bytes which an index tells apart it holds one: when the first was cleaned
    up, another one may take its place.
    """
    place = key_bytes(key)
    if before is None or len(place) < INDEX_KEY_BYTES:
        return None
    old = next(iter(before.under(place).keys()), None)
    return None if old is None or ENTRIES.name(old) == ENTRIES.name(key) else old


def _maker(name: str, piece: Piece, options: KVOptions) -> Callable[[_Told], object]:
    """Return the function that makes the entry of a column."""
    if name in ("owner", "database"):
        text = getattr(piece.name, name)
        return lambda _told: text
    if name == "key":
        return lambda told: told.key
    if name == "type":
        return lambda told: None if told.entry is None else told.entry.type_name
    if name == "updated":
        return lambda told: _updated(told.stored)
    if name == "expires":
        return lambda told: None if told.entry is None else micros(told.entry.expire)
    return lambda told: None if told.entry is None else _value(told, piece, options)


def _updated(stored: Value) -> int | None:
    entry = read_entry(stored)
    return None if entry is None else micros(entry.utime)


def _value(told: _Told, piece: Piece, options: KVOptions) -> object:
    assert told.entry is not None
    try:
        return render(shown_value(told.entry), options.value_format)
    except NotBytes:
        raise bad_option(
            "valueFormat",
            options.value_format.value,
            f"the value of key {told.key[:_SHOWN_CHARS]!r} in {piece.name} is neither Blob nor "
            "String; cell, string, json and variant take every value",
        ) from None


def _size(columns: list[object]) -> int:
    """Return about how many bytes the values are."""
    size = 0
    for column in columns:
        if isinstance(column, (str, bytes)):
            size += len(column)
        elif isinstance(column, dict):  # a variant
            size += sum(map(len, column.values()))
    return size
