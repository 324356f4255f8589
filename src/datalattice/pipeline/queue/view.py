"""View: find the queue partitions in the root of a store, and places in their logs by time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from datalattice.apps.queue import QUEUE_SECTION, entry_stamp_ms, read_state
from datalattice.cells import (
    Index,
    Keyword,
    Loader,
    Map,
    Signed,
    Value,
    Vector,
    decode,
    encode,
    to_text,
)
from datalattice.errors import BadFormat, BadSignature
from datalattice.pipeline.options import check_there
from datalattice.pipeline.queue.options import QueueOptions
from datalattice.pipeline.queue.plan import Log, Offsets, PartitionName, View

_PARTITIONS = Keyword("partitions")


def read_view(root: Value, options: QueueOptions, *, must_exist: bool) -> View:
    """Return the partitions in `root` that the options ask for.

    must_exist: an owner or topic that the options name and the root does not have is an error;
        otherwise it may come later.

    Shapes: root: nil or the Index of a lattice's sections.
    Cost:   one signature check for each owner; reads nothing of the logs.
    Raises: BadSignature: what is under an owner is not signed by the key it names. BadFormat: two
            different names have the same text. UsageError: see must_exist. MissingData.
    """
    owners: set[str] = set()
    topics: set[str] = set()
    view: dict[PartitionName, Log] = {}
    for owner, signed in _owners(root):
        owners.add(owner)
        if options.owners and owner not in options.owners:
            continue
        if not signed.verify():
            raise BadSignature(f"the queues of owner {owner} are not signed by their key")
        for topic_cell, topic_state in _entries(signed.value):
            topic = name_text(topic_cell)
            topics.add(topic)
            if options.selects(owner, topic):
                for partition, log in _logs(topic_state):
                    _add(view, PartitionName(owner, topic, partition), log)
    if must_exist:
        check_there("owner", options.owners, owners)
        check_there("topic", options.topics, topics)
    return view


def _owners(root: Value) -> Iterator[tuple[str, Signed]]:
    section = root.get(QUEUE_SECTION) if isinstance(root, Index) else None
    for owner, signed in _entries(section):
        if isinstance(signed, Signed):
            yield name_text(owner), signed


def _logs(topic_state: Value) -> Iterator[tuple[str, Log]]:
    partitions = topic_state.get(_PARTITIONS) if isinstance(topic_state, Index) else None
    for partition, value in _entries(partitions):
        state = read_state(value)
        yield to_text(partition), Log(state.start, state.end, encode(state.entries))


def _entries(value: Value) -> Iterable[tuple[Value, Value]]:
    return value.entries() if isinstance(value, Map) else ()


def _add(view: dict[PartitionName, Log], name: PartitionName, log: Log) -> None:
    if name in view:
        raise BadFormat(f"two queues have names that read the same: {name}")
    view[name] = log


def name_text(name: Value) -> str:
    """Return the text of an owner or topic: a String as it is, everything else as it prints."""
    return name if isinstance(name, str) else to_text(name)


def offsets_since(view: View, stamp_ms: int, loader: Loader) -> Offsets:
    """Return for each partition the offset of its first record of that time or later.

    Where there is none, the end. Found by halving: exact where times do not go back along the log.

    Units: stamp_ms: Unix milliseconds.
    Cost:  log2 of the records' number of look-ups in each partition.
    """
    return {name: _offset_since(log, stamp_ms, loader) for name, log in view.items()}


def _offset_since(log: Log, stamp_ms: int, loader: Loader) -> int:
    entries = decode(log.entries, loader)
    if not isinstance(entries, Vector):
        raise BadFormat("the entries of a log are a vector")
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        stamp = entry_stamp_ms(entries[middle])
        if stamp is not None and stamp < stamp_ms:
            low = middle + 1
        else:
            high = middle
    return log.start + low
