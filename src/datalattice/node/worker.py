"""Worker: one thing after another happens to a replicator, and its storage may block meanwhile.

Frames and timers are the business of one thread. A publication of local writes is done by the
thread that asks for it when nothing else is going on, which saves two changes of thread; otherwise
it waits in line, and callers that wait at the same time are served by one commit. Effects are
handed out after each action, when what they say is durable.

What strangers say waits while there is anything else to do: a question of a few bytes may take a
long time to answer, many of them ask, and neither writers here nor the peers that this node chose
should stand in line behind them. Strangers have their turn all the same, but together no more of
the worker's time than the others while these wait.
"""

from __future__ import annotations

import collections
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from datalattice.clock import Clock
from datalattice.cursors import collector_paused
from datalattice.errors import DataLatticeError, StoreClosed
from datalattice.sync import Effects, Replicator

Action = Callable[[Replicator, int], None]
"""Something to do to the replicator, at a time."""

Done = Callable[[], None]
"""Told when an action is done, together with what came of it."""

Item = tuple[Action, "Done | None"] | Future[None] | None
"""What waits in line: an action, a publication, the end."""

TURN_ACTIONS_MAX: Final = 64
"""Actions of one turn: how long waiting publications and effects are put off at most."""

STRANGERS_MS_MAX: Final = 50
"""Time of one turn after which nothing more of strangers is begun in it."""

BUSY_MS_MIN: Final = 500
"""A turn this long is not held against peers whose answers could not be heard meanwhile."""

_log = logging.getLogger("datalattice.node")


class SteadyClock:
    """A clock that never steps back: for time-outs, not for stamps."""

    def now_ms(self) -> int:
        """Return milliseconds since some fixed moment."""
        return time.monotonic_ns() // 1_000_000


