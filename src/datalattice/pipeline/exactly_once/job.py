"""One save or batch, which tasks stage and the driver commits; see the package for the protocol.

Source: docs/spark-writing.md "Exactly once", "Staging".
Length: a stage and its commit agree on the layout of folders, task files and marks.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from pyspark.sql.datasource import WriterCommitMessage

from datalattice.cells import Cell, Loader, Value, Vector, decode, encode
from datalattice.client import Change, Editor, Folder, editing, read_key, take_turn
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.cursors import collector_paused
from datalattice.errors import (
    Backpressure,
    PeerUnavailable,
    StoreLocked,
    Timeout,
    UsageError,
)
from datalattice.limits import COUNT_MAX
from datalattice.pipeline.exactly_once.cleanup import remove_batches, remove_folder, remove_stale
from datalattice.pipeline.exactly_once.scratch_store import unsynced_store
from datalattice.pipeline.exactly_once.task_files import (
    Parcel,
    ParcelReader,
    ParcelWriter,
    misshapen,
)
from datalattice.pipeline.options import (
    Given,
    Refused,
    bad_option,
    count_option,
    folder_option,
    option,
    parse_option_record,
    text_option,
)
from datalattice.store import STORE_FILE, CellStore

if TYPE_CHECKING:
    from pyspark import TaskContext

SPARK_OPTIONS: Final = ("checkpointLocation", "queryName")
"""Options that Spark itself adds to those of a stream."""

STAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Approximate size of the cells that a task or the driver buffers before it writes them."""

TURN_WAIT_S: Final = 600.0
"""How long a commit waits for commits of other queries to the same folder."""

_AGAIN_S: Final = 60.0
"""How long a commit is retried after the node disconnected."""

AGAIN_POLL_S: Final = 0.2

_MOVED_MAX: Final = 20
"""How often a commit is prepared again if another writer changes the same value."""

SAVES_MAX: Final = 64
"""Most unnamed saves that a mark remembers, enough to recognise a recent one."""

MAKE_MAX: Final = 5
"""How often a task tries to create its folder."""

PARCELS: Final = "parcels"
"""Name of the task's file in its staging folder."""

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
_NAME_BYTES: Final = 8

_log: Final = logging.getLogger("datalattice.pipeline")

C = TypeVar("C", bound=Cell)
T = TypeVar("T")


