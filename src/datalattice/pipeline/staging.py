"""Staging: how tasks and the driver write together, each batch once.

    job = Job.begin(target_option(options, streaming=False), streaming=False)    # at planning

    with job.stage() as stage:                    # in a task
        stage.parcels.put(...)
        return stage.done(records)

    job.commit(messages, batch, join)             # on the driver: all of it, in one edit

A task writes what it made into a file of its own (`parcels`) and tells the checksum. Nothing of it
is seen by anybody until the driver has joined what all tasks made, in their order, to what is
there, in one edit of the node's folder. The same edit leaves a `Mark`: the number of the batch
under the name of the query. So whatever dies, and whenever, either all of a batch is there and so
is its mark, or none of it; and a batch that comes again is skipped where its mark is found.

Folders are `<staging>/<query>/<batch>/<task>-<attempt>-<random>`: no two attempts meet, be they of
one task or of a query that was thought to be dead. Those of a batch go when it is committed, with
those of all before it; what a crash leaves goes when it is old.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from datalattice.pipeline.leftovers import remove, remove_batches, remove_stale
from datalattice.pipeline.options import (
    Given,
    Refused,
    bad_option,
    count_option,
    folder_option,
    text_option,
)
from datalattice.pipeline.parcels import Parcel, ParcelReader, ParcelWriter, misshapen
from datalattice.pipeline.unsynced import unsynced_store
from datalattice.store import STORE_FILE, CellStore

if TYPE_CHECKING:
    from pyspark import TaskContext

TARGET_OPTIONS: Final = (
    "store",
    "path",
    "staging",
    "writeId",
    "writeVersion",
    "checkpointLocation",
    "queryName",
)
"""Options of every sink. Spark hands a stream's own two on; they are its matter."""

STAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""New cells that a task or the driver gathers, about, before it puts them where they stay."""

TURN_WAIT_S: Final = 600.0
"""How long a commit waits for that of another query to the same folder."""

AGAIN_S: Final = 60.0
"""How long a commit is tried after the node went away."""

AGAIN_POLL_S: Final = 0.2

MOVED_MAX: Final = 20
"""How often a commit is prepared again because somebody else wrote to the same place."""

SAVES_MAX: Final = 64
"""Saves without a name that a place remembers: enough to know what became of one just made."""

MAKE_MAX: Final = 5
"""How often a task tries to make its folder."""

PARCELS: Final = "parcels"
"""Name of the file of parcels in the folder of a task."""

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
_NAME_BYTES: Final = 8

_log: Final = logging.getLogger("datalattice.pipeline")

C = TypeVar("C", bound=Cell)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a sink writes, and under what name."""

    folder: str
    """The folder of the node whose key signs."""
    staging: str
    """The folder that tasks stage in; the driver and all tasks reach it."""
    write_id: str | None
    """Name of a save that is to happen once; None: every save is another."""
    version: int
    """Number of a save under its name; a number not above one that was saved is skipped."""


def target_option(options: Given, *, streaming: bool) -> Target:
    """Return where to write. Runs on the driver; paths become absolute there.

    Raises: UsageError: no node's folder is named, or an option is not for a stream.
    """
    given = folder_option(options)
    if not given:
        raise UsageError(
            "option store is missing: give the folder of a node, as store or to save()"
        )
    folder = Path(given).expanduser().absolute()
    if not Folder(folder).key_path.is_file():
        raise bad_option("store", given, _no_key(folder))
    staging = options.get("staging", text_option, "") or str(folder / "staging")
    write_id = options.get("writeId", _write_id, None)
    if streaming and ("writeId" in options or "writeVersion" in options):
        raise UsageError(
            "options writeId and writeVersion are for batches: a stream is known by its checkpoint"
        )
    if write_id is None and "writeVersion" in options:
        raise UsageError("option writeVersion numbers the saves of a name: give writeId, too")
    version = options.get("writeVersion", count_option("a whole number from 0 on"), 0)
    return Target(
        str(folder), str(Path(staging).expanduser().absolute()), write_id, min(version, COUNT_MAX)
    )


def _no_key(folder: Path) -> str:
    if (folder / STORE_FILE).exists():
        return "it is a bare store; writing needs the folder of a node, whose key signs what it has"
    return (
        "writing needs the folder of a node, whose key signs what it has "
        f"(`lattice key new --dir {folder}` makes one)"
    )


def _write_id(text: str) -> str:
    if not _WRITE_ID.fullmatch(text):
        raise Refused("1 to 100 letters, digits and _ . : - that begin with a letter, digit or _")
    return text


