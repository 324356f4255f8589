"""S-expressions are rendered, and messages shown as such, as the node specification says."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import pytest

from datalattice.errors import UsageError
from datalattice.protobuf import Field, Message
from datalattice.weaver.sexpr import (
    RAW_BYTES_SHOWN,
    SymbolWord,
    message_to_sexpr,
    pretty,
    sexpr_text,
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
    assert sexpr_text(expr) == '(put "a \\"b\\" \\\\" 00ff 7 ())'


def test_short_text_cuts_long_raw_values() -> None:
    assert sexpr_text(bytes(range(9)), RAW_BYTES_SHOWN) == "0001020304050607…"
    assert sexpr_text(bytes(range(8)), RAW_BYTES_SHOWN) == "0001020304050607"
    assert sexpr_text(b"\x01\x02\x03", 2) == "0102…"


def test_pretty_form_indents_all_but_the_first_element() -> None:
    expr = (SymbolWord("T"), (SymbolWord("a"), 1), (SymbolWord("b"), (1, 2)))
    assert pretty(expr) == "(T\n  (a 1)\n  (b (1 2)))"
    assert pretty((1,)) == "(1)"
    assert pretty(SymbolWord("x")) == "x"


def test_symbols_are_bare_words() -> None:
    for name in ("", "a b", "a(", 'a"', "a\n"):
        with pytest.raises(UsageError, match="a symbol is not empty"):
            SymbolWord(name)


def test_messages_are_records() -> None:
    sample = Sample(text="hi", colour=Colour.GREEN, tags=(b"a", b"\xff"), put=PutOp(b"k", b"v"))
    assert sexpr_text(message_to_sexpr(sample)) == (
        '(Sample (text "hi") (count 0) (flag false) (colour GREEN) (tags ("a" ff)) '
        '(put (PutOp (key "k") (value "v"))) (ratio 0.0))'
    )
    assert sexpr_text(message_to_sexpr(Sample(maybe=3))).count("(maybe 3)") == 1
    assert sexpr_text(message_to_sexpr(Empty())) == "ok"


def test_wrappers_are_transparent() -> None:
    batch = Batch((Operation(put=PutOp(b"k", b"v")), Operation(delete=DeleteOp(b"old"))))
    assert sexpr_text(message_to_sexpr(batch)) == (
        '((PutOp (key "k") (value "v")) (DeleteOp (key "old")))'
    )
    assert sexpr_text(message_to_sexpr(Operation())) == "(Operation)"
