"""What a drive does, and what it refuses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from datalattice.apps.dlfs import (
    DRIVE_DEPTH_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_KEY,
    PROPERTIES_MAX,
    DLFSLattice,
    Drive,
    checked_drive,
    drive_names,
    make_directory,
    make_file,
    make_tombstone,
    normal_path,
    properties_of,
    read_node,
    reading as reading_module,
    split_path,
    with_properties,
)
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Map,
    Value,
    Vector,
    branch_hashes,
    same,
    to_text,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    IsADirectory,
    LimitExceeded,
    NoSigningKey,
    NoSuchPath,
    NotADirectory,
    TypeMismatch,
    UsageError,
)
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore, DiskFile, MemoryStore, RealDisk
from datalattice.store.log.segments import ROOM_BYTES


class Hand:
    """A clock set by hand."""

    def __init__(self, time_ms: int = 10) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        return self.time_ms


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def drive(clock: Hand) -> Drive:
    return Drive.create(clock)


def node(drive: Drive, path: str) -> str:
    value = drive.cursor.get()
    for name in split_path(path):
        found = read_node(value)
        assert found is not None
        assert found.entries is not None
        value = found.entries.get(name)
    return to_text(value)


# --- pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 100])
def test_the_pages_of_a_directory_are_all_its_entries_once(drive: Drive, count: int) -> None:
    long = "x" * 40  # an index compares 32 bytes
    drive.mkdir("/d")
    for name in ("b", "ä", long, f"{long}2", f"{long}3", "gone", "\udcff"):
        drive.write(f"/d/{name}", name.encode("utf-8", "surrogateescape"))
    drive.delete("/d/gone")
    found: list[reading_module.Stat] = []
    start, pages = b"", 0
    while start or not pages:
        page, start = drive.page("/d", start, count)
        assert len(page) == count or not start
        found, pages = found + page, pages + 1
    assert sorted(found, key=lambda one: one.path) == sorted(
        drive.entries("/d"), key=lambda one: one.path
    )
    assert pages == -(-6 // count)
    assert drive.page("/d", b"\xff\xff", count) == ([], b"")


def test_a_page_begins_where_an_entry_was_removed(drive: Drive) -> None:
    drive.mkdir("/d")
    for name in "abcd":
        drive.write(f"/d/{name}", b"x")
    first, start = drive.page("/d", b"", 2)
    drive.delete("/d/c")
    drive.write("/d/a2", b"x")
    rest, end = drive.page("/d", start, 2)
    assert [[one.name for one in page] for page in (first, rest)] == [["a", "b"], ["d"]]
    assert end == b""
    with pytest.raises(NotADirectory):
        drive.page("/d/a", b"", 1)


# --- paths ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "normal", "names"),
    [
        ("/", "/", ()),
        ("///", "/", ()),
        (".", ".", ()),
        ("/a/b", "/a/b", ("a", "b")),
        ("//a/b//", "/a/b", ("a", "b")),
        ("a/./b/../c", "a/c", ("a", "c")),
        ("/../a", "/a", ("a",)),
        ("../../a/..", "../..", ()),
        ("a/..", ".", ()),
        ("a/../../b", "../b", ("b",)),
        ("/ä/ö ü", "/ä/ö ü", ("ä", "ö ü")),
    ],
)
def test_paths_have_one_form(path: str, normal: str, names: tuple[str, ...]) -> None:
    assert normal_path(path) == normal
    assert split_path(path) == names


@pytest.mark.parametrize("path", ["", "a//b", "/a//b/", "a///b"])
def test_paths_without_a_name_are_refused(path: str) -> None:
    with pytest.raises(UsageError, match="empty"):
        split_path(path)
    with pytest.raises(UsageError, match="empty"):
        normal_path(path)


def test_a_path_is_text() -> None:
    with pytest.raises(UsageError, match="the path is not a str"):
        split_path(b"/a")  # type: ignore[arg-type]


def test_paths_have_a_depth_limit(drive: Drive) -> None:
    deep = "/".join(["d"] * (DRIVE_DEPTH_MAX - 1))
    drive.makedirs(deep)
    drive.write(deep + "/f", b"x")
    assert drive.read(deep + "/f") == b"x"
    with pytest.raises(UsageError, match="101 names, 100 at most"):
        drive.write(deep + "/f/g", b"x")
    drive.makedirs("/other/place")
    with pytest.raises(UsageError, match="deeper than 100"):
        drive.copy("/d", "/other/place/d")
    drive.delete(deep + "/f")
    drive.move("/d", "/other/d" if DRIVE_DEPTH_MAX > 100 else "/e")
    assert drive.exists("/e/d")


# --- operations -------------------------------------------------------------------------------


def test_directories_are_made_listed_and_deleted(drive: Drive) -> None:
    drive.mkdir("/a")
    drive.makedirs("/a/b/c")
    drive.makedirs("/a/b/c")
    drive.create_file("/a/f")
    assert drive.list("/a") == ["b", "f"]
    assert list(drive.walk()) == [
        ("/", ["a"], []),
        ("/a", ["b"], ["f"]),
        ("/a/b", ["c"], []),
        ("/a/b/c", [], []),
    ]
    assert drive.du() == (0, 1, 4)
    with pytest.raises(AlreadyExists, match="/a exists"):
        drive.mkdir("a")
    with pytest.raises(AlreadyExists, match="/ exists"):
        drive.mkdir("/")
    with pytest.raises(AlreadyExists, match="/a/b exists"):
        drive.makedirs("/a/b", exist_ok=False)
    with pytest.raises(AlreadyExists, match="/ exists"):
        drive.makedirs("/", exist_ok=False)
    with pytest.raises(AlreadyExists, match="/a/f exists"):
        drive.makedirs("/a/f")
    with pytest.raises(NotADirectory, match="/a/f is a file"):
        drive.makedirs("/a/f/g")
    with pytest.raises(NoSuchPath, match="no directory /no"):
        drive.mkdir("/no/sub")
    with pytest.raises(NotADirectory, match="/a/f is a file"):
        drive.list("/a/f")
    with pytest.raises(DirectoryNotEmpty, match="/a/b is not empty"):
        drive.delete("/a/b")
    drive.delete("/a/b/c")
    drive.delete("/a/b")
    assert drive.list("/a") == ["f"]
    with pytest.raises(NoSuchPath, match="nothing at /a/b"):
        drive.delete("/a/b")
    drive.remove_tree("/a")
    assert drive.list() == []
    for act in (drive.delete, drive.remove_tree):
        with pytest.raises(UsageError, match="root"):
            act("/")


def test_a_watch_tells_of_each_path_that_changed(drive: Drive, clock: Hand) -> None:
    drive.makedirs("/a/b")
    drive.write("/a/b/old", b"1")
    drive.write("/gone", b"1")
    with drive.watch(wait=False) as watch:
        assert list(watch) == []
        clock.time_ms += 1
        drive.write("/a/b/old", b"2")
        drive.write("/a/new", b"3")
        drive.delete("/gone")
        drive.makedirs("/c/d")
        changes = dict(watch)
        assert list(changes) == ["/a/b/old", "/a/new", "/c", "/c/d", "/gone"]
        assert changes["/gone"] is None
        assert changes["/a/b/old"] == drive.stat("/a/b/old")
        drive.remove_tree("/a")
        drive.write("/a", b"a file now")
        assert [path for path, _ in watch] == ["/a", "/a/b", "/a/b/old", "/a/new"]
        drive.write("/a", b"a file now")
        assert watch.poll() == []


def test_usage_of_a_drive_that_uses_one_directory_many_times_over() -> None:
    tree: Value = make_file(b"12", 1)
    for _ in range(DRIVE_DEPTH_MAX - 1):
        tree = make_directory(Index.of([("a", tree), ("b", tree)]), 1)
    count = 2 ** (DRIVE_DEPTH_MAX - 1)
    assert Drive(RootLattice(DLFSLattice(), tree)).du() == (2 * count, count, count - 1)
    for _ in range(5_000):
        tree = make_directory(Index.of([("d", tree)]), 1)
    usage = Drive(RootLattice(DLFSLattice(), tree)).du()
    assert usage == (0, 0, DRIVE_DEPTH_MAX + 1)


def test_files_are_written_read_and_changed(drive: Drive, clock: Hand) -> None:
    drive.write("/f", [b"one", b" ", b"two"])
    assert drive.read("/f") == b"one two"
    assert drive.read("/f", 4) == b"two"
    assert drive.read("/f", 1, 3) == b"ne"
    assert drive.read("/f", 100) == b""
    drive.append("/f", b"!")
    drive.write_at("/f", 0, b"O")
    drive.write_at("/f", 10, b"x")
    assert drive.read("/f") == b"One two!\0\0x"
    drive.truncate("/f", 3)
    drive.truncate("/f", 50)
    assert drive.read("/f") == b"One"
    drive.resize("/f", 5)
    assert drive.read("/f") == b"One\0\0"
    drive.append("/new", b"made")
    drive.write_at("/newer", 2, b"made")
    assert drive.read("/newer") == b"\0\0made"
    clock.time_ms = 99
    stat = drive.entries()[0]
    assert stat == drive.stat("/f")
    assert (stat.path, stat.name, stat.is_dir, stat.is_file, stat.size) == (
        "/f",
        "f",
        False,
        True,
        5,
    )
    assert stat.hash == drive.node_hash("/f")
    assert drive.stat("/").name == ""
    assert drive.stat("/").size == 0


def test_what_cannot_be_done_to_a_file_is_refused_and_changes_nothing(drive: Drive) -> None:
    drive.mkdir("/d")
    drive.write("/f", b"x")
    before = drive.cursor.get()
    refused = [
        (IsADirectory, lambda: drive.read("/d")),
        (IsADirectory, lambda: drive.write("/d", b"")),
        (IsADirectory, lambda: drive.write("/", b"")),
        (IsADirectory, lambda: drive.append("/d", b"")),
        (IsADirectory, lambda: drive.truncate("/d", 0)),
        (IsADirectory, lambda: drive.open("/d")),
        (NotADirectory, lambda: drive.write("/f/g", b"")),
        (NotADirectory, lambda: drive.stat("/f/g")),
        (NoSuchPath, lambda: drive.read("/g")),
        (NoSuchPath, lambda: drive.truncate("/g", 0)),
        (NoSuchPath, lambda: drive.resize("/g", 0)),
        (NoSuchPath, lambda: drive.write("/no/f", b"")),
        (NoSuchPath, lambda: drive.stat("/g")),
        (NoSuchPath, lambda: drive.node_hash("/g")),
        (AlreadyExists, lambda: drive.create_file("/f")),
        (AlreadyExists, lambda: drive.create_file("/")),
        (UsageError, lambda: drive.read("/f", -1)),
        (UsageError, lambda: drive.read("/f", 0, -1)),
        (UsageError, lambda: drive.write_at("/f", -1, b"x")),
        (UsageError, lambda: drive.truncate("/f", -1)),
        (UsageError, lambda: drive.resize("/f", -1)),
        (TypeError, lambda: drive.write("/f", ["text"])),  # type: ignore[list-item]
        (TypeError, lambda: drive.append("/f", "text")),  # type: ignore[arg-type]
    ]
    for error, act in refused:
        with pytest.raises(error):
            act()  # type: ignore[no-untyped-call]
    assert drive.cursor.get() is before


def test_a_write_to_nowhere_reads_none_of_its_pieces(drive: Drive) -> None:
    taken = []

    def pieces() -> object:
        taken.append(1)
        yield b"x"

    with pytest.raises(NoSuchPath):
        drive.write("/no/f", pieces())  # type: ignore[arg-type]
    assert taken == []


def test_copies_and_moves(drive: Drive) -> None:
    drive.makedirs("/a/b")
    drive.write("/a/b/f", b"x" * 10_000)
    drive.write("/g", b"g")
    drive.copy("/a", "/c")
    assert drive.read("/c/b/f") == b"x" * 10_000
    assert drive.content("/c/b/f") is drive.content("/a/b/f")
    drive.move("/c/b/f", "/h")
    assert not drive.exists("/c/b/f")
    drive.copy("/g", "/h")
    assert drive.read("/h") == b"g"
    before = drive.cursor.get()
    drive.move("/g", "/g")
    refused = [
        (UsageError, "/a/b/x is inside /a", lambda: drive.copy("/a", "/a/b/x")),
        (UsageError, "inside", lambda: drive.move("/", "/x")),
        (AlreadyExists, "/h exists", lambda: drive.copy("/g", "/h", overwrite=False)),
        (AlreadyExists, "/c exists", lambda: drive.copy("/a", "/c")),
        (AlreadyExists, "/h exists", lambda: drive.move("/a", "/h")),
        (IsADirectory, "/a is a directory", lambda: drive.move("/g", "/a")),
        (NoSuchPath, "nothing at /no", lambda: drive.move("/no", "/x")),
        (NoSuchPath, "no directory /no", lambda: drive.copy("/g", "/no/x")),
    ]
    for error, text, act in refused:
        with pytest.raises(error, match=text):
            act()  # type: ignore[no-untyped-call]
    assert drive.cursor.get() is before


def test_names_of_200_bytes_that_differ_in_the_last_are_names_of_their_own(drive: Drive) -> None:
    names = ["n" * 199 + tail for tail in "abc"]
    for name in names:
        drive.makedirs(f"/{name}")
        drive.write(f"/{name}/{name}", name[-1].encode())
    drive.write("/" + "n" * 32, b"short")
    with pytest.raises(NoSuchPath):
        drive.read("/" + "n" * 199)
    assert drive.list() == sorted(["n" * 32, *names])
    other = drive.clone()
    other.write("/" + "n" * 40, b"apart")
    other.remove_tree("/" + names[0])
    drive.write(f"/{names[1]}/{names[2]}", b"here")
    for one, two in ((drive, other), (other, drive)):
        one.replicate(two)
    assert drive.root_hash() == other.root_hash()
    assert drive.list() == sorted(["n" * 32, "n" * 40, *names[1:]])
    assert drive.list(names[1]) == names[1:]
    drive.move("/" + names[1], "/" + names[0])
    assert drive.read(f"/{names[0]}/{names[1]}") == b"b"
    assert [path for path, _, _ in drive.walk("/")] == [
        "/",
        *(f"/{n}" for n in (names[0], names[2])),
    ]
    assert drive.stat("/" + names[2]).name == names[2]
    with pytest.raises(UsageError, match="a name has at most 4096 bytes of UTF-8, got 4097"):
        drive.write("/" + "n" * 4_097, b"")
    drive.write("/" + "n" * 4_096, b"longest")
    assert "n" * 4_096 in drive.list()


def test_a_long_name_of_an_earlier_version_is_read_and_written_over(drive: Drive) -> None:
    long = "n" * 40
    file = make_file(b"old", 5)
    before = make_directory(Index.of([(long, file), ("\udc80" * 40, file)]), 5)
    drive.cursor.set(before)
    assert drive.list() == [long, "\udc80" * 40]
    assert drive.read(long) == b"old"
    drive.write(long, b"new")
    assert drive.read(long) == b"new"
    drive.write(long[:32], b"short")
    drive.delete(long)
    assert drive.list() == [long[:32], "\udc80" * 40]
    assert same(DLFSLattice().merge(drive.cursor.get(), before), drive.cursor.get())
    assert drive.list() == [long[:32], "\udc80" * 40]


def test_one_read_is_bounded(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "READ_BYTES_MAX", 10)
    drive.write("/f", bytes(20))
    assert len(drive.read("/f", 0, 9)) == 9
    assert len(drive.read("/f", 0, 10)) == 10
    assert len(drive.read("/f", 15)) == 5
    with pytest.raises(UsageError, match="at most 10 bytes, got 11"):
        drive.read("/f", 0, 11)


# --- stamps -----------------------------------------------------------------------------------


def test_a_write_is_later_than_what_it_replaces_and_all_above_get_its_time(drive: Drive) -> None:
    drive.mkdir("/d")
    drive.write("/d/f", b"1")
    drive.write("/d/f", b"2")
    assert node(drive, "/d/f") == "[nil 0x32 nil 11]"
    assert drive.stat("/d").modified_ms == drive.stat("/").modified_ms == 11
    drive.delete("/d/f")
    assert node(drive, "/d/f") == "[nil nil nil 12]"
    drive.mkdir("/d/f")
    assert node(drive, "/d/f") == '[#Index {} nil nil 13 #Index {"" 12}]'
    drive.write("/d/f/g", b"")
    assert node(drive, "/d/f/g") == "[nil 0x nil 13]"
    drive.remove_tree("/d")
    assert node(drive, "/d") == "[nil nil nil 14]"
    drive.create_file("/d")
    assert node(drive, "/d") == "[nil 0x nil 15]"


def test_a_copied_tree_is_stamped_node_by_node(drive: Drive, clock: Hand) -> None:
    drive.makedirs("/a/b")
    drive.write("/a/b/f", b"1")
    drive.mkdir("/c")
    drive.delete("/c")
    clock.time_ms = 5  # the clock of a drive never goes back
    drive.copy("/a", "/c")
    assert node(drive, "/c/b/f") == "[nil 0x31 nil 12]"
    assert node(drive, "/c").endswith(' nil nil 12 #Index {"" 11}]')


def test_a_write_that_changes_nothing_writes_nothing(drive: Drive) -> None:
    drive.write("/f", b"x" * 9000)
    before = drive.cursor.get()
    drive.write("/f", [b"x" * 9000])
    drive.write_at("/f", 4000, b"x" * 200)
    drive.append("/f", b"")
    drive.truncate("/f", 9000)
    drive.resize("/f", 9000)
    assert drive.cursor.get() is before


def test_the_context_gives_the_time_when_it_has_one(drive: Drive) -> None:
    drive.cursor.with_context(MergeContext(timestamp=77))
    drive.mkdir("/a")
    assert drive.stat("/a").modified_ms == 77


def test_content_keeps_metadata(drive: Drive) -> None:
    root = make_directory(Index.of([("f", make_file(b"1", 3, "kind"))]), 3)
    drive.merge(root)
    drive.write("/f", b"2")
    assert drive.stat("/f").metadata == "kind"
    drive.copy("/f", "/g")
    assert drive.stat("/g").metadata == "kind"


# --- drives below a root ----------------------------------------------------------------------


def test_drives_stand_below_their_owner(clock: Hand) -> None:
    keys = KeyPair(bytes(32))
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    drive = Drive.at(root, keys.public_key, "home", clock)
    assert drive.list() == []
    assert root.get() is None
    assert drive_names(root, keys.public_key) == []
    drive.write("/f", b"1")
    other = Drive.at(root, keys.public_key, "other", clock)
    other.ensure()
    assert other.stat("/").modified_ms == 10
    again = other.cursor.get()
    other.ensure()
    assert other.cursor.get() is again
    assert drive_names(root, keys.public_key) == ["home", "other"]
    fork = drive.fork()
    fork.write("/g", b"2")
    assert not drive.exists("/g")
    fork.sync()
    assert drive.read("/g") == b"2"
    other.replicate(drive)
    assert other.list() == ["f", "g"]
    assert drive.clone().root_hash() == drive.root_hash() == value_hash(drive.cursor.get())
    stranger = RootLattice(root_lattice(), root.get())
    with pytest.raises(NoSigningKey):
        Drive.at(stranger, keys.public_key, "home", clock).write("/f", b"2")


@pytest.mark.parametrize("name", ["", "a/b", b"a", None])
def test_drives_have_names(name: object) -> None:
    with pytest.raises(UsageError, match="the drive's name is not"):
        checked_drive(name)


def test_what_is_no_directory_is_no_drive() -> None:
    for value in (make_file(b"", 1), 7):
        cursor = RootLattice(None, value)
        with pytest.raises(TypeMismatch, match="root of a drive"):
            Drive(cursor).list()


def test_a_large_file_passes_through_the_store(clock: Hand) -> None:
    store = MemoryStore()
    staged: list[Value] = []

    def stage(value: Value) -> None:
        staged.append(value)
        store.put(value)

    drive = Drive.create(clock, stage=stage)
    drive.write("/f", (bytes([number]) * (1 << 20) for number in range(17)))
    assert len(staged) == 17 + 1
    drive.write_at("/s", 1 << 59, b"tail")
    assert drive.stat("/s").size == (1 << 59) + 4
    assert drive.read("/s", (1 << 59) - 2) == b"\0\0tail"
    assert drive.read("/s", 0, 3) == bytes(3)
    store.commit(drive.cursor.get())
    held = Drive(RootLattice(None, store.root()), clock)
    assert held.read("/f", (3 << 20) - 1, (3 << 20) + 1) == b"\x02\x03"
    assert len(held.read("/s", (1 << 40), (1 << 40) + 100)) == 100


def test_deletions_in_the_other_layout_are_read_and_written_back_as_tombstones() -> None:
    entries = Index.of([("a", make_file(b"1", 3)), ("b", make_file(b"1", 9))])
    gone = Index.of([("a", 5), ("b", 7), ("c", 8)])
    held = Drive(RootLattice(None, Vector.of([entries, None, None, 9, gone])), Hand())
    assert held.list() == ["b"]
    assert not held.exists("/a")
    with pytest.raises(NoSuchPath):
        held.delete("/c")
    held.write("/d", b"")
    tombs = [("a", make_tombstone(5)), ("b", make_file(b"1", 9)), ("c", make_tombstone(8))]
    wanted = make_directory(Index.of([*tombs, ("d", make_file(b"", 10))]), 10)
    assert same(held.cursor.get(), wanted)


def test_names_that_no_path_can_reach_are_not_shown() -> None:
    entries = Index.of([("..", make_file(b"", 1)), (".", make_file(b"", 1)), ("a/b", EMPTY_INDEX)])
    held = Drive(RootLattice(None, make_directory(entries, 1)), Hand())
    assert held.list() == []


def test_what_was_staged_is_announced_with_the_commit(tmp_path: Path, clock: Hand) -> None:
    pieces = [bytes([number]) * 700_000 for number in range(7)]
    with CellStore.open(tmp_path / "store", pending_bytes=0) as store:
        drive = Drive.create(clock, stage=store.put)
        drive.write("/f", pieces)
        store.commit(drive.cursor.get())
        waiting = [store.root_hash() or b""]
        while waiting:
            hash = waiting.pop()
            assert store.announced(hash)
            waiting += branch_hashes(store.get_encoding(hash) or b"")
        drive.append("/f", b"more")
        written = store.commit(drive.cursor.get()).novelty
    assert sum(len(encoding) for _, encoding, _ in written) < 8_000
    with CellStore.open(tmp_path / "store", read_only=True) as store:
        held = Drive(RootLattice(None, store.root()), clock)
        assert held.read("/f") == b"".join(pieces) + b"more"


class _CountedFile:
    """A file that adds up what is written to it."""

    def __init__(self, inner: DiskFile, disk: _CountingDisk) -> None:
        self._inner = inner
        self._disk = disk

    def write(self, offset: int, data: bytes) -> None:
        self._disk.written += len(data)
        self._inner.write(offset, data)

    def begin_write(self, offset: int, parts: list[bytes]) -> None:
        self._disk.written += sum(map(len, parts))
        self._inner.begin_write(offset, parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _CountingDisk(RealDisk):
    def __init__(self) -> None:
        self.written = 0

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        return cast("DiskFile", _CountedFile(super().open(path, create=create, write=write), self))


def test_an_append_to_a_large_file_does_not_rewrite_it(tmp_path: Path) -> None:
    disk = _CountingDisk()
    content = random.Random(1).randbytes(100 << 20)
    with CellStore.open(tmp_path / "store", disk=disk) as store:

        def commit(held: Value) -> Value:
            store.commit(held)
            return held

        root = RootLattice(DLFSLattice(), None, on_sync=commit)
        drive = Drive(root, stage=store.put)
        drive.write("/big", content)
        drive.sync()
        assert disk.written > len(content)
        disk.written = 0
        for number in range(10):
            drive.append("/big", bytes([number]) * 1_000)
            drive.sync()
        # Small packs take space ahead, 256 KiB at a time.
        assert disk.written < 2 * ROOM_BYTES + 10 * 16_384
        assert drive.read("/big", len(content) - 1) == content[-1:] + b"".join(
            [bytes([number]) * 1_000 for number in range(10)]
        )


# --- properties -----------------------------------------------------------------------------------


def test_properties_stay_with_a_file_and_follow_its_copy() -> None:
    drive = Drive.create()
    drive.mkdir("/d")
    drive.write("/d/a", b"1")
    drive.set_properties("/d/a", {"author": "Jörg", "{urn:x}n": "1"})
    drive.set_properties("/d", {"colour": "red"})
    drive.set_properties("/", {"of": "the drive"})
    before = drive.stat("/d/a")
    assert before.properties == {"author": "Jörg", "{urn:x}n": "1"}
    drive.write("/d/a", b"2")
    assert drive.stat("/d/a").properties == before.properties
    assert drive.stat("/d/a").content_hash != before.content_hash
    drive.set_properties("/d/a", {"author": None, "absent": None})
    drive.copy("/d", "/e")
    drive.move("/e", "/f")
    assert drive.stat("/f").properties == {"colour": "red"}
    assert drive.stat("/f/a").properties == {"{urn:x}n": "1"}
    assert drive.stat("/").properties == {"of": "the drive"}
    drive.set_properties("/d/a", {"{urn:x}n": None})
    assert drive.stat("/d/a").metadata is None
    with pytest.raises(NoSuchPath):
        drive.set_properties("/none", {"a": "b"})


def test_properties_change_no_content_hash_and_the_later_ones_win_a_merge() -> None:
    clock = Hand(100)
    drive = Drive.create(clock)
    drive.write("/a", b"1")
    other = drive.clone()
    held = drive.stat("/a")
    drive.set_properties("/a", {"n": "1"})
    assert drive.stat("/a").content_hash == held.content_hash
    assert drive.stat("/a").hash != held.hash
    drive.merge(other.cursor.get())
    assert drive.stat("/a").properties == {"n": "1"}
    root = drive.cursor.get()
    drive.set_properties("/a", {"n": "1"})
    assert drive.cursor.get() is root  # nothing changed, so nothing is written


def test_properties_keep_to_their_limits_and_leave_other_metadata() -> None:
    drive = Drive.create()
    drive.write("/a", b"1")
    drive.set_properties("/a", {str(n): "" for n in range(PROPERTIES_MAX)})
    with pytest.raises(LimitExceeded):
        drive.set_properties("/a", {"more": ""})
    drive.set_properties("/a", {str(n): None for n in range(PROPERTIES_MAX)})
    drive.set_properties("/a", {"long": "x" * (PROPERTIES_BYTES_MAX - 4)})
    assert len(drive.stat("/a").properties["long"]) == PROPERTIES_BYTES_MAX - 4
    with pytest.raises(LimitExceeded):
        drive.set_properties("/a", {"long": "x" * (PROPERTIES_BYTES_MAX - 3)})
    with pytest.raises(UsageError):
        drive.set_properties("/a", {"": "x"})
    # "Other entries belong to other programs and stay as they are."
    foreign = Map.of({"mine": 1, PROPERTIES_KEY: Map.of({"n": 5, 6: "x", "ok": "yes"})})
    assert properties_of(foreign) == {"ok": "yes"}
    made = with_properties(foreign, {"ok": None})
    assert isinstance(made, Map)
    assert dict(made.entries()) == {"mine": 1}
    assert properties_of(5) == properties_of(Map.of({PROPERTIES_KEY: 5})) == {}
    many = Map.of({str(n): "" for n in range(PROPERTIES_MAX + 1)})
    assert len(properties_of(Map.of({PROPERTIES_KEY: many}))) == PROPERTIES_MAX
    with pytest.raises(UsageError):
        with_properties(5, {"a": "b"})
