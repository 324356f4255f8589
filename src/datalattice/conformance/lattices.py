"""Lattice vectors: zero values, checks, merges, keys and paths (files with `format` 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, permutations
from typing import Any, Final

from datalattice.cells import Signed, Value, encode, same, value_hash
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    expect,
    shown,
)
from datalattice.conformance.notation import (
    expect_cell,
    hash_or_none,
    lattice_field,
    need_cell,
    need_cells,
    read_cell,
    read_cell_list,
    read_context,
)
from datalattice.conformance.registry import Case, VectorFormat, register_format, register_kind
from datalattice.conformance.runner import listed_vectors
from datalattice.crypto import KeyPair
from datalattice.errors import (
    DataLatticeError,
    NoSigningKey,
    NoSuchPath,
    TypeMismatch,
    UnsupportedOperation,
)
from datalattice.lattice import Lattice, MergeContext, assoc_in, to_json_key

_FORMAT: Final = 1

ORDERS_MAX: Final = 120  # five values have 120 orders
"""Most orders of the values of one vector that are merged."""

COMMON_FIELDS: Final = ("id", "kind", "lattice", "decision")

REFERENCE_NAMES: Final = {"JSONValueLattice": "JSONLattice", "LocalLattice": "OwnerLattice"}
"""Class names of the reference that differ from ours."""

STAND_INS: Final = ("DLFSLattice",)
"""Classes of the reference for which a lattice of ours may stand that knows only their paths."""


def _cases(document: Fields) -> Iterable[Case]:
    document.integer("format")
    # One text of all keys of the file, in which each key of a context is looked up.
    known_keys = "|".join(_encodings(document))

    def case(name: str, fields: Fields) -> Case:
        return Case(name, fields.text("kind"), fields, lambda: _inspect(fields, known_keys))

    return [case(name, fields) for name, fields in listed_vectors(document)]


def _encodings(node: Any) -> Iterator[str]:
    """Yield every string under `enc` or `public_key`, at any depth."""
    for parent in _objects(node):
        for name in ("enc", "public_key"):
            if isinstance(parent.get(name), str):
                yield parent[name]


def _objects(node: Any) -> Iterator[Fields]:
    """Yield every object at or below `node`."""
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Fields):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _inspect(fields: Fields, known_keys: str) -> None:
    """Check what does not depend on the kind: all cells, and the keys of contexts.

    A key must be used elsewhere in the file: a changed seed would otherwise only be another owner.
    """
    for node in _objects(fields):
        # Every cell is read with its hash, also those that the kind of the vector ignores.
        if "enc" in node and "hash" in node:
            read_cell(node, "cell")
        keys = list(node["keys"]) if "owner" in node and isinstance(node.get("keys"), list) else []
        if isinstance(node.get("seed"), str):
            # Derived from the seed: a changed seed gives a key that is used nowhere.
            keys.append(KeyPair(node.hex("seed")).public_key.hex())
        for key in keys:
            if not isinstance(key, str) or not key or key not in known_keys:
                raise Mismatch(f"the public key {shown(key)} is used nowhere in the file")


def _context(fields: Fields) -> MergeContext:
    return read_context(fields.get("context"))


# --- merging ----------------------------------------------------------------------------------


def run_zero(fields: Fields) -> None:
    """Check the zero value of a lattice."""
    fields.only(*COMMON_FIELDS, "zero")
    lattice = lattice_field(fields)
    expect_cell("zero", need_cell(fields, "zero"), lattice.zero())


def run_check(fields: Fields) -> None:
    """Check whether a lattice accepts a foreign value."""
    fields.only(*COMMON_FIELDS, "value", "valid")
    lattice = lattice_field(fields)
    value = need_cell(fields, "value")
    fields.expect("valid", lattice.check_foreign(value))


def run_merge(fields: Fields) -> None:
    """Check a merge: its result, and which of the two objects it must be."""
    fields.only(*COMMON_FIELDS, "context", "own", "other", "merged", "same_as")
    lattice = lattice_field(fields)
    own = need_cell(fields, "own")
    other = need_cell(fields, "other")
    wanted = need_cell(fields, "merged")
    # Values are immutable: a merge that changed one would be seen here.
    before = encode(own), encode(other)
    got = lattice.merge(own, other, _context(fields))
    expect_cell("merged", wanted, got)
    expect("own and other afterwards", before, (encode(own), encode(other)))
    same_as = fields.need("same_as")
    facts = (same(wanted, own), same(wanted, other))
    _check_same_as(same_as, facts)
    # "for a merge also which of the two objects comes back" (docs/conformance.md "Kinds of
    # vectors"): callers test `merged is own` to see that nothing changed.
    if same_as in ("own", "both") and got is not own:
        raise Mismatch("the result must be own itself, and is another object of equal value")
    if same_as == "other" and got is not other:
        raise Mismatch("the result must be other itself, and is another object of equal value")
    if same_as is None and facts[0] and got is not own:
        raise Mismatch("the result equals own, and is another object")


def _check_same_as(same_as: object, facts: tuple[bool, bool]) -> None:
    """Check that what a vector says about identity agrees with its own cells."""
    allowed: dict[object, tuple[tuple[bool, bool], ...]] = {
        "own": ((True, False), (True, True)),
        "other": ((False, True), (True, True)),
        "both": ((True, True),),
        None: ((False, False), (True, False), (False, True), (True, True)),
    }
    if not isinstance(same_as, (str, type(None))) or same_as not in allowed:
        raise Mismatch(f"same_as: expected own, other, both or null, got {shown(same_as)}")
    if facts not in allowed[same_as]:
        raise Mismatch(
            f"same_as is {same_as!r}, but merged equals own: {facts[0]}, other: {facts[1]}"
        )


def run_converge(fields: Fields) -> None:
    """Check that values merged in any order, as either argument, give one result."""
    fields.only(*COMMON_FIELDS, "context", "values", "merged")
    lattice = lattice_field(fields)
    values = need_cells(fields, "values")
    wanted = need_cell(fields, "merged")
    context = _context(fields)
    if not values:
        raise Mismatch("no values to merge")  # else the vector would prove nothing
    # Merges are commutative and associative, so any order gives the same value.
    for order in islice(permutations(range(len(values))), ORDERS_MAX):
        for name, join in _folds(lattice, context):
            result = values[order[0]]
            for position in order[1:]:
                result = join(result, values[position])
            expect_cell(f"merged in order {order}, {name}", wanted, result)


def _folds(
    lattice: Lattice, context: MergeContext
) -> Iterable[tuple[str, Callable[[Value, Value], Value]]]:
    # A merge that prefers one operand shows in one of the two directions only.
    return (
        ("new value as other", lambda sofar, new: lattice.merge(sofar, new, context)),
        ("new value as own", lambda sofar, new: lattice.merge(new, sofar, context)),
    )


def run_key(fields: Fields) -> None:
    """Check the public key of a seed and what it signs."""
    fields.only("id", "kind", "seed", "public_key", "signed", "decision")
    pair = KeyPair(fields.hex("seed"))
    fields.expect("public_key", pair.public_key)
    cell = need_cell(fields, "signed")
    if not isinstance(cell, Signed):
        raise Mismatch("signed is not a signed cell")
    expect("key of the cell", pair.public_key, cell.public_key)
    expect("signature is valid", True, cell.verify())
    expect(
        "cell signed here", value_hash(cell).hex(), value_hash(Signed.sign(pair, cell.value)).hex()
    )


# --- paths ------------------------------------------------------------------------------------


def run_resolve(fields: Fields) -> None:
    """Check the canonical form of a path and the lattice at its end."""
    fields.only(*COMMON_FIELDS, "path", "resolved", "child")
    lattice = lattice_field(fields)
    keys = need_cells(fields, "path")
    wanted = fields.need("resolved")
    got = lattice.resolve_path(keys)
    # None: the path leaves the lattice, on both sides or on neither.
    if wanted is None or got is None:
        expect("resolved is null", wanted is None, got is None)
        _check_child(fields.need("child"), None)  # a path that leaves the lattice has no child
        return
    cells = read_cell_list(wanted, "resolved")
    expect("number of resolved keys", len(cells), len(got))
    for position, (want, have) in enumerate(zip(cells, got, strict=True)):
        expect_cell(f"resolved[{position}]", want, have)
    _check_child(fields.need("child"), lattice.path(*got))


def _check_child(name: object, child: Lattice | None) -> None:
    if name is None or child is None:
        expect("child lattice is null", name is None, child is None)
        return
    ours = type(child).__name__
    # A stand-in knows the path, not the class.
    if name in STAND_INS or REFERENCE_NAMES.get(str(name), name) == ours:
        return
    raise Mismatch(f"child lattice: expected {shown(name)}, got {ours}")


def run_to_json_key(fields: Fields) -> None:
    """Check the JSON form of a key."""
    fields.only("id", "kind", "key", "json", "decision")
    key = need_cell(fields, "key")
    expect_cell("json", need_cell(fields, "json"), to_json_key(key))


def run_assoc_in(fields: Fields) -> None:
    """Check a nested write that creates what the lattice tells it to."""
    fields.only(*COMMON_FIELDS, "base", "keys", "value", "result")
    lattice = lattice_field(fields)
    base = need_cell(fields, "base")
    keys = need_cells(fields, "keys")
    value = need_cell(fields, "value")
    wanted = fields.need("result")
    failed = isinstance(wanted, dict) and "error" in wanted
    try:
        got = assoc_in(base, keys, value, lattice)
    except DataLatticeError as error:
        # An error that the vector does not record is a failure with its own text.
        if not failed:
            raise
        wanted.only("error")
        wanted.expect("error", error_word(error))
        return
    if failed:
        raise Mismatch(f"expected the error {shown(wanted['error'])}, got {hash_or_none(got)}")
    expect_cell("result", read_cell(wanted, "result"), got)


def error_word(error: DataLatticeError) -> str:
    """Return the word of the vectors for an error of ours: state, argument, unsupported."""
    if isinstance(error, (NoSuchPath, NoSigningKey)):
        return "state"
    if isinstance(error, TypeMismatch):
        return "argument"
    if isinstance(error, UnsupportedOperation):
        return "unsupported"
    raise error


register_format(
    VectorFormat(
        "lattice vectors, format 1",
        lambda document: document.get("format") == _FORMAT and "group" in document,
        _cases,
    )
)
register_kind("zero", run_zero)
register_kind("check", run_check)
register_kind("merge", run_merge)
register_kind("converge", run_converge)
register_kind("key", run_key)
register_kind("resolve", run_resolve)
register_kind("to-json-key", run_to_json_key)
register_kind("assoc-in", run_assoc_in)
