"""Attackers of Weaver stores: admitted members that break the protocol.

An attacker has a connection to every node and a stream for each store. From time to time it makes
an attack, and it answers requests in its own manner. It signs one chain without a fork: of two
branches each node keeps the one that it met first, so honest nodes would never become equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from datalattice.clock import Hlc
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat
from datalattice.protobuf import Message, read_varint, varint
from datalattice.sync.reconcile import RangeFingerprint, RangeItems, RangeMessage
from datalattice.sync.weaver import (
    ANNOUNCED_MAX,
    BootstrapRequest,
    BootstrapResponse,
    FetchChain,
    FetchIntentions,
    IntentionResponse,
    NewsMessage,
    PeerMessage,
    ReconcilePayload,
    SyncDone,
)
from datalattice.testing.dice import Dice
from datalattice.testing.sim.network import HostName, ScriptedPeer, SimNetwork
from datalattice.testing.sim.timeline import Timeline
from datalattice.weaver import ZERO_HASH, Intention, SignedIntention
from datalattice.wire import FrameBuffer, encode_frame

_CAPTURED_MAX: Final = 24
"""Frames of nodes that an attacker remembers."""

_HASHES_MAX: Final = 200
"""Hashes that an attack invents."""

_STREAM_BYTES_MAX: Final = 2_000_000


class StoreKnowledge:
    """What an attacker knows of one store: its own chain, and what it has heard."""

    def __init__(self, store_id: bytes, key: KeyPair) -> None:
        self.store_id: Final = store_id
        self.captured: Final[deque[bytes]] = deque(maxlen=_CAPTURED_MAX)
        self._key = key
        self._tip = ZERO_HASH
        self._wall = 1
        self._exchange = 0

    def exchange(self) -> int:
        self._exchange += 1
        return self._exchange

    def sign(self, payload: bytes, deps: tuple[bytes, ...] = ()) -> SignedIntention:
        """Return the next intention of its chain."""
        self._wall += 1
        stamp = Hlc(self._wall, 0)
        intention = Intention(self._key.public_key, stamp, self.store_id, self._tip, deps, payload)
        signed = intention.sign(self._key)
        self._tip = signed.hash
        return signed

    def frame(self, exchange: int, message: Message | bytes = b"") -> bytes:
        """Return a frame as this side numbers its exchanges."""
        zigzag = exchange << 1 if exchange >= 0 else (-exchange << 1) - 1
        body = message if isinstance(message, bytes) else message.encode()
        return varint(zigzag) + body


WeaverAttack = Callable[[StoreKnowledge, Dice], Iterable[bytes]]


def _invented(dice: Dice, most: int = _HASHES_MAX) -> tuple[bytes, ...]:
    return tuple(dice.bytes(32) for _ in range(dice.between(1, most)))


def garble(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Send bytes that are no message."""
    yield dice.bytes(dice.between(0, 60))
    yield know.frame(know.exchange(), dice.bytes(dice.between(1, 200)))


