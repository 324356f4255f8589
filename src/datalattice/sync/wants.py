"""Wants: which parts are missing, which peer is asked for each, and when to give up.

The newest wants are asked first. In a tree that means depth first, which keeps the list short: the
children of a cell just received are fetched before its neighbours.

Every hash is requested from one peer at a time: first from the peer whose offer needs it; after a
refusal or a time-out from the peers that have stated it since; then from the others. When all were
asked, the round ends, and after a rest the next begins. A part that no peer delivered in
`rounds_max` rounds is lost: the replica drops the offers that depend on it.

A peer that states a part has it now, so it is asked once in each round, even if it lacked the part
before. A peer whose offers need more and more parts, and that answers nothing, delays only its own
offers: wants of others leave its queue after a while, and a part requested from a slow peer is
requested from the next one that states it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ROUNDS_MAX: Final = 3
"""Times that every peer is asked for a missing part."""

WANTS_MAX: Final = 700_000
"""Parts that one peer's values may lack: about as many as there is room for in staging."""

REST_MS: Final = 250
"""Pause after the first round in which no peer had the part; doubled after the second."""

LINE_MS: Final = 5_000
"""How long a part waits in a peer's line before it moves to the next peer's."""


@dataclass(slots=True)
class _Want:
    """A missing part.

    source:    the peer that made it wanted.
    later:     peers that stated it after that, in order.
    asked:     peers already asked in this round.
    again:     peers that stated it after they were asked, and are asked once more in this round.
    in_flight: the peer whose answer is awaited.
    next_peer: once passed on, the peer in whose line it waits, until `line_until_ms`.
    slow:      peers in whose lines it waited `LINE_MS` without being requested.

    Tuples of a few names and no sets: three empty sets would take more than all else of a want, and
    a node that was cut off wants tens of thousands of parts at once.
    """

    source: str
    later: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    in_flight: str | None = None
    rounds: int = 0
    next_peer: str = ""
    line_until_ms: int = 0
    slow: tuple[str, ...] = ()


