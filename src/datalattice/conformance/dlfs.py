"""File system vectors: recorded sequences on drives, and a sparse file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.apps.dlfs import DLFSLattice, Drive
from datalattice.conformance.checks import (
    Fields,
    expect,
)
from datalattice.conformance.notation import plain_type, register_lattice_type
from datalattice.conformance.registry import register_kind
from datalattice.conformance.sequences import (
    SEQUENCE_FIELDS,
    SequenceRun,
    StepClock,
    operation,
    returned,
)
from datalattice.errors import AlreadyExists, DirectoryNotEmpty, NoSuchPath

LAYOUT: Final = "4-field"


class _Drives(SequenceRun[Drive]):
    """One sequence on drives. Each has a clock of its own, which stands still until it is set."""

    what = "a drive"
    fields = ("java_states",)

    def __init__(self) -> None:
        super().__init__()
        self.clocks: dict[str, StepClock] = {}

    @operation(silent=True)
    def create(self, step: Fields) -> None:
        clock = self.clocks[step.text("on")] = StepClock()
        self.add(step, "on", Drive.create(clock))

    @operation("time", silent=True)
    def set_time(self, step: Fields) -> None:
        self.on(step)
        self.clocks[step.text("on")].time_ms = step.integer("time")

    # A fork has a clock of its own, which begins at the time of its parent.
    @operation("as", silent=True)
    def fork(self, step: Fields) -> None:
        parent = self.on(step)
        clock = StepClock(self.clocks[step.text("on")].time_ms)
        self.add(step, "as", Drive(parent.cursor.fork(), clock))
        self.clocks[step.text("as")] = clock

    @operation("from", silent=True)
    def replicate(self, step: Fields) -> None:
        self.on(step).replicate(self.on(step, "from"))

    @operation("path")
    def list(self, step: Fields) -> None:
        drive, path = self.on(step), step.text("path")
        _returns(step, lambda: drive.list(path))

    @operation("path")
    def read(self, step: Fields) -> None:
        drive, path = self.on(step), step.text("path")
        _returns(step, lambda: drive.read(path).hex())

    @operation("path")
    def mkdir(self, step: Fields) -> None:
        _returns_ok(step, self.on(step).mkdir)

    @operation("path")
    def create_file(self, step: Fields) -> None:
        _returns_ok(step, self.on(step).create_file)

    @operation("path")
    def delete(self, step: Fields) -> None:
        _returns_ok(step, self.on(step).delete)

    @operation("path", "data")
    def write(self, step: Fields) -> None:
        drive, data = self.on(step), step.hex("data")
        _returns_ok(step, lambda path: drive.write(path, data))

    @operation("path", "data")
    def append(self, step: Fields) -> None:
        drive, data = self.on(step), step.hex("data")
        _returns_ok(step, lambda path: drive.append(path, data))

    @operation("path", "position", "data")
    def write_at(self, step: Fields) -> None:
        drive, data, position = self.on(step), step.hex("data"), step.integer("position")
        _returns_ok(step, lambda path: drive.write_at(path, position, data))

    @operation("path", "size")
    def truncate(self, step: Fields) -> None:
        drive, size = self.on(step), step.integer("size")
        _returns_ok(step, lambda path: drive.truncate(path, size))


def _returns_ok(step: Fields, action: Callable[[str], None]) -> None:
    # The vectors record "ok" for an operation that returns nothing.
    path = step.text("path")

    def perform() -> str:
        action(path)
        return "ok"

    _returns(step, perform)


def _returns(step: Fields, action: Callable[[], object]) -> None:
    """Compare what an operation returns, or the word for its error, with what is recorded."""
    try:
        got = action()
    # Vectors name an error by a word, since texts differ between implementations.
    except NoSuchPath:
        got = "not-found"
    except AlreadyExists:
        got = "exists"
    except DirectoryNotEmpty:
        got = "not-empty"
    returned(step, got)


def run_drive_sequence(fields: Fields) -> None:
    """Check a recorded sequence of operations on drives."""
    fields.only(*SEQUENCE_FIELDS, "layout", "java_final")
    # A node of a drive has four fields; earlier layouts have other hashes.
    expect("layout", LAYOUT, fields.text("layout"))
    _Drives().run(fields)


def run_sparse(fields: Fields) -> None:
    """Check the root hash and the size after a write far behind the end of an empty file."""
    fields.only("id", "kind", "time", "path", "position", "data", "size", "root_hash", "decision")
    # A write of ours is stamped later than what it replaces, so the file is made one ms earlier.
    time_ms = fields.integer("time")
    clock = StepClock(time_ms - 1)
    drive = Drive.create(clock)
    path, data, position = (
        fields.text("path"),
        fields.hex("data"),
        fields.integer("position"),
    )
    drive.create_file(path)
    clock.time_ms = time_ms
    drive.write_at(path, position, data)
    fields.expect("size", drive.stat(path).size)
    # Read back from the position: the gap before it is zeros that no one wrote.
    expect("data", data, drive.read(path, position))
    fields.expect("root_hash", drive.root_hash().hex())


register_lattice_type("dlfs", plain_type(DLFSLattice))
register_kind("dlfs-sequence", run_drive_sequence)
register_kind("dlfs-sparse", run_sparse)
