"""Typed descriptions: the JSON form in which value vectors say what to build.

`null`, `true` and `false` stand for themselves; any other value is an object with one member that
names the type. Containers are built in bulk and by single updates, and both must agree.

Source: docs/conformance.md "Kinds of vectors".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    EMPTY_SET,
    EMPTY_VECTOR,
    Address,
    Char,
    Coded,
    Extension,
    Flag,
    Index,
    Keyword,
    List,
    Map,
    Record,
    Set,
    Signed,
    Symbol,
    Syntax,
    Value,
    Vector,
    decode,
    encode,
)
from datalattice.conformance.checks import (
    Mismatch,
    as_decimal,
    as_fields,
    as_hex,
    as_int,
    as_list,
    as_text,
    shown,
)

GENERATED_MAX: Final = 4_000_000
"""Most elements or bytes of a generator."""

SINGLE_UPDATES_MAX: Final = 5_000
"""Containers up to this size are also built by single updates and compared."""


def build(node: Any) -> Value:
    """Return the value a typed description stands for.

    Raises: Mismatch: the description is malformed, or two ways of building disagree.
    """
    if node is None or isinstance(node, bool):
        return node
    name, body = _member(node, "typed value")
    builder = _BUILDERS.get(name)
    if builder is None:
        raise Mismatch(f"unknown type {name!r} of a value; known: {', '.join(sorted(_BUILDERS))}")
    return builder(body)


def _member(node: Any, what: str) -> tuple[str, Any]:
    """Return the name and body of an object with one member."""
    fields = as_fields(node, what)
    # One member: two types for one value would be ambiguous.
    if len(fields) != 1:
        raise Mismatch(f"{what}: one member is needed, got {shown(dict(fields))}")
    ((name, body),) = fields.items()
    return name, body


# --- scalars ----------------------------------------------------------------------------------


def _double(body: Any) -> Value:
    bits = as_hex(body, "double")
    # IEEE 754 double precision.
    if len(bits) != 8:
        raise Mismatch(f"double: 8 bytes are needed, got {len(bits)}")
    return decode(b"\x1d" + bits)  # the tag of a double; Python may change the bits of a NaN


def _string_of_bytes(body: Any) -> Value:
    # A string may hold bytes that are not UTF-8.
    return as_hex(body, "strhex").decode("utf-8", "surrogateescape")


def _extension(body: Any) -> Value:
    digit, number = as_list(body, "ext", 2)
    return Extension(as_int(digit, "ext digit"), as_decimal(number, "ext number"))


def _generated_bytes(body: Any, modulus: int, base: int) -> bytes:
    fields = as_fields(body, "generator")
    fields.only("n", "a", "b", "c")
    size = _generated_count(fields.need("n"))
    a, b, c = (fields.integer(name) for name in ("a", "b", "c"))
    # A byte for each position, from three numbers, so that a file need not hold megabytes.
    return bytes(base + (a * i + b * (i >> 8) + c) % modulus for i in range(size))


def _generated_count(node: Any) -> int:
    count = as_int(node, "generator count")
    # A changed vector must not fill the memory.
    if not 0 <= count <= GENERATED_MAX:
        raise Mismatch(f"a generator makes 0 to {GENERATED_MAX} items, asked for {count}")
    return count


# --- containers -------------------------------------------------------------------------------


def _container(
    kind: Any, empty: Any, add: Callable[[Any, Any], Any]
) -> Callable[[list[Any]], Value]:
    """Return the builder of a container: in bulk, and by single updates, which must agree."""

    def built(items: list[Any]) -> Value:
        bulk: Value = kind.of(items)
        # "Containers are built in bulk and by single updates, and both must agree."
        # (docs/conformance.md "Typed descriptions"): each way has code of its own.
        if len(items) <= SINGLE_UPDATES_MAX:
            single = empty
            for item in items:
                single = add(single, item)
            if encode(bulk) != encode(single):
                raise Mismatch("the bulk builder and single updates give different values")
        return bulk

    return built


_vector_of: Final = _container(Vector, EMPTY_VECTOR, Vector.append)
_set_of: Final = _container(Set, EMPTY_SET, Set.add)
_map_of: Final = _container(Map, EMPTY_MAP, lambda made, entry: made.put(*entry))
_index_of: Final = _container(Index, EMPTY_INDEX, lambda made, entry: made.put(*entry))


def _items(body: Any) -> list[Value]:
    return [build(item) for item in as_list(body, "elements")]


def _entries(body: Any) -> list[tuple[Value, Value]]:
    found = []
    for entry in as_list(body, "entries"):
        key, value = as_list(entry, "entry", 2)
        found.append((build(key), build(value)))
    return found


def _syntax(body: Any) -> Value:
    value, meta = as_list(body, "syntax", 2)
    built = build(meta)
    if built is not None and not isinstance(built, Map):
        raise Mismatch("the metadata of a syntax value is a map or null")
    return Syntax(build(value), built)


def _coded(body: Any) -> Value:
    digit, code, value = as_list(body, "coded", 3)
    return Coded(as_int(digit, "coded digit"), build(code), build(value))


def _record(body: Any) -> Value:
    digit, fields = as_list(body, "record", 2)
    return Record(as_int(digit, "record digit"), _items(fields))


def _signed(body: Any) -> Value:
    fields = as_fields(body, "signed")
    fields.only("key", "sig", "value")
    # Not verified: vectors have wrong signatures, too.
    return Signed(fields.hex("key"), fields.hex("sig"), build(fields.need("value")))


# --- generators -------------------------------------------------------------------------------


def _generator(node: Any) -> Callable[[int], Value]:
    """Return what a description of a generator stands for: item number to item."""
    name, body = _member(node, "item generator")
    maker = _GENERATORS.get(name)
    if maker is None:
        raise Mismatch(f"unknown item generator {name!r}; known: {', '.join(sorted(_GENERATORS))}")
    return maker(body)


def _linear(body: Any) -> Callable[[int], Value]:
    a, b = (as_int(part, "int generator") for part in as_list(body, "int generator", 2))
    return lambda i: a * i + b


def _filled_blob(body: Any) -> Callable[[int], Value]:
    size, fill = (as_int(part, "blob generator") for part in as_list(body, "blob generator", 2))
    tail = min(4, _generated_count(size))  # bounded as a count: a file could ask for any length
    if not 0 <= fill <= 255:
        raise Mismatch(f"a blob generator fills with a byte, got {fill}")
    head = bytes([fill]) * (size - tail)
    # The number of the item ends the blob, so that all differ.
    return lambda i: head + (i & 0xFFFFFFFF).to_bytes(4, "big")[4 - tail :]


def _digest(prefix: str) -> Callable[[int], Value]:
    # Of the text of the number: hashes spread over all branches of a set or map.
    return lambda i: hashlib.sha3_256(f"{prefix}{i}".encode()).digest()


def _constant(body: Any) -> Callable[[int], Value]:
    value = build(body)
    return lambda _: value


def _pair(body: Any) -> Callable[[int], Value]:
    first, second = (_generator(part) for part in as_list(body, "pair generator", 2))
    return lambda i: Vector.of([first(i), second(i)])


def _numbered(wrap: Callable[[str], Value]) -> Callable[[Any], Callable[[int], Value]]:
    def maker(body: Any) -> Callable[[int], Value]:
        prefix = as_text(body, "generator prefix")
        return lambda i: wrap(f"{prefix}{i}")

    return maker


def _generated(body: Any) -> list[Value]:
    count, generator = as_list(body, "generator", 2)
    item = _generator(generator)
    return [item(i) for i in range(_generated_count(count))]


def _generated_entries(body: Any) -> list[tuple[Value, Value]]:
    count, keys, values = as_list(body, "generator", 3)
    key, value = _generator(keys), _generator(values)
    return [(key(i), value(i)) for i in range(_generated_count(count))]


_GENERATORS: Final[dict[str, Callable[[Any], Callable[[int], Value]]]] = {
    "int": _linear,
    "str": _numbered(str),
    "kw": _numbered(Keyword),
    "blob": _filled_blob,
    "sha": lambda body: _digest(as_text(body, "sha generator")),
    "const": _constant,
    "pair": _pair,
}

_BUILDERS: Final[dict[str, Callable[[Any], Value]]] = {
    "int": lambda body: as_decimal(body, "int"),
    "double": _double,
    "char": lambda body: Char(as_int(body, "char")),
    "str": lambda body: as_text(body, "str"),
    "strhex": _string_of_bytes,
    "blob": lambda body: as_hex(body, "blob"),
    "kw": lambda body: Keyword(as_text(body, "kw")),
    "sym": lambda body: Symbol(as_text(body, "sym")),
    "addr": lambda body: Address(as_decimal(body, "addr")),
    "ext": _extension,
    "flag": lambda body: Flag(as_int(body, "flag")),
    "vec": lambda body: _vector_of(_items(body)),
    "list": lambda body: List.of(_items(body)),
    "set": lambda body: _set_of(_items(body)),
    "map": lambda body: _map_of(_entries(body)),
    "index": lambda body: _index_of(_entries(body)),
    "syntax": _syntax,
    "coded": _coded,
    "record": _record,
    "signed": _signed,
    "genblob": lambda body: _generated_bytes(body, 256, 0),
    "genstr": lambda body: _generated_bytes(body, 26, 97).decode("ascii"),
    "genvec": lambda body: _vector_of(_generated(body)),
    "genlist": lambda body: List.of(_generated(body)),
    "genset": lambda body: _set_of(_generated(body)),
    "genmap": lambda body: _map_of(_generated_entries(body)),
    "genindex": lambda body: _index_of(_generated_entries(body)),
}
