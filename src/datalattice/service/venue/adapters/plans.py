"""Plans of orchestrations: steps, the sources of their inputs, and their dependencies.

A specification is the source of a value:

    ["input", path...]     the input of the orchestration, or a part of it
    ["const", value]       the value itself, not evaluated further
    [n, path...]           the output of step n, or a part of it
    ["concat", spec...]    texts joined; null adds nothing, other values their compact JSON
    {name: spec, ...}      an object of them

All functions are pure.

Source: COG-12 "Orchestration".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from datalattice.errors import LimitExceeded, UsageError

STEPS_MAX: Final = 1_000
"""Most steps of one orchestration."""

SPECIFICATION_DEPTH_MAX: Final = 64
"""Deepest nesting of objects and `concat` in a specification."""

VALUE_CHARS_MAX: Final = 4 << 20
"""Longest JSON text of an evaluated value, in characters, approximately. Without the bound, 40
steps that each use the previous output twice would make a terabyte."""

VALUE_DEPTH_MAX: Final = 256
"""Deepest nesting of an evaluated value: each step may add a level."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step: the operation, the specification of its input, and the steps that it needs.

    venue: the venue that runs it; None: this one. strict: the output must fit its schema.
    """

    op: str
    input: Any
    name: str | None
    venue: str | None
    strict: bool
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of an orchestration and the specification of its result."""

    steps: tuple[PlannedStep, ...]
    result: Any


def step_needs(inputs: Sequence[object]) -> list[tuple[int, ...]]:
    """Return the steps that each step needs, from the specifications of their inputs.

    Raises: UsageError: one is malformed, or names itself, a later or an unknown step.
    """
    found = []
    for number, specification in enumerate(inputs):
        try:
            found.append(dependencies(specification))
            # "A step may only name earlier steps", so there are no cycles.
            _check_needs(found[-1], number)
        except UsageError as error:
            raise UsageError(f"`operation.steps[{number}].input`: {error}") from None
    return found


def read_plan(operation: object) -> Plan:
    """Return the plan in the member `operation` of an asset's metadata.

    Raises: UsageError: it has another form, a step names itself, a later or an unknown step, or
            there are more than `STEPS_MAX`.
    """
    if not isinstance(operation, Mapping):
        raise UsageError("an orchestration has an object `operation`")
    given = operation.get("steps")
    if not isinstance(given, list):
        raise UsageError("`operation.steps` is a list")
    if len(given) > STEPS_MAX:
        raise UsageError(f"`operation.steps` has at most {STEPS_MAX} steps, got {len(given)}")
    for number, fields in enumerate(given):
        _check_members(fields, f"`operation.steps[{number}]`")
    needs = step_needs([fields.get("input") for fields in given])
    steps = tuple(map(_step, given, needs))
    if "result" not in operation:
        raise UsageError("`operation.result` is missing")
    try:
        _check_needs(dependencies(operation["result"]), len(steps))
    except UsageError as error:
        raise UsageError(f"`operation.result`: {error}") from None
    return Plan(steps, operation["result"])


_MEMBERS: Final = {"op": str, "name": str, "venue": str, "strict": bool}


def _check_members(fields: object, where: str) -> None:
    if not isinstance(fields, Mapping) or not isinstance(fields.get("op"), str):
        raise UsageError(f"{where} is an object with text `op`")
    for member, kind in _MEMBERS.items():
        if not isinstance(fields.get(member), (kind, type(None))):
            raise UsageError(f"{where}.{member} is a {'text' if kind is str else 'boolean'}")


def _step(fields: Mapping[str, Any], needs: tuple[int, ...]) -> PlannedStep:
    strict = fields.get("strict") is True
    name, venue = fields.get("name"), fields.get("venue")
    return PlannedStep(fields["op"], fields.get("input"), name, venue, strict, needs)


def ready_steps(
    needs: Sequence[Sequence[int]], started: Collection[int], done: Collection[int]
) -> list[int]:
    """Return the steps that can start now: not started, and all steps that they need are done."""
    # "Every step with no open dependency starts at once."
    return [
        number
        for number, wanted in enumerate(needs)
        if number not in started and all(one in done for one in wanted)
    ]


def _check_needs(needs: Sequence[int], before: int) -> None:
    for number in needs:
        if not 0 <= number < before:
            raise UsageError(
                f"it names step {number}; it may name steps 0 to {before - 1}"
                if before
                else f"it names step {number}, and there is no earlier step"
            )


