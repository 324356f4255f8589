"""Partner: what a replicator knows of one peer, whatever protocol they speak."""

from __future__ import annotations

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
"""Answers of which more follows that one peer may have open; what it asks beyond is refused."""

ANSWERED_MAX: Final = 16
"""Frames that may wait to be written to one peer before the next of these replies is made."""

QUIET_MS: Final = 2
"""A burst of changes is over when none comes for this long: then it may be told early."""

CROWDED_MS: Final = 500
"""How long what strangers changed may wait to be told while more of them wait to be heard.

Each push costs every peer a merge and a commit: what honest peers write would stand in line there.
"""

TOLD_MAX: Final = 64
"""States of which it is remembered that a peer was told them."""

RETELL_MS: Final = 1_000
"""Least time between two repeats, to a stranger, of a state that it could not read."""

LOT_BYTES_PER_S: Final = 10_000_000
"""Pace of offers that are complete in themselves: the next ones wait by the bytes of the last."""


@dataclass(slots=True)
class OpenComparison:
    """A comparison that is not over.

    needs: parts that it made wanted and that are not here. is_done: it asks nothing more.
    has_finished: the peer was told so.
    """

    comparison: Comparison
    needs: set[bytes] = field(default_factory=set)
    is_done: bool = False
    has_finished: bool = False


@dataclass(slots=True)
class OpenAnswer:
    """The answer to a request of the peer of which more follows, made as the peer reads."""

    exchange: object
    request: object
    replies: Iterator[Reply]