class WantList:
    """The missing parts of one replica. A state machine without a clock: time is passed in."""

    def __init__(self, rounds_max: int = ROUNDS_MAX, rest_ms: int = REST_MS) -> None:
        self._rounds_max = rounds_max
        self._rest_ms = rest_ms
        self._wants: dict[bytes, _Want] = {}
        self._queues: dict[str, list[bytes]] = {}  # peer -> hashes to ask of it, newest last
        # Peers to ask for parts that offers of other peers need, in order.
        self._helpers: dict[str, None] = {}
        self._prompt: set[str] = set()  # peers that delivered and have not timed out since
        self._alarms: list[tuple[int, bytes]] = []  # heap of (end of a rest or of a line, hash)
        self._lost: list[bytes] = []
        self._counts: dict[str, int] = {}  # source -> number of its wants
        self._asked_of: dict[str, dict[bytes, None]] = {}  # peer -> hashes in flight there

    def __len__(self) -> int:
        return len(self._wants)

    def __contains__(self, hash: object) -> bool:
        return hash in self._wants

    def count(self, source: str) -> int:
        """Return how many of the wanted parts `source` made wanted first."""
        return self._counts.get(source, 0)

    def add_helper(self, peer: str) -> None:
        """Have `peer` asked for parts that others made wanted, too."""
        self._queues.setdefault(peer, [])
        self._helpers[peer] = None

    def remove_peer(self, peer: str, now_ms: int) -> None:
        """Forget `peer`; other peers are asked for the hashes queued or in flight there."""
        self._helpers.pop(peer, None)
        self._prompt.discard(peer)
        # Its hashes in flight are requested from the next peer at once, without a time-out.
        queue = self._queues.pop(peer, [])
        again = [hash for hash in queue if self._is_waiting(hash)]
        again += self._asked_of.pop(peer, ())
        for hash in again:
            want = self._wants.get(hash)
            if want is not None:
                want.in_flight = None
                self._pass_on(hash, now_ms)

    def add(self, hashes: Iterable[bytes], source: str) -> None:
        """Note that these parts are missing, and that `source`, a connected peer, states them."""
        queue = self._queues.setdefault(source, [])
        for hash in hashes:
            want = self._wants.get(hash)
            if want is None:
                self._wants[hash] = _Want(source)
                self._counts[source] = self._counts.get(source, 0) + 1
                queue.append(hash)
                continue
            if source != want.source and source not in want.later:
                want.later += (source,)
            # A peer that states a part has it by now, whatever it answered before.
            if source in want.asked and source not in want.again and want.in_flight != source:
                want.again += (source,)
                want.asked = tuple([peer for peer in want.asked if peer != source])
            # A silent peer must not delay parts that others can deliver.
            is_free = want.in_flight is None or want.in_flight not in self._prompt
            if source not in want.asked and is_free:
                self._end_flight(hash, want)
                queue.append(hash)

    def has_line(self, peer: str) -> bool:
        """Return whether there may be something to ask `peer` for."""
        return bool(self._queues.get(peer))

    def take(self, peer: str, count: int) -> list[bytes]:
        """Return up to `count` hashes to ask `peer` for; in flight until found or failed."""
        queue = self._queues.get(peer)
        taken: list[bytes] = []
        while queue and len(taken) < count:
            # The newest first: children of a cell are fetched before its neighbours.
            hash = queue.pop()
            # A hash may be in several queues, or twice in one; the first to take it wins.
            if not self._is_waiting(hash):
                continue
            want = self._wants[hash]
            want.in_flight = peer
            self._asked_of.setdefault(peer, {})[hash] = None
            if peer not in want.asked:
                want.asked += (peer,)
            taken.append(hash)
        return taken

    def found(self, hashes: Iterable[bytes], peer: str | None = None) -> None:
        """Note that parts have arrived: from `peer` on request, or otherwise."""
        # While a part is in flight to a peer that delivers, no other peer is asked for it.
        if peer is not None:
            self._prompt.add(peer)
        for hash in hashes:
            if hash in self._wants:
                self._remove(hash)

    def failed(
        self, hashes: Iterable[bytes], peer: str, now_ms: int, *, is_silent: bool = False
    ) -> None:
        """Note that `peer` did not deliver: ask the next peer, rest, or give up.

        is_silent: it did not answer; until it delivers, others may be asked for its parts too.
        """
        if is_silent:
            self._prompt.discard(peer)
        for hash in hashes:
            want = self._wants.get(hash)
            # A late failure of an earlier request says nothing of the present one.
            if want is not None and want.in_flight == peer:
                self._end_flight(hash, want)
                self._pass_on(hash, now_ms)

    def wake(self, now_ms: int) -> None:
        """Resume parts whose rest is over; move those that waited too long to another line."""
        while self._alarms and self._alarms[0][0] <= now_ms:
            _, hash = heapq.heappop(self._alarms)
            want = self._wants.get(hash)
            if want is None or want.in_flight is not None or want.line_until_ms > now_ms:
                continue
            # A want in a line has waited too long there; any other has come to the end of a rest.
            if want.next_peer:
                self._change_line(hash, want, now_ms)
            else:
                self._pass_on(hash, now_ms)

    @property
    def next_wake_ms(self) -> int | None:
        """When `wake` has something to do, None: not before the next input."""
        return self._alarms[0][0] if self._alarms else None

    def take_lost(self) -> tuple[bytes, ...]:
        """Return the parts given up since the last call."""
        lost, self._lost = tuple(self._lost), []
        return lost

    def _remove(self, hash: bytes) -> None:
        want = self._wants.pop(hash)
        self._end_flight(hash, want)
        source = want.source
        left = self._counts[source] - 1
        if left:
            self._counts[source] = left
        else:
            del self._counts[source]

    def _end_flight(self, hash: bytes, want: _Want) -> None:
        """Note that a part is no longer in flight."""
        if want.in_flight is not None:
            self._asked_of.get(want.in_flight, {}).pop(hash, None)
            want.in_flight = None

    def _is_waiting(self, hash: bytes) -> bool:
        want = self._wants.get(hash)
        return want is not None and want.in_flight is None

    def _askable(self, want: _Want) -> list[str]:
        """Return the peers that can be asked, in order: first those that stated it."""
        stated = (want.source, *want.later)
        able = [peer for peer in stated if peer in self._queues]
        return able + [peer for peer in self._helpers if peer not in stated]

    def _pass_on(self, hash: bytes, now_ms: int) -> None:
        want = self._wants[hash]
        able = self._askable(want)
        fresh = [peer for peer in able if peer not in want.asked]
        want.next_peer = ""
        want.slow = ()
        if fresh:
            self._line_up(hash, want, fresh[0], now_ms)
        elif not able or want.rounds + 1 >= self._rounds_max:
            # Without any peer waiting is useless: the next one to connect states its root anew.
            self._remove(hash)
            self._lost.append(hash)
        else:
            # "Three rounds with rests" (docs/protocol.md): a peer may be fetching the part itself.
            rest_ms = self._rest_ms << want.rounds
            want.rounds += 1
            want.asked = want.again = ()
            want.line_until_ms = now_ms + rest_ms
            heapq.heappush(self._alarms, (want.line_until_ms, hash))

    def _change_line(self, hash: bytes, want: _Want, now_ms: int) -> None:
        """Move to another peer's line. The slow peer did not answer, so the round goes on."""
        if want.next_peer not in want.slow:
            want.slow += (want.next_peer,)
        able = self._askable(want)
        other = [peer for peer in able if peer not in want.asked and peer not in want.slow]
        if not other:
            # All others were asked, or are as slow. One that was asked may have the part by now,
            # or may have lost the request.
            want.slow = (want.next_peer,)
            other = [peer for peer in able if peer != want.next_peer] or [want.next_peer]
        self._line_up(hash, want, other[0], now_ms)

    def _line_up(self, hash: bytes, want: _Want, peer: str, now_ms: int) -> None:
        if peer != want.next_peer:
            want.next_peer = peer
            self._queues[peer].append(hash)
        want.line_until_ms = now_ms + LINE_MS
        heapq.heappush(self._alarms, (want.line_until_ms, hash))
