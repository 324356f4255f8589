"""Hostile: peers that speak bytes and mean harm. What each does is drawn; all of it is scripted.

A hostile peer greets like a node, so that it is told of changes and asked for parts. From time to
time it makes an attack (see `attacks`), and it answers requests in its own way: not at all, late,
with nothing, with wrong cells, with nonsense.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, LimitExceeded
from datalattice.testing.dice import Dice
from datalattice.testing.sim.attacks import ATTACKS, Knowledge
from datalattice.testing.sim.network import HostName, SimNetwork
from datalattice.testing.sim.node import SimNode
from datalattice.testing.sim.poison import POISON
from datalattice.testing.sim.timeline import Timeline
from datalattice.wire import (
    DataRequest,
    ErrorCode,
    FrameBuffer,
    Ping,
    Query,
    Result,
    decode_payload,
    encode_failure,
    encode_frame,
    encode_query,
    encode_result,
    encode_supply,
)

CAPTURED_MAX: Final = 24
"""Messages that a hostile peer remembers, to say them again."""

LATE_MS: Final = 7_000
"""A late answer comes after the request has timed out."""

STREAM_BYTES_MAX: Final = 2_000_000


class HostilePeer:
    """One of them. It is an `End` of the network."""

    def __init__(
        self,
        name: str,
        timeline: Timeline,
        network: SimNetwork,
        victims: Sequence[SimNode],
        dice: Dice,
    ) -> None:
        self.name: Final = name
        self.idle_until_ms: Final = 0
        self._timeline = timeline
        self._network = network
        self._dice = dice
        self._links: dict[str, FrameBuffer] = {}
        self._knowledge = Knowledge(KeyPair(dice.bytes(32)), victims, deque(maxlen=CAPTURED_MAX))
        self._arms = [dice.pick(ATTACKS), dice.pick(ATTACKS), dice.pick(POISON)]
        self._manner = dice.pick(MANNERS)
        self._pause_ms = dice.pick((600, 1_500, 4_000))
        self._id = 0

    def begin(self) -> None:
        """Set out."""
        arms = ", ".join(arm.__name__ for arm in self._arms)
        self._timeline.record(self.name, f"will {arms}; asked: {self._manner.__name__}")
        self._act()

    def _act(self) -> None:
        if self._links:
            connection = self._dice.pick(list(self._links))
            arm = self._dice.pick(self._arms)
            self._timeline.record(self.name, f"does {arm.__name__} on {connection}")
            for data in arm(self._knowledge, self._dice):
                self._network.send(connection, self.name, data)
        pause_ms = 1 + self._dice.below(2 * self._pause_ms)
        self._timeline.after(pause_ms, self._act)

    # --- an end of the network ----------------------------------------------------------------

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        """Greet like a node."""
        self._links[connection] = FrameBuffer(STREAM_BYTES_MAX)
        self._id += 1
        self._send(connection, self._knowledge.hello(self._id))
        self._send(connection, encode_query(self._id, ()))

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        """Listen, and answer in its own way."""
        buffer = self._links.get(connection)
        if buffer is None:
            return
        buffer.feed(data)
        while (payload := buffer.next_payload()) is not None:
            self._timeline.record(self.name, f"hears {connection}", payload)
            self._knowledge.captured.append(payload)
            self._answer(connection, payload)

    def written(self, connection: str, name: HostName) -> None:
        """Do nothing: it does not wait for anybody."""

    def ended(self, connection: str) -> None:
        """Forget a connection."""
        self._links.pop(connection, None)

    def _send(self, connection: str, payload: bytes) -> None:
        self._network.send(connection, self.name, encode_frame(payload))

    def _answer(self, connection: str, payload: bytes) -> None:
        try:
            message, _ = decode_payload(payload)
        except (BadFormat, LimitExceeded):
            return
        if isinstance(message, Ping):
            self._send(connection, encode_result(Result(message.id, "PONG")))
        elif isinstance(message, Query) and self._dice.chance(0.5):
            self._send(connection, self._knowledge.lie(message.id, self._dice))
        elif isinstance(message, DataRequest):
            answer = self._manner(message, self._knowledge, self._dice)
            if answer is not None:
                delay_ms = LATE_MS if self._manner is late else 0
                self._timeline.after(delay_ms, partial(self._send, connection, answer))


Manner = Callable[[DataRequest, Knowledge, Dice], "bytes | None"]


def silent(_request: DataRequest, _knowledge: Knowledge, _dice: Dice) -> bytes | None:
    """Answer nothing."""
    return None


def empty(request: DataRequest, _knowledge: Knowledge, _dice: Dice) -> bytes | None:
    """Answer that none of it is here."""
    return encode_supply(request.id, [(hash, None) for hash in request.hashes])


def late(request: DataRequest, knowledge: Knowledge, dice: Dice) -> bytes | None:
    """Answer nothing useful, and that too late."""
    return empty(request, knowledge, dice)


def wrong(request: DataRequest, _knowledge: Knowledge, dice: Dice) -> bytes | None:
    """Answer with cells that have other hashes."""
    blob = b"\x31\x81\x40" + dice.bytes(192)
    return encode_supply(request.id, [(hash, blob) for hash in request.hashes])


def nonsense(request: DataRequest, _knowledge: Knowledge, dice: Dice) -> bytes | None:
    """Answer with something that is no answer to the question."""
    kind = dice.below(4)
    if kind == 0:
        return encode_failure(request.id, ErrorCode.MISSING, "no")
    if kind == 1:
        return encode_result(Result(request.id, 17))
    if kind == 2:
        return encode_supply(request.id, [(hash, None) for hash in (*request.hashes, b"")])
    return encode_supply(dice.below(100), [(hash, None) for hash in request.hashes])


def serve(request: DataRequest, knowledge: Knowledge, _dice: Dice) -> bytes | None:
    """Answer with what is asked for, as a relay does that stores anything."""
    return encode_supply(request.id, [(name, knowledge.known.get(name)) for name in request.hashes])


MANNERS: Final[tuple[Manner, ...]] = (silent, empty, late, wrong, nonsense, serve, serve, serve)
