"""Fencing: before a node writes below its owners, it asks its peers what they wrote elsewhere.

A folder may have been restored from a copy while its owner wrote on another machine. A node that
does not know those records would use their offsets again, and one of two records with the same
offset drops out of the log. So at the start writes wait until the reachable wanted peers were asked
and their answers were merged into the live value. They wait again when a peer comes back after a
long time without any.

    closed    peers are being asked; writes from other threads wait
    open      a peer has answered, or none did in time; writes are accepted
    refusing  none did in time, and the folder was copied or has lost commits; writes fail

`OwnHistory` is kept on the disk: it records where the store lies, which shows that a folder was
copied.

Source: docs/node.md "Fence".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from datalattice.client.fence import WITHOUT_ASKING, OwnHistory
from datalattice.client.settings import NodeConfig
from datalattice.errors import DataLatticeError, DataLoss, StoreError, Unfenced
from datalattice.lattice import LOCAL_KEY, P2P_KEY, MergeContext, ValuePath
from datalattice.node.connection import Connection
from datalattice.node.logs import log_event
from datalattice.node.observe import Observer
from datalattice.node.peers import PeerInfo
from datalattice.store import CellStore, Store
from datalattice.sync import NodeStart

UNFENCED: Final = "unfenced"  # health key, and name of the event
CLONED: Final = "identity-cloned"  # health key

WROTE_UNASKED: Final = "this folder was written to without having asked a peer; no answer since"

TWIN_S: Final = 0.5  # time in which a peer finds out whether the original of a copied folder runs

SLACK_S: Final = 1.0  # a write waits this much longer than the fence: the event loop may be busy


@dataclass(frozen=True, slots=True)
class FencePeers:
    """The peers that a fence asks.

    wanted:    the peers that the node wants.
    connected: the connections to them.
    ask:       merges a peer's value at a path into the live value; returns why it could not.
    """

    wanted: Callable[[], Sequence[PeerInfo]]
    connected: Callable[[], Sequence[Connection]]
    ask: Callable[[Connection, ValuePath], Awaitable[str | None]]


class Fence:
    """Whether writes below owners are accepted. Lives on the event loop; `check` on any thread.

    paths: the slots that peers are asked for.
    """

    def __init__(
        self,
        config: NodeConfig,
        observer: Observer,
        history: OwnHistory,
        paths: Sequence[ValuePath],
        peers: FencePeers,
    ) -> None:
        self._config = config
        self._observer = observer
        self._history = history
        self._paths = tuple(paths)
        self._peers = peers
        # Distinguishes this start from one of another node with the same identity.
        self.start = history.start
        self._doubt: DataLatticeError | None = None  # why writes need an answer of a peer
        self._wait_s = 0.0  # time for an answer
        self._decided = threading.Event()
        self._settled = asyncio.Event()
        self._refusals: dict[str, DataLatticeError] = {}
        self._reasons: dict[str, str] = {}
        self._asks: dict[str, asyncio.Task[bool]] = {}
        self._until_s = 0.0
        self._news = asyncio.Event()
        self._thread = 0
        self._is_open = False  # until the peers have to be asked again
        self._alone_since_s: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self.is_asked = False  # whether a peer has answered since the start

    # --- for writers --------------------------------------------------------------------------

    def check(self, context: MergeContext) -> None:
        """Return when a write at this path is accepted. Never waits on the event loop.

        Raises: Unfenced: no peer was asked. IdentityCloned: the identity is in use elsewhere.
        """
        if self.is_passable:
            return
        if context.path[:1] in ((LOCAL_KEY,), (P2P_KEY,)):
            return  # slots of this node's own identity: no other machine appends to them
        if threading.get_ident() != self._thread:
            self._decided.wait(max(0.0, self._until_s - time.monotonic()) + SLACK_S)
        self.raise_refusal()
        if not self._settled.is_set():
            raise Unfenced("peers are being asked; wait for that with `await node.fenced()`")

    @property
    def is_passable(self) -> bool:
        """Whether writes are accepted at once."""
        # The common case takes two flags and no lock.
        return self._decided.is_set() and not self._refusals

    @property
    def is_cloned(self) -> bool:
        """Whether a peer has shown that another node runs with this one's identity."""
        return CLONED in self._refusals

    def raise_refusal(self) -> None:
        """Raise why writes are refused, if they are."""
        # A new object each time: a raised exception collects the traceback of its thread.
        for error in self._refusals.values():
            raise type(error)(str(error))

    def refuse(self, key: str, error: DataLatticeError) -> None:
        """Refuse writes from now on; the node is degraded for the same reason."""
        self._refusals[key] = error
        self._observer.degrade(key, str(error))

    async def settled(self) -> None:
        """Return when it is decided whether writes are accepted."""
        await self._settled.wait()

    # --- life ---------------------------------------------------------------------------------

    async def look(self, store: Store) -> None:
        """Record this start in the store, and compare its folder with the one it was in before."""
        if isinstance(store, CellStore):
            try:
                await asyncio.to_thread(self._history.look, store)
            except StoreError as error:
                self._observer.failed(error)  # a full disk must not keep a node from its start

    @property
    def copy_id(self) -> str:
        """Distinguishes a copied folder from the original; empty if it was not copied."""
        return self._history.copy_id

    def begin(self) -> None:
        """Begin to ask. Without slots or peers to ask for, writes are accepted at once."""
        config, history = self._config, self._history
        self._thread = threading.get_ident()
        self._wait_s = history.wait_s(config)
        self._doubt = None if config.accept_unfenced else history.doubt()
        if isinstance(self._doubt, DataLoss):
            # The store lost commits: a write now could reuse an offset. Refused without peers, too.
            self.refuse(UNFENCED, self._doubt)
        if history.was_written_unasked and config.peers:
            self._observer.degrade(UNFENCED, WROTE_UNASKED)
        # "No peers are configured, or the folder has no keys: accepted, without a fence."
        if not self._paths or not self._peers.wanted():
            self._open()
            return
        self._close()
        self._task = asyncio.ensure_future(self._run())

    def woken(self) -> None:
        """Look at the peers again: a connection was made or ended, or could not be made."""
        if self._is_open:
            if not any(one.connected for one in self._peers.wanted()):
                self._alone_since_s = self._alone_since_s or time.monotonic()
            elif self._alone_since_s is not None:
                # Closed at once, so that no write comes before the peer is asked.
                if time.monotonic() - self._alone_since_s >= self._config.fence_again_ms / 1e3:
                    self._is_open = False
                    self._close()
                self._alone_since_s = None
        self._news.set()

    def cloned(self, twin: NodeStart) -> None:
        """Take in a start that was signed with this node's identity, as a peer relays it."""
        error = self._history.twin(twin)
        if error is not None:
            self._observer.count("identity-cloned")
            self.refuse(CLONED, error)
            self._decide()  # no answer of a peer can change that, so writes fail at once

    async def close(self) -> None:
        """Stop asking; waiting writers go on, and get the error of a closed node."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._decided.set()
        self._settled.set()
        if self._recording is not None:
            await self._recording

    # --- asking -------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._round(is_start=True)
        while True:
            self._is_open, self._alone_since_s = True, None
            self.woken()
            while self._is_open:
                self._news.clear()
                await self._news.wait()
            await self._round(is_start=False)

    async def _round(self, *, is_start: bool) -> None:
        """Ask until a peer has answered; accept or refuse writes when that takes too long."""
        is_late = False
        try:
            while not self._is_fenced(is_late=is_late):
                # After the time is over, one answer is enough; without any, `_give_up` decides.
                if not is_late and self._left_s() <= 0:
                    is_late = True
                    if not any(self._answered()):
                        self._give_up(is_start=is_start)
                    continue
                self._ask_new()
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if is_late else self._left_s()):
                        await self._news.wait()
            if is_start and isinstance(self._history.doubt(), Unfenced) and not self.is_cloned:
                # A peer answers before it reports that the original of a copied folder runs: it
                # asks the original first.
                await asyncio.sleep(TWIN_S)
        finally:
            for task in self._asks.values():
                task.cancel()
            self._asks.clear()
        self._reasons.clear()
        self.is_asked = True
        self._refusals.pop(UNFENCED, None)
        self._observer.recover(UNFENCED)
        self._open(asked=True)

    def _ask_new(self) -> None:
        for connection in self._peers.connected():
            if connection.id not in self._asks:
                task = asyncio.ensure_future(self._ask(connection))
                task.add_done_callback(lambda _: self.woken())
                self._asks[connection.id] = task

    async def _ask(self, connection: Connection) -> bool:
        """Merge all slots of a peer; return whether that was done before it disconnected."""
        while True:
            # "A peer in whose answer an owner's slot had to be dropped counts as not asked": an
            # answer for some slots says nothing about the others.
            answers = await asyncio.gather(
                *(self._peers.ask(connection, path) for path in self._paths)
            )
            error = next((one for one in answers if one is not None), None)
            if error is None:
                return True
            # The peer refused or could not answer: ask it again as long as it is connected.
            self._reasons[connection.name] = error
            if connection not in self._peers.connected():
                return False
            await asyncio.sleep(SLACK_S)

    def _answered(self) -> list[str]:
        return [id for id, task in self._asks.items() if task.done() and task.result()]

    def _is_fenced(self, *, is_late: bool) -> bool:
        """Return whether every connected peer has answered; when late, whether any has."""
        answered = self._answered()
        return bool(answered) and (
            is_late or all(one.id in answered for one in self._peers.connected())
        )

    def _give_up(self, *, is_start: bool) -> None:
        reasons = {one.address or "": one.reason for one in self._peers.wanted()} | self._reasons
        asked = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
        log_event(logging.WARNING, UNFENCED, peers=asked)
        # "Wait `fence_moved_wait_ms`, then fail with `Unfenced`": copied, restored or moved.
        if is_start and self._doubt is not None:
            self.refuse(UNFENCED, self._doubt)
            self._decide()
            return
        if is_start:
            self._observer.count("unfenced-starts")
        self._observer.degrade(UNFENCED, WITHOUT_ASKING)
        self._open(unasked=True)

    # --- state --------------------------------------------------------------------------------

    def _left_s(self) -> float:
        return self._until_s - time.monotonic()

    def _close(self) -> None:
        # Monotonic: setting the wall clock must not shorten or prolong the wait.
        self._until_s = time.monotonic() + self._wait_s
        self._decided.clear()

    def _open(self, *, asked: bool = False, unasked: bool = False) -> None:
        """Accept writes, and record on disk whether a peer was asked."""

        def record() -> None:
            try:
                self._history.settle(asked=asked, unasked=unasked)
            except StoreError as error:
                self._observer.failed(error)

        self._decide()
        self._recording = asyncio.ensure_future(asyncio.to_thread(record))

    def _decide(self) -> None:
        self._settled.set()
        self._decided.set()
