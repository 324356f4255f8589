"""Tasks: long operations of a running node. They go on when whoever began them goes away.

    info = client.call(StartTask(collect=CollectGarbage(grace_ms=0)))
    for info in client.stream(WatchTask(id=info.id)):       # ends with the task
        ...

`client.finish` does both, and returns the result or raises the task's error.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from datalattice.actions.action import DELETE, GET, POST, ActionKind, ActionRequest, action
from datalattice.actions.common import Empty
from datalattice.actions.formats import CELL_FORMAT, HASH_FORMAT, STORE_ID_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message

# --- what can be begun ----------------------------------------------------------------------------


class HealStore(Message, name="datalattice.v1.HealStore"):
    """Repair the node's store: from its own intact bytes, its peers, and what is named here.

    addresses: nodes to fetch cells from. folder: another store on the node's machine.
    """

    addresses: Annotated[tuple[str, ...], Field(1)] = ()
    folder: Annotated[str, Field(2)] = ""


class CollectGarbage(Message, name="datalattice.v1.CollectGarbage"):
    """Give back the room of what nothing reaches.

    grace_ms: younger cells stay; None: for an hour. dry_run: only count. plan: the path of a sweep
    list, whose cells are removed instead.
    """

    grace_ms: Annotated[int | None, Field(1, "uint64")] = None
    dry_run: Annotated[bool, Field(2)] = False
    plan: Annotated[str, Field(3)] = ""


class ImportRoot(Message, name="datalattice.v1.ImportRoot"):
    """Read an archive or a store on the node's machine; pin its root, or merge it.

    pin: a name. known: what is merged was made from data of this node.
    """

    path: Annotated[str, Field(1)] = ""
    pin: Annotated[str, Field(2)] = ""
    merge: Annotated[bool, Field(3)] = False
    known: Annotated[bool, Field(4)] = False


class RebuildState(Message, name="datalattice.v1.RebuildState"):
    """Make the state of a Weaver store again from its log."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


# --- what comes of it -----------------------------------------------------------------------------


class DamageInfo(Message, name="datalattice.v1.DamageInfo"):
    """Damaged bytes in a file of a store. hash: of the cell, where it is known."""

    file: Annotated[str, Field(1)] = ""
    offset: Annotated[int, Field(2, "uint64")] = 0
    reason: Annotated[str, Field(3)] = ""
    hash: Annotated[bytes | None, Field(4, codec=HASH_FORMAT)] = None


class AbsentCell(Message, name="datalattice.v1.AbsentCell"):
    """A cell that is not here. above: cells that refer to it. below_root: the root needs it."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    above: Annotated[tuple[bytes, ...], Field(2, codec=HASH_FORMAT)] = ()
    below_root: Annotated[bool, Field(3)] = False


class UnsoundCell(Message, name="datalattice.v1.UnsoundCell"):
    """A cell that is not what its place requires, and why."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    reason: Annotated[str, Field(2)] = ""


class StoreCheck(Message, name="datalattice.v1.StoreCheck"):
    """What a check of every cell of a store found. clean: nothing is wrong.

    endangered, unserved: hashes of cells. scars: damage of the past that nothing needs.
    """

    clean: Annotated[bool, Field(1)] = False
    segments: Annotated[int, Field(2, "uint64")] = 0
    packs: Annotated[int, Field(3, "uint64")] = 0
    cells: Annotated[int, Field(4, "uint64")] = 0
    size_bytes: Annotated[int, Field(5, "uint64")] = 0
    damaged: Annotated[tuple[DamageInfo, ...], Field(6)] = ()
    missing: Annotated[tuple[AbsentCell, ...], Field(7)] = ()
    endangered: Annotated[tuple[bytes, ...], Field(8, codec=HASH_FORMAT)] = ()
    unserved: Annotated[tuple[bytes, ...], Field(9, codec=HASH_FORMAT)] = ()
    scars: Annotated[tuple[DamageInfo, ...], Field(10)] = ()
    unsound: Annotated[tuple[UnsoundCell, ...], Field(11)] = ()


class HealedStore(Message, name="datalattice.v1.HealedStore"):
    """What a healing did, and what is still wrong. unreachable: a Map of reasons by address."""

    rescued: Annotated[int, Field(1, "uint64")] = 0
    fetched: Annotated[int, Field(2, "uint64")] = 0
    forgotten: Annotated[int, Field(3, "uint64")] = 0
    unreachable: Annotated[Value, Field(4, codec=CELL_FORMAT)] = None
    check: Annotated[StoreCheck | None, Field(5)] = None


class CollectedGarbage(Message, name="datalattice.v1.CollectedGarbage"):
    """What a collection found and did; in a dry run what it would do."""

    cells_live: Annotated[int, Field(1, "uint64")] = 0
    cells_dead: Annotated[int, Field(2, "uint64")] = 0
    cells_removed: Annotated[int, Field(3, "uint64")] = 0
    bytes_live: Annotated[int, Field(4, "uint64")] = 0
    bytes_dead: Annotated[int, Field(5, "uint64")] = 0
    bytes_before: Annotated[int, Field(6, "uint64")] = 0
    bytes_after: Annotated[int, Field(7, "uint64")] = 0
    segments: Annotated[int, Field(8, "uint64")] = 0
    dropped: Annotated[int, Field(9, "uint64")] = 0
    copied: Annotated[int, Field(10, "uint64")] = 0
    leases_ended: Annotated[int, Field(11, "uint64")] = 0
    seconds: Annotated[float, Field(12)] = 0.0
    is_dry: Annotated[bool, Field(13)] = False


