"""Options: parsed once, and refused with their name, their value and what is accepted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from datalattice.arrow.values import ValueFormat
from datalattice.errors import UsageError
from datalattice.pipeline.options import declared, owner_name
from datalattice.pipeline.queue.options import (
    DEFAULT_COLUMNS,
    QUEUE_COLUMNS,
    Edge,
    PartitionFormat,
    Positions,
    QueueOptions,
    parse_options,
)
from datalattice.pipeline.read_targets import ReadTarget

KEY = "ab" * 32
NAMES = [one.name for one in declared(ReadTarget, QueueOptions).values()]


def test_the_defaults() -> None:
    options = parse_options({"store": "folder"})
    assert options.target == ReadTarget("folder")
    assert (options.owners, options.topics, options.columns) == ((), (), DEFAULT_COLUMNS)
    assert options.value_format is options.key_format is ValueFormat.CELL
    assert options.partition_format is PartitionFormat.LONG
    assert options.starting == Positions(Edge.EARLIEST, {})
    assert options.ending == Positions(Edge.LATEST, {})
    assert options.starting_timestamp_ms is None
    assert options.max_offsets_per_trigger is None
    assert options.min_partitions is None
    assert options.fail_on_data_loss
    assert options.verify


def test_only_a_folder_is_read_without_comparing_hashes() -> None:
    assert not parse_options({"store": "folder", "verify": "false"}).verify
    assert parse_options({"node": "tcp://127.0.0.1:1", "verify": "true"}).verify
    with pytest.raises(UsageError, match="cells from a node are always compared"):
        parse_options({"node": "tcp://127.0.0.1:1", "verify": "false"})


def test_names_are_case_insensitive_and_words_too() -> None:
    options = parse_options(
        {
            "STORE": "folder",
            "ValueFormat": "JSON",
            "keyformat": " string ",
            "failondataloss": "FALSE",
            "startingOFFSETS": "Latest",
            "maxOffsetsPerTrigger": "10",
            "minPartitions": "3",
            "columns": "Offset, VALUE",
        }
    )
    assert options.value_format is ValueFormat.JSON
    assert options.key_format is ValueFormat.STRING
    assert not options.fail_on_data_loss
    assert options.starting.default is Edge.LATEST
    assert (options.max_offsets_per_trigger, options.min_partitions) == (10, 3)
    assert options.columns == ("offset", "value")


def test_the_key_is_formatted_like_the_value_unless_told() -> None:
    assert parse_options({"store": "s", "valueFormat": "json"}).key_format is ValueFormat.JSON


def test_the_folder_may_come_from_load() -> None:
    assert parse_options({"path": "folder"}).target == ReadTarget("folder")
    assert parse_options({"path": "folder", "store": "folder"}).target == ReadTarget("folder")


def test_headers_come_on_demand() -> None:
    assert parse_options({"store": "s", "includeHeaders": "true"}).columns == QUEUE_COLUMNS
    assert parse_options({"store": "s", "includeHeaders": "false"}).columns == DEFAULT_COLUMNS
    chosen = parse_options({"store": "s", "includeHeaders": "true", "columns": "headers,offset"})
    assert chosen.columns == ("headers", "offset")


def test_names_are_listed_with_commas_or_as_json() -> None:
    options = parse_options({"store": "s", "topic": "a, b", "owner": f"0x{KEY.upper()},{KEY}"})
    assert options.topics == ("a", "b")
    assert options.owners == ("0x" + KEY, "0x" + KEY)
    assert parse_options({"store": "s", "topic": '["a,b", "c"]'}).topics == ("a,b", "c")


def test_what_the_names_select() -> None:
    options = parse_options({"store": "s", "topic": "a,b", "owner": KEY})
    assert options.selects("0x" + KEY, "a")
    assert not options.selects("0x" + KEY, "c")
    assert not options.selects("0x" + "cd" * 32, "a")
    assert parse_options({"store": "s"}).selects("anyone", "anything")


def test_owners_are_named_by_hex_or_as_they_are() -> None:
    assert owner_name(KEY.upper()) == owner_name("0X" + KEY) == "0x" + KEY
    assert owner_name("did:key:x") == "did:key:x"
    assert owner_name("ab") == "ab"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"0": 5}', {("0",): 5}),
        ('{"t": {"0": 5, "1": -2}}', {("t", "0"): 5, ("t", "1"): Edge.EARLIEST}),
        (
            json.dumps({KEY: {"t": {"0": 0, "1": "latest", "2": -1}}}),
            {
                ("0x" + KEY, "t", "0"): 0,
                ("0x" + KEY, "t", "1"): Edge.LATEST,
                ("0x" + KEY, "t", "2"): Edge.LATEST,
            },
        ),
    ],
)
def test_positions_are_named_by_as_much_as_needed(text: str, named: object) -> None:
    assert parse_options({"store": "s", "startingOffsets": text}).starting.named == named


def test_the_longest_name_counts() -> None:
    text = json.dumps({"0": 1, "t": {"0": 2}, "me": {"t": {"0": 3}}})
    positions = parse_options({"store": "s", "endingOffsets": text}).ending
    assert positions.of("me", "t", "0") == 3
    assert positions.of("you", "t", "0") == 2
    assert positions.of("you", "u", "0") == 1
    assert positions.of("you", "u", "1") is Edge.LATEST
    assert not positions.has(Edge.EARLIEST)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("valueFormat", "avro"),
        ("valueFormat", ""),
        ("keyFormat", "cells"),
        ("partitionFormat", "int"),
        ("failOnDataLoss", "yes"),
        ("verify", "no"),
        ("includeHeaders", "1"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-5"),
        ("maxOffsetsPerTrigger", "1e3"),
        ("maxOffsetsPerTrigger", str(2**63)),
        ("minPartitions", "many"),
        ("minPartitions", "0"),
        ("startingTimestamp", str(2**63)),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-1"),
        ("columns", "offset,offset"),
        ("columns", "offset,size"),
        ("columns", ""),
        ("columns", ","),
        ("topic", ""),
        ("topic", "a,,b"),
        ("topic", "[1]"),
        ("topic", "[]"),
        ("topic", '["a"'),
        ("owner", '[""]'),
        ("startingOffsets", "newest"),
        ("startingOffsets", "5"),
        ("startingOffsets", "{}"),
        ("startingOffsets", '{"0": -3}'),
        ("startingOffsets", '{"0": 1.5}'),
        ("startingOffsets", '{"0": true}'),
        ("startingOffsets", '{"0": "first"}'),
        ("startingOffsets", '{"0": {}}'),
        ("startingOffsets", '{"a": {"b": {"c": {"d": 1}}}}'),
        ("startingOffsets", '{"0": ' + str(2**63) + "}"),
        ("endingOffsets", "[" * 100_000),
        ("endingOffsets", '{"0"'),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options({"store": "s", name: value})
    text = str(caught.value)
    assert text.startswith(f"option {name}={value!r} is not accepted: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "option store is missing"),
        ({"store": ""}, "option store='' is not accepted"),
        ({"store": "a", "path": "b"}, "option path='b' is not accepted"),
        ({"store": "s", "includeHeaders": "true", "columns": "offset"}, "option includeHeaders="),
        ({"store": "s", "startingOffsets": "latest", "startingTimestamp": "5"}, "exclude each"),
        ({"store": "s", "startingOfsets": "latest"}, "did you mean startingOffsets?"),
        ({"store": "s", "subscribe": "t"}, "unknown option subscribe='t'"),
    ],
)
def test_what_is_missing_unknown_or_contradicting_is_said(given: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options(given)
    assert says in str(caught.value)


def test_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        parse_options({"store": "s", "zzz": "1"})
    assert all(name in str(caught.value) for name in NAMES)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), st.text(max_size=20)))
def test_any_text_gives_options_or_one_clear_error(given_options: dict[str, str]) -> None:
    try:
        parse_options(given_options)
    except UsageError as error:
        assert "option" in str(error)  # noqa: PT017 - both ends are right
