"""Bytes, messages and JSON of values, read from their encodings without building the values.

For readers of millions of small values, such as the records of a queue: building objects would take
most of the time. Each cell was validated alone on its way into the store. This module checks cells
against each other, such as the type and size of a node that its parent requires.

Source: CAD003; docs/cells.md "JSON mapping", "Blob and String", "Map and Set", "Embedding".
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring
from typing import Final

from mypy_extensions import i64

from datalattice.cells.blobs import TAG_BLOB, TAG_TEXT
from datalattice.cells.cell import TAG_REF, Value
from datalattice.cells.message import decode_message
from datalattice.cells.runs import FetchCell, element_runs, vector_count
from datalattice.cells.scalars import TAG_KEYWORD, TAG_SYMBOL, encode_vlq
from datalattice.cells.scan import branch_hashes, chunk_span, read_vlq, skip_kid
from datalattice.cells.text import to_json, to_text
from datalattice.cells.trie import TAG_MAP
from datalattice.cells.vectors import TAG_VECTOR
from datalattice.errors import BadFormat, LimitExceeded
from datalattice.limits import (
    CHUNK_BYTES,
    COUNT_MAX,
    EMBEDDED_BYTES_MAX,
    HASH_BYTES,
    MAP_LEAF_MAX,
    TEXT_MAX,
)

_REF: Final = bytes([TAG_REF])
_JSON_DEPTH_MAX: Final = 64  # deeper values go to `to_json`, which checks the depth limit
_ELEMENT_CHARS_MIN: Final = 2  # a digit and the comma
_MEMBER_CHARS_MIN: Final = 5  # two quotes, the colon, a digit and the comma
# A run of escaped surrogates (group 1), or any other escape, which is kept.
_HALVES: Final = re.compile(r"\\(?:((?:ud[89a-f][0-9a-f]{2}\\)*ud[89a-f][0-9a-f]{2})|.)")


class EncodedReader:
    """Reads values at positions of encodings; `fetch` returns the cells that they refer to.

    All methods raise MissingData, from `fetch`, and BadFormat for a node of the wrong type or size.
    """

    def __init__(self, fetch: FetchCell) -> None:
        self.fetch = fetch
        self.byte_count: i64 = 0
        """Bytes of all cells fetched here."""
        self._room: i64 = 0  # characters that the text being written may still have

    def branch(self, data: bytes, at: i64) -> bytes:
        """Return the cell that the reference at `at` names."""
        cell = self.fetch(data[at + 1 : at + 1 + HASH_BYTES])
        self.byte_count += len(cell)
        return cell

    def content(self, data: bytes, at: i64, end: i64) -> bytes:
        """Return the bytes of the Blob or String at `at` .. `end`."""
        length, start = read_vlq(data, at + 1, end)
        if length <= CHUNK_BYTES:
            return data[start : start + length]
        span: i64 = chunk_span(length)
        parts: list[bytes] = []
        left: i64 = length
        while left > 0:
            after: i64 = skip_kid(data, start)
            chunk = self.branch(data, start) if data[start] == TAG_REF else data[start:after]
            size: i64 = min(span, left)
            # "The children of a String are Blobs as well" (docs/cells.md "Blob and String").
            if chunk[0] != TAG_BLOB or read_vlq(chunk, 1, len(chunk))[0] != size:
                raise BadFormat(f"a chunk of a blob is not a blob of {size} bytes")
            parts.append(self.content(chunk, 0, len(chunk)))
            left -= size
            start = after
        return b"".join(parts)

    def message(self, encoding: bytes, byte_max: i64) -> bytes:
        """Return the message of a cell: its encoding, then each branch below it once.

        Raises: LimitExceeded: it is longer than `byte_max`.
        """
        if encoding.find(_REF) < 0:  # the tag of a reference occurs nowhere
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
            message += (encode_vlq(len(branch)), branch)
            size += len(branch)
            if size > byte_max:
                raise LimitExceeded(f"a value has more than the {int(byte_max)} bytes of a column")
            todo += branch_hashes(branch)[::-1]
        return b"".join(message)

    def value(self, encoding: bytes) -> Value:
        """Return the value of an encoding, complete."""
        return decode_message(self.message(encoding, COUNT_MAX))

    def json(self, data: bytes, at: i64, end: i64) -> str:
        """Return the JSON of the value at `at` .. `end`, as `json_in_utf8` writes it.

        Raises: LimitExceeded: it is longer than `TEXT_MAX` characters.
        """
        # Bounded while it is written: a few cells that are referenced many times can expand to an
        # endless text.
        self._room = TEXT_MAX
        return self._json(data, at, end, 0)

    def _json(self, data: bytes, at: i64, end: i64, depth: i64) -> str:
        tag: i64 = data[at]
        if tag == TAG_REF:
            branch = self._own_cell(data, at)
            return self._json(branch, 0, len(branch), depth)
        if tag == TAG_TEXT:
            return self._written(self._string(data, at, end))
        if 0x10 <= tag <= 0x18:  # an Integer of 0 to 8 bytes; longer ones are rare
            return self._written(str(int.from_bytes(data[at + 1 : end], "big", signed=True)))
        if tag == 0x00:
            return self._written("null")
        # Maps and vectors are written without building them; other containers are rare.
        if depth < _JSON_DEPTH_MAX:
            if tag == TAG_MAP:
                members: list[str] = []
                self._members(data, at, depth + 1, members)
                return "{" + ",".join(members) + "}"
            if tag == TAG_VECTOR:
                return "[" + ",".join(self._elements(data[at:end], depth + 1)) + "]"
        return self._written(json_in_utf8(self.value(data[at:end])))

    def _own_cell(self, data: bytes, at: i64) -> bytes:
        cell = self.branch(data, at)
        # "If the encoding of a child has at most 140 bytes, its parent contains that encoding"
        # (docs/cells.md "Embedding").
        if len(cell) <= EMBEDDED_BYTES_MAX:
            raise BadFormat(f"a cell of {len(cell)} bytes belongs inside its parent")
        return cell

    def _written(self, text: str) -> str:
        """Return a piece of text, and subtract it and its separator from the room.

        Raises: LimitExceeded: the text is too long.
        """
        self._room -= len(text) + 1
        if self._room < 0:
            raise _too_long()
        return text

    def _string(self, data: bytes, at: i64, end: i64) -> str:
        if read_vlq(data, at + 1, end)[0] > self._room:
            raise _too_long()
        return _quoted(self.content(data, at, end).decode("utf-8", "replace"))

    def _elements(self, vector: bytes, depth: i64) -> list[str]:
        if vector_count(vector, 0) > self._room // _ELEMENT_CHARS_MIN:
            raise _too_long()  # before expanding a few cells that claim to hold many elements
        elements: list[str] = []
        for run in element_runs(vector, 0, COUNT_MAX, self.fetch):
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
        if data[at] != TAG_MAP:
            raise BadFormat(f"a node of a map is a map, got a cell with tag {data[at]:#04x}")
        # A level for each hex digit of a key's hash (docs/cells.md "Map and Set").
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
                if data[at] == TAG_MAP and data[at + 1] == 0:
                    # An empty node adds no text, so no limit on text would end a chain of them.
                    raise BadFormat("a node of a map has no entries")
                if data[at] == TAG_REF:
                    self._members(self._own_cell(data, at), 0, depth + 1, members)
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
        if data[at] == TAG_REF:
            data = self._own_cell(data, at)
            at, end = 0, len(data)
        if data[at] == TAG_TEXT:
            return self._string(data, at, end)
        if data[at] == TAG_KEYWORD or data[at] == TAG_SYMBOL:
            return _quoted(data[at + 2 : end].decode("utf-8", "replace"))
        return _quoted(utf8_text(to_text(self.value(data[at:end]))))


def has_no_branch(data: bytes, at: i64, end: i64) -> bool:
    """Return whether the value at `at` .. `end` surely has no reference; False: it may have."""
    tag: i64 = data[at]
    if tag & 0xFE == TAG_TEXT:  # a String or a Blob: the tags differ in the last bit
        return data[at + 1] < 0x80 or read_vlq(data, at + 1, end)[0] <= CHUNK_BYTES
    return data.find(_REF, at, end) < 0


def json_in_utf8(value: Value) -> str:
    """Return a value as JSON that UTF-8 can encode.

    `to_json` writes bytes that are not UTF-8 as escaped lone surrogates. Here they are decoded as
    UTF-8 with replacements, and so is a Char that is a lone surrogate.
    """
    text = to_json(value)
    return _HALVES.sub(_replaced, text) if "\\ud" in text else text


def _replaced(found: re.Match[str]) -> str:
    halves = found[1]
    if halves is None:
        return found[0]
    codes = (int(half[1:], 16) for half in halves.split("\\"))
    return bytes(code & 0xFF if 0xDC80 <= code <= 0xDCFF else 0xFF for code in codes).decode(
        "utf-8", "replace"
    )


def utf8_text(text: str) -> str:
    """Return `text` with surrogates replaced, since UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _quoted(text: str) -> str:
    """Return a text as a JSON string, escaped as `to_json` does."""
    if "\b" in text or "\f" in text:  # encode_basestring escapes these two differently
        return to_json(text)
    return encode_basestring(text)


def _too_long() -> LimitExceeded:
    return LimitExceeded(f"a value is written as text of at most {TEXT_MAX} characters")
