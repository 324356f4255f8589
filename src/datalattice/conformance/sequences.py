"""Sequences: what all recorded sequences share - handles, states after each step, returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from datalattice.cells import Value, value_hash
from datalattice.conformance.checks import (
    as_fields,
    as_int,
    expect,
    need,
    need_fields,
    need_list,
    need_text,
    only_fields,
)
from datalattice.conformance.notation import expect_cell, hash_or_none, read_cell
from datalattice.conformance.registry import Fields, Mismatch

SEQUENCE_FIELDS: Final = ("id", "kind", "steps", "final", "decision", "differs_from_step")
STEP_FIELDS: Final = ("op", "on", "returns", "states")


T = TypeVar("T")

Step = Callable[[Fields], None]
"""Performs one step and checks what it returns."""


class StepClock:
    """A clock that shows what the present step says."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        """Return the time of the present step."""
        return self.time_ms


def operation_of(known: Mapping[str, T], operation: str, what: str) -> T:
    """Return what performs an operation on `what`.

    Raises: Mismatch: no such operation is known.
    """
    found = known.get(operation)
    if found is None:
        names = ", ".join(sorted(known))
        raise Mismatch(f"unknown operation {operation!r} on {what}; known: {names}")
    return found


def run_steps(
    fields: Fields,
    states: Callable[[], Mapping[str, Value]],
    perform: Step,
) -> None:
    """Perform the steps, compare the state of every handle after each, and the final values.

    From the step `differs_from_step` on a ruling of ours differs from the reference: then only what
    operations return is compared.
    """
    steps = need_list(fields, "steps")
    differs = as_int(fields.get("differs_from_step", len(steps)), "differs_from_step")
    if not 0 <= differs <= len(steps):
        raise Mismatch(f"differs_from_step is {differs}, and there are {len(steps)} steps")
    stated: Fields = {}
    reference: dict[str, object] = {}
    for position, node in enumerate(steps):
        step = as_fields(node, f"step {position}")
        where = f"step {position} ({step.get('op')} on {step.get('on')})"
        try:
            perform(step)
            if position < differs:
                _compare_states(need_fields(step, "states"), states())
        except Mismatch as mismatch:
            raise Mismatch(f"{where}: {mismatch}") from mismatch
        stated = need_fields(step, "states")
        reference = {**stated, **step.get("java_states", {})}
    if differs == len(steps):
        _compare_final(need_fields(fields, "final"), states())
    else:
        _compare_stated(need_fields(fields, "final"), stated)
    _compare_stated(as_fields(fields.get("java_final", {}), "java_final"), reference)


def _compare_states(wanted: Mapping[str, Any], got: Mapping[str, Value]) -> None:
    expect("handles", sorted(wanted), sorted(got))
    for name, value in got.items():
        expect(f"state of {name}", wanted[name], hash_or_none(value))


def _compare_final(wanted: Mapping[str, Any], got: Mapping[str, Value]) -> None:
    expect("handles in final", sorted(wanted), sorted(got))
    for name, value in got.items():
        expect_cell(f"final of {name}", read_cell(wanted[name], f"final of {name}"), value)


def _compare_stated(final: Mapping[str, Any], reference: Mapping[str, object]) -> None:
    """Compare final cells of the reference with its last states: all we can say about those."""
    for name, node in final.items():
        if name not in reference:
            raise Mismatch(f"final names the handle {name!r}, which the last step does not")
        value = read_cell(node, f"final of {name}")
        if reference[name] != hash_or_none(value) and reference[name] != value_hash(value).hex():
            raise Mismatch(f"final of {name} is not the value of the last step")


def step_fields(step: Fields, *more: str) -> None:
    """Raise `Mismatch` when a step has fields that its operation does not know."""
    only_fields(step, (*STEP_FIELDS, *more))


def returned(step: Fields, got: object) -> None:
    """Compare the plain value an operation returned with the one recorded."""
    expect("returns", need(step, "returns"), got)


def returned_cell(step: Fields, got: Value) -> None:
    """Compare the cell an operation returned with the one recorded."""
    expect_cell("returns", read_cell(need(step, "returns"), "returns"), got)


def returns_nothing(step: Fields) -> None:
    """Raise `Mismatch` when a step records a return value for an operation that has none."""
    if "returns" in step:
        raise Mismatch(f"{need_text(step, 'op')} returns nothing")


def handle_of(handles: Mapping[str, T], name: str) -> T:
    """Return a handle by name."""
    if name not in handles:
        raise Mismatch(f"no handle named {name!r}")
    return handles[name]


def new_name(handles: Mapping[str, object], name: str) -> str:
    """Return a name for a new handle, which must be free."""
    if name in handles:
        raise Mismatch(f"there is a handle named {name!r} already")
    return name
