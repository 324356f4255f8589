"""Tasks: long operations of a running node. They go on when their caller disconnects.

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

# --- kinds of tasks -------------------------------------------------------------------------------


class HealStore(Message, name="datalattice.v1.HealStore"):
    """Repair the node's store from its own intact bytes, its peers, and further sources.

    addresses: nodes to fetch cells from. folder: another store on the node's machine.
    """

    addresses: Annotated[tuple[str, ...], Field(1)] = ()
    folder: Annotated[str, Field(2)] = ""


class CollectGarbage(Message, name="datalattice.v1.CollectGarbage"):
    """Free the room of cells that no root, pin or lease reaches.

    grace_ms: younger cells stay; None: one hour. dry_run: only count. plan: the path of a sweep
    list; its cells are removed instead.
    """

    grace_ms: Annotated[int | None, Field(1, "uint64")] = None
    dry_run: Annotated[bool, Field(2)] = False
    plan: Annotated[str, Field(3)] = ""


class ImportRoot(Message, name="datalattice.v1.ImportRoot"):
    """Read an archive or a store on the node's machine; pin its root, or merge it.

    pin: the label. known: the merged data was made from data of this node.
    """

    path: Annotated[str, Field(1)] = ""
    pin: Annotated[str, Field(2)] = ""
    merge: Annotated[bool, Field(3)] = False
    known: Annotated[bool, Field(4)] = False


class RebuildState(Message, name="datalattice.v1.RebuildState"):
    """Rebuild the state of a Weaver store from its log."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


# --- their results --------------------------------------------------------------------------------


class DamageInfo(Message, name="datalattice.v1.DamageInfo"):
    """Damaged bytes in a file of a store. hash: of the cell, if it is known."""

    file: Annotated[str, Field(1)] = ""
    offset: Annotated[int, Field(2, "uint64")] = 0
    reason: Annotated[str, Field(3)] = ""
    hash: Annotated[bytes | None, Field(4, codec=HASH_FORMAT)] = None


class AbsentCell(Message, name="datalattice.v1.AbsentCell"):
    """A cell that the store lacks. above: cells that refer to it. below_root: the root needs it."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    above: Annotated[tuple[bytes, ...], Field(2, codec=HASH_FORMAT)] = ()
    below_root: Annotated[bool, Field(3)] = False


class UnsoundCell(Message, name="datalattice.v1.UnsoundCell"):
    """A cell that does not fit the cell that refers to it, and why."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    reason: Annotated[str, Field(2)] = ""