class LeftOutPart(Message, name="datalattice.v1.LeftOutPart"):
    """Parts that a merge left out or that forked: why, how many, the first one in words."""

    kind: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "uint64")] = 0
    text: Annotated[str, Field(3)] = ""


class ImportedRoot(Message, name="datalattice.v1.ImportedRoot"):
    """What came of an import: its root, and ours after it. dropped: parts that were left out."""

    imported: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    cells: Annotated[int, Field(2, "uint64")] = 0
    pin: Annotated[str, Field(3)] = ""
    root: Annotated[bytes | None, Field(4, codec=HASH_FORMAT)] = None
    dropped: Annotated[int, Field(5, "uint64")] = 0
    forked: Annotated[int, Field(6, "uint64")] = 0
    reports: Annotated[tuple[LeftOutPart, ...], Field(7)] = ()


# --- tasks ----------------------------------------------------------------------------------------


class TaskState(IntEnum):
    """Where a task is. Tasks of one kind run one after the other."""

    WAITING = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4


class TaskInfo(Message, name="datalattice.v1.TaskInfo"):
    """A task: how far it is, and in the end its result or its error.

    kind: the field of `StartTask`. caller: the DID of who began it, "" for the owner of the folder.
    count, total: parts that are done, and of how many if that is known. code, text: of the error.
    """

    id: Annotated[int, Field(1, "uint64")] = 0
    kind: Annotated[str, Field(2)] = ""
    caller: Annotated[str, Field(3)] = ""
    state: Annotated[TaskState, Field(4)] = TaskState.WAITING
    count: Annotated[int, Field(5, "uint64")] = 0
    total: Annotated[int | None, Field(6, "uint64")] = None
    code: Annotated[str, Field(7)] = ""
    text: Annotated[str, Field(8)] = ""
    # Results begin at 16: the numbers below are left for what is said of all tasks.
    healed: Annotated[HealedStore | None, Field(16, oneof="result")] = None
    collected: Annotated[CollectedGarbage | None, Field(17, oneof="result")] = None
    imported: Annotated[ImportedRoot | None, Field(18, oneof="result")] = None
    rebuilt: Annotated[Empty | None, Field(19, oneof="result")] = None


# EFFECT and not ONCE: "an equal request of the same caller joins it" (docs/node.md), so a request
# that is sent again begins nothing new.
@action("tasks.start", ActionKind.EFFECT, "a", "admin", POST("/tasks", 202))
class StartTask(ActionRequest[TaskInfo], name="datalattice.v1.StartTaskRequest"):
    """Begin a task of the running node, one of these; return it at once.

    An equal request of the same caller joins a task that has not ended. 64 are kept; Raises:
    Backpressure: none of them has ended.
    """

    heal: Annotated[HealStore | None, Field(1, oneof="task")] = None
    collect: Annotated[CollectGarbage | None, Field(2, oneof="task")] = None
    import_root: Annotated[ImportRoot | None, Field(3, oneof="task")] = None
    rebuild: Annotated[RebuildState | None, Field(4, oneof="task")] = None


class TaskList(Message, name="datalattice.v1.TaskList"):
    """Tasks, the oldest first."""

    tasks: Annotated[tuple[TaskInfo, ...], Field(1)] = ()


# A right to read is enough to look: to begin and to cancel takes `a`.
@action("tasks.list", ActionKind.QUERY, "r", "admin", GET("/tasks"))
class ListTasks(ActionRequest[TaskList], name="datalattice.v1.ListTasksRequest"):
    """List the tasks that the caller began; the owner of the folder sees all."""


@action("tasks.get", ActionKind.QUERY, "r", "admin", GET("/tasks/{id}"))
class GetTask(ActionRequest[TaskInfo], name="datalattice.v1.GetTaskRequest"):
    """Return how far a task is, or what came of it. Raises: NoSuchPath."""

    id: Annotated[int, Field(1, "uint64")] = 0


@action("tasks.watch", ActionKind.STREAM, "r", "admin", GET("/tasks/{id}/events"))
class WatchTask(ActionRequest[TaskInfo], name="datalattice.v1.WatchTaskRequest"):
    """Return how far a task is, twice a second and at its end, which ends the stream."""

    id: Annotated[int, Field(1, "uint64")] = 0


@action("tasks.cancel", ActionKind.EFFECT, "a", "admin", DELETE("/tasks/{id}"))
class CancelTask(ActionRequest[Empty], name="datalattice.v1.CancelTaskRequest"):
    """Have a task end at its next step. One that has ended stays so.

    What it did so far stays, as after a crash; a rebuild leaves the state of before.
    """

    id: Annotated[int, Field(1, "uint64")] = 0
