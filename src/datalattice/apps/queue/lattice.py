"""Lattices of the queue: one partition, a topic of partitions, topics by name.

A partition has one writer, so its states form a chain and the greater end offset is the newer
state. If two writers fork the log, the log with the greater end wins; of equal ends, the one with
the greater record hash at the last differing offset. The merge reports the fork.

Source: CAD040; docs/queue.md "State", "What foreigners may send", "Merge", "Topics", "Owners";
    docs/design/forks.md "The order"; docs/design/decisions.md "D2", "D-Q2", "D10", "D4", "D9";
    docs/lattices.md "Keys and paths", "Standard root"; CAD024 "Root layout".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.queue.metadata import (
    EMPTY_METADATA,
    Metadata,
    is_metadata,
    latest_of_metadata,
    merge_metadata,
    metadata_from,
    same_metadata,
    write_metadata,
)
from datalattice.apps.queue.state import (
    ZERO_STATE,
    QueueState,
    is_foreign_state,
    read_state,
    same_state,
    write_state,
)
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Value,
    Work,
    same,
    value_hash,
    vector_fork_offset,
    vector_last_difference,
    vector_overlap_differences,
)
from datalattice.lattice import (
    EMPTY_CONTEXT,
    NO_LATEST,
    OTHER,
    OWN,
    UNTIMED,
    Element,
    EntryDropped,
    EntryOrder,
    Latest,
    Lattice,
    MapLattice,
    MergeContext,
    MetadataUnstamped,
    OwnerLattice,
    QueueForked,
    Walk,
    below,
    contrast,
    element,
    malformed,
    number_tail,
    present,
    register_section,
    step_of,
    wider,
)
from datalattice.limits import FAN_OUT, MERGE_RECORDS_MAX

COMPARED_ALIGNED_MAX: Final = 65_536
COMPARED_MAX: Final = 4_096
"""Most records by which two logs with different starts are compared.

