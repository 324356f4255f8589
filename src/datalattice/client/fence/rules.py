"""Rules: whether a store may be written to for its owners before a peer was asked.

A node (`datalattice.node.fencing`) and a program without one (`ask_peers`) ask peers in different
ways. For both, these rules decide whether they must, how long they wait and what they refuse.

Source: docs/node.md "Fence".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.grid import GRID_SECTION, VENUES_KEY
from datalattice.client.settings import NodeConfig
from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair
from datalattice.errors import DataLoss, IdentityCloned, Unfenced
from datalattice.lattice import (
    LOCAL_KEY,
    KeyedLattice,
    Lattice,
    MergeContext,
    OwnerLattice,
    ValuePath,
    did_of,
)
from datalattice.store import START_BYTES, CellStore, PlaceFile
from datalattice.sync import NodeStart, sign_start

WITHOUT_ASKING: Final = "writing without having asked a peer"
MOVED: Final = (
    "this folder was copied, restored or moved, and no peer has reported later writes; connect a "
    "peer, or accept the risk: a node with --accept-unfenced (accept_unfenced = true), a command "
    "with --offline"
)
TWIN_TEXT: Final = (
    "another node runs with the identity {key} of this one, so writes below owners are refused; "
    "stop one of them and run `lattice key identity new` in its folder, then start both again"
)
LOST: Final = (
    "{loss}; new records would take the offsets of lost ones, so a peer has to be reached first; "
    "without a peer: lattice disk heal --accept-loss --offline"
)

FENCED_PATHS_MAX: Final = 32
"""Most slots that are requested one by one; for more, the root is requested."""


def owned_paths(
    lattice: Lattice, context: MergeContext, *, has_venue: bool = False
) -> list[ValuePath]:
    """Return the paths of the slots of the owners whose keys a context has.

    These slots can hold logs: a write that lacks the owner's other writes would fork them. Data
    below other paths merges with any write.

    has_venue: jobs run here. "Records of the own DID that peers hold are taken first, so a restored
    or cloned folder does not repeat finished jobs" (docs/design/venue.md "Recovery").
    """
    pairs = context.keys if context.key_pair is None else [*context.keys, context.key_pair]
    owners = sorted({pair.public_key for pair in pairs})
    sections = lattice.children() if isinstance(lattice, KeyedLattice) else ()
    paths: list[ValuePath] = [
        (key, owner)
        for key in sections
        if key != LOCAL_KEY and isinstance(lattice.child(key), OwnerLattice)
        for owner in owners
    ]
    if has_venue and GRID_SECTION in sections:
        paths += [(GRID_SECTION, VENUES_KEY, did_of(owner)) for owner in owners]
    # The empty path is the root: one request replaces many.
    return paths if len(paths) <= FENCED_PATHS_MAX else [()]


class OwnHistory:
    """Whether a store has all writes of its owners, judged by the store itself.

    is_writer: whether the store has owners' keys.
    start:     by it peers tell this process from one on a copy of the folder; None without an
               identity.
    """

    def __init__(
        self, identity: KeyPair | None, clock: Clock, entropy: Entropy, *, is_writer: bool
    ) -> None:
        number = int.from_bytes(entropy.bytes(START_BYTES), "big")
        self._number = number
        self.start = None if identity is None else sign_start(identity, number, clock.now_ms())
        self._clock = clock
        self._is_writer = is_writer
        self._store: CellStore | None = None
        self._place: PlaceFile | None = None

    def look(self, store: CellStore) -> None:
        """Read from the store whether its folder was moved, and record this start in it.

        Raises: StoreFull, StoreFailed: the start could not be recorded.
        """
        self._store, self._place = store, store.place()
        self._place.begun(self._number)

    @property
    def copy_id(self) -> str:
        """Id of this copy of a folder; empty if it was never copied."""
        return "" if self._place is None else self._place.copy_id

    @property
    def was_written_unasked(self) -> bool:
        """Whether a write was made without asking a peer, and no peer was asked since."""
        return self._place is not None and self._place.unfenced_ms is not None

    def doubt(self) -> DataLoss | Unfenced | None:
        """Return why a peer must be asked before a write for owners; None if it need not be."""
        loss = None if self._store is None else self._store.loss
        if loss is not None and self._is_writer:
            # The next records of an owner would get the offsets of the lost ones.
            return DataLoss(LOST.format(loss=loss))
        # "The folder was copied, restored or moved to another disk": records of its owners may be
        # elsewhere.
        return Unfenced(MOVED) if self._place is not None and self._place.moved else None

    def wait_s(self, config: NodeConfig) -> float:
        """Return how many seconds to wait for a peer's answer."""
        # In doubt the wait is longer: the owner may have written elsewhere.
        wait_ms = config.fence_wait_ms if self.doubt() is None else config.fence_moved_wait_ms
        return wait_ms / 1e3

    def settle(self, *, asked: bool, unasked: bool = False) -> None:
        """Record that the store belongs to its present folder.

        asked:   a peer has answered.
        unasked: there are peers, and writing begins though none has answered.
        Raises: StoreFull, StoreFailed: it could not be recorded.
        """
        if self._store is None or self._place is None:
            return
        # "An answer of a peer accepts the loss" (docs/node.md "Fence"): it brought the lost commits
        # that the peer had.
        if asked and self._store.loss is not None:
            self._store.accept_loss()
        self._place.settle(self._clock.now_ms() if unasked else None)

    def twin(self, start: NodeStart) -> IdentityCloned | None:
        """Return the error if `start`, signed by our identity, is of another running node.

        An earlier start of this folder proves nothing, because a peer may send it again.
        """
        own, place = self.start, self._place
        if own is None or start.number == own.number:
            return None
        is_former = start.time_ms < own.time_ms if place is None else place.has_begun(start.number)
        return None if is_former else IdentityCloned(TWIN_TEXT.format(key=own.public_key.hex()))
