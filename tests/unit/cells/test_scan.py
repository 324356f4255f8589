"""Counts, tags and limits of the encoding, at, below and above each border."""

from __future__ import annotations

import pytest

from datalattice.cells import (
    Address,
    Char,
    Extension,
    Flag,
    Keyword,
    NanBits,
    Symbol,
    Value,
    Vector,
    branch_hashes,
    decode,
    encode,
    references,
    value_hash,
)
from datalattice.errors import BadFormat
from datalattice.limits import COUNT_MAX

EXAMPLES: list[tuple[Value, str]] = [
    (None, "00"),
    (False, "b0"),
    (True, "b1"),
    (Flag(15), "bf"),
    (0, "10"),
    (1, "1101"),
    (-1, "11ff"),
    (127, "117f"),
    (128, "120080"),
    (-128, "1180"),
    (-129, "12ff7f"),
    (2**31, "150080000000"),
    (2**63 - 1, "187fffffffffffffff"),
    (-(2**63), "188000000000000000"),
    (2**63, "1909008000000000000000"),
    (-(2**63) - 1, "1909ff7fffffffffffffff"),
    (1.0, "1d3ff0000000000000"),
    (-0.0, "1d8000000000000000"),
    (float("nan"), "1d7ff8000000000000"),
    (float("-nan"), "1d7ff8000000000000"),
    (NanBits(0x7FF8000000000001), "1d7ff8000000000001"),
    ("", "3000"),
    ("Hello", "300548656c6c6f"),
    (b"", "3100"),
    (b"\xca\xfe", "3102cafe"),
    (Keyword("foo"), "3303666f6f"),
    (Symbol("foo"), "3203666f6f"),
    (Keyword("k" * 128), "3380" + "6b" * 128),
    (Char("A"), "3c41"),
    (Char("é"), "3ce9"),
    (Char(0), "3c00"),
    (Char(256), "3d0100"),
    (Char("€"), "3d20ac"),
    (Char(0x1F600), "3e01f600"),
    (Char(0xD800), "3dd800"),
    (Address(0), "ea00"),
    (Address(128), "ea8100"),
    (Extension(3, 9), "e309"),
    (Address(COUNT_MAX), "eaffffffffffffffff7f"),
]


@pytest.mark.parametrize("position", range(len(EXAMPLES)))
def test_scalars_have_the_published_encodings(position: int) -> None:
    value, text = EXAMPLES[position]
    assert encode(value).hex() == text
    assert encode(decode(bytes.fromhex(text))).hex() == text


def test_nil_has_the_published_hash() -> None:
    text = "5d53469f20fef4f8eab52b88044ede69c77a6a68a60728609fc4a65ff531e7d0"
    assert value_hash(None).hex() == text


def test_eight_look_alikes_are_eight_values() -> None:
    values = [1, 1.0, "1", Keyword("1"), Symbol("1"), Char("1"), Address(1), b"1", True]
    assert len({value_hash(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8100"),
        (4096, "a000"),
        (16383, "ff7f"),
        (16384, "818000"),
        (2**63 - 1, "ffffffffffffffff7f"),
    ],
)
def test_counts_are_written_in_the_shortest_form(count: int, text: str) -> None:
    assert encode(Address(count)).hex() == "ea" + text
    assert decode(bytes.fromhex("ea" + text)) == Address(count)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ea80",
        "ea8000",
        "ea8001",
        "ea81",
        "ea" + "81" * 9 + "00",
        "ea80ffffffffffffffff7f",
        "1100",
        "120001",
        "12ff80",
        "19080080000000000000",
        "190900000000000000000001",
        "3f0010ffff",
        "3e110000",
        "3d0041",
        "3300",
        "3381" + "6b" * 129,
        "3200",
        "b100",
        "300141 42",
        "20" + "01" * 32,
        "31a001" + "20" + "01" * 32,
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(BadFormat, match=r"byte \d+"):
        decode(bytes.fromhex(text))


UNKNOWN_TAGS = [
    *range(0x01, 0x10),
    0x1A,
    0x1B,
    0x1C,
    0x1E,
    0x1F,
    *range(0x20, 0x30),
    *range(0x34, 0x3C),
    *range(0x40, 0x80),
    0x85,
    0x86,
    0x87,
    *range(0x89, 0x90),
    *range(0x92, 0xB0),
    *range(0xF0, 0x100),
]


@pytest.mark.parametrize("tag", UNKNOWN_TAGS)
def test_unknown_tags_are_refused(tag: int) -> None:
    for rest in (b"", b"\x00", bytes(40)):
        with pytest.raises(BadFormat):
            decode(bytes([tag]) + rest)


@pytest.mark.parametrize("bits", [32767, 8 * 137 - 1, 8 * 137, 72])
def test_integers_reach_their_limit(bits: int) -> None:
    for number in (2**bits - 1, -(2**bits)):
        assert decode(encode(number)) == number
        parent = Vector.of([number])
        assert encode(decode(encode(parent))) == encode(parent)
        assert bool(branch_hashes(encode(parent))) == (len(encode(number)) > 140)


def test_larger_integers_are_refused() -> None:
    for number in (2**32767, -(2**32767) - 1):
        with pytest.raises(ValueError, match="at most 4096 bytes"):
            encode(number)
        with pytest.raises(ValueError, match="at most 4096 bytes"):
            Vector.of([number])
    with pytest.raises(BadFormat):
        decode(b"\x19\xa0\x01\x00\x80" + bytes(4095))


@pytest.mark.parametrize(
    ("length", "inside"), [(0, True), (136, True), (137, True), (138, False), (4096, False)]
)
def test_strings_stand_inside_their_parent_up_to_137_bytes(length: int, inside: bool) -> None:
    for value in ("x" * length, b"x" * length):
        assert bool(branch_hashes(encode(Vector.of([value])))) != inside


@pytest.mark.parametrize(("length", "inside"), [(135, True), (136, False)])
def test_a_vector_of_one_string_stands_inside_up_to_135_bytes(length: int, inside: bool) -> None:
    outer = Vector.of([Vector.of(["x" * length])])
    assert bool(branch_hashes(encode(outer))) != inside


@pytest.mark.parametrize(("length", "inside"), [(8192, True), (16384, True), (16385, True)])
def test_a_blob_tree_of_few_chunks_is_short_itself(length: int, inside: bool) -> None:
    chunks = -(-length // 4096)
    parent = encode(Vector.of([bytes(length)]))
    assert len(encode(bytes(length))) == {2: 69, 4: 136}.get(chunks, len(encode(bytes(length))))
    assert (encode(bytes(length)) in parent) == (len(encode(bytes(length))) <= 140)
    assert inside is (length <= 16385)


def test_references_are_listed_in_order_repeats_kept_or_dropped() -> None:
    a, b = "a" * 200, "b" * 200
    encoding = encode(Vector.of([b, Vector.of([a]), b]))
    names = [value_hash(b), value_hash(a), value_hash(b)]
    assert branch_hashes(encoding) == names
    assert references(encoding) == names[:2]


def test_an_error_names_the_place_and_the_rule() -> None:
    with pytest.raises(BadFormat, match="byte 2: an integer is not in its shortest form"):
        decode(b"\x80\x01\x11\x00")
    with pytest.raises(BadFormat, match="after the end"):
        decode(b"\x00\x00")


def test_a_reading_buffer_may_be_of_any_kind() -> None:
    assert decode(bytearray(b"\x11\x05")) == 5
    assert decode(memoryview(b"\x11\x05")) == 5
