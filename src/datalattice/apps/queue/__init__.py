"""Queue: append-only partitioned logs, one writer per partition, replicated by merge.

A partition is a `Queue`, a `Topic` holds partitions by id, and a `Topics` holds topics by name;
each is a thin object over one cursor. `LatticeMQ` is the seed's name of `Topics`. Importing this
package registers the root section `:queue`, with the path `:queue, owner, :value, topic,
:partitions, partition id`.
"""

from __future__ import annotations

from datalattice.apps.queue.concurrent import ConcurrentTopic as ConcurrentTopic
from datalattice.apps.queue.consumer import (
    CONSUMERS_DATABASE as CONSUMERS_DATABASE,
    Consumer as Consumer,
    Followable as Followable,
)
from datalattice.apps.queue.entries import (
    NewRecords as NewRecords,
    entry_headers as entry_headers,
    entry_key as entry_key,
    entry_stamp_ms as entry_stamp_ms,
    entry_value as entry_value,
    is_entry as is_entry,
    make_entry as make_entry,
)
from datalattice.apps.queue.feed import Feed as Feed
from datalattice.apps.queue.following import (
    Bookmark as Bookmark,
    Follow as Follow,
    PartitionId as PartitionId,
    QueueEntry as QueueEntry,
)
from datalattice.apps.queue.forks import (
    LogBranch as LogBranch,
    append_branch as append_branch,
    is_appended as is_appended,
)
from datalattice.apps.queue.lattice import (
    QUEUE_SECTION as QUEUE_SECTION,
    QueueLattice as QueueLattice,
    TopicLattice as TopicLattice,
    topic_map_lattice as topic_map_lattice,
)
from datalattice.apps.queue.queue import Queue as Queue
from datalattice.apps.queue.state import (
    QueueState as QueueState,
    held_offsets as held_offsets,
    read_state as read_state,
)
from datalattice.apps.queue.topic import (
    PARTITIONS_MAX as PARTITIONS_MAX,
    Topic as Topic,
    Topics as Topics,
    device_partition as device_partition,
    partition_of as partition_of,
)

LatticeMQ = Topics
