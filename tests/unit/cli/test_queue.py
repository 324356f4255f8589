"""Queue commands: what they print, what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from datalattice.apps.queue import Queue
from datalattice.cells import Keyword, Text, to_text
from datalattice.cli.queue import offering as commands
from datalattice.cli.values import parse_value, value_text
from datalattice.client import parse_path_key
from datalattice.errors import StoreFull, UsageError


def records(lattice: Any, topic: str, *more: str) -> list[object]:
    return [one["value"] for one in lattice("queue", "range", topic, *more, "--json").document]


@pytest.mark.usefixtures("owner")
def test_offers_are_numbered_and_read_back(lattice: Any) -> None:
    assert lattice("queue", "offer", "t", "a").out == "t 0: offset 0\n"
    assert lattice("queue", "offer", "t", "b", "c").out == "t 0: offsets 1 to 2\n"
    done = lattice("queue", "offer", "t", "d", "e", "--json").document
    assert done == {"topic": "t", "partition": 0, "offset": 3, "count": 2}
    assert lattice("queue", "range", "t").out == "a\nb\nc\nd\ne\n"
    assert lattice("queue", "range", "t", 1, 2).out == "b\nc\n"
    assert lattice("queue", "range", "t", 4, 2).out == ""
    assert lattice("queue", "range", "t", 4, 2, "--json").out == "[]\n"
    assert records(lattice, "t", "3", "100") == ["d", "e"]
    assert lattice("queue", "peek", "t").out == "a\n"
    assert lattice("queue", "peek", "t", "--last").out == "e\n"
    assert lattice("queue", "peek", "t", 2, "--json").document["offset"] == 2


def test_info_and_topics_say_what_is_there(lattice: Any, owner: str) -> None:
    lattice("queue", "offer", "t", "a", "b")
    lattice("queue", "offer", "other", "c", "-p", ":east")
    info = lattice("queue", "info", "t", "--json").document
    assert (info["topic"], info["owner"], info["meta"]) == ("t", owner, {})
    (one,) = info["partitions"]
    assert (one["partition"], one["start"], one["end"], one["records"]) == (0, 0, 2, 2)
    assert owner in lattice("queue", "info", "t").out
    listed = lattice("queue", "list", "--json").document
    assert sorted(one["topic"] for one in listed) == ["other", "t"]
    assert "other" in lattice("queue", "list", "-o", owner).out
    assert lattice("queue", "list", "-o", "00" * 32, "--json").document == []


@pytest.mark.usefixtures("owner")
def test_truncation_removes_the_oldest(lattice: Any) -> None:
    lattice("queue", "offer", "t", "a", "b", "c")
    assert lattice("queue", "truncate", "t", 2).out == "t 0: 2 removed\n"
    assert lattice("queue", "truncate", "t", 1, "--json").document["removed"] == 0
    assert records(lattice, "t") == ["c"]
    ran = lattice("queue", "peek", "t", 1)
    assert (ran.code, ran.line()) == (1, "there is no record at offset 1; offsets here: 2 to 2")


@pytest.mark.usefixtures("owner")
def test_truncating_never_makes_a_topic(lattice: Any) -> None:
    lattice("queue", "offer", "t", "a")
    for arguments, words in (
        (["tt", "1"], "no topic 'tt'"),
        (["t", "1", "-p", "7"], "no partition 7"),
        (["t", "--", "-1"], "got -1"),
        (["t", str(1 << 63)], "64 bits"),
    ):
        ran = lattice("queue", "truncate", *arguments)
        assert ran.code == (1 if words.startswith("no ") else 2)
        assert words in ran.line()
    assert [one["topic"] for one in lattice("queue", "list", "--json").document] == ["t"]


@pytest.mark.usefixtures("owner")
def test_what_is_not_there_is_said(lattice: Any) -> None:
    lattice("queue", "offer", "t", "a")
    for arguments, words in (
        (["peek", "t", "9"], "there is no record at offset 9; offsets here: 0 to 0"),
        (["peek", "t", "--", "-1"], "there is no record at offset -1"),
        (["peek", "t", "1", "--last"], "not both"),
        (["peek", "t", str(10**30)], "64 bits"),
        (["range", "t", "0", str(10**30)], "64 bits"),
        (["range", "nope"], "there is no topic 'nope' here"),
        (["info", "nope"], "there is no topic 'nope' here"),
        (["range", "t", "-p", "4"], "topic t has no partition 4; it has: 0"),
        (["range", "t", "-o", "zz"], "64 hex digits"),
        (["range", "t", "-o", "00" * 32], "has no topic 't' here"),
    ):
        ran = lattice("queue", *arguments)
        assert (ran.code, ran.out) == (1 if " no " in words else 2, "")
        assert words in ran.line()


@pytest.mark.usefixtures("owner")
def test_values_keep_their_type(lattice: Any) -> None:
    many_nines = "9" * 5_000
    lattice("queue", "offer", "j", '{"a":[1,2.5,null,true]}', '"x"', "7", "--in", "json")
    lattice("queue", "offer", "h", "0xdeadbeef", "abcd", "", "--in", "hex")
    lattice("queue", "offer", "u", "héllo ☃", "😀", "", "tab\tinside")
    assert records(lattice, "j") == [{"a": [1, 2.5, None, True]}, "x", 7]
    assert records(lattice, "h") == ["0xdeadbeef", "0xabcd", "0x"]
    assert records(lattice, "u") == ["héllo ☃", "😀", "", "tab\tinside"]
    assert lattice("queue", "offer", "n", many_nines, "--in", "json").code == 0
    assert lattice("queue", "range", "n").out == many_nines + "\n"


@pytest.mark.usefixtures("owner")
def test_a_long_text_is_printed_as_it_is(lattice: Any) -> None:
    long = "lang und länger " * 1_000
    lattice("queue", "offer", "t", long)
    assert lattice("queue", "peek", "t").out == long + "\n"
    assert value_text(Text.of(long)) == long
    assert records(lattice, "t") == [long]


@pytest.mark.usefixtures("owner")
def test_a_topic_has_the_partitions_that_it_was_made_with(lattice: Any) -> None:
    lattice("queue", "create", "jobs", "--partitions", "3")
    lattice("queue", "offer", "jobs", "a", "--key", "k")
    assert json.loads(lattice("queue", "list", "--json").out)[0]["partitions"] == 3
    assert "meta   {:num-partitions 3}" in lattice("queue", "info", "jobs").out


def test_keys_headers_and_partitions(lattice: Any) -> None:
    lattice("queue", "offer", "t", "v", "-k", ":k", "--headers", '{"a": 1}', "-p", "0x00ff")
    record = lattice("queue", "peek", "t", "-p", "0x00ff", "--json").document
    assert record["headers"] == {"a": 1}
    assert ":k\tv" in lattice("queue", "range", "t", "-p", "0x00ff", "--long").out


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["v", "--headers", "[1]"], "--headers is a JSON object, got [1]"),
        (["v", "--headers", "nope"], "--headers is a JSON object"),
        (["zz", "--in", "hex"], "hex digits"),
        (["0xa", "--in", "hex"], "hex digits"),
        (["{bad", "--in", "json"], "not a JSON value: Expecting"),
        (["good", "{", "--in", "json"], "not a JSON value"),
        (["v", "-p", ""], "a key is empty"),
        (["v", "-k", '"open'], "JSON string"),
        (["v", "-p", "0x1"], "hex digits"),
    ],
)
def test_an_offer_that_is_wrong_writes_nothing(
    lattice: Any, options: list[str], words: str
) -> None:
    ran = lattice("queue", "offer", "t", *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.line()
    after = lattice("queue", "list", "--json")
    assert after.code == 2 or after.document == []  # without a store, or with an empty one


@pytest.mark.usefixtures("owner")
def test_values_come_from_standard_input_line_by_line(lattice: Any) -> None:
    ran = lattice("queue", "offer", "t", stdin="a\r\n\nü\nlast")
    assert ran.out == "t 0: offsets 0 to 3\n"
    assert records(lattice, "t") == ["a", "", "ü", "last"]
    ran = lattice("queue", "offer", "t", stdin="")
    assert ran.code == 2
    assert "no values" in ran.line()


@pytest.mark.usefixtures("owner")
def test_a_bad_line_is_named_with_what_was_written_before_it(
    lattice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "BATCH", 2)
    ran = lattice("queue", "offer", "t", "--in", "json", stdin="1\n2\n3\n4\n5\nsix\n7\n")
    assert ran.code == 2
    assert ran.line().startswith("line 6 of standard input: not a JSON value")
    assert ran.line().endswith("; on disk: offsets 0 to 3")
    assert records(lattice, "t") == [1, 2, 3, 4]


@pytest.mark.usefixtures("owner")
def test_a_store_that_fails_on_the_way_says_what_it_kept(
    lattice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "BATCH", 2)
    real, calls = Queue.offer_many, iter(range(10))

    def full(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 1:
            raise StoreFull("no room left on the disk")
        return real(*arguments, **options)

    monkeypatch.setattr(Queue, "offer_many", full)
    ran = lattice("queue", "offer", "t", stdin="a\nb\nc\n")
    assert (ran.code, ran.line()) == (1, "no room left on the disk; on disk: offsets 0 to 1")


@pytest.mark.usefixtures("owner")
def test_null_is_a_tombstone(lattice: Any) -> None:
    lattice("queue", "offer", "t", "-k", "a", "null", "--in", "json")
    lattice("queue", "offer", "t", "-k", "b", "--in", "json", stdin="1\nnull\n")
    assert records(lattice, "t") == [None, 1, None]
    assert lattice("queue", "peek", "t", 2, "--json").document["key"] == "b"


def test_values_that_wait_for_others_are_committed_without_them() -> None:
    now = [0.0]

    def coming() -> Iterator[Any]:
        yield "a"
        now[0] += commands._PAUSE_S / 2
        yield "b"
        now[0] += commands._PAUSE_S / 2
        yield commands.Pause()
        yield commands.Pause()
        yield "c"
        now[0] += commands._PAUSE_S
        yield "d"
        yield "e"

    batches = commands.batches(coming(), lambda: now[0])
    assert list(batches) == [["a", "b"], ["c", "d"], ["e"]]


def test_batches_end_by_number_and_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "BATCH", 3)
    monkeypatch.setattr(commands, "BATCH_LENGTH", 10)
    values: list[object] = ["a", "b", "c", "d" * 9, b"e", 5, "f" * 10, Text.of("g" * 5_000), "h"]
    lengths = [len(batch) for batch in commands.batches(values)]
    assert lengths == [3, 2, 2, 1, 1]


def test_offsets_with_gaps_are_told_apart() -> None:
    text = commands.offsets_text
    assert text([range(4, 5)]) == "offset 4"
    assert text([range(3), range(3, 6)]) == "offsets 0 to 5"
    assert text([range(3), range(5, 6), range(9, 11)]) == "offsets 0 to 2, 5, 9 to 10"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("flights", "flights"),
        ("3", 3),
        ("-3", -3),
        ("3.5", "3.5"),
        (":value", Keyword("value")),
        (":", ":"),
        ("0x00ff", b"\x00\xff"),
        ('"3"', "3"),
        ('"a\\nb"', "a\nb"),
        ("9" * 30, "9" * 30),
    ],
)
def test_keys_are_written_as_they_print(text: str, key: object) -> None:
    assert parse_path_key(text) == key
    assert type(parse_path_key(text)) is type(key)


@pytest.mark.parametrize("text", ["", "0x1", "0xzz", '"open', '"a" b', ":" + "x" * 200])
def test_what_begins_like_a_key_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_path_key(text)


def test_forms_of_values() -> None:
    assert parse_value("1", "text") == "1"
    assert parse_value("1", "json") == 1
    assert parse_value("ff", "hex") == parse_value("0xFF", "hex") == b"\xff"
    assert to_text(parse_path_key(":a")) == ":a"
    with pytest.raises(UsageError, match="--in is"):
        parse_value("1", "yaml")


@pytest.mark.usefixtures("owner")
def test_long_lists_are_valid_json(lattice: Any) -> None:
    lattice("queue", "offer", "t", *[f"line {n}\n" for n in range(50)])
    ran = lattice("queue", "range", "t", "--json")
    assert [one["offset"] for one in json.loads(ran.out)] == list(range(50))
