"""The files of drives as rows: listed, chosen by globs, whole or in chunks, in several tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.apps.dlfs import FS_SECTION, Drive, make_directory, make_file
from datalattice.cells import Index, Map, Signed, decode_message, to_text
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import BadSignature, LimitExceeded, UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline.files import plan as planning
from datalattice.pipeline.files.options import parse_options
from datalattice.store import CellStore
from datalattice.testing.background import BackgroundNode
from datalattice.testing.clocks import StoppedClock

pa: Any = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from datalattice.pipeline.files.source import FilesSource  # noqa: E402 - needs Spark
from datalattice.testing.spark_kit import rows_of, struct_of  # noqa: E402 - needs Spark

ALICE, BOB = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
ALICE_NAME = "0x" + ALICE.public_key.hex()


class Drives:
    """Drives of two owners in one store that stays open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CellStore.open(folder)
        self.clock = StoppedClock(1_700_000_000_000)
        self.roots = {
            keys.public_key: RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
            for keys in (ALICE, BOB)
        }

    def drive(self, name: str = "main", keys: KeyPair = ALICE) -> Drive:
        drive = Drive.at(self.roots[keys.public_key], keys.public_key, name, self.clock)
        drive.ensure()
        return drive

    def commit(self) -> bytes:
        both = [root.get() for root in self.roots.values()]
        return self.store.commit(root_lattice().merge(both[0], both[1])).root_hash

    def fill(self, *paths: str, **where: Any) -> None:
        drive = self.drive(**where)
        for path in paths:
            drive.makedirs(path.rpartition("/")[0] or "/")
            drive.write(path, path.encode())
        self.commit()

    def reader(self, **options: str) -> Any:
        source = FilesSource({"store": str(self.folder), **options})
        return source.reader(struct_of(source.parsed.types))

    def read(self, **options: str) -> list[dict[str, Any]]:
        reader = self.reader(**options)
        return rows_of(reader, reader.partitions())

    def paths(self, **options: str) -> list[str]:
        return [row["path"] for row in self.read(**options)]


@pytest.fixture
def drives(tmp_path: Path) -> Iterator[Drives]:
    made = Drives(tmp_path / "store")
    yield made
    made.store.close()


class TestRows:
    def test_a_listing(self, drives: Drives) -> None:
        drives.fill("/docs/a.txt", "/b.bin")
        drives.drive().mkdir("/empty")
        drives.drive().write("/gone", b"x")
        drives.drive().delete("/gone")
        drives.commit()
        when = datetime.fromtimestamp(drives.clock.now / 1000, UTC)
        assert [(row["path"], row["size"]) for row in drives.read()] == [
            ("/b.bin", 6),
            ("/docs/a.txt", 11),
        ]
        assert {row["modified"] for row in drives.read(glob="/docs")} == {when}
        assert set(drives.read()[0]) == {"path", "size", "modified"}

    def test_contents(self, drives: Drives) -> None:
        big = bytes(range(256)) * 400
        drives.drive().write("/big", big)
        drives.drive().create_file("/none")
        drives.fill("/a")
        found = {row["path"]: row["content"] for row in drives.read(includeContent="true")}
        assert found == {"/a": b"/a", "/big": big, "/none": b""}

    def test_columns_are_chosen(self, drives: Drives) -> None:
        drives.fill("/a")
        assert drives.read(columns="content,Drive,owner") == [
            {"content": b"/a", "drive": "main", "owner": ALICE_NAME}
        ]

    def test_as_of(self, drives: Drives) -> None:
        drives.fill("/a")
        before = drives.commit()
        drives.fill("/b")
        assert drives.paths() == ["/a", "/b"]
        assert drives.paths(asOf="0x" + before.hex()) == ["/a"]

    def test_an_empty_store_and_an_empty_drive_have_no_rows(self, drives: Drives) -> None:
        assert drives.read() == []
        drives.drive()
        drives.commit()
        assert drives.read() == []

    def test_a_deletion_in_the_layout_of_others_counts(self, drives: Drives) -> None:
        # The fifth position of a directory may name what was deleted in it.
        entries = Index.of({"a": make_file(b"a", 1), "b": make_file(b"b", 9)})
        root = make_directory(entries, 9).append(Index.of({"a": 5, "b": 5}))
        signed = Signed.sign(ALICE, Map.of({"main": root}))
        drives.store.commit(Index.of({FS_SECTION: Map.of({ALICE.public_key: signed})}))
        assert drives.paths() == ["/b"]
        assert drives.paths(glob="/b") == ["/b"]
        with pytest.raises(UsageError, match=r"glob='/a' .* nothing exists at this path"):
            drives.paths(glob="/a")