def _write_id(text: str) -> str:
    if not _WRITE_ID.fullmatch(text):
        raise Refused("1 to 100 letters, digits and _ . : - that begin with a letter, digit or _")
    return text


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where a sink writes, and the name of the save.

    | option | meaning | default |
    |---|---|---|
    | `store` | the folder of a node, whose key signs; also the argument of `save` and `start` |
      required |
    | `staging` | folder for the output of tasks; the driver and all tasks reach it by this path |
      `staging` in the node's folder |
    | `writeId` | name of a save that happens once (batches) | none: each save is a new one |
    | `writeVersion` | number of a save under its name; one that is not above the last is skipped |
      0 |
    """

    folder: str = option("store", text_option, "")
    staging: str = option("staging", text_option, "")
    write_id: str | None = option("writeId", _write_id, None)
    version: int = option("writeVersion", count_option("a whole number from 0 on"), 0)


def write_target_option(options: Given, *, streaming: bool) -> WriteTarget:
    """Return where to write. Runs on the driver and makes paths absolute.

    Raises: UsageError: `store` is not a node's folder, or an option is not for streams.
    """
    given = folder_option(options)
    if not given:
        raise UsageError(
            "option store is missing: give the folder of a node, as store or to save()"
        )
    folder = Path(given).expanduser().absolute()
    if not Folder(folder).key_path.is_file():
        raise bad_option("store", given, _no_key(folder))
    target = parse_option_record(WriteTarget, options)
    # Made absolute here: tasks run with other working folders.
    staging = Path(target.staging or folder / "staging").expanduser().absolute()
    # "The id in its checkpoint identifies a query" (docs/spark-writing.md, Exactly once).
    if streaming and ("writeId" in options or "writeVersion" in options):
        raise UsageError(
            "options writeId and writeVersion are for batches: the checkpoint identifies a stream"
        )
    if target.write_id is None and "writeVersion" in options:
        raise UsageError("option writeVersion numbers the saves of a name: give writeId as well")
    version = min(target.version, COUNT_MAX)
    return replace(target, folder=str(folder), staging=str(staging), version=version)


def _no_key(folder: Path) -> str:
    # "A bare store is refused, because it has no key to sign with" (docs/spark-writing.md).
    if (folder / STORE_FILE).exists():
        return "it is a bare store; writing needs the folder of a node, whose key signs the data"
    return (
        "writing needs the folder of a node, whose key signs the data "
        f"(`lattice key new --dir {folder}` makes one)"
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """Identifies a batch in the data that it wrote.

    For a stream or a named save, the value under `key` is the greatest number written. For unnamed
    saves it is a Vector of the names of the latest saves.
    """

    key: str
    number: int | None
    save: str

    def is_in(self, stored: Value) -> bool:
        """Return whether the batch was written, given the stored value under `key`."""
        if self.number is None:
            return isinstance(stored, Vector) and self.save in stored
        # Greater numbers count too: "a checkpoint restored from a backup is behind the written
        # data: batches up to the number in the topic are skipped" (docs/spark-writing.md).
        return isinstance(stored, int) and stored >= self.number

    def over(self, stored: Value) -> Value:
        """Return the value to store under `key` once the batch is written."""
        if self.number is not None:
            return self.number
        before = stored.to_list() if isinstance(stored, Vector) else []
        # Bounded: unnamed saves must not grow the data for ever.
        return Vector.of([*before, self.save][-SAVES_MAX:])


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The commit message of one task: what it staged."""

    task: int
    records: int
    """Number of records; 0: nothing was staged."""
    path: str
    """The task's staging folder."""
    digest: bytes
    """Checksum of its parcels."""
    query: str | None
    """Id of the streaming query, from the task's context."""
    destination: str = ""
    """One topic that the task writes to.

    If the staged file is gone, the mark is looked up there.
    """

    def open(self) -> ParcelReader:
        """Return a reader of the staged file.

        Raises: UsageError: the file is missing, or the driver cannot read it.
        """
        try:
            return ParcelReader(Path(self.path, PARCELS))
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            what = "is missing" if is_gone else f"cannot be read ({error.strerror})"
            raise UsageError(
                f"what task {self.task} staged {what}: {self.path}; the option staging "
                "names a folder that the driver and all tasks reach under the same path"
            ) from None

    def parcels(self) -> Iterator[Parcel]:
        """Yield the staged parcels in order.

        Raises: UsageError: the file is missing. Corruption: the file was changed.
        """
        with self.open() as parcels:
            for _, parcel in parcels.all(self.digest):
                yield parcel


StagedTasks = Sequence[Staged]
"""The messages of all tasks that staged records, in task order."""

PrepareChange = Callable[[Editor, StagedTasks, Mark], Change[None] | None]
"""A format's work on the driver. It runs before the edit: it reads the present data
(`editor.root()`) and the staged data, and stores large results ahead (`editor.stage`). It returns a
short change: check the mark, write, store the mark; or None if the mark is already there. The
change raises `RootMoved` if the data for which it was prepared has changed."""


def reopened(value: C, loader: Loader) -> C:
    """Return a stored value as loaded from `loader`, so that its in-memory cells can be freed.

    Raises: BadFormat: the loaded value is of another type.
    """
    found = decode(encode(value), loader)
    if not isinstance(found, type(value)):
        raise misshapen()
    return found


class RootMoved(Exception):
    """The root changed after a change was prepared; prepare it again."""


