"""Staging: what tasks put aside, and how the driver commits it once, whatever dies meanwhile."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyspark")

from datalattice.apps.queue import Topic, Topics
from datalattice.cells import decode, encode, value_hash
from datalattice.client import Change, Editor, Folder, editing, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    Backpressure,
    NoSigningKey,
    PeerUnavailable,
    StoreFailed,
    StoreFull,
    StoreLocked,
    Timeout,
    UsageError,
)
from datalattice.lattice import root_lattice
from datalattice.pipeline.exactly_once import (
    cleanup as staging_cleanup,
    job as exactly_once,
    task_files,
)
from datalattice.pipeline.exactly_once.job import (
    SAVES_MAX,
    Job,
    Mark,
    RootMoved,
    Staged,
    StagedTasks,
    WriteTarget,
    write_target_option,
)
from datalattice.pipeline.exactly_once.task_files import parcel_items
from datalattice.pipeline.options import Given
from datalattice.store import CellStore, RealDisk
from datalattice.testing.spark_kit import FakeTaskContext

KEYS = KeyPair(bytes(32))
NUMBERS = 7


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a node's folder."""
    write_key(tmp_path / "home" / "key", KEYS)
    return tmp_path / "home"


def target(home: Path, **options: str) -> WriteTarget:
    return write_target_option(
        Given.of({"store": str(home), **options}, WriteTarget), streaming=False
    )


def job(home: Path, **options: str) -> Job:
    return Job.begin(target(home, **options), streaming=False)


