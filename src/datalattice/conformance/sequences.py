"""Sequences: the common part of recorded sequences: handles, operations, states after each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from datalattice.cells import Value, value_hash
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_fields,
    as_int,
    expect,
)
from datalattice.conformance.notation import expect_cell, hash_or_none, need_cell, read_cell

SEQUENCE_FIELDS: Final = ("id", "kind", "steps", "final", "decision", "differs_from_step")
STEP_FIELDS: Final = ("op", "on", "returns", "states")


class Handle(Protocol):
    """What a sequence operates on."""

    def fork(self) -> Self:
        """Return a fork."""

    def sync(self) -> object:
        """Merge a fork into what it was made of."""


H = TypeVar("H", bound=Handle)


class StepClock:
    """A clock that shows the time of the present step."""

    def __init__(self, time_ms: int = 0) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        """Return the time of the present step."""
        return self.time_ms


Perform = Callable[[Any, Fields], None]
"""Performs one step of a sequence and checks what it returns."""


def operation(*fields: str, silent: bool = False) -> Callable[[Perform], Perform]:
    """Make a method the operation of its name, on steps with these further fields.

    silent: the operation returns nothing.
    """

    def decorated(method: Perform) -> Perform:
        @wraps(method)
        def perform(run: SequenceRun[Any], step: Fields) -> None:
            # A field that no operation reads would be an expectation that is never checked.
            step.only(*STEP_FIELDS, *run.fields, *fields)
            # An operation without a result cannot have a recorded one.
            if silent and "returns" in step:
                raise Mismatch(f"{step.text('op')} returns nothing")
            method(run, step)

        perform.is_operation = True  # type: ignore[attr-defined]
        return perform

    return decorated


class SequenceRun(Generic[H]):
    """A recorded sequence being performed: handles by name, a clock, and operations on handles.

    what:   the kind of handle, for errors.
    fields: fields that every step may have.
    """

    what: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]] = ()
    operations: ClassVar[dict[str, Perform]] = {}

    def __init_subclass__(cls) -> None:
        methods = {name: getattr(cls, name) for name in dir(cls)}
        marked = {name: one for name, one in methods.items() if hasattr(one, "is_operation")}
        cls.operations = {**cls.operations, **marked}

    def __init__(self) -> None:
        self.clock = StepClock()
        self.handles: dict[str, H] = {}

    def states(self) -> dict[str, Value]:
        """Return the value of each handle."""
        return {name: self.value_of(handle) for name, handle in self.handles.items()}

    def value_of(self, handle: Any) -> Value:
        """Return the value of a handle."""
        return handle.cursor.get()

    def perform(self, step: Fields) -> None:
        """Perform a step and check what it returns."""
        name = step.text("op")
        found = self.operations.get(name)
        if found is None:
            known = ", ".join(sorted(self.operations))
            raise Mismatch(f"unknown operation {name!r} on {self.what}; known: {known}")
        if "clock" in step:
            self.clock.time_ms = step.integer("clock")
        found(self, step)

    def on(self, step: Fields, field: str = "on") -> H:
        """Return the handle that a field names."""
        name = step.text(field)
        if name not in self.handles:
            raise Mismatch(f"no handle named {name!r}")
        return self.handles[name]

    def add(self, step: Fields, field: str, handle: H) -> None:
        """Add a handle under the name in a field, which must be free."""
        name = step.text(field)
        # A name that is used twice would make later steps ambiguous.
        if name in self.handles:
            raise Mismatch(f"there is a handle named {name!r} already")
        self.handles[name] = handle

    @operation("as", silent=True)
    def fork(self, step: Fields) -> None:
        """Add a fork of a handle."""
        self.add(step, "as", self.on(step).fork())

    @operation(silent=True)
    def sync(self, step: Fields) -> None:
        """Merge a fork into the handle it was made of."""
        self.on(step).sync()

    def run(self, fields: Fields) -> None:
        """Perform all steps of a vector, and compare what it recorded."""
        run_steps(fields, self.states, self.perform)


def run_steps(
    fields: Fields,
    states: Callable[[], Mapping[str, Value]],
    perform: Callable[[Fields], None],
) -> None:
    """Perform the steps; compare the state of every handle after each step, and the final values.

    From the step `differs_from_step` on, a decision of ours differs from the reference, and only
    what operations return is compared.
    """
    steps = fields.array("steps")
    differs = as_int(fields.get("differs_from_step", len(steps)), "differs_from_step")
    if not 0 <= differs <= len(steps):
        raise Mismatch(f"differs_from_step is {differs}, and there are {len(steps)} steps")
    stated = Fields()
    reference: dict[str, object] = {}
    for position, node in enumerate(steps):
        step = as_fields(node, f"step {position}")
        where = f"step {position} ({step.get('op')} on {step.get('on')})"
        try:
            perform(step)
            # "the step from which only returned values are compared" (docs/conformance.md
            # "Rulings"): states from there on follow our decision.
            if position < differs:
                _compare_states(step.fields("states"), states())
        except Mismatch as mismatch:
            raise Mismatch(f"{where}: {mismatch}") from mismatch
        stated = step.fields("states")
        # Where our decision differs, `java_states` has the states of the reference.
        reference = {**stated, **step.get("java_states", {})}
    if differs == len(steps):
        _compare_final(fields.fields("final"), states())
    else:
        _compare_stated(fields.fields("final"), stated)
    _compare_stated(as_fields(fields.get("java_final", {}), "java_final"), reference)


def _compare_states(wanted: Mapping[str, Any], got: Mapping[str, Value]) -> None:
    # All handles: one that a step made, and no other.
    expect("handles", sorted(wanted), sorted(got))
    for name, value in got.items():
        expect(f"state of {name}", wanted[name], hash_or_none(value))


def _compare_final(wanted: Mapping[str, Any], got: Mapping[str, Value]) -> None:
    expect("handles in final", sorted(wanted), sorted(got))
    for name, value in got.items():
        expect_cell(f"final of {name}", read_cell(wanted[name], f"final of {name}"), value)


def _compare_stated(final: Mapping[str, Any], reference: Mapping[str, object]) -> None:
    """Compare final cells of the reference with its last states."""
    for name, node in final.items():
        if name not in reference:
            raise Mismatch(f"final names the handle {name!r}, which the last step does not")
        value = read_cell(node, f"final of {name}")
        # Files write the state nil as null, or as its hash.
        if reference[name] != hash_or_none(value) and reference[name] != value_hash(value).hex():
            raise Mismatch(f"final of {name} is not the value of the last step")


def returned(step: Fields, got: object) -> None:
    """Compare the plain value an operation returned with the one recorded."""
    step.expect("returns", got)


def returned_cell(step: Fields, got: Value) -> None:
    """Compare the cell an operation returned with the one recorded."""
    expect_cell("returns", need_cell(step, "returns"), got)