Where the starts are a multiple of 16 apart, equal leaves are skipped unread.
"""

QUEUE_SECTION: Final = Keyword("queue")
TOPIC_PARTITIONS_KEY: Final = Keyword("partitions")
TOPIC_META_KEY: Final = Keyword("meta")
_TOPIC_KEYS: Final = {key.name: key for key in (TOPIC_PARTITIONS_KEY, TOPIC_META_KEY)}


class QueueLattice(Lattice):
    """One partition: a merge takes the log with the greater end, cut at the greater start."""

    def zero(self) -> Value:
        """Return the empty queue `[[] {} 0 0]`."""
        return ZERO_STATE

    def check_foreign(self, value: Value) -> bool:
        """Return whether `value` has the shape of a queue state."""
        return is_foreign_state(value)

    def has_order(self) -> bool:
        """Return True."""
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Order two states by time, end and start, then metadata, then the last differing record.

        Records are compared only if everything else is equal.
        Cost:   proportional to the metadata and records that differ.
        """
        mine, theirs = _sound_state(own), _sound_state(other)
        found = contrast(_reach_element(own, mine), _reach_element(other, theirs))
        empty = EMPTY_METADATA
        metadata = latest_of_metadata(
            empty if mine is None else mine.meta, empty if theirs is None else theirs.meta, walk
        )
        found = wider(found, metadata)
        if found != NO_LATEST or mine is None or theirs is None:
            return found
        at = vector_last_difference(mine.entries, theirs.entries, walk.work)
        if at is None:
            return NO_LATEST
        offset = number_tail(mine.start + at)
        return contrast(
            element(UNTIMED, offset + value_hash(mine.entries[at])),
            element(UNTIMED, offset + value_hash(theirs.entries[at])),
        )

    def child(self, key: Value) -> Lattice | None:
        """Return None: a queue has no child lattices."""
        return None

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the state with the greater start, time and end; an operand itself if equal.

        Shapes: own, other: None or a queue state.
        Cost:   proportional to the parts of the logs that differ. If the starts differ, only the
                last common records are compared: 65,536 if the starts are a multiple of 16 apart,
                otherwise 4,096. A cut at other than a multiple of 16 rewrites the remaining
                records.
        Raises: MissingData: an entry to compare or to cut at is not in the store.
        """
        if other is None or own is other:
            return own
        if not self.accepts(other, context):
            return ZERO_STATE if own is None else own  # "own nil: other if valid, else zero"
        if own is None:
            return other
        if same(own, other):  # "Equal: own"
            return own
        a, b = read_state(own), read_state(other)
        merged = _join(a, b, context)
        # A small delta from a peer must not make this node rewrite a log of any size.
        if merged is None:
            context.report(EntryDropped(context.path))
            return own
        is_own, is_other = same_state(merged, a), same_state(merged, b)
        if is_own and is_other:  # two encodings of one state, e.g. nil for zero
            return own if _spelling(own) >= _spelling(other) else other
        if is_own:
            return own
        return other if is_other else write_state(merged)


def _join(a: QueueState, b: QueueState, context: MergeContext) -> QueueState | None:
    """Return the join of two states; None if it would rewrite too many records."""
    start = max(a.start, b.start)  # step 1: "start = max(own.start, other.start)"
    winner = _longer(a, b, start, context)
    entries = winner.entries
    if winner.start < start:
        # "A merge that would have to cut a log and keep more records than that is not made"
        # (docs/queue.md "Merge").
        if winner.end - start > MERGE_RECORDS_MAX:
            return None
        # Step 4: "drop start - its own start leading entries"
        entries = entries.drop(min(start - winner.start, len(entries)), context.work)
    meta = _join_metadata(a.meta, b.meta, context)
    # Step 2: the greater time; own's further elements stay uninterpreted.
    return QueueState(entries, meta, max(a.stamp_ms, b.stamp_ms), start, a.extra)


def _longer(a: QueueState, b: QueueState, start: int, context: MergeContext) -> QueueState:
    """Return the state with the winning log; report the first offset at which the logs differ.

    "The greater (end, record hash at the last offset where they differ), cut at the greater start."
    """
    # Both logs are cut at `start`; one that ends before it is empty.
    own_end, other_end = max(a.end, start), max(b.end, start)
    winner = b if other_end > own_end else a
    count = min(own_end, other_end) - start
    found = _differences(a, b, start, count, context.work) if count > 0 else None
    if found is None:
        # If the logs are equal, prefer the one that begins at `start`: it needs no cut.
        return b if own_end == other_end and b.start == start else winner
    first, last = found
    if own_end == other_end:
        mine, theirs = a.entries[last - a.start], b.entries[last - b.start]
        # "the greater value hash": own-wins would depend on the order of merges.
        winner = a if value_hash(mine) > value_hash(theirs) else b
    lost = OTHER if winner is a else OWN
    lost_end = b.end if winner is a else a.end
    # The receiver of this report keeps the lost branch as evidence.
    context.report(QueueForked(context.path, first, lost, lost_end))
    return winner


def _differences(
    a: QueueState, b: QueueState, start: int, count: int, work: Work | None
) -> tuple[int, int] | None:
    """Return the first and last offset at which `count` records from `start` on differ, or None.

    Logs with different starts share no tree nodes, so only their last common records are compared:
    a fork of two writers usually continues to the end.
    """
    if a.start == b.start:
        first = vector_fork_offset(a.entries, b.entries, work)
        if first is None:
            return None
        last = vector_last_difference(a.entries, b.entries, work)
        assert last is not None
        return start + first, start + last
    aligned = (a.start - b.start) % FAN_OUT == 0  # the trees share leaves only at multiples of 16
    compared = min(count, COMPARED_ALIGNED_MAX if aligned else COMPARED_MAX)
    start += count - compared
    skips = start - a.start, start - b.start
    found = list(
        vector_overlap_differences(a.entries, skips[0], b.entries, skips[1], compared, work)
    )
    return (start + found[0], start + found[-1]) if found else None


def _join_metadata(own: Metadata, other: Metadata, context: MergeContext) -> Metadata:
    """Return the join of metadata; if the context prefers own, own's unstamped values stay."""
    if context.prefer != OWN:
        return merge_metadata(own, other, work=context.work)
    unstamped: list[Value] = []
    merged = merge_metadata(own, other, unstamped, context.work)
    for key in unstamped:
        context.report(MetadataUnstamped((*context.path, key)))
    return merged


def _spelling(state: Value) -> tuple[bool, bytes]:
    """Return the rank of an encoding of a state: the normal form ranks lowest, others by hash.

    The greater rank is kept, so the result does not depend on the order of merges.
    """
    return (not same(state, write_state(read_state(state))), value_hash(state))


def _sound_state(value: Value) -> QueueState | None:
    return read_state(value) if is_foreign_state(value) else None


def _reach_element(value: Value, state: QueueState | None) -> Element | None:
    if value is None:
        return None
    if state is None:
        return malformed(value)
    return element(state.stamp_ms, number_tail(state.end) + number_tail(state.start))


class _TopicOrder(EntryOrder):
    """The order of a topic's entries, except its metadata."""

    def __init__(self, topic: TopicLattice) -> None:
        super().__init__()
        self._topic = topic

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Compare one entry of a topic; names other than the topic's keys are malformed."""
        name = self._topic.resolve_key(key)
        if name is TOPIC_PARTITIONS_KEY:
            child = self._topic.child(name)
            assert child is not None
            return child.latest(own, other, walk)
        is_meta = name is TOPIC_META_KEY
        return contrast(
            malformed(own) if own_present and not (is_meta and is_metadata(own)) else None,
            malformed(other) if other_present and not (is_meta and is_metadata(other)) else None,
        )


