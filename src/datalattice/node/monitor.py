"""Monitor: gathers the status of a running node, and serves it over HTTP.

Figures of the replicator are read in its lane, between two of its actions. If the lane is busy for
long, the figures of the last reading are reported. A monitor also looks for reasons to be degraded
that nothing else reports: damage in the store, no connection to any wanted peer, and peers whose
values are refused or unsound.

Source: docs/node.md "Operations".
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import resource
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

from datalattice.client.settings import NodeConfig
from datalattice.node.connection import Connection, Traffic
from datalattice.node.http import HttpListener, Response
from datalattice.node.metrics import CONTENT_TYPE, exposition
from datalattice.node.network import Network
from datalattice.node.peers import ADDED, PeerInfo
from datalattice.node.status import LaneStatus, NodeStatus, PeerReport, ProcessStatus
from datalattice.node.transport import host_port

ALONE_S: Final = 60.0  # without a connection to any wanted peer for this long: degraded
REFUSED_MS: Final = 300_000  # no value of a wanted peer taken in full for this long: degraded
SUSPECTED_MS: Final = 600_000  # a wanted peer sent unsound cells within this time: degraded

GUESTS_SHOWN_MAX: Final = 256  # connections of other than wanted peers in a status

LANE_TIMEOUT_S: Final = 1.0  # a status waits this long for the lane, then repeats its last figures

PAGE_METRICS: Final = "/metrics"
PAGE_HEALTH: Final = "/health"

_BLOCK_BYTES: Final = 512  # POSIX: the unit of st_blocks, whatever the file system's block size


class Monitored(Protocol):
    """The part of a node that a monitor uses beside its network."""

    @property
    def root_hash(self) -> bytes:
        """The hash of what it announces."""

    @property
    def damage(self) -> tuple[str, ...]:
        """Damaged locations of its store."""

    @property
    def store_folder(self) -> str | None:
        """The folder of its store, None for one in memory."""

    async def read_lane(self) -> LaneStatus:
        """Return what only its lane knows."""


class Monitor:
    """Watches one node. Lives on its event loop."""

    def __init__(self, node: Monitored, network: Network, now_s: Callable[[], float]) -> None:
        self._node = node
        self._network = network
        self._observer = network.observer
        self._now_s = now_s
        self._linked_s = now_s()
        self._lane = LaneStatus()
        self._http: HttpListener | None = None
        self._bind = ""
        self.is_draining = False
        """Whether the node is ending: it finishes open requests and takes no new ones."""
        self._observer.checks |= {
            "damage": self._damaged,
            "peers": self._alone,
            "refused": self._refused,
            "unsound": self._suspected,
        }

    async def start(self, config: NodeConfig) -> None:
        """Serve /metrics and /health, if configured.

        Raises: UsageError: the address cannot be used.
        """
        self._linked_s = self._now_s()
        self._bind = bind = config.http_bind
        if config.http_port is not None:
            pages = {PAGE_METRICS: self._metrics_page, PAGE_HEALTH: self._health_page}
            self._http = await HttpListener.start(
                bind, config.http_port, pages, self._observer.count, config.http_hosts
            )

    async def close(self) -> None:
        """Stop serving."""
        if self._http is not None:
            await self._http.close()

    @property
    def address(self) -> str | None:
        """`host:port` of /metrics and /health, None when they are not served."""
        return None if self._http is None else host_port(self._bind, self._http.port)

    def linked(self) -> None:
        """Note that a wanted peer was connected until now."""
        self._linked_s = self._now_s()

    # --- reasons ------------------------------------------------------------------------------

    def _damaged(self) -> str | None:
        damage = self._node.damage
        if not damage:
            return None
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        return f"Corruption: {damage[0]}{more}"

    def _alone(self) -> str | None:
        peers = self._network.peers.infos
        if not peers or any(peer.connected for peer in peers):
            self.linked()
            return None
        alone_s = self._now_s() - self._linked_s
        # "No wanted peer has been connected for 60 s": a restart of the only peer takes seconds.
        if alone_s < ALONE_S:
            return None
        return f"no connection to any of {len(peers)} peers for {alone_s:.0f} s"

    def _refused(self) -> str | None:
        now_ms = self._network.clock.now_ms()
        # Added peers only: a discovered one may be anybody.
        found = [
            one
            for one in self._network.peers.infos
            if one.source == ADDED
            and one.refused_since_ms is not None
            and now_ms - one.refused_since_ms >= REFUSED_MS
        ]
        if not found:
            return None
        first = found[0]
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        since_s = (now_ms - (first.refused_since_ms or now_ms)) // 1_000
        return f"no value of {first.name} was taken in full for {since_s} s: {first.refusal}{more}"

    def _suspected(self) -> str | None:
        """Return which wanted peers sent unsound cells. Strangers that do are cut instead."""
        now_ms = self._network.clock.now_ms()
        found = [
            f"{one.name} sent {one.suspicion}"
            for one in self._network.peers.infos
            if one.suspected_ms is not None and now_ms - one.suspected_ms < SUSPECTED_MS
        ]
        return "; ".join(found) or None

    # --- status -------------------------------------------------------------------------------

    async def status(self) -> NodeStatus:
        """Return everything that is known about the node now."""
        node, network, observer = self._node, self._network, self._observer
        await self._read_lane()
        process, store_bytes = await asyncio.to_thread(_of_the_system, node.store_folder)
        connections = list(network.connections.values())
        traffic = Traffic()  # totals since the start, so ended connections count
        for one in (network.past_traffic, *(connection.traffic for connection in connections)):
            traffic.add(one)
        inbound = sum(link.id.startswith("in ") for link in connections)
        return NodeStatus(
            reasons=observer.reasons,
            root_hash=node.root_hash,
            unchanged_s=observer.unchanged_s,
            counters=dict(observer.counters),
            times=dict(observer.times),
            inbound=inbound,
            outbound=len(connections) - inbound,
            traffic=traffic,
            held_bytes=network.held_bytes,
            peers=[self._peer(info, network.link_to(info)) for info in network.peers.infos],
            guests=[self._peer(*one) for one in network.guests[:GUESTS_SHOWN_MAX]],
            lane=self._lane,
            damage=node.damage,
            store_bytes=store_bytes,
            process=process,
        )

    async def _read_lane(self) -> None:
        try:
            async with asyncio.timeout(LANE_TIMEOUT_S):
                self._lane = await self._node.read_lane()
        except TimeoutError:
            self._observer.count("lane-busy")
            # Old counts are nearly right; whether a peer is equal may be wrong by now.
            self._lane = dataclasses.replace(self._lane, standings=())

    def _peer(self, info: PeerInfo, connection: Connection | None) -> PeerReport:
        info = dataclasses.replace(info)  # the record itself goes on changing
        if connection is None:
            return PeerReport(info, Traffic())
        known = next((one for one in self._lane.standings if one.id == connection.id), None)
        if known is None:
            return PeerReport(info, connection.traffic)
        return PeerReport(info, connection.traffic, known.joined, known.equal)

    # --- pages --------------------------------------------------------------------------------

    async def _metrics_page(self) -> Response:
        return Response(HTTPStatus.OK, exposition(await self.status()), CONTENT_TYPE)

    async def _health_page(self) -> Response:
        reasons = self._observer.reasons
        await self._read_lane()
        document = {
            "status": "draining" if self.is_draining else "degraded" if reasons else "ok",
            "reasons": reasons,
            "root_hash": self._node.root_hash.hex(),
            "noticed": self._observer.noticed,
            "over_quota": self._lane.over_quota,
        }
        # 503 when degraded, so that a load balancer or watchdog needs no JSON.
        is_well = not reasons and not self.is_draining
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status, json.dumps(document) + "\n", "application/json")


def _of_the_system(folder: str | None) -> tuple[ProcessStatus, int | None]:
    """Return the state of this process, and the bytes of the files in a folder."""
    return _process(), None if folder is None else _folder_bytes(Path(folder))


def _folder_bytes(folder: Path) -> int:
    """Return what the files occupy on disk; a sparse file counts its written blocks."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            continue  # removed meanwhile
    return total


def _process() -> ProcessStatus:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        memory_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # less our own
    except OSError:
        # Without /proc: the peak memory, which macOS gives in bytes and other systems in KiB.
        memory_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1_024)
        descriptors = None
    return ProcessStatus(memory_bytes, descriptors, cpu_s)
