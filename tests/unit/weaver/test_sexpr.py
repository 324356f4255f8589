"""S-expressions are rendered, parsed and made to messages as the node specification says."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datalattice.errors import UsageError
from datalattice.protobuf import Field, Message
from datalattice.weaver.sexpr import (
    SExpr,
    SymbolWord,
    compact,
    message_from_sexprs,
    message_to_sexpr,
    parse,
    parse_many,
    pretty,
    read_words,
    render,
    table,
    tokens,
)


class Colour(IntEnum):
    RED = 0
    GREEN = 1


class PutOp(Message, name="test.PutOp"):
    key: Annotated[bytes, Field(1)] = b""
    value: Annotated[bytes, Field(2)] = b""


class DeleteOp(Message, name="test.DeleteOp"):
    key: Annotated[bytes, Field(1)] = b""


class Operation(Message, name="test.Operation"):
    put: Annotated[PutOp | None, Field(1, oneof="op")] = None
    delete: Annotated[DeleteOp | None, Field(2, oneof="op")] = None
    note: Annotated[str | None, Field(3, oneof="op")] = None


class Batch(Message, name="test.Batch"):
    ops: Annotated[tuple[Operation, ...], Field(1)] = ()


class Empty(Message, name="test.Empty"):
    pass


class Sample(Message, name="test.Sample"):
    text: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "uint32")] = 0
    flag: Annotated[bool, Field(3)] = False
    colour: Annotated[Colour, Field(4)] = Colour.RED
    maybe: Annotated[int | None, Field(5, "uint64")] = None
    tags: Annotated[tuple[bytes, ...], Field(6)] = ()
    put: Annotated[PutOp | None, Field(7)] = None
    ratio: Annotated[float, Field(8)] = 0.0


PUT = (SymbolWord("put"), "k", b"\x00\xff")


def test_text_form_of_every_kind() -> None:
    expr = (SymbolWord("put"), 'a "b" \\', b"\x00\xff", 7, ())
    assert render(expr) == '(put "a \\"b\\" \\\\" 00ff 7 ())'


def test_compact_form_cuts_long_raw_values() -> None:
    assert compact(bytes(range(9))) == "0001020304050607…"
    assert compact(bytes(range(8))) == "0001020304050607"
    assert compact(b"\x01\x02\x03", 2) == "0102…"


def test_pretty_form_indents_all_but_the_first_element() -> None:
    expr = (SymbolWord("T"), (SymbolWord("a"), 1), (SymbolWord("b"), (1, 2)))
    assert pretty(expr) == "(T\n  (a 1)\n  (b (1 2)))"
    assert pretty((1,)) == "(1)"
    assert pretty(SymbolWord("x")) == "x"


def test_tokens_carry_their_kind_for_colours() -> None:
    assert list(tokens(PUT)) == [
        ("paren", "("),
        ("symbol", "put"),
        ("paren", " "),
        ("string", '"k"'),
        ("paren", " "),
        ("raw", "00ff"),
        ("paren", ")"),
    ]


def record(*values: SExpr) -> SExpr:
    return (SymbolWord("Peer"), (SymbolWord("name"), values[0]), (SymbolWord("age"), values[1]))


def test_records_of_one_shape_are_a_table() -> None:
    assert table([record("alice", 7), record("bo", 12)]) == (
        'NAME     AGE\n"alice"  7\n"bo"     12'
    )


def test_other_lists_are_no_table() -> None:
    other = (SymbolWord("Other"), (SymbolWord("name"), 1), (SymbolWord("age"), 2))
    swapped = (SymbolWord("Peer"), (SymbolWord("age"), 1), (SymbolWord("name"), 2))
    for rows in ([record(1, 2)], [record(1, 2), other], [record(1, 2), swapped], [7, 8]):
        assert table(rows) is None
    assert table([record(1, 2), (SymbolWord("Peer"), 1)]) is None


def test_symbols_are_bare_words() -> None:
    for name in ("", "a b", "a(", 'a"', "a\n"):
        with pytest.raises(UsageError, match="a symbol has no"):
            SymbolWord(name)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("", "expected one expression, got 0"),
        ("a b", "expected one expression, got 2"),
        ("(a", r"a '\(' without"),
        ("a)", r"a '\)' without its '\(' at character 2"),
        ('"a', "from character 1"),
        ('"a\\n"', "after a backslash"),
        ("(" * 101 + ")" * 101, "deeper than 100"),
    ],
)
def test_text_that_does_not_parse(text: str, refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        parse(text)


def test_parsing_reads_several_expressions() -> None:
    assert parse_many(' a (b 1)\n"c" ') == [SymbolWord("a"), (SymbolWord("b"), 1), "c"]
    assert parse_many("007", numbers=False) == [SymbolWord("007")]


SYMBOLS = st.from_regex(r"[a-z:_-][a-z0-9=:_-]*", fullmatch=True).map(SymbolWord)
EXPRS = st.recursive(
    SYMBOLS | st.text() | st.integers(0, 2**64),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
)


@given(EXPRS)
def test_rendered_text_parses_back(expr: SExpr) -> None:
    assert parse(render(expr)) == expr


def test_messages_are_records() -> None:
    sample = Sample(text="hi", colour=Colour.GREEN, tags=(b"a", b"\xff"), put=PutOp(b"k", b"v"))
    assert render(message_to_sexpr(sample)) == (
        '(Sample (text "hi") (count 0) (flag false) (colour GREEN) (tags ("a" ff)) '
        '(put (PutOp (key "k") (value "v"))) (ratio 0.0))'
    )
    assert render(message_to_sexpr(Sample(maybe=3))).count("(maybe 3)") == 1
    assert render(message_to_sexpr(Empty())) == "ok"


def test_wrappers_are_transparent() -> None:
    batch = Batch((Operation(put=PutOp(b"k", b"v")), Operation(delete=DeleteOp(b"old"))))
    assert render(message_to_sexpr(batch)) == (
        '((PutOp (key "k") (value "v")) (DeleteOp (key "old")))'
    )
    assert render(message_to_sexpr(Operation())) == "(Operation)"


def read(cls: type[Message], text: str) -> Message:
    return message_from_sexprs(cls, parse_many(text, numbers=False))


def test_arguments_in_order_and_by_name() -> None:
    assert read(PutOp, "k v") == PutOp(b"k", b"v")
    assert read(PutOp, "value=v key=k") == PutOp(b"k", b"v")
    assert read(PutOp, 'k value="a b"') == PutOp(b"k", b"a b")
    assert read(PutOp, "k other=v") == PutOp(b"k", b"other=v")
    assert read(PutOp, 'k "value=v"') == PutOp(b"k", b"value=v")
    assert read(PutOp, "007 ()") == PutOp(b"007")
    assert message_from_sexprs(PutOp, [b"\xff", 5]) == PutOp(b"\xff", b"5")
    assert read(Sample, "hi 7 true green () (a b) (k v) 0.5") == Sample(
        "hi", 7, True, Colour.GREEN, None, (b"a", b"b"), PutOp(b"k", b"v"), 0.5
    )
    assert read(Sample, "colour=1 maybe=12") == Sample(colour=Colour.GREEN, maybe=12)


def test_arguments_with_variants() -> None:
    assert read(Batch, "((put k v) (delete old) (note x))") == Batch(
        (
            Operation(put=PutOp(b"k", b"v")),
            Operation(delete=DeleteOp(b"old")),
            Operation(note="x"),
        )
    )
    assert read(Operation, "") == Operation()


@pytest.mark.parametrize(
    ("cls", "text", "refusal"),
    [
        (PutOp, "k v w", "PutOp takes 2 arguments key value; w is one too many"),
        (PutOp, "k key=k", "PutOp.key is given twice"),
        (PutOp, "key=", "PutOp.key: a value follows"),
        (PutOp, "(a)", r"PutOp.key takes a single value, got \(a\)"),
        (Sample, "count=x", "Sample.count takes a decimal number of 64 bits, got 'x'"),
        (Sample, "count=1.5", "Sample.count takes a decimal"),
        (Sample, "count=4294967296", "Sample.count"),
        (Sample, "count=-1", "Sample.count"),
        (Sample, "flag=maybe", "Sample.flag is true or false"),
        (Sample, "ratio=x", "Sample.ratio takes a number"),
        (Sample, "colour=BLUE", "Sample.colour is one of RED, GREEN, got 'BLUE'"),
        (Sample, "tags=a", "Sample.tags takes a list, got a"),
        (Sample, "put=a", "Sample.put takes a list, got a"),
        (Operation, "move k", "Operation begins with one of put, delete, note, got move"),
        (Operation, "note", "Operation.note takes one value, got 0"),
    ],
)
def test_arguments_that_do_not_fit(cls: type[Message], text: str, refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        read(cls, text)


def test_words_of_a_shell() -> None:
    assert read_words(["k", "two words", "(a b)", 'key="x y"', "", "tags=(a)"]) == [
        SymbolWord("k"),
        "two words",
        (SymbolWord("a"), SymbolWord("b")),
        SymbolWord("key="),
        "x y",
        "",
        SymbolWord("tags="),
        (SymbolWord("a"),),
    ]
    with pytest.raises(UsageError, match="without its"):
        read_words(["(a"])