class TopicLattice(Lattice):
    """A topic: partitions by id, and metadata."""

    def __init__(self) -> None:
        self._partitions = MapLattice(QueueLattice())
        self._order = _TopicOrder(self)

    def has_order(self) -> bool:
        """Return True."""
        return True

    def within(self) -> tuple[Lattice, ...]:
        """Return the lattice of the partitions."""
        return (self._partitions,)

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the newest write of each topic that the other lacks.

        Cost:   proportional to the partitions and metadata keys that differ.
        """
        mine = own if isinstance(own, Index) else None
        theirs = other if isinstance(other, Index) else None
        found = contrast(present(own, mine is not None), present(other, theirs is not None))
        found = wider(found, self._order.of_index(mine, theirs, walk))
        metadata = latest_of_metadata(read_topic_meta(mine), read_topic_meta(theirs), walk)
        return wider(found, below(step_of(TOPIC_META_KEY), metadata))

    def zero(self) -> Value:
        """Return the empty Index."""
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        """Return whether `value` is an Index."""
        return isinstance(value, Index)

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of the partitions for `:partitions` or its String; otherwise None."""
        return self._partitions if self.resolve_key(key) is TOPIC_PARTITIONS_KEY else None

    def resolve_key(self, key: Value) -> Value:
        """Return the topic's Keyword named by `key`, a Keyword or String; None for other keys."""
        name = key.name if isinstance(key, Keyword) else key
        return _TOPIC_KEYS.get(name) if isinstance(name, str) else None

    def canonical_key(self, key: Value) -> Value:
        """Return the topic's Keyword named by `key`; an unknown key unchanged."""
        found = self.resolve_key(key)
        return key if found is None else found

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Merge partitions and metadata; keep unknown keys of own, drop those of other.

        Shapes: own, other: None or an Index of the two topic keys.
        Cost:   proportional to the partitions and metadata keys that differ.
        """
        if other is None or own is other:
            return own
        base = own if isinstance(own, Index) else EMPTY_INDEX
        if not self.accepts(other, context):
            return base if own is None else own
        assert isinstance(other, Index)
        if same(own, other):
            return own
        merged = self._merge_partitions(base, other, context)
        merged = _merge_meta(merged, base, other, context)
        # An operand itself, so that a replica that only follows "keeps the leader's signature"
        # (docs/queue.md "Merge").
        if same(merged, other):
            return other
        return own if own is not None and same(merged, base) else merged

    def _merge_partitions(self, base: Index, other: Index, context: MergeContext) -> Index:
        if TOPIC_PARTITIONS_KEY not in other:
            return base
        theirs = other.get(TOPIC_PARTITIONS_KEY)
        inner = context.child(TOPIC_PARTITIONS_KEY)
        # "fail closed": the partitions alone are dropped, not the topic.
        if not isinstance(theirs, Map):
            context.report(EntryDropped(inner.path))
            return base
        ours = base.get(TOPIC_PARTITIONS_KEY)
        mine = ours if isinstance(ours, Map) else EMPTY_MAP
        partitions = self._partitions.merge(mine, theirs, inner)
        return base if partitions is ours else base.put(TOPIC_PARTITIONS_KEY, partitions)


def read_topic_meta(topic: Value) -> Metadata:
    """Return the metadata of a topic; absent or of another type, it reads as empty."""
    return metadata_from(topic.get(TOPIC_META_KEY)) if isinstance(topic, Index) else EMPTY_METADATA


def write_topic_meta(topic: Index, meta: Metadata) -> Index:
    """Return `topic` with this metadata; `topic` itself if nothing changes."""
    written = write_metadata(meta)
    if TOPIC_META_KEY not in topic and not written:
        return topic
    return topic if same(topic.get(TOPIC_META_KEY), written) else topic.put(TOPIC_META_KEY, written)


def _merge_meta(merged: Index, own: Index, other: Index, context: MergeContext) -> Index:
    if TOPIC_META_KEY not in other:
        return merged
    theirs = other.get(TOPIC_META_KEY)
    # "stamps inside it that are no Map of Integers, drop the metadata of other"
    if not is_metadata(theirs):
        context.report(EntryDropped(context.child(TOPIC_META_KEY).path))
        return merged
    inner = context.child(TOPIC_META_KEY)
    joined = _join_metadata(read_topic_meta(own), metadata_from(theirs), inner)
    # Either may already encode the join, with an empty Map of stamps that merges do not write.
    held = [own.get(TOPIC_META_KEY), theirs] if TOPIC_META_KEY in own else [theirs]
    equal = [m for m in held if is_metadata(m) and same_metadata(metadata_from(m), joined)]
    chosen = max(equal, key=_meta_spelling) if equal else write_metadata(joined)
    return (
        merged
        if TOPIC_META_KEY in own and same(own.get(TOPIC_META_KEY), chosen)
        else merged.put(TOPIC_META_KEY, chosen)
    )


def _meta_spelling(meta: Value) -> tuple[bool, bytes]:
    return (not same(meta, write_metadata(metadata_from(meta))), value_hash(meta))


def topic_map_lattice() -> Lattice:
    """Return the lattice of topics by name."""
    return MapLattice(TopicLattice())


def queue_section() -> Lattice:
    """Return the lattice of the root's `:queue` section: each owner's signed topics."""
    return OwnerLattice(topic_map_lattice())


register_section(QUEUE_SECTION, queue_section())  # at import: a root merges every section it knows
