"""Plans of orchestrations: what is refused before a job exists, and what bounds a value."""

from __future__ import annotations

from typing import Any

import pytest

from datalattice.errors import LimitExceeded, UsageError
from datalattice.service.venue.adapters.plans import (
    SPECIFICATION_DEPTH_MAX,
    STEPS_MAX,
    VALUE_CHARS_MAX,
    VALUE_DEPTH_MAX,
    check_size,
    dependencies,
    evaluate,
    read_plan,
    ready_steps,
)

STEP = {"op": "v/ops/json/merge", "input": ["input"]}


def plan_of(*steps: Any, result: Any = ("input",)) -> Any:
    return {"steps": list(steps), "result": list(result)}


def test_a_plan_keeps_what_a_step_says() -> None:
    plan = read_plan(
        plan_of(STEP, {**STEP, "input": [0], "venue": "did:web:b.org", "strict": True})
    )
    first, second = plan.steps
    assert (first.venue, first.strict, first.needs) == (None, False, ())
    assert (second.venue, second.strict, second.needs) == ("did:web:b.org", True, (0,))


@pytest.mark.parametrize("count", [0, 1, STEPS_MAX - 1, STEPS_MAX])
def test_a_plan_has_up_to_so_many_steps(count: int) -> None:
    assert len(read_plan(plan_of(*[STEP] * count)).steps) == count


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        (None, "an object `operation`"),
        ({"result": ["input"]}, "`operation.steps` is a list"),
        ({"steps": []}, "`operation.result` is missing"),
        (plan_of(*[STEP] * (STEPS_MAX + 1)), f"at most {STEPS_MAX} steps"),
        (plan_of("step"), r"steps\[0\]` is an object with text `op`"),
        (plan_of({"input": ["input"]}), "with text `op`"),
        (plan_of({**STEP, "venue": 1}), "venue is a text"),
        (plan_of({**STEP, "strict": 1}), "strict is a boolean"),
        (plan_of({"op": "x"}), r"steps\[0\].input.*got None"),
        (plan_of({**STEP, "input": [0]}), "it names step 0, and there is no earlier step"),
        (plan_of({**STEP, "input": [1]}, STEP), "it names step 1"),
        (plan_of(STEP, {**STEP, "input": {"a": ["concat", [7]]}}), "it names step 7"),
        (plan_of(STEP, result=[1]), "`operation.result`: it names step 1"),
        (plan_of(STEP, result=["output"]), "begins with input, const, concat"),
    ],
)
def test_a_bad_plan_is_refused(operation: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read_plan(operation)


@pytest.mark.parametrize(
    "specification",
    [
        ["const"],
        ["const", 1, 2],
        ["input", None],
        [0, 1.5],
        [0, True],
        ["concat", "a"],
        [0.0],
        {"a": 1},
    ],
)
def test_a_malformed_specification_is_refused(specification: Any) -> None:
    with pytest.raises(UsageError):
        dependencies(specification)


def deep(levels: int) -> Any:
    specification: Any = ["input"]
    for _ in range(levels - 1):
        specification = {"a": specification}
    return specification


def test_specifications_nest_up_to_a_depth() -> None:
    assert dependencies(deep(SPECIFICATION_DEPTH_MAX - 1)) == ()
    assert dependencies(deep(SPECIFICATION_DEPTH_MAX)) == ()
    with pytest.raises(UsageError, match=f"at most {SPECIFICATION_DEPTH_MAX} deep"):
        dependencies(deep(SPECIFICATION_DEPTH_MAX + 1))


def test_steps_are_ready_once_all_they_need_is_done() -> None:
    needs = [(), (), (0, 1), (0,)]
    assert ready_steps(needs, set(), set()) == [0, 1]
    assert ready_steps(needs, {0, 1}, {0}) == [3]
    assert ready_steps(needs, {0, 1, 3}, {0, 1}) == [2]


def test_concat_writes_other_values_as_compact_json() -> None:
    given = {"a": [1, {"b": None}], "t": True, "d": 1.5}
    specification = ["concat", ["input", "a"], ["input", "t"], ["input", "d"]]
    assert evaluate(specification, given, {}) == '[1,{"b":null}]true1.5'
    assert evaluate(["concat"], None, {}) == ""


def test_a_path_of_the_wrong_kind_gives_null() -> None:
    for path in (["a", 0], ["l", "x"], ["l", 1], ["l", -1], ["t", "x"]):
        assert evaluate(["input", *path], {"a": {"0": 1}, "l": [1], "t": "text"}, {}) is None


def test_a_value_may_have_so_many_characters() -> None:
    fits = "x" * (VALUE_CHARS_MAX - 2)  # two quotes
    assert check_size(fits) == VALUE_CHARS_MAX
    assert evaluate(["input"], fits, {}) == fits
    with pytest.raises(LimitExceeded, match=str(VALUE_CHARS_MAX)):
        evaluate(["input"], fits + "x", {})


@pytest.mark.parametrize("specification", [{"a": [0], "b": [0]}, ["concat", [0], [0]]])
def test_values_that_double_at_each_step_are_refused_soon(specification: Any) -> None:
    with pytest.raises(LimitExceeded):
        doubled(specification)


def doubled(specification: Any) -> None:
    value: Any = "x"
    for _ in range(60):
        value = evaluate(specification, None, {0: value})


def test_values_nest_up_to_a_depth() -> None:
    value: Any = 1
    for _ in range(VALUE_DEPTH_MAX):
        value = [value]
    check_size(value)
    with pytest.raises(LimitExceeded, match=f"at most {VALUE_DEPTH_MAX} deep"):
        evaluate({"a": ["input"]}, value, {})
