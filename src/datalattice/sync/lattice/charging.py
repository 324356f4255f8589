"""Charging: what each sender costs, over all its messages and connections.

A merge pays for its steps in ticks (`Work`); a message and a commit have a price. A sender's ticks
come from the bytes that it brought, then from a bucket that grows with time. A stranger whose
bucket is empty is read later; it loses nothing and delays no other sender. A merge that exceeds its
account costs the sender its credit for a while: its values then have a tick for each byte.

A sender is the key that a connection proved, or its address if it proved none. Wanted peers have
accounts, too, which bound a single merge and are never in debt.

Source: docs/design/foreign-data.md "Charges".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from datalattice.cells import SlotPairs, Work
from datalattice.clock import Clock
from datalattice.limits import CHARGE_LIMITS, WORK_LIMITS, ChargeLimits, WorkLimits

Sender = bytes | str
"""A public key, or an address."""


@lru_cache(1_024)
def _starting_with(limits: WorkLimits, start: int, grants_max: int | None = None) -> WorkLimits:
    """Return limits with another start. Few different ones occur, so they are cached."""
    grants = limits.grants_max if grants_max is None else grants_max
    return limits._replace(start=start, grants_max=grants)


@dataclass(slots=True)
class _Account:
    """A sender's ticks and conduct.

    ticks:       in its bucket, as of `seen_ms`; negative: debt.
    brought:     for bytes that it brought and that no merge has used.
    exceeded_ms: when a merge last exceeded its account; None: long enough ago.
    unsound:     unsound cells since it was last disconnected for them.
    spent:       ticks that it has caused.
    """

    ticks: float
    seen_ms: int
    brought: int = 0
    exceeded_ms: int | None = None
    unsound: int = 0
    spent: int = 0


class Charges:
    """The accounts of all senders of one replica. One thread uses them."""

    def __init__(
        self,
        clock: Clock,
        limits: ChargeLimits = CHARGE_LIMITS,
        work_limits: WorkLimits = WORK_LIMITS,
    ) -> None:
        self.limits = limits
        self.pairs: Final = SlotPairs()
        """Slots whose merges failed or forked, of all senders."""
        self._clock = clock
        self._work_limits = work_limits
        self._full = float(limits.per_s * limits.burst_s)
        self._accounts: dict[Sender, _Account] = {}  # the one that was used last is last
        self._latest: Sender | None = None
        self._senders: dict[str, Sender] = {}
        self.wanted: Final[set[str]] = set()
        """The connections with wanted peers."""
        self.known: Final[set[str]] = set()
        """The connections with known peers."""

    def introduce(
        self, peer: str, sender: Sender, *, is_wanted: bool, is_known: bool = False
    ) -> None:
        """Note who is at the other end of a connection, before anything else of it.

        is_wanted: the operator named it as a peer.
        is_known:  the operator named it, or allowed it to connect.
        """
        self.leave(peer)
        self._senders[peer] = sender
        if is_wanted:
            self.wanted.add(peer)
        if is_known:
            self.known.add(peer)

    def leave(self, peer: str) -> None:
        """Note that a connection has ended; the account of its sender stays."""
        self._senders.pop(peer, None)
        self.wanted.discard(peer)
        self.known.discard(peer)

    # --- work -----------------------------------------------------------------------------------

    def bring(self, peer: str, size: int) -> None:
        """Credit bytes of cells that came over a connection: each is worth a tick."""
        if size:
            account = self._account(peer)
            # Bounded: credit saved up over weeks would pay for one merge of minutes.
            account.brought = min(account.brought + size, self.limits.brought_max)

    def open(self, peer: str) -> Work:
        """Return the account of one merge of what came over a connection."""
        limits, work = self.limits, self._work_limits
        if peer in self.wanted:
            start = max(work.start, limits.wanted_credit)
            # "A peer that the operator named earns by all that it reads": trusted with time, not
            # with data.
            return Work(_starting_with(work, start), pairs=self.pairs)
        account = self._account(peer)
        if self._is_in_standing(account):
            # "With up to 40,000 ticks while its sender is in good standing"; "it earns no more than
            # the bytes that its sender brought", so planted cells earn nothing.
            start = max(work.start, min(limits.credit, int(account.ticks)))
            return Work(_starting_with(work, start), earn_max=account.brought, pairs=self.pairs)
        # A tick for each byte, and no more: what it begins with is a part of what it may earn.
        # "A merge that exceeds its account costs its sender that credit for 10 minutes"
        # (foreign-data.md, Charges).
        start = min(work.start, limits.exceeded_start, account.brought)
        made = _starting_with(work, start, 0)
        return Work(made, earn_max=account.brought - start, pairs=self.pairs)

    def close(self, peer: str, work: Work, *, is_commit: bool = False) -> None:
        """Charge what a merge spent; one that exceeded its account costs the sender its credit.

        is_commit: its result was committed.
        """
        # "A message costs 40 ticks ..., and a commit 100": it stands for the sync of the disk
        # (docs/design/foreign-data.md, Charges).
        account = self._charge(peer, work.spent + self.limits.commit * is_commit)
        if work.exceeded and peer not in self.wanted:
            account.exceeded_ms = self._clock.now_ms()

    def hear(self, peer: str) -> None:
        """Charge a stranger's message for being read: the smallest ones cost nothing else."""
        if peer not in self.wanted:
            self._charge(peer, self.limits.message)

    def _charge(self, peer: str, ticks: int) -> _Account:
        """Charge ticks to the bytes that a sender brought, then to its bucket."""
        account = self._account(peer)
        account.spent += ticks
        # "What a merge spends is charged to the bytes brought, then to the bucket of the sender's
        # key" (docs/design/foreign-data.md, Charges).
        paid = min(account.brought, ticks)
        account.brought -= paid
        if peer not in self.wanted:
            account.ticks -= ticks - paid
        return account

    def wait_ms(self, peer: str) -> int:
        """Return how long the next message must wait until its sender is out of debt."""
        if peer in self.wanted or self._senders.get(peer, peer) not in self._accounts:
            return 0
        return math.ceil(max(0.0, -self._account(peer).ticks) * 1_000 / self.limits.per_s)

    def _is_in_standing(self, account: _Account) -> bool:
        since_ms = account.exceeded_ms
        if since_ms is None:
            return True
        if 0 <= self._clock.now_ms() - since_ms < self.limits.exceeded_ms:
            return False
        account.exceeded_ms = None
        return True

    # --- soundness ------------------------------------------------------------------------------

    def blame(self, peer: str) -> bool:
        """Count an unsound cell of a connection; return whether it was one too many."""
        account = self._account(peer)
        account.unsound += 1
        # A few may come from an honest relay of bad data.
        if account.unsound < self.limits.unsound_max:
            return False
        account.unsound = 0
        return True

    # --- inside ---------------------------------------------------------------------------------

    def _account(self, peer: str) -> _Account:
        sender = self._senders.get(peer, peer)
        if sender == self._latest:  # as for most charges of one message
            account = self._accounts[sender]
        else:
            found = self._accounts.pop(sender, None)
            account = self._new_account() if found is None else found
            self._accounts[sender], self._latest = account, sender
        now_ms = self._clock.now_ms()
        passed_ms = now_ms - account.seen_ms
        account.seen_ms = now_ms
        # A clock that was set back adds nothing, and takes nothing away.
        if passed_ms > 0:
            account.ticks = min(self._full, account.ticks + passed_ms * self.limits.per_s / 1_000)
        return account

    def _new_account(self) -> _Account:
        # The sender that was idle longest is forgotten, and its debt with it.
        while len(self._accounts) >= self.limits.senders_max:
            del self._accounts[next(iter(self._accounts))]
        return _Account(self._full, self._clock.now_ms())
