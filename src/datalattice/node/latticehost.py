"""Lattice host: the parts of a node that only its lattice replica needs.

These are the ledger of the peers' rights and shares, pulls that callers wait for, the figures that
only the lane knows, and the report of edits that a stopping node could not store.

Source: docs/node.md "Partial replication", "Operations".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from datalattice.apps.queue import QUEUE_SECTION, Topics
from datalattice.cells import Value, brief, same
from datalattice.client import Slot, differing_slots
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError, PeerUnavailable, Timeout
from datalattice.lattice import Lattice
from datalattice.node.connection import Connection
from datalattice.node.hosts import Host, PeerIdentity, PeerLedger
from datalattice.node.status import ForkCounts, LaneStatus
from datalattice.sync import LatticeReplica, Pull, Replicator

CONFIRM_S: Final = 0.25  # how long a status waits for peers to state their roots
CONFIRMED_MAX: Final = 64  # peers that one status asks for their root


class LatticeLedger(PeerLedger):
    """The ledger of a lattice replica. Used in its lane.

    partial: by public key, the only paths that are replicated with that peer.
    """

    def __init__(
        self, replica: LatticeReplica, partial: Mapping[bytes, Sequence[Sequence[Value]]]
    ) -> None:
        self._replica = replica
        self._partial = dict(partial)

    def introduce(self, who: PeerIdentity) -> None:
        """Charge the messages of a connection to its sender; restrict it to configured paths."""
        self._replica.charges.introduce(
            who.connection, who.sender, is_wanted=who.is_wanted, is_known=who.is_known
        )
        # Before the proof the pinned key counts, so nothing outside of its paths is sent meanwhile.
        paths = self._partial.get(who.public_key or who.pinned or b"")
        if paths is not None:
            self._replica.views.restrict(who.connection, paths)

    def leave(self, connection: str) -> None:
        """Forget a connection that ended."""
        self._replica.views.restrict(connection, None)
        self._replica.charges.leave(connection)

    def wait_ms(self, connection: str) -> int:
        """Return how long the next message has to wait, after the cost of those that came."""
        return self._replica.charges.wait_ms(connection)


class PullWaiters:
    """The pulls that callers wait for. Lives on the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[object, asyncio.Future[str | None]] = {}

    async def pull(
        self, host: Host[LatticeReplica], connections: Iterable[Connection], timeout_s: float
    ) -> None:
        """Return when the live value durably contains everything that these peers state.

        Raises: PeerUnavailable: one did not deliver. Timeout: it took too long.
        """

        async def deliver(connection: Connection) -> None:
            reason = await self.ask(host, connection)
            if reason is not None:
                raise PeerUnavailable(f"pull from {connection.name}: {reason}")

        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*map(deliver, connections))
        except TimeoutError as error:
            raise Timeout(f"the pull did not end in {timeout_s} s") from error

    async def ask(
        self,
        host: Host[LatticeReplica],
        connection: Connection,
        path: tuple[Value, ...] = (),
        *,
        is_strict: bool = False,
    ) -> str | None:
        """Ask one peer for its state; return why it was not merged, None if all of it was.

        path, is_strict: see `datalattice.sync.Pull`.
        """
        token = object()
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[token] = done
        pull = Pull(token, path, is_strict)
        host.lane.submit(lambda replicator, now: replicator.pull(connection.id, pull, now))
        try:
            return await done
        finally:
            del self._waiting[token]

    def finished(self, token: object, error: str | None) -> None:
        """Wake the caller of a pull that ended."""
        pull = self._waiting.get(token)
        if pull is not None and not pull.done():
            pull.set_result(error)


async def read_lane(
    host: Host[LatticeReplica], pulls: PullWaiters, connections: Mapping[str, Connection]
) -> LaneStatus:
    """Return what only the lane knows, once it has a turn."""

    def look(replicator: Replicator, _now_ms: int) -> LaneStatus:
        replica = host.replica
        return LaneStatus(
            tuple(replicator.standings),
            replicator.missing_count,
            replica.intake.size_bytes,
            ForkCounts.of(replica.evidence),
            () if replica.hosting is None else tuple(replica.hosting.quotas.short_of()),
        )

    status = await host.act(look)
    # "Only this answer proves what the peer has": peers that are not known to be equal are asked
    # for their root first.
    behind = [one.id for one in status.standings if one.joined and not one.equal]
    asked = [connections[id] for id in behind if id in connections][:CONFIRMED_MAX]
    if not asked:
        return status
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONFIRM_S):
            await asyncio.gather(*(pulls.ask(host, one) for one in asked))
    return await host.act(look)


def unwritten(lattice: Lattice, durable: Value, live: Value) -> list[str]:
    """Describe what the live value has but the durable one lacks: records by partition."""
    before, after = RootLattice(lattice, durable), RootLattice(lattice, live)
    lost: list[str] = []
    for slot in differing_slots(lattice, durable, live):
        try:
            records = list(_records(before, after, slot))
        except DataLatticeError as error:  # a damaged store cannot count everything
            records = [f"records below {brief(slot.path)}, which cannot be counted ({error})"]
        lost += records or [f"an edit below {brief(slot.path)}"]
    return lost


def _records(before: RootLattice, after: RootLattice, slot: Slot) -> Iterator[str]:
    if len(slot.path) < 2 or not same(slot.path[0], QUEUE_SECTION):
        return
    owner = slot.path[1]
    old, new = Topics.at(before, owner), Topics.at(after, owner)
    for name in new.topics():
        for partition in new.topic(name).partitions():
            first = old.partition(name, partition).end_offset()
            end = new.partition(name, partition).end_offset()
            # Other changes of a log, such as a truncation, lose no record.
            if end > first:
                count = "1 record" if end - first == 1 else f"{end - first} records"
                yield f"{count} of {name} {partition} from offset {first} on"
