"""Adapter `json`: pure operations on JSON values, for orchestrations that combine and choose.

All four return `{"result": ...}` and leave their arguments unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from datalattice.errors import UsageError
from datalattice.service.venue import (
    JobContext,
    Json,
    OperationMetadata,
    PlainAdapter,
    VenueOperation,
)
from datalattice.service.venue.adapters.inputs import members, sub_operation

JSON_VALUE_DEPTH_MAX: Final = 128
"""Deepest nesting of values that `merge` joins, and most steps of a path of `assoc`."""


def merge_json(given: Mapping[str, Any]) -> Any:
    """Return `values` merged from left to right by RFC 7396, starting with `{}`.

    Raises: UsageError: `values` is not a list, or nests deeper than `JSON_VALUE_DEPTH_MAX`.
    """
    merged: Any = {}
    for value in _list(given, "values"):
        merged = _patched(merged, value, JSON_VALUE_DEPTH_MAX)
    return merged


def _patched(target: Any, patch: Any, depth: int) -> Any:
    if not isinstance(patch, dict):  # "the patch replaces the target" (RFC 7396)
        return patch
    if not depth:
        raise UsageError(f"`values` nest at most {JSON_VALUE_DEPTH_MAX} deep")
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:  # "null values ... are given special meaning: removal" (RFC 7396)
            result.pop(name, None)
        else:
            result[name] = _patched(result.get(name), value, depth - 1)
    return result


def cond(given: Mapping[str, Any]) -> Any:
    """Return `then` of the first of `cases` whose `when` is neither null nor false.

    If there is none, return `default`, else None. Zero, "" and empty collections count as true.
    Raises: UsageError: `cases` is not a list of objects.
    """
    cases = _list(given, "cases")
    # All of them, so that an input is refused whichever case holds.
    for number, case in enumerate(cases):
        if not isinstance(case, dict):
            raise UsageError(
                f"`cases[{number}]` is an object with `when` and `then`, got {_kind(case)}"
            )
    for case in cases:
        when = case.get("when")
        if when is not None and when is not False:
            return case.get("then")
    return given.get("default")


def json_assoc(given: Mapping[str, Any]) -> Any:
    """Return `target` (by default `{}`) with `value` at `path`; missing objects are made.

    path: a name, or a list of names of objects and positions in lists.
    Raises: UsageError: the path is empty, longer than `JSON_VALUE_DEPTH_MAX`, or leads through a
            value that is neither an object nor a list.
    """
    path = given.get("path")
    steps = [path] if isinstance(path, str) else path
    if not isinstance(steps, list) or not 0 < len(steps) <= JSON_VALUE_DEPTH_MAX:
        raise UsageError(
            f"`path` is a name, or a list of 1 to {JSON_VALUE_DEPTH_MAX} names and positions"
        )
    target = given.get("target")
    return _with({} if target is None else target, steps, 0, given.get("value"))


def _with(target: Any, steps: list[Any], at: int, value: Any) -> Any:
    if at == len(steps):
        return value
    step = steps[at]
    if target is None:
        target = {}
    if isinstance(target, dict) and isinstance(step, str):
        return {**target, step: _with(target.get(step), steps, at + 1, value)}
    # In Python, a bool is an int.
    if isinstance(target, list) and isinstance(step, int) and not isinstance(step, bool):
        # "Positions are not added" (docs/venue-operations.md "JSON values"), since the list would
        # need values between.
        if not 0 <= step < len(target):
            raise UsageError(
                f"`path[{at}]`: the list has {len(target)} elements, and no position {step}"
            )
        inner = _with(target[step], steps, at + 1, value)
        return [*target[:step], inner, *target[step + 1 :]]
    raise UsageError(f"`path[{at}]` names no member: {step!r} in a {_kind(target)}")


def json_select(given: Mapping[str, Any]) -> Any:
    """Return the member `key` of `cases`, otherwise `default`, else None.

    Raises: UsageError: `cases` is not an object, or `key` neither a name nor null.
    """
    cases, key = given.get("cases"), given.get("key")
    if not isinstance(cases, dict):
        raise UsageError(f"`cases` is an object, got {_kind(cases)}")
    if key is not None and not isinstance(key, str):
        raise UsageError(f"`key` is a name or null, got a {_kind(key)}")
    return cases[key] if key in cases else given.get("default")


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    value = given.get(name)
    if not isinstance(value, list):
        raise UsageError(f"`{name}` is a list, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """Return the JSON type of a value, for errors."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds = ((str, "string"), (dict, "object"), (list, "list"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "number")


_OPERATIONS: Final[
    Mapping[str, tuple[Callable[[Mapping[str, Any]], Any], str, dict[str, Json]]]
] = {
    "merge": (
        merge_json,
        "Merges `values` from left to right by RFC 7396, starting with {}",
        {"values": {"type": "array"}},
    ),
    "cond": (
        cond,
        "Takes `then` of the first of `cases` whose `when` is neither null nor false",
        {"cases": {"type": "array", "items": {"type": "object"}}, "default": {}},
    ),
    "assoc": (
        json_assoc,
        "Sets `value` at `path` in `target`, where missing objects are made",
        {"target": {}, "path": {"type": ["string", "array"]}, "value": {}},
    ),
    "select": (
        json_select,
        "Takes the member `key` of `cases`, otherwise `default`",
        {"key": {"type": ["string", "null"]}, "cases": {"type": "object"}, "default": {}},
    ),
}
"""The operations by name: the function, a description, and the members of the input."""


class JsonAdapter(PlainAdapter):
    """Runs `json:merge`, `json:cond`, `json:assoc` and `json:select`."""

    name = "json"

    def operations(self) -> Sequence[VenueOperation]:
        """Return the four operations."""
        return [
            VenueOperation(
                f"json/{name}",
                {
                    "name": f"json {name}",
                    "description": description,
                    "operation": {
                        "adapter": f"json:{name}",
                        "input": {"type": "object", "properties": properties},
                        "output": {"type": "object", "properties": {"result": {}}},
                    },
                },
                has_effects=False,
            )
            for name, (_, description, properties) in _OPERATIONS.items()
        ]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse an input that the operation refuses."""
        _result(meta, input)  # a pure operation: running it is the check

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Return `{"result": ...}`."""
        return {"result": _result(meta, input)}


def _result(meta: OperationMetadata, given: Json) -> Json:
    call, _, properties = _OPERATIONS[sub_operation(meta, _OPERATIONS)]
    result: Json = call(members(given, properties))
    return result
