"""JSON trees: values from JSON text in memory, by the standard decoder.

The decoder calls back at the end of each object, which becomes a Map at once. Arrays stay lists
until their parent ends.

Source: CAD044; docs/cells.md "JSON mapping"; docs/json.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Final

from datalattice.cells.cell import Value
from datalattice.cells.jsonmarks import is_mark, key_of_member, marked_value
from datalattice.cells.maps import Map, map_of_names
from datalattice.cells.text import parse_integer, refuse_json, whole_json
from datalattice.cells.vectors import Vector
from datalattice.errors import BadFormat, TypeMismatch
from datalattice.limits import TEXT_DEPTH_MAX

STACK_MAX: Final = 10_000
"""Greatest recursion limit under which the decoder still raises before the C stack is full."""

_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKETS: Final = re.compile(r"[\[\]{}]")


class Trees:
    """Makes values from many JSON texts; member names that they share are hashed once.

    parse_key: reads the marked JSON text of a key; with None, names that start with `$` are plain.
    """

    def __init__(self, parse_key: Callable[[str], Value] | None) -> None:
        self._parse_key = parse_key
        self._names: dict[str, bytes] = {}
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=parse_integer,
            parse_constant=refuse_json,
        )

    def value(self, text: str) -> Value:
        """Return the value of a complete text.

        Raises: ValueError: not JSON. RecursionError: nested too deeply for the stack.
        """
        return self._made(self._decoder.decode(text))

    def value_at(self, text: str, at: int, depth_max: int) -> tuple[Value, int]:
        """Return the value that begins at `at`, and the position after it.

        Raises: ValueError: not JSON, a bad mark, or deeper than `depth_max`. RecursionError:
                nested too deeply for the stack.
        """
        # The decoder recurses in C: under a larger limit deep nesting could end the process.
        if sys.getrecursionlimit() > STACK_MAX:
            raise ValueError(f"the recursion limit is above {STACK_MAX}")
        tree, end = self._decoder.raw_decode(text, at)
        if is_deeper(depth_max, text, at, end):
            raise ValueError("nested too deeply")
        return self._made(tree), end

    def _made(self, item: object) -> Value:
        """Return the decoder's result as a value, converting lists."""
        if type(item) is list:
            return self._array(item)
        if type(item) is str:
            return whole_json(item)
        return item

    def _array(self, items: list[object]) -> Vector:
        for at, item in enumerate(items):
            if type(item) is list:
                items[at] = self._array(item)
            elif type(item) is str and not item.isascii():
                whole_json(item)
        return Vector.of(items)

    def _object(self, pairs: list[tuple[str, object]]) -> Value:
        entries: list[tuple[str, Value]] = []
        marks = False
        for name, item in pairs:
            if not name.isascii():
                whole_json(name)
            if name.startswith("$"):
                marks = True
            entries.append((name, self._made(item)))
        if marks and self._parse_key is not None:
            return self._marked(entries, self._parse_key)
        return map_of_names(entries, self._names)

    def _marked(self, entries: list[tuple[str, Value]], parse_key: Callable[[str], Value]) -> Value:
        # A mark is "an object with one member whose name begins with `$`" (docs/json.md "Marks").
        if len(entries) == 1 and is_mark(entries[0][0]):
            return marked_value(*entries[0])
        keyed: list[tuple[Value, Value]] = []
        for name, item in entries:
            if is_mark(name):
                raise BadFormat(f"the mark {name} stands alone in its object")
            keyed.append((key_of_member(name, parse_key) if name.startswith("$") else name, item))
        return Map.of(keyed)


def is_deeper(depth_max: int, text: str, start: int, stop: int) -> bool:
    """Return whether arrays and objects in a part of a text are nested deeper than allowed."""
    # Fewer brackets than levels, strings included: the usual case, decided by two fast counts.
    if text.count("[", start, stop) + text.count("{", start, stop) <= depth_max:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text[start:stop])):
        if bracket in "]}":
            depth -= 1
        else:
            depth += 1
            if depth > depth_max:
                return True
    return False


def from_json(text: str | bytes) -> Value:
    """Return the value of a JSON text.

    Objects become Maps (the last of equal keys wins), arrays Vectors, numbers Integers or Doubles.
    Raises: BadFormat: not JSON by RFC 8259, a lone surrogate escape, or nested more than 500
            levels.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadFormat(f"JSON text is UTF-8: {error}") from error
    elif not isinstance(text, str):
        raise TypeMismatch(f"JSON text is a str or bytes, got {type(text).__name__}")
    # Before decoding: the decoder would use one stack frame for each level.
    if is_deeper(TEXT_DEPTH_MAX, text, 0, len(text)):
        raise BadFormat(f"JSON is read down to {TEXT_DEPTH_MAX} levels")
    try:
        return Trees(None).value(text)
    except BadFormat:
        raise
    except ValueError as error:
        raise BadFormat(f"not JSON: {error}") from error
    except RecursionError as error:  # the caller's own stack was nearly full
        raise BadFormat("JSON is nested too deeply for the stack at this place") from error
