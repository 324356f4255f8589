"""Admission: which inbound connections a node keeps when more want to come than there is room for.

Keys are free, so a limit for each key alone keeps nobody out; addresses, the rate of new strangers
and a part of the room that is reserved for wanted keys do. A *wanted* key is one that the operator
named, as a peer or in `allow`; everybody else is a stranger. A connection is *useful* when a
message on it changed the root, answered a request, or was a request for cells that was served.

Nothing here knows of sockets: whoever asks is told why not, and connections that have to make room
are ended through the callback they came with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from datalattice.node.bounds import Addresses, Bucket, source_of_remote

KEY_CONNECTIONS_MAX: Final = 4
"""Connections of one key; the next one ends the one that was of no use for longest."""

WANTED_CONNECTIONS_MAX: Final = 8
"""The same for a wanted key."""

RESERVED_SHARE: Final = 8
RESERVED_MIN: Final = 16
"""An eighth of the room, at least so many connections, is for wanted keys; never over half."""

USELESS_S: Final = 120.0
"""A stranger of no use for so long makes room for another one when there is none."""

IDLE_S: Final = 600.0
"""A stranger of no use for so long ends when more than half of the room is taken."""

STRANGERS_PER_S: Final = 32
"""New strangers in a second, in the long run. Those of this machine itself are not counted."""

BANNED_S: Final = 600.0
"""How long a key is not let in again after it was cut for what no honest peer does."""

BANS_MAX: Final = 3
"""So many cut keys of one address keep that address out as well."""

BANNED_MAX: Final = 4_096
"""Keys and addresses that are remembered; the oldest are forgotten."""

SHARED: Final = "another connection with the same key took its place"
CROWDED: Final = "the room was needed for others"
IDLE: Final = f"of no use for {IDLE_S:.0f} s, and more than half of the room is taken"


class NotAdmitted(Exception):
    """A connection is refused; `counter` is a word to count it by."""

    def __init__(self, counter: str, text: str) -> None:
        self.counter = counter
        super().__init__(text)


@dataclass(eq=False, slots=True)
class Guest:
    """An inbound connection: where it comes from, whose it is, and when it last was of use.

    since_ms: Unix milliseconds since when it is there, for people.
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
        self._strangers_max = connections_max - min(reserved, connections_max // 2)
        self._addresses = Addresses(connections_per_address_max)
        self._is_wanted = is_wanted
        self._now_s = now_s
        self._arrivals = Bucket(STRANGERS_PER_S, now_s())
        self._guests: dict[Guest, None] = {}
        self._banned: dict[bytes | str, tuple[int, float]] = {}  # -> (cuts, time of the last)

    def __len__(self) -> int:
        return len(self._guests)

    def admit(self, remote: str, public_key: bytes | None, end: Callable[[str], None]) -> Guest:
        """Take up a connection; others may have to end for it, through their `end`.

        `public_key` is the one that was proved, None where the transport proves none.
        Raises: NotAdmitted: there is no room for it.
        """
        now_s = self._now_s()
        is_wanted = self._wants(public_key)
        guest = Guest(remote, public_key, end, now_s)
        if not is_wanted:
            self._check_bans(remote, public_key, now_s)
            if not self._addresses.admit(remote):
                raise NotAdmitted("addresses-refused", "too many connections from this address")
            guest.is_counted = True
        try:
            if not is_wanted and source_of_remote(remote) is not None:
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

    def release(self, guest: Guest) -> None:
        """Note that a connection has ended; for one that was made to end, that is known."""
        if guest in self._guests:
            del self._guests[guest]
            self._uncount(guest)

    def used(self, guest: Guest) -> None:
        """Note that a message on a connection was of use."""
        guest.used_s = self._now_s()

    def ban(self, guest: Guest) -> None:
        """Keep out the key of a connection that did what no honest peer does, unless it is wanted.

        An address from which that happened several times is kept out as well.
        """
        if self._wants(guest.public_key):
            return
        for name in (guest.public_key, source_of_remote(guest.remote)):
            if name is not None:
                cuts, _ = self._banned.pop(name, (0, 0.0))
                self._banned[name] = cuts + 1, self._now_s()
        while len(self._banned) > BANNED_MAX:
            del self._banned[next(iter(self._banned))]

    # --- inside -------------------------------------------------------------------------------

    def _wants(self, public_key: bytes | None) -> bool:
        return public_key is not None and self._is_wanted(public_key)

    def _check_bans(self, remote: str, public_key: bytes | None, now_s: float) -> None:
        source = source_of_remote(remote)
        if self._is_banned(public_key, 1, now_s) or self._is_banned(source, BANS_MAX, now_s):
            raise NotAdmitted("banned-refused", "cut for a breach of the protocol; come back later")

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
        is_full = len(self._guests) >= self._max
        if not is_full and (is_wanted or len(strangers) < self._strangers_max):
            return
        least = min(strangers, key=_used_s, default=None)
        if least is None or not (is_wanted or now_s - least.used_s >= USELESS_S):
            raise NotAdmitted("connections-refused", "all connections for strangers are taken")
        self._evict(least, CROWDED)

    def _share_key(self, public_key: bytes, is_wanted: bool) -> None:
        same = [one for one in self._guests if one.public_key == public_key]
        if len(same) >= (WANTED_CONNECTIONS_MAX if is_wanted else KEY_CONNECTIONS_MAX):
            self._evict(min(same, key=_used_s), SHARED)

    def _end_idle(self, now_s: float) -> None:
        """End idle strangers; only a new connection can make that due, so only then it is asked."""
        if 2 * len(self._guests) > self._max:
            for one in self._strangers():
                if now_s - one.used_s >= IDLE_S:
                    self._evict(one, IDLE)

    def _strangers(self) -> list[Guest]:
        return [one for one in self._guests if not self._wants(one.public_key)]

    def _uncount(self, guest: Guest) -> None:
        if guest.is_counted:
            self._addresses.release(guest.remote)

    def _evict(self, guest: Guest, reason: str) -> None:
        self.release(guest)
        guest.end(reason)


def _used_s(guest: Guest) -> float:
    return guest.used_s
