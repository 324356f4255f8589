"""Read a range of a log into columns, straight from the encodings of its cells.

No record becomes a Python object. `runs` finds the leaves of the log's vector; a leaf is one
encoding with up to 16 records, and this module notes the byte ranges of each record's parts. Values
are turned into text here as well, because that takes most of the time. Cells were validated on
their way into the store; this module checks what concerns several cells, such as a tree node of the
wrong type. Pure and compiled: no Spark, no Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring
from typing import Final

from mypy_extensions import i64

from datalattice.cells import (
    Map,
    Text,
    Value,
    branch_hashes,
    decode_message,
    read_vlq,
    skip_kid,
    to_json,
    to_text,
)
from datalattice.errors import BadFormat, LimitExceeded
from datalattice.limits import (
    CHUNK_BYTES,
    COUNT_MAX,
    EMBEDDED_BYTES_MAX,
    FAN_OUT,
    HASH_BYTES,
    MAP_LEAF_MAX,
    TEXT_MAX,
)
from datalattice.pipeline.queue.runs import REF_BYTES, ElementRun, runs, vector_count
from datalattice.pipeline.queue.spans import TEXT_BYTES_MAX, Longs, Sheet, Spans
from datalattice.pipeline.read_targets import Fetch
from datalattice.pipeline.values import whole_json

SKIP: Final = 0
CELL: Final = 1
BYTES: Final = 2
STRING: Final = 3
JSON: Final = 4

_BLOB_MASK: Final = 0xFE  # 30 is a String, 31 a Blob
_JSON_DEPTH_MAX: Final = 64  # deeper values go to `to_json`, which checks the depth limit
_ELEMENT_CHARS_MIN: Final = 2  # a digit and the comma
_MEMBER_CHARS_MIN: Final = 5
_MICROS: Final = 1_000
_STAMP_MAX: Final = (2**63 - 1) // _MICROS


class Columns:
    """Records taken from runs, column by column; a column of mode SKIP stays empty.

    `keys` and `values` are ranges of `sheet`, as bytes or UTF-8 by mode; `stamps` are Unix
    microseconds; `headers` are dicts of texts. None stands for nil, and for every part of an entry
    that is not a record. `first` is the offset of the first record. String contents are copied
    unchanged, also if they are not UTF-8.
    """

    def __init__(
        self,
        fetch: Fetch,
        first: int,
        key_mode: int,
        value_mode: int,
        *,
        stamps: bool,
        headers: bool,
        byte_max: int = COUNT_MAX,
    ) -> None:
        self.fetch = fetch
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
        self.byte_count: i64 = 0
        self._room: i64 = 0  # characters left for the text of the present value

    def take(self, run: ElementRun) -> None:
        """Move records from a run to the columns until `byte_max` bytes are taken.

        Raises: Unfit: a key or value is not of the type that its mode takes. MissingData.
        """
        data = run.data
        at: i64 = run.at
        left: i64 = run.count
        self.sheet.turn_to(data)
        while left > 0 and self.byte_count < self.byte_max:
            tag: i64 = data[at]
            # 80 04: a Vector of four, the usual record. 20: a reference. `_entry` takes the rest.
            if tag == 0x80 and data[at + 1] == 4:
                at = self._record(data, at + 2)
            elif tag == 0x20:
                self._entry(self.fetch(data[at + 1 : at + REF_BYTES]), 0)
                at += REF_BYTES
            else:
                self._entry(data, at)
                at = skip_kid(data, at)
            self.count += 1
            left -= 1
        self.byte_count += at - run.at
        run.at = at
        run.count = left

    def _entry(self, data: bytes, at: int) -> None:
        """Append an entry that is a reference, or does not have exactly four elements."""
        if data[at] != 0x80 or vector_count(data, at) < 4:
            self._none()
            return
        self.byte_count += len(data)
        for run in runs(data[at:], 0, 4, self.fetch):
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
        length: i64 = data[stamp_at] - 0x10  # tag 10 + n: an Integer of n bytes, n up to 8
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
        if data[headers_at] == 0:
            if self.with_headers:
                self.headers.append(None)
            return headers_at + 1
        end: i64 = skip_kid(data, headers_at)
        if self.with_headers:
            self.headers.append(self._headers(data[headers_at:end]))
        return end

    def _time(self, data: bytes, at: i64, end: i64) -> None:
        """Append the time whose milliseconds stand at `at` .. `end`; none if out of range."""
        stamp: i64 = 0
        if at < end:
            stamp = data[at]
            if stamp >= 0x80:
                stamp -= 0x100
            for position in range(at + 1, end):
                stamp = stamp * 0x100 + data[position]
        if -_STAMP_MAX <= stamp <= _STAMP_MAX:
            self.stamps.add(stamp * _MICROS)
        else:
            self.stamps.add_none()

    def _part(self, spans: Spans, data: bytes, at: i64, end: i64, mode: i64) -> None:
        """Append the key or value at `at` .. `end`."""
        tag: i64 = data[at]
        if tag == 0:
            spans.add_none()
            return
        if tag == 0x20:
            data = self.fetch(data[at + 1 : end])
            at, end = 0, len(data)
            tag = data[0]
            self.byte_count += end
        if mode == CELL:
            if _has_no_branch(data, at, end, tag):
                self.sheet.add_range(spans, data, at, end)
            else:
                self.sheet.add(spans, self._complete(data[at:end]))
        elif tag & _BLOB_MASK == 0x30 and (mode == BYTES or (mode == STRING and tag == 0x30)):
            length: i64 = data[at + 1]
            start: i64 = at + 2
            if length >= 0x80:
                length, start = read_vlq(data, at + 1, end)
            if length <= CHUNK_BYTES:
                self.sheet.add_range(spans, data, start, start + length)
            else:
                self.sheet.check_room(length)  # a few cells may claim to hold 2**62 bytes
                self.sheet.add(spans, self._content(data, at, end))
        elif mode == BYTES:
            raise Unfit(self.first + self.count, spans is self.values)
        else:
            self._room = TEXT_MAX
            text = self._json(data, at, end, 0)
            if mode == STRING and text[0] == '"':
                text = json.loads(text)
            self.sheet.add(spans, text.encode())

    def _content(self, data: bytes, at: i64, end: i64) -> bytes:
        """Return the bytes of the Blob or String at `at`."""
        length, start = read_vlq(data, at + 1, end)
        if length <= CHUNK_BYTES:
            return data[start : start + length]
        span: i64 = CHUNK_BYTES
        while span * FAN_OUT < length:
            span *= FAN_OUT
        parts: list[bytes] = []
        left: i64 = length
        while left > 0:
            after: i64 = skip_kid(data, start)
            if data[start] == 0x20:
                chunk = self.fetch(data[start + 1 : after])
                self.byte_count += len(chunk)
            else:
                chunk = data[start:after]
            size: i64 = min(span, left)
            if chunk[0] != 0x31 or read_vlq(chunk, 1, len(chunk))[0] != size:
                raise BadFormat(f"a chunk of a blob is not a blob of {size} bytes")
            parts.append(self._content(chunk, 0, len(chunk)))
            left -= size
            start = after
        return b"".join(parts)

    def _complete(self, encoding: bytes) -> bytes:
        """Return the message of a cell: its encoding, then each branch below it once."""
        if encoding.find(b" ") < 0:  # no byte 0x20, the tag of a reference
            return encoding
        todo = branch_hashes(encoding)[::-1]
        if not todo:
            return encoding
        message: list[bytes] = [encoding]
        size: i64 = len(encoding)
        seen: set[bytes] = set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            branch = self.fetch(name)
            self.byte_count += len(branch)
            message += (vlq(len(branch)), branch)
            size += len(branch)
            if size > TEXT_BYTES_MAX:
                raise LimitExceeded(f"a value has more than the {TEXT_BYTES_MAX} bytes of a column")
            todo += branch_hashes(branch)[::-1]
        return b"".join(message)

    def _headers(self, kid: bytes) -> dict[str, str | None] | None:
        headers = decode_message(self._complete(self.fetch(kid[1:]) if kid[0] == 0x20 else kid))
        if not isinstance(headers, Map):
            return None
        texts = ((_text(key), _text(value)) for key, value in headers.entries())
        return {"nil" if key is None else key: value for key, value in texts}

    def _json(self, data: bytes, at: i64, end: i64, depth: i64) -> str:
        """Return the JSON of the value at `at` .. `end`, as `to_json` writes it.

        Maps and vectors are written without building them; other containers are rare. A few cells
        that are referenced many times can expand to an endless text; `_room` bounds it.
        """
        tag: i64 = data[at]
        if tag == 0x20:
            branch = self._branch(data[at + 1 : end])
            return self._json(branch, 0, len(branch), depth)
        if tag == 0x30:
            return self._written(self._string(data, at, end))
        if 0x10 <= tag <= 0x18:
            return self._written(str(int.from_bytes(data[at + 1 : end], "big", signed=True)))
        if tag == 0x00:
            return self._written("null")
        if depth < _JSON_DEPTH_MAX:
            if tag == 0x82:
                members: list[str] = []
                self._members(data, at, depth + 1, members)
                return "{" + ",".join(members) + "}"
            if tag == 0x80:
                return "[" + ",".join(self._elements(data[at:end], depth + 1)) + "]"
        return self._written(whole_json(decode_message(self._complete(data[at:end]))))

    def _branch(self, hash: bytes) -> bytes:
        branch = self.fetch(hash)
        self.byte_count += len(branch)
        if len(branch) <= EMBEDDED_BYTES_MAX:
            raise BadFormat(f"a cell of {len(branch)} bytes belongs inside its parent")
        return branch

    def _written(self, text: str) -> str:
        """Return a piece of text after counting it and its separator.

        Raises: LimitExceeded: the text is too long.
        """
        self._room -= len(text) + 1
        if self._room < 0:
            raise _too_long()
        return text

    def _string(self, data: bytes, at: i64, end: i64) -> str:
        if read_vlq(data, at + 1, end)[0] > self._room:
            raise _too_long()
        return quoted(self._content(data, at, end).decode("utf-8", "replace"))

    def _elements(self, vector: bytes, depth: i64) -> list[str]:
        if vector_count(vector, 0) > self._room // _ELEMENT_CHARS_MIN:
            raise _too_long()  # before expanding a few cells that claim to hold many elements
        elements: list[str] = []
        for run in runs(vector, 0, COUNT_MAX, self.fetch):
            at: i64 = run.at
            texts: list[str] = []
            for _ in range(run.count):
                after: i64 = skip_kid(run.data, at)
                texts.append(self._json(run.data, at, after, depth))
                at = after
            elements.append(",".join(texts))  # one joined text takes far less memory
        return elements

    def _members(self, data: bytes, at: i64, depth: i64, members: list[str]) -> None:
        """Append the members of the map at `at`, in its order, as `"name":value`, by leaves."""
        if data[at] != 0x82:
            raise BadFormat(f"a map must stand where a cell with tag {data[at]:#04x} stands")
        if depth > _JSON_DEPTH_MAX + 2 * HASH_BYTES:
            raise BadFormat("a map has more levels than a hash has digits")
        count, at = read_vlq(data, at + 1, len(data))
        if count > self._room // _MEMBER_CHARS_MIN:
            raise _too_long()
        if count > MAP_LEAF_MAX:
            mask: i64 = (data[at + 1] << 8) | data[at + 2]
            at += 3
            while mask:
                mask &= mask - 1
                after: i64 = skip_kid(data, at)
                if data[at] == 0x82 and data[at + 1] == 0:  # would add no text, so no limit ends it
                    raise BadFormat("a node of a map has no entries")
                if data[at] == 0x20:
                    self._members(self._branch(data[at + 1 : after]), 0, depth + 1, members)
                else:
                    self._members(data, at, depth + 1, members)
                at = after
            return
        texts: list[str] = []
        for _ in range(count):
            key_end: i64 = skip_kid(data, at)
            end: i64 = skip_kid(data, key_end)
            key = self._written(self._key(data, at, key_end))
            texts.append(key + ":" + self._json(data, key_end, end, depth))
            at = end
        if texts:
            members.append(",".join(texts))

    def _key(self, data: bytes, at: i64, end: i64) -> str:
        if data[at] == 0x20:
            data = self._branch(data[at + 1 : end])
            at, end = 0, len(data)
        if data[at] == 0x30:
            return self._string(data, at, end)
        if data[at] == 0x33 or data[at] == 0x32:
            return quoted(data[at + 2 : end].decode("utf-8", "replace"))
        return quoted(clean(to_text(decode_message(self._complete(data[at:end])))))


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


def _too_long() -> LimitExceeded:
    return LimitExceeded(f"a value is written as text of at most {TEXT_MAX} characters")


def _has_no_branch(data: bytes, at: i64, end: i64, tag: i64) -> bool:
    """Return whether the value at `at` .. `end` certainly contains no reference."""
    if tag & _BLOB_MASK == 0x30:
        return data[at + 1] < 0x80 or read_vlq(data, at + 1, end)[0] <= CHUNK_BYTES
    return data.find(b" ", at, end) < 0  # no byte 0x20, the tag of a reference


def _skip_value(data: bytes, at: i64) -> i64:
    """Return the position after a kid, fast for flat Blobs and Strings, the most common values."""
    tag: i64 = data[at]
    if tag & _BLOB_MASK == 0x30:
        length: i64 = data[at + 1]
        if length < 0x80:
            return at + 2 + length
    return skip_kid(data, at)


def vlq(count: int) -> bytes:
    """Return a count in the format's variable length: seven bits a byte, high bits first."""
    parts = [count & 0x7F]
    while count := count >> 7:
        parts.append(0x80 | count & 0x7F)
    return bytes(parts[::-1])


def quoted(text: str) -> str:
    """Return a text as a JSON string, escaped as `to_json` does."""
    if "\b" in text or "\f" in text:  # encode_basestring escapes these two differently
        return to_json(text)
    return encode_basestring(text)


def clean(text: str) -> str:
    """Return `text` with surrogates replaced, since UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _text(value: Value) -> str | None:
    """Return a header's key or value as text: strings as they are, others as JSON."""
    if value is None:
        return None
    if isinstance(value, (str, Text)):
        return clean(str(value))
    text = whole_json(value)
    unquoted: str = json.loads(text) if text[0] == '"' else text
    return unquoted