@dataclass(frozen=True, slots=True)
class Mark:
    """How a place that is written to knows a batch that it has.

    A place keeps a value under `key`. That of a query or of a named save is the greatest number
    that was written; that of saves without a name is a Vector of the last of them.
    """

    key: str
    number: int | None
    save: str

    def is_in(self, stored: Value) -> bool:
        """Return whether the batch is there, by what the place keeps under the key."""
        if self.number is None:
            return isinstance(stored, Vector) and self.save in stored
        return isinstance(stored, int) and stored >= self.number

    def over(self, stored: Value) -> Value:
        """Return what the place is to keep under the key when it has the batch."""
        if self.number is not None:
            return self.number
        before = stored.to_list() if isinstance(stored, Vector) else []
        return Vector.of([*before, self.save][-SAVES_MAX:])


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task staged: its commit message."""

    task: int
    records: int
    """How many it has; 0: nothing was staged."""
    path: str
    """The folder of its store."""
    digest: bytes
    """Checksum of its parcels."""
    query: str | None
    """Id of the streaming query, as the task was told."""
    place: str = ""
    """One of the places that it goes to, where the mark of its batch is found without the file."""

    def open(self) -> ParcelReader:
        """Return a reader of what was staged.

        Raises: UsageError: it is not there, or the driver may not read it.
        """
        try:
            return ParcelReader(Path(self.path, PARCELS))
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            what = "is not there" if is_gone else f"cannot be read ({error.strerror})"
            raise UsageError(
                f"what task {self.task} staged {what}: {self.path}; the option staging "
                "names a folder that the driver and all tasks reach under the same path"
            ) from None

    def parcels(self) -> Iterator[Parcel]:
        """Yield what was staged, in order.

        Raises: UsageError: it is not there. Corruption: it is not as it was written.
        """
        with self.open() as parcels:
            for _, parcel in parcels.all(self.digest):
                yield parcel


StagedTasks = Sequence[Staged]
"""What all tasks staged that have anything, in their order."""

Join = Callable[[Editor, StagedTasks, Mark], Change[None] | None]
"""What a format does on the driver. Outside the edit it reads what is there (`editor.root()`) and
what was staged, and stages what takes room (`editor.stage`). It returns the change, which is quick,
checks the mark, writes and leaves the mark; or None when the mark is there already. The change
raises `Moved` when what it was prepared for is not there any more."""


def reopened(value: C, loader: Loader) -> C:
    """Return a stored value as it is read from `loader`, without the cells that it had in memory.

    Raises: BadFormat: it is of another kind, read again.
    """
    found = decode(encode(value), loader)
    if not isinstance(found, type(value)):
        raise misshapen()
    return found


class Moved(Exception):
    """A change was prepared for a root that has moved on: prepare it again."""


class Stage:
    """Where a task puts what it makes: parcels, or a store of cells. Made by `Job.stage`."""

    def __init__(self, path: Path, task: int, query: str | None) -> None:
        self._path: Final = path
        self._query: Final = query
        self._store: CellStore | None = None
        self._parcels: ParcelWriter | None = None
        self.task: Final = task
        """Number of the task in its job: the order in which the driver joins."""
        self.place = ""
        """One of the places that what was put goes to, by a name that its format knows."""

    @property
    def parcels(self) -> ParcelWriter:
        """The file of parcels, made when it is first asked for.

        Raises: UsageError: the staging folder cannot be written to.
        """
        if self._parcels is None:
            self._parcels = _in_new_folder(self._path, lambda new: ParcelWriter(new / PARCELS))
        return self._parcels

    def put_cells(self, cells: Iterable[tuple[bytes, bytes]]) -> None:
        """Write cells as (hash, encoding), which the caller has checked, in any order.

        Raises: UsageError: the staging folder cannot be written to.
        """
        if self._store is None:
            self._store = _in_new_folder(self._path, unsynced_store)
        self._store.put_encodings(cells)

    def done(self, records: int) -> Staged:
        """Return the task's message, when what was put can be read by others.

        records: how many are in it; without any, nothing is looked at.
        """
        self.close()
        digest = b"" if self._parcels is None else self._parcels.digest
        return Staged(self.task, records, str(self._path), digest, self._query, self.place)

    def close(self) -> None:
        """Close what was put; others can read a store then. Nothing is synced."""
        for made in (self._parcels, self._store):
            if made is not None:
                made.close()

    def remove(self) -> None:
        """Throw away what was put."""
        if self._parcels is not None or self._store is not None:
            try:
                self.close()
            finally:  # a full disk fails the last write, too
                remove(self._path)


@dataclass(frozen=True, slots=True)
class Job:
    """One save, or one batch of a stream. Made at planning; its tasks get copies."""

    target: Target
    save: str
    """Random name of this job."""
    stamp_ms: int
    """The time of what it writes."""
    streaming: bool

    @classmethod
    def begin(
        cls,
        target: Target,
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
        """Give a task what it puts its value into; that is gone again when the task fails."""
        context = _task_context()
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
        self, messages: Sequence[WriterCommitMessage | None], batch: int | None, join: Join
    ) -> bool:
        """Write what the tasks staged, all or nothing; return False when it was there already.

        batch: number of a stream's batch; None: this is no stream.
        Raises: as `home.editing` and the change; nothing was written then. PeerUnavailable,
                Timeout: the node went away and did not come back; what happened is not known.
        """
        staged = _in_order(messages)
        filled = [message for message in staged if message.records]
        fresh = False
        if filled:
            mark = self._mark(filled[0].query, batch)
            with self._turn():
                fresh = self._insist(filled, mark, join)
            if not fresh:
                _log.warning("%s %s is there already: skipped", mark.key, mark.number)
        self._tidy(staged, batch)
        return fresh

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Throw away what the tasks staged."""
        for message in _in_order(messages):
            remove(Path(message.path))

    def _mark(self, query: str | None, batch: int | None) -> Mark:
        if batch is not None:
            if not query:
                raise UsageError("the tasks of a stream were not told the id of their query")
            return Mark(f"spark-query/{query}", batch, self.save)
        if self.target.write_id is not None:
            return Mark(f"spark-write/{self.target.write_id}", self.target.version, self.save)
        return Mark("spark-saves", None, self.save)

    def _insist(self, staged: list[Staged], mark: Mark, join: Join) -> bool:
        """Commit; when the node goes away find out by the mark what happened, and go on.

        A store that is locked may be that of a node which is just starting.
        """
        give_up_s: float | None = None
        while True:
            try:
                with editing(Folder(Path(self.target.folder))) as editor:
                    return _commit(editor, staged, mark, join) or give_up_s is not None
            except (PeerUnavailable, Timeout, StoreLocked):
                if give_up_s is None:  # counted from here: to prepare a batch may take longer
                    give_up_s = time.monotonic() + AGAIN_S
                elif time.monotonic() >= give_up_s:
                    raise
            time.sleep(AGAIN_POLL_S)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One commit after the other, so that a quick query cannot keep a slow one from writing."""
        read_key(Folder(Path(self.target.folder)).key_path)
        lock = take_turn(
            str(Path(self.target.folder) / "pipeline.lock"), TURN_WAIT_S, "query to commit"
        )
        try:
            yield
        finally:
            lock.release()

    def _query_folder(self, query: str | None) -> Path:
        # Not by the name of a save: two of one name may be under way, to two places.
        return Path(self.target.staging) / (f"query-{query}" if query else f"save-{self.save}")

    def _batch_name(self, batch: str | int | None) -> str:
        return str(self.target.version if batch is None else batch)

    def _tidy(self, staged: list[Staged], batch: int | None) -> None:
        """Remove what this batch and those before it left, and whatever is old."""
        if staged:
            last = int(self._batch_name(batch))
            remove_batches(self._query_folder(staged[0].query), last)
            remove_stale(Path(self.target.staging), SystemClock().now_ms())


def _commit(editor: Editor, staged: list[Staged], mark: Mark, join: Join) -> bool:
    for _ in range(MOVED_MAX):
        with collector_paused:
            change = join(editor, staged, mark)
            if change is None:
                return False
            try:
                editor.edit(change)
            except Moved:
                continue
        return True
    raise Backpressure(
        f"others wrote to the same place {MOVED_MAX} times while this batch was prepared; "
        "nothing of it was written, try again"
    )


def _in_new_folder(folder: Path, make: Callable[[Path], T]) -> T:
    """Make a task's folder and what is in it."""
    left = MAKE_MAX
    while True:
        left -= 1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return make(folder)
        except OSError as error:
            # A commit that tidies up may remove the folder, or the one above, just now: of a query
            # that was thought to be dead, too.
            if not left or not isinstance(error, FileNotFoundError):
                what = f"tasks cannot write to it ({error.strerror})"
                raise bad_option("staging", str(folder.parents[2]), what) from None


def _in_order(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    staged = [message for message in messages if isinstance(message, Staged)]
    return sorted(staged, key=lambda message: message.task)


def _task_context() -> TaskContext | None:
    from pyspark import TaskContext

    return TaskContext.get()


__all__ = [
    "STAGE_BYTES_MAX",
    "TARGET_OPTIONS",
    "Job",
    "Join",
    "Mark",
    "Moved",
    "Stage",
    "Staged",
    "StagedTasks",
    "Target",
    "target_option",
]
