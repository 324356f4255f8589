"""Lanes: run the actions of each replicator one after another, with a few threads for all of them.

A replicator is not thread-safe, and its storage may block. So each replicator has a `Lane`, a queue
of actions, and a `LanePool` has the threads that work on the lanes:

- A lane that has actions waits in the pool's queue of ready lanes. A thread takes the first lane,
  *holds* it for one turn (up to 64 actions or 50 ms), and puts it at the end of the queue if there
  is more to do. Only one thread holds a lane at a time, so its actions never overlap.
- A thread without work waits. One of the waiting threads, the *watcher*, waits only until the
  earliest deadline of all lanes, when the timers of a replicator are due.
- A publication of local writes runs on the calling thread if the lane is free, which saves two
  thread switches. Otherwise it queues as a Future. One commit serves all publications of a turn.
- The effects of each action are delivered right after it, when everything they state is durable.

Strangers are peers that the operator did not name. Their messages have queues of their own, in each
lane and in the pool. A question of a few bytes may take long to answer, and there may be many
strangers, so their actions wait for all others. But they make progress: each turn ends with at
least one action of the lane's strangers, and a lane where only strangers wait gets one turn in
four. Both rules stop while strangers are ahead: as long as others wait, all strangers together get
no more time than the others (`_lead_ms` is how much they are ahead).

Source: docs/protocol.md "Limits"; docs/design/identity.md.

Length: the pool and its lanes are one state machine under one lock.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from datalattice.clock import Clock
from datalattice.cursors import collector_paused
from datalattice.errors import DataLatticeError, StoreClosed, UsageError
from datalattice.sync import Effects, Replicator

LaneAction = Callable[[Replicator, int], object]
"""Changes the replicator; called with it and the time in ms."""

Done = Callable[[], None]
"""Called once the effects of an action were carried out."""

LaneItem = tuple[LaneAction, "Done | None"]

LANE_THREADS_MAX: Final = 4  # enough to wait for disks; the GIL limits computing

# A turn ends after so many actions or milliseconds: the bound on the wait of a publication.
TURN_ACTIONS_MAX: Final = 64
TURN_MS_MAX: Final = 50

STRANGERS_TURN: Final = 4  # every fourth turn may go to a lane where strangers alone wait

DEADLINES_SPARE: Final = 64  # superseded deadlines kept in the heap beyond two for each lane

BUSY_MS_MIN: Final = 500  # after a turn this long, peers' deadlines are extended by its time

_log = logging.getLogger("datalattice.node")


class SteadyClock:
    """A clock that never steps back: for time-outs, not for timestamps."""

    def now_ms(self) -> int:
        """Return milliseconds since a fixed moment."""
        return time.monotonic_ns() // 1_000_000


class LanePool:
    """A few threads for any number of lanes; a thread begins when there is work for it.

    One lock guards the state of the pool and of all its lanes. No action runs under it.
    """

    def __init__(self, threads: int | None = None, clock: Clock | None = None) -> None:
        """Make a pool without lanes.

        threads: 1 to `LANE_THREADS_MAX`; by default one for each processor, up to that.
        clock:   of the deadlines, in milliseconds; it must not step back.
        Raises: UsageError: `threads` is out of range.
        """
        if threads is None:
            threads = min(LANE_THREADS_MAX, os.cpu_count() or 1)
        if not 1 <= threads <= LANE_THREADS_MAX:
            raise UsageError(f"a pool has 1 to {LANE_THREADS_MAX} threads, not {threads}")
        self.clock: Final = clock or SteadyClock()
        self._threads_max = threads
        self._lock = threading.Lock()
        self._lanes: set[Lane] = set()  # that have not ended
        # Lanes that wait for a thread, in order. A lane is in one of the two at most.
        self._ready: collections.OrderedDict[Lane, None] = collections.OrderedDict()
        self._strangers: collections.OrderedDict[Lane, None] = collections.OrderedDict()
        self._passed = 0  # turns in a row given to `_ready` while `_strangers` waited
        self._lead_ms = 0  # time that strangers had more than the others, while these waited
        self._deadlines: list[tuple[int, int, Lane]] = []  # a heap; see `Lane._armed_ms`
        self._numbers = itertools.count()  # breaks ties in the heap, since lanes do not compare
        self._threads: list[threading.Thread] = []
        self._idle: list[threading.Lock] = []  # releasing one wakes the thread that waits for it
        self._coming = 0  # threads woken or begun that have not looked for work yet
        self._watcher: threading.Lock | None = None  # of the thread that waits for a deadline
        self._watched_ms = 0  # that deadline
        self._closed = False

    @property
    def thread_count(self) -> int:
        """How many threads have begun."""
        return len(self._threads)

    def close(self) -> None:
        """Stop all lanes once their queues are empty, and end the threads. Not from an action."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes)
        for lane in lanes:
            self._end(lane)
        for lane in lanes:
            lane.stop()
        with self._lock:
            while self._idle:
                self._call()
        for thread in self._threads:
            thread.join()

    # --- what lanes ask for -------------------------------------------------------------------

    def _add(self, lane: Lane) -> None:
        with self._lock:
            if self._closed:
                raise StoreClosed("the node is closed")
            self._lanes.add(lane)

    def _begin(self, lane: Lane) -> None:
        with self._lock:
            lane._is_begun = True
            self._settle(lane)

    def _end(self, lane: Lane) -> None:
        """Accept nothing more for a lane; it ends when its queue is empty."""
        with self._lock:
            lane._is_begun = lane._is_ending = True
            self._settle(lane)

    def _submit(self, lane: Lane, task: LaneItem, *, stranger: bool) -> None:
        with self._lock:
            if not lane._is_ending:
                (lane._strangers if stranger else lane._line).append(task)
                if not lane._is_held:  # the thread that holds it looks again after its turn
                    self._settle(lane)

    def _hold(self, lane: Lane) -> Future[None] | None:
        """Let the calling thread hold the lane if it is free (None); else queue a publication.

        Raises: StoreClosed: the lane was stopped.
        """
        with self._lock:
            if lane._is_ending:
                raise StoreClosed("the node is closed")
            # Queued actions go first: a thread that publishes all the time must not starve peers.
            if not (lane._is_held or lane._line or lane._strangers or lane in self._ready):
                lane._is_held = True
                return None
            place: Future[None] = Future()
            lane._line.append(place)
            self._settle(lane)
            return place

    def _give_back(self, lane: Lane) -> None:
        with self._lock:
            lane._is_held = False
            # Nothing was queued meanwhile and its deadline is entered: as for most publications.
            is_settled = lane._deadline_ms == lane._armed_ms and not lane._is_ending
            if lane._line or lane._strangers or not is_settled:
                self._settle(lane)

    def _account(self, others_ms: int, strangers_ms: int, *, waited: bool) -> bool:
        """Add time used; `waited`: others wait. Return whether strangers are ahead in time."""
        with self._lock:
            lead_ms = max(0, self._lead_ms - others_ms) + strangers_ms
            self._lead_ms = lead_ms if waited else 0
            return self._lead_ms > 0

    # --- with the lock ------------------------------------------------------------------------

    def _settle(self, lane: Lane) -> None:
        """Put a lane that no thread holds into the right queue, and wake a thread for it."""
        self._requeue(lane)
        self._staff()

    def _requeue(self, lane: Lane) -> None:
        """Put a lane that no thread holds into the right queue, or end it."""
        if lane._is_held or not lane._is_begun or (lane in self._ready and lane._line):
            return
        if lane._line or (lane._strangers and lane._is_ending):
            self._make_ready(lane, self.clock.now_ms())
        elif lane._is_ending:
            self._ready.pop(lane, None)
            lane._armed_ms = None
            self._lanes.discard(lane)
            lane._ended.set()
        elif lane not in self._ready:
            if lane._strangers:
                self._strangers.setdefault(lane)
            self._arm(lane)

    def _make_ready(self, lane: Lane, now_ms: int) -> None:
        if lane not in self._ready:
            self._strangers.pop(lane, None)
            self._ready[lane] = None
            if lane._waits_since_ms is None:
                lane._waits_since_ms = now_ms

    def _arm(self, lane: Lane) -> None:
        """Enter the deadline of a lane in the heap."""
        if lane._deadline_ms == lane._armed_ms:
            return
        lane._armed_ms = lane._deadline_ms
        if lane._armed_ms is None:
            return
        heap = self._deadlines
        heapq.heappush(heap, (lane._armed_ms, next(self._numbers), lane))
        # Superseded entries stay in the heap until their time; with many of them it is rebuilt.
        if len(heap) > 2 * len(self._lanes) + DEADLINES_SPARE:
            armed = [one for one in self._lanes if one._armed_ms is not None]
            heap[:] = [(one._armed_ms or 0, next(self._numbers), one) for one in armed]
            heapq.heapify(heap)

    def _next_deadline(self, now_ms: int | None = None) -> int | None:
        """Make lanes ready whose deadline has passed; return the earliest deadline of the others.

        now_ms: None: make none ready.
        """
        heap = self._deadlines
        while heap:
            first_ms, _, lane = heap[0]
            if lane._armed_ms == first_ms:
                if now_ms is None or first_ms > now_ms:
                    return first_ms
                lane._armed_ms = None
                if not lane._is_held:  # else the thread checks the deadline at the end of the turn
                    self._make_ready(lane, now_ms)
            # Superseded: its lane has another deadline by now, or none.
            heapq.heappop(heap)
        return None

    def _staff(self) -> None:
        """Wake a thread for each ready lane, and at least one if none awaits the deadline."""
        count = len(self._ready) + len(self._strangers)
        if count <= self._coming and (count or self._is_watched(self._next_deadline())):
            return
        count = count or 1
        while self._coming < count and self._call():
            pass

    def _is_watched(self, deadline_ms: int | None) -> bool:
        """Return whether a thread wakes up at that deadline or before; None: there is none."""
        return deadline_ms is None or (
            self._watcher is not None and self._watched_ms <= deadline_ms
        )

    def _call(self) -> bool:
        """Wake a thread or begin one; return False if all are busy."""
        if self._idle:
            # The thread that became idle last has warm caches. The watcher is woken only if no
            # other thread is idle: another one would have to take over the watch.
            index = -2 if self._idle[-1] is self._watcher and len(self._idle) > 1 else -1
            bell = self._idle.pop(index)
            if bell is self._watcher:
                self._watcher = None
            bell.release()
        elif len(self._threads) < self._threads_max and (self._lanes or not self._closed):
            name = f"datalattice-lanes-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        else:
            return False
        self._coming += 1
        return True

    def _take(self) -> Lane | None:
        """Dequeue the lane whose turn it is, and hold it."""
        if not self._ready and not self._strangers:
            return None
        # One turn in four, unless strangers are ahead in time.
        is_due = self._passed >= STRANGERS_TURN - 1 and not self._lead_ms
        if self._strangers and (is_due or not self._ready):
            lane, _ = self._strangers.popitem(last=False)
            self._passed = 0
        else:
            lane, _ = self._ready.popitem(last=False)
            self._passed = self._passed + 1 if self._strangers else 0
        lane._is_held = True
        return lane

    # --- on the threads -----------------------------------------------------------------------

    def _run(self) -> None:
        bell = threading.Lock()
        bell.acquire()
        lane: Lane | None = None
        while True:
            with self._lock:
                if lane is None:
                    self._coming -= 1
                else:
                    lane._is_held = False
                    self._requeue(lane)  # no thread is woken: this one takes the next lane
                lane, now_ms = self._wait(bell)
            if lane is None:
                return
            try:
                lane._turn(now_ms)
            except Exception:  # noqa: BLE001 - the thread belongs to all lanes
                _log.exception("a fault in a turn of a lane")

    def _wait(self, bell: threading.Lock) -> tuple[Lane | None, int]:
        """Return (the next lane, once there is one, the time); None: the pool is closed.

        Under the lock.
        """
        while True:
            now_ms = self.clock.now_ms()
            first_ms = self._next_deadline(now_ms)
            lane = self._take()
            if lane is not None:
                if len(self._lanes) > 1:
                    self._staff()  # this thread is busy: others have to do the rest
                return lane, now_ms
            if self._closed and not self._lanes:
                return None, now_ms
            wait_s = -1.0
            if first_ms is not None and not self._is_watched(first_ms):
                self._watcher, self._watched_ms = bell, first_ms
                wait_s = min((first_ms - now_ms) / 1_000, threading.TIMEOUT_MAX)
            self._idle.append(bell)
            self._lock.release()
            try:
                was_called = bell.acquire(timeout=wait_s)
            finally:
                self._lock.acquire()
            if bell in self._idle:
                self._idle.remove(bell)
                if self._watcher is bell:
                    self._watcher = None
            else:
                if not was_called:  # called between the end of the wait and taking the lock
                    bell.acquire()
                self._coming -= 1