class TestChoosing:
    def test_globs(self, drives: Drives) -> None:
        drives.fill("/a.csv", "/x/b.csv", "/x/c.txt", "/x/y/d.csv")
        every = ["/a.csv", "/x/b.csv", "/x/c.txt", "/x/y/d.csv"]
        for glob, fits in {
            "/**": every,
            "/": every,
            "/x": every[1:],
            "/x/y": ["/x/y/d.csv"],
            "/a.csv": ["/a.csv"],
            "/*.csv": ["/a.csv"],
            "**/*.csv": ["/a.csv", "/x/b.csv", "/x/y/d.csv"],
            "/x/*": ["/x/b.csv", "/x/c.txt"],
            "/x/**/*.csv": ["/x/b.csv", "/x/y/d.csv"],
            "/*/y/*": ["/x/y/d.csv"],
            "/a.csv/*": [],
            "/no/*": [],
        }.items():
            assert sorted(drives.paths(glob=glob)) == fits, glob

    def test_any_number_of_names_may_be_none(self, drives: Drives) -> None:
        drives.fill("/d/f", "/d/g")
        assert drives.paths(glob="/d/f/**") == ["/d/f"]
        assert drives.paths(glob="/**/f/**") == ["/d/f"]
        assert drives.paths(glob="/d/f/*") == []

    def test_what_is_named_must_be_there(self, drives: Drives) -> None:
        drives.fill("/a")
        for glob in ("/b", "/a/b", "/b/c"):
            with pytest.raises(
                UsageError, match=r"glob='.*' is not .* nothing exists at this path in drive"
            ):
                drives.read(glob=glob)
        with pytest.raises(UsageError, match="no such drive; it has: main"):
            drives.read(drive="other")
        with pytest.raises(UsageError, match=f"no such owner; it has: {ALICE_NAME}"):
            drives.read(owner="ab" * 32)

    def test_one_drive_of_several_is_named(self, drives: Drives) -> None:
        drives.fill("/a")
        drives.fill("/b", name="second")
        drives.fill("/c", keys=BOB)
        with pytest.raises(UsageError, match="option drive is missing, and there are 3 drives"):
            drives.read()
        assert drives.paths(drive="second") == ["/b"]
        assert sorted(drives.paths(drive="main")) == ["/a", "/c"]
        assert sorted(drives.paths(drive="second,main", owner=ALICE_NAME)) == ["/a", "/b"]
        # A path must be in one of the drives; in which, nobody says.
        assert drives.paths(drive="main", glob="/c") == ["/c"]

    def test_names_that_are_no_text_are_shown(self, drives: Drives) -> None:
        odd = decode_message(b"\x30\x03\xffab")
        file = make_file(b"x", 1)
        signed = Signed.sign(ALICE, Map.of([(odd, make_directory(Index.of([(odd, file)]), 1))]))
        drives.store.commit(Index.of({FS_SECTION: Map.of({ALICE.public_key: signed})}))
        (row,) = drives.read(columns="drive,path")
        assert (row["drive"], row["path"]) == (to_text(odd), "/\ufffdab")
        assert drives.paths(drive=to_text(odd)) == ["/\ufffdab"]

    def test_a_forged_owner(self, drives: Drives) -> None:
        root = make_directory(Index.of({"a": make_file(b"a", 1)}), 1)
        for signed in (
            Signed.sign(BOB, Map.of({"main": root})),
            Signed(ALICE.public_key, bytes(64), Map.of({"main": root})),
        ):
            drives.store.commit(Index.of({FS_SECTION: Map.of({ALICE.public_key: signed})}))
            with pytest.raises(BadSignature, match=f"owner {ALICE_NAME} are not signed"):
                drives.read()


