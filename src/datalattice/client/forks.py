"""Forks: reads the branches of forked values that a node keeps as evidence.

    for fork in node.forks().list():
        print(fork.owner, fork.path, fork.entries)

Source: docs/design/forks.md "Evidence".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from datalattice.actions import (
    ForkDetails,
    ForkedEntry,
    ForkedLog,
    ForkedRecord,
    ForkInfo,
    ForkProof,
)
from datalattice.apps.queue import (
    QueueState,
    entry_headers,
    entry_key,
    entry_stamp_ms,
    entry_value,
    read_state,
)
from datalattice.cells import ABSENT, Signed, Value, changes, value_hash
from datalattice.errors import NoSuchPath, UsageError
from datalattice.lattice import LOG_BRANCH, MergeContext, get_in
from datalattice.store import Store
from datalattice.sync import (
    ForkRecord,
    LogLoss,
    owner_text,
    partition_of_slot,
    stored_forks,
    write_proof,
)

FORK_ENTRIES_MAX: Final = 100
"""Most differing entries that a list counts."""


class Forks:
    """The forks in a root: the evidence of one node, and the values in the forked slots."""

    def __init__(self, root: Value, store: Store | None, context: MergeContext | None) -> None:
        """context: with the keys of the node and its owners; None: the node has no keys."""
        context = context or MergeContext()
        self._root: Final = root
        self._store: Final = store
        self._context: Final = context
        found: dict[bytes, ForkRecord] = {}
        if context.key_pair is not None:  # the records are the node's own, signed with its identity
            found, _ = stored_forks(root, context.key_pair.public_key)
        self._records: Final = sorted(found.values(), key=lambda one: (one.seen_ms, one.id))

    def list(self) -> tuple[ForkInfo, ...]:
        """Return all forks, the oldest first."""
        return tuple(self._info(one) for one in self._records)

    def show(self, id: str, skip: int, count: int) -> ForkDetails:
        """Return a fork with up to `count` entries or records of its branch, after `skip` of them.

        id: 64 hex digits, or the first of them.
        Raises: NoSuchPath: no fork has this id. UsageError: several ids begin with these digits.
        """
        record = self._find(id)
        parts = list(islice(self._parts(record), skip, skip + count))
        return ForkDetails(
            fork=self._info(record),
            entries=tuple(one for one in parts if isinstance(one, ForkedEntry)),
            records=tuple(one for one in parts if isinstance(one, ForkedRecord)),
        )

    def id(self, begins: str) -> str:
        """Return the full id that begins with these digits. Raises: as `show`."""
        return self._find(begins).id.hex()

    def parts(self, id: str) -> Iterator[ForkedEntry | ForkedRecord]:
        """Yield a branch's records that the logs lack, or its entries that differ.

        Raises: as `show`. UsageError: the branch was not kept.
        """
        record = self._find(id)
        if record.loser is None:
            raise UsageError("this branch was too large to be kept: only its signature is here")
        return self._parts(record)

    def proof(self, id: str) -> ForkProof:
        """Return a proof that the owner signed both. Raises: as `parts`; as `write_proof`."""
        record = self._find(id)
        slot = self._slot(record)
        # A proof shows two different signed values; a lone signature may be of the same value.
        if record.loser is None or slot is None or self._store is None:
            raise UsageError(
                "this branch was too large to be kept: its signature alone proves no fork"
            )
        fetch = self._store.get_encodings
        data = write_proof(record.path, record.owner, slot, record.loser, fetch)
        return ForkProof(id=record.id.hex(), data=data)

    def _find(self, text: str) -> ForkRecord:
        found = [one for one in self._records if one.id.hex().startswith(text.lower())]
        if not text or not found:  # every id begins with the empty text
            raise NoSuchPath(
                f"no fork {text!r:.80} is open here; `lattice forks list` lists the open ones"
            )
        if len(found) > 1:  # choosing one could resolve the wrong fork, and lose its branch
            raise UsageError(f"{len(found)} forks begin with {text!r}; give more digits")
        return found[0]

    def _slot(self, record: ForkRecord) -> Signed | None:
        slot = get_in(self._root, record.path)
        return slot if isinstance(slot, Signed) else None

    def _info(self, record: ForkRecord) -> ForkInfo:
        slot = self._slot(record)
        entries = None
        if record.branch != LOG_BRANCH:  # records of a log are counted in `logs`
            # Counted up to a limit: two large values may differ everywhere.
            entries = sum(1 for _ in islice(self._parts(record), FORK_ENTRIES_MAX))
        return ForkInfo(
            id=record.id.hex(),
            owner=owner_text(record.owner),
            # "An *owner's node* holds a key that may sign for the owner" (docs/design/forks.md)
            mine=self._context.signer(record.owner) is not None,
            path=record.path,
            kind=record.branch,
            seen_ms=record.seen_ms,
            kept=record.loser is not None,
            size_bytes=max(record.bytes, 0),
            here=None if slot is None else value_hash(slot),
            branch=None if record.loser is None else value_hash(record.loser),
            logs=tuple(_log(slot, record.loser, log) for log in record.logs),
            entries=entries,
        )

    def _parts(self, record: ForkRecord) -> Iterator[ForkedEntry | ForkedRecord]:
        for log, branch in record.log_branches():
            for at, entry in enumerate(branch.tail()):  # the records that the log lacks
                yield ForkedRecord(
                    topic=log.topic,
                    partition=log.partition,
                    offset=branch.first + at,
                    key=entry_key(entry),
                    value=entry_value(entry),
                    time=entry_stamp_ms(entry),
                    headers=entry_headers(entry) or None,
                )
        slot = self._slot(record)
        if record.branch != LOG_BRANCH and slot is not None and record.loser is not None:
            for path, here, branch_value in changes(slot.value, record.loser.value):
                yield ForkedEntry(
                    path=tuple(path),
                    here=None if here is ABSENT else here,
                    branch=None if branch_value is ABSENT else branch_value,
                )


def _log(slot: Signed | None, loser: Signed | None, log: LogLoss) -> ForkedLog:
    here, branch = (
        read_state(None if one is None else partition_of_slot(one.value, log))
        for one in (slot, loser)
    )
    return ForkedLog(
        topic=log.topic,
        partition=log.partition,
        first=log.first,
        end=log.end,
        records=log.end - log.first,
        here_end=here.end,
        here_ms=_last_write_ms(here),
        branch_ms=_last_write_ms(branch),
    )


def _last_write_ms(state: QueueState) -> int:
    """Return when the last record was written, in Unix milliseconds.

    A log without a stamped record has the time of its state.
    """
    entries = state.entries
    last_ms = entry_stamp_ms(entries[-1]) if len(entries) else None
    return state.stamp_ms if last_ms is None else last_ms
