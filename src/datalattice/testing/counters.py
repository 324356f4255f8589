"""Counters: a small kind of replica with a wire protocol in JSON, for which `sync` has no code.

Grow-only counts by name; a part is one (name, count). Two replicas are compared in several rounds:
ranges of hashes with a fingerprint each, halved until a few hashes are left, which are listed. The
side that dialled begins. So counters use the interfaces of `sync` as a protocol for sets, while
the lattice uses them as one for roots. Counts may be kept in a file, and be for members alone.

Length: a replica, its comparison and its wire protocol, to be read together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from datalattice import sync
from datalattice.errors import ProtocolViolation, StoreFailed
from datalattice.store import Disk
from datalattice.sync import (
    ASK_TIMEOUT_MS,
    FETCHES,
    MALFORMED_FRAME,
    REQUEST_TIMEOUT_MS,
    UNASKED,
    Absorbed,
    News,
    Offer,
    Part,
    Peer,
    Probe,
    Regard,
    Reply,
    Step,
    Want,
    Why,
)

talk = sync.conversation  # what conversations say and report

LEAF_HASHES: Final = 2  # small, so that few counts need several rounds
"""Hashes that are listed instead of halved."""

REPLY_PARTS: Final = 2  # small, so that a request has several replies
"""Parts of one reply; one request asks for more."""

COUNTER_SILENCE_MS: Final = 15_000  # as the lattice's requests
"""How long a comparison may take without a message of it."""

_END: Final = "g" * 64  # no digit of hex is greater
"""Behind every hash in hex."""


class CountFile:
    """A file of counts on a disk; each save writes a new file and replaces the old one."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self.path: Final = f"{folder}/counts"

    def load(self) -> dict[str, int]:
        """Return what was saved last; durable on return.

        Raises: StoreFailed: the folder cannot be made, or not be synced.
        """
        try:
            self._disk.create_folder(self._folder)
            if not self._disk.exists(self.path):
                return {}
            # A process that ended before it synced the folder has left a file that may yet be lost.
            self._disk.sync_folder(self._folder)
            file = self._disk.open(self.path)
            try:
                return dict(json.loads(file.read(0, file.size())))
            finally:
                file.close()
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error

    def save(self, counts: Mapping[str, int]) -> None:
        """Replace the stored counts by these; durable on return.

        Raises: StoreFailed: the file has either the old or the new counts.
        """
        fresh = f"{self.path}.new"  # never in place: a crash leaves the old counts or the new ones
        try:
            file = self._disk.open(fresh, create=True)
            try:
                file.write(0, json.dumps(counts).encode())
                file.sync()
            finally:
                file.close()
            self._disk.replace(fresh, self.path)
            self._disk.sync_folder(self._folder)  # the rename is durable before `save` returns
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error