class TestLimits:
    @pytest.mark.parametrize("limit", ["100", "101"])
    def test_contents_up_to_the_limit(self, drives: Drives, limit: str) -> None:
        drives.drive().write("/a", b"x" * 100)
        drives.commit()
        assert drives.read(maxContentBytes=limit, includeContent="true")[0]["content"] == b"x" * 100

    def test_contents_beyond_the_limit(self, drives: Drives) -> None:
        drives.drive().write("/a", b"x" * 100)
        drives.commit()
        with pytest.raises(
            LimitExceeded, match=r"file /a of drive 'main' has 100 bytes, .* is 99: .*chunkBytes"
        ):
            drives.read(maxContentBytes="99", includeContent="true")
        assert drives.read(maxContentBytes="99")[0]["size"] == 100

    @pytest.mark.parametrize(
        ("size", "chunks"), [(0, [0]), (9, [9]), (10, [10]), (11, [10, 1]), (25, [10, 10, 5])]
    )
    def test_chunks(self, drives: Drives, size: int, chunks: list[int]) -> None:
        data = bytes(range(size))
        drives.drive().write("/a", data)
        drives.commit()
        rows = drives.read(chunkBytes="10")
        assert [row["chunk"] for row in rows] == list(range(len(chunks)))
        assert [len(row["content"]) for row in rows] == chunks
        assert b"".join(row["content"] for row in rows) == data
        assert {row["size"] for row in rows} == {size}
        assert list(rows[0]) == ["path", "size", "modified", "chunk", "content"]

    @pytest.mark.parametrize("glob", ["/**", "/a", "/d/*"])
    def test_a_long_file_becomes_several_tasks(
        self, drives: Drives, monkeypatch: pytest.MonkeyPatch, glob: str
    ) -> None:
        monkeypatch.setattr(planning, "BYTES_PER_TASK_MAX", 10_000)
        data = bytes(range(251)) * 400
        drives.fill("/d/e")
        drives.drive().write("/a", data)
        drives.drive().write("/d/f", data)
        drives.commit()
        reader = drives.reader(chunkBytes="4000", glob=glob)
        parts = reader.partitions()
        # Two chunks of 4,000 fit into a task, and maybe the short file with them.
        assert max(len(rows_of(reader, [part])) for part in parts) in (2, 3)
        found: dict[str, list[Any]] = {}
        for row in rows_of(reader, parts):
            found.setdefault(row["path"], []).append(row)
        for path, rows in found.items():
            assert [row["chunk"] for row in rows] == list(range(len(rows)))
            whole = b"".join(row["content"] for row in rows)
            assert whole == (path.encode() if path == "/d/e" else data)
        assert (
            sorted(found)
            == {
                "/**": ["/a", "/d/e", "/d/f"],
                "/a": ["/a"],
                "/d/*": ["/d/e", "/d/f"],
            }[glob]
        )

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"chunkBytes": "10", "includeContent": "false"}, "chunkBytes asks for contents"),
            ({"chunkBytes": "10", "maxContentBytes": "5"}, "exclude each other"),
            ({"chunkBytes": "10", "columns": "path"}, "the columns must contain content"),
            ({"columns": "chunk"}, "the column chunk needs chunkBytes"),
            ({"columns": "path", "includeContent": "true"}, "columns='path' contradicts it"),
            ({"chunkBytes": "ten"}, "such as 65536, 64k or 16m"),
            ({"glob": "a//b"}, "a path in a drive that may contain"),
            ({"drive": ","}, "names separated by commas"),
            ({"globs": "a"}, "did you mean glob"),
        ],
    )
    def test_options(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            parse_options({"store": "s", **options})

    def test_a_schema_of_ones_own(self, drives: Drives) -> None:
        source = FilesSource({"store": str(drives.folder)})
        with pytest.raises(UsageError, match=r"the rows of lattice.files are \(path STRING"):
            source.reader(struct_of({"path": "STRING"}))


class TestTasks:
    def many(self, drives: Drives, count: int = 60) -> list[str]:
        paths = [f"/d{n % 3}/e{n % 2}/f{n:03}" for n in range(count)]
        drives.fill(*paths)
        return sorted(paths)

    @pytest.mark.parametrize("looked", [0, 1, 3, 20, 1_000])
    @pytest.mark.parametrize("glob", ["/**", "/d1", "/**/e1/*", "/d[02]/**/f*[05]"])
    def test_each_file_is_read_once_however_it_is_cut(
        self, drives: Drives, monkeypatch: pytest.MonkeyPatch, looked: int, glob: str
    ) -> None:
        every = self.many(drives)
        chosen = {
            "/**": every,
            "/d1": [path for path in every if path.startswith("/d1/")],
            "/**/e1/*": [path for path in every if "/e1/" in path],
            "/d[02]/**/f*[05]": [path for path in every if path[2] in "02" and path[-1] in "05"],
        }[glob]
        monkeypatch.setattr(planning, "FILES_PER_TASK_MAX", 7)
        monkeypatch.setattr(planning, "LOOKED_MAX", looked)
        reader = drives.reader(glob=glob)
        parts = reader.partitions()
        assert sorted(row["path"] for row in rows_of(reader, parts)) == chosen
        if looked == 1_000 and glob == "/**":
            assert max(len(rows_of(reader, [part])) for part in parts) <= 7
            assert len(parts) >= len(chosen) / 7

    def test_what_is_not_looked_at_is_many_directories(
        self, drives: Drives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = [f"/{one}/{two}/{n}" for one in "abc" for two in "xyz" for n in range(3)]
        drives.fill(*paths)
        monkeypatch.setattr(planning, "LOOKED_MAX", 12)  # two levels
        monkeypatch.setattr(planning, "FILES_PER_TASK_MAX", 3)
        reader = drives.reader()
        parts = reader.partitions()
        assert [len(rows_of(reader, [part])) for part in parts] == [3] * 9
        assert sorted(row["path"] for row in rows_of(reader, parts)) == sorted(paths)

    @pytest.mark.parametrize("count", [7, 8, 9, 20])
    def test_a_file_becomes_a_bounded_number_of_tasks(
        self, drives: Drives, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        monkeypatch.setattr(planning, "BYTES_PER_TASK_MAX", 2)
        monkeypatch.setattr(planning, "RANGES_MAX", 8)
        drives.drive().write("/f", bytes(range(count)))
        drives.commit()
        reader = drives.reader(chunkBytes="2")
        parts = reader.partitions()
        assert len(parts) <= 8
        assert b"".join(row["content"] for row in rows_of(reader, parts)) == bytes(range(count))

    def test_contents_are_spread_by_their_bytes(
        self, drives: Drives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(planning, "BYTES_PER_TASK_MAX", 5_000)
        for n in range(20):
            drives.drive().write(f"/f{n}", bytes(1_000))
        drives.commit()
        assert len(drives.reader().partitions()) == 1
        reader = drives.reader(includeContent="true")
        sizes = [len(rows_of(reader, [part])) for part in reader.partitions()]
        assert sum(sizes) == 20
        assert max(sizes) <= 5

    def test_tasks_read_what_was_planned(self, drives: Drives) -> None:
        drives.fill("/a", "/b")
        reader = drives.reader(includeContent="true")
        parts = reader.partitions()
        drives.drive().write("/a", b"new")
        drives.drive().delete("/b")
        drives.commit()
        sent_reader, sent_parts = pickle.loads(pickle.dumps((reader, parts)))
        assert [row["content"] for row in rows_of(sent_reader, sent_parts)] == [b"/a", b"/b"]


def test_a_running_node_gives_the_rows_of_its_store(drives: Drives) -> None:
    drive = drives.drive()
    for n in range(20):
        drive.write(f"/f{n}", bytes([n]) * n * 1_000)
    drives.commit()
    wanted = drives.read(chunkBytes="3000")
    drives.store.close()
    with BackgroundNode(drives.folder, ALICE) as node:
        source = FilesSource({"node": node.address, "chunkBytes": "3000"})
        reader: Any = source.reader(struct_of(source.parsed.types))
        assert rows_of(reader, reader.partitions()) == wanted
