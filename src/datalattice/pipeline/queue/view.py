"""Find the queue partitions in a root, and offsets in their logs by time.

Source: docs/spark.md "Offsets", "Errors".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from datalattice.apps.queue import QUEUE_SECTION, entry_stamp_ms, read_state
from datalattice.arrow import name_text
from datalattice.cells import (
    EMPTY_MAP,
    Index,
    Keyword,
    Loader,
    Map,
    Signed,
    Value,
    Vector,
    decode,
    encode,
    from_text,
    to_cell,
    to_text,
)
from datalattice.errors import BadFormat, MissingData
from datalattice.limits import COUNT_MAX
from datalattice.pipeline.options import check_there
from datalattice.pipeline.queue.options import QueueOptions
from datalattice.pipeline.queue.plan import Offsets, PartitionLog, PartitionName, TopicLogs
from datalattice.pipeline.signatures import check_signed

_PARTITIONS = Keyword("partitions")


class _Owned(NamedTuple):
    """The queues of one owner; empty for owners that the options do not select."""

    owner: str
    topics: tuple[str, ...]
    logs: dict[PartitionName, PartitionLog]


class QueueViews:
    """Reads one root after another; an owner is read again only if its value changed."""

    def __init__(self, options: QueueOptions) -> None:
        self._options = options
        self._section = EMPTY_MAP
        self._owned: dict[bytes, _Owned] = {}

    def read(self, root: Value, *, must_exist: bool = False) -> TopicLogs:
        """Return the partitions in `root` that the options select.

        root: None or the Index of a lattice's sections.
        must_exist: raise if the root lacks an owner or topic that the options name; a stream waits
            for it instead.

        Cost:   one signature check for each owner that changed since the last root; no log is read.
                Topics that the options name are looked up, without reading the others.
        Raises: BadSignature: an owner's queues are not signed by their key. BadFormat: two
                different names have the same text. UsageError: see must_exist. MissingData.
        """
        found = root.get(QUEUE_SECTION) if isinstance(root, Index) else None
        section = found if isinstance(found, Map) else EMPTY_MAP
        try:
            owned = self._changed(self._owned, self._section, section)
        except MissingData:  # the section read before may have been collected
            owned = self._changed({}, EMPTY_MAP, section)
        view = _joined(owned.values())
        # In a batch an empty result would hide a misspelt name. A stream waits for the name.
        if must_exist:
            check_there("owner", self._options.owners, [one.owner for one in owned.values()])
            topics = {topic for one in owned.values() for topic in one.topics}
            if not topics.issuperset(self._options.topics):  # the error names what there is
                topics = {name for one in owned.values() for name in _topics(section, one.owner)}
            check_there("topic", self._options.topics, topics)
        self._section, self._owned = section, owned
        return view

    def _changed(self, owned: dict[bytes, _Owned], before: Map, after: Map) -> dict[bytes, _Owned]:
        made = dict(owned)
        for owner, _, _, _, signed in before.differences(after):
            name = encode(owner)
            # Every merge drops an owner's value that is not signed, so such an owner has no queues.
            if isinstance(signed, Signed):
                made[name] = self._owned_by(owner, signed)
            else:
                made.pop(name, None)
        return made

    def _owned_by(self, cell: Value, signed: Signed) -> _Owned:
        options = self._options
        owner = name_text(cell)
        # Decided before the signature check: an owner that is not selected may be invalid.
        if options.owners and owner not in options.owners:
            return _Owned(owner, (), {})
        check_signed(cell, signed, "queues")
        topics: list[str] = []
        logs: dict[PartitionName, PartitionLog] = {}
        held = signed.value if isinstance(signed.value, Map) else EMPTY_MAP
        # An owner may have a million topics: those that are named are looked up.
        found = _named(held, options.topics) if options.topics else held.entries()
        for topic_cell, topic_state in found:
            topic = name_text(topic_cell)
            topics.append(topic)
            for partition, log in _logs(topic_state):
                _add(logs, PartitionName(owner, topic, partition), log)
        return _Owned(owner, tuple(topics), logs)


def _named(held: Map, names: Iterable[str]) -> Iterator[tuple[Value, Value]]:
    """Yield the topics of a map that read as one of these names."""
    for name in names:
        # A name may be that of a String, or the printed form of another value.
        cells = [to_cell(name)]
        with suppress(BadFormat):  # most names are no printed form of another value
            cells.append(from_text(name))
        for cell in cells:
            state = held.get(cell)
            if state is not None and name_text(cell) == name:
                yield cell, state


def _topics(section: Map, owner: str) -> Iterator[str]:
    """Yield the names of all topics of an owner that the options select."""
    for cell, signed in section.entries():
        if name_text(cell) == owner and isinstance(signed, Signed):
            yield from (name_text(topic) for topic, _ in _entries(signed.value))


def read_view(root: Value, options: QueueOptions, *, must_exist: bool) -> TopicLogs:
    """Return the partitions in one root; arguments and errors are those of `QueueViews.read`."""
    return QueueViews(options).read(root, must_exist=must_exist)


def _joined(owned: Iterable[_Owned]) -> TopicLogs:
    view: dict[PartitionName, PartitionLog] = {}
    count = 0
    for one in owned:
        view.update(one.logs)
        count += len(one.logs)
        if len(view) != count:
            raise BadFormat(f"two owners of queues have names that read the same: {one.owner}")
    return view


def _logs(topic_state: Value) -> Iterator[tuple[str, PartitionLog]]:
    partitions = topic_state.get(_PARTITIONS) if isinstance(topic_state, Index) else None
    for partition, value in _entries(partitions):
        state = read_state(value)
        yield to_text(partition), PartitionLog(state.start, state.end, encode(state.entries))


def _entries(value: Value) -> Iterable[tuple[Value, Value]]:
    return value.entries() if isinstance(value, Map) else ()


def _add(view: dict[PartitionName, PartitionLog], name: PartitionName, log: PartitionLog) -> None:
    # Rows and positions name a partition by its text, so two with the same text are ambiguous.
    if name in view:
        raise BadFormat(f"two queues have names that read the same: {name}")
    if log.end - 1 > COUNT_MAX:  # does not fit into a BIGINT
        raise BadFormat(f"{name} has offsets up to {log.end - 1}; the greatest is {COUNT_MAX}")
    view[name] = log


def offsets_since(view: TopicLogs, stamp_ms: int, loader: Loader) -> Offsets:
    """Return for each partition the offset of its first record of that time or later.

    For a partition without such a record it is the end. The offset is found by bisection, so it is
    exact only if times ascend.

    Units: stamp_ms: Unix milliseconds.
    Cost:  log2(records) look-ups for each partition.
    """
    return {name: _offset_since(log, stamp_ms, loader) for name, log in view.items()}


def _offset_since(log: PartitionLog, stamp_ms: int, loader: Loader) -> int:
    entries = decode(log.entries, loader)
    if not isinstance(entries, Vector):
        raise BadFormat("the entries of a log are a vector")
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        stamp = entry_stamp_ms(entries[middle])
        # An entry without a time counts as later, so that no requested record is left out.
        if stamp is not None and stamp < stamp_ms:
            low = middle + 1
        else:
            high = middle
    return log.start + low