class StoreCheck(Message, name="datalattice.v1.StoreCheck"):
    """The findings of a check of every cell of a store. clean: nothing is wrong.

    endangered, unserved: hashes of cells. scars: earlier damage in bytes that nothing needs.
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
    """What a repair did, and what is still wrong. unreachable: a Map of reasons by address."""

    rescued: Annotated[int, Field(1, "uint64")] = 0
    fetched: Annotated[int, Field(2, "uint64")] = 0
    forgotten: Annotated[int, Field(3, "uint64")] = 0
    unreachable: Annotated[Value, Field(4, codec=CELL_FORMAT)] = None
    check: Annotated[StoreCheck | None, Field(5)] = None


class CollectedGarbage(Message, name="datalattice.v1.CollectedGarbage"):
    """What a collection found and did; in a dry run, what it would do."""

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
    """Parts that a merge left out or that forked. kind: why. text: the first one in words."""

    kind: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "uint64")] = 0
    text: Annotated[str, Field(3)] = ""


class ImportedRoot(Message, name="datalattice.v1.ImportedRoot"):
    """The result of an import. root: of the node after a merge. dropped: parts left out of it."""

    imported: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    cells: Annotated[int, Field(2, "uint64")] = 0
    pin: Annotated[str, Field(3)] = ""
    root: Annotated[bytes | None, Field(4, codec=HASH_FORMAT)] = None
    dropped: Annotated[int, Field(5, "uint64")] = 0
    forked: Annotated[int, Field(6, "uint64")] = 0
    reports: Annotated[tuple[LeftOutPart, ...], Field(7)] = ()


# --- tasks ----------------------------------------------------------------------------------------


class TaskState(IntEnum):
    """The state of a task. Tasks of one kind run one after the other."""

    WAITING = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4


class TaskInfo(Message, name="datalattice.v1.TaskInfo"):
    """A task: its progress, and at its end its result or its error.

    kind: the field of `StartTask`. caller: the DID of its caller, "" for the owner of the folder.
    count: parts done. total: of how many, if that is known. code, text: of the error.
    """

    id: Annotated[int, Field(1, "uint64")] = 0
    kind: Annotated[str, Field(2)] = ""
    caller: Annotated[str, Field(3)] = ""
    state: Annotated[TaskState, Field(4)] = TaskState.WAITING
    count: Annotated[int, Field(5, "uint64")] = 0
    total: Annotated[int | None, Field(6, "uint64")] = None
    code: Annotated[str, Field(7)] = ""
    text: Annotated[str, Field(8)] = ""
    # Results begin at 16: the numbers below are reserved for fields of all tasks.
    healed: Annotated[HealedStore | None, Field(16, oneof="result")] = None
    collected: Annotated[CollectedGarbage | None, Field(17, oneof="result")] = None
    imported: Annotated[ImportedRoot | None, Field(18, oneof="result")] = None
    rebuilt: Annotated[Empty | None, Field(19, oneof="result")] = None


# EFFECT and not ONCE: "an equal request of the same caller joins it" (docs/node.md), so a request
# that is sent again begins nothing new.
@action("tasks.start", ActionKind.EFFECT, "a", "admin", POST("/tasks", 202))
class StartTask(ActionRequest[TaskInfo], name="datalattice.v1.StartTaskRequest"):
    """Start a task of the running node, one of these, and return it at once.

    An equal request of the same caller joins a task that has not ended. The node keeps 64 tasks.
    Raises: Backpressure: none of them has ended.
    """

    heal: Annotated[HealStore | None, Field(1, oneof="task")] = None
    collect: Annotated[CollectGarbage | None, Field(2, oneof="task")] = None
    import_root: Annotated[ImportRoot | None, Field(3, oneof="task")] = None
    rebuild: Annotated[RebuildState | None, Field(4, oneof="task")] = None


class TaskList(Message, name="datalattice.v1.TaskList"):
    """Tasks, the oldest first."""

    tasks: Annotated[tuple[TaskInfo, ...], Field(1)] = ()


# `r` on `admin` is enough to look; to start and to cancel needs `a`.
@action("tasks.list", ActionKind.QUERY, "r", "admin", GET("/tasks"))
class ListTasks(ActionRequest[TaskList], name="datalattice.v1.ListTasksRequest"):
    """List the tasks of the caller; the owner of the folder sees all."""


@action("tasks.get", ActionKind.QUERY, "r", "admin", GET("/tasks/{id}"))
class GetTask(ActionRequest[TaskInfo], name="datalattice.v1.GetTaskRequest"):
    """Return the progress of a task, or its result. Raises: NoSuchPath."""

    id: Annotated[int, Field(1, "uint64")] = 0


# No `resume`: the first item is the present state, so a reader that was cut off asks anew.
@action("tasks.watch", ActionKind.STREAM, "r", "admin", GET("/tasks/{id}/events"))
class WatchTask(ActionRequest[TaskInfo], name="datalattice.v1.WatchTaskRequest"):
    """Return the progress of a task twice a second, and its result, which ends the stream."""

    id: Annotated[int, Field(1, "uint64")] = 0


# EFFECT: to cancel a task that has ended changes nothing.
@action("tasks.cancel", ActionKind.EFFECT, "a", "admin", DELETE("/tasks/{id}"))
class CancelTask(ActionRequest[Empty], name="datalattice.v1.CancelTaskRequest"):
    """End a task at its next step; for a task that has ended, do nothing.

    What it did so far stays, as after a crash; a cancelled rebuild leaves the earlier state.
    """

    id: Annotated[int, Field(1, "uint64")] = 0
