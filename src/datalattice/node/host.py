"""Host: one replica on a node, with all that it takes to replicate it there.

The replicator that drives it, the lane in which everything happens to both, and the ledger in which
stands what is known there of the peers. `Hosts` (hosts.py) is the table of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from datalattice.errors import StoreClosed
from datalattice.node.lanes import Done, Lane, LanePool
from datalattice.sync import Effects, Peer, Regard, Replica, Replicator, Sender

LATTICE: Final = "lattice"
"""The protocol of the node's lattice, whose store id is empty."""

CLOSE_TIMEOUT_S: Final = 10.0
"""How long the last publication of a replica may take."""

R = TypeVar("R", bound=Replica, covariant=True)  # noqa: PLC0105
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """Who is at the other end of a connection.

    dialled:    this node made the connection.
    public_key: what the transport or a challenge has proved; None: nothing.
    pinned:     the key that the peer has to prove before anything else; None: any.
    sender:     whom its messages are charged to: its key, else where it comes from.
    is_wanted:  the operator named it as a peer. is_known: that, or allowed it to connect.
    """

    connection: str
    dialled: bool
    public_key: bytes | None
    pinned: bytes | None
    sender: Sender
    is_wanted: bool
    is_known: bool


class Ledger(Protocol):
    """What a replica keeps of those it talks to. Used in its lane."""

    def introduce(self, who: Acquaintance) -> None:
        """Take note of who it is, before anything else of the connection, and when that changes."""
        ...

    def leave(self, connection: str) -> None:
        """Take note that a connection has ended."""
        ...

    def wait_ms(self, connection: str) -> int:
        """Return how long what comes next over a connection has to wait."""
        ...


class Outlet(Protocol):
    """Where the effects of a replica go. Lives on the event loop."""

    def carry_out(self, host: Host[Replica], effects: Effects) -> None:
        """Send, close, count and log what a replicator wants."""
        ...


class Unkept:
    """The ledger of a replica that keeps none."""

    def introduce(self, who: Acquaintance) -> None:
        """Keep nothing."""

    def leave(self, connection: str) -> None:
        """Keep nothing."""

    def wait_ms(self, connection: str) -> int:
        """Make nobody wait."""
        return 0


class Host(Generic[R]):
    """One replica on a node.

    told:  called in the lane with effects before they are carried out; returns whether somebody on
           the event loop waits for them even when nothing is to be done there.
    heard: called on the event loop with effects after they were carried out.
    """

    def __init__(
        self,
        name: tuple[str, bytes],
        replica: R,
        replicator: Replicator,
        failed: Callable[[Exception], None],
        pool: LanePool,
        *,
        ledger: Ledger | None = None,
        told: Callable[[Effects], bool] | None = None,
        heard: Callable[[Effects], None] | None = None,
    ) -> None:
        self.protocol, self.store_id = name
        self.replica: Final[R] = replica
        self.ledger: Final[Ledger] = ledger or Unkept()
        self._told = told
        self._heard = heard
        self._outlet: Outlet | None = None
        self._closed = False
        self.lane: Final = Lane(pool, replicator, self._deliver, failed)

    @property
    def name(self) -> str:
        """Its protocol and store id, as text."""
        return f"{self.protocol} {self.store_id.hex()}".rstrip()

    def start(self, outlet: Outlet) -> None:
        """Begin to work; what comes of it goes to `outlet`, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._outlet = outlet
        self.lane.start()

    async def close(self) -> None:
        """Make what was written durable, finish what was submitted, and end.

        Raises: StoreError: the last writes could not be made durable.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.to_thread(self.lane.publish, CLOSE_TIMEOUT_S)
        finally:
            await asyncio.to_thread(self.lane.stop)

    def admits(self, peer: Peer) -> bool:
        """Return, in the lane, whether a peer is spoken to."""
        return self.replica.regard(peer) is not Regard.REFUSED

    async def act(self, action: Callable[[Replicator, int], T]) -> T:
        """Return what an action in the lane returns, once its effects were carried out.

        Raises: whatever `action` raises. StoreClosed: the host was removed.
        """
        if self._closed:
            raise StoreClosed(f"{self.name} is not on this node any more")
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome: list[T] = []
        fault: Exception | None = None

        def act(replicator: Replicator, now_ms: int) -> None:
            nonlocal fault
            try:
                outcome.append(action(replicator, now_ms))
            except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is
                fault = error

        def done() -> None:
            if told.done():
                return
            if fault is not None:
                told.set_exception(fault)
            else:
                told.set_result(outcome[0])

        self.lane.submit(act, done)
        return await told

    async def ask(self, question: Callable[[R], T]) -> T:
        """Return what `question` says about the replica, in its lane.

        Raises: whatever `question` raises.
        """
        return await self.act(lambda _replicator, _now_ms: question(self.replica))

    async def write(self, change: Callable[[R], T]) -> T:
        """Change the replica in its lane; return what `change` returns once it is durable.

        Raises: whatever `change` raises. StoreError: it could not be made durable.
        """

        def act(replicator: Replicator, now_ms: int) -> T:
            value = change(self.replica)
            replicator.publish(now_ms)
            return value

        return await self.act(act)

    def _deliver(self, effects: Effects, done: Done | None) -> None:
        is_awaited = self._told is not None and self._told(effects)
        if is_awaited or done is not None or not effects.is_silent:
            self._loop.call_soon_threadsafe(self._carry_out, effects, done)

    def _carry_out(self, effects: Effects, done: Done | None) -> None:
        assert self._outlet is not None
        self._outlet.carry_out(self, effects)
        if self._heard is not None:
            self._heard(effects)
        if done is not None:
            done()
