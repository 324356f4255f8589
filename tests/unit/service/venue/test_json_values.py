"""Adapter `json`: what each operation answers, and what it refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from datalattice.errors import UsageError
from datalattice.service.venue import OperationMetadata
from datalattice.service.venue.adapters.json_values import (
    JSON_VALUE_DEPTH_MAX,
    JsonAdapter,
    cond,
    json_assoc,
    json_select,
    merge_json,
)
from datalattice.testing.venue_kit import LoneJob


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_merge_leaves_its_arguments_alone() -> None:
    first, second = {"a": {"x": 1}}, {"a": {"y": 2}}
    assert merge_json({"values": [first, second]}) == {"a": {"x": 1, "y": 2}}
    assert (first, second) == ({"a": {"x": 1}}, {"a": {"y": 2}})


def test_a_patch_that_is_no_object_replaces_all() -> None:
    assert merge_json({"values": [{"a": 1}, [2]]}) == [2]
    assert merge_json({"values": ["text", {"a": 1}]}) == {"a": 1}


@pytest.mark.parametrize("depth", [JSON_VALUE_DEPTH_MAX - 1, JSON_VALUE_DEPTH_MAX])
def test_merge_takes_values_up_to_its_depth(depth: int) -> None:
    assert merge_json({"values": [nested(depth)]}) == nested(depth)


def test_merge_refuses_deeper_values() -> None:
    with pytest.raises(UsageError, match=f"at most {JSON_VALUE_DEPTH_MAX} deep"):
        merge_json({"values": [nested(JSON_VALUE_DEPTH_MAX + 1)]})


@pytest.mark.parametrize("when", [True, 0, "", [], {}, "false"])
def test_all_but_null_and_false_is_true(when: object) -> None:
    given = {"cases": [{"when": when, "then": "yes"}], "default": "no"}
    assert cond(given) == "yes"


@pytest.mark.parametrize("case", [{"when": None}, {"when": False}, {}])
def test_null_false_and_a_missing_when_are_false(case: dict[str, Any]) -> None:
    assert cond({"cases": [{**case, "then": "yes"}], "default": "no"}) == "no"
    assert cond({"cases": [case]}) is None


def test_cond_takes_the_first_true_case() -> None:
    cases = [{"when": False, "then": 1}, {"when": True, "then": 2}, {"when": True, "then": 3}]
    assert cond({"cases": cases}) == 2
    assert cond({"cases": [{"when": True}], "default": 1}) is None


def test_assoc_makes_missing_objects() -> None:
    assert json_assoc({"path": ["a", "b"], "value": 1}) == {"a": {"b": 1}}
    assert json_assoc({"target": {"a": None}, "path": ["a", "b"], "value": 1}) == {"a": {"b": 1}}
    assert json_assoc({"target": {"a": 1}, "path": "b.c", "value": 2}) == {"a": 1, "b.c": 2}


def test_assoc_replaces_one_position_of_a_list() -> None:
    target = {"a": [1, {"b": 2}]}
    assert json_assoc({"target": target, "path": ["a", 1, "b"], "value": 3}) == {"a": [1, {"b": 3}]}
    assert target == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"path": []},
        {"path": 1},
        {"path": [1]},
        {"path": [True], "target": [1]},
        {"path": [1], "target": [1]},
        {"path": [-1], "target": [1]},
        {"path": ["a", "b"], "target": {"a": "text"}},
        {"path": ["a"] * (JSON_VALUE_DEPTH_MAX + 1)},
    ],
)
def test_a_path_that_leads_nowhere_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="path"):
        json_assoc({"value": 1, **given})


@pytest.mark.parametrize("steps", [JSON_VALUE_DEPTH_MAX - 1, JSON_VALUE_DEPTH_MAX])
def test_a_path_may_have_so_many_names(steps: int) -> None:
    assert json_assoc({"path": ["a"] * steps, "value": 1}) == nested(steps)


def test_select_takes_the_member_even_if_null() -> None:
    cases = {"a": 1, "b": None}
    assert json_select({"cases": cases, "key": "a", "default": 2}) == 1
    assert json_select({"cases": cases, "key": "b", "default": 2}) is None
    assert json_select({"cases": cases, "key": "c", "default": 2}) == 2
    assert json_select({"cases": cases, "key": None}) is None


@pytest.mark.parametrize(
    ("call", "given", "named"),
    [
        (merge_json, {"values": {}}, "`values` is a list, got object"),
        (merge_json, {}, "`values` is a list, got null"),
        (cond, {"cases": "a"}, "`cases` is a list, got string"),
        (cond, {"cases": [{"when": True}, 1]}, r"`cases\[1\]` is an object"),
        (json_select, {"cases": []}, "`cases` is an object, got list"),
        (json_select, {"cases": {}, "key": 1}, "`key` is a name or null, got a number"),
        (json_select, {"cases": {}, "key": True}, "got a boolean"),
    ],
)
def test_a_wrong_member_is_named(call: Any, given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        call(given)


@pytest.mark.parametrize(
    ("operation", "given", "result"),
    [
        ("merge", {"values": [{"a": 1}]}, {"a": 1}),
        ("cond", {"cases": [], "default": 1}, 1),
        ("assoc", {"path": "a", "value": 1}, {"a": 1}),
        ("select", {"cases": {"a": 1}, "key": "a"}, 1),
    ],
)
def test_an_operation_answers_with_a_result(operation: str, given: Any, result: Any) -> None:
    adapter = JsonAdapter()
    meta = next(one.metadata for one in adapter.operations() if one.path == f"json/{operation}")
    adapter.check(meta, given)
    assert asyncio.run(adapter.run(LoneJob(), meta, given)) == {"result": result}


def test_the_adapter_refuses_before_there_is_a_job() -> None:
    adapter = JsonAdapter()
    with pytest.raises(UsageError, match="json:merge or json:cond or json:assoc or json:select"):
        adapter.check({"operation": {"adapter": "json:split"}}, {})
    meta: OperationMetadata = {"operation": {"adapter": "json:cond"}}
    with pytest.raises(UsageError, match="an unknown member 'values'; known: cases, default"):
        adapter.check(meta, {"values": []})
    with pytest.raises(UsageError, match="`cases` is a list"):
        adapter.check(meta, {"cases": 1})
