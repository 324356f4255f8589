"""Paths: parses the keys of a path through a value, and follows them.

A key is written as it prints: `flights` (a string), `3` (an integer), `:value` (a keyword),
`0x00ff` (bytes), `"3"` (a string that would otherwise read as another kind of key).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from datalattice.cells import (
    Index,
    Keyword,
    List,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    to_text,
)
from datalattice.errors import NoSuchPath, UsageError
from datalattice.lattice import root_lattice

KEYS_SHOWN: Final = 20
"""Most keys that the error about a missing key lists."""

# Up to 19 digits, as a 64-bit integer; longer numbers are strings.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_HEX: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})*")  # pairs of digits: bytes


def _bytes_of(text: str, what: str) -> bytes:
    """Return the bytes that `0x` and hex digits stand for. Raises: UsageError."""
    if not _HEX.fullmatch(text):
        raise UsageError(f"{what} is 0x and an even number of hex digits, got {text}")
    return bytes.fromhex(text[2:])


def parse_path_key(text: str) -> Value:
    """Return the cell that a written key stands for.

    Raises: UsageError: it is empty, or begins like bytes or a quoted string and is malformed.
    """
    if text == "":  # mostly a shell variable that was not set
        raise UsageError("a key is empty; for the empty string write '\"\"'")
    if _INTEGER.fullmatch(text):
        return int(text)
    if text.startswith(":") and len(text) > 1:
        return Keyword(text[1:])
    if text.startswith("0x"):
        return _bytes_of(text, "a key that begins with 0x")
    if text.startswith('"'):
        return _quoted(text)
    return text


def _quoted(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"a key in quotes is a JSON string, got {text}") from error
    assert isinstance(value, str), "JSON that begins with a quote is a string"
    return value


def canonical_path(keys: Sequence[Value]) -> list[Value]:
    """Return the path with canonical keys as far as the lattice defines them.

    In that part `queue` stands for `:queue`, and hex for an owner. Keys below are unchanged.
    """
    lattice = root_lattice()
    # The longest part that the lattice knows; values below it have their own kinds of keys.
    for count in range(len(keys), 0, -1):  # from the whole path to its first key
        resolved = lattice.resolve_path(keys[:count])
        if resolved is not None:
            return [*resolved, *keys[count:]]
    return list(keys)


def value_at(value: Value, keys: Sequence[Value]) -> Value:
    """Return the value at the end of a canonical path.

    Raises: NoSuchPath: a key is missing; the text lists the keys beside it.
    """
    for depth, key in enumerate(keys):
        found = _step(value, key)
        if found is None:
            # Up to the missing key.
            at = "/".join(to_text(one) for one in keys[: depth + 1])
            raise NoSuchPath(f"there is nothing at {at}; {_hint(value)}")
        value = found
    return value


def _step(value: Value, key: Value) -> Value:
    if isinstance(value, Signed):
        name = key.name if isinstance(key, Keyword) else key
        fields: dict[object, Value] = {
            "value": value.value,
            "public-key": value.public_key,
            "signature": value.signature,
        }
        return fields.get(name) if isinstance(name, str) else None
    if isinstance(value, (Map, Index)):
        return value.get(key)
    if isinstance(value, (Vector, List)):
        # Positions are integers; a text key has no entry here.
        return value.get(key) if type(key) is int else None
    return None


def _hint(value: Value) -> str:
    if isinstance(value, Signed):
        return "a signed value has the keys value, public-key and signature"
    if isinstance(value, (Vector, List)):
        return f"the {kind_of(value)} there has positions 0 to {len(value) - 1}"
    if isinstance(value, (Map, Index)):
        keys = [to_text(key) for key, _ in islice(value.entries(), KEYS_SHOWN)]
        return f"the {kind_of(value)} there has: {', '.join(keys) or 'nothing'}"
    return f"a {kind_of(value)} has no keys"


def kind_of(value: Value) -> str:
    """Return the name of a value's kind in lower case."""
    if value is None:
        return "nil"
    names = {bool: "boolean", int: "integer", float: "double", str: "string", bytes: "blob"}
    return names.get(type(value), type(value).__name__.lower())


def count_of(value: Value) -> int | None:
    """Return how many entries of a value can be listed; None: it is printed as a whole."""
    if isinstance(value, Signed):
        return 3  # value, public key, signature
    return len(value) if isinstance(value, (Map, Index, Vector, List, Set)) else None
