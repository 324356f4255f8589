"""Notation: cells, lattices and contexts as the lattice vectors write them.

A cell is null for nil, otherwise `{enc, hash, text?}`: `enc` a message in hex, `hash` the value
hash, `text` the printed form, which may be cut. Modules of applications add their lattice types
with `register_lattice_type`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from datalattice.cells import (
    Keyword,
    Value,
    decode_message,
    encode,
    encode_message,
    to_text,
    value_hash,
)
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_fields,
    as_hex,
    as_list,
    as_text,
    expect,
    shown,
)
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.lattice import (
    EMPTY_CONTEXT,
    LOCAL_LATTICE,
    P2P,
    CASLattice,
    DataLattice,
    IndexLattice,
    JSONIndexLattice,
    JSONLattice,
    KeyedLattice,
    Lattice,
    LWPLattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MinLattice,
    OwnerLattice,
    SetLattice,
    SignedLattice,
    StringKeyedLattice,
    TupleLattice,
    VectorLattice,
    root_lattice,
)

CUT: Final = "..."
"""End of a `text` that was cut."""

UNPRINTED: Final = "null"
"""The reference writes this instead of a text that it found too costly to print."""


# --- cells ------------------------------------------------------------------------------------


def read_cell(node: Any, what: str) -> Value:
    """Return the value of a cell in notation; `enc`, `hash` and `text` must agree."""
    if node is None:
        return None
    fields = as_fields(node, what)
    # All three forms must agree, so that a vector changed in one of them is noticed.
    fields.only("enc", "hash", "text")
    message = fields.hex("enc")
    value = decode_message(message)
    expect(f"{what}: hash of enc", fields.text("hash"), value_hash(value).hex())
    check_message(f"{what}: enc written again", message, value)
    if "text" in fields:
        _check_text(what, fields.text("text"), value)
    return value


def need_cell(fields: Fields, name: str) -> Value:
    """Return the value of a field that must hold a cell."""
    return read_cell(fields.need(name), name)


def need_cells(fields: Fields, name: str) -> list[Value]:
    """Return the values of a field that must hold an array of cells."""
    return read_cell_list(fields.need(name), name)


def read_cell_list(nodes: Any, what: str) -> list[Value]:
    """Return the values of an array of cells in notation."""
    return [
        read_cell(node, f"{what}[{position}]") for position, node in enumerate(as_list(nodes, what))
    ]


def check_message(what: str, message: bytes, value: Value) -> None:
    """Raise `Mismatch` unless our message of `value` has the parts of `message`, in any order."""
    own = encode_message(value)
    top = encode(value)
    # The top cell comes first in every message; only the order of the branches is free.
    if not message.startswith(top):
        raise Mismatch(f"{what}: the top cell differs: expected {shown(top)}, got {shown(message)}")
    theirs, ours = _children(message[len(top) :], what), _children(own[len(top) :], what)
    expect(f"{what}: number of children", len(theirs), len(ours))
    if sorted(theirs) != sorted(ours):  # the order of branches is free
        strange = next(iter(set(theirs) ^ set(ours)), b"")
        raise Mismatch(f"{what}: a child is on one side only: {shown(strange)}")
    expect(f"{what}: length", len(message), len(own))


def children_of(value: Value) -> list[bytes]:
    """Return the encodings of the distinct branches of a value, as our message lists them."""
    return _children(encode_message(value)[len(encode(value)) :], "own message")


def _children(data: bytes, what: str) -> list[bytes]:
    found = []
    at = 0
    while at < len(data):
        length = 0
        while True:
            if at >= len(data):
                raise Mismatch(f"{what}: a child's length runs over the end")
            byte = data[at]
            at += 1
            # "Base 128, the most significant digit first" (docs/cells.md "Counts").
            length = (length << 7) | (byte & 0x7F)
            if byte < 0x80:
                break
        if at + length > len(data):
            raise Mismatch(f"{what}: a child runs over the end")
        found.append(data[at : at + length])
        at += length
    return found


def _check_text(what: str, text: str, value: Value) -> None:
    if text == UNPRINTED:
        return
    printed = to_text(value)
    # The reference cuts long texts; what is left must still agree.
    if text.endswith(CUT) and printed.startswith(text.removesuffix(CUT)):
        return
    expect(f"{what}: text", text, printed)


def expect_cell(what: str, wanted: Value, got: Value) -> None:
    """Raise `Mismatch` unless two values are the same value."""
    # By hash: Python finds True, 1 and 1.0 equal.
    if value_hash(wanted) != value_hash(got):
        raise Mismatch(f"{what}: expected {_brief(wanted)}, got {_brief(got)}")


def hash_or_none(value: Value) -> str | None:
    """Return a value hash as the files write states: null for nil."""
    return None if value is None else value_hash(value).hex()


def _brief(value: Value) -> str:
    text = to_text(value)
    return f"{shown(text)} (hash {value_hash(value).hex()[:16]})"


# --- lattices ---------------------------------------------------------------------------------

LatticeBuilder = Callable[[Fields], Lattice]

_types: dict[str, LatticeBuilder] = {}


def register_lattice_type(name: str, builder: LatticeBuilder) -> None:
    """Add a lattice type that vectors may name in `type`."""
    if name in _types:
        raise UsageError(f"the lattice type {name!r} is registered already")
    _types[name] = builder


def read_lattice(node: Any) -> Lattice:
    """Return the lattice that a description stands for."""
    fields = as_fields(node, "lattice")
    name = fields.text("type")
    builder = _types.get(name)
    if builder is None:
        raise Mismatch(f"unknown lattice type {name!r}; known: {', '.join(sorted(_types))}")
    return builder(fields)


def lattice_field(fields: Fields, name: str = "lattice") -> Lattice:
    """Return the lattice that a field describes."""
    return read_lattice(fields.need(name))


def plain_type(lattice: Callable[[], Lattice]) -> LatticeBuilder:
    """Return the builder of a lattice type without parameters."""

    def builder(fields: Fields) -> Lattice:
        fields.only("type")
        return lattice()

    return builder


def _around_child(lattice: Callable[[Lattice], Lattice]) -> LatticeBuilder:
    def builder(fields: Fields) -> Lattice:
        fields.only("type", "child")
        return lattice(lattice_field(fields, "child"))

    return builder


def _max(fields: Fields) -> Lattice:
    fields.only("type", "zero")
    if "zero" not in fields:
        return MaxLattice()
    zero = fields["zero"]
    if isinstance(zero, dict):  # files write it as a number or as a cell
        zero = read_cell(zero, "zero")
    if zero is not None and (not isinstance(zero, int) or isinstance(zero, bool)):
        raise Mismatch(f"the zero of a max lattice is an integer or null, got {shown(zero)}")
    return MaxLattice(zero=zero)


def _lwp(fields: Fields) -> Lattice:
    fields.only("type", "timestamp", "inner")
    # Ours takes the time of a value from this key alone.
    expect("timestamp of an lwp lattice", ":timestamp", fields.text("timestamp"))
    return LWPLattice(lattice_field(fields, "inner"))


def _tuple(fields: Fields) -> Lattice:
    fields.only("type", "children")
    return TupleLattice(*(read_lattice(child) for child in fields.array("children")))


def _named_children(fields: Fields) -> dict[str, Lattice]:
    fields.only("type", "children")
    children: dict[str, Lattice] = {}
    for child in fields.array("children"):
        name, lattice = as_list(child, "child", 2)
        children[as_text(name, "child name")] = read_lattice(lattice)
    return children


def _keyed(fields: Fields) -> Lattice:
    return KeyedLattice({Keyword(name): child for name, child in _named_children(fields).items()})


for _name, _builder in {
    "set": plain_type(SetLattice),
    "max": _max,
    "min": plain_type(MinLattice),
    "lww": plain_type(LWWLattice),
    "lwp": _lwp,
    "map": _around_child(MapLattice),
    "index": _around_child(IndexLattice),
    "vector": _around_child(VectorLattice),
    "tuple": _tuple,
    "keyed": _keyed,
    "string-keyed": lambda fields: StringKeyedLattice(_named_children(fields)),
    "json": plain_type(JSONLattice),
    "json-index": plain_type(JSONIndexLattice),
    "signed": _around_child(SignedLattice),
    "owner": _around_child(OwnerLattice),
    "data": plain_type(DataLattice),
    "cas": plain_type(CASLattice),
    "local": plain_type(lambda: LOCAL_LATTICE),
    "p2p": plain_type(lambda: P2P),
    "root": plain_type(root_lattice),
}.items():
    register_lattice_type(_name, _builder)


# --- contexts ---------------------------------------------------------------------------------


def read_context(node: Any) -> MergeContext:
    """Return the merge context that a description stands for; absent or null is the empty one."""
    if node is None:
        return EMPTY_CONTEXT
    fields = as_fields(node, "context")
    fields.only("timestamp", "seed", "verifier")
    timestamp = fields.get("timestamp")
    if timestamp is not None and (not isinstance(timestamp, int) or isinstance(timestamp, bool)):
        raise Mismatch(f"the timestamp of a context is an integer or null, got {shown(timestamp)}")
    seed = fields.get("seed")
    pair = None if seed is None else KeyPair(as_hex(seed, "context seed"))
    if fields.get("verifier") is None:
        return MergeContext(timestamp=timestamp, key_pair=pair)
    return MergeContext(
        timestamp=timestamp, key_pair=pair, verifier=_verifier(fields.array("verifier"))
    )


def _verifier(rules: list[Any]) -> Callable[[Value, bytes], bool]:
    allowed: set[tuple[bytes, bytes]] = set()
    for rule in rules:
        fields = as_fields(rule, "verifier rule")
        fields.only("owner", "keys")
        owner = value_hash(read_cell(fields.fields("owner"), "owner of a verifier rule"))
        for key in fields.array("keys"):
            allowed.add((owner, as_hex(key, "key of a verifier rule")))
    # By hash: Python finds the owners 1 and True equal.
    return lambda owner, signer: (value_hash(owner), bytes(signer)) in allowed