@dataclass(slots=True)
class Partner:
    """The other end of one connection.

    id:             the name of the connection.
    admitted:       the replica spoke to it when that was looked at last.
    joined:         it is told of changes.
    met:            it is known what it can do: it greeted us, or answered our greeting.
    sent, received: the last states that this peer was told, and told us and we took in. What it is
                    sent next is the difference to them. They are hints: a peer that lacks a cell
                    all the same asks for it.
    sent_last:      which of the two is the later one.
    told_keys:      those of the last states that this peer was told.
    misread:        it could not read one of them, so the next one is not told as a patch;
    retell_ms:      when a stranger may say that again.
    stated:         the key of the last state that this peer told, taken in or not.
    is_settled:     whether `received` is what that came to.
    has_news:       there may be something to push.
    is_refused:     it was not admitted when something was to be pushed to it. That is asked again
                    at the next event, or when it is compared: to wake for it would be to spin.
    paced_ms:       when pushes that keep to the pace would have used up those that were made.
    may_push_early: the next push may come before the window is over, since few were made lately.
    window_ms:      when the window of the last push is over.
    comparisons:    those that are not over, by exchange.
    answers:        those of which more follows, in turn.
    start:          what it has said of its start, signed with its proved key.
    claimed:        the key that it goes by, which proves nothing.
    """

    conversation: Conversation
    id: str = field(init=False)
    admitted: bool = True
    joined: bool = False
    met: bool = False
    sent: Probe | None = None
    received: Probe | None = None
    sent_last: bool = False
    told_keys: deque[bytes] = field(default_factory=lambda: deque(maxlen=TOLD_MAX))
    misread: bool = False
    retell_ms: int = 0
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
    unsent_count: int = 0
    conduct: Conduct = field(default_factory=Conduct)
    closing: bool = False
    comparisons: dict[int, OpenComparison] = field(default_factory=dict)
    answers: deque[OpenAnswer] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.id = self.conversation.peer.connection

    @property
    def peer(self) -> Peer:
        """Who it is, as far as that is known."""
        return self.conversation.peer

    @property
    def takes_lots(self) -> bool:
        """Whether it asks for nothing, so that offers to it are complete in themselves."""
        return self.met and FETCHES not in self.conversation.peer.features

    @property
    def known(self) -> tuple[Probe, ...]:
        """The states that this peer is taken to hold, the later one first."""
        both = (self.sent, self.received) if self.sent_last else (self.received, self.sent)
        return tuple(probe for probe in both if probe is not None)

    @property
    def is_full(self) -> bool:
        """Whether this peer takes frames more slowly than we make them."""
        return self.unsent_count >= UNSENT_MAX

    @property
    def has_open_answers(self) -> bool:
        """Whether more of an answer may be made now."""
        return bool(self.answers) and self.unsent_count < ANSWERED_MAX and not self.closing

    @property
    def may_push(self) -> bool:
        """Whether this peer may be told something, as far as the pace allows."""
        if not (self.joined and self.met) or self.is_full or self.closing:
            return False
        return not (self.unsent_count and self.takes_lots)  # lots may be long: one at a time

    def twins(self, partners: Iterable[Partner]) -> list[Partner]:
        """Return the live ones with the same identity and another start."""
        if self.start is None:
            return []
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
        """When there is something to do for this peer, None when only an event can change that."""
        due_ms = self.conversation.deadline_ms
        if not self.joined or self.closing or self.is_full:
            return due_ms
        if due_ms is None or self.compare_after_ms < due_ms:
            due_ms = self.compare_after_ms
        is_news = self.has_news and not self.is_refused
        if is_news and self.push_after_ms < due_ms and self.may_push:
            due_ms = self.push_after_ms
        return due_ms

    def told(self, probe: Probe, now_ms: int, pace: Pace) -> None:
        """Note that this peer was told a state; decides when it may be told the next one."""
        self.sent, self.sent_last, self.misread = probe, True, False
        self.told_keys.append(probe.key)
        self.compare_after_ms = now_ms + pace.root_sync_interval_ms
        self.paced_ms = max(self.paced_ms, now_ms) + pace.broadcast_delay_ms
        is_alike = REPLICATES in self.peer.features
        ahead_ms = (pace.burst_max - 1) * pace.broadcast_delay_ms
        # "A peer that reads patches is told sooner ..., up to eight times in a row, and still no
        # more than once in 50 ms on average" (docs/node.md, What is sent when).
        self.may_push_early = is_alike and self.paced_ms - ahead_ms <= now_ms
        self.push_after_ms = self.window_ms = now_ms + pace.broadcast_delay_ms

    def told_lot(self, size_bytes: int, now_ms: int, pace: Pace) -> None:
        """Note that a peer was told something complete; decides when it is told more."""
        # "At most 8 MB at a time, at 10 MB/s": nothing says how fast a plain peer takes them in
        # (docs/node.md, Plain peers).
        pause_ms = 1_000 * size_bytes // LOT_BYTES_PER_S
        self.push_after_ms = now_ms + max(pace.broadcast_delay_ms, pause_ms)

    def asked_for(self, hashes: Collection[bytes], now_ms: int, *, is_wanted: bool = False) -> bool:
        """Note which parts this peer lacks; return whether it is to be told our state once more.

        Who asks for the very top of a state lacks what the patch rested on, and so lost all of it:
        the next one rests on what the peer itself told.
        """
        if not any(key in hashes for key in self.told_keys):
            return False
        if now_ms < self.retell_ms and not is_wanted:
            return False
        self.retell_ms = now_ms + RETELL_MS
        self.told_keys.clear()
        self.sent, self.sent_last = None, False
        self.misread = self.has_news = True
        return True

    def changed(self, now_ms: int, *, crowded: bool = False) -> None:
        """Note that there is something new to tell: at the end of the window, or of the burst.

        crowded: strangers made it, and more of them wait: it has time until `CROWDED_MS`, or goes
                 with what others change meanwhile.
        """
        had_news, self.has_news = self.has_news, True
        if self.takes_lots:
            return
        # "What strangers changed is told half a second later while more of them wait, or with what
        # others change" (docs/design/foreign-data.md, Order of work).
        if crowded:
            if not had_news:
                self.push_after_ms = max(self.push_after_ms, now_ms + CROWDED_MS)
        elif self.may_push_early:
            self.push_after_ms = min(self.window_ms, now_ms + QUIET_MS)
        else:
            self.push_after_ms = min(self.push_after_ms, self.window_ms)

    def states(self, key: bytes) -> None:
        """Note that this peer told a state; nothing is known of how it compares with ours yet."""
        self.stated, self.is_settled = key, False

    def heard(self, probe: Probe, finished: Collection[bytes], *, part: bool = False) -> None:
        """Note that all of a state that this peer told is here now, as `probe`.

        finished: keys of the states as they were told that need nothing more. part: it is only a
                  part of the peer's state.
        """
        if not part:
            self.received, self.sent_last = probe, False
            self.is_settled = self.stated in finished  # else it has told another one since
        elif not self.takes_lots:
            return
        self.has_news = True
