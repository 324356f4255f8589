"""Read a range of a log into columns, straight from the encodings of its cells.

No record becomes a Python object. `cells.element_runs` finds the leaves of the log's vector. A leaf
is one encoding with up to 16 records. This module notes the byte ranges of each record's parts.
`cells.EncodedReader` reads the parts that are cells of their own, or that become text. The module
is compiled, and uses neither Spark nor Arrow.

Source: docs/spark.md "Columns", "Values as columns"; docs/queue.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from datalattice.arrow.spans import TEXT_BYTES_MAX, Longs, Sheet, Spans
from datalattice.cells import (
    REF_BYTES,
    TAG_REF,
    TAG_TEXT,
    TAG_VECTOR,
    ElementRun,
    EncodedReader,
    FetchCell,
    Map,
    Text,
    Value,
    element_runs,
    has_no_branch,
    json_in_utf8,
    read_vlq,
    skip_kid,
    utf8_text,
    vector_count,
)
from datalattice.limits import CHUNK_BYTES, COUNT_MAX

SKIP: Final = 0
CELL_LEAF: Final = 1
BYTES_LEAF: Final = 2
STRING_LEAF: Final = 3
JSON_LEAF: Final = 4

_BLOB_MASK: Final = 0xFE  # the tags of String and Blob differ in the last bit
_MICROS: Final = 1_000
_STAMP_MAX: Final = (2**63 - 1) // _MICROS


class Columns:
    """Records taken from runs, column by column; a column of mode SKIP stays empty.

    `keys` and `values` are ranges of `sheet`, as bytes or UTF-8 by mode; `stamps` are Unix
    microseconds; `headers` are dicts of texts. A nil is None; so is every part of an entry that is
    not a record. `first` is the offset of the first record. Strings are copied unchanged, even if
    they are not UTF-8.
    """

    def __init__(
        self,
        fetch: FetchCell,
        first: int,
        key_mode: int,
        value_mode: int,
        *,
        stamps: bool,
        headers: bool,
        byte_max: int = COUNT_MAX,
    ) -> None:
        self.cells: Final = EncodedReader(fetch)
        self.byte_max: i64 = byte_max
        self.first = first
        self.key_mode: i64 = key_mode
        self.value_mode: i64 = value_mode
        self.with_stamps = stamps
        self.with_headers = headers
        self.sheet: Final = Sheet()
        self.keys: Final = Spans()
        self.values: Final = Spans()
        self.stamps: Final = Longs()
        self.headers: list[dict[str, str | None] | None] = []
        self.count = 0
        self._own_bytes: i64 = 0

    @property
    def byte_count(self) -> int:
        """Number of bytes taken so far, from runs and from the cells below them."""
        return self._own_bytes + self.cells.byte_count

    def take(self, run: ElementRun) -> None:
        """Move records from a run to the columns until `byte_max` bytes are taken.

        Raises: Unfit: a key or value is not of the type that its mode takes. MissingData.
        """
        data = run.data
        at: i64 = run.at
        left: i64 = run.count
        self.sheet.turn_to(data, at, run.end)
        while left > 0 and self._own_bytes + self.cells.byte_count < self.byte_max:
            tag: i64 = data[at]
            # A record is the Vector `[key value timestamp headers]` (docs/queue.md), usually with
            # these four elements only. `_entry` takes every other entry.
            if tag == TAG_VECTOR and data[at + 1] == 4:
                at = self._record(data, at + 2)
            elif tag == TAG_REF:
                self._entry(self.cells.branch(data, at))
                at += REF_BYTES
            else:
                after: i64 = skip_kid(data, at)
                self._entry(data[at:after])
                at = after
            self.count += 1
            left -= 1
        self._own_bytes += at - run.at
        run.at = at
        run.count = left

    def _entry(self, data: bytes) -> None:
        """Append an entry that is a reference, or does not have exactly four elements."""
        if data[0] != TAG_VECTOR or vector_count(data, 0) < 4:
            self._none()
            return
        for run in element_runs(data, 0, 4, self.cells.fetch):
            self._record(run.data, run.at)

    def _none(self) -> None:
        if self.key_mode != SKIP:
            self.keys.add_none()
        if self.value_mode != SKIP:
            self.values.add_none()
        if self.with_stamps:
            self.stamps.add_none()
        if self.with_headers:
            self.headers.append(None)

    def _record(self, data: bytes, at: i64) -> i64:
        """Append the record whose four parts begin at `at`; return the position after them."""
        key_at: i64 = at
        value_at: i64 = key_at + 1 if data[key_at] == 0 else skip_kid(data, key_at)
        stamp_at: i64 = _skip_value(data, value_at)
        # The time is read in place: it decides whether the entry is a record at all.
        length: i64 = data[stamp_at] - 0x10  # tag 10 + n: an Integer of n bytes, n up to 8
        # A timestamp is an Integer; an entry with anything else there is not a record.
        if length < 0 or length > 8:
            self._none()
            return skip_kid(data, skip_kid(data, stamp_at))
        headers_at: i64 = stamp_at + 1 + length
        if self.key_mode != SKIP:
            self._part(self.keys, data, key_at, value_at, self.key_mode)
        if self.value_mode != SKIP:
            self._part(self.values, data, value_at, stamp_at, self.value_mode)
        if self.with_stamps:
            self._time(data, stamp_at + 1, headers_at)
        # Nil headers, the usual case, take one byte.
        if data[headers_at] == 0:
            if self.with_headers:
                self.headers.append(None)
            return headers_at + 1
        end: i64 = skip_kid(data, headers_at)
        if self.with_headers:
            # Headers are rare, so they become Python objects like any value.
            kid = self.cells.branch(data, headers_at) if data[headers_at] == TAG_REF else b""
            self.headers.append(_headers(self.cells.value(kid or data[headers_at:end])))
        return end

    def _time(self, data: bytes, at: i64, end: i64) -> None:
        """Append the time whose milliseconds are at `at` .. `end`, or nil if it is out of range."""
        stamp: i64 = 0
        # Of six bytes are the times from 2004 to 6429; the two bytes before are the record's, too.
        if end - at == 6:
            stamp = read_i64_be(data, end - 8) & 0xFFFF_FFFF_FFFF
            if stamp >= 0x8000_0000_0000:
                stamp -= 0x1_0000_0000_0000
        elif at < end:
            stamp = data[at]
            if stamp >= 0x80:
                stamp -= 0x100
            for position in range(at + 1, end):
                stamp = stamp * 0x100 + data[position]
        # "A time outside of TIMESTAMP's range is NULL".
        if -_STAMP_MAX <= stamp <= _STAMP_MAX:
            self.stamps.add(stamp * _MICROS)
        else:
            self.stamps.add_none()

    def _part(self, spans: Spans, data: bytes, at: i64, end: i64, mode: i64) -> None:
        """Append the key or value at `at` .. `end`."""
        if data[at] == 0:
            spans.add_none()
            return
        if data[at] == TAG_REF:
            data = self.cells.branch(data, at)
            at, end = 0, len(data)
        tag: i64 = data[at]
        # "The encoding with all branches" (docs/spark.md, Values as columns).
        if mode == CELL_LEAF:
            if has_no_branch(data, at, end):
                self.sheet.add_range(spans, data, at, end)
            else:
                self.sheet.add(spans, self.cells.message(data[at:end], TEXT_BYTES_MAX))
        elif tag & _BLOB_MASK == TAG_TEXT and (
            mode == BYTES_LEAF or (mode == STRING_LEAF and tag == TAG_TEXT)
        ):
            length: i64 = data[at + 1]
            start: i64 = at + 2
            if length >= 0x80:
                length, start = read_vlq(data, at + 1, end)
            if length <= CHUNK_BYTES:
                self.sheet.add_range(spans, data, start, start + length)
            else:
                self.sheet.check_room(length)  # a few cells may claim to hold 2**62 bytes
                self.sheet.add(spans, self.cells.content(data, at, end))
        elif mode == BYTES_LEAF:
            # "Others are refused" (docs/spark.md, Values as columns).
            raise Unfit(self.first + self.count, spans is self.values)
        else:
            text = self.cells.json(data, at, end)
            # "Strings as they are, everything else as JSON": texts of Chars and Keywords unquoted.
            if mode == STRING_LEAF and text[0] == '"':
                text = json.loads(text)
            self.sheet.add(spans, text.encode())


def gathered(
    runs: Iterator[ElementRun], first: int, begin: Callable[[int], Columns], record_max: int
) -> Iterator[Columns]:
    """Yield the records of runs as columns; the first record has the offset `first`.

    `begin` makes the columns for an offset. They are yielded after the leaf that reaches
    `record_max` records, or the record that reaches their `byte_max`.
    Raises: as `Columns.take`.
    """
    columns = begin(first)
    for run in runs:
        while run.count > 0:
            columns.take(run)
            # Records are counted after a leaf, so a batch may have up to 15 more.
            if columns.count >= record_max or columns.byte_count >= columns.byte_max:
                yield columns
                columns = begin(columns.first + columns.count)
    if columns.count > 0:
        yield columns


class Unfit(Exception):
    """A key or value is not of the type that its format takes."""

    def __init__(self, offset: int, is_value: bool) -> None:
        super().__init__(offset, is_value)
        self.offset = offset
        self.is_value = is_value


def _skip_value(data: bytes, at: i64) -> i64:
    """Return the position after a kid, fast for flat Blobs and Strings, the most common values."""
    tag: i64 = data[at]
    if tag & _BLOB_MASK == TAG_TEXT:
        length: i64 = data[at + 1]
        if length < 0x80:
            return at + 2 + length
    return skip_kid(data, at)


def _headers(headers: Value) -> dict[str, str | None] | None:
    """Return headers as texts; None if they are not a Map."""
    if not isinstance(headers, Map):
        return None
    # The key of a MAP cannot be NULL: a nil key becomes the text `nil`.
    texts = ((_text(key), _text(value)) for key, value in headers.entries())
    return {"nil" if key is None else key: value for key, value in texts}


def _text(value: Value) -> str | None:
    """Return a header's key or value as text: strings as they are, others as JSON."""
    if value is None:
        return None
    if isinstance(value, (str, Text)):
        return utf8_text(str(value))
    text = json_in_utf8(value)
    unquoted: str = json.loads(text) if text[0] == '"' else text
    return unquoted