def repeat(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Send frames of nodes again, some with one bit changed."""
    for frame in list(know.captured):
        if not frame or dice.chance(0.5):
            yield frame
            continue
        at = dice.below(len(frame))
        yield frame[:at] + bytes([frame[at] ^ 1 << dice.below(8)]) + frame[at + 1 :]


def announce(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Announce intentions that do not exist, some more than may be."""
    most = ANNOUNCED_MAX + 10 if dice.chance(0.2) else _HASHES_MAX
    yield know.frame(0, NewsMessage(announced=_invented(dice, most)))
    yield know.frame(0, NewsMessage(is_redundant=True))


def forge(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Push intentions with a false signature, or of another store."""
    other = StoreKnowledge(dice.bytes(16), KeyPair(dice.bytes(32)))
    foreign = other.sign(b"of another store")
    forged = StoreKnowledge(know.store_id, KeyPair(dice.bytes(32))).sign(b"forged")
    forged = forged._replace(signature=dice.bytes(64))
    probe = dice.bytes(32)
    yield know.frame(0, NewsMessage((foreign.encode(), forged.encode()), probe, dice.below(999)))


def withhold(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Push an intention without its predecessor and with a dependency that does not exist."""
    know.sign(b"withheld")
    lacking = know.sign(b"lacking", tuple(sorted(_invented(dice, 3))))
    yield know.frame(0, NewsMessage((lacking.encode(),)))


def write_validly(know: StoreKnowledge, _dice: Dice) -> Iterator[bytes]:
    """Push a valid intention, as any member may."""
    yield know.frame(0, NewsMessage((know.sign(b"").encode(),)))


def compare(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Begin comparisons with invented fingerprints and lists, and never end them."""
    for _ in range(dice.between(1, 4)):
        start, end = sorted((dice.bytes(32), dice.bytes(32)))
        ranges = [
            RangeMessage(
                fingerprint=RangeFingerprint(start, end, dice.bytes(32), dice.below(10**6))
            ),
            RangeMessage(items_request=RangeItems(start, end, _invented(dice, 40))),
            RangeMessage(done=True),
        ]
        chosen = tuple(dice.shuffled(ranges)[: dice.between(1, 3)])
        yield know.frame(
            know.exchange(), PeerMessage(reconcile_payload=ReconcilePayload(know.store_id, chosen))
        )


def answer_unasked(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Answer exchanges that no side began, and end others."""
    for exchange in (-1, -dice.between(1, 40), know.exchange()):
        bodies: tuple[Message | bytes, ...] = (
            PeerMessage(intention_response=IntentionResponse(know.store_id, True, ())),
            PeerMessage(bootstrap_response=BootstrapResponse(know.store_id, (), (), True, 9)),
            PeerMessage(sync_done=SyncDone(know.store_id)),
            b"",
        )
        yield know.frame(exchange, dice.pick(bodies))


def ask_much(know: StoreKnowledge, dice: Dice) -> Iterator[bytes]:
    """Ask for more than there is, many times."""
    for _ in range(dice.between(1, 70)):
        body = dice.pick(
            (
                PeerMessage(fetch_intentions=FetchIntentions(know.store_id, _invented(dice, 20))),
                PeerMessage(fetch_chain=FetchChain(know.store_id, dice.bytes(32), dice.bytes(5))),
                PeerMessage(
                    bootstrap_request=BootstrapRequest(know.store_id, dice.below(9), 2**31)
                ),
            )
        )
        yield know.frame(know.exchange(), body)


WEAVER_ATTACKS: Final[tuple[WeaverAttack, ...]] = (
    garble,
    repeat,
    announce,
    forge,
    withhold,
    write_validly,
    compare,
    answer_unasked,
    ask_much,
)

WeaverManner = Callable[[StoreKnowledge, int, PeerMessage, Dice], "bytes | None"]


def silent(_know: StoreKnowledge, _exchange: int, _asked: PeerMessage, _dice: Dice) -> bytes | None:
    """Answer nothing."""
    return None


def refuse_all(
    know: StoreKnowledge, exchange: int, _asked: PeerMessage, _dice: Dice
) -> bytes | None:
    """Refuse every request and comparison."""
    return know.frame(exchange)


def lie(know: StoreKnowledge, exchange: int, asked: PeerMessage, dice: Dice) -> bytes | None:
    """Answer that nothing is to be sent, or send an intention that was not asked for."""
    if asked.reconcile_payload is not None:
        message = PeerMessage(
            reconcile_payload=ReconcilePayload(know.store_id, (RangeMessage(done=True),))
        )
        return know.frame(exchange, message)
    given = (know.sign(b"").encode(),) if dice.chance(0.5) else ()
    return know.frame(
        exchange, PeerMessage(intention_response=IntentionResponse(know.store_id, True, given))
    )


WEAVER_MANNERS: Final[tuple[WeaverManner, ...]] = (silent, refuse_all, lie)


class WeaverAttacker(ScriptedPeer):
    """A member that attacks the stores of nodes."""

    def __init__(
        self,
        name: str,
        timeline: Timeline,
        network: SimNetwork,
        dice: Dice,
        key: KeyPair,
        stores: Sequence[HostName],
    ) -> None:
        super().__init__(name, timeline, network, _STREAM_BYTES_MAX)
        self._dice = dice
        self._stores = {one: StoreKnowledge(one[1], key) for one in stores}
        self._streams: dict[tuple[str, HostName], FrameBuffer] = {}
        # Few attacks an attacker, so that runs differ.
        self._attacks = [dice.pick(WEAVER_ATTACKS) for _ in range(3)]
        self._manner = dice.pick(WEAVER_MANNERS)
        self._pause_ms = dice.pick((600, 1_500, 4_000))

    def begin(self) -> None:
        names = ", ".join(one.__name__ for one in self._attacks)
        self._timeline.record(self.name, f"will {names}; asked: {self._manner.__name__}")
        self._act()

    def _act(self) -> None:
        if self._buffers:
            connection = self._dice.pick(list(self._buffers))
            store = self._dice.pick(list(self._stores))
            attack = self._dice.pick(self._attacks)
            self._timeline.record(self.name, f"does {attack.__name__} on {connection}")
            for payload in attack(self._stores[store], self._dice):
                self._say(connection, store, payload)
        self._timeline.after(1 + self._dice.below(2 * self._pause_ms), self._act)

    def _say(self, connection: str, store: HostName, payload: bytes) -> None:
        self._network.send(connection, self.name, encode_frame(payload), store)

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        if connection not in self._buffers or name not in self._stores:
            return
        buffer = self._streams.setdefault((connection, name), FrameBuffer(_STREAM_BYTES_MAX))
        buffer.feed(data)
        while (payload := buffer.next_payload()) is not None:
            self._hear(connection, name, payload)

    def heard(self, connection: str, payload: bytes) -> None:
        """Ignore the stream of a lattice."""

    def _hear(self, connection: str, name: HostName, payload: bytes) -> None:
        know = self._stores[name]
        know.captured.append(payload)
        try:
            zigzag, at = read_varint(payload, 0)
            message = PeerMessage.decode(payload[at:])
        except BadFormat:  # news, which need no answer
            return
        # What the node began is negative here.
        exchange = (zigzag >> 1) + 1 if zigzag & 1 else -(zigzag >> 1)
        if exchange >= 0 or at == len(payload):
            return
        answer = self._manner(know, exchange, message, self._dice)
        if answer is not None:
            self._say(connection, name, answer)

    def ended(self, connection: str) -> None:
        super().ended(connection)
        for stream in [one for one in self._streams if one[0] == connection]:
            del self._streams[stream]
