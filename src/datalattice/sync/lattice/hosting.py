"""Hosting: what this node leaves out of foreign values, and of its own root, by its policy.

It is a policy of one node and changes no lattice value: what is refused is cut off a foreign value
before anything of it is fetched. Whose data is refused is decided by `OwnerRules`, how much room an
owner has by `Quotas`.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from datalattice.cells import Index, Value, Work, arriving_names, same, to_text
from datalattice.errors import BadFormat
from datalattice.lattice import ValuePath, get_in
from datalattice.sync.lattice.policy import (
    OwnerRules,
    containers,
    owner_text,
    section_name,
    within,
    without,
)
from datalattice.sync.lattice.quotas import Quotas
from datalattice.sync.lattice.usage import OwnerSlot


class Hosting:
    """Decides which parts of foreign values one node takes. One thread uses it.

    known: the connections with wanted or allowed peers.
    """

    def __init__(self, rules: OwnerRules, quotas: Quotas, known: Collection[str]) -> None:
        self.rules: Final = rules
        self.quotas: Final = quotas
        self._known = known
        self._lattice = rules.lattice
        self._areas = rules.areas

    def cut(self, value: Value, root: Value, peer: str, work: Work | None = None) -> Value:
        """Return a foreign root without what is refused. What `root` has already may stay.

        Raises: MissingData: an owner's entry cannot be judged before its cell is here.
                WorkExceeded: `work` does not pay for finding the owners of its parts.
        """
        # A root of another type has no sections to cut; the merge decides what it takes of it.
        if not isinstance(value, Index):
            return value
        sections = self.rules.policy.sections
        # All sections that the policy does not name are cut, also those that are unknown here.
        if sections is not None:
            for key in [key for key, _ in value.entries()]:
                if to_text(key).removeprefix(":") not in sections:
                    value = value.remove(key)
        for path in within(self._areas.unsigned, value):
            section = section_name(path)
            # `from = 'known'` "accepts them from peers that were named only" (docs/node.md).
            sender = self.rules.policy.unsigned_of(section).sender
            is_known = peer in self._known
            is_over = not is_known and self.quotas.is_over(OwnerSlot(section, None))
            if sender == "none" or (sender == "known" and not is_known) or is_over:
                value = without(value, path[:-1], path[-1], self._lattice)
        if self.rules.refuse_any or self.quotas.over:
            for path, owner, _ in list(self._differing(root, value, work)):
                slot = OwnerSlot(section_name(path), owner)
                if self.rules.refuses(slot.section, owner) or self.quotas.is_over(slot):
                    value = without(value, path, owner, self._lattice)
        return value

    def cut_off(self, value: Value, root: Value, peer: str) -> list[str]:
        """Name what `cut` leaves out of a foreign root.

        Raises: MissingData: as `cut`.
        """
        left = self.cut(value, root, peer)
        if left is value:
            return []
        paths = [
            path
            for path in self._areas.unsigned
            if get_in(value, path) is not None and get_in(left, path) is None
        ]
        paths += [(*path, owner) for path, owner, _ in self._differing(left, value, None)]
        return [" ".join(map(owner_text, path)) for path in paths]

    def _differing(
        self, root: Value, other: Value, work: Work | None
    ) -> Iterator[tuple[ValuePath, Value, list[bytes]]]:
        """Yield (path, owner, names) where the other differs; slots are not loaded."""
        for path in within(self._areas.owned, other):
            own, theirs = containers(root, other, path)
            if theirs is None:
                continue
            try:
                found = list(arriving_names(own, theirs, work))
            except BadFormat:
                continue  # the merge leaves out what cannot be walked, and reports it
            for owner, names in found:
                yield path, owner, names

    def limited(
        self, root: Value, other: Value, peer: str, work: Work | None = None
    ) -> list[tuple[OwnerSlot, list[bytes]]]:
        """Return (slot, hashes that lead into it) of what differs in a foreign root and is limited.

        Raises: MissingData: a node of a container that leads there is not here.
                WorkExceeded: `work` does not pay for finding the owners of its parts.
        """
        found = [
            (OwnerSlot(section_name(path), owner), names)
            for path, owner, names in self._differing(root, other, work)
            if names and not self.rules.is_free(owner)
        ]
        if peer not in self._known:
            for path in within(self._areas.unsigned, other):
                # An unsigned part has no owner; all that strangers add to it has one limit.
                own, theirs = containers(root, other, path[:-1])
                for key, names in () if theirs is None else arriving_names(own, theirs, work):
                    if names and same(key, path[-1]):
                        found.append((OwnerSlot(section_name(path), None), names))
        return found

    def without_forgotten(self, value: Value) -> Value:
        """Return a root without the slots that the operator ordered to forget."""
        if not self.rules.table.has_refusals:
            return value
        for path, owner in self.rules.forgotten():
            if get_in(value, (*path, owner)) is not None:
                value = without(value, path, owner, self._lattice)
        return value

    def released(self) -> None:
        """Note that the root is now without the slots that the operator ordered to forget."""
        for path, owner in self.rules.forgotten():
            self.quotas.usage.drop(OwnerSlot(section_name(path), owner))
        self.quotas.decided()
