"""Hostile peers: scripts that attack nodes of a simulation, with attacks and answers from its dice.

A hostile peer greets like a node, so that nodes tell it of changes and request cells from it. From
time to time it makes an attack (see `attacks`). It answers requests in its own manner: not at all,
late, with nothing, with wrong cells, with nonsense, or with the cells of its attacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, LimitExceeded
from datalattice.testing.dice import Dice
from datalattice.testing.sim.attacks import ATTACKS, POISON, Knowledge
from datalattice.testing.sim.network import ScriptedPeer, SimNetwork
from datalattice.testing.sim.node import SimNode
from datalattice.testing.sim.timeline import Timeline
from datalattice.wire import (
    DataRequest,
    ErrorCode,
    Ping,
    Query,
    Result,
    decode_payload,
    encode_failure,
    encode_query,
    encode_result,
    encode_supply,
)

_CAPTURED_MAX: Final = 24
"""Messages that a hostile peer remembers to send them again."""

LATE_MS: Final = 7_000
"""A late answer comes after the request has timed out."""

_STREAM_BYTES_MAX: Final = 2_000_000


class HostilePeer(ScriptedPeer):
    """A peer that attacks."""

    def __init__(
        self,
        name: str,
        timeline: Timeline,
        network: SimNetwork,
        victims: Sequence[SimNode],
        dice: Dice,
    ) -> None:
        super().__init__(name, timeline, network, _STREAM_BYTES_MAX)
        self._dice = dice
        self._knowledge = Knowledge(KeyPair(dice.bytes(32)), victims, deque(maxlen=_CAPTURED_MAX))
        # Few attacks a peer, so that runs differ.
        self._attacks = [dice.pick(ATTACKS), dice.pick(ATTACKS), dice.pick(POISON)]
        self._manner = dice.pick(MANNERS)
        self._pause_ms = dice.pick((600, 1_500, 4_000))
        self._id = 0

    def begin(self) -> None:
        names = ", ".join(one.__name__ for one in self._attacks)
        self._timeline.record(self.name, f"will {names}; asked: {self._manner.__name__}")
        self._act()

    def _act(self) -> None:
        if self._buffers:  # without a connection there is nothing to attack
            connection = self._dice.pick(list(self._buffers))
            attack = self._dice.pick(self._attacks)
            self._timeline.record(self.name, f"does {attack.__name__} on {connection}")
            for data in attack(self._knowledge, self._dice):
                self._network.send(connection, self.name, data)
        pause_ms = 1 + self._dice.below(2 * self._pause_ms)
        self._timeline.after(pause_ms, self._act)

    # --- an end of the network ----------------------------------------------------------------

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        super().opened(connection, peer, outbound=outbound)
        self._id += 1
        self.send(connection, self._knowledge.hello(self._id))
        self.send(connection, encode_query(self._id, ()))

    def heard(self, connection: str, payload: bytes) -> None:
        self._knowledge.captured.append(payload)  # kept to be sent again
        try:
            message, _ = decode_payload(payload)
        except (BadFormat, LimitExceeded):
            return
        if isinstance(message, Ping):
            self.send(connection, encode_result(Result(message.id, "PONG")))
        # Half of the questions stay open.
        elif isinstance(message, Query) and self._dice.chance(0.5):
            self.send(connection, self._knowledge.lie(message.id, self._dice))
        elif isinstance(message, DataRequest):
            answer = self._manner(message, self._knowledge, self._dice)
            if answer is not None:  # a silent peer lets the request time out
                delay_ms = LATE_MS if self._manner is late else 0
                self._timeline.after(delay_ms, partial(self.send, connection, answer))


Manner = Callable[[DataRequest, Knowledge, Dice], "bytes | None"]


def silent(_request: DataRequest, _knowledge: Knowledge, _dice: Dice) -> bytes | None:
    """Answer nothing."""
    return None


def empty(request: DataRequest, _knowledge: Knowledge, _dice: Dice) -> bytes | None:
    """Answer that it has none of the cells."""
    return encode_supply(request.id, [(hash, None) for hash in request.hashes])


def late(request: DataRequest, knowledge: Knowledge, dice: Dice) -> bytes | None:
    """Answer like `empty`, and too late."""
    return empty(request, knowledge, dice)


def wrong(request: DataRequest, _knowledge: Knowledge, dice: Dice) -> bytes | None:
    """Answer with cells that have other hashes."""
    blob = b"\x31\x81\x40" + dice.bytes(192)
    return encode_supply(request.id, [(hash, blob) for hash in request.hashes])


def nonsense(request: DataRequest, _knowledge: Knowledge, dice: Dice) -> bytes | None:
    """Answer with something that does not fit the request."""
    kind = dice.below(4)
    if kind == 0:
        return encode_failure(request.id, ErrorCode.MISSING, "no")
    if kind == 1:
        return encode_result(Result(request.id, 17))
    if kind == 2:
        return encode_supply(request.id, [(hash, None) for hash in (*request.hashes, b"")])
    return encode_supply(dice.below(100), [(hash, None) for hash in request.hashes])


def serve_kept(request: DataRequest, knowledge: Knowledge, _dice: Dice) -> bytes | None:
    """Answer with those of the requested cells that it has kept, like a relay of any data."""
    return encode_supply(request.id, [(name, knowledge.known.get(name)) for name in request.hashes])


MANNERS: Final[tuple[Manner, ...]] = (
    silent,
    empty,
    late,
    wrong,
    nonsense,
    serve_kept,
    serve_kept,
    serve_kept,
)