@pytest.fixture
def stage_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what stages numbers as a task with that number does."""

    def stage(job: Job, task: int, items: list[int], **stream: Any) -> Staged:
        context = FakeTaskContext(task, **stream)
        monkeypatch.setattr(exactly_once, "_task_context", lambda: context)
        with job.stage() as found:
            if items:
                found.parcels.put_items(NUMBERS, b"", [encode(item) for item in items])
            return found.done(len(items))

    return stage


def topic_of(cursor: RootLattice) -> Topic:
    return Topics.at(cursor, KEYS.public_key).topic("t")


def join(editor: Editor, tasks: StagedTasks, mark: Mark) -> Change[None] | None:
    """Append all that was staged to one queue; the mark goes into its topic."""
    found: list[Any] = []
    for staged in tasks:
        for parcel in staged.parcels():
            found.extend(decode(item) for item in parcel_items(parcel))

    def change(cursor: RootLattice, _keys: KeyPair) -> None:
        topic = topic_of(cursor)
        stored = topic.get_meta(mark.key)
        if not mark.is_in(stored):
            topic.partition(0).offer_many(found)
            topic.set_meta(mark.key, mark.over(stored))

    root = editor.root()
    if root is not None and mark.is_in(
        topic_of(RootLattice(root_lattice(), root)).get_meta(mark.key)
    ):
        return None
    return change


def content(home: Path) -> list[Any]:
    with reading(Folder(home)) as root:
        return list(topic_of(RootLattice(root_lattice(), root)).partition(0))


def staged_folders(home: Path) -> list[str]:
    below = home / "staging"
    return sorted(str(path.relative_to(below)) for path in below.glob("*/*/*"))


# --- options --------------------------------------------------------------------------------


def test_a_target_is_absolute_and_has_its_staging_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    found = write_target_option(Given.of({"PATH": "home"}, WriteTarget), streaming=True)
    assert found == WriteTarget(str(home), str(home / "staging"), None, 0)
    other = target(home, staging="elsewhere", writeId="a.b:c-1", writeVersion="7")
    assert other == WriteTarget(str(home), str(home.parent / "elsewhere"), "a.b:c-1", 7)
    assert pickle.loads(pickle.dumps(other)) == other


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"store": ""}, "option store='' is not accepted: a text of at least one character"),
        ({"path": "elsewhere"}, "option path='elsewhere' is not accepted: load() or save()"),
        ({"writeId": "a b"}, "option writeId='a b' is not accepted: 1 to 100 letters"),
        ({"writeId": "../up"}, "option writeId='../up' is not accepted"),
        ({"writeId": "x" * 101}, "option writeId='xxx"),
        ({"writeVersion": "1"}, "option writeVersion numbers the saves of a name"),
        ({"writeId": "a", "writeVersion": "-1"}, "option writeVersion='-1' is not accepted"),
        ({"writeID2": "a"}, "unknown option writeID2='a' (did you mean writeId?)"),
    ],
)
def test_a_bad_option_is_named(home: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        target(home, **options)
    assert str(caught.value).startswith(says)


def test_names_of_saves_may_have_100_letters(home: Path) -> None:
    assert target(home, writeId="x" * 100).write_id == "x" * 100


def test_a_stream_has_its_own_name(home: Path) -> None:
    given = Given.of({"store": str(home), "writeId": "a"}, WriteTarget)
    with pytest.raises(UsageError, match="the checkpoint identifies a stream"):
        write_target_option(given, streaming=True)


def test_only_the_folder_of_a_node_is_written_to(tmp_path: Path) -> None:
    CellStore.open(tmp_path / "store").close()
    for folder, says in (
        ("store", "a bare store; writing needs the folder of a node, whose key signs"),
        ("nowhere", "(`lattice key new --dir "),
    ):
        with pytest.raises(UsageError) as caught:
            target(tmp_path / folder)
        assert says in str(caught.value)
    with pytest.raises(UsageError, match="option store is missing"):
        write_target_option(Given.of({}, WriteTarget), streaming=False)


# --- marks ----------------------------------------------------------------------------------


def test_a_number_marks_itself_and_all_before() -> None:
    mark = Mark("k", 5, "s")
    assert [mark.is_in(stored) for stored in (None, 4, 5, 6, "5")] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert mark.over(4) == 5


def test_saves_without_a_name_are_remembered_for_a_while() -> None:
    stored: Any = None
    for number in range(SAVES_MAX):
        mark = Mark("k", None, f"s{number}")
        assert not mark.is_in(stored)
        stored = mark.over(stored)
    assert len(stored) == SAVES_MAX
    assert Mark("k", None, "s0").is_in(stored)
    stored = Mark("k", None, "one more").over(stored)
    assert len(stored) == SAVES_MAX
    assert not Mark("k", None, "s0").is_in(stored)
    assert Mark("k", None, "s1").is_in(stored)


# --- the way of a batch ---------------------------------------------------------------------


def test_what_tasks_staged_is_joined_in_their_order(home: Path, stage_in: Any) -> None:
    one = job(home)
    messages = [stage_in(one, 2, [5, 6]), stage_in(one, 0, [1, 2]), stage_in(one, 1, [])]
    assert pickle.loads(pickle.dumps(messages)) == messages
    assert len(staged_folders(home)) == 2, "nothing was staged by the task without records"
    assert one.commit([*messages, None], None, join)
    assert content(home) == [1, 2, 5, 6]
    assert staged_folders(home) == []
    assert list((home / "staging").iterdir()) == []


def test_saves_without_a_name_are_all_written(home: Path, stage_in: Any) -> None:
    for _ in range(2):
        one = job(home)
        assert one.commit([stage_in(one, 0, [1])], None, join)
    assert content(home) == [1, 1]


def test_a_named_save_is_written_once_for_each_version(home: Path, stage_in: Any) -> None:
    done = []
    for number, version in enumerate("0012131"):
        one = job(home, writeId="load", writeVersion=version)
        done.append(one.commit([stage_in(one, 0, [number])], None, join))
    assert done == [True, False, True, True, False, True, False]
    assert content(home) == [0, 2, 3, 5]
    assert staged_folders(home) == []


def test_a_batch_that_comes_again_is_skipped(home: Path, stage_in: Any) -> None:
    def run(query: str, batch: int) -> bool:
        one = Job.begin(target(home), streaming=True)
        message = stage_in(one, 0, [batch], query=query, batch=batch)
        return one.commit([message], batch, join)

    assert [run("q", batch) for batch in (0, 0, 1, 1, 0, 2)] == [True, False, True, False, False, 1]
    assert [run("other", batch) for batch in (0, 0)] == [True, False]
    assert content(home) == [0, 1, 2, 0]
    assert staged_folders(home) == []


def test_a_batch_without_records_writes_nothing(home: Path, stage_in: Any) -> None:
    one = job(home)
    assert not one.commit([stage_in(one, 0, [])], None, join)
    assert not one.commit([], None, join)
    assert not (home / "store").exists()
    assert staged_folders(home) == []


def test_a_stream_without_its_id_is_refused(home: Path, stage_in: Any) -> None:
    one = Job.begin(target(home), streaming=True)
    with pytest.raises(UsageError, match="did not report the id of their query"):
        one.commit([stage_in(one, 0, [1])], 0, join)


def test_an_abort_throws_away_what_was_staged(home: Path, stage_in: Any) -> None:
    one = job(home)
    messages = [stage_in(one, 0, [1]), None, stage_in(one, 2, [2])]
    one.abort(messages)
    one.abort(messages)
    assert staged_folders(home) == []


@pytest.mark.parametrize("is_store", [True, False])
def test_a_task_that_fails_leaves_nothing(home: Path, is_store: bool) -> None:
    def fail() -> None:
        with job(home).stage() as stage:
            if is_store:
                stage.put_cells([(value_hash("x" * 200), encode("x" * 200))])
            else:
                stage.parcels.put_items(NUMBERS, b"", [encode(1)])
            assert staged_folders(home)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert staged_folders(home) == []


def test_attempts_that_nobody_asked_for_go_with_their_batch(home: Path, stage_in: Any) -> None:
    def staged(batch: int, item: int) -> tuple[Job, Staged]:
        one = Job.begin(target(home), streaming=True)
        return one, stage_in(one, 0, [item], query="q", batch=batch)

    staged(0, 10)  # an attempt whose driver died
    one, message = staged(0, 11)
    staged(0, 12)  # a second attempt of the same task, which lost
    next_job, next_message = staged(1, 13)
    assert one.commit([message], 0, join)
    assert [folder.split("/")[:2] for folder in staged_folders(home)] == [["query-q", "1"]]
    staged(0, 14)  # one that comes late
    assert next_job.commit([next_message], 1, join)
    assert staged_folders(home) == []
    assert content(home) == [11, 13]


def test_what_is_old_is_thrown_away_and_nothing_else(home: Path, stage_in: Any) -> None:
    left = [Path(stage_in(job(home), 0, [item]).path) for item in (1, 2)]
    long_ago = left[0].stat().st_mtime - staging_cleanup.STALE_MS / 1_000 - 1
    for path in (left[0], left[0].parent, left[1].parent):
        os.utime(path, (long_ago, long_ago))
    one = job(home)
    one.commit([stage_in(one, 0, [3])], None, join)
    assert [path.exists() for path in left] == [False, True]


def test_staged_data_that_is_not_there_is_said(home: Path, stage_in: Any) -> None:
    one = job(home)
    message = stage_in(one, 3, [1])
    one.abort([message])
    with pytest.raises(UsageError, match=r"task 3 staged is missing: .*option staging"):
        one.commit([message], None, join)


@pytest.mark.parametrize(
    ("broken", "says"),
    [("is a file", "task 3 staged is missing"), ("is locked", "cannot be read .Permission")],
)
def test_staged_data_that_cannot_be_read_is_said(
    home: Path, stage_in: Any, monkeypatch: pytest.MonkeyPatch, broken: str, says: str
) -> None:
    one = job(home)
    message = stage_in(one, 3, [1])
    if broken == "is a file":
        shutil.rmtree(message.path)
        Path(message.path).write_text("")
    else:  # as root may read everything, the system is played
        refused = PermissionError(13, "Permission denied")
        monkeypatch.setattr(Path, "open", Mock(side_effect=refused))
    with pytest.raises(UsageError, match=says):
        message.open()


def test_a_staging_folder_that_cannot_be_written_to_is_said(home: Path) -> None:
    (home / "staging").write_text("a file")
    with pytest.raises(UsageError, match="tasks cannot write to it"), job(home).stage() as stage:
        stage.parcels.put_items(NUMBERS, b"", [])


def test_a_folder_that_another_commit_removes_under_a_task_is_made_again(
    home: Path, stage_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver thought to be dead commits the batch while tasks of the new one begin."""
    make, left = task_files.ParcelWriter, [exactly_once.MAKE_MAX - 1]

    def removed(path: Path) -> Any:
        if left[0]:
            left[0] -= 1
            shutil.rmtree(path.parent)
        return make(path)

    monkeypatch.setattr(exactly_once, "ParcelWriter", removed)
    assert list(stage_in(job(home), 0, [1]).parcels())
    left[0] = exactly_once.MAKE_MAX
    with pytest.raises(UsageError, match=r"tasks cannot write to it \(No such file"):
        stage_in(job(home), 0, [1])


