"""Replicator: drives one replica with many partners. It decides what is sent to whom, and when.

It does no input and no output. Inputs are method calls with the time (a steady clock, in
milliseconds); outputs collect in `Effects`, which the caller takes after each call. Whatever an
effect says is already durable in the replica, because the replica's calls return only then. The
`Conversation` of a connection decides how messages are encoded, the `Replica` what is compared.

What keeps replicas equal, from fast to sure:

* A change is pushed to every joined partner: at once, or at the end of the pace window (50 ms) if
  one was sent in it; to a partner of our kind as soon as a burst of changes is over.
* When a peer is met, the two states are compared.
* Parts that an offer needs are fetched before it is merged: first from the peer that made it, then
  from the others.
* Every 30 s each joined partner is compared again, which finds whatever one of the two missed.
* A partner is dirty until a comparison with it was complete, and again whenever a message between
  the two may have been lost. A dirty partner is compared sooner.

Length: one state machine; its records of each partner and of wanted parts are other modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, assert_never

import datalattice.sync.conversation as talk
from datalattice.errors import DataLatticeError, PeerError
from datalattice.sync.conduct import IGNORED, MALFORMED_FRAME, REFUSED, UNSOUND, is_charged
from datalattice.sync.conversation import PENDING_MAX, WireProtocol
from datalattice.sync.effects import Effects, Pace, Pull, Standing
from datalattice.sync.partner import ANSWERS_MAX, OpenAnswer, OpenComparison, Partner, Timetable
from datalattice.sync.pulls import Pulls
from datalattice.sync.replica import (
    Absorbed,
    Offer,
    Part,
    Peer,
    Regard,
    Replica,
    Undecodable,
    Want,
    Why,
)
from datalattice.sync.wants import WANTS_MAX, WantList

TWINS: Final = "a folder was cloned: another live node has the identity of this one, it is"

_OF_THE_REPLICA: Final = (talk.Asked, talk.Bare, talk.Delivered, talk.Offered, talk.Round)
"""Events that reach the replica, so the peer must be admitted."""


class Replicator:
    """One replica, many partners. Not thread-safe: one thread, or a simulation, owns it."""

    def __init__(self, replica: Replica, protocol: WireProtocol, pace: Pace | None = None) -> None:
        self._replica = replica
        self._protocol = protocol
        self._pace = pace or Pace()
        self._partners: dict[str, Partner] = {}
        self._comparing: dict[str, Partner] = {}  # those with an open comparison
        self._due = Timetable()
        self._touched: set[str] = set()  # connections whose due time may have changed
        self._repairs: set[bytes] = set()  # wanted parts that the replica should have already
        self._wants = WantList(self._pace.rounds_max)
        self._pulls = Pulls()
        self._effects = Effects()
        self.crowded = False
        """Whether strangers are served now and more of them wait; the caller sets it."""

    # --- inputs -------------------------------------------------------------------------------

    def open(
        self,
        id: str,
        now_ms: int,
        *,
        outbound: bool,
        public_key: bytes | None = None,
        pinned: bytes | None = None,
    ) -> None:
        """Take up a new connection; changes are pushed on outbound ones, whose peer we chose.

        On an inbound one nothing is pushed until the peer asks: it may only want to read.

        public_key: the key that the transport has proved.
        pinned:     the key that the peer must prove before anything else is said or heard.
        """
        conversation = self._protocol.converse(Peer(id, outbound, public_key), pinned)
        self._partners[id] = partner = Partner(conversation)
        partner.admitted = self._admits(partner)
        self._say(partner, talk.Greet(), now_ms)
        self._hear(partner, now_ms)

    def closed(self, id: str, now_ms: int) -> None:
        """Forget a connection that is gone: its requests fail, and other peers are asked."""
        partner = self._partners.pop(id, None)
        if partner is None:
            return
        # Closing gives `Ended` for open comparisons, so that their pulls end.
        partner.conversation.close()
        self._hear(partner, now_ms)
        self._comparing.pop(id, None)
        self._replica.forget(partner.peer)
        self._wants.remove_peer(id, now_ms)
        self._drop_lost(partner.peer, now_ms)
        self._fetch(now_ms)

    def receive(self, id: str, payload: bytes, now_ms: int) -> None:
        """Take in a frame of a peer."""
        partner = self._partners.get(id)
        # A partner that is being disconnected is read no more.
        if partner is None or partner.closing:
            return
        # Charged before it is read: decoding is the first thing that it costs.
        self._replica.hear(partner.peer)
        partner.conversation.receive(payload, now_ms)
        self._hear(partner, now_ms)

    def publish(self, now_ms: int, *, at_once: bool = False) -> bool:
        """Make local writes durable and push them; return whether there were any.

        at_once: regardless of the pace, since this node is about to close.
        Raises: StoreError: nothing was published.
        """
        try:
            is_changed = self._replica.publish()
            # Peers are sent durable values only, so a publication that failed is not announced.
            if is_changed:
                self._changed(now_ms)
        finally:
            for partner in self._partners.values() if at_once else ():
                partner.push_after_ms = min(partner.push_after_ms, now_ms)
                self._touched.add(partner.id)
                self._flush(partner, now_ms)
        return is_changed

    def settle(self, absorbed: Absorbed, source: str, now_ms: int) -> None:
        """Act on what the replica absorbed, or on another change of its state.

        source: the connection that it came from, or a label of another source.
        """
        for remark in absorbed.reports:
            self._effects.note(remark.kind, source, remark.text, remark.count)
        partner = self._partners.get(source)
        # A value that changed the state clears the count of useless messages; a refused one adds.
        if partner is not None and absorbed.changed:
            self._was_useful(partner)
        elif partner is not None and any(one.is_refusal for one in absorbed.reports):
            self._count_against(partner, REFUSED)
        for id, reason in absorbed.breaches:
            self._breach(id, reason)
        for part, held in ((False, absorbed.holds), (True, absorbed.parts_of)):
            for holder, probe in held:
                if holder in self._partners:
                    self._partners[holder].heard(probe, absorbed.finished, part=part)
                    self._touched.add(holder)
                    self._note_agreement(self._partners[holder], now_ms)
        ended = dict(absorbed.ended)
        if absorbed.refused:
            ended.setdefault(source, False)  # it may have been refused before a merge
        if ended:
            lost = [one.text for one in absorbed.reports if one.is_refusal or one.is_loss] or [""]
            self._effects.taken += [(id, None if full else lost[0]) for id, full in ended.items()]
        for key in absorbed.dropped:
            self._effects.note("dropped", source, f"value {key.hex()} never became complete")
        # After the values are durable: the caller of a pull may rely on them.
        self._pulls.settle(absorbed, self._effects)
        if absorbed.changed:
            self._changed(now_ms)
        for id, hashes in absorbed.lacking.items():
            # Cells are asked first of the peer that made them wanted, then of any other that is
            # connected.
            able = [one for one in (id, source, *self._partners) if one in self._partners]
            if able:
                self._wants.add(hashes, able[0])
        if absorbed.readmits:
            self._readmit(now_ms)
        if absorbed.lacking or absorbed.readmits:
            self._fetch(now_ms)

    def pull(self, id: str, pull: Pull | None, now_ms: int) -> None:
        """Ask a peer for its state; the pull ends once all of it is contained here."""
        partner = self._partners.get(id)
        if partner is None:
            self._effects.finish(pull, "not connected")
        # "Requests of ours that wait for one peer: 64" (docs/protocol.md, Limits).
        elif partner.conversation.pending_count >= PENDING_MAX:
            self._effects.finish(pull, f"{PENDING_MAX} requests wait for this peer already")
        else:
            self._compare(partner, Why.PULL, now_ms, pull)

    def acquire(self, hashes: Iterable[bytes], now_ms: int) -> None:
        """Ask every joined peer for these parts, for `Replica.repair`.

        Each ends up in the effects' `healed` or `unhealed`; without a joined peer at once.
        """
        wanted = tuple(dict.fromkeys(hashes))
        # "Every joined peer is asked for them, and what comes, checked against its hash, is handed
        # to `repair`" (docs/design/replication.md, Healing).
        helpers = [one.id for one in self._partners.values() if one.joined and not one.closing]
        for id in helpers:
            self._wants.add(wanted, id)
        if helpers:
            self._repairs.update(wanted)
            self._fetch(now_ms)
        else:
            self._effects.unhealed.extend(wanted)

    def written(self, id: str, count: int, now_ms: int) -> None:
        """Note that `count` frames to a peer have left."""
        partner = self._partners.get(id)
        if partner is not None:
            partner.unsent_count = max(0, partner.unsent_count - count)
            self._touched.add(id)
            if partner.answers and self._admits(partner):
                self._answer_on(partner, now_ms)
            self._flush(partner, now_ms)
            self._fetch(now_ms)

    def tick(self, now_ms: int, busy_ms: int = 0) -> None:
        """Do what is due. Call it at `deadline_ms`, or more often.

        busy_ms: how long this node read nothing; the deadlines of requests move by it.
        """
        self._update_due()
        due = self._due.take(now_ms)
        self._touched |= due
        for partner in list(self._partners.values()) if due or busy_ms else ():
            conversation = partner.conversation
            # "Time that this node was busy does not count" (docs/protocol.md, What is sent when).
            if busy_ms and conversation.deadline_ms is not None:
                conversation.excuse(busy_ms)
                self._touched.add(partner.id)
            if partner.id not in due:
                continue
            if conversation.deadline_ms is not None:
                conversation.expire(now_ms)
                self._hear(partner, now_ms)
            # "Every 30 s" (docs/protocol.md, What is sent when); a slow reader is compared later.
            if partner.joined and now_ms >= partner.next_compare_ms and not partner.is_full:
                partner.compare_after_ms = now_ms + self._pace.root_sync_interval_ms
                partner.again_ms = None
                if partner.met:
                    self._compare(partner, Why.DIRTY if partner.is_dirty else Why.DUE, now_ms)
            self._flush(partner, now_ms)
        self._wants.wake(now_ms)
        self._drop_lost(Peer(""), now_ms)
        self._finish_all(now_ms)
        self._fetch(now_ms)

    # --- outputs ------------------------------------------------------------------------------

    def take_effects(self) -> Effects:
        """Return what is to be done, once."""
        effects, self._effects = self._effects, Effects()
        return effects

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do; None: not before the next input."""
        if self._touched:
            self._update_due()
        due_ms, wake_ms = self._due.first_ms, self._wants.next_wake_ms
        if due_ms is None or wake_ms is None:
            return wake_ms if due_ms is None else due_ms
        return min(due_ms, wake_ms)

    def _update_due(self) -> None:
        """Bring the timetable up to date for the partners that something happened to."""
        for id in self._touched:
            partner = self._partners.get(id)
            self._due.put(id, None if partner is None else partner.due_ms)
        self._touched.clear()

    @property
    def standings(self) -> list[Standing]:
        """The status of each connection."""
        return [self._standing(one) for one in self._partners.values()]

    def _standing(self, partner: Partner) -> Standing:
        # What was sent says nothing about what arrived: only the peer's own statement counts.
        stated = partner.received if partner.is_settled else None
        equal = self._replica.equals(partner.peer, stated)
        return Standing(
            partner.id,
            partner.joined,
            equal,
            partner.conversation.pending_count,
            partner.peer.public_key,
            partner.is_dirty,
            partner.compared_ms,
            partner.agreed_ms,
            stated,
        )

    @property
    def missing_count(self) -> int:
        """Parts that are wanted."""
        return len(self._wants)

    # --- events -------------------------------------------------------------------------------

    def _hear(self, partner: Partner, now_ms: int) -> None:
        """Send a conversation's frames and act on its events."""
        self._touched.add(partner.id)
        # A message may have proved its key or told its features.
        partner.peer = partner.conversation.peer
        self._send_frames(partner)
        while events := partner.conversation.events():
            for event in events:
                self._heard(partner, event, now_ms)

    def _heard(self, partner: Partner, event: talk.PeerEvent, now_ms: int) -> None:
        # The one gate: nothing of a peer that is not admitted reaches the replica.
        if isinstance(event, _OF_THE_REPLICA):
            is_open = isinstance(event, talk.Asked) and event.is_open
            if not is_open and not self._admits(partner):
                self._refuse(partner, event, now_ms)
                return
        match event:
            case talk.Offered(offer):
                self._absorb(partner, offer, now_ms)
            case talk.Asked(exchange, request):
                self._serve(partner, exchange, request, now_ms)
            case talk.Answered(saying):
                self._was_useful(partner)
                if isinstance(saying, talk.TellTwin):
                    self._is_alive(partner, saying.next, now_ms)
            case talk.Delivered(want, parts):
                self._delivered(partner, want, Offer(None, parts), now_ms)
            case talk.Failed(want):
                self._wants.failed(want.hashes, partner.id, now_ms, is_silent=True)
            case talk.Round(exchange, message):
                self._round(partner, exchange, message, now_ms)
            case talk.Ended(exchange, error):
                self._ended(partner, exchange, error, now_ms)
            case talk.Joined():
                partner.joined = True
                partner.compare_after_ms = now_ms + self._pace.root_sync_interval_ms
                self._wants.add_helper(partner.id)
            case talk.Met(answered, start):
                self._met(partner, start, now_ms, answered=answered)
            case talk.Proved(public_key):
                self._effects.identified.append((partner.id, public_key))
                self._recognise(now_ms)
            case talk.Claimed(public_key):
                partner.claimed = public_key
                self._recognise(now_ms)
            case talk.Bare(offer, reason):
                self._absorb_bare(partner, offer, reason, now_ms)
            case talk.Doubted(reason):
                self._effects.note("doubted", partner.id, reason)
                partner.doubt(now_ms, self._pace)
            case talk.TwinMet(start):
                self._effects.twins.append(start)
            case talk.Fault(kind, text, is_fatal):
                self._fault(partner, kind, text, is_fatal=is_fatal)
            case talk.Left(reason):
                self._close(partner, reason)
            case _:
                assert_never(event)

    def _admits(self, partner: Partner) -> bool:
        """Return whether anything of a peer counts, and anything may be sent to it."""
        return self._replica.regard(partner.peer) is not Regard.REFUSED

    def _readmit(self, now_ms: int) -> None:
        """Ask the replica again whom it admits: compare newly admitted peers, expel others."""
        for partner in list(self._partners.values()):
            was_admitted, partner.admitted = partner.admitted, self._admits(partner)
            if partner.admitted == was_admitted:
                continue
            partner.is_refused = not partner.admitted
            self._touched.add(partner.id)
            if partner.admitted:
                self._welcome(partner, now_ms)
            else:
                self._expel(partner, now_ms)

    def _refuse(self, partner: Partner, event: talk.PeerEvent, now_ms: int) -> None:
        """Answer a peer that is not admitted as if what it asks for were unknown."""
        self._effects.note("not-admitted", partner.id, f"{type(event).__name__.lower()} by it")
        if isinstance(event, talk.Asked | talk.Round):
            self._say(partner, talk.Deny(event.exchange), now_ms)
            self._hear(partner, now_ms)
        elif isinstance(event, talk.Delivered):
            self._wants.failed(event.request.hashes, partner.id, now_ms)

    def _welcome(self, partner: Partner, now_ms: int) -> None:
        """Begin with a peer that was not admitted before."""
        if partner.joined:
            self._wants.add_helper(partner.id)
        # What it was sent before does not count: it may not have admitted this node either.
        partner.sent, partner.has_news = None, True
        if partner.met:
            self._compare(partner, Why.DUE, now_ms)
        self._flush(partner, now_ms)

    def _expel(self, partner: Partner, now_ms: int) -> None:
        """End what is open with a peer that is no longer admitted."""
        for exchange in list(partner.comparisons):
            self._say(partner, talk.Deny(exchange), now_ms)
        while partner.answers:
            self._say(partner, talk.Deny(partner.answers.popleft().exchange), now_ms)
        self._hear(partner, now_ms)
        self._wants.remove_peer(partner.id, now_ms)
        self._drop_lost(partner.peer, now_ms)

    def _met(self, partner: Partner, start: object, now_ms: int, *, answered: bool) -> None:
        """Begin to replicate with a peer whose features are known now."""
        was_met, partner.met = partner.met, True
        if partner.is_plain:
            self._recognise(now_ms)
        if not answered:
            partner.has_news = True
        if start is not None:
            self._started(partner, start, now_ms)
        if not answered:
            self._flush(partner, now_ms)
        # A peer that greets again and again is compared when that is due, and not each time.
        if answered or not was_met:
            # "Then it asks for the peer's root, ... and states its own root" (docs/protocol.md).
            self._compare(partner, Why.MEETING if answered else Why.WELCOMED, now_ms)

    def _serve(self, partner: Partner, exchange: object, request: object, now_ms: int) -> None:
        """Answer a request: the first reply at once, the others as the peer reads."""
        # Each unfinished answer holds an iterator of the replica.
        if len(partner.answers) >= ANSWERS_MAX:
            text = f"{ANSWERS_MAX} answers to it are open already"
            self._effects.note("answers-refused", partner.id, text)
            self._say(partner, talk.Deny(exchange), now_ms)
            return
        answer = OpenAnswer(exchange, request, self._replica.serve(partner.peer, request))
        if self._reply(partner, answer, now_ms):
            partner.answers.append(answer)
            self._answer_on(partner, now_ms)

    def _answer_on(self, partner: Partner, now_ms: int) -> None:
        """Make the next replies of open answers in turn, while there is room."""
        while partner.has_open_answers:
            answer = partner.answers.popleft()
            if self._reply(partner, answer, now_ms):
                partner.answers.append(answer)

    def _reply(self, partner: Partner, answer: OpenAnswer, now_ms: int) -> bool:
        """Say the next reply of an answer; return whether more follow."""
        reply = next(answer.replies, None)
        if reply is None:
            return False
        if isinstance(answer.request, Want):
            parts = reply.body
            if isinstance(parts, list) and any(part is not None for part in parts):
                self._was_useful(partner)
                for running in partner.comparisons.values():
                    running.has_moved = True
            is_wanted = self._is_wanted(partner)
            # "A request for the root cell of a patch therefore shows its sender that the patch
            # could not be read" (docs/protocol.md, Patches).
            if partner.asked_for(answer.request.hashes, now_ms, is_wanted=is_wanted):
                self._flush(partner, now_ms)  # before the answer: it may make that unnecessary
        self._say(partner, talk.Answer(answer.exchange, reply), now_ms)
        return not reply.last

    # --- offers -------------------------------------------------------------------------------

    def _absorb(
        self,
        partner: Partner,
        offer: Offer,
        now_ms: int,
        *,
        asked: bool = False,
        exchange: int | None = None,
    ) -> None:
        """Take in an offer.

        asked: it answers a request of ours. exchange: the comparison that it came in.
        """
        try:
            absorbed = self._replica.absorb(offer, partner.peer, asked=asked)
        except Undecodable as error:
            self._say(partner, talk.Refuse(str(error)), now_ms)
            error.peer = partner.id
            self._charge(partner, MALFORMED_FRAME, str(error))
            return
        except PeerError as error:
            if offer.probe is not None and not offer.is_aside:
                partner.has_stated(offer.probe.key)
            error.peer = partner.id
            self._charge(partner, REFUSED, str(error))
            if exchange is not None:
                self._pulls.failed((partner.id, exchange), str(error))
            return
        if offer.probe is not None:
            if not offer.is_aside:
                partner.has_stated(offer.probe.key)
            if exchange is not None:
                self._pulls.wait((partner.id, exchange), offer.probe.key)
        # "A receiver that cannot make the cells treats the message as a statement of the root: it
        # states its own root and asks for the cell of the other" (docs/protocol.md, Patches).
        if absorbed.unread:
            self._correct(partner, now_ms)
        # A cell that heals this store is asked for on although no value waits for it any more.
        self._wants.found(hash for hash in absorbed.unwanted if hash not in self._repairs)
        self._wants.add(absorbed.missing, partner.id)
        # What is wanted costs memory here before a byte of it has come (docs/protocol.md, Limits).
        if self._wants.count(partner.id) > WANTS_MAX:
            self._cut(partner, "missing", f"more than {WANTS_MAX} parts are missing of its values")
        # A peer that states something is sent what it lacks, unless it was sent that already.
        partner.has_news = True
        self.settle(absorbed, partner.id, now_ms)
        self._flush(partner, now_ms)
        self._fetch(now_ms)

    def _absorb_bare(self, partner: Partner, offer: Offer, reason: str, now_ms: int) -> None:
        """Take in a broadcast value as stated on the connection on which that peer answers.

        Missing parts are requested there: on a connection that it made, it reads answers only.
        """
        home = self._answering(partner)
        # Broadcasts "count once the peer has proved there that it holds the same key"
        # (docs/protocol.md, Plain peers).
        if home is None:
            self._charge(partner, IGNORED, reason)
        else:
            self._touched.add(home.id)
            self._absorb(home, offer, now_ms)

    def _answering(self, partner: Partner) -> Partner | None:
        """Return the partner on whose connection the peer that broadcasts here answers."""
        if partner.is_plain:
            return partner
        key = partner.peer.public_key
        if key is None:
            return None
        others = (one for one in self._partners.values() if one.is_plain)
        return next((one for one in others if one.peer.public_key == key), None)

    def _changed(self, now_ms: int) -> None:
        self._effects.changed = True
        for partner in self._partners.values():
            # In a burst most changes make nothing due at another time.
            if partner.changed(now_ms, crowded=self.crowded):
                self._touched.add(partner.id)
            self._flush(partner, now_ms)

    def _flush(self, partner: Partner, now_ms: int) -> None:
        """Push the difference to a peer that may lack something, once its window is over."""
        if not partner.has_news or now_ms < partner.push_after_ms or not partner.may_push:
            return
        self._touched.add(partner.id)
        partner.is_refused = not self._admits(partner)
        if partner.is_refused:
            return
        partner.has_news = False
        # "A push is computed when it leaves": many updates of one window cost one message, and the
        # last one is never lost (docs/design/replication.md).
        news = self._replica.news(partner.peer, partner.known)
        if news is None:
            return
        if news.is_behind and not partner.comparisons:
            partner.doubt(now_ms, self._pace)
        for remark in news.reports:
            self._effects.note(remark.kind, partner.id, remark.text, remark.count)
        size = 0
        for offer in news.offers:
            pushed = replace(offer, patch=None) if partner.lost_patch else offer
            size += self._say(partner, talk.Push(pushed), now_ms)
            self._effects.push_count += 1
            if offer.probe is not None and not partner.is_plain:
                partner.pushed(offer.probe, now_ms, self._pace, is_whole=news.is_whole)
        if partner.is_plain:
            partner.has_news = news.more
            partner.pushed_complete(size, now_ms, self._pace)

    # --- comparisons --------------------------------------------------------------------------

    def _compare(self, partner: Partner, why: Why, now_ms: int, pull: Pull | None = None) -> None:
        """Begin to compare the two states, for a pull if there is one."""
        path = () if pull is None else pull.path
        is_admitted = self._admits(partner)
        comparison = self._replica.compare(partner.peer, why, path) if is_admitted else None
        if comparison is None:
            self._effects.finish(pull, None)
            return
        # No exchange: it states something and awaits no answer, as a statement of the root does.
        exchange = partner.conversation.send(talk.Compare(comparison.start()), now_ms)
        if exchange is not None:
            partner.comparisons[exchange] = OpenComparison(comparison)
            self._comparing[partner.id] = partner
            if pull is not None:
                self._pulls.begin((partner.id, exchange), pull)
        if comparison.probe is not None:
            partner.has_news = False
            partner.pushed(comparison.probe, now_ms, self._pace)
            self._effects.push_count += 1
        self._send_frames(partner)

    def _correct(self, partner: Partner, now_ms: int) -> None:
        """State what is held here to a peer that assumes something else."""
        comparison = self._replica.compare(partner.peer, Why.DOUBT)
        if comparison is None or comparison.probe is None or not partner.may_push:
            return
        # Once for each state of ours: the peer's next patches may be unreadable, too.
        if comparison.probe.key not in partner.pushed_keys:
            self._compare(partner, Why.DOUBT, now_ms)

    def _round(self, partner: Partner, exchange: int, message: object, now_ms: int) -> None:
        """Take in a message of a comparison."""
        running = partner.comparisons.get(exchange)
        if running is None:
            comparison = self._replica.compare(partner.peer, Why.ASKED)
            if comparison is None:
                self._say(partner, talk.Deny(exchange), now_ms)
                return
            running = partner.comparisons[exchange] = OpenComparison(comparison)
            self._comparing[partner.id] = partner
        # A replica raises PeerError without a peer, which is named here.
        try:
            step = running.comparison.receive(message)
        except PeerError as error:
            error.peer = partner.id
            self._charge(partner, REFUSED, str(error))
            self._pulls.failed((partner.id, exchange), str(error))
            return
        # The comparison goes on: other parts of the peer's state may still come.
        if step.error is not None:
            self._pulls.failed((partner.id, exchange), step.error)
        if step.say:
            self._say(partner, talk.Continue(exchange, step), now_ms)
        running.needs.update(step.need)
        running.has_moved = running.has_moved or bool(step.need)
        running.is_partial = running.is_partial or step.is_partial
        running.is_done = running.is_done or step.is_done
        self._wants.add(step.need, partner.id)
        for offer in step.offers:
            self._absorb(partner, offer, now_ms, asked=True, exchange=exchange)
        self._finish(partner, now_ms)
        if step.need:
            self._fetch(now_ms)

    def _finish(self, partner: Partner, now_ms: int) -> None:
        """Finish the comparisons with a peer that have all parts they need."""
        for exchange, running in list(partner.comparisons.items()):
            if running.is_done and not running.has_finished and not self._lacks(running):
                # Once: an answer to it may end the comparison only after further rounds.
                running.has_finished = True
                self._say(partner, talk.Finish(exchange), now_ms)
                self._hear(partner, now_ms)  # it may be over by that

    def _lacks(self, running: OpenComparison) -> bool:
        """Return whether something that a comparison needs is still wanted."""
        # One is enough to know: they may be 100,000, of which 50 come at a time.
        while running.needs:
            hash = running.needs.pop()
            if hash in self._wants:
                running.needs.add(hash)
                return True
        return False

    def _ended(self, partner: Partner, exchange: int, error: str | None, now_ms: int) -> None:
        running = partner.comparisons.pop(exchange, None)
        if running is None:
            return
        if not partner.comparisons:
            self._comparing.pop(partner.id, None)
        # A comparison that ended early proves nothing about what either side has now.
        if error is not None:
            self._pulls.failed((partner.id, exchange), error)
            if partner.id in self._partners:
                self._effects.note("comparison-failed", partner.id, error)
        self._pulls.ended((partner.id, exchange), self._effects)
        if error is None and not running.is_partial:
            partner.compared(now_ms)
        elif not partner.is_plain:
            # A partial comparison that moved at least one part goes on at once; one that moved
            # nothing would fail the same way, so it rests.
            at_once = error is None and running.has_moved
            partner.doubt(now_ms, self._pace, at_once=at_once)
        both = running.comparison.ended()
        # After a complete comparison both sides have this state, so later news build on it.
        if both is not None and error is None:
            partner.sent, partner.sent_last = both, True
            partner.received, partner.stated, partner.is_settled = both, both.key, True
            self._note_agreement(partner, now_ms)
        if partner.id in self._partners and (both is not None or partner.is_plain):
            partner.has_news = True  # our state may have changed meanwhile
            self._flush(partner, now_ms)

    def _note_agreement(self, partner: Partner, now_ms: int) -> None:
        """Note whether a peer has our state, after it stated one."""
        stated = partner.received if partner.is_settled else None
        if self._replica.equals(partner.peer, stated):
            partner.agrees(now_ms, is_equal=True)

    # --- parts --------------------------------------------------------------------------------

    def _fetch(self, now_ms: int) -> None:
        """Ask for missing parts, as many batches as may be in flight."""
        if not len(self._wants):
            return
        for partner in self._partners.values():
            if not (self._wants.has_line(partner.id) and self._admits(partner)):
                continue
            room = partner.conversation.room
            # Four batches at a time hide the round trip, and bound what one peer can hold up.
            while room > 0 and not partner.is_full and not partner.closing:
                hashes = tuple(self._wants.take(partner.id, partner.conversation.batch_max))
                if not hashes:
                    break
                self._say(partner, talk.Request(Want(hashes)), now_ms)
                room -= 1

    def _delivered(self, partner: Partner, want: Want, offer: Offer, now_ms: int) -> None:
        here = {part.hash for part in offer.parts}
        if here:
            self._wants.found((part.hash for part in offer.parts), partner.id)
        # Parts of the request that did not come: the peer lacks them, the next one is asked.
        self._wants.failed((one for one in want.hashes if one not in here), partner.id, now_ms)
        if len(here) < len(want.hashes):
            lacking = len(want.hashes) - len(here)
            self._effects.note("undelivered", partner.id, f"{lacking} of {len(want.hashes)} cells")
        if here:
            self._repair([part for part in offer.parts if part.hash in self._repairs])
            self._absorb(partner, offer, now_ms, asked=True)
        self._drop_lost(partner.peer, now_ms)
        self._finish_all(now_ms)
        self._fetch(now_ms)

    def _repair(self, parts: list[Part]) -> None:
        """Have the replica replace its damaged parts by these.

        Raises: BadFormat, StoreError: as `Replica.repair`; they count as not healed.
        """
        if not parts:
            return
        hashes = [part.hash for part in parts]
        # Whatever happens now, these are not waited for any more.
        self._repairs.difference_update(hashes)
        try:
            self._replica.repair(parts)
        except DataLatticeError:
            self._effects.unhealed += hashes
            raise
        self._effects.healed += hashes

    def _finish_all(self, now_ms: int) -> None:
        for partner in list(self._comparing.values()):
            self._finish(partner, now_ms)

    def _drop_lost(self, peer: Peer, now_ms: int) -> None:
        lost = self._wants.take_lost()
        if lost:
            self._effects.unhealed += (hash for hash in lost if hash in self._repairs)
            self._repairs.difference_update(lost)
            for partner in self._comparing.values():
                for running in partner.comparisons.values():
                    # What was given up is still missing here.
                    running.is_partial = running.is_partial or not running.needs.isdisjoint(lost)
            absorbed = self._replica.absorb(Offer(None, (), lost), peer)
            self.settle(absorbed, peer.connection, now_ms)

    # --- identities ---------------------------------------------------------------------------

    def _recognise(self, now_ms: int) -> None:
        """Ask for proof on inbound connections whose claimed key is that of a plain peer of ours.

        A plain peer broadcasts on connections that it made, and answers on ours.
        """
        ours = {one.peer.public_key for one in self._partners.values() if one.is_plain}
        for partner in self._partners.values():
            key, partner.claimed = partner.claimed, None
            # A proved key, and a peer that answers on a connection of ours, need no challenge.
            if key is None or partner.peer.dialled or partner.peer.public_key is not None:
                continue
            if key in ours:
                self._say(partner, talk.DemandProof(), now_ms)
            else:
                partner.claimed = key

    def _started(self, partner: Partner, start: object, now_ms: int) -> None:
        """Note a peer's start, and tell two live peers with one identity of each other."""
        partner.start = start
        # Tell the older peer first, and the newer one after the older has answered: the connection
        # of a node that was killed and restarted may linger, and only an answer proves it alive.
        for twin in partner.twins(self._partners.values()):
            self._say(twin, talk.TellTwin(start, partner.id), now_ms)

    def _is_alive(self, partner: Partner, next: str, now_ms: int) -> None:
        """Tell the newer of two nodes with one identity of the older, which has answered."""
        twin = self._partners.get(next)
        if twin is not None and not twin.closing and partner.start is not None:
            self._effects.note("peer-cloned", partner.id, f"{TWINS} {twin.id}")
            self._say(twin, talk.TellTwin(partner.start), now_ms)

    # --- sending and charging -----------------------------------------------------------------

    def _say(self, partner: Partner, saying: talk.Saying, now_ms: int) -> int:
        """Send something to a peer; return the size of its frames in bytes."""
        partner.conversation.send(saying, now_ms)
        return self._send_frames(partner)

    def _send_frames(self, partner: Partner) -> int:
        frames = partner.conversation.frames()
        if not frames:
            return 0
        partner.unsent_count += len(frames)
        self._touched.add(partner.id)
        self._effects.sends += [(partner.id, frame) for frame in frames]
        return sum(map(len, frames))

    def _fault(self, partner: Partner, kind: str, text: str, *, is_fatal: bool) -> None:
        if is_fatal:
            self._cut(partner, kind, text)
        elif is_charged(kind):
            self._charge(partner, kind, text)
        else:
            self._effects.note(kind, partner.id, text)

    def _was_useful(self, partner: Partner) -> None:
        partner.conduct.forgive()
        self._effects.useful.add(partner.id)

    def _charge(self, partner: Partner, kind: str, text: str) -> None:
        self._effects.note(kind, partner.id, text)
        self._count_against(partner, kind)

    def _count_against(self, partner: Partner, kind: str) -> None:
        """Count a useless message of a peer; disconnect it when that is one too many."""
        reason = partner.conduct.charge(kind)
        if reason is not None:
            self._cut(partner, kind, reason)

    def _cut(self, partner: Partner, cause: str, reason: str) -> None:
        # The first reason counts: what follows is its consequence.
        if not partner.closing:
            self._effects.note(f"closed-{cause}", partner.id, reason)
            if cause in (MALFORMED_FRAME, UNSOUND):
                self._effects.breaches.append(partner.id)
            self._close(partner, reason)

    def _is_wanted(self, partner: Partner) -> bool:
        return self._replica.regard(partner.peer) is Regard.WANTED

    def _breach(self, id: str, reason: str) -> None:
        """Disconnect a peer that sent what no honest peer sends, unless it is a wanted one."""
        partner = self._partners.get(id)
        # "A named peer stays, since it may relay what others made; health says which and why"
        # (docs/design/foreign-data.md, Charges).
        if partner is not None and self._is_wanted(partner):
            self._effects.suspects.append((id, reason))
        elif partner is not None:
            self._cut(partner, UNSOUND, reason)

    def _close(self, partner: Partner, reason: str) -> None:
        partner.closing = True
        self._touched.add(partner.id)
        self._effects.closes.append((partner.id, reason))
