"""The printed form, JSON in and out, and Python objects."""

from __future__ import annotations

import enum
from collections import OrderedDict, UserDict
from collections.abc import Callable

import pytest

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
    brief,
    encode,
    from_json,
    same,
    to_cell,
    to_json,
    to_python,
    to_text,
)
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, TypeMismatch, UsageError
from datalattice.limits import INTEGER_TEXT_DIGITS_MAX, TEXT_DEPTH_MAX


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nil"),
        (True, "true"),
        (False, "false"),
        (-5, "-5"),
        (1.0, "1.0"),
        (float("nan"), "##NaN"),
        (float("inf"), "##Inf"),
        (float("-inf"), "##-Inf"),
        (NanBits(0x7FF8000000000001), "#[1d7ff8000000000001]"),
        (Char("A"), "\\A"),
        (Char("\n"), "\\newline"),
        (Char("\r"), "\\return"),
        (Char(" "), "\\space"),
        (Char("\t"), "\\tab"),
        ('a"b\\c\n\r\t\x01', '"a\\"b\\\\c\\n\\r\\t\x01"'),
        (b"\xca\xfe", "0xcafe"),
        (Keyword("name"), ":name"),
        (Symbol("name"), "name"),
        (Address(12), "#12"),
        (Extension(3, 9), "#[e309]"),
        (Flag(5), "#[b5]"),
        (Vector.of([1, 2, 3]), "[1 2 3]"),
        (List.of([1, 2, 3]), "(1 2 3)"),
        (Map.of([(1, 2)]), "{1 2}"),
        (Set.of([1]), "#{1}"),
        (Index.of([(b"\x12", 1), (b"\x12\x34", 2)]), "#Index {0x12 1,0x1234 2}"),
        (Syntax(5, Map.of([(Keyword("a"), 1)])), "^{:a 1} 5"),
        (Syntax(5), "^{} 5"),
        (Coded(3, 1, 2), "#[c311011102]"),
        (Record(4, [1]), "#[d4011101]"),
    ],
)
def test_printed_form(value: Value, text: str) -> None:
    assert to_text(value) == text


def test_a_signed_value_prints_its_parts() -> None:
    cell = Signed(bytes(32), bytes(64), 5)
    zero = "0" * 64
    assert to_text(cell) == f"#Signed {{:public-key 0x{zero},:signature 0x{zero * 2},:value 5}}"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1e-3, "0.001"),
        (9.99e-4, "9.99E-4"),
        (1e-5, "1.0E-5"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (123456789.0, "1.23456789E8"),
        (1e21, "1.0E21"),
        (1e22, "1.0E22"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (100.5, "100.5"),
        (2e-3, "0.002"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-1.5e10, "-1.5E10"),
    ],
)
def test_doubles_print_in_the_shortest_form(number: float, text: str) -> None:
    assert to_text(number) == text
    assert to_json(number) == text
    assert float(text) == number


def test_long_integers_print_and_are_read() -> None:
    for number in (2**32767 - 1, -(2**32767), 10**5000, -(10**4000), 10**4000 - 1):
        text = to_text(number)
        assert from_json(text) == number
        assert len(text.lstrip("-")) <= INTEGER_TEXT_DIGITS_MAX