class Lane:
    """The queue of actions on one replicator, which is used in its lane alone.

    Its methods may be called from any thread.
    """

    def __init__(
        self,
        pool: LanePool,
        replicator: Replicator,
        deliver: Callable[[Effects, Done | None], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Make a lane that runs nothing until `start`.

        deliver: called with the effects of each action or publication, on the thread that ran it.
        failed:  called with each error there.
        Raises: StoreClosed: the pool is closed.
        """
        self._pool = pool
        self._replicator = replicator
        self._deliver = deliver
        self._failed = failed
        self._clock = pool.clock
        self._holder = 0  # id of the thread that works on it, 0 for none
        # Under the pool's lock, except that the holder takes from the two queues.
        self._line: collections.deque[LaneItem | Future[None]] = collections.deque()
        self._strangers: collections.deque[LaneItem] = collections.deque()
        self._is_begun = False
        self._is_held = False  # a thread works on it
        self._is_ending = False
        self._waits_since_ms: int | None = None  # since when it is ready without a thread
        self._deadline_ms: int | None = None  # when the replicator's next timer is due
        self._armed_ms: int | None = None  # the deadline entered in the pool's heap
        self._ended = threading.Event()
        pool._add(self)

    def start(self) -> None:
        """Begin to work."""
        self._deadline_ms = self._replicator.deadline_ms
        self._pool._begin(self)

    def submit(
        self, action: LaneAction, done: Done | None = None, *, stranger: bool = False
    ) -> None:
        """Queue an action; after `stop` it is dropped.

        done:     delivered with the effects of the action.
        stranger: queue it behind the actions of all others.
        """
        self._pool._submit(self, (action, done), stranger=stranger)

    def publish(self, timeout_s: float | None = None) -> None:
        """Return when every local write made before the call is durable.

        Raises: StoreError: they could not be written. StoreClosed: the node is closed.
                TimeoutError: it took longer than `timeout_s` seconds.
        """
        # An action of this lane publishes directly: it would wait for itself otherwise.
        if self._holder == threading.get_ident():
            self._replicator.publish(self._clock.now_ms())
            return
        place = self._pool._hold(self)
        if place is not None:
            place.result(timeout_s)
            return
        try:
            self._publish_here()
        finally:
            self._holder = 0
            self._pool._give_back(self)

    def stop(self) -> None:
        """Run what was submitted, and end. Not from an action: it may be on the only thread.

        Raises: UsageError: called by an action of this lane, which would wait for itself.
        """
        if self._holder == threading.get_ident():
            raise UsageError("an action cannot wait for the end of its own lane")
        self._pool._end(self)
        self._ended.wait()

    # --- on the thread that holds it ----------------------------------------------------------

    def _publish_here(self) -> None:
        """Publish on the caller's thread, which holds the lane."""
        self._holder = threading.get_ident()
        began_ms = self._clock.now_ms()
        try:
            with collector_paused:
                self._replicator.publish(began_ms)
        except Exception as error:
            self._failed(error)
            raise
        finally:
            self._excuse(began_ms, self._clock.now_ms())
            self._hand_out()
            self._deadline_ms = self._replicator.deadline_ms

    def _turn(self, began_ms: int, actions_max: int = TURN_ACTIONS_MAX) -> None:
        self._holder = threading.get_ident()
        try:
            waits_since_ms, self._waits_since_ms = self._waits_since_ms, None
            waiting, now_ms = self._serve(began_ms, actions_max)
            if waiting:
                self._publish(waiting)
                now_ms = self._clock.now_ms()
            now_ms = self._serve_strangers(began_ms, now_ms)
            # "An answer has 5 s; time that this node was busy does not count": waiting for a thread
            # counts as busy too.
            self._excuse(began_ms if waits_since_ms is None else waits_since_ms, now_ms)
            deadline_ms = self._replicator.deadline_ms
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._guard(lambda replicator, now_ms: replicator.tick(now_ms), now_ms)
                self._hand_out()
                deadline_ms = self._replicator.deadline_ms
            self._deadline_ms = deadline_ms
        finally:
            self._holder = 0

    def _serve(self, began_ms: int, actions_max: int) -> tuple[list[Future[None]], int]:
        """Run queued actions for one turn; return the publications among them, and the time now."""
        waiting: list[Future[None]] = []
        now_ms = began_ms
        for _ in range(actions_max):
            if not self._line or now_ms >= began_ms + TURN_MS_MAX:
                break
            task = self._line.popleft()
            # One commit covers all earlier writes, so all publications of a turn share it.
            if isinstance(task, Future):
                waiting.append(task)
            else:
                self._guard(task[0], now_ms)
                self._hand_out(task[1])  # at once: long answers would pile up
                now_ms = self._clock.now_ms()
        return waiting, now_ms

    def _serve_strangers(self, began_ms: int, before_ms: int) -> int:
        """Run the actions of strangers; while others wait, at most half of the time.

        before_ms: the time now.
        Returns:   the time after it.
        """
        if not self._strangers and not self._pool._lead_ms:
            return before_ms
        waited = self._others_wait()
        are_ahead = self._pool._lead_ms > 0 and self._pool._account(
            before_ms - began_ms, 0, waited=waited
        )
        while self._strangers and (self._is_ending or not are_ahead):
            action, done = self._strangers.popleft()
            # "Told half a second later while more of them wait" (docs/design/foreign-data.md).
            self._replicator.crowded = bool(self._strangers)
            self._guard(action, before_ms)
            self._replicator.crowded = False
            self._hand_out(done)
            now_ms = self._clock.now_ms()
            waited = self._others_wait()
            are_ahead = self._pool._account(0, now_ms - before_ms, waited=waited)
            before_ms = now_ms
            if now_ms >= began_ms + TURN_MS_MAX or (waited and not self._is_ending):
                break
        return before_ms

    def _others_wait(self) -> bool:
        """Whether other actions than those of strangers wait, here or in another lane."""
        return bool(self._line) or bool(self._pool._ready)

    def _publish(self, waiting: list[Future[None]]) -> None:
        try:
            with collector_paused:
                self._replicator.publish(self._clock.now_ms())
        except Exception as error:  # noqa: BLE001 - raised again to the callers
            for one in waiting:
                one.set_exception(error)
            self._failed(error)
        else:
            for one in waiting:
                one.set_result(None)
        self._hand_out()

    def _excuse(self, began_ms: int, now_ms: int) -> None:
        """Extend the deadlines of peers by the time in which the node did not read them."""
        busy_ms = now_ms - began_ms
        if busy_ms >= BUSY_MS_MIN:
            self._guard(lambda replicator, now_ms: replicator.tick(now_ms, busy_ms), now_ms)
            self._hand_out()

    def _hand_out(self, done: Done | None = None) -> None:
        try:
            effects = self._replicator.take_effects()
            # Delivered only after the action: what effects state is durable by then.
            if effects or done is not None:
                self._deliver(effects, done)
        except Exception as error:  # noqa: BLE001 - as in `_guard`; what the effects state is durable
            _log.exception("a fault while effects were handed out")
            self._failed(error)

    def _guard(self, action: LaneAction, now_ms: int) -> None:
        """Run one action; an error in it must not end the turn, which has more to do."""
        try:
            with collector_paused:
                action(self._replicator, now_ms)
        except DataLatticeError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours degrades the node, and does not end it
            _log.exception("a fault while handling an event")
            self._failed(error)
