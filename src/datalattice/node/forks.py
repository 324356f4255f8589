"""Forks: how the operator resolves a fork, whose losing branch is kept as evidence beside its slot.

These functions work on a replica: a running node calls them in its lane (`operations`), a tool on
the replica of a folder in which no node runs.
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.queue import QUEUE_SECTION, LogBranch, Topics, append_branch
from datalattice.cells import Value, same
from datalattice.clock import Clock
from datalattice.errors import NoSigningKey, UsageError
from datalattice.lattice import LOG_BRANCH
from datalattice.sync import ForkRecord, LatticeReplica, LogLoss, owner_text

ACTIONS: Final = ("append", "drop")

ID_DIGITS: Final = 64  # an id is 32 bytes in hex


def resolve_fork(replica: LatticeReplica, id: str, action: str, clock: Clock) -> dict[str, object]:
    """Resolve the fork with an id of 64 hex digits; return what was done. Durable on return.

    append: the records that the log lacks are appended to it, once; the evidence is removed.
    drop:   the evidence is removed, and is not taken again.
    Raises: UsageError: not an open fork, not an action, or nothing to append.
            NoSigningKey: this node has no key of the owner.
    """
    if action not in ACTIONS:
        raise UsageError(f"a fork is resolved by {' or '.join(ACTIONS)}, got {action!r}")
    record = replica.evidence.records.get(_id_of(id))
    if record is None:
        raise UsageError(f"no fork {id} is open here; `lattice forks list` has those that are")
    appended: list[tuple[LogLoss, range]] = []
    if action == "drop":
        replica.state.drop_evidence([record.id])
    else:
        _check_appendable(replica, record)
        appended = [
            (log, _append(replica, record.owner, log, branch, clock))
            for log, branch in record.log_branches()
        ]
        replica.cursor.sync()
    return {
        "id": id,
        "action": action,
        "appended": [
            {
                "topic": log.topic,
                "partition": log.partition,
                "offset": offsets.start if offsets else None,
                "count": len(offsets),
            }
            for log, offsets in appended
        ],
        "removed": record.id not in replica.evidence.records,
    }


def _id_of(text: str) -> bytes:
    try:
        id = bytes.fromhex(text)
    except ValueError:
        id = b""
    if 2 * len(id) != ID_DIGITS:
        raise UsageError(f"the id of a fork has {ID_DIGITS} hex digits, got {text!r}")
    return id


def _check_appendable(replica: LatticeReplica, record: ForkRecord) -> None:
    # Values merge by themselves; only the records of a log are left out by a merge.
    if record.branch != LOG_BRANCH or not same(record.path[0], QUEUE_SECTION):
        raise UsageError(
            "this fork left out no records of a log; a node with the owner's key joins its values"
        )
    if record.loser is None:
        raise UsageError("of this branch only the signature was kept, so nothing can be appended")
    # A log entry counts under its owner's signature alone.
    if replica.cursor.context.signer(record.owner) is None:
        raise NoSigningKey(
            f"only a node with a key of {owner_text(record.owner)} can append to its log"
        )


def _append(
    replica: LatticeReplica, owner: Value, log: LogLoss, branch: LogBranch, clock: Clock
) -> range:
    queue = Topics.at(replica.cursor, owner).partition(log.topic, log.partition)
    made = range(0)

    def append(value: Value) -> Value:
        nonlocal made
        value, made = append_branch(value, branch, clock.now_ms())
        return value

    queue.cursor.update(append)
    return made
