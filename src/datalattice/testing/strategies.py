"""Strategies: hypothesis generators of every kind of value, small enough to shrink well.

`values()` is any value. Containers have a few random elements, or a count at a border of the tree
shapes (15, 16, 17, 32, 256, 272 ...), where most mistakes are. Each function returns a new strategy
of values that cells can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from hypothesis import strategies as st

from datalattice.cells import (
    Address,
    Char,
    Coded,
    Extension,
    Flag,
    Index,
    Keyword,
    List,
    Map,
    NanBits,
    Record,
    Set,
    Signed,
    Symbol,
    Syntax,
    Value,
    Vector,
    make_blob,
    make_text,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.limits import COUNT_MAX

T = TypeVar("T")


Strategy = st.SearchStrategy

# Around powers and multiples of 16, the fan-out.
BORDER_COUNTS: Final = (
    *(0, 1, 2, 14, 15, 16, 17, 31, 32, 33, 47, 48, 49),
    *(255, 256, 257, 272, 273, 288, 300),
)
"""Counts where a vector, map, set or index changes its shape."""

# Around 140, the greatest embedded length, and 4,096, a chunk.
BORDER_BYTES: Final = (0, 1, 32, 33, 136, 137, 138, 140, 141, 4095, 4096, 4097, 8192, 12289)
"""Lengths where a blob or string changes between embedded, branch and tree."""

BORDER_INTEGERS: Final = tuple(  # where an integer needs another byte; 1095 bits are beyond doubles
    sign * 2**bits + delta
    for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64, 127, 1095)
    for sign in (1, -1)
    for delta in (-1, 0, 1)
)
"""Integers around a change of their encoded length."""


# --- scalars ----------------------------------------------------------------------------------


def integers() -> Strategy[int]:
    """Return integers of every encoded length, many of them small."""
    return st.one_of(
        # Many small ones: they shrink to something readable.
        st.integers(-2, 300),
        st.sampled_from(BORDER_INTEGERS),
        st.integers(-(2**80), 2**80),
    )


def doubles() -> Strategy[object]:
    """Return doubles, NaNs of other patterns and infinities included."""
    return st.one_of(st.floats(width=64), nan_bits())


def nan_bits() -> Strategy[object]:
    """Return NaNs whose pattern is not the usual one."""
    patterns = st.builds(
        lambda sign, mantissa: (sign << 63) | (0x7FF << 52) | mantissa,
        st.integers(0, 1),
        st.integers(1, 2**52 - 1),
    )
    # The usual NaN is an ordinary double.
    return patterns.filter(lambda bits: bits != 0x7FF8000000000000).map(NanBits)


def symbol_names() -> Strategy[str]:
    """Return names of keywords and symbols: 1 to 128 bytes of UTF-8."""
    alphabet = st.characters(codec="utf-8")
    wide = st.text(alphabet, min_size=1, max_size=32)
    return st.one_of(st.sampled_from(["a", "b", "value", "timestamp", "k" * 128]), wide)


def keywords() -> Strategy[Keyword]:
    """Return keywords."""
    return symbol_names().map(Keyword)


def symbols() -> Strategy[Symbol]:
    """Return symbols."""
    return symbol_names().map(Symbol)


def strings(max_size: int = 40) -> Strategy[object]:
    """Return strings, some with a length at a border of the tree shapes."""
    short = st.text(st.characters(codec="utf-8"), max_size=max_size)
    long = st.builds(
        lambda size, seed: make_text(pattern_bytes(size, seed, letters=True).decode()),
        st.sampled_from(BORDER_BYTES),
        st.integers(0, 9),
    )
    return st.one_of(short, short, short, long)  # short ones thrice as often: long ones are slow


def blobs(max_size: int = 40) -> Strategy[object]:
    """Return blobs, some with a length at a border of the tree shapes."""
    short = st.binary(max_size=max_size)
    long = st.builds(
        lambda size, seed: make_blob(pattern_bytes(size, seed)),
        st.sampled_from(BORDER_BYTES),
        st.integers(0, 9),
    )
    return st.one_of(short, short, short, long)


def chars() -> Strategy[Char]:
    """Return characters, surrogates included."""
    return st.one_of(
        st.sampled_from([0, 65, 255, 256, 0xD800, 0xFFFF, 0x10000, 0x10FFFF]),
        st.integers(0, 0x10FFFF),
    ).map(Char)


def addresses() -> Strategy[Address]:
    """Return addresses."""
    return counts().map(Address)


def counts() -> Strategy[int]:
    """Return numbers that a VLQ can carry, many of them at its borders."""
    return st.one_of(
        st.integers(0, 200),
        st.sampled_from([127, 128, 16383, 16384, 2**56 - 1, 2**56, COUNT_MAX]),
        st.integers(0, COUNT_MAX),
    )


def extensions() -> Strategy[Extension]:
    """Return extension values that are not addresses."""
    digits = st.integers(0, 15).filter(lambda digit: digit != 10)  # digit 10 is the address
    return st.builds(Extension, digits, counts())


def flags() -> Strategy[object]:
    """Return the flags: the two booleans and the fourteen plain ones."""
    return st.one_of(st.booleans(), st.integers(2, 15).map(Flag))


def scalars() -> Strategy[Value]:
    """Return any value that is not a container."""
    return st.one_of(
        st.none(),
        flags(),
        integers(),
        doubles(),
        strings(),
        blobs(),
        keywords(),
        symbols(),
        chars(),
        addresses(),
        extensions(),
    )


def plain_scalars() -> Strategy[Value]:
    """Return short, cheap scalars, for tests about containers rather than their elements."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 40),
        st.sampled_from([0.0, -0.0, 1.0, 2.5]),
        st.sampled_from(["", "a", "b", "ab", "1"]),
        st.sampled_from([b"", b"a", b"ab", b"\x00", b"\x01"]),
        st.sampled_from([Keyword("a"), Keyword("ab"), Symbol("a"), Address(1), Char(97)]),
        st.sampled_from(["x" * 150, b"y" * 150]),  # long enough to be cells of their own
    )


