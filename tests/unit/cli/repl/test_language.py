"""The text of commands: what is read, what is refused, and every request written and read again."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from datalattice.actions import (
    ACTIONS,
    CELL_FORMAT,
    ActionRequest,
    CreateStore,
    ExecMethod,
    HexFormat,
    KeyOperation,
    KeyWrite,
    ListTopics,
    OfferRecords,
    WriteFile,
    WriteKeys,
)
from datalattice.cells import Map, Vector, to_cell
from datalattice.cli.repl.language import (
    COMMAND_DEPTH_MAX,
    BareWord,
    Incomplete,
    JsonPart,
    NamedPart,
    parse_command,
    read_message,
    write_command,
)
from datalattice.errors import UsageError
from datalattice.protobuf import INT_RANGES, FieldInfo, Message
from datalattice.testing.strategies import values
from datalattice.weaver.kv import BatchRequest

# --- every request --------------------------------------------------------------------------------

TEXTS = st.text(max_size=8)


def of_field(field: FieldInfo) -> st.SearchStrategy[Any]:
    one: st.SearchStrategy[Any]
    if field.codec is CELL_FORMAT:
        one = values()
    elif isinstance(field.codec, HexFormat):
        size = field.codec._size
        exact = st.binary(min_size=size or 32, max_size=size or 32)
        one = exact if size else st.one_of(exact, st.binary(max_size=8)).filter(reads(field.codec))
    elif field.kind == "message":
        one = of_message(field.type)  # type: ignore[arg-type]
    elif field.kind == "enum":
        one = st.sampled_from(field.type)  # type: ignore[arg-type]
    elif field.kind in INT_RANGES:
        one = st.integers(*INT_RANGES[field.kind])
    else:
        one = {
            "bool": st.booleans(),
            "bytes": st.one_of(st.binary(max_size=8), TEXTS.map(str.encode)),
            "string": TEXTS,
            "double": st.floats(allow_nan=False),
        }[field.kind]
    if field.repeated:
        return st.lists(one, max_size=3).map(tuple)
    return one


def reads(codec: HexFormat) -> Callable[[bytes], bool]:
    """Return what asks whether a format reads the bytes that it shows."""

    def is_read(data: bytes) -> bool:
        try:
            return codec.read(codec.document(data)) == data
        except UsageError:
            return False  # the id of an asset has 32 bytes, whatever form it is written in

    return is_read


def of_message(cls: type[Message]) -> st.SearchStrategy[Any]:
    unset = cls()
    fields = {field.name: of_field(field) for field in cls.declared()}
    return st.builds(
        cls,
        **{
            name: st.none() | one if getattr(unset, name) is None else one
            for name, one in fields.items()
        },
    )


def valid(request: Message) -> bool:
    try:
        request.encode()
    except UsageError:
        return False  # an empty hash: the default of a field that must be given
    return True


@pytest.mark.parametrize("name", list(ACTIONS))
@settings(max_examples=25)
@given(data=st.data())
def test_every_request_reads_back_from_its_text(name: str, data: st.DataObject) -> None:
    request: ActionRequest[Any] = data.draw(of_message(ACTIONS[name].request).filter(valid))
    text = write_command(name, request)
    word, *parts = parse_command(text)
    assert word == BareWord(name)
    again = read_message(type(request), parts)
    assert again.encode() == request.encode(), text  # True, 1 and 1.0 are equal to Python
    listed = parse_command(f"({text})")
    assert listed == (word, *parts)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parts = parse_command(text)
    except UsageError:
        return
    for request in (OfferRecords, WriteKeys, WriteFile, CreateStore):
        with contextlib.suppress(UsageError):
            read_message(request, parts)


# --- forms ----------------------------------------------------------------------------------------


def read(cls: type[Message], text: str) -> Any:
    return read_message(cls, parse_command(text)[1:])


OFFERED = OfferRecords(topic="log", values=("a", 7, "b c"))


@pytest.mark.parametrize(
    "text",
    [
        'offer log (a 7 "b c")',
        "offer topic=log values=(a 7 'b c')",
        'offer values=("a" 7 "b c") topic="log"',
        '(offer :topic "log" :values ("a" 7 "b c"))',
        '( offer log :values (a 7 "b\\u0020c") )',
        'offer log ["a", 7, "b c"]',
        'offer log values=["a",7,"b c"]',
    ],
)
def test_one_request_has_many_forms(text: str) -> None:
    assert read(OfferRecords, text) == OFFERED


def test_a_value_is_json_where_a_bare_word_reads_so() -> None:
    offered = read(OfferRecords, """offer log (7 "7" 7.5 true null nil '{"a":1}' {"a": 1} [1])""")
    assert offered.values == (
        7,
        "7",
        7.5,
        True,
        None,
        "nil",
        '{"a":1}',
        Map.of({"a": 1}),
        Vector.of([1]),
    )
    assert read(OfferRecords, 'offer log {"$blob": "00ff"}').values == (b"\x00\xff",)
    assert read(OfferRecords, "offer log hello").values == ("hello",)
    assert read(OfferRecords, "offer log ()").values == ()


def test_bytes_are_text_or_hex_behind_0x() -> None:
    written = read(WriteFile, "write files /a 0x00ff")
    assert (written.path, written.data) == ("/a", b"\x00\xff")
    assert read(WriteFile, 'write files /a "0x00ff"').data == b"0x00ff"
    assert read(WriteFile, "write files /a data='two words'").data == b"two words"
    assert read(WriteFile, f"write files /a x if_match=0x{'ab' * 32}").if_match == b"\xab" * 32
    with pytest.raises(UsageError, match="pairs of hex digits"):
        read(WriteFile, "write files /a 0x0")


def test_messages_nest_and_may_be_json() -> None:
    write = KeyWrite(key="n", operation=KeyOperation.INCR, amount=-4)
    for text in (
        "write shop ((key=n operation=incr amount=-4))",
        "write shop writes=((n INCR amount=-4))",
        'write shop [{"key": "n", "operation": "incr", "amount": -4}]',
        'write shop {"key": "n", "operation": "incr", "amount": -4}',
    ):
        assert read(WriteKeys, text) == WriteKeys(database="shop", writes=(write,))


def test_a_member_of_a_oneof_is_named_first() -> None:
    operations = read(BatchRequest, "batch ((put k v) (delete old) (put=(a b)))")
    assert [one.put and one.put.value for one in operations.ops] == [b"v", None, b"b"]
    assert operations.ops[1].delete.key == b"old"
    with pytest.raises(UsageError, match="begins with one of put, delete"):
        read(BatchRequest, "batch ((take k))")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("offer log a b c d e f g", "takes 6 arguments: topic values partition key headers owner"),
        ("offer topc=log", "no field 'topc'; its fields: topic, values"),
        ("offer :topc log", "no field 'topc'"),
        ("offer log topic=log", "topic is given twice"),
        ("offer (a b)", "topic is one value, got a list"),
        ("offer log partition=(1 2)", r"partition is one value, got a list, or JSON: \[1, 2\]"),
        ("offer log (a=b)", "values takes a value without a name, got a="),
        ('offer {"a": 1}', "topic takes no JSON"),
        ("offer log NaN", "NaN"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(OfferRecords, text)


def test_numbers_words_and_ids_are_checked() -> None:
    for text, said in (
        ("write shop ((key=k operation=sum))", "operation is one of set, delete"),
        ("write shop ((key=k amount=many))", "amount is a whole number, got 'many'"),
        (f"write shop ((key=k amount={2**63}))", "amount is a whole number from"),
        ("write shop (k)", "writes is a list of its fields"),
        ('write shop {"ky": 1}', "ky: unknown"),
    ):
        with pytest.raises(UsageError, match=said):
            read(WriteKeys, text)
    with pytest.raises(UsageError, match="has 16 bytes, got 1"):
        read(ExecMethod, "exec 07 get")
    assert math.inf == read(WriteKeys, "write shop ((key=k score=inf))").writes[0].score


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a (b", r"a '\(' has no '\)'"),
        ('a "b', 'the text from character 3 has no closing "'),
        ("a 'b", "has no closing '"),
        ('a "b\\"', "has no closing"),
        ("a {", "text that begins with { is JSON"),
        ('a {"x":', "text that begins with { is JSON"),
        ("a [1,", "begins with"),
        ("a ((b)", r"has no '\)'"),
    ],
)
def test_what_may_go_on_is_incomplete(text: str, said: str) -> None:
    with pytest.raises(Incomplete, match=said):
        parse_command(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a )", r"the '\)' at character 3 has no '\('"),
        ('a "b"c', "a space is missing before character 6"),
        ("a {x}", "text that begins with { is JSON: .*, character 4; any other text needs quotes"),
        ('a "\\q"', "the text from character 3"),
        ("a :b", "there is no value after :b"),
        ("(a :b)", "there is no value after :b"),
        ("a [" + "[" * 100_000, "JSON is nested too deep|what begins"),
    ],
)
def test_what_no_line_can_mend_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_command(text)


def test_lists_nest_up_to_a_bound() -> None:
    for depth, is_read in (
        (COMMAND_DEPTH_MAX - 1, True),
        (COMMAND_DEPTH_MAX, True),
        (COMMAND_DEPTH_MAX + 1, False),
    ):
        text = "(" * depth + ")" * depth
        if is_read:
            parse_command(f"a {text}")
        else:
            with pytest.raises(UsageError, match="lists may be nested 32 deep; this is deeper"):
                parse_command(f"a {text}")


def test_blank_lines_and_comments_are_nothing() -> None:
    assert parse_command("") == parse_command("  \t") == parse_command(" # (a") == ()
    assert parse_command("a # b") == (BareWord("a"), BareWord("#"), BareWord("b"))


def test_parts_know_what_was_quoted() -> None:
    assert parse_command("a b= c=\"d e\" :f g 'h' [1] (i)") == (
        BareWord("a"),
        NamedPart("b", ""),
        NamedPart("c", "d e"),
        NamedPart("f", BareWord("g")),
        "h",
        JsonPart([1]),
        (BareWord("i"),),
    )


def test_fields_that_are_given_are_named_not_counted() -> None:
    given = {"store_id": b"\x07" * 16}
    parts = parse_command("exec get 0x01")[1:]
    assert read_message(ExecMethod, parts, given) == ExecMethod(
        store_id=b"\x07" * 16, method="get", payload=b"\x01"
    )
    parts = parse_command(f"exec get store_id={'08' * 16}")[1:]
    assert read_message(ExecMethod, parts, given).store_id == b"\x08" * 16
    with pytest.raises(UsageError, match="there is one more; store_id is given as store_id="):
        read_message(ExecMethod, parse_command("exec a b c")[1:], given)
    assert to_cell(read_message(ListTopics, (), {"owner": "north"}).owner) == "north"
