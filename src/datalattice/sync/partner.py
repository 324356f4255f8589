"""Partner: what a replicator knows of one peer in any protocol, and when its next step is due."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from datalattice.sync.conduct import Conduct
from datalattice.sync.conversation import Conversation
from datalattice.sync.effects import Pace
from datalattice.sync.replica import FETCHES, REPLICATES, Comparison, Peer, Probe, Reply

UNSENT_MAX: Final = 128
"""Frames that may wait to be written to one peer before pushes to it are held back."""

ANSWERS_MAX: Final = 64
"""Unfinished answers to one peer; its requests beyond that are refused."""

ANSWERED_MAX: Final = 16
"""Frames that may wait to be written to one peer before the next reply to it is made."""

QUIET_MS: Final = 2
"""A burst of changes is over when none comes for this long."""

CROWDED_MS: Final = 500
"""How long a push of strangers' changes may wait while more strangers wait to be read.

Each push costs every peer a merge and a commit, which would delay what honest peers write.
"""

PUSHED_MAX: Final = 64
"""Pushed states that are remembered for each peer."""

REPUSH_MS: Final = 1_000
"""Least time between two repeats, to a stranger, of a state that it could not read."""

AGAIN_MS: Final = 1_000
"""Rest before a dirty peer is compared again; doubled each time, up to the interval."""

COMPLETE_BYTES_PER_S: Final = 10_000_000
"""Pace of complete values: the next push waits by the bytes of the last one."""

STALE_MAX: Final = 64
"""The heap of a timetable is rebuilt beyond twice its names and this many entries."""


class Timetable:
    """A due time for each name. `put` takes logarithmic time, `first_ms` amortized constant."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def put(self, name: str, time_ms: int | None) -> None:
        """Set when a name is due; None: never."""
        if time_ms is None:
            self._times.pop(name, None)
        elif self._times.get(name) != time_ms:
            # The old entry stays in the heap until it reaches the top.
            self._times[name] = time_ms
            heapq.heappush(self._heap, (time_ms, name))
            if len(self._heap) > 2 * len(self._times) + STALE_MAX:
                self._heap = [(ms, one) for one, ms in self._times.items()]
                heapq.heapify(self._heap)

    @property
    def first_ms(self) -> int | None:
        """When the first name is due, None when none is."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now_ms: int) -> set[str]:
        """Remove and return the names that are due."""
        taken: set[str] = set()
        while (first_ms := self.first_ms) is not None and first_ms <= now_ms:
            _, name = heapq.heappop(self._heap)
            del self._times[name]
            taken.add(name)
        return taken


@dataclass(slots=True)
class OpenComparison:
    """A comparison that is not over.

    needs:        parts that it needs and that are not here.
    is_done:      this side asks nothing more.
    has_finished: `Finish` was sent.
    has_moved:    it needed parts, or parts were sent to the peer meanwhile.
    is_partial:   parts are left out: by the comparison, or because no peer delivered them.
    """

    comparison: Comparison
    needs: set[bytes] = field(default_factory=set)
    is_done: bool = False
    has_finished: bool = False
    has_moved: bool = False
    is_partial: bool = False


@dataclass(slots=True)
class OpenAnswer:
    """An unfinished answer to a request of the peer; its replies are made as the peer reads."""

    exchange: object
    request: object
    replies: Iterator[Reply]


@dataclass(slots=True)
class Partner:
    """The other end of one connection.

    id:             the name of the connection.
    peer:           who it is, as far as the conversation has learnt.
    admitted:       the replica admitted it when last asked.
    joined:         changes are pushed to it.
    met:            its features are known: it greeted us, or answered our greeting.
    sent, received: the last states that it was sent, and that it stated and we took in. The next
                    push is the difference to them. They are hints: a peer that lacks a cell all
                    the same asks for it.
    sent_last:      `sent` is the later of the two.
    pushed_keys:    keys of the last states that it was sent.
    lost_patch:     it could not read one of them, so the next push is not a patch.
    repush_ms:      from when on such a report of a stranger counts again.
    stated:         the key of the last state that it stated, taken in or not.
    is_settled:     `stated` was taken in, as `received`.
    has_news:       there may be something to push.
    is_refused:     it was not admitted when something was to be pushed. The next event or
                    comparison asks again: to wake for it would be a busy loop.
    paced_ms:       when the pushes made so far would have left at one in `broadcast_delay_ms`.
    may_push_early: the next push need not wait for the window to end, since few were made lately.
    window_ms:      when the window of the last push ends.
    push_after_ms:  the earliest time of the next push.
    compare_after_ms: when the next comparison of the interval is due.
    is_dirty:       a message between the two may have been lost; a complete comparison clears it.
    again_ms:       when it is compared again because of that; None: with the next one that is due.
    rest_ms:        how long the next rest before such a comparison is.
    compared_ms:    when a comparison was last complete.
    agreed_ms:      while `is_agreed`, since when it has our state; otherwise until when it had it.
    comparisons:    open comparisons, by exchange.
    answers:        unfinished answers, in the order in which each makes its next reply.
    start:          its start, signed with its proved key.
    claimed:        the key that it claims to hold, not proved.
    """

    conversation: Conversation
    id: str = field(init=False)
    peer: Peer = field(init=False)
    admitted: bool = True
    joined: bool = False
    met: bool = False
    sent: Probe | None = None
    received: Probe | None = None
    sent_last: bool = False
    pushed_keys: deque[bytes] = field(default_factory=lambda: deque(maxlen=PUSHED_MAX))
    lost_patch: bool = False
    repush_ms: int = 0
    stated: bytes | None = None
    is_settled: bool = False
    claimed: bytes | None = None
    start: object = None
    has_news: bool = False
    is_refused: bool = False
    paced_ms: int = 0
    may_push_early: bool = False
    window_ms: int = 0
    push_after_ms: int = 0
    compare_after_ms: int = 0
    is_dirty: bool = True
    again_ms: int | None = None
    rest_ms: int = AGAIN_MS
    compared_ms: int | None = None
    agreed_ms: int | None = None
    is_agreed: bool = False
    unsent_count: int = 0
    conduct: Conduct = field(default_factory=Conduct)
    closing: bool = False
    comparisons: dict[int, OpenComparison] = field(default_factory=dict)
    answers: deque[OpenAnswer] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.peer = self.conversation.peer
        self.id = self.peer.connection

    @property
    def is_plain(self) -> bool:
        """Whether it fetches nothing, so that offers to it carry all their parts."""
        # Before it is met nothing is known, so nothing complete is made for it.
        return self.met and FETCHES not in self.peer.features

    @property
    def known(self) -> tuple[Probe, ...]:
        """The states that this peer probably holds, the later one first."""
        both = (self.sent, self.received) if self.sent_last else (self.received, self.sent)
        return tuple([probe for probe in both if probe is not None])

    @property
    def is_full(self) -> bool:
        """Whether `UNSENT_MAX` frames wait to be written to it."""
        return self.unsent_count >= UNSENT_MAX

    @property
    def has_open_answers(self) -> bool:
        """Whether the next reply of an answer may be made now."""
        return bool(self.answers) and self.unsent_count < ANSWERED_MAX and not self.closing

    @property
    def may_push(self) -> bool:
        """Whether something may be pushed to this peer, apart from the pace."""
        # "Pushes to a peer that does not read: held back from 128 frames on" (docs/protocol.md).
        if not (self.joined and self.met) or self.is_full or self.closing:
            return False
        # Complete values may be long, so a plain peer gets them one at a time.
        return not (self.unsent_count and self.is_plain)

    @property
    def next_compare_ms(self) -> int:
        """When the next comparison with it is due."""
        if self.again_ms is None:
            return self.compare_after_ms
        return min(self.compare_after_ms, self.again_ms)

    def twins(self, partners: Iterable[Partner]) -> list[Partner]:
        """Return the live ones with the same identity and another start."""
        if self.start is None:
            return []
        # Equal starts are two connections of one node, which is no clone.
        return [
            one
            for one in partners
            if not one.closing
            and one.start is not None
            and one.peer.public_key == self.peer.public_key
            and one.start != self.start
        ]

    @property
    def due_ms(self) -> int | None:
        """When there is something to do for this peer; None: not before the next event."""
        due_ms = self.conversation.deadline_ms
        if not self.joined or self.closing or self.is_full:
            return due_ms
        if due_ms is None or self.next_compare_ms < due_ms:
            due_ms = self.next_compare_ms
        # News for a refused peer set no alarm: it would ring again and again.
        is_news = self.has_news and not self.is_refused
        if is_news and self.push_after_ms < due_ms and self.may_push:
            due_ms = self.push_after_ms
        return due_ms

    def pushed(self, probe: Probe, now_ms: int, pace: Pace, *, is_whole: bool = True) -> None:
        """Note that this peer was sent a state; decide when the next push may leave.

        is_whole: as of `News`: the state also shows what was lost before, as a comparison does.
        """
        self.sent, self.sent_last, self.lost_patch = probe, True, False
        self.pushed_keys.append(probe.key)
        if is_whole:
            self.compare_after_ms = now_ms + pace.root_sync_interval_ms
        # A token bucket: each push costs 50 ms, and time pays them back.
        self.paced_ms = max(self.paced_ms, now_ms) + pace.broadcast_delay_ms
        is_alike = REPLICATES in self.peer.features
        ahead_ms = (pace.burst_max - 1) * pace.broadcast_delay_ms
        # "Up to eight times in a row, and still no more than once in 50 ms on average"
        # (docs/protocol.md, What is sent when).
        self.may_push_early = is_alike and self.paced_ms - ahead_ms <= now_ms
        self.push_after_ms = self.window_ms = now_ms + pace.broadcast_delay_ms

    def pushed_complete(self, size_bytes: int, now_ms: int, pace: Pace) -> None:
        """Note that a plain peer was sent complete values; decide when more may leave."""
        # "At most 8 MB at a time, at 10 MB/s": nothing says how fast a plain peer takes them in
        # (docs/protocol.md, Plain peers).
        pause_ms = 1_000 * size_bytes // COMPLETE_BYTES_PER_S
        self.push_after_ms = now_ms + max(pace.broadcast_delay_ms, pause_ms)

    def asked_for(self, hashes: Collection[bytes], now_ms: int, *, is_wanted: bool = False) -> bool:
        """Note which parts this peer requests; return whether our state must be pushed again."""
        # A peer that asks for the top cell of a pushed state could not read the patch. The next
        # push rests on the state that the peer itself stated.
        if not any(key in hashes for key in self.pushed_keys):
            return False
        # A stranger that asks for tops again and again gets one push a second.
        if now_ms < self.repush_ms and not is_wanted:
            return False
        self.repush_ms = now_ms + REPUSH_MS
        self.pushed_keys.clear()
        self.sent, self.sent_last = None, False
        self.lost_patch = self.has_news = True
        return True

    def changed(self, now_ms: int, *, crowded: bool = False) -> bool:
        """Note that there is something to push: at the end of the window, or of the burst.

        crowded: strangers changed it and more of them wait, so it may wait `CROWDED_MS`.
        Returns: whether its due time may have changed.
        """
        had_news, self.has_news, before_ms = self.has_news, True, self.push_after_ms
        if self.is_agreed:
            self.agrees(now_ms, is_equal=False)
        if self.is_plain:
            return not had_news
        # "What strangers changed is told half a second later while more of them wait, or with what
        # others change" (docs/design/foreign-data.md, Order of work).
        if crowded:
            if not had_news:
                self.push_after_ms = max(self.push_after_ms, now_ms + CROWDED_MS)
        elif self.may_push_early:
            self.push_after_ms = min(self.window_ms, now_ms + QUIET_MS)
        else:
            self.push_after_ms = min(self.push_after_ms, self.window_ms)
        return not had_news or self.push_after_ms != before_ms

    def doubt(self, now_ms: int, pace: Pace, *, at_once: bool = False) -> None:
        """Note that a message may have been lost; plan to compare again, after a rest."""
        self.is_dirty = True
        for running in self.comparisons.values():
            running.is_partial = True  # it may have begun before the loss
        if at_once:
            self.again_ms = now_ms
        elif self.again_ms is None:
            self.again_ms = now_ms + self.rest_ms
            self.rest_ms = min(2 * self.rest_ms, pace.root_sync_interval_ms)

    def compared(self, now_ms: int) -> None:
        """Note that a comparison was complete: it has brought what was lost before."""
        self.is_dirty, self.again_ms, self.rest_ms = False, None, AGAIN_MS
        self.compared_ms = now_ms

    def agrees(self, now_ms: int, *, is_equal: bool) -> None:
        """Note whether it is now known to have our state."""
        if self.is_agreed != is_equal:
            self.is_agreed, self.agreed_ms = is_equal, now_ms

    def has_stated(self, key: bytes) -> None:
        """Note that this peer stated a state, which is not yet compared with ours."""
        self.stated, self.is_settled = key, False

    def heard(self, probe: Probe, finished: Collection[bytes], *, part: bool = False) -> None:
        """Note that all of a state that this peer stated is here now, as `probe`.

        finished: keys of the states, as they were stated, that need nothing more.
        part:     it is only a part of the peer's state.
        """
        if not part:
            self.received, self.sent_last = probe, False
            self.is_settled = self.stated in finished  # else it has stated another one since
        elif not self.is_plain:
            return
        self.has_news = True