class Stage:
    """The output of a task: a file of parcels, or a store of cells. Made by `Job.stage`."""

    def __init__(self, path: Path, task: int, query: str | None) -> None:
        self._path: Final = path
        self._query: Final = query
        self._store: CellStore | None = None
        self._parcels: ParcelWriter | None = None
        self.task: Final = task
        """Number of the task in its job; the driver joins in this order."""
        self.destination = ""
        """See `Staged.destination`."""

    @property
    def parcels(self) -> ParcelWriter:
        """The task's file, made at the first access.

        Raises: UsageError: the staging folder is not writable.
        """
        if self._parcels is None:
            self._parcels = _in_new_folder(self._path, lambda new: ParcelWriter(new / PARCELS))
        return self._parcels

    def put_cells(self, cells: Iterable[tuple[bytes, bytes]]) -> None:
        """Write cells as (hash, encoding) in any order; the caller has verified the hashes.

        Raises: UsageError: the staging folder is not writable.
        """
        if self._store is None:
            self._store = _in_new_folder(self._path, unsynced_store)
        self._store.put_encodings(cells)

    def done(self, records: int) -> Staged:
        """Close the files and return the task's commit message.

        records: how many records were written; the driver ignores a task with 0.
        """
        self.close()
        digest = b"" if self._parcels is None else self._parcels.digest
        return Staged(self.task, records, str(self._path), digest, self._query, self.destination)

    def close(self) -> None:
        """Close the files so that other processes can read them; nothing is synced."""
        # "Staged files are not synced" (docs/spark-writing.md): the checksum shows a loss by a
        # crash.
        for made in (self._parcels, self._store):
            if made is not None:
                made.close()

    def remove(self) -> None:
        """Delete what was written."""
        # A task that staged nothing has made no folder.
        if self._parcels is not None or self._store is not None:
            try:
                self.close()
            finally:  # on a full disk close() fails as well
                remove_folder(self._path)


