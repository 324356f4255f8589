"""Rewrite: rebuilds a log with the other branch of an author that forked.

A node that wrote on an old end of its chain has its new writes in the log, and its earlier ones
float. At its peers the earlier ones are in the log, the new ones float, and nothing that the node
writes later enters their logs. So the node takes the other branch into its log, as if it had come
first. Then the same intentions float here and at the peers, and the node writes their operations
again behind the common chain.
"""

from __future__ import annotations

from typing import Final

from datalattice.engine import WriteTxn
from datalattice.errors import UsageError
from datalattice.weaver.ingest import Fork
from datalattice.weaver.intention import SignedIntention
from datalattice.weaver.log import IntentionLog
from datalattice.weaver.rows import LOG_TABLES

OTHERS_DEPEND: Final = (
    "other nodes have written behind the history that is in the log, so it stays: {author} wrote "
    "{hash}"
)


def rewrite(txn: WriteTxn, log: IntentionLog, fork: Fork) -> list[SignedIntention]:
    """Take the other branch of a fork into the log; return what leaves the log for it, in order.

    Cost: the log is read and written once; intentions get new numbers and records.

    Raises: UsageError: intentions of other authors depend on what would leave.
    """
    kept: list[SignedIntention] = []
    leaving: list[SignedIntention] = []
    gone: set[bytes] = set()
    for entry in log.scan(txn):
        signed = entry.signed
        intention = signed.intention
        is_first = signed.hash == fork.witnessed.hash
        if not is_first and gone.isdisjoint((intention.store_prev, *intention.deps)):
            kept.append(signed)
            continue
        if intention.author != fork.author:
            # Their chains would end here, and go on at no other node either.
            raise UsageError(
                OTHERS_DEPEND.format(author=intention.author.hex(), hash=signed.hash.hex())
            )
        gone.add(signed.hash)
        leaving.append(signed)
    waiting = [one.signed for one in log.floating(txn)]
    for table in LOG_TABLES:
        txn.delete_range(table)
    # In this order: the branch that is witnessed first is the one that stays.
    log.ingest(txn, [*kept, *waiting], bounded=False)
    log.ingest(txn, leaving, bounded=False)
    return leaving