def dependencies(specification: object) -> tuple[int, ...]:
    """Return the numbers of the steps that a specification names, in order.

    Raises: UsageError: it is malformed, or nests deeper than `SPECIFICATION_DEPTH_MAX`.
    """
    found: set[int] = set()
    _collect(specification, found, SPECIFICATION_DEPTH_MAX)
    return tuple(sorted(found))


def _collect(specification: object, found: set[int], depth: int) -> None:
    # A specification is a caller's: deep nesting would exhaust the stack of Python.
    if not depth:
        raise UsageError(f"a specification nests at most {SPECIFICATION_DEPTH_MAX} deep")
    if isinstance(specification, Mapping):
        for inner in specification.values():
            _collect(inner, found, depth - 1)
        return
    if not isinstance(specification, list) or not specification:
        raise UsageError(f"a specification is a list or an object, got {_shown(specification)}")
    source, rest = specification[0], specification[1:]
    if source == "const":
        if len(rest) != 1:
            raise UsageError(f'["const", value] has one value, got {len(rest)}')
    elif source == "concat":
        for inner in rest:
            _collect(inner, found, depth - 1)
    else:
        if _is_number(source):
            found.add(source)
        elif source != "input":
            raise UsageError(
                "a specification begins with input, const, concat or the number of a step, "
                f"got {_shown(source)}"
            )
        for part in rest:
            if not isinstance(part, str) and not _is_number(part):
                raise UsageError(f"a path has names and positions, got {_shown(part)}")


def evaluate(specification: Any, given: Any, outputs: Mapping[int, Any]) -> Any:
    """Return the value of a valid specification.

    given: the input of the orchestration. outputs: of the steps that it names, by number.
    Raises: LimitExceeded: as `check_size`.
    """
    value = _value(specification, given, outputs)
    check_size(value)
    return value


def check_size(value: Any) -> int:
    """Return the approximate number of characters of a value's JSON text.

    Raises: LimitExceeded: more than `VALUE_CHARS_MAX`, or it nests deeper than `VALUE_DEPTH_MAX`.
    """
    # A part that a value shares in memory counts each time: the JSON text repeats it.
    size, open_values = 0, [iter((value,))]  # iterators: a list of all parts could be long
    while open_values:
        for part in open_values[-1]:
            size += _own_size(part)
            if size > VALUE_CHARS_MAX:
                raise LimitExceeded(f"a value has at most {VALUE_CHARS_MAX} characters as JSON")
            if isinstance(part, (Mapping, list)):
                if len(open_values) > VALUE_DEPTH_MAX:
                    raise LimitExceeded(f"a value nests at most {VALUE_DEPTH_MAX} deep")
                inner = part.values() if isinstance(part, Mapping) else part
                open_values.append(iter(inner))
                break
        else:
            open_values.pop()
    return size


def _own_size(value: Any) -> int:
    """Return the number of characters of a value without the parts inside it."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Mapping):
        return 2 + 2 * len(value) + sum(len(name) + 2 for name in value)
    if isinstance(value, list):
        return 2 + len(value)
    # A decimal digit has 3.3 bits.
    return value.bit_length() // 3 + 1 if isinstance(value, int) else _SCALAR_CHARS


_SCALAR_CHARS: Final = 4
"""Number of characters of a null, and approximately of a double."""


def _value(specification: Any, given: Any, outputs: Mapping[int, Any]) -> Any:
    if isinstance(specification, Mapping):
        return {name: _value(inner, given, outputs) for name, inner in specification.items()}
    source, rest = specification[0], specification[1:]
    if source == "const":
        return rest[0]
    if source == "concat":
        texts, size = [], 0
        for inner in rest:
            texts.append(_text(_value(inner, given, outputs)))
            size += len(texts[-1])
            if size > VALUE_CHARS_MAX:  # before they are joined
                raise LimitExceeded(f"concat makes at most {VALUE_CHARS_MAX} characters")
        return "".join(texts)
    return _member(given if source == "input" else outputs[source], rest)


def _member(value: Any, path: Sequence[Any]) -> Any:
    for part in path:
        if isinstance(value, Mapping) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and _is_number(part) and 0 <= part < len(value):
            value = value[part]
        else:
            return None  # "A path over a missing member gives null."
    return value


def _text(value: Any) -> str:
    if value is None:  # "null gives nothing"
        return ""
    if isinstance(value, str):
        return value
    check_size(value)
    # "non-text as compact JSON"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return repr(value)[:60]
