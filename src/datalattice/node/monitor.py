"""Monitor: what can be known about a running node, gathered at one moment, and who may ask.

What only the replicator knows is asked in its lane, between two of its actions; when it is busy
for long, what was known last is told again. A monitor also looks for reasons why the node is not
well that nobody reports: damage in the store, and no connection to any wanted peer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

from datalattice.client.settings import NodeConfig
from datalattice.clock import Clock
from datalattice.node.connection import Connection, Traffic
from datalattice.node.http import HttpListener, Response
from datalattice.node.metrics import CONTENT_TYPE, exposition
from datalattice.node.observe import Observer
from datalattice.node.peers import ADDED, PeerInfo
from datalattice.node.reading import Inside, PeerReading, Process, Reading

ALONE_S: Final = 60.0
"""After so long without a connection to any wanted peer a node is degraded."""

GUESTS_SHOWN_MAX: Final = 256
"""Connections of others than wanted peers that are listed."""

REFUSED_MS: Final = 300_000
SUSPECTED_MS: Final = 600_000
"""After so long without a value of a wanted peer that was taken in full a node is degraded."""

ASK_TIMEOUT_S: Final = 1.0
"""How long the lane is waited for; then what was known last is told."""

PAGE_METRICS: Final = "/metrics"
PAGE_HEALTH: Final = "/health"

_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system's own is


class Subject(Protocol):
    """What a monitor needs of a node."""

    @property
    def observer(self) -> Observer:
        """Its counters and troubles."""
        ...

    @property
    def clock(self) -> Clock:
        """Its clock."""
        ...

    @property
    def root_hash(self) -> bytes:
        """The hash of what it announces."""
        ...

    @property
    def damage(self) -> tuple[str, ...]:
        """Damaged places of its store."""
        ...

    @property
    def peers(self) -> list[PeerInfo]:
        """The peers it wants."""
        ...

    @property
    def connections(self) -> Sequence[Connection]:
        """Its connections in either direction."""
        ...

    def link_to(self, peer: PeerInfo) -> Connection | None:
        """Return its connection with a wanted peer."""
        ...

    @property
    def guests(self) -> Sequence[tuple[PeerInfo, Connection]]:
        """The connections that others than wanted peers made."""
        ...

    @property
    def past_traffic(self) -> Traffic:
        """What went over connections that ended."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be received, handled or sent."""
        ...

    @property
    def store_folder(self) -> str | None:
        """The folder of its store, if it has one."""
        ...

    async def look_inside(self) -> Inside:
        """Return what only its lane knows."""
        ...