class Worker:
    """A thread, its queue, and a replicator that whoever holds the lock may touch."""

    def __init__(
        self,
        replicator: Replicator,
        deliver: Callable[[Effects, Done | None], None],
        failed: Callable[[Exception], None],
        clock: Clock | None = None,
    ) -> None:
        self._replicator = replicator
        self._deliver = deliver
        self._failed = failed
        self._clock = clock or SteadyClock()
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._strangers: collections.deque[tuple[Action, Done | None]] = collections.deque()
        self._thread = threading.Thread(target=self._run, name="datalattice-replica", daemon=True)
        self._lock = threading.Lock()
        self._holder = 0  # the thread that has the lock
        self._wanted = False  # whether the worker's own thread waits for the lock
        self._deadline_ms: int | None = None  # what the thread sleeps until, at most
        self._lead_ms = 0  # what strangers had more of the time than the others who waited
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin to work."""
        self._deadline_ms = self._replicator.deadline_ms
        self._thread.start()

    def submit(self, action: Action, done: Done | None = None, *, stranger: bool = False) -> None:
        """Have `action` done soon, after what is in line; after `stop` it is not done.

        `done` goes with the effects to whoever they are handed out to: one call for both.
        `stranger`: it has a line of its own, which waits for the other one; for one thread only.
        """
        if stranger:
            self._strangers.append((action, done))
            if len(self._strangers) == 1:  # before that, the thread had no reason to look
                self._queue.put((_wake, None))
        else:
            self._queue.put((action, done))

    def publish(self, timeout_s: float | None = None) -> None:
        """Return when every local write made before the call is durable.

        Raises: StoreError: they could not be written. StoreClosed: the node is closed.
        """
        if self._holder == threading.get_ident():
            self._replicator.publish(self._clock.now_ms())
            return
        # Whatever is in line comes first: a thread that writes all the time must not keep peers
        # from being heard.
        is_idle = not self._wanted and self._queue.empty()
        if is_idle and self._lock.acquire(blocking=False):
            try:
                if not self._closed.is_set():
                    self._publish_here()
                    return
            finally:
                self._release()
        if self._closed.is_set():
            raise StoreClosed("the node is closed")
        waiting: Future[None] = Future()
        self._queue.put(waiting)
        if self._closed.is_set():
            # The thread may have ended between the two lines, and then nobody reads the queue.
            self._refuse_rest()
        waiting.result(timeout_s)

    def stop(self) -> None:
        """Finish what was submitted, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    # --- on any thread ------------------------------------------------------------------------

    def _publish_here(self) -> None:
        """Publish on the caller's thread, which has the lock."""
        self._holder = threading.get_ident()
        began_ms = self._clock.now_ms()
        try:
            with collector_paused:
                self._replicator.publish(began_ms)
        except Exception as error:
            self._failed(error)
            raise
        finally:
            self._excuse(began_ms)
            self._hand_out()
            deadline_ms, sleeps_until_ms = self._replicator.deadline_ms, self._deadline_ms
            if deadline_ms is not None and (
                sleeps_until_ms is None or deadline_ms < sleeps_until_ms
            ):
                self._deadline_ms = deadline_ms
                self._queue.put((_wake, None))

    def _release(self) -> None:
        self._holder = 0
        self._lock.release()

    def _excuse(self, began_ms: int) -> None:
        busy_ms = self._clock.now_ms() - began_ms
        if busy_ms >= BUSY_MS_MIN:
            self._replicator.tick(self._clock.now_ms(), busy_ms)

    def _hand_out(self, done: Done | None = None) -> None:
        effects = self._replicator.take_effects()
        if effects or done is not None:
            try:
                self._deliver(effects, done)
            except Exception as error:  # noqa: BLE001 - as in `_guard`; what they say has happened
                _log.exception("a fault while effects were handed out")
                self._failed(error)

    def _refuse_rest(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, Future):
                item.set_exception(StoreClosed("the node is closed"))

    # --- on the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        running = True
        while running:
            taken = self._take()
            self._wanted = True
            self._lock.acquire()
            self._wanted = False
            try:
                self._holder = threading.get_ident()
                running = self._turn(taken)
                if not running:
                    self._closed.set()
            finally:
                self._release()
        self._refuse_rest()

    def _take(self) -> list[Item]:
        """Return what is to be done now: wait for something, or for the next deadline."""
        deadline_ms = self._deadline_ms
        wait_s = None
        if deadline_ms is not None:
            wait_s = max(0, deadline_ms - self._clock.now_ms()) / 1_000
        if self._strangers:
            wait_s = 0
        taken: list[Item] = []
        try:
            taken.append(self._queue.get(timeout=wait_s))
            while len(taken) < TURN_ACTIONS_MAX:
                taken.append(self._queue.get_nowait())
        except queue.Empty:
            return taken
        return taken

    def _turn(self, taken: list[Item]) -> bool:
        replicator = self._replicator
        began_ms = self._clock.now_ms()
        waiting: list[Future[None]] = []
        running = True
        for item in taken:
            if item is None:
                running = False
            elif isinstance(item, Future):
                waiting.append(item)
            else:
                action, done = item
                self._guard(action)
                self._hand_out(done)  # at once: answers may be long, and many would pile up here
        if waiting:
            self._publish(waiting)
        self._serve_strangers(began_ms, everything=not running)
        self._excuse(began_ms)
        deadline_ms = replicator.deadline_ms
        if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
            self._guard(_tick)
            deadline_ms = replicator.deadline_ms
        self._deadline_ms = deadline_ms
        self._hand_out()
        return running

    def _serve_strangers(self, began_ms: int, *, everything: bool) -> None:
        """Do what strangers want: no more than half of the time while others wait."""
        end_ms = began_ms + STRANGERS_MS_MAX
        before_ms = self._clock.now_ms()
        self._lead_ms = max(0, self._lead_ms - (before_ms - began_ms))
        if self._queue.empty():
            self._lead_ms = 0
        while self._strangers and (everything or not self._lead_ms):
            action, done = self._strangers.popleft()
            self._replicator.crowded = bool(self._strangers)
            self._guard(action)
            self._replicator.crowded = False
            self._hand_out(done)
            now_ms = self._clock.now_ms()
            if not self._queue.empty():
                self._lead_ms += now_ms - before_ms
            before_ms = now_ms
            if (now_ms >= end_ms or not self._queue.empty()) and not everything:
                return

    def _publish(self, waiting: list[Future[None]]) -> None:
        try:
            with collector_paused:
                self._replicator.publish(self._clock.now_ms())
        except Exception as error:  # noqa: BLE001 - it is the callers', whatever it is
            for one in waiting:
                one.set_exception(error)
            self._failed(error)
        else:
            for one in waiting:
                one.set_result(None)

    def _guard(self, action: Action) -> None:
        """Do one thing; a fault in it must not end the thread, which is the node."""
        try:
            with collector_paused:
                action(self._replicator, self._clock.now_ms())
        except DataLatticeError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must show, not kill the node
            _log.exception("a fault while handling an event")
            self._failed(error)


def _wake(_replicator: Replicator, _now_ms: int) -> None:
    """Do nothing: what the thread sleeps until has changed."""


def _tick(replicator: Replicator, now_ms: int) -> None:
    replicator.tick(now_ms)
