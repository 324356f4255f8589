"""Looking: figures of a node that belong to its lane, read in a turn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from datalattice.node.connection import Connection
from datalattice.node.forkhealth import forks_of
from datalattice.node.lanes import Lane
from datalattice.node.pulling import PullWaiters
from datalattice.node.reading import Inside
from datalattice.sync import LatticeReplica, Replicator


async def look_inside(
    lane: Lane,
    replica: LatticeReplica,
    pulls: PullWaiters,
    connections: Mapping[str, Connection],
) -> Inside:
    """Return what only the lane knows, once it has time to tell.

    Peers that are not known to be equal are asked for their state first, for a short while: what
    they were sent says nothing of what they took.
    """
    inside = await _look(lane, replica)
    behind = (one.id for one in inside.standings if one.joined and not one.equal)
    asked = [connections[id] for id in behind if id in connections]
    if not asked:
        return inside
    await pulls.confirm(lane, asked)
    return await _look(lane, replica)


async def _look(lane: Lane, replica: LatticeReplica) -> Inside:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Inside] = loop.create_future()

    def tell(inside: Inside) -> None:
        if not told.done():
            told.set_result(inside)

    def look(replicator: Replicator, _now_ms: int) -> None:
        standings = tuple(replicator.standings)
        forks = forks_of(replica.evidence)
        short = () if replica.hosting is None else tuple(replica.hosting.short_of())
        inside = Inside(
            standings, replicator.missing_count, replica.intake.size_bytes, forks, short
        )
        loop.call_soon_threadsafe(tell, inside)

    lane.submit(look)
    return await told