@pytest.mark.parametrize(
    "text", [str(9) * (INTEGER_TEXT_DIGITS_MAX // 5) * 5 + "9" * 10, "-" + "1" * 20_000]
)
def test_integers_beyond_the_limit_are_refused(text: str) -> None:
    with pytest.raises(BadFormat, match=r"at most (9865 digits|4096 bytes)"):
        from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "01",
        "1.",
        ".5",
        "+1",
        "[1,]",
        "{a:1}",
        "'a'",
        "nul",
        "NaN",
        "Infinity",
        "-Infinity",
        '"\n"',
        "[1",
        '{"a"}',
        "1 2",
        "\ufeff1",
        '"\\x41"',
        '"\\ud800"',
        '"\\udc80x"',
        '{"\\ud800": 1}',
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(BadFormat):
        from_json(text)


def test_json_is_text_or_its_bytes() -> None:
    assert from_json('["é"]'.encode()) == Vector.of(["é"])
    with pytest.raises(BadFormat, match="UTF-8"):
        from_json(b'"\xff"')
    with pytest.raises(TypeError, match="str"):
        from_json(1)  # type: ignore[arg-type]


def test_json_values_are_told_apart() -> None:
    value = from_json('{"a": [1, 1.0, -0, -0.0, 1e2, true, null, "\\ud83d\\ude00"], "a": {}}')
    assert same(value, Map.of([("a", Map.of([]))]))
    assert encode(from_json("[1, 1.0, -0, -0.0, 1e2]")) == encode(
        Vector.of([1, 1.0, 0, -0.0, 100.0])
    )
    assert from_json('"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize("levels", [TEXT_DEPTH_MAX - 1, TEXT_DEPTH_MAX, TEXT_DEPTH_MAX + 1])
def test_nesting_is_read_written_and_converted_up_to_the_limit(levels: int) -> None:
    value: Value = Vector.of([])
    plain: object = []
    for _ in range(levels - 1):
        value, plain = Vector.of([value]), [plain]
    brackets = "[" * levels + "]" * levels
    actions: tuple[Callable[[], bool], ...] = (
        lambda: same(from_json(brackets), value),
        lambda: to_json(value) == brackets,
        lambda: to_text(value) == brackets,
        lambda: same(to_cell(plain), value),
    )
    for action in actions:
        if levels <= TEXT_DEPTH_MAX:
            assert action()
        else:
            with pytest.raises((BadFormat, UsageError), match=f"down to {TEXT_DEPTH_MAX} levels"):
                action()


def test_half_characters_are_written_so_that_text_can_be_stored() -> None:
    raw = b"a\x80".decode("utf-8", "surrogateescape")
    for value in (raw, Char(0xD800), Keyword(b"\xff"), Vector.of([raw]), Map.of([(raw, raw)])):
        assert to_text(value).encode()
        assert to_json(value).encode()
    assert to_json(raw) == '"a\\udc80"'


def test_json_writes_what_it_has_no_word_for() -> None:
    record = Record(4, [1, Keyword("k")])
    assert to_json(record) == '{"0":1,"1":"k"}'
    assert to_json(float("nan")) == "null"
    assert to_json(float("nan"), json5=True) == "NaN"
    assert to_json(NanBits(0x7FF8000000000001), json5=True) == "NaN"
    assert to_json(float("-inf"), json5=True) == "-Infinity"
    assert to_json("\x00\x1f/\u2028") == '"\\u0000\\u001f/\u2028"'
    keys = Map.of([(Vector.of([1]), 1)])
    assert to_json(keys) == '{"[1]":1}'


# --- Python objects --------------------------------------------------------------------------


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


def test_python_containers_become_cells() -> None:
    value = to_cell({"a": [1, (2.5, None)], "s": {1, 2}, "f": frozenset([b"x"])})
    wanted = Map.of(
        [
            ("a", Vector.of([1, Vector.of([2.5, None])])),
            ("s", Set.of([1, 2])),
            ("f", Set.of([b"x"])),
        ]
    )
    assert same(value, wanted)
    assert to_cell(value) is value
    assert same(to_cell(OrderedDict(a=1)), Map.of({"a": 1}))
    assert same(to_cell(UserDict(a=UserDict(b=1))), to_cell({"a": {"b": 1}}))
    assert same(to_cell([wanted, [wanted]]), Vector.of([wanted, Vector.of([wanted])]))


def test_subclasses_count_as_what_they_are_made_of() -> None:
    assert encode(to_cell(Colour.RED)) == encode(1)
    assert encode(to_cell([Name("x"), bytearray(b"y"), memoryview(b"z")])) == encode(
        Vector.of(["x", b"y", b"z"])
    )


@pytest.mark.parametrize("thing", [object(), 3j, [object()], {"a": {1: object()}}, range(3), print])
def test_what_has_no_counterpart_is_named(thing: object) -> None:
    with pytest.raises(TypeMismatch, match="has no cell kind"):
        to_cell(thing)


def test_a_container_within_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="levels"):
        to_cell(loop)


def test_cells_become_python_containers() -> None:
    plain = {"a": [1, 2.5, None, {"b": b"x"}], "long": "x" * 5000, "blob": bytes(5000)}
    assert to_python(to_cell(plain)) == plain
    assert to_python(List.of([1, 2])) == [1, 2]
    assert to_python(Record(1, [1, [2]])) == [1, [2]]
    assert to_python(Set.of([1, "a"])) == {1, "a"}
    assert to_python(Index.of([("a", {"b": 1})])) == {"a": {"b": 1}}
    assert to_python(Signed.sign(KeyPair(bytes(32)), [1, {"a": 2}])) == [1, {"a": 2}]
    assert to_python(Vector.of([Keyword("k")])) == [Keyword("k")]


def test_what_a_dict_cannot_tell_apart_stays_a_cell() -> None:
    keys = Map.of([(1, "integer"), (True, "flag")])
    assert to_python(Vector.of([keys])) == [keys]
    assert to_python(keys) is keys
    members = Set.of([1, 1.0])
    assert to_python(members) is members


def test_nesting_costs_python_objects_no_stack() -> None:
    value: Value = 1
    for _ in range(5000):
        value = Vector.of([value])
    made = to_python(value)
    for _ in range(5000):
        assert isinstance(made, list)
        (made,) = made
    assert made == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 100, repr("x" * 100)),
        ("x" * 101, repr("x" * 100) + "... of 101"),
        (b"x" * 101, repr(b"x" * 100) + "... of 101"),
        (b"\x80" * 31, repr(b"\x80" * 31)),
        (b"\x80" * 32, "0x" + "80" * 32),  # a hash or a key
        (b"\x80" * 33, repr(b"\x80" * 33)),
        (2**256 - 1, str(2**256 - 1)),
        (-(2**256), "<Integer of 257 bits>"),
        ((), "()"),
        (("a",), "('a',)"),
        ((1, 2**40_000, None), "(1, <Integer of 40001 bits>, None)"),
        (tuple(range(17)), "(" + "".join(f"{n}, " for n in range(16)) + "... 17 in all)"),
    ],
)
def test_a_brief_text_is_short_for_any_value(value: object, text: str) -> None:
    assert brief(value) == text
