"""A drive behaves as a folder of the machine does, through forks, merges and a store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from datalattice.apps.dlfs import Drive
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.store import MemoryStore

PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
DATA = st.binary(max_size=6) | st.sampled_from([b"x" * 5000, b"y" * 70_000])
SIDES = st.sampled_from(["left", "right"])


EXAMPLES = settings().max_examples


class Ticks:
    """A clock that stands still for a while and goes back now and then."""

    def __init__(self) -> None:
        self.count = 0

    def now_ms(self) -> int:
        self.count += 1
        return 1000 + self.count // 3 - (5 if self.count % 7 == 0 else 0)


def fails_alike(on_drive: Callable[[], object], on_folder: Callable[[], object]) -> bool:
    """Do one thing to both: both do it, or both refuse. Return whether it was done."""
    refused = [False, False]
    for side, act in enumerate((on_drive, on_folder)):
        try:
            act()
        except (UsageError, OSError):
            refused[side] = True
    assert refused[0] == refused[1], f"the drive refused: {refused[0]}, the folder: {refused[1]}"
    return not refused[0]


class FolderMachine(RuleBasedStateMachine):
    """Every operation on both; what they hold is compared after each."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.folder = Path(self.home.name)
        self.clock = Ticks()
        self.store = MemoryStore()
        self.drive = Drive.create(self.clock, stage=self.store.put)
        for name in ("left", "right"):
            self.drive.mkdir(name)
            (self.folder / name).mkdir()

    def teardown(self) -> None:
        self.home.cleanup()

    @rule(side=SIDES, path=PATHS)
    def mkdir(self, side: str, path: str) -> None:
        place = f"{side}/{path}"
        fails_alike(lambda: self.drive.mkdir(place), (self.folder / place).mkdir)

    @rule(side=SIDES, path=PATHS, data=DATA)
    def write(self, side: str, path: str, data: bytes) -> None:
        place = f"{side}/{path}"
        fails_alike(
            lambda: self.drive.write(place, data),
            lambda: (self.folder / place).write_bytes(data),
        )

    @rule(side=SIDES, path=PATHS, data=DATA, mode=st.sampled_from(["ab", "wb", "xb", "r+b", "w+b"]))
    def write_through_a_file(self, side: str, path: str, data: bytes, mode: str) -> None:
        place = f"{side}/{path}"

        def on_drive() -> None:
            with self.drive.open(place, mode, 4096) as file:
                file.write(data)

        def on_folder() -> None:
            with (self.folder / place).open(mode) as file:
                file.write(data)

        fails_alike(on_drive, on_folder)

    @rule(side=SIDES, path=PATHS, position=st.integers(0, 9000), data=DATA)
    def write_at(self, side: str, path: str, position: int, data: bytes) -> None:
        place = f"{side}/{path}"
        if not self.drive.is_file(place) or not data:
            return
        self.drive.write_at(place, position, data)
        with (self.folder / place).open("r+b") as file:
            file.seek(position)
            file.write(data)

    @rule(side=SIDES, path=PATHS, size=st.integers(0, 9000))
    def truncate(self, side: str, path: str, size: int) -> None:
        place = f"{side}/{path}"

        def on_folder() -> None:
            with (self.folder / place).open("r+b") as file:
                file.truncate(size)

        fails_alike(lambda: self.drive.resize(place, size), on_folder)

    @rule(side=SIDES, path=PATHS)
    def delete(self, side: str, path: str) -> None:
        place = f"{side}/{path}"
        here = self.folder / place
        fails_alike(
            lambda: self.drive.delete(place),
            lambda: here.rmdir() if here.is_dir() else here.unlink(),
        )

    @rule(side=SIDES, path=PATHS)
    def remove_tree(self, side: str, path: str) -> None:
        place = f"{side}/{path}"
        if self.drive.is_dir(place):
            self.drive.remove_tree(place)
            shutil.rmtree(self.folder / place)

    @rule(side=SIDES, old=PATHS, new=PATHS, move=st.booleans())
    def place(self, side: str, old: str, new: str, move: bool) -> None:
        old, new = f"{side}/{old}", f"{side}/{new}"
        target_above = Path(new).parent
        if self.drive.exists(new) or not self.drive.is_dir(str(target_above)):
            return
        if new.startswith(old + "/") or not self.drive.exists(old):
            return
        (self.drive.move if move else self.drive.copy)(old, new)
        here, there = self.folder / old, self.folder / new
        if move:
            here.rename(there)
        elif here.is_dir():
            shutil.copytree(here, there)
        else:
            shutil.copyfile(here, there)

    @rule(path=PATHS, data=DATA, other=PATHS)
    def write_apart_and_meet(self, path: str, data: bytes, other: str) -> None:
        """Two replicas change different halves and meet in either order."""
        fork, clone = self.drive.fork(), self.drive.clone()
        right = f"right/{path}"
        fails_alike(
            lambda: clone.write(right, data), lambda: (self.folder / right).write_bytes(data)
        )
        left = f"left/{other}"
        if fork.is_dir(left):
            fork.remove_tree(left)
            shutil.rmtree(self.folder / left)
        else:
            fails_alike(lambda: fork.mkdir(left), (self.folder / left).mkdir)
        both = clone.clone()
        both.replicate(fork)
        fork.replicate(clone)
        assert both.root_hash() == fork.root_hash()
        fork.sync()

    @rule()
    def reopen(self) -> None:
        self.store.commit(self.drive.cursor.get())
        root = RootLattice(self.drive.cursor.lattice, self.store.root())
        self.drive = Drive(root, self.clock, stage=self.store.put)

    @invariant()
    def both_hold_the_same(self) -> None:
        for path, directories, files in self.drive.walk():
            here = self.folder / path.lstrip("/")
            assert sorted(directories) == sorted(p.name for p in here.iterdir() if p.is_dir())
            assert sorted(files) == sorted(p.name for p in here.iterdir() if p.is_file())
            for name in files:
                assert self.drive.read(f"{path}/{name}") == (here / name).read_bytes()


TestFolder = FolderMachine.TestCase
TestFolder.settings = settings(max_examples=max(EXAMPLES // 10, 1), stateful_step_count=30)
