"""Feed: the copies of one topic in this folder, of all owners or of some; read only.

Source: docs/queue.md "Feeds"; docs/design/front-door.md "Handles".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from datalattice.apps.binding import Binding, Owner, handle_text, owner_cell
from datalattice.apps.queue.consumer import Followable, Reach
from datalattice.apps.queue.following import OnLoss, PartitionCursors, PartitionSet, changed_keys
from datalattice.apps.queue.lattice import QUEUE_SECTION
from datalattice.apps.queue.queue import checked_topic
from datalattice.apps.queue.topic import Topic
from datalattice.apps.valuetypes import T, ValueType, value_type
from datalattice.cells import Value, counted, render
from datalattice.clock import Clock, SystemClock
from datalattice.cursors import LatticeCursor


class Feed(Followable[T]):
    """A topic of several owners below one root; iteration yields their values by time.

    Entries of one partition come in order, those of several by time among the present ones: none
    waits for an owner whose data arrives late. Owners and partitions that appear while a feed is
    followed are read from their start.
    """

    __slots__ = ("_binding", "_clock", "_name", "_owners", "_root", "_type")

    def __init__(
        self,
        root: LatticeCursor,
        name: object,
        owners: Iterable[object] | None = None,
        *,
        of: type[T] | None = None,
        clock: Clock | None = None,
        binding: Binding | None = None,
    ) -> None:
        """Make a feed of the topic `name`; `owners` are `Owner`s or owner cells, None means all."""
        self._root: Final = root
        self._name: Final = checked_topic(name)
        self._owners: Final = None if owners is None else [owner_cell(one) for one in owners]
        self._type: Final[ValueType[T]] = value_type(of)
        self._clock = clock or SystemClock()
        self._binding = binding

    @property
    def name(self) -> Value:
        """The name of the topic."""
        return self._name

    def owners(self) -> list[Owner]:
        """Return the owners whose copies of the topic are kept here."""
        section = self._root.get(QUEUE_SECTION)
        # "A feed reads all owners' copies of one topic that are kept here, or those of some owners"
        # (docs/queue.md "Feeds").
        wanted = [key for key in changed_keys(None, section) if self._is_wanted(key)]
        # An owner without this topic is left out.
        return [self._named(key) for key in wanted if self[key].partitions()]

    def _is_wanted(self, owner: Value) -> bool:
        return self._owners is None or owner in self._owners

    def __getitem__(self, owner: object) -> Topic[T]:
        """Return the topic of one owner."""
        of, clock, binding = self._type.of, self._clock, self._binding
        # A feed reads through handles of topics, which verify the owner's signature.
        return Topic.at(self._root, owner, self._name, of=of, clock=clock, binding=binding)

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self.follow(wait=False))

    def _reach(self) -> Reach:
        return self._name, None, None

    def _named(self, key: Value) -> Owner:
        return Owner(key) if self._binding is None else self._binding.owner(key)

    def _changed(self, before: Value, now: Value) -> PartitionCursors:
        # Only owners whose value in the section changed are read.
        for owner in changed_keys(before, now):
            if self._is_wanted(owner):
                topic = self[owner]
                yield from topic.changed(None, topic.cursor.get())

    def _partitions(self, on_loss: OnLoss) -> PartitionSet[T]:
        root = self._root.path(QUEUE_SECTION)
        return PartitionSet(root, self._changed, self._binding, on_loss, self._type)

    def __repr__(self) -> str:
        """Return the name and the number of owners; never raises."""
        return handle_text("Feed", render(self._name), None, self._binding, self._summary)

    def _summary(self) -> str:
        return counted(len(self.owners()), "owner")