class Counters:
    """Grow-only counts by name.

    refused: connections that it does not answer.
    file:    where counts are kept; None: in memory alone.
    members: keys of the peers that it answers; None: all.
    """

    def __init__(
        self, file: CountFile | None = None, members: Collection[bytes] | None = None
    ) -> None:
        self.counts: dict[str, int] = {} if file is None else file.load()
        self.repaired: list[Part] = []
        self.refused: set[str] = set()
        self._file = file
        self._members = members
        self._published: dict[str, int] = dict(self.counts)
        self.parts: dict[bytes, Part] = {}
        self.probe = self._probe_of(self._published)
        """What was published, as hashes of its parts in hex."""

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def _probe_of(self, counts: dict[str, int]) -> Probe:
        hashes = []
        for name in sorted(counts):  # sorted: equal counts have equal hashes
            part = text_part(json.dumps([name, counts[name]]))
            self.parts[part.hash] = part
            hashes.append(part.hash.hex())
        return Probe(hashlib.sha3_256("".join(hashes).encode()).digest(), hashes)

    def joined(self, hashes: Sequence[str]) -> Probe:
        """Return the state that these parts make together; all of them are here."""
        counts: dict[str, int] = {}
        for hash in hashes:
            name, count = json.loads(self.parts[bytes.fromhex(hash)].data)
            counts[name] = max(count, counts.get(name, 0))
        return self._probe_of(counts)

    def has(self, hash: str) -> bool:
        """Return whether a part is here, or was until a greater count replaced it."""
        return bytes.fromhex(hash) in self.parts

    def part(self, hash: bytes) -> Part | None:
        return self.parts.get(hash)

    # --- what a replicator needs --------------------------------------------------------------

    def publish(self) -> bool:
        """Publish the counts.

        Raises: StoreError: they cannot be kept.
        """
        return self._keep(self.counts)

    def _keep(self, counts: Mapping[str, int]) -> bool:
        if counts == self._published:  # nothing new: nothing is written
            return False
        if self._file is not None:
            self._file.save(counts)  # durable before it is published
        self._published = dict(counts)
        self.probe = self._probe_of(self._published)
        return True

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take the greater count of each name.

        Raises: StoreError: they cannot be kept, and nothing was taken.
        """
        counts = dict(self.counts)
        for part in offer.parts:
            name, count = json.loads(part.data)
            counts[name] = max(count, counts.get(name, 0))
        changed = self._keep(counts)  # kept before it is taken: an error takes nothing
        self.counts = counts
        self.parts.update((part.hash, part) for part in offer.parts)
        if offer.probe is None:
            return Absorbed(changed=changed)
        missing = [bytes.fromhex(one) for one in hashes_of(offer.probe) if not self.has(one)]
        holds = [] if missing else [(peer.connection, offer.probe)]
        done = [] if missing else [offer.probe.key]
        return Absorbed(missing, holds, done, changed=changed)

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        probe = self.probe
        if any(base.key == probe.key for base in known):
            return None  # the peer has all of it
        there = {hash for base in known for hash in hashes_of(base)}
        wanted = (bytes.fromhex(hash) for hash in hashes_of(probe) if hash not in there)
        return News((Offer(probe, tuple(self.parts[hash] for hash in wanted)),))

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        assert isinstance(request, Want)
        for start in range(0, max(1, len(request.hashes)), REPLY_PARTS):
            chunk = request.hashes[start : start + REPLY_PARTS]
            is_last = start + REPLY_PARTS >= len(request.hashes)
            yield Reply([self.parts.get(hash) for hash in chunk], last=is_last)

    def compare(self, peer: Peer, why: Why, path: Sequence[object] = ()) -> Ranges | None:
        # One side begins, or both would compare twice.
        begins = why in (Why.PULL, Why.DIRTY) or (peer.dialled and why in (Why.MEETING, Why.DUE))
        return Ranges(self) if begins or why is Why.ASKED else None

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        return stated is not None and stated.key == self.probe.key

    def repair(self, parts: Sequence[Part]) -> None:
        self.repaired.extend(parts)

    def regard(self, peer: Peer) -> Regard:
        if peer.connection in self.refused:
            return Regard.REFUSED
        is_member = self._members is None or peer.public_key in self._members
        # Others are refused as a store of members alone does.
        return Regard.STRANGER if is_member else Regard.REFUSED

    def hear(self, peer: Peer) -> None:
        """Count nothing."""

    def forget(self, peer: Peer) -> None:
        """Forget nothing: nothing is remembered."""


class Ranges:
    """A comparison of two sets of hashes. A message is a list of ranges.

    [low, high, fingerprint]         of the hashes that one side has in the range
    [low, high, hashes, is_answer]   all hashes of one side in it; answered unless it is an answer
    """

    probe = None  # a comparison of ranges states no root, so later news cannot begin at one

    def __init__(self, replica: Counters) -> None:
        self._replica = replica
        self._own = sorted(hashes_of(replica.probe))
        self._theirs: set[str] = set()

    def start(self) -> Step:
        return Step((["0", _END, self._fingerprint("0", _END)],))

    def receive(self, message: object) -> Step:
        """Answer each range that is not the same here.

        Raises: ProtocolViolation: it is not a list of ranges.
        """
        said: list[object] = []
        need: dict[str, None] = {}
        if not isinstance(message, list):
            raise ProtocolViolation("a round is a list of ranges")
        for one in message:
            match one:
                case [str(low), str(high), str(fingerprint)]:
                    if fingerprint != self._fingerprint(low, high):  # equal ranges are done with
                        said += self._smaller(low, high)
                case [str(low), str(high), [*hashes], bool(is_answer)]:
                    self._theirs.update(hashes)
                    need |= dict.fromkeys(hash for hash in hashes if not self._replica.has(hash))
                    if not is_answer:
                        said.append([low, high, self._within(low, high), True])
                case _:  # a peer may send anything
                    raise ProtocolViolation(f"not a range: {one}")
        return Step(tuple(said), (), tuple(map(bytes.fromhex, need)), is_done=not said)

    def ended(self) -> Probe | None:
        """Return the union of both sides' parts; None if some part was given up."""
        hashes = [*self._own, *self._theirs]
        # A part that was given up leaves the union unknown.
        is_here = all(map(self._replica.has, hashes))
        return self._replica.joined(hashes) if is_here else None

    def _within(self, low: str, high: str) -> list[str]:
        return [hash for hash in self._own if low <= hash < high]

    def _fingerprint(self, low: str, high: str) -> str:
        return hashlib.sha3_256("".join(self._within(low, high)).encode()).hexdigest()

    def _smaller(self, low: str, high: str) -> list[object]:
        """Return a range as a list if it is short, else as two halves."""
        own = self._within(low, high)
        if len(own) <= LEAF_HASHES:
            return [[low, high, own, False]]
        middle = own[len(own) // 2]
        halves = ((low, middle), (middle, high))
        return [[first, last, self._fingerprint(first, last)] for first, last in halves]


@dataclass(slots=True)
class _Open:
    """A comparison on the wire: which side has finished, and when it is given up."""

    deadline_ms: int
    ours: bool = False
    theirs: bool = False


class JsonConversation(talk.Outbox):
    """A wire protocol of JSON."""

    batch_max = 3

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        # JSON has every feature from its first version.
        self.peer = replace(peer, features=frozenset({FETCHES}))
        self._requests = talk.Requests()
        self._last_exchange = 0
        self._open: dict[int, _Open] = {}

    @property
    def room(self) -> int:
        return self._requests.room

    @property
    def pending_count(self) -> int:
        return len(self._requests) + sum(exchange > 0 for exchange in self._open)

    @property
    def deadline_ms(self) -> int | None:
        times = [one.deadline_ms for one in self._open.values()]
        first_ms = self._requests.deadline_ms
        return min(times if first_ms is None else [*times, first_ms], default=None)

    # --- what we say --------------------------------------------------------------------------

    def send(self, saying: talk.Saying, now_ms: int) -> int | None:
        match saying:
            case talk.Greet() if self.peer.dialled:
                # The side that dialled greets; the other side answers.
                self._write("hello", self._requests.add(saying, now_ms + ASK_TIMEOUT_MS))
                self._events.append(talk.Joined())
            case talk.Push(offer):
                assert offer.probe is not None
                parts = [part.data.decode() for part in offer.parts]
                self._write("offer", offer.probe.key.hex(), offer.probe.data, parts)
            case talk.Request(want):
                id = self._requests.add(saying, now_ms + REQUEST_TIMEOUT_MS)
                self._write("want", id, [hash.hex() for hash in want.hashes])
            case talk.Answer(exchange, reply):
                assert isinstance(reply.body, list)
                texts = [None if part is None else part.data.decode() for part in reply.body]
                self._write("answer" if reply.last else "more", exchange, texts)
            case talk.Compare(step):
                self._last_exchange += 1
                self._open[self._last_exchange] = _Open(now_ms + COUNTER_SILENCE_MS)
                self._write("round", self._last_exchange, step.say)
                return self._last_exchange
            case talk.Continue(exchange, step):
                self._write("round", exchange, step.say)
            case talk.Finish(exchange):
                self._write("finish", exchange)
                self._open[exchange].ours = True
                self._end(exchange)  # both ends say it: only then nothing more comes
            case talk.Deny(int(exchange)) if exchange in self._open:
                self._write("deny", exchange)
                del self._open[exchange]
                self._events.append(talk.Ended(exchange, "denied here"))
            case talk.Deny(exchange):
                self._write("answer", exchange, None)
            case talk.Refuse(text):
                self._write("bad", text)
        return None

    def _write(self, *items: Any) -> None:
        self._frames.append(pack(*items))

    def _end(self, exchange: int) -> None:
        one = self._open[exchange]
        if one.ours and one.theirs:
            del self._open[exchange]
            self._events.append(talk.Ended(exchange))

    # --- what the peer says -------------------------------------------------------------------

    def receive(self, payload: bytes, now_ms: int) -> None:
        match json.loads(payload):
            case ["offer", key, hashes, parts]:
                offer = Offer(Probe(bytes.fromhex(key), hashes), tuple(map(text_part, parts)))
                self._events.append(talk.Offered(offer))
            case ["want", id, hashes]:
                self._events.append(talk.Asked(id, Want(tuple(map(bytes.fromhex, hashes)))))
            case ["answer", id, content]:
                self._answered(id, content)
            case ["more", id, list(content)]:
                self._partly_answered(id, content, now_ms)
            case ["hello", id]:
                self._write("answer", id, None)
                self._events += [talk.Joined(), talk.Met(False)]
            case ["round", int(id), list(ranges)]:
                self._round(-id, ranges, now_ms)
            case ["finish", int(id)] if -id in self._open:
                self._open[-id].theirs = True
                # An empty round ends what waits for an answer.
                self._events.append(talk.Round(-id, []))
                self._end(-id)
            case ["deny", int(id)] if -id in self._open:
                del self._open[-id]
                self._events.append(talk.Ended(-id, "the peer refuses to compare"))
            case ["finish" | "deny", int(_)]:
                pass  # of a comparison that is over here
            case ["bad", *_]:
                self._events.append(talk.Fault("refused-by-peer", "it could not read something"))
            case ["bye"]:
                self._events.append(talk.Left())
            case other:
                self._write("bad", str(other))
                self._events.append(talk.Fault(MALFORMED_FRAME, f"not a message: {other}"))

    # The peer's own exchanges have negative numbers here.
    def _round(self, exchange: int, ranges: list[object], now_ms: int) -> None:
        if exchange > 0 and exchange not in self._open:
            return  # it came after this side had given it up
        one = self._open.setdefault(exchange, _Open(0))
        one.deadline_ms = now_ms + COUNTER_SILENCE_MS
        self._events.append(talk.Round(exchange, ranges))

    def _answered(self, id: object, content: list[str | None] | None) -> None:
        pending = self._requests.answered(id)
        if pending is None:
            # A fault, after which the conversation goes on.
            self._events.append(talk.Fault(UNASKED, "an answer to nothing that was asked"))
            return
        self._events.append(talk.Answered(pending.saying))
        match pending.saying:
            case talk.Request(want):
                found = tuple(text_part(text) for text in content or () if text is not None)
                self._events.append(talk.Delivered(want, found))
            case talk.Greet():
                self._events.append(talk.Met(True))

    def _partly_answered(self, id: object, content: list[str | None], now_ms: int) -> None:
        deadline_ms = now_ms + REQUEST_TIMEOUT_MS
        want = self._requests.partly_answered(id, len(content), deadline_ms)
        if want is None:
            self._events.append(talk.Fault(UNASKED, "part of an answer to nothing that was asked"))
            return
        found = tuple(text_part(text) for text in content if text is not None)
        self._events.append(talk.Delivered(want, found))

    # --- time ---------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        for pending in self._requests.expired(now_ms):
            self._events.append(talk.Fault("timeout", "no answer"))
            if isinstance(pending.saying, talk.Request):
                self._events.append(talk.Failed(pending.saying.want))
            else:
                # A greeting is said again: nothing else begins without one.
                id = self._requests.add(pending.saying, now_ms + ASK_TIMEOUT_MS)
                self._write("hello", id)
        for exchange, one in list(self._open.items()):
            if one.deadline_ms <= now_ms:
                del self._open[exchange]
                self._events.append(talk.Ended(exchange, talk.NO_ANSWER))

    def excuse(self, busy_ms: int) -> None:
        self._requests.excuse(busy_ms)
        for one in self._open.values():
            one.deadline_ms += busy_ms

    def close(self) -> None:
        self._requests.clear()
        self._events += [talk.Ended(exchange, talk.CLOSED) for exchange in self._open]
        self._open.clear()


class JsonProtocol:
    """Makes conversations in JSON."""

    def converse(self, peer: Peer, pinned: bytes | None) -> JsonConversation:
        return JsonConversation(peer)


def pack(*items: Any) -> bytes:
    """Return a message."""
    return json.dumps(items).encode()


def text_part(text: str) -> Part:
    """Return a text as a part, with its hash."""
    data = text.encode()
    return Part(hashlib.sha3_256(data).digest(), data)


def hashes_of(probe: Probe) -> list[str]:
    """Return the hashes, in hex, of the parts of a state."""
    assert isinstance(probe.data, list)
    return probe.data
