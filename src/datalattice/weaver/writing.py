"""Writing: own intentions of one transaction, one after the other, with one pass over the tables.

    writing = Writing(part, log, state, key)
    writing.write(payload, deps)     # its hash; `data`, `system` and `dag` show it at once
    done = writing.finish()          # signatures, rows, state and position

What costs the same for one intention as for many is done once: head, tips and position are read and
written, and the rows go to the tables in key order. Signatures are made last, since the next
intention names the hash of the one before, which is that of the unsigned bytes.

Source: docs/design/weaver.md "Who calls whom".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from datalattice.crypto import KeyPair
from datalattice.engine import ReadTxn, WriteTxn
from datalattice.weaver.dag import DagNode
from datalattice.weaver.ingest import Ingest
from datalattice.weaver.intention import SignedIntention
from datalattice.weaver.log import IntentionLog
from datalattice.weaver.op import Op
from datalattice.weaver.state import BATCH_BYTES, Position, Projection, State
from datalattice.weaver.tables import STATE_DATA, STATE_SYSTEM


class _Unwritten:
    """A log with the operations that a call has appended and not written yet."""

    def __init__(self, log: IntentionLog, call: Ingest) -> None:
        self._log = log
        self._call = call

    def operation(self, txn: ReadTxn, hash: bytes) -> Op | None:
        found = self._call.operation(hash)
        return self._log.operation(txn, hash) if found is None else found[1]

    def node(self, txn: ReadTxn, hash: bytes) -> DagNode | None:
        found = self._call.operation(hash)
        if found is None:
            return self._log.node(txn, hash)
        return DagNode(hash, found[1].deps, found[1].stamp, found[0])


class Writing:
    """What one transaction writes under the key of this node, in one store."""

    def __init__(self, txn: WriteTxn, log: IntentionLog, state: State, key: KeyPair) -> None:
        self._txn = txn
        self._state = state
        self._key = key
        self._call = log.begin(txn)
        head = self._call.head
        end = Position(head.seq, head.content_hash)
        self._folding = state.begin(txn, end, _Unwritten(log, self._call))
        self.data: Final = self._folding.reader(STATE_DATA)
        """The machine's table, with what this call has changed."""
        self.system: Final = self._folding.reader(STATE_SYSTEM)
        """The system table, with what this call has changed."""
        self.dag: Final = self._folding.dag
        """The operations of the log, with those of this call."""

    @property
    def count(self) -> int:
        """How many intentions this call has written."""
        return len(self._call.own)

    @property
    def seq(self) -> int:
        """The number of the log's last record."""
        return self._call.seq

    def write(self, payload: bytes, deps: Iterable[bytes]) -> bytes:
        """Write a payload that is in its envelope; return the hash of its intention.

        Raises: PayloadTooLarge, TooManyCausalDeps, UsageError: as `Ingest.submit`; nothing was
                changed then.
        """
        hash = self._call.submit(self._key, payload, deps)
        folding = self._folding
        # Nothing is appended if the intention floats, several are if others waited for it. A
        # stalled state continues once it can apply the operation at which it stopped.
        while not folding.is_stalled and folding.seq < self._call.seq:
            folding.apply(self._call.appended[folding.seq - self._call.head.seq])
            if folding.size > BATCH_BYTES:  # bounds memory
                folding.write()
        return hash

    def finish(self) -> tuple[list[SignedIntention], Projection]:
        """Sign, write all and move the position; return the intentions, and what was applied.

        Raises: FloatingFull: more would wait than is kept; roll the transaction's work back.
        """
        appended = self._call.finish().appended
        end = None if appended is None else Position(appended.last, appended.end)
        return self._call.own, self._state.end(self._txn, self._folding, end)
