"""Actions on forks: to list, show, prove and resolve the branches that a node keeps."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import GET, POST, ActionKind, ActionRequest, action
from datalattice.actions.common import PAGE
from datalattice.actions.formats import CELL_FORMAT, HASH_FORMAT, HEX_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message


class ForkedLog(Message, name="datalattice.v1.ForkedLog"):
    """A partition that lacks records of a branch: offsets `first` to `end` - 1.

    here_end: the end of the partition here. here_ms, branch_ms: time of the last record of each.
    """

    topic: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    partition: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    first: Annotated[int, Field(3, "int64")] = 0
    end: Annotated[int, Field(4, "int64")] = 0
    records: Annotated[int, Field(5, "int64")] = 0
    here_end: Annotated[int, Field(6, "int64")] = 0
    here_ms: Annotated[int, Field(7, "int64")] = 0
    branch_ms: Annotated[int, Field(8, "int64")] = 0


class ForkInfo(Message, name="datalattice.v1.ForkInfo"):
    """A signed value of an owner that is kept beside the one in its slot.

    mine: the node has the owner's key. path: of the slot. kind: "log" or "owner". here, branch:
    hashes of the two values. kept: False if the branch was too large, and only its signature is
    kept. size_bytes: of the branch. logs: the records that logs lack. entries: of other values,
    the number of entries that differ, counted to 100.
    """

    id: Annotated[str, Field(1)] = ""
    owner: Annotated[str, Field(2)] = ""
    mine: Annotated[bool, Field(3)] = False
    path: Annotated[tuple[Value, ...], Field(4, codec=CELL_FORMAT)] = ()
    kind: Annotated[str, Field(5)] = ""
    seen_ms: Annotated[int, Field(6, "int64")] = 0
    kept: Annotated[bool, Field(7)] = False
    size_bytes: Annotated[int, Field(8, "uint64")] = 0
    here: Annotated[bytes | None, Field(9, codec=HASH_FORMAT)] = None
    branch: Annotated[bytes | None, Field(10, codec=HASH_FORMAT)] = None
    logs: Annotated[tuple[ForkedLog, ...], Field(11)] = ()
    entries: Annotated[int | None, Field(12, "uint32")] = None


class ForkList(Message, name="datalattice.v1.ForkList"):
    """Forks, the oldest first."""

    forks: Annotated[tuple[ForkInfo, ...], Field(1)] = ()


# For admins: a fork shows data of owners whatever the rules on their scopes are.
@action("forks.list", ActionKind.QUERY, "r", "admin", GET("/forks"))
class ListForks(ActionRequest[ForkList], name="datalattice.v1.ListForksRequest"):
    """List the kept branches: signed values that the value in their slot does not contain."""


class ForkedEntry(Message, name="datalattice.v1.ForkedEntry"):
    """An entry that differs between slot and branch; nil on the side where it is absent."""

    path: Annotated[tuple[Value, ...], Field(1, codec=CELL_FORMAT)] = ()
    here: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    branch: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None


class ForkedRecord(Message, name="datalattice.v1.ForkedRecord"):
    """A record of a branch that the log lacks. offset: its offset in the branch."""

    topic: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    partition: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    offset: Annotated[int, Field(3, "uint64")] = 0
    key: Annotated[Value, Field(4, codec=CELL_FORMAT)] = None
    value: Annotated[Value, Field(5, codec=CELL_FORMAT)] = None
    time: Annotated[int | None, Field(6, "int64")] = None
    headers: Annotated[Value, Field(7, codec=CELL_FORMAT)] = None


class ForkDetails(Message, name="datalattice.v1.ForkDetails"):
    """A fork, and the entries that differ or the records that logs lack."""

    fork: Annotated[ForkInfo | None, Field(1)] = None
    entries: Annotated[tuple[ForkedEntry, ...], Field(2)] = ()
    records: Annotated[tuple[ForkedRecord, ...], Field(3)] = ()


# Pages by number: a kept branch never changes.
@action("forks.show", ActionKind.QUERY, "r", "admin", GET("/forks/{id}"))
class ShowFork(ActionRequest[ForkDetails], name="datalattice.v1.ShowForkRequest"):
    """Return a fork, and `count` entries or records of its branch after the first `skip`.

    id: 64 hex digits or a prefix. Raises: NoSuchPath.
    """

    id: Annotated[str, Field(1)] = ""
    skip: Annotated[int, Field(2, "uint64")] = 0
    count: Annotated[int, Field(3, "uint32")] = PAGE


class ForkProof(Message, name="datalattice.v1.ForkProof"):
    """A proof that an owner signed two values of which neither contains the other."""

    id: Annotated[str, Field(1)] = ""
    data: Annotated[bytes, Field(2, codec=HEX_FORMAT)] = b""


# Whoever has a proof can check it; only admins get one from the node.
@action("forks.export", ActionKind.QUERY, "r", "admin", GET("/forks/{id}/proof"))
class ExportFork(ActionRequest[ForkProof], name="datalattice.v1.ExportForkRequest"):
    """Return the proof of a fork, which `lattice forks verify` checks without a store.

    id: as in `forks.show`. Raises: NoSuchPath. UsageError: the branch was too large to be kept.
    """

    id: Annotated[str, Field(1)] = ""


class AppendedSpan(Message, name="datalattice.v1.AppendedSpan"):
    """Records of a branch that were appended to a log. offset: of the first; None for no record."""

    topic: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    partition: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    offset: Annotated[int | None, Field(3, "uint64")] = None
    count: Annotated[int, Field(4, "uint64")] = 0


class ResolvedFork(Message, name="datalattice.v1.ResolvedFork"):
    """What was done with a fork. removed: whether its evidence was deleted."""

    id: Annotated[str, Field(1)] = ""
    action: Annotated[str, Field(2)] = ""
    appended: Annotated[tuple[AppendedSpan, ...], Field(3)] = ()
    removed: Annotated[bool, Field(4)] = False


# EFFECT: "once however often the command is repeated" (docs/node.md), by the id of the branch.
@action("forks.resolve", ActionKind.EFFECT, "a", "admin", POST("/forks/{id}/resolution"))
class ResolveFork(ActionRequest[ResolvedFork], name="datalattice.v1.ResolveForkRequest"):
    """Resolve a fork by the 64 hex digits of its id: "append" or "drop".

    append: append the records that a log lacks, once. drop: delete the branch.
    Raises: UsageError: no such fork is open. NoSigningKey: the owner's key is not here.
    """

    id: Annotated[str, Field(1)] = ""
    how: Annotated[str, Field(2)] = ""
