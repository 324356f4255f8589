"""Handlers of the actions on topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from datalattice import actions
from datalattice.apps.queue import Bookmark, Follow, Queue, QueueEntry, Topic
from datalattice.cells import Value, Vector, value_hash
from datalattice.errors import AlreadyExists, DataLoss, NoSuchPath, StaleToken, UsageError
from datalattice.service.registry import ServiceCall, Streamed, handles, page
from datalattice.service.resuming import not_a_position, read_token, stream_name


@handles(actions.ListTopics)
def list_topics(call: ServiceCall, request: actions.ListTopics) -> actions.TopicList:
    """List the topics of an owner."""
    owner = call.owner(request.owner)
    found = []
    for name in call.node.topics(owner=owner):
        # Requests name topics by text; a topic with another name is read with `lattice.get`.
        if isinstance(name, str):
            topic = call.node.topic(name, owner=owner)
            spans = tuple(_span(topic.partition(id)) for id in topic.partitions())
            found.append(actions.TopicInfo(topic=name, owner=owner, partitions=spans))
    return actions.TopicList(topics=tuple(found))


def _span(queue: Queue) -> actions.PartitionSpan:
    state = queue.state()
    return actions.PartitionSpan(partition=queue.id.partition, start=state.start, end=state.end)


@handles(actions.CreateTopic)
def create_topic(call: ServiceCall, request: actions.CreateTopic) -> actions.Empty:
    """Create a topic with a number of partitions."""
    topic = _topic(call, request.topic, request.owner)
    with call.node.batch():  # one edit: another writer may create the topic at the same time
        held = topic.num_partitions
        # Fixed, as it decides the partition of a key. A topic without a number but with partitions
        # was made by appending to them.
        if held not in (0, request.partitions) or (not held and topic.partitions()):
            raise AlreadyExists(
                f"topic {request.topic} exists with {held or 'no fixed number of'} partitions; the "
                f"number cannot become {request.partitions}"
            )
        topic.set_num_partitions(request.partitions)
    return actions.Empty()


def _topic(call: ServiceCall, name: str, owner: str) -> Topic:
    if not name:
        raise UsageError("topic is empty; a topic needs a name")
    return call.node.topic(name, owner=call.owner(owner))


@handles(actions.OfferRecords)
def offer(call: ServiceCall, request: actions.OfferRecords) -> actions.OfferedRecords:
    """Append records."""
    count = len(request.values)
    if not count:
        raise UsageError("values: one or more, got none")
    made = _topic(call, request.topic, request.owner).offer_many(
        request.values,
        keys=None if request.key is None else [request.key] * count,
        headers=None if request.headers is None else [request.headers] * count,
        partition=request.partition,
    )
    return actions.OfferedRecords(
        spans=tuple(
            actions.PartitionSpan(partition=id, start=span.start, end=span.stop)
            for id, span in made.items()
        )
    )


@handles(actions.ReadRecords)
def read_records(call: ServiceCall, request: actions.ReadRecords) -> actions.RecordPage:
    """Return records of one partition."""
    queue = _held(call, request.topic, request.partition, request.owner)
    state = queue.state()
    # A negative start before the first record begins at the first one.
    start = request.start if request.start >= 0 else max(state.start, state.end + request.start)
    stop = start + page(request.count, actions.PAGE_MAX)
    return actions.RecordPage(
        records=tuple(_record(entry) for entry in queue.entries(start, stop)),
        start=state.start,
        end=state.end,
    )


def _held(call: ServiceCall, name: str, partition: Value, owner: str) -> Queue:
    """Return a partition, which must exist."""
    topic = _topic(call, name, owner)
    id = 0 if partition is None else partition
    # A partition within the topic's number exists before its first record.
    held = list(dict.fromkeys([*range(topic.num_partitions), *topic.partitions()]))
    if id not in held:
        known = ", ".join(map(repr, held)) or "none"
        raise NoSuchPath(f"topic {name} has no partition {id!r}; it has: {known}")
    return topic.partition(id)


def _record(entry: QueueEntry[Value]) -> actions.QueueRecord:
    return actions.QueueRecord(
        partition=entry.partition,
        offset=entry.offset,
        time_ms=entry.time_ms,
        key=entry.key,
        value=entry.value,
        headers=entry.headers or None,
    )


@handles(actions.FollowTopic)
def follow(call: ServiceCall, request: actions.FollowTopic) -> Streamed[actions.QueueRecord]:
    """Return the records of a topic as they are appended."""
    start: str | int = request.start
    if start not in ("start", "end"):
        try:
            start = int(start)
        except ValueError:
            raise UsageError(f'start: "start", "end" or an offset, got {start!r:.80}') from None
    name = stream_name(request.action.name, call.owner(request.owner), request.topic)
    topic = _topic(call, request.topic, request.owner)
    if not request.resume:
        stream = topic.follow(start)  # type: ignore[arg-type]
    else:
        marks = _marks(read_token(request.resume, name))
        try:
            stream = topic.follow(marks)
        except DataLoss as error:
            raise StaleToken(f"{error}; a fresh start begins {_starts(topic)}") from error
    return Streamed(
        stream,
        _record,
        name=name,
        positions=_RecordPositions(topic, stream),
        is_resumed=bool(request.resume),
    )


class _RecordPositions:
    """Positions: for each partition, the next offset and the hash of the record before it."""

    def __init__(self, topic: Topic, stream: Follow[Value]) -> None:
        self._topic = topic
        self._marks = {id.partition: mark for id, mark in stream.begun.items()}

    def now(self) -> Value:
        return Vector.of(
            Vector.of([partition, mark.next, mark.before])
            for partition, mark in self._marks.items()
        )

    def after(self, items: Sequence[QueueEntry[Value]]) -> Iterator[Value]:
        for entry in items:
            self._marks[entry.partition] = Bookmark(entry.offset + 1, value_hash(entry.cell))
            yield self.now()

    def fresh_start(self) -> str:
        return _starts(self._topic)


def _marks(position: Value) -> dict[Value, Bookmark]:
    """Return the position of each partition. Raises: UsageError."""
    if not isinstance(position, Vector):
        raise not_a_position(position)
    found = {}
    for one in position:
        parts = list(one) if isinstance(one, Vector) and len(one) == 3 else [None, None, None]
        partition, offset, before = parts
        # `type`: True is an int to Python. A token is a caller's text: every part is checked.
        if type(offset) is not int or offset < 0 or not isinstance(before, bytes | None):
            raise not_a_position(position)
        found[partition] = Bookmark(offset, before)
    return found


def _starts(topic: Topic) -> str:
    """Return the first offsets of 10 partitions at most, as the end of a sentence."""
    ids = list(islice(topic.partitions(), 10))
    shown = [f"offset {topic.partition(id).start_offset()} of partition {id!r}" for id in ids]
    return f"at {', '.join(shown) or 'the first record'}"


@handles(actions.TruncateTopic)
def truncate(call: ServiceCall, request: actions.TruncateTopic) -> actions.Truncated:
    """Remove the records before an offset."""
    queue = _held(call, request.topic, request.partition, request.owner)
    return actions.Truncated(count=queue.truncate(request.start))