class Monitor:
    """Watches one node. Lives on its event loop."""

    def __init__(self, node: Subject, now_s: Callable[[], float]) -> None:
        self._node = node
        self._now_s = now_s
        self._linked_s = now_s()
        self._inside = Inside()
        self._http: HttpListener | None = None
        self._bind = ""
        node.observer.checks["damage"] = self._damaged
        node.observer.checks["peers"] = self._alone
        node.observer.checks["refused"] = self._refused
        node.observer.checks["unsound"] = self._suspected

    async def start(self, config: NodeConfig) -> None:
        """Serve /metrics and /health, if and where the configuration says so.

        Raises: UsageError: the address cannot be used.
        """
        self._linked_s = self._now_s()
        self._bind = bind = config.http_bind
        if config.http_port is not None:
            pages = {PAGE_METRICS: self._metrics_page, PAGE_HEALTH: self._health_page}
            count = self._node.observer.count
            self._http = await HttpListener.start(
                bind, config.http_port, pages, count, config.http_hosts
            )

    async def close(self) -> None:
        """Serve no more."""
        if self._http is not None:
            await self._http.close()

    @property
    def address(self) -> str | None:
        """`host:port` of /metrics and /health, None when they are not served."""
        if self._http is None:
            return None
        host = f"[{self._bind}]" if ":" in self._bind else self._bind
        return f"{host}:{self._http.port}"

    def linked(self) -> None:
        """Note that until now there was a connection to a wanted peer."""
        self._linked_s = self._now_s()

    # --- reasons ------------------------------------------------------------------------------

    def _damaged(self) -> str | None:
        damage = self._node.damage
        if not damage:
            return None
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        return f"Corruption: {damage[0]}{more}"

    def _alone(self) -> str | None:
        peers = self._node.peers
        if not peers or any(peer.connected for peer in peers):
            self.linked()
            return None
        alone_s = self._now_s() - self._linked_s
        if alone_s < ALONE_S:
            return None
        return f"no connection to any of {len(peers)} peers for {alone_s:.0f} s"

    def _refused(self) -> str | None:
        now_ms = self._node.clock.now_ms()
        found = [
            one
            for one in self._node.peers
            if one.source == ADDED
            and one.refused_since_ms is not None
            and now_ms - one.refused_since_ms >= REFUSED_MS
        ]
        if not found:
            return None
        first = found[0]
        name = _name_of(first)
        more = f"; so it is with {len(found) - 1} more" if len(found) > 1 else ""
        since_s = (now_ms - (first.refused_since_ms or now_ms)) // 1_000
        return f"nothing of {name} was taken in full for {since_s} s: {first.refusal}{more}"

    def _suspected(self) -> str | None:
        """Return which peer relays what no honest peer makes; it is not cut, for it is wanted."""
        now_ms = self._node.clock.now_ms()
        found = [
            f"{_name_of(one)} sent {one.suspicion}"
            for one in self._node.peers
            if one.suspected_ms is not None and now_ms - one.suspected_ms < SUSPECTED_MS
        ]
        return "; ".join(found) or None

    # --- readings -----------------------------------------------------------------------------

    async def reading(self) -> Reading:
        """Return everything that is known about the node now."""
        node = self._node
        await self._look()
        process, store_bytes = await asyncio.to_thread(_of_the_system, node.store_folder)
        connections = node.connections
        traffic = Traffic()
        for one in (node.past_traffic, *(connection.traffic for connection in connections)):
            traffic.add(one)
        inbound = sum(link.id.startswith("in ") for link in connections)
        observer = node.observer
        return Reading(
            reasons=observer.reasons,
            root_hash=node.root_hash,
            unchanged_s=observer.unchanged_s,
            counters=dict(observer.counters),
            times=dict(observer.times),
            inbound=inbound,
            outbound=len(connections) - inbound,
            traffic=traffic,
            held_bytes=node.held_bytes,
            peers=[self._peer(info, node.link_to(info)) for info in node.peers],
            guests=[self._peer(*one) for one in node.guests[:GUESTS_SHOWN_MAX]],
            inside=self._inside,
            damage=node.damage,
            store_bytes=store_bytes,
            process=process,
        )

    async def _look(self) -> None:
        node = self._node
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                self._inside = await node.look_inside()
        except TimeoutError:
            node.observer.count("lane-busy")
            self._inside = dataclasses.replace(self._inside, standings=())  # may be wrong by now

    def _peer(self, info: PeerInfo, connection: Connection | None) -> PeerReading:
        fields = dataclasses.asdict(info)
        if connection is None:
            return PeerReading(fields, Traffic())
        known = next((one for one in self._inside.standings if one.id == connection.id), None)
        if known is None:
            return PeerReading(fields, connection.traffic)
        return PeerReading(fields, connection.traffic, known.joined, known.equal)

    # --- pages --------------------------------------------------------------------------------

    async def _metrics_page(self) -> Response:
        return Response(HTTPStatus.OK, exposition(await self.reading()), CONTENT_TYPE)

    async def _health_page(self) -> Response:
        reasons = self._node.observer.reasons
        await self._look()
        document = {
            "status": "degraded" if reasons else "ok",
            "reasons": reasons,
            "root_hash": self._node.root_hash.hex(),
            "noticed": self._node.observer.noticed,
            "over_quota": self._inside.over_quota,
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return Response(status, json.dumps(document) + "\n", "application/json")


def _of_the_system(folder: str | None) -> tuple[Process, int | None]:
    """Return how this process is, and the bytes of the files in a folder."""
    return _process(), None if folder is None else _folder_bytes(Path(folder))


def _folder_bytes(folder: Path) -> int:
    """Return what the files take on the disk: a sparse file is as large as what is written."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            continue  # removed meanwhile
    return total


def _process() -> Process:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        memory_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # less our own
    except OSError:
        # Not Linux: the highest memory so far is the best there is; macOS tells bytes, others KiB.
        memory_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1_024)
        descriptors = None
    return Process(memory_bytes, descriptors, cpu_s)


def _name_of(info: PeerInfo) -> str:
    key = info.public_key
    return info.address or ("a peer" if key is None else key.hex())
