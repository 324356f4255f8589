"""Queue: append-only partitioned logs, one writer per partition, replicated by merge.

A partition is a `Queue`, a `Topic` holds partitions by id, and a `Topics` holds topics by name;
each is a thin object over one cursor. `LatticeMQ` is the seed's name of `Topics`. Importing this
package registers the root section `:queue`, with the path `:queue, owner, :value, topic,
:partitions, partition id`.
"""

from __future__ import annotations

from datalattice.apps.queue.concurrent import ConcurrentTopic
from datalattice.apps.queue.consumer import CONSUMERS, Consumer
from datalattice.apps.queue.entries import (
    NewRecords,
    entry_headers,
    entry_key,
    entry_stamp_ms,
    entry_value,
    is_entry,
    make_entry,
)
from datalattice.apps.queue.feed import Feed
from datalattice.apps.queue.following import Bookmark, Follow, PartitionId, QueueEntry
from datalattice.apps.queue.forks import LogBranch, append_branch, is_appended
from datalattice.apps.queue.lattice import (
    QUEUE_SECTION,
    QueueLattice,
    TopicLattice,
    topic_map_lattice,
)
from datalattice.apps.queue.queue import Queue
from datalattice.apps.queue.state import QueueState, read_state
from datalattice.apps.queue.topic import (
    PARTITIONS_MAX,
    Topic,
    Topics,
    device_partition,
    partition_of,
)

LatticeMQ = Topics

__all__ = [
    "CONSUMERS",
    "PARTITIONS_MAX",
    "QUEUE_SECTION",
    "Bookmark",
    "ConcurrentTopic",
    "Consumer",
    "Feed",
    "Follow",
    "LatticeMQ",
    "LogBranch",
    "NewRecords",
    "PartitionId",
    "Queue",
    "QueueEntry",
    "QueueLattice",
    "QueueState",
    "Topic",
    "TopicLattice",
    "Topics",
    "append_branch",
    "device_partition",
    "entry_headers",
    "entry_key",
    "entry_stamp_ms",
    "entry_value",
    "is_appended",
    "is_entry",
    "make_entry",
    "partition_of",
    "read_state",
    "topic_map_lattice",
]