def test_a_folder_whose_key_is_gone_is_said(home: Path, stage_in: Any) -> None:
    one = job(home)
    message = stage_in(one, 0, [1])
    (home / "key").unlink()
    with pytest.raises(NoSigningKey):
        one.commit([message], None, join)
    assert len(staged_folders(home)) == 1


# --- trouble on the way ---------------------------------------------------------------------


class Troubled:
    """An editor that makes trouble at its first edits, before or after the work is done."""

    def __init__(self, editor: Editor, plan: list[str], error: Exception) -> None:
        self._editor = editor
        self._plan = plan
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._editor, name)

    def edit(self, change: Change[Any]) -> Any:
        step = self._plan.pop(0) if self._plan else "work"
        if step == "before":
            raise self._error
        found = self._editor.edit(change)
        if step == "after":
            raise self._error
        return found


def trouble(
    monkeypatch: pytest.MonkeyPatch, plan: list[str], error: Exception | None = None
) -> None:
    @contextmanager
    def troubled(folder: Folder) -> Iterator[Any]:
        with editing(folder) as editor:
            yield Troubled(editor, plan, error or PeerUnavailable("gone"))

    monkeypatch.setattr(exactly_once, "editing", troubled)
    monkeypatch.setattr(exactly_once, "AGAIN_POLL_S", 0.0)