@dataclass(frozen=True, slots=True)
class Job:
    """One save, or one batch of a stream. Made at planning; its tasks get copies."""

    target: WriteTarget
    save: str
    """Random name of this job."""
    stamp_ms: int
    """Timestamp of the data that it writes, Unix milliseconds."""
    streaming: bool

    @classmethod
    def begin(
        cls,
        target: WriteTarget,
        *,
        streaming: bool,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> Self:
        """Return a new job."""
        save = (entropy or SystemEntropy()).bytes(2 * _NAME_BYTES).hex()
        return cls(target, save, (clock or SystemClock()).now_ms(), streaming)

    # --- in tasks ---

    @contextmanager
    def stage(self, entropy: Entropy | None = None) -> Iterator[Stage]:
        """Yield a task's `Stage`; delete what it wrote if the block raises."""
        context = _task_context()
        # Without Spark, as in a test, there is one task.
        task = context.partitionId() if context else 0
        attempt = context.taskAttemptId() if context else 0
        query = context.getLocalProperty(_QUERY_PROPERTY) if context and self.streaming else None
        batch = context.getLocalProperty(_BATCH_PROPERTY) if context and self.streaming else None
        random = (entropy or SystemEntropy()).bytes(_NAME_BYTES).hex()
        batch_folder = self._query_folder(query) / self._batch_name(batch)
        stage = Stage(batch_folder / f"{task}-{attempt}-{random}", task, query)
        try:
            yield stage
        except BaseException:
            stage.remove()
            raise
        stage.close()

    # --- on the driver ---

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch: int | None, join: PrepareChange
    ) -> bool:
        """Write what the tasks staged, all or nothing; return False if it was written before.

        batch: number of a stream's batch; None for a batch query.
        Raises: as `client.editing` and the change; then nothing was written. PeerUnavailable,
                Timeout: the node disconnected and did not return; the outcome is unknown.
        """
        staged = _in_order(messages)
        # A task without rows has no file.
        filled = [message for message in staged if message.records]
        fresh = False
        if filled:
            # "Only the attempt whose message Spark accepted counts" (docs/spark-writing.md): files
            # of other attempts have no message here and are never read.
            mark = self._mark(filled[0].query, batch)
            with self._turn():
                fresh = self._insist(filled, mark, join)
            if not fresh:
                _log.warning("%s %s was written before: skipped", mark.key, mark.number)
        self._tidy(staged, batch)
        return fresh

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what the tasks staged."""
        for message in _in_order(messages):
            remove_folder(Path(message.path))

    def _mark(self, query: str | None, batch: int | None) -> Mark:
        if batch is not None:
            if not query:
                raise UsageError("the tasks of a stream did not report the id of their query")
            # "The id in its checkpoint identifies a query": with a new checkpoint everything is
            # written again.
            return Mark(f"spark-query/{query}", batch, self.save)
        if self.target.write_id is not None:
            return Mark(f"spark-write/{self.target.write_id}", self.target.version, self.save)
        return Mark("spark-saves", None, self.save)

    def _insist(self, staged: list[Staged], mark: Mark, join: PrepareChange) -> bool:
        """Commit; if the node disconnects, retry and learn from the mark what happened.

        A locked store counts as a node that is starting.
        """
        give_up_s: float | None = None
        while True:
            try:
                with editing(Folder(Path(self.target.folder))) as editor:
                    # A mark found at a retry was written by the attempt whose answer was lost.
                    return _commit(editor, staged, mark, join) or give_up_s is not None
            except (PeerUnavailable, Timeout, StoreLocked):
                if give_up_s is None:  # measured from the first failure: preparing may take longer
                    give_up_s = time.monotonic() + _AGAIN_S
                elif time.monotonic() >= give_up_s:
                    raise
            time.sleep(AGAIN_POLL_S)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Serialise commits to a folder, so that a quick query cannot starve a slow one."""
        # Read before the wait of up to TURN_WAIT_S: without a key the commit must fail at once.
        read_key(Folder(Path(self.target.folder)).key_path)
        lock = take_turn(
            str(Path(self.target.folder) / "pipeline.lock"), TURN_WAIT_S, "query to commit"
        )
        try:
            yield
        finally:
            lock.release()

    def _query_folder(self, query: str | None) -> Path:
        # Not named by writeId: two saves with one name may run at the same time, to different
        # targets.
        return Path(self.target.staging) / (f"query-{query}" if query else f"save-{self.save}")

    def _batch_name(self, batch: str | int | None) -> str:
        return str(self.target.version if batch is None else batch)

    def _tidy(self, staged: list[Staged], batch: int | None) -> None:
        """Remove the folders of this and earlier batches, and old ones of any query."""
        if staged:
            # "A commit removes those of its batch and of all earlier batches" (docs, Staging).
            # Later ones may belong to a driver that has taken over.
            last = int(self._batch_name(batch))
            remove_batches(self._query_folder(staged[0].query), last)
            remove_stale(Path(self.target.staging), SystemClock().now_ms())


def _commit(editor: Editor, staged: list[Staged], mark: Mark, join: PrepareChange) -> bool:
    # "If one of them appends to the same partition while a batch is prepared, the batch is prepared
    # again, 20 times at most" (docs/spark-writing.md, Exactly once).
    for _ in range(_MOVED_MAX):
        with collector_paused:
            change = join(editor, staged, mark)
            # The mark is read in this edit. So a driver that another one has replaced finds the
            # mark of the other, although its own staged files are gone.
            if change is None:
                return False
            try:
                editor.edit(change)
            except RootMoved:
                continue
        return True
    raise Backpressure(
        f"other writers changed the same data {_MOVED_MAX} times while this batch was prepared; "
        "nothing was written; run it again"
    )


def _in_new_folder(folder: Path, make: Callable[[Path], T]) -> T:
    """Make a task's folder, and the file or store in it."""
    left = MAKE_MAX
    while True:
        left -= 1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return make(folder)
        except OSError as error:
            # The cleanup of a commit may remove the folder or its parent at this moment.
            if not left or not isinstance(error, FileNotFoundError):
                what = f"tasks cannot write to it ({error.strerror})"
                raise bad_option("staging", str(folder.parents[2]), what) from None


def _in_order(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    # An aborted job has None for each task without a message.
    staged = [message for message in messages if isinstance(message, Staged)]
    return sorted(staged, key=lambda message: message.task)


def _task_context() -> TaskContext | None:
    from pyspark import TaskContext

    return TaskContext.get()
