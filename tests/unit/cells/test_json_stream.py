"""JSON streams: what is refused, with its place; large values in parts; printed forms."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest

from datalattice.cells import (
    Address,
    Char,
    Flag,
    Index,
    Keyword,
    List,
    Map,
    Ref,
    Set,
    Symbol,
    Syntax,
    Value,
    Vector,
    encode,
    from_json,
    from_text,
    jsonstream,
    make_text,
    read_json,
    same,
    to_json,
    to_text,
    value_hash,
    write_json,
)
from datalattice.errors import BadFormat, LimitExceeded, MissingData, TypeMismatch, UsageError
from datalattice.limits import TEXT_DEPTH_MAX
from datalattice.store import MemoryStore


def read(text: str | bytes, **options: Any) -> Value:
    return read_json(io.BytesIO(text) if isinstance(text, bytes) else io.StringIO(text), **options)


def written(value: Value, **options: Any) -> str:
    out = io.StringIO()
    write_json(value, out, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Keyword("k"), '{"$keyword":"k"}'),
        (Symbol("s"), '{"$symbol":"s"}'),
        (Char("A"), '{"$char":"A"}'),
        (Char(0xD800), '{"$cell":"3d' + 'd800"}'),
        (Address(2**60), '{"$address":"1152921504606846976"}'),
        (Flag(5), '{"$cell":"b5"}'),
        (b"\x00\xff", '{"$blob":"00ff"}'),
        ("\udc80", '{"$utf8":"80"}'),
        (2**53 - 1, "9007199254740991"),
        (2**53, '{"$int":"9007199254740992"}'),
        (-(2**53), '{"$int":"-9007199254740992"}'),
        (float("inf"), '{"$double":"Infinity"}'),
        (1.0, "1.0"),
        (Set.of([1]), '{"$set":[1]}'),
        (List.of([1, 2]), '{"$list":[1,2]}'),
        (Index.of({"a": 1}), '{"$index":{"a":1}}'),
        (Syntax(1), '{"$syntax":[1,null]}'),
        (Map.of({"$x": 1}), '{"$string:$x":1}'),
        (Map.of({Keyword("a:b"): 1}), '{"$keyword:a:b":1}'),
        (Map.of({None: 1}), '{"$json:null":1}'),
        (Map.of({Char("A"): 1}), '{"$json:{\\"$char\\":\\"A\\"}":1}'),
    ],
)
def test_marks_are_as_documented(value: Value, text: str) -> None:
    assert written(value) == text
    assert encode(read(text)) == encode(value)
    assert encode(read(text.encode())) == encode(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a value should be here"),
        ("[1,]", "character 4: a value"),
        ('{"a":1,}', "name of a member"),
        ("{a:1}", "name of a member"),
        ('{"a"}', "a colon"),
        ("[1 2]", "a comma or ]"),
        ('{"a":1 "b":2}', "a comma or }"),
        ("[1", "got the end"),
        ("1 2", "something follows"),
        ("nul", "not JSON at character 1"),
        ('"a\nb"', "control character"),
        ('"\\ud800"', "half of a character"),
        ("NaN", "a value should be here"),
        ("-Infinity", "not JSON"),
        ("01", "something follows"),
        ('{"$set":1}', "an array is needed"),
        ('{"$set":[1],"x":2}', "stands alone"),
        ('{"x":2,"$set":[1]}', "stands alone"),
        ('{"$nothing":1}', "unknown mark"),
        ('{"$nothing:x":1}', "unknown mark"),
        ('{"$blob":"0"}', "hex digits"),
        ('{"$keyword":""}', "mark $keyword"),
        ('{"$keyword":5}', "a string is needed"),
        ('{"$char":"ab"}', "mark $char"),
        ('{"$double":"5"}', "NaN, Infinity"),
        ('{"$int":"1.5"}', "decimal digits"),
        ('{"$address":"-1"}', "mark $address"),
        ('{"$cell":"20' + "00" * 32 + '"}', "cell"),
        ('{"$cell":"8101"}', "mark $cell|not"),
        ('{"$record":[1]}', "an array of 2"),
        ('{"$record":[99,[]]}', "mark $record"),
        ('{"$index":{"$int:5":1}}', "mark $index"),
        ('{"$signed":{}}', "public-key, signature, value"),
        ('{"$syntax":[1,2]}', "mark $syntax"),
        (b'"\xff"', "UTF-8"),
        ("[" * 2_000, "down to"),
    ],
)
def test_what_is_no_value_is_refused_with_its_place(text: str | bytes, words: str) -> None:
    with pytest.raises((BadFormat, UsageError)) as caught:
        read(text)
    assert any(word in str(caught.value) for word in words.split("|")), caught.value


def test_plain_text_knows_no_marks() -> None:
    assert read('{"$set":[1]}', marked=False) == from_json('{"$set":[1]}')
    with pytest.raises(BadFormat, match="500 levels"):
        read("[" * 501 + "]" * 501, marked=False)
    assert read("[" * 500 + "]" * 500, marked=False) == from_json("[" * 500 + "]" * 500)


@pytest.mark.parametrize("marked", [True, False])
def test_a_text_that_is_nested_costs_no_more_than_a_flat_one(marked: bool) -> None:
    numbers = "[" + "1," * 100_000 + "1]"  # more than is looked at whole
    nested = '{"a":' * 60 + "[" * 400 + numbers + "]" * 400 + "}" * 60
    started = time.thread_time()
    flat = read(f"[{numbers}]", marked=marked)
    middle = time.thread_time()
    found = read(nested, marked=marked)
    assert time.thread_time() - middle < 30 * (middle - started) + 1
    for _ in range(60):
        assert isinstance(found, Map)
        found = found["a"]
    for _ in range(400):
        assert isinstance(found, Vector)
        found = found[0]
    assert same(found, flat[0])  # type: ignore[index]


def test_an_integer_is_as_long_as_a_cell_can_be_and_no_longer() -> None:
    for count in (600, 601, 4_400, 9_000):
        digits = "7" * count
        for text in (f"[{digits},-{digits}]", f'{{"a":{digits}}}'):
            assert same(read(text), from_json(text))
            assert digits in to_json(from_json(text))
    started = time.thread_time()
    for text in (f"[{'7' * 10_000}]", f"[{'7' * 1_000_000}]"):
        for parse in (read, from_json):
            with pytest.raises(BadFormat, match="an integer has at most"):
                parse(text)
    assert time.thread_time() - started < 5


def test_the_last_of_equal_names_counts_and_names_may_be_long() -> None:
    long = "n" * 200
    text = f'{{"a":1,"a":[2],"{long}":1,"{long}":3,"":0}}'
    assert same(read(text), Map.of({"a": [2], long: 3, "": 0}))
    assert same(from_json(text), read(text))
    many = Map.of({f"{at}": [at] for at in range(100)} | {"é": "x" * 5_000})
    assert same(read(written(many)), many)


def test_the_deepest_value_goes_both_ways_and_a_deeper_one_is_refused() -> None:
    value: Value = 1
    for _ in range(TEXT_DEPTH_MAX - 1):
        value = Set.of([value])
    assert same(read(written(value)), value)
    with pytest.raises(UsageError, match="500 levels"):
        written(Set.of([Set.of([value])]))


def test_lines_become_one_vector() -> None:
    assert read('1\n{"a":2}\n\n[3]', lines=True) == Vector.of([1, Map.of({"a": 2}), [3]])
    assert read("", lines=True) == Vector.of([])
    with pytest.raises(BadFormat, match="character 5"):
        read("[1]\n]", lines=True)


def test_a_large_value_is_staged_in_parts_and_stays_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jsonstream, "STAGE_CHARS", 1_000)
    monkeypatch.setattr(jsonstream, "WHOLE_CHARS", 1_000)
    monkeypatch.setattr(jsonstream, "_PENDING_MAX", 16)
    rows = Vector.of([Map.of({"n": at, "t": f"row {at} " * 30}) for at in range(300)])
    value = Map.of({"rows": rows, "index": Index.of({f"{at}": at for at in range(300)}), "z": "z"})
    steps: list[int] = []
    with MemoryStore() as store:
        staged: list[bytes] = []

        def stage(part: Value) -> None:
            staged.append(value_hash(part))
            store.put(part)

        found = read(written(value), stage=stage, progress=steps.append)
        assert same(found, value)
        assert steps == sorted(steps)
        if not isinstance(jsonstream.read_json, type(len)):  # compiled constants are fixed
            assert len(staged) > 10


def test_long_strings_and_blobs_are_written_part_by_part() -> None:
    text = make_text("é€😀" * 40_000)
    blob = read('{"$blob":"' + "ab" * 200_000 + '"}')
    for value in (text, blob, read('{"$utf8":"' + "ff" * 9_000 + '"}')):
        out = written(value)
        assert same(read(out), value)
    pieces: list[str] = []

    class Out:
        def write(self, text: str) -> None:
            pieces.append(text)

    assert write_json(Vector.of([blob, text]), Out()) == sum(map(len, pieces))
    assert len(pieces) > 3


def test_a_string_longer_than_the_limit_is_refused() -> None:
    class Endless:
        def read(self, count: int) -> str:
            self.read = lambda count: "x" * count  # type: ignore[method-assign]
            return '"' + "x" * (count - 1)

    with pytest.raises(LimitExceeded, match="at most 100000000"):
        read_json(Endless())


def test_a_part_that_is_not_here_is_named() -> None:
    long = Vector.of(["x" * 500])
    lacking = Vector.of([1])
    kids = lacking._open()
    kids[0] = Ref(value_hash(long), None)
    with pytest.raises(MissingData):
        written(lacking)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" ; a comment\n [1, 2 ,3] ", Vector.of([1, 2, 3])),
        ("(1 -2 +3)", List.of([1, -2, 3])),
        ("{:a 1,:b nil}", Map.of({Keyword("a"): 1, Keyword("b"): None})),
        ("#{1 true}", Set.of([1, True])),
        ("#Index {0x12 1}", Index.of({b"\x12": 1})),
        ("^{:m 1} [x]", Syntax(Vector.of([Symbol("x")]), Map.of({Keyword("m"): 1}))),
        ("^{} ^{} 1", Syntax(Syntax(1))),
        (r'"a\n\"\u0041"', 'a\n"A'),
        (r"[\newline \A \( \space]", Vector.of([Char(10), Char("A"), Char("("), Char(32)])),
        ("[##Inf 1.5E-5 -0.0]", Vector.of([float("inf"), 1.5e-5, -0.0])),
        ("[#12 #[b5] 0xcafe -]", Vector.of([Address(12), Flag(5), b"\xca\xfe", Symbol("-")])),
    ],
)
def test_printed_forms_are_read(text: str, value: Value) -> None:
    assert encode(from_text(text)) == encode(value)
    assert encode(from_text(to_text(value))) == encode(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text ends"),
        ("[1", "the text ends"),
        ("]", "closes what was not opened"),
        ("[1)", "closes what was not opened"),
        ("1 2", "something follows"),
        ("{1}", "a value for each key"),
        ("^1 2", "metadata is a map"),
        ('"a', "does not end"),
        (r'"\q"', "no escape"),
        (r"\nothing", "no character"),
        ("#[20]", "not a printed value"),
        ("#[8101]", "not a printed value"),
        ("#x", "is not a value"),
        ("12x", "is not a value"),
        (":", "not a printed value"),
        ("#Signed {}", ":public-key"),
        ("#Index {1 2}", "not a printed value"),
        ("[" * 501, "500 levels"),
    ],
)
def test_what_is_no_printed_form_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(BadFormat, match="at character") as caught:
        from_text(text)
    assert words in str(caught.value)


def test_a_printed_form_is_a_str() -> None:
    with pytest.raises((TypeMismatch, TypeError)):
        from_text(b"1")  # type: ignore[arg-type]
