"""File system vectors: recorded sequences on drives, and a sparse file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.apps.dlfs import DLFSLattice, Drive
from datalattice.cells import Value
from datalattice.conformance.checks import expect, need_hex, need_int, need_text, only_fields
from datalattice.conformance.notation import plain_type, register_lattice_type
from datalattice.conformance.registry import Fields, register_kind
from datalattice.conformance.sequences import (
    SEQUENCE_FIELDS,
    handle_of,
    new_name,
    operation_of,
    returned,
    returns_nothing,
    run_steps,
    step_fields,
)
from datalattice.errors import AlreadyExists, DirectoryNotEmpty, NoSuchPath

LAYOUT: Final = "4-field"


class _DriveClock:
    """The clock of one drive: it stands still until a step sets it."""

    def __init__(self, time_ms: int = 0) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        return self.time_ms


class _DriveRun:
    """One sequence on drives."""

    def __init__(self) -> None:
        self.drives: dict[str, Drive] = {}
        self.clocks: dict[str, _DriveClock] = {}

    def states(self) -> dict[str, Value]:
        return {name: drive.cursor.get() for name, drive in self.drives.items()}

    def perform(self, step: Fields) -> None:
        operation_of(_OPERATIONS, need_text(step, "op"), "a drive")(self, step)

    def _drive(self, step: Fields, field: str = "on") -> Drive:
        return handle_of(self.drives, need_text(step, field))

    def create(self, step: Fields) -> None:
        _fields(step)
        returns_nothing(step)
        name = new_name(self.drives, need_text(step, "on"))
        clock = self.clocks[name] = _DriveClock()
        self.drives[name] = Drive.create(clock)

    def set_time(self, step: Fields) -> None:
        _fields(step, "time")
        returns_nothing(step)
        handle_of(self.clocks, need_text(step, "on")).time_ms = need_int(step, "time")

    def fork(self, step: Fields) -> None:
        _fields(step, "as")
        returns_nothing(step)
        parent = self._drive(step)
        name = new_name(self.drives, need_text(step, "as"))
        clock = self.clocks[name] = _DriveClock(self.clocks[need_text(step, "on")].time_ms)
        self.drives[name] = Drive(parent.cursor.fork(), clock)

    def sync(self, step: Fields) -> None:
        _fields(step)
        returns_nothing(step)
        self._drive(step).sync()

    def replicate(self, step: Fields) -> None:
        _fields(step, "from")
        returns_nothing(step)
        self._drive(step).replicate(self._drive(step, "from"))

    def list(self, step: Fields) -> None:
        _fields(step, "path")
        drive, path = self._drive(step), need_text(step, "path")
        _returns(step, lambda: drive.list(path))

    def read(self, step: Fields) -> None:
        _fields(step, "path")
        drive, path = self._drive(step), need_text(step, "path")
        _returns(step, lambda: drive.read(path).hex())

    def mkdir(self, step: Fields) -> None:
        _fields(step, "path")
        _done(step, self._drive(step).mkdir)

    def create_file(self, step: Fields) -> None:
        _fields(step, "path")
        _done(step, self._drive(step).create_file)

    def delete(self, step: Fields) -> None:
        _fields(step, "path")
        _done(step, self._drive(step).delete)

    def write(self, step: Fields) -> None:
        _fields(step, "path", "data")
        drive, data = self._drive(step), need_hex(step, "data")
        _done(step, lambda path: drive.write(path, data))

    def append(self, step: Fields) -> None:
        _fields(step, "path", "data")
        drive, data = self._drive(step), need_hex(step, "data")
        _done(step, lambda path: drive.append(path, data))

    def write_at(self, step: Fields) -> None:
        _fields(step, "path", "position", "data")
        drive, data, position = (
            self._drive(step),
            need_hex(step, "data"),
            need_int(step, "position"),
        )
        _done(step, lambda path: drive.write_at(path, position, data))

    def truncate(self, step: Fields) -> None:
        _fields(step, "path", "size")
        drive, size = self._drive(step), need_int(step, "size")
        _done(step, lambda path: drive.truncate(path, size))


def _fields(step: Fields, *more: str) -> None:
    step_fields(step, "java_states", *more)


def _done(step: Fields, operation: Callable[[str], None]) -> None:
    path = need_text(step, "path")

    def perform() -> str:
        operation(path)
        return "ok"

    _returns(step, perform)


def _returns(step: Fields, operation: Callable[[], object]) -> None:
    """Compare what an operation returns, or the word for its error, with what is recorded."""
    try:
        got = operation()
    except NoSuchPath:
        got = "not-found"
    except AlreadyExists:
        got = "exists"
    except DirectoryNotEmpty:
        got = "not-empty"
    returned(step, got)


_OPERATIONS: Final[dict[str, Callable[[_DriveRun, Fields], None]]] = {
    "create": _DriveRun.create,
    "set_time": _DriveRun.set_time,
    "fork": _DriveRun.fork,
    "sync": _DriveRun.sync,
    "replicate": _DriveRun.replicate,
    "list": _DriveRun.list,
    "read": _DriveRun.read,
    "mkdir": _DriveRun.mkdir,
    "create_file": _DriveRun.create_file,
    "delete": _DriveRun.delete,
    "write": _DriveRun.write,
    "append": _DriveRun.append,
    "write_at": _DriveRun.write_at,
    "truncate": _DriveRun.truncate,
}


def run_drive_sequence(fields: Fields) -> None:
    """Check a recorded sequence of operations on drives."""
    only_fields(fields, (*SEQUENCE_FIELDS, "layout", "java_final"))
    expect("layout", LAYOUT, need_text(fields, "layout"))
    run = _DriveRun()
    run_steps(fields, run.states, run.perform)


def run_sparse(fields: Fields) -> None:
    """Check the root hash and the size after a write far behind the end of an empty file."""
    only_fields(
        fields, ("id", "kind", "time", "path", "position", "data", "size", "root_hash", "decision")
    )
    # The file is made a moment earlier: a write of ours is later than what it replaces.
    time_ms = need_int(fields, "time")
    clock = _DriveClock(time_ms - 1)
    drive = Drive.create(clock)
    path, data, position = (
        need_text(fields, "path"),
        need_hex(fields, "data"),
        need_int(fields, "position"),
    )
    drive.create_file(path)
    clock.time_ms = time_ms
    drive.write_at(path, position, data)
    expect("size", need_int(fields, "size"), drive.stat(path).size)
    expect("data", data, drive.read(path, position))
    expect("root_hash", need_text(fields, "root_hash"), drive.root_hash().hex())


register_lattice_type("dlfs", plain_type(DLFSLattice))
register_kind("dlfs-sequence", run_drive_sequence)
register_kind("dlfs-sparse", run_sparse)
