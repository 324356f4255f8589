"""Actions on topics: logs that their owner appends to and that others read."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import OWN_NAME, PAGE, RESUME_NUMBER, Empty
from datalattice.actions.formats import CELL_FORMAT, KEY_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message

_TOPIC = "lattice/queue/{owner}/{topic}"


class PartitionSpan(Message, name="datalattice.v1.PartitionSpan"):
    """The offsets that a partition holds: `start` to `end` - 1."""

    partition: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    start: Annotated[int, Field(2, "uint64")] = 0
    end: Annotated[int, Field(3, "uint64")] = 0


class TopicInfo(Message, name="datalattice.v1.TopicInfo"):
    """A topic: its name, its owner, its partitions."""

    topic: Annotated[str, Field(1)] = ""
    owner: Annotated[bytes, Field(2, codec=KEY_FORMAT)] = b""
    partitions: Annotated[tuple[PartitionSpan, ...], Field(3)] = ()


class TopicList(Message, name="datalattice.v1.TopicList"):
    """Topics, in the order of their names."""

    topics: Annotated[tuple[TopicInfo, ...], Field(1)] = ()


@action(
    "queue.topics", ActionKind.QUERY, "r", "lattice/queue/{owner}", GET("/queues"), is_tool=True
)
class ListTopics(ActionRequest[TopicList], name="datalattice.v1.ListTopicsRequest"):
    """List the topics of an owner, and the offsets that each partition holds.

    A partition holds the records from `start` to `end` - 1.
    """

    owner: Annotated[str, Field(1)] = OWN_NAME


# EFFECT: the same number of partitions again changes nothing, and another one is refused.
@action("queue.create", ActionKind.EFFECT, "w", _TOPIC, PUT("/queues/{topic}", 201))
class CreateTopic(ActionRequest[Empty], name="datalattice.v1.CreateTopicRequest"):
    """Create a topic with a fixed number of partitions.

    Raises: AlreadyExists: the topic exists with another number.
    """

    topic: Annotated[str, Field(1)] = ""
    partitions: Annotated[int, Field(2, "uint32")] = 1
    owner: Annotated[str, Field(3)] = OWN_NAME


class OfferedRecords(Message, name="datalattice.v1.Offered"):
    """The offsets of the offered records in each partition."""

    spans: Annotated[tuple[PartitionSpan, ...], Field(1)] = ()


# ONCE: repeated, it would append the records twice.
@action(
    "queue.offer",
    ActionKind.ONCE,
    "w",
    _TOPIC,
    POST("/queues/{topic}/records", 201, "values"),
    is_tool=True,
)
class OfferRecords(ActionRequest[OfferedRecords], name="datalattice.v1.OfferRecordsRequest"):
    """Append records to a topic of an owner whose key the folder has.

    They are signed and on disk when it returns. Without a partition, the key selects one; all
    records of the request have the same key and headers.
    """

    topic: Annotated[str, Field(1)] = ""
    values: Annotated[tuple[Value, ...], Field(2, codec=CELL_FORMAT)] = ()
    partition: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None
    key: Annotated[Value, Field(4, codec=CELL_FORMAT)] = None
    headers: Annotated[Value, Field(5, codec=CELL_FORMAT)] = None
    owner: Annotated[str, Field(6)] = OWN_NAME


class QueueRecord(Message, name="datalattice.v1.QueueRecord"):
    """A record: its partition, offset, time, key, value and headers. resume: in a stream."""

    partition: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    offset: Annotated[int, Field(2, "uint64")] = 0
    time_ms: Annotated[int, Field(3, "int64")] = 0
    key: Annotated[Value, Field(4, codec=CELL_FORMAT)] = None
    value: Annotated[Value, Field(5, codec=CELL_FORMAT)] = None
    headers: Annotated[Value, Field(6, codec=CELL_FORMAT)] = None
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


class RecordPage(Message, name="datalattice.v1.RecordPage"):
    """Records of one partition in order, and the offsets that the partition holds."""

    records: Annotated[tuple[QueueRecord, ...], Field(1)] = ()
    start: Annotated[int, Field(2, "uint64")] = 0
    end: Annotated[int, Field(3, "uint64")] = 0


# Pages by offset: offsets are never used twice, so no cursor has to be kept for a caller.
@action("queue.range", ActionKind.QUERY, "r", _TOPIC, GET("/queues/{topic}/records"), is_tool=True)
class ReadRecords(ActionRequest[RecordPage], name="datalattice.v1.ReadRecordsRequest"):
    """Return records of one partition in order, `count` at most, from the offset `start` on.

    A negative start counts from the end: -1 is the last record. partition: 0 by default. For the
    next page, ask again with the last offset + 1 as `start`. Raises: NoSuchPath.
    """

    topic: Annotated[str, Field(1)] = ""
    partition: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    start: Annotated[int, Field(3, "int64")] = 0
    count: Annotated[int, Field(4, "uint32")] = PAGE
    owner: Annotated[str, Field(5)] = OWN_NAME


# Not a tool: a language model asks for pages, and cannot wait on a stream.
@action("queue.follow", ActionKind.STREAM, "r", _TOPIC, GET("/queues/{topic}/follow"))
class FollowTopic(ActionRequest[QueueRecord], name="datalattice.v1.FollowTopicRequest"):
    """Return the records of a topic from its start, its end or an offset on, and new ones at once.

    start: "start", "end", or an offset in a topic of one partition. resume: of the last record
    received; it replaces `start`. Raises: StaleToken: records behind it were truncated.
    """

    topic: Annotated[str, Field(1)] = ""
    start: Annotated[str, Field(2)] = "start"
    owner: Annotated[str, Field(3)] = OWN_NAME
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


class Truncated(Message, name="datalattice.v1.Truncated"):
    """The number of records that were removed."""

    count: Annotated[int, Field(1, "uint64")] = 0


# EFFECT: `start` is an offset and not a count, so a repeated request removes no more.
@action("queue.truncate", ActionKind.EFFECT, "w", _TOPIC, POST("/queues/{topic}/truncation"))
class TruncateTopic(ActionRequest[Truncated], name="datalattice.v1.TruncateTopicRequest"):
    """Remove the records of a partition before an offset, on every node that merges the change."""

    topic: Annotated[str, Field(1)] = ""
    start: Annotated[int, Field(2, "uint64")] = 0
    partition: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None
    owner: Annotated[str, Field(4)] = OWN_NAME