# --- keys -------------------------------------------------------------------------------------


def index_keys() -> Strategy[Value]:
    """Return keys of an index: byte-like values whose bytes often collide or share a prefix."""
    # Few letters, so that prefixes collide.
    near = st.text(st.sampled_from("ab"), min_size=1, max_size=4)
    return st.one_of(
        near,
        near.map(lambda text: text.encode()),
        near.map(Keyword),
        near.map(Symbol),
        # Around the 32 bytes that an Index compares.
        st.sampled_from([b"", "", b"\x00", b"\x00\x00", b"k" * 32, b"k" * 32 + b"x", "k" * 40]),
        st.integers(0, 3).map(Address),
        st.builds(Extension, st.sampled_from([0, 3]), st.integers(0, 3)),
        st.binary(max_size=34),
    )


def map_keys() -> Strategy[Value]:
    """Return keys of a map that often collide, some equal for Python though different values."""
    return st.one_of(
        # Equal in Python, and different values here.
        st.sampled_from([None, True, False, 1, 0, 1.0, 0.0, -0.0, "1", b"1", Keyword("1")]),
        st.integers(0, 60),
        st.integers(0, 60).map(lambda n: f"key-{n}"),
        plain_scalars(),
    )


# --- containers -------------------------------------------------------------------------------


def sequences(elements: Strategy[T], max_size: int = 12) -> Strategy[Sequence[object]]:
    """Return Python lists of `elements`, or of integers with a count at a border of the shapes."""
    short = st.lists(elements, max_size=max_size)
    long = st.builds(
        lambda count, start: list(range(start, start + count)),
        st.sampled_from(BORDER_COUNTS),
        st.integers(0, 3),
    )
    return st.one_of(short, short, long)  # short ones twice as often


def vectors(elements: Strategy[Value] | None = None) -> Strategy[Vector]:
    """Return vectors of `elements`."""
    return sequences(plain_scalars() if elements is None else elements).map(Vector.of)


def lists(elements: Strategy[Value] | None = None) -> Strategy[List]:
    """Return lists of `elements`."""
    return sequences(plain_scalars() if elements is None else elements).map(List.of)


def sets(elements: Strategy[Value] | None = None) -> Strategy[Set]:
    """Return sets of `elements`."""
    return sequences(map_keys() if elements is None else elements).map(Set.of)


