"""Replicator: drives one replica with many sessions. It decides what is sent to whom, and when.

It does no input and no output. Inputs are method calls with the time (a steady clock, in
milliseconds); outputs collect in `Effects`, taken by the caller after each call: frames to send,
connections to close, waiting callers to wake. Whatever an effect says is already durable in the
replica, because the replica's calls return only then.

What keeps replicas equal, from fast to sure:

* A change is pushed to every joined session at once, or at the end of the pace window (50 ms) when
  one was sent in it; to a peer of our kind when the burst is over. What is sent is the difference
  between what the peer is known to hold and the present state, made when it leaves: so the last
  update is never lost, however many fell into the window.
* A session that opens greets the peer, states our root and asks for the peer's.
* Parts that an offer needs are fetched before it is taken in: first from the peer that made it,
  then from the others.
* Every 30 s each joined session is told the root alone. A peer that missed anything finds out and
  fetches it.
* A peer without our extensions fetches nothing and states nothing: it is told complete values, and
  asked for its root in place of being told ours (see `plain`).

Length: one state machine; what it knows of each session, and of wanted parts, is in modules apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from datalattice.cells import Signed, Value
from datalattice.crypto import Entropy, KeyPair
from datalattice.errors import BadFormat, LimitExceeded, PeerError
from datalattice.sync.conduct import IGNORED, MALFORMED, REFUSED, UNASKED, UNSOUND
from datalattice.sync.effects import Effects, Pace, Pull, Several, Standing
from datalattice.sync.handshake import Handshake
from datalattice.sync.plain import PlainPeer
from datalattice.sync.pulls import Pulls
from datalattice.sync.repairs import Repairs
from datalattice.sync.replica import Absorbed, Offer, Part, Replica
from datalattice.sync.session import (
    BATCHES_MAX,
    NO_SUCH,
    PENDING_MAX,
    Answered,
    Bare,
    Challenged,
    Codec,
    Ignored,
    Joined,
    Left,
    Offered,
    Pending,
    Purpose,
    Replied,
    Session,
    Twin,
    Wanted,
)
from datalattice.sync.starts import Start, read_start
from datalattice.sync.wants import WANTS_MAX, WantList

MYSELF: Final = "at the other end is this node itself, or a copy of its folder"
TWINS: Final = "a folder was cloned: another live node has the identity of this one, it is"


class Replicator:
    """One replica, many sessions. Not thread-safe: one thread, or a simulation, owns it.

    identity: what this node proves to hold when it is challenged, and challenges others with.
    """

    def __init__(
        self,
        replica: Replica,
        codec: Codec,
        pace: Pace | None = None,
        identity: KeyPair | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._replica = replica
        self._codec = codec
        self._pace = pace or Pace()
        self._handshake = Handshake(codec, identity, entropy)
        self._repairs = Repairs(replica)
        self._sessions: dict[str, Session] = {}
        self._wants = WantList(self._pace.rounds_max)
        self._pulls = Pulls()
        self._effects = Effects()
        self.crowded = False
        """Whether it is a stranger's turn and more of them wait; set by who calls."""

    # --- inputs -------------------------------------------------------------------------------

    def open(
        self,
        id: str,
        now_ms: int,
        *,
        outbound: bool,
        public_key: bytes | None = None,
        pinned: bytes | None = None,
        wanted: bool = False,
    ) -> None:
        """Take up a new connection. Those we made ourselves are joined at once: we chose the peer.

        An inbound one stays silent until the peer asks to be told of changes: it may be a mere
        client. `public_key` is what the transport has proved, `pinned` what the peer has to prove
        before anything else. `wanted`: the operator named it.
        """
        session = Session(id, outbound, False, now_ms, public_key, pinned, wanted)
        self._sessions[id] = session
        if pinned is not None and public_key not in (None, pinned):
            self._cut(session, "untrusted", "the peer has another key than the wanted one")
        elif self._handshake.is_own(public_key):
            self._cut(session, "myself", MYSELF)
        elif self._handshake.is_due(session):
            deadline_ms = now_ms + self._pace.ask_timeout_ms
            self._send(session, self._handshake.ask(session, deadline_ms))
        if not session.is_unproved and not session.closing:
            self._greet(session, now_ms)

    def want(self, id: str) -> None:
        """Note that a peer, which has proved its key by now, is one that the operator named."""
        session = self._sessions.get(id)
        if session is not None:
            session.wanted = True

    def _greet(self, session: Session, now_ms: int) -> None:
        """Begin to replicate with a peer that we chose."""
        if session.outbound and not session.joined:
            self._request(session, Purpose.HELLO, now_ms)
            self._join(session, now_ms)

    def _greeted(self, session: Session, content: object, now_ms: int) -> None:
        """Take up a conversation in the way that the peer's answer to our hello asks for."""
        if self._codec.is_plain(content) and not session.greeted:
            session.plain = PlainPeer()
            self._recognise(now_ms)
        session.terse = session.terse or self._codec.welcomed(content)
        self._started(session, self._codec.started(content), now_ms)
        session.greeted = True
        self._ask(session, now_ms)
        if session.plain is None:
            self._state(session, now_ms)
            self._ask_more(session, now_ms)

    def closed(self, id: str, now_ms: int) -> None:
        """Forget a connection that is gone: its requests fail, and others are asked for parts."""
        session = self._sessions.pop(id, None)
        if session is None:
            return
        for pending in session.pending.values():
            self._effects.finish(pending.pull, "the connection was closed")
        self._wants.remove_peer(id, now_ms)
        self._drop_lost(id, now_ms)
        self._fetch(now_ms)

    def receive(self, id: str, payload: bytes, now_ms: int) -> None:
        """Take in a frame of a peer."""
        session = self._sessions.get(id)
        if session is None or session.closing:
            return
        try:
            heard = self._codec.decode(payload, id)
        except (BadFormat, LimitExceeded) as error:
            self._send(session, self._codec.refuse(str(error)))
            self._blame(session, error, MALFORMED)
            return
        if session.is_unproved and not isinstance(heard, Answered | Challenged | Left):
            heard = Ignored("said before the wanted key is proved")
        match heard:
            case Offered(offer):
                if offer.unread:
                    self._disabuse(session, now_ms)
                self._absorb(session, offer, now_ms)
            case Wanted(request, hashes):
                parts = self._replica.supply(hashes, id)
                if any(part is not None for part in parts):
                    self._was_useful(session)
                if session.asked_for(hashes, now_ms):
                    self._flush(session, now_ms)  # it may need no more of them then
                self._send(session, self._codec.give(request, parts, hashes))
            case Answered(request_id, content, error_text):
                self._answered(session, request_id, content, error_text, now_ms)
            case Replied(reply):
                self._send(session, reply)
            case Twin(reply, start):
                self._send(session, reply)
                self._told_of_twin(start)
            case Joined(reply, terse, start):
                session.terse, session.greeted, session.plain = terse, True, None
                self._send(session, reply)
                self._join(session, now_ms)
                session.dirty = True
                self._started(session, start, now_ms)
                self._flush(session, now_ms)
                self._ask_more(session, now_ms)
            case Challenged(challenge):
                self._send(session, self._handshake.answer(challenge))
                session.claimed = self._codec.challenger(challenge)
                self._recognise(now_ms)
            case Bare(offer, reason):
                self._absorb_bare(session, offer, reason, now_ms)
            case Left(reason):
                self._close(session, reason)
            case Ignored(reason):
                self._charge(session, IGNORED, reason)

    def publish(self, now_ms: int) -> bool:
        """Make local writes durable and tell the others; return whether there were any.

        Raises: StoreError: nothing was published.
        """
        change = self._replica.publish()
        if change.changed:
            self._changed(now_ms)
        return change.changed

    def replaced(self, now_ms: int) -> None:
        """Tell the others of a root that became another one by neither a write nor a peer."""
        self._changed(now_ms)

    def brought(self, absorbed: Absorbed, source: str, now_ms: int) -> None:
        """Take note of what became of a value that no peer stated, but the operator brought."""
        self._settle(absorbed, source, now_ms)

    def pull(self, id: str, pull: Pull | None, now_ms: int) -> None:
        """Ask a peer for its state; the pull ends when all of it is contained here."""
        session = self._sessions.get(id)
        if session is None:
            self._effects.finish(pull, "not connected")
        elif len(session.pending) >= PENDING_MAX:
            self._effects.finish(pull, f"{PENDING_MAX} requests wait for this peer already")
        else:
            self._ask(session, now_ms, pull)

    def heal(self, hashes: Iterable[bytes], now_ms: int) -> None:
        """Ask every joined peer for these parts; what comes is for `Replica.repair`.

        Each is among the effects' `healed` or `unhealed` in the end: at once when nobody is joined.
        """
        wanted = tuple(dict.fromkeys(hashes))
        helpers = [one.id for one in self._sessions.values() if one.joined and not one.closing]
        for id in helpers:
            self._wants.add(wanted, id)
        if helpers:
            self._repairs.want(wanted)
            self._fetch(now_ms)
        else:
            self._effects.unhealed.extend(wanted)

    def written(self, id: str, count: int, now_ms: int) -> None:
        """Note that so many frames to a peer have left."""
        session = self._sessions.get(id)
        if session is not None:
            session.unsent_count = max(0, session.unsent_count - count)
            self._flush(session, now_ms)
            self._fetch(now_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due. To be called at `next_deadline`, or more often."""
        for session in list(self._sessions.values()):
            self._expire(session, now_ms)
            if session.joined and now_ms >= session.sync_after_ms and not session.is_full:
                self._sync(session, now_ms)
            self._flush(session, now_ms)
        self._wants.wake(now_ms)
        self._drop_lost("", now_ms)
        self._fetch(now_ms)

    def excuse(self, busy_ms: int) -> None:
        """Grant more time to what was asked: this node was too busy to hear answers."""
        for session in self._sessions.values():
            session.excuse(busy_ms)

    def hurry(self, now_ms: int) -> None:
        """Push what is due without regard to the pace: this node is about to close."""
        for session in self._sessions.values():
            session.push_after_ms = min(session.push_after_ms, now_ms)
            self._flush(session, now_ms)

    # --- outputs ------------------------------------------------------------------------------

    def take_effects(self) -> Effects:
        """Return what is to be done since the last call."""
        effects, self._effects = self._effects, Effects()
        return effects

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do, nil when only an event can change that."""
        times = [ms for session in self._sessions.values() for ms in session.deadlines()]
        wake_ms = self._wants.next_wake_ms()
        if wake_ms is not None:
            times.append(wake_ms)
        return min(times, default=None)

    def standings(self, key_for: Callable[[str], bytes]) -> list[Standing]:
        """Return how it stands with each connection; `key_for` is the key of what it is told."""
        return [one.standing(key_for(one.id)) for one in self._sessions.values()]

    @property
    def missing_count(self) -> int:
        """Parts that are wanted and not here."""
        return len(self._wants)

    # --- offers -------------------------------------------------------------------------------

    def _absorb(
        self,
        session: Session,
        offer: Offer,
        now_ms: int,
        pull: Pull | None = None,
        *,
        states: bool = True,
    ) -> Absorbed | None:
        """Take in an offer; `states`: it is of the peer's state."""
        if states and offer.probe is not None:
            session.states(offer.probe.key)
        try:
            absorbed = self._replica.absorb(offer, session.id)
        except PeerError as error:
            self._blame(session, error)
            self._effects.finish(pull, str(error))
            return None
        if pull is not None and offer.probe is not None:
            self._pulls.wait(offer.probe.key, pull)
        for hash in absorbed.unwanted:
            if hash not in self._repairs:
                self._wants.found(hash)
        self._wants.add(absorbed.missing, session.id)
        if self._wants.count(session.id) > WANTS_MAX:
            self._cut(session, "missing", f"more than {WANTS_MAX} parts are missing of its values")
        # Whoever states something is told what it lacks, unless it was told already.
        session.dirty = True
        self._settle(absorbed, session.id, now_ms)
        self._flush(session, now_ms)
        self._fetch(now_ms)
        return absorbed

    def _absorb_bare(self, session: Session, offer: Offer, reason: str, now_ms: int) -> None:
        """Take in what a plain peer broadcasts, on whatever connection, as stated where it answers.

        Cells that are missing are asked for there: on a connection that it made it hears answers
        only.
        """
        home = self._home(session)
        if home is None:
            self._charge(session, IGNORED, reason)
        else:
            self._absorb(home, offer, now_ms)

    def _home(self, session: Session) -> Session | None:
        """Return the session in which a plain peer answers, if this one is with a plain peer."""
        if session.plain is not None or session.public_key is None:
            return None if session.plain is None else session
        return next(
            (
                one
                for one in self._sessions.values()
                if one.plain is not None and one.public_key == session.public_key
            ),
            None,
        )

    def _settle(self, absorbed: Absorbed, peer: str, now_ms: int) -> None:
        for remark in absorbed.reports:
            self._effects.note(remark.kind, peer, remark.text, remark.count)
        session = self._sessions.get(peer)
        if session is not None and absorbed.changed:
            self._was_useful(session)
        elif session is not None and any(one.is_refusal for one in absorbed.reports):
            self._judge(session, REFUSED)
        for id, reason in absorbed.breaches:
            self._part_with(id, reason)
        for part, held in ((False, absorbed.holds), (True, absorbed.parts_of)):
            for holder, probe in held:
                if holder in self._sessions:
                    self._sessions[holder].heard(probe, absorbed.finished, part=part)
        lost = next((one.text for one in absorbed.reports if one.is_refusal or one.is_loss), "")
        ended = dict(absorbed.ended)
        if absorbed.refused:
            ended.setdefault(peer, False)  # it may not have come as far as a merge
        self._effects.taken += ((id, None if full else lost) for id, full in ended.items())
        for key in absorbed.dropped:
            self._effects.note("dropped", peer, f"value {key.hex()} never became complete")
        self._pulls.settle(absorbed, self._effects)
        if absorbed.changed:
            self._changed(now_ms)

    def _changed(self, now_ms: int) -> None:
        self._effects.changed = True
        for session in self._sessions.values():
            session.changed(now_ms, crowded=self.crowded)
        for session in self._sessions.values():
            self._flush(session, now_ms)

    def _flush(self, session: Session, now_ms: int) -> None:
        """Push the difference to a peer if there may be one, it reads, and its window is over."""
        if not (session.dirty and session.may_push) or now_ms < session.push_after_ms:
            return
        session.dirty = False
        if session.plain is not None:
            self._spell_out(session, session.plain, now_ms)
            return
        offer = self._replica.answer(session.known, session.id)
        if offer is not None:
            self._push(session, offer, now_ms)

    def _spell_out(self, session: Session, plain: PlainPeer, now_ms: int) -> None:
        """Tell a plain peer what it lacks, in messages that are complete in themselves."""
        before = plain.told
        whole = self._codec.spell_out(plain.heard, before, session.id)
        for payload in whole.payloads:
            self._send(session, payload)
        self._effects.push_count += len(whole.payloads)
        for what in whole.too_large:
            self._effects.note("too-large", session.id, f"{what} does not fit into a frame")
        session.told_whole(whole, now_ms, self._pace)
        # Only what it states itself proves what it has: nothing is left to tell, so it has it all.
        has_all = whole.is_all and whole.told is None
        mine = self._replica.begin(session.id).probe
        plain.level = mine.key if has_all and mine is not None else None

    def _sync(self, session: Session, now_ms: int) -> None:
        """Do what makes good for everything that was missed: tell our root, or ask for theirs."""
        session.sync_after_ms = now_ms + self._pace.root_sync_interval_ms
        if session.plain is None and session.greeted:
            self._state(session, now_ms)
            self._ask_more(session, now_ms)
        elif session.plain is not None and not session.plain.open:
            self._ask(session, now_ms)

    def _state(self, session: Session, now_ms: int) -> None:
        """Tell a peer our state, whatever it is taken to know."""
        session.dirty = False
        self._push(session, self._replica.begin(session.id), now_ms)

    def _disabuse(self, session: Session, now_ms: int) -> None:
        """Tell a peer that takes us to hold a state which is not here what we do hold."""
        mine = self._replica.begin(session.id)
        assert mine.probe is not None
        if session.may_push and mine.probe.key not in session.told_keys:
            self._push(session, mine, now_ms)

    def _push(self, session: Session, offer: Offer, now_ms: int) -> None:
        assert offer.probe is not None
        payload = self._codec.push(offer, terse=session.terse and not session.misread)
        session.told(offer.probe, now_ms, self._pace)
        self._effects.push_count += 1
        self._send(session, payload)

    def _join(self, session: Session, now_ms: int) -> None:
        session.joined = True
        session.sync_after_ms = now_ms + self._pace.root_sync_interval_ms
        self._wants.add_helper(session.id)

    # --- requests -----------------------------------------------------------------------------

    def _request(
        self,
        session: Session,
        purpose: Purpose,
        now_ms: int,
        pull: Pull | None = None,
        path: tuple[Value, ...] = (),
        *,
        in_round: bool = False,
    ) -> None:
        id = session.next_id()
        deadline_ms = now_ms + self._pace.ask_timeout_ms
        counts = in_round and session.plain is not None
        session.pending[id] = Pending(purpose, deadline_ms, (), pull, b"", path, counts)
        is_hello = purpose is Purpose.HELLO
        self._send(session, self._codec.hello(id) if is_hello else self._codec.ask(id, path))

    def _ask(self, session: Session, now_ms: int, pull: Pull | None = None) -> None:
        """Ask a peer for its state, or a part of it; the pull ends when that is contained here."""
        if pull is not None and pull.path:
            self._request(session, Purpose.ASK, now_ms, pull, pull.path)
            return
        paths = self._codec.questions(plain=session.plain is not None)
        if session.plain is not None:
            session.plain.asked(len(paths))
        if pull is not None and len(paths) > 1:
            pull = Pull(Several(pull, len(paths)), (), pull.is_strict)
        for path in paths:
            self._request(session, Purpose.ASK, now_ms, pull, path, in_round=True)

    def _ask_more(self, session: Session, now_ms: int) -> None:
        """Ask a peer of our kind for what it keeps beside its state."""
        if not session.terse:
            return
        for path in self._codec.more_questions(session.turn):
            if len(session.pending) < PENDING_MAX:
                self._request(session, Purpose.MORE, now_ms, None, path)
        session.turn += 1

    def _fetch(self, now_ms: int) -> None:
        """Ask for missing parts, as many batches as may be in flight."""
        if not len(self._wants):
            return
        for session in self._sessions.values():
            room = BATCHES_MAX - session.batches_in_flight()
            while room > 0 and not session.is_full and not session.closing:
                hashes = tuple(self._wants.take(session.id, self._codec.batch_max))
                if not hashes:
                    break
                id = session.next_id()
                deadline_ms = now_ms + self._pace.request_timeout_ms
                session.pending[id] = Pending(Purpose.WANT, deadline_ms, hashes)
                self._send(session, self._codec.want(id, hashes))
                room -= 1

    def _answered(
        self, session: Session, id: object, content: object, error: str | None, now_ms: int
    ) -> None:
        # `True` equals 1 in Python but is another value on the wire.
        pending = session.pending.pop(id, None) if type(id) is int else None
        late = session.late.pop(id, None) if type(id) is int else None
        if pending is None and late is None:
            self._charge(session, UNASKED, "an answer to nothing that was asked")
            return
        self._was_useful(session)
        if pending is None:
            self._delivered(session, late or (), content, error, now_ms)
        elif pending.purpose is Purpose.CHALLENGE:
            self._proved(session, pending, content, error, now_ms)
        elif pending.purpose is Purpose.WANT:
            self._delivered(session, pending.hashes, content, error, now_ms)
        elif pending.purpose is Purpose.MORE:
            # A peer that does not know the question answers an error, which costs nothing.
            offer = None if error else self._codec.more(content, pending.path, session.turn)
            if offer is not None:
                self._absorb(session, offer, now_ms, states=False)
        elif pending.purpose is Purpose.ASK:
            self._stated(session, pending, content, error, now_ms)
        elif pending.purpose is Purpose.TWIN:
            self._is_alive(session, pending, now_ms)
        elif error is None:
            self._greeted(session, content, now_ms)

    def _stated(
        self, session: Session, pending: Pending, content: object, error: str | None, now_ms: int
    ) -> None:
        """Take in the answer to one question for a peer's state."""
        offer = None if error is not None else self._codec.offer(content, pending.path)
        is_complete = error is None
        if offer is None or offer.probe is None:
            # A peer whose lattice has no such section has nothing there.
            is_absent = bool(pending.path) and (error or "").startswith(NO_SUCH)
            text = None if error is None or is_absent else f"the peer answered {error}"
            self._effects.finish(pending.pull, text)
        elif session.plain is not None and session.plain.states_again(offer.probe.key):
            self._effects.finish(pending.pull, None)
        else:
            absorbed = self._absorb(session, offer, now_ms, pending.pull)
            is_complete = absorbed is not None and offer.probe.key in absorbed.finished
        self._end_question(session, pending, now_ms, failed=not is_complete)

    def _end_question(
        self, session: Session, pending: Pending, now_ms: int, *, failed: bool
    ) -> None:
        """Tell a plain peer what it lacks when the last question of a round is answered."""
        if session.plain is None or not pending.in_round:
            return
        if session.plain.answered(failed=failed):
            session.dirty = True
            self._flush(session, now_ms)

    def _delivered(
        self,
        session: Session,
        hashes: tuple[bytes, ...],
        content: object,
        error: str | None,
        now_ms: int,
    ) -> None:
        parts: list[Part | None] = [None] * len(hashes)
        try:
            if error is None:
                parts = self._codec.parts(content, hashes)
        except PeerError as fault:
            self._blame(session, fault)
        here = tuple(part for part in parts if part is not None)
        for hash, part in zip(hashes, parts, strict=True):
            if part is None:
                self._wants.failed(hash, session.id, now_ms)
            else:
                self._wants.found(hash)
        if len(here) < len(hashes):
            self._effects.note(
                "undelivered", session.id, f"{len(hashes) - len(here)} of {len(hashes)} cells"
            )
        if here:
            self._wants.delivered(session.id)
            self._repairs.take(here, self._effects)
            self._absorb(session, Offer(None, here), now_ms)
        self._drop_lost(session.id, now_ms)
        self._fetch(now_ms)

    def _expire(self, session: Session, now_ms: int) -> None:
        late = [id for id, pending in session.pending.items() if pending.deadline_ms <= now_ms]
        for id in late:
            pending = session.expire(id)
            self._effects.note("timeout", session.id, f"no answer to {pending.purpose.value}")
            self._effects.finish(pending.pull, "the peer did not answer in time")
            if pending.purpose is Purpose.WANT:
                self._wants.timed_out(session.id)
            for hash in pending.hashes:
                self._wants.failed(hash, session.id, now_ms)
            if pending.purpose is Purpose.HELLO:
                # Unless it is heard, the peer will not tell us of its changes.
                self._request(session, Purpose.HELLO, now_ms)
            elif pending.purpose is Purpose.CHALLENGE:
                self._unproved(session, "the peer does not answer a challenge")
            elif pending.purpose is Purpose.ASK:
                self._end_question(session, pending, now_ms, failed=True)

    def _drop_lost(self, peer: str, now_ms: int) -> None:
        lost = self._wants.take_lost()
        if lost:
            self._repairs.lose(lost, self._effects)
            self._settle(self._replica.absorb(Offer(None, (), lost), peer), peer, now_ms)

    # --- who is there -------------------------------------------------------------------------

    def _proved(
        self, session: Session, pending: Pending, content: object, error: str | None, now_ms: int
    ) -> None:
        try:
            public_key = self._handshake.check(session, pending, content, error)
        except PeerError as fault:
            self._unproved(session, str(fault))
            return
        if self._handshake.is_own(public_key):
            self._cut(session, "myself", MYSELF)
            return
        session.public_key = public_key
        self._effects.identified.append((session.id, public_key))
        self._greet(session, now_ms)
        self._recognise(now_ms)

    def _recognise(self, now_ms: int) -> None:
        """Have inbound connections prove their key on which a plain peer of ours may broadcast.

        Such a peer proves who it is when it is asked to; its challenge tells that it may be worth
        asking.
        """
        ours = {one.public_key for one in self._sessions.values() if one.plain is not None}
        for session in self._sessions.values():
            key, session.claimed = session.claimed, None
            if key is None or session.outbound or session.public_key is not None:
                continue
            if key in ours:
                deadline_ms = now_ms + self._pace.ask_timeout_ms
                self._send(session, self._handshake.ask(session, deadline_ms))
            else:
                session.claimed = key

    def _started(self, session: Session, said: Value, now_ms: int) -> None:
        """Note a peer's start; two live ones with one identity are told of each other."""
        start = read_start(said) if session.start is None else None
        if start is None or start.public_key != session.public_key:
            return
        session.start = start
        for twin in session.twins(self._sessions.values()):
            self._tell_of_twin(twin, start, now_ms, next=session.id)

    def _tell_of_twin(self, session: Session, other: Start, now_ms: int, next: str = "") -> None:
        """Tell a peer of another node with its identity; `next` hears of it once it has answered.

        Only an answer shows that the older connection is alive: that of a node which was killed and
        started again may linger, and such a node has no twin.
        """
        id, deadline_ms = session.next_id(), now_ms + self._pace.ask_timeout_ms
        session.pending[id] = Pending(Purpose.TWIN, deadline_ms, twin=next)
        self._send(session, self._codec.twin(id, other))

    def _is_alive(self, session: Session, pending: Pending, now_ms: int) -> None:
        """Tell the newer of two nodes with one identity of the older one, which has answered."""
        twin = self._sessions.get(pending.twin)
        if twin is not None and not twin.closing and session.start is not None:
            self._effects.note("peer-cloned", session.id, f"{TWINS} {twin.id}")
            self._tell_of_twin(twin, session.start, now_ms)

    def _told_of_twin(self, said: Value) -> None:
        """Pass on that another node has our identity, if that is signed with it."""
        if isinstance(said, Signed) and self._handshake.is_own(said.public_key):
            start = read_start(said)
            if start is not None:
                self._effects.twins.append(start)

    def _unproved(self, session: Session, reason: str) -> None:
        """Go on with a peer that proves nothing, unless we insist on its key."""
        if session.is_unproved:
            self._cut(session, "untrusted", reason)
        else:
            self._effects.note("unproved", session.id, reason)

    # --- small things -------------------------------------------------------------------------

    def _blame(self, session: Session, error: PeerError, kind: str = REFUSED) -> None:
        error.peer = session.id
        self._charge(session, kind, str(error))

    def _was_useful(self, session: Session) -> None:
        session.conduct.forgive()
        self._effects.useful.add(session.id)

    def _charge(self, session: Session, kind: str, text: str) -> None:
        self._effects.note(kind, session.id, text)
        self._judge(session, kind)

    def _judge(self, session: Session, kind: str) -> None:
        """Charge a peer with a useless message, and part with it when that is one too many."""
        reason = session.conduct.charge(kind)
        if reason is not None:
            self._cut(session, kind, reason)

    def _cut(self, session: Session, cause: str, reason: str) -> None:
        if not session.closing:
            self._effects.note(f"closed-{cause}", session.id, reason)
            if cause in (MALFORMED, UNSOUND):
                self._effects.breaches.append(session.id)
            self._close(session, reason)

    def _part_with(self, id: str, reason: str) -> None:
        """Cut who sends what no honest peer sends; a wanted peer may relay what others sent it."""
        session = self._sessions.get(id)
        if session is not None and session.wanted:
            self._effects.suspects.append((id, reason))
        elif session is not None:
            self._cut(session, UNSOUND, reason)

    def _send(self, session: Session, payload: bytes) -> None:
        session.unsent_count += 1
        self._effects.sends.append((session.id, payload))

    def _close(self, session: Session, reason: str) -> None:
        session.closing = True
        self._effects.closes.append((session.id, reason))