@pytest.mark.parametrize("plan", [["before"], ["after"], ["before", "after", "before"]])
@pytest.mark.parametrize("options", [{}, {"writeId": "load"}])
def test_a_commit_whose_end_is_not_known_is_found_out(
    home: Path,
    stage_in: Any,
    monkeypatch: pytest.MonkeyPatch,
    plan: list[str],
    options: dict[str, str],
) -> None:
    one = job(home, **options)
    message = stage_in(one, 0, [1, 2])
    trouble(monkeypatch, plan)
    assert one.commit([message], None, join)
    assert content(home) == [1, 2]


def test_a_node_that_stays_away_ends_the_commit(
    home: Path, stage_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(home)
    message = stage_in(one, 0, [1])
    trouble(monkeypatch, ["before"] * 1_000, Timeout("no answer"))
    monkeypatch.setattr(exactly_once, "_AGAIN_S", 0.0)
    with pytest.raises(Timeout, match="no answer"):
        one.commit([message], None, join)
    assert len(staged_folders(home)) == 1


def test_any_other_error_ends_the_commit_with_nothing_written(
    home: Path, stage_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(home)
    message = stage_in(one, 0, [1])
    trouble(monkeypatch, ["before"], UsageError("no"))
    with pytest.raises(UsageError):
        one.commit([message], None, join)
    assert one.commit([message], None, join)
    assert content(home) == [1]


def test_a_change_is_prepared_again_when_others_were_faster(home: Path, stage_in: Any) -> None:
    one = job(home)
    message = stage_in(one, 0, [1])
    left = SimpleNamespace(moves=exactly_once._MOVED_MAX - 1)

    def moving(editor: Editor, tasks: StagedTasks, mark: Mark) -> Change[None] | None:
        change = join(editor, tasks, mark)
        assert change is not None

        def late(cursor: RootLattice, keys: KeyPair) -> None:
            if left.moves:
                left.moves -= 1
                raise RootMoved
            change(cursor, keys)

        return late

    assert one.commit([message], None, moving)
    assert content(home) == [1]
    left.moves = exactly_once._MOVED_MAX
    two = job(home)
    with pytest.raises(
        Backpressure, match=f"other writers changed the same data {exactly_once._MOVED_MAX}"
    ):
        two.commit([stage_in(two, 0, [2])], None, moving)
    assert content(home) == [1]


def test_commits_to_one_folder_take_turns(
    home: Path, stage_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(home)
    message = stage_in(one, 0, [1])
    monkeypatch.setattr(exactly_once, "TURN_WAIT_S", 0.05)
    lock = RealDisk().lock(str(home / "pipeline.lock"))
    with pytest.raises(StoreLocked, match="in vain for another query to commit"):
        one.commit([message], None, join)
    lock.release()
    assert one.commit([message], None, join)


def test_a_store_that_is_locked_for_a_while_is_waited_for(
    home: Path, stage_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(home)
    message = stage_in(one, 0, [1])
    trouble(monkeypatch, ["before"] * 3, StoreLocked("a node is starting"))
    assert one.commit([message], None, join)
    assert content(home) == [1]


def test_what_others_have_in_the_staging_folder_is_theirs(home: Path, stage_in: Any) -> None:
    theirs = [home / "staging" / name for name in ("data/0/0-0-0", "query-x/a/b", "save-y/0/c")]
    for path in theirs:
        path.mkdir(parents=True)
        for one in (path, path.parent):
            os.utime(one, (0, 0))
    one_job = job(home)
    one_job.commit([stage_in(one_job, 0, [1])], None, join)
    assert all(path.exists() for path in theirs)


def test_saves_of_one_name_that_are_under_way_at_once_leave_each_other_alone(
    home: Path, stage_in: Any
) -> None:
    elsewhere = home.parent / "elsewhere"
    write_key(elsewhere / "key", KEYS)
    shared = str(home / "staging")
    one, again = (job(home, writeId="w", writeVersion="3") for _ in range(2))
    other = job(elsewhere, staging=shared, writeId="w", writeVersion="3")
    first, second, third = (stage_in(each, 0, [1]) for each in (one, again, other))
    assert one.commit([first], None, join)
    assert not again.commit([second], None, join)
    assert other.commit([third], None, join)
    assert content(home) == content(elsewhere) == [1]
    assert staged_folders(home) == []


def test_a_node_is_waited_for_from_when_it_went_away(
    home: Path, stage_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(home)
    message = stage_in(one, 0, [1])
    trouble(monkeypatch, ["before"])
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(exactly_once, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=id))

    def slow(editor: Editor, tasks: StagedTasks, mark: Mark) -> Change[None] | None:
        now.s += 2 * exactly_once._AGAIN_S
        return join(editor, tasks, mark)

    assert one.commit([message], None, slow)
    assert content(home) == [1]


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [(28, StoreFull, "no room left on the disk"), (5, StoreFailed, "cannot be written")],
)
def test_parcels_that_a_disk_refuses_are_said_and_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], says: str
) -> None:
    def work() -> None:
        with job(home).stage() as stage:
            stage.parcels.put_items(NUMBERS, b"", [b"fits"])
            monkeypatch.setattr(task_files, "_write", Mock(side_effect=OSError(code, "refused")))
            stage.parcels.put_items(NUMBERS, b"", [b"does not"])

    with pytest.raises(error, match=f"{home}/staging/.*{says}"):
        work()
    assert staged_folders(home) == []


def test_what_a_full_disk_leaves_is_removed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_store: CellStore, *_cells: object) -> None:
        raise OSError(28, "No space left on device")

    def work() -> None:
        with job(home).stage() as stage:
            stage.put_cells([])
            monkeypatch.setattr(CellStore, "put_encodings", full)
            monkeypatch.setattr(CellStore, "close", full)
            stage.put_cells([])

    with pytest.raises(OSError, match="No space left"):
        work()
    assert staged_folders(home) == []
