"""Admission: decides which inbound connections a node keeps when too many arrive.

A *wanted* key is one that the operator named, as a peer or in `allow`; all others are strangers.
Anybody can make any number of keys, so limits for each key stop no flood. Limits for each address
and on the rate of new strangers do, and a share of the room is reserved for wanted keys. A
connection is *useful* if a message on it changed the root, answered a request, or was a request for
cells that was served.

This module knows no sockets: a refused caller gets the reason, and a connection that must make room
is ended through its callback.

Source: docs/protocol.md "Limits", "Bad input".
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from datalattice.node.bounds import AddressQuota, Bucket, source_of_remote

KEY_CONNECTIONS_MAX: Final = 4  # of one key; one more ends the one useless for longest
WANTED_CONNECTIONS_MAX: Final = 8  # of a wanted key

# Connections reserved for wanted keys: an eighth of the room, at least 16, at most half of it.
RESERVED_SHARE: Final = 8
RESERVED_MIN: Final = 16

USELESS_S: Final = 120.0  # a stranger useless for this long makes room for another one
IDLE_S: Final = 600.0  # and ends after this long while more than half of the room is taken

STRANGERS_PER_S: Final = 32  # new strangers a second, in the long run; this machine's are free

BANNED_S: Final = 600.0  # a key cut for a breach of the protocol is refused for this long
BANS_MAX: Final = 3  # cuts at one address after which the address is refused, too
BANNED_MAX: Final = 4_096  # keys and addresses remembered; the oldest are forgotten

# Every connection is an open file. These are kept back: the store, the control socket, connections
# to peers, and those just accepted to be refused (four times the backlog of 128).
FILES_RESERVED: Final = 640

SHARED: Final = "another connection with the same key took its place"
CROWDED: Final = "the room was needed for others"
IDLE: Final = f"of no use for {IDLE_S:.0f} s, and more than half of the room is taken"


def files_max() -> int:
    """Return how many files this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_files(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, as far as allowed; return the limit now."""
    if files_max() < wanted:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return files_max()


class NotAdmitted(Exception):
    """A connection is refused; `counter` is the name of the metric."""

    def __init__(self, counter: str, text: str) -> None:
        self.counter = counter
        super().__init__(text)


@dataclass(eq=False, slots=True)
class InboundPeer:
    """An inbound connection.

    used_s: when it was last useful. since_ms: Unix milliseconds of its admission, for people.
    """

    remote: str
    public_key: bytes | None
    end: Callable[[str], None]
    used_s: float
    since_ms: int = 0
    is_counted: bool = False  # by its address


class Admission:
    """The inbound connections of one node."""

    def __init__(
        self,
        connections_max: int,
        connections_per_address_max: int,
        is_wanted: Callable[[bytes], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._max = connections_max
        reserved = max(RESERVED_MIN, connections_max // RESERVED_SHARE)
        # "An eighth of `connections_max`, at least 16"; a small node keeps half of its room for
        # strangers.
        self._strangers_max = connections_max - min(reserved, connections_max // 2)
        self._addresses = AddressQuota(connections_per_address_max)
        self._is_wanted = is_wanted
        self._now_s = now_s
        self._arrivals = Bucket(STRANGERS_PER_S, now_s())
        self._guests: dict[InboundPeer, None] = {}
        # Keys and addresses; the latest cut is last.
        self._banned: dict[bytes | str, tuple[int, float]] = {}  # -> (cuts, time of the last)

    def __len__(self) -> int:
        return len(self._guests)

    def admit(
        self, remote: str, public_key: bytes | None, end: Callable[[str], None]
    ) -> InboundPeer:
        """Admit a connection; others may have to end for it, through their `end`.

        public_key: the proved one, None if the transport proves none.
        Raises: NotAdmitted: there is no room for it.
        """
        now_s = self._now_s()
        is_wanted = self._wants(public_key)
        guest = InboundPeer(remote, public_key, end, now_s)
        source = source_of_remote(remote)
        if not is_wanted:  # the operator's own peers are never refused for their address
            if self._is_banned(public_key, 1, now_s) or self._is_banned(source, BANS_MAX, now_s):
                # "A key whose connection ended with `closed-malformed` is refused for 10 minutes,
                # and so is its address after three of them; a wanted key is always let in"
                # (docs/protocol.md "Bad input").
                text = "cut for a breach of the protocol; come back later"
                raise NotAdmitted("banned-refused", text)
            if not self._addresses.admit(remote):
                raise NotAdmitted("addresses-refused", "too many connections from this address")
            guest.is_counted = True
        try:
            if not is_wanted and source is not None:
                self._check_rate(now_s)
            if public_key is not None:
                self._share_key(public_key, is_wanted)
            self._make_room(is_wanted, now_s)
        except NotAdmitted:
            self._uncount(guest)
            raise
        self._guests[guest] = None
        self._end_idle(now_s)
        return guest

    def release(self, guest: InboundPeer) -> None:
        """Note that a connection has ended; does nothing for one that was evicted."""
        if guest in self._guests:
            del self._guests[guest]
            self._uncount(guest)

    def used(self, guest: InboundPeer) -> None:
        """Note that a message on a connection was useful."""
        guest.used_s = self._now_s()

    def ban(self, guest: InboundPeer) -> None:
        """Refuse the key of a connection that broke the protocol from now on, unless it is wanted.

        After several such keys its address is refused as well.
        """
        if self._wants(guest.public_key):
            return
        # Anybody can make new keys, so the address counts the cuts of all its keys.
        for name in (guest.public_key, source_of_remote(guest.remote)):
            if name is not None:
                cuts, _ = self._banned.pop(name, (0, 0.0))
                self._banned[name] = cuts + 1, self._now_s()
        while len(self._banned) > BANNED_MAX:
            del self._banned[next(iter(self._banned))]

    # --- inside -------------------------------------------------------------------------------

    def _wants(self, public_key: bytes | None) -> bool:
        return public_key is not None and self._is_wanted(public_key)

    def _check_rate(self, now_s: float) -> None:
        if not self._arrivals.try_take(1, now_s):
            text = f"more than {STRANGERS_PER_S} new strangers in a second; come back later"
            raise NotAdmitted("strangers-refused", text)

    def _is_banned(self, name: bytes | str | None, cuts_min: int, now_s: float) -> bool:
        if name is None or name not in self._banned:
            return False
        cuts, cut_s = self._banned[name]
        if now_s - cut_s >= BANNED_S:
            del self._banned[name]
            return False
        return cuts >= cuts_min

    def _make_room(self, is_wanted: bool, now_s: float) -> None:
        strangers = self._strangers()
        # A wanted peer may use all of the room; a stranger only the part that is not reserved.
        is_full = len(self._guests) >= self._max
        if not is_full and (is_wanted or len(strangers) < self._strangers_max):
            return
        # "A stranger takes the place of another that was of no use for 120 s": a flood of new
        # strangers must not push out working connections.
        least = min(strangers, key=attrgetter("used_s"), default=None)
        if least is None or not (is_wanted or now_s - least.used_s >= USELESS_S):
            raise NotAdmitted("connections-refused", "all connections for strangers are taken")
        self._evict(least, CROWDED)

    def _share_key(self, public_key: bytes, is_wanted: bool) -> None:
        same = [one for one in self._guests if one.public_key == public_key]
        # "The next one ends the one that was of use longest ago": a device that reconnects replaces
        # its dead connection.
        if len(same) >= (WANTED_CONNECTIONS_MAX if is_wanted else KEY_CONNECTIONS_MAX):
            self._evict(min(same, key=attrgetter("used_s")), SHARED)

    def _end_idle(self, now_s: float) -> None:
        # "When more than half are taken, strangers of no use for 10 minutes end." Only an admission
        # can raise the number above half.
        if 2 * len(self._guests) > self._max:
            for one in self._strangers():
                if now_s - one.used_s >= IDLE_S:
                    self._evict(one, IDLE)

    def _strangers(self) -> list[InboundPeer]:
        return [one for one in self._guests if not self._wants(one.public_key)]

    def _uncount(self, guest: InboundPeer) -> None:
        if guest.is_counted:
            self._addresses.release(guest.remote)

    def _evict(self, guest: InboundPeer, reason: str) -> None:
        self.release(guest)
        guest.end(reason)