def pairs(
    keys: Strategy[Value], elements: Strategy[Value], max_size: int = 12
) -> Strategy[Sequence[tuple[Value, Value]]]:
    """Return Python lists of key and value pairs, with repeated keys or many pairs."""
    short = st.lists(st.tuples(keys, elements), max_size=max_size)
    long = st.builds(
        lambda count, start: [(f"key-{n}", n % 7) for n in range(start, start + count)],
        st.sampled_from(BORDER_COUNTS),
        st.integers(0, 40),
    )
    return st.one_of(short, short, long)


def maps(
    keys: Strategy[Value] | None = None, elements: Strategy[Value] | None = None
) -> Strategy[Map]:
    """Return maps, small ones and trees."""
    return pairs(
        map_keys() if keys is None else keys, plain_scalars() if elements is None else elements
    ).map(Map.of)


def small_maps(
    keys: Strategy[Value] | None = None, elements: Strategy[Value] | None = None
) -> Strategy[Map]:
    """Return maps of at most six entries."""
    entries = st.lists(
        st.tuples(
            map_keys() if keys is None else keys, plain_scalars() if elements is None else elements
        ),
        max_size=6,
    )
    return entries.map(Map.of)


def indexes(
    keys: Strategy[Value] | None = None, elements: Strategy[Value] | None = None
) -> Strategy[Index]:
    """Return indexes, small ones and deep ones."""
    return pairs(
        index_keys() if keys is None else keys, plain_scalars() if elements is None else elements
    ).map(Index.of)


def key_pairs() -> Strategy[KeyPair]:
    """Return one of four fixed key pairs."""
    return st.integers(1, 4).map(lambda n: KeyPair(bytes([n]) * 32))


def signed(elements: Strategy[Value] | None = None) -> Strategy[Signed]:
    """Return signed values, some with a signature that does not verify."""
    inner = plain_scalars() if elements is None else elements
    good = st.builds(Signed.sign, key_pairs(), inner)
    bad = st.builds(
        Signed, st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64), inner
    )
    return st.one_of(good, good, bad)  # unverified signatures are legal values


def values(max_leaves: int = 12) -> Strategy[Value]:
    """Return any value: scalars, and containers of every type nested in one another."""
    return st.recursive(scalars(), _around, max_leaves=max_leaves)


def json_values(max_leaves: int = 12) -> Strategy[Value]:
    """Return values that JSON text holds without loss: its types, with string keys."""
    text = st.text(st.characters(codec="utf-8"), max_size=12)
    leaves = st.one_of(
        st.none(), st.booleans(), integers(), st.floats(allow_nan=False, allow_infinity=False), text
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4).map(Vector.of),
            st.lists(st.tuples(text, inner), max_size=4).map(Map.of),
        ),
        max_leaves=max_leaves,
    )


def _around(inner: Strategy[Value]) -> Strategy[Value]:
    """Return containers of every type around `inner`."""
    digits = st.integers(0, 15)
    fields = st.lists(inner, max_size=18)
    return st.one_of(
        vectors(inner),
        lists(inner),
        sets(inner),
        maps(inner, inner),
        indexes(index_keys(), inner),
        signed(inner),
        # An empty Map of metadata would be another encoding.
        st.builds(Syntax, inner, st.one_of(st.none(), small_maps(inner, inner).filter(len))),
        st.builds(Coded, digits, inner, inner),
        st.builds(Record, digits, fields),
    )


# --- what tests compare with --------------------------------------------------------------------


def pattern_bytes(size: int, seed: int = 0, *, letters: bool = False) -> bytes:
    """Return `size` reproducible bytes without a short period; small letters on demand."""
    if letters:
        # No short period: a misplaced chunk must show.
        return bytes(97 + (7 * i + (i >> 8) + seed) % 26 for i in range(size))
    return bytes((7 * i + (i >> 8) + seed) & 0xFF for i in range(size))


def by_hash(entries: Sequence[tuple[Value, Value]]) -> dict[bytes, tuple[Value, Value]]:
    """Return what a map must hold after putting `entries`, keyed by the key's value hash.

    Python's own dict would take `True`, `1` and `1.0` for one key.
    """
    twin: dict[bytes, tuple[Value, Value]] = {}
    for key, value in entries:
        name = value_hash(key)
        # The first key stays: a put replaces the value alone.
        twin[name] = (twin[name][0] if name in twin else key, value)
    return twin
