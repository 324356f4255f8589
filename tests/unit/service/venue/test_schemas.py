"""Schemas of inputs: what does not fit is refused before there is a job, whatever the schema is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from datalattice.crypto import KeyPair
from datalattice.errors import DataLatticeError, LimitExceeded, UnsupportedOperation, UsageError
from datalattice.service.venue import JobCaller, Json, VenueOperation
from datalattice.service.venue.schemas import (
    CHECK_WORK_MAX,
    COMPILED_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_SIZE_MAX,
    InputSchemas,
)
from datalattice.testing.venue_kit import EchoAdapter, VenueLife, venue_root

ASSET = bytes(32)
KEY = KeyPair(bytes(range(32)))
ALICE = JobCaller("did:key:z6MkAlice")
ROWS: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    "required": ["rows"],
    "$defs": {"row": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


def check(schema: Any, input: Json, *, strict: bool = True) -> None:
    InputSchemas().check(ASSET, {"input": schema, "strict": strict}, input)


@pytest.mark.parametrize(
    ("input", "text"),
    [
        ({"rows": [{"n": 1}, {"n": "x"}]}, r'^input\.rows\[1\]\.n: the value is not .*"integer"$'),
        ({}, '^input: "rows" is a required property$'),
        (None, '^input: the value is not of type "object"$'),
    ],
)
def test_an_error_has_the_path_and_not_the_value(input: Json, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check(ROWS, input)
    check(ROWS, {"rows": [{"n": 1}]})


def test_an_operation_that_is_not_strict_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schemas = InputSchemas()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            schemas.check(ASSET, {"input": ROWS}, {"rows": [{"n": 1}]})
            schemas.check(ASSET, {"input": ROWS}, {"rows": 7})
    [record] = caplog.records
    assert record.getMessage().endswith('input.rows: the value is not of type "array"')


def nested(depth: int) -> Any:
    schema: Any = True
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def doubled(levels: int) -> Any:
    """Return a small schema that is 2 ** levels large once its references are in their place."""
    parts: dict[str, Any] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]}
        for n in range(levels)
    }
    return {"$defs": parts | {f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def sized(size: int) -> Any:
    return {"examples": [0] * (size - 2)}


HOSTILE: list[tuple[Any, type[DataLatticeError], str]] = [
    ({"title": "x" * SCHEMA_BYTES_MAX}, LimitExceeded, f"at most {SCHEMA_BYTES_MAX}"),
    (nested(SCHEMA_DEPTH_MAX + 1), LimitExceeded, f"deeper than {SCHEMA_DEPTH_MAX}"),
    (sized(SCHEMA_SIZE_MAX + 1), LimitExceeded, f"more than {SCHEMA_SIZE_MAX} values"),
    (doubled(12), LimitExceeded, f"more than {SCHEMA_SIZE_MAX} values"),
    ({"$ref": "#"}, UsageError, "'#' refers to itself"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, UsageError, "to itself"),
    ({"$ref": "http://127.0.0.1:1/x"}, UsageError, "names a part of the schema"),
    ({"$ref": "file:///etc/passwd"}, UsageError, "names a part of the schema"),
    ({"$ref": "#there"}, UsageError, "names a part of the schema"),
    ({"$ref": "#/$defs/none"}, UsageError, "it has no part '#/\\$defs/none'"),
    ({"$dynamicRef": "#x"}, UsageError, "'\\$dynamicRef' is not supported"),
    ({"not": {"$id": "http://127.0.0.1:1/"}}, UsageError, "'\\$id' is not supported"),
    ({"$schema": "http://127.0.0.1:1/"}, UsageError, "Unknown meta-schema"),
    ({"pattern": "((a{1000}){1000}){1000}"}, UsageError, "not a"),
    ({"pattern": "(?=a)b"}, UsageError, "not a"),
    ({"type": "foo"}, UsageError, "not valid"),
    (7, UsageError, "a schema is an object or a boolean"),
    ("", UsageError, "a schema is an object or a boolean"),
]


@pytest.mark.parametrize(("schema", "error", "text"), HOSTILE)
def test_a_hostile_schema_is_refused(schema: Any, error: type[DataLatticeError], text: str) -> None:
    with pytest.raises(error, match=text):
        check(schema, "x")


@pytest.mark.parametrize(
    "schema",
    [
        nested(SCHEMA_DEPTH_MAX),
        sized(SCHEMA_SIZE_MAX),
        doubled(8),
        {"title": "x" * (SCHEMA_BYTES_MAX - 13)},
        {"$id": "http://127.0.0.1:1/x", "$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#/anyOf/1", "anyOf": [False, {"minLength": 1}]},
    ],
)
def test_a_schema_at_the_limits_is_used(schema: Any) -> None:
    check(schema, "x")


def test_a_pattern_takes_linear_time() -> None:
    with pytest.raises(UsageError, match="does not match"):
        check({"pattern": "^(a+)+$"}, "a" * 1_000_000 + "b")


def test_the_work_of_a_check_is_bounded() -> None:
    schema = {"items": {"enum": [0] * 997}}  # 1,000 values
    most = CHECK_WORK_MAX // 1_000
    check(schema, [0] * (most - 1))
    inputs: list[Any] = [[0] * most, {"x" * (16 * most): 0}, ["x" * (16 * most)]]
    for input in inputs:
        with pytest.raises(LimitExceeded, match="too large to be checked"):
            check(schema, input)


def test_a_deep_input_is_refused_or_checked() -> None:
    deep: Json = 0
    for _ in range(900):
        deep = [deep]
    with pytest.raises(UsageError, match="cannot check it"):
        check({"enum": [1]}, deep)
    check({"type": "integer"}, 10**30)


def test_without_the_library_only_strict_operations_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(UnsupportedOperation, match=r"datalattice\[venue\]"):
        check(ROWS, {})
    check(ROWS, {}, strict=False)


def test_schemas_are_kept_ready_up_to_a_limit() -> None:
    schemas = InputSchemas()
    for number in range(COMPILED_MAX + 5):
        schemas.check(number.to_bytes(32, "big"), {"input": True, "strict": True}, 0)
    assert len(schemas._ready) == COMPILED_MAX


class StrictAdapter(EchoAdapter):
    name = "strict"

    def operations(self) -> Sequence[VenueOperation]:
        operation: Json = {"adapter": "strict:back", "strict": True, "input": ROWS}
        return (VenueOperation("strict/back", {"operation": operation}, has_effects=False),)


def test_what_does_not_fit_makes_no_job_and_no_scheduled_call() -> None:
    life = VenueLife(venue_root(KEY), KEY, [StrictAdapter()])
    runner = life.runner
    life.run(runner.start())
    before = life.commits
    with pytest.raises(UsageError, match="rows"):
        life.run(runner.invoke("v/ops/strict/back", {"rows": 1}, ALICE))
    with pytest.raises(UsageError, match="rows"):
        life.run(runner.schedule("v/ops/strict/back", {"rows": 1}, 5_000_000, ALICE))
    assert life.commits == before
    assert life.run(runner.jobs(ALICE)) == []
    life.run(runner.invoke("v/ops/strict/back", {"rows": []}, ALICE))
    life.end()
