"""Node player: plays the client of a transcript against a live node of ours, over loopback.

The node is a real one with threads and a listening socket, on a store in memory. Each step sends,
or waits for what must come and compares it by the rules in `transcripts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from datalattice.cells import Value, decode_message, value_hash
from datalattice.client.settings import NodeConfig
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_int,
    expect,
    shown,
)
from datalattice.conformance.registry import Case, VectorFormat, register_format, register_kind
from datalattice.conformance.transcripts import (
    RECEIVES,
    SENDS,
    TRANSCRIPT_KIND,
    bytes_of,
    cases,
    checked_steps,
    compare_frame,
    compare_ours,
    compare_state,
    compare_volatile,
    pings_in,
    recognises,
    requested_cells,
)
from datalattice.conformance.typed import build
from datalattice.crypto import KeyPair
from datalattice.errors import PeerError
from datalattice.lattice import (
    DataLattice,
    IndexLattice,
    Lattice,
    MapLattice,
    MaxLattice,
    MinLattice,
    OwnerLattice,
    SetLattice,
    root_lattice,
)
from datalattice.node import NodeServer, open_node
from datalattice.store import MemoryStore
from datalattice.wire import DataRequest, FrameBuffer, decode_payload, encode_frame, encode_supply

_ANSWER_S: Final = 5.0
"""How long an answer, an end of stream or a state may take."""

_SILENCE_MS: Final = 500
"""How long no frame may come where silence was recorded."""

QUIET_S: Final = 0.5
"""A node that requests no cells for this time has them all."""

AT_ONCE_MAX: Final = 12  # threads and sockets are limited
"""Transcripts of one file that are played at once: they mostly wait."""

_POLL_S: Final = 0.01
_READ_BYTES: Final = 1 << 18


def _lattice(name: str) -> Lattice:
    simple: dict[str, Lattice] = {
        "set": SetLattice(),
        "max": MaxLattice(),
        "min": MinLattice(),
        "mapmax": MapLattice(MaxLattice()),
        "mapset": MapLattice(SetLattice()),
        "indexmax": IndexLattice(MaxLattice()),
        "ownerset": OwnerLattice(SetLattice()),
        "data": DataLattice(),
        "root": root_lattice(),
    }
    if name not in simple:
        raise Mismatch(f"unknown lattice {shown(name)}; known: {', '.join(simple)}")
    return simple[name]


def _initial(node: Fields) -> Value:
    initial = node.fields("initial")
    initial.only("v", "message")
    if "message" in initial:
        return decode_message(initial.hex("message"))
    return build(initial.need("v"))


def _node(transcript: Fields) -> NodeServer:
    """Return the node that a transcript describes, not started yet."""
    described = transcript.fields("node" if "node" in transcript else "server")
    store = MemoryStore()
    if described.get("initial") is not None:
        value = _initial(described)
        if "root_hash" in described:
            expect("hash of initial", described.text("root_hash"), value_hash(value).hex())
        store.commit(value)
    key_pair = KeyPair(described.hex("key_seed")) if "key_seed" in described else None
    # The settings under which a node of ours answers as the reference does.
    config = NodeConfig(
        port=0, ping_reply="timestamp", strict_paths=True, accept_bare_values=False, plain=True
    )
    lattice = _lattice(described.text("lattice"))
    return open_node(store, key_pair=key_pair, lattice=lattice, config=config)


class _Client:
    """The far end of the connection."""

    def __init__(self, node: NodeServer, transcript: Fields) -> None:
        self._node = node
        self._cells = requested_cells(transcript)
        self._buffer = FrameBuffer()
        self._sent = FrameBuffer()
        self._pings: set[bytes] = set()

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._node.port)

    async def close(self) -> None:
        self._writer.close()
        # A node that has ended the connection may have reset it.
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def send(self, step: Fields) -> None:
        """Do a sending step. If the node has closed, the next waiting step fails."""
        if "skip" in step:
            return
        if step.get("closed"):  # the client's end, not the node's
            await self.close()
            return
        data = bytes_of(step)
        if not step.get("raw"):
            self._sent.feed(data)
            payload = self._sent.next_payload()
            # A transcript sends one frame a step; bytes that do not make a frame are marked `raw`.
            if payload is None or self._sent.is_partial:
                raise Mismatch(f"one whole frame is needed, got {shown(data)}")
            # Answers to a PING carry the clock, so they are compared by kind only.
            self._pings.update(pings_in(payload))
        # The node may have closed, as recorded or not: the next waiting step tells.
        with contextlib.suppress(OSError):
            self._writer.write(data)
            await self._writer.drain()

    async def frame(self, timeout_s: float) -> bytes | None:
        """Return the next frame, or None when there is none: end of stream, or silence."""
        try:
            async with asyncio.timeout(timeout_s):
                while (payload := self._buffer.next_payload()) is None:
                    data = await self._reader.read(_READ_BYTES)
                    # The end of the stream.
                    if not data:
                        return None
                    self._buffer.feed(data)
                return payload
        except (TimeoutError, ConnectionError):
            return None

    async def answer(self) -> bytes:
        """Return the next frame, which must come."""
        payload = await self.frame(_ANSWER_S)
        if payload is None:
            raise Mismatch(f"no frame came within {_ANSWER_S:g} s, or the node closed")
        return payload

    async def ended(self) -> None:
        """Return at the end of the stream, which must come."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                while await self._reader.read(_READ_BYTES):
                    pass
        except ConnectionError:
            return  # a reset is an end, too
        except TimeoutError:
            raise Mismatch(f"the node did not close within {_ANSWER_S:g} s") from None

    async def expect(self, step: Fields) -> bool:
        """Do a step that waits; return whether the transcript is over."""
        op, expected = step.text("op"), step.get("expect")
        if expected == "differ":
            ours = step.fields("ours")
            await self._ours(ours)
            return ours.get("end") is True
        # The reference had closed; ours may answer.
        if op in RECEIVES and step.get("closed"):
            return False
        if op in RECEIVES:
            payload = await self.answer()
            if expected == "volatile":
                compare_volatile(step, payload, self._pings)
            else:
                compare_frame(step, payload)
        elif op == "silence":
            # Recorded silences are longer than a node of ours needs to answer.
            ms = min(as_int(step.need("ms"), "ms"), _SILENCE_MS)
            unwanted = await self.frame(ms / 1_000)
            if unwanted is not None:
                raise Mismatch(f"nothing should have come, got {shown(unwanted)}")
        elif op == "peer_closed":
            await self.ended()
        else:
            await self._state(step)
        return False

    async def _ours(self, ours: Fields) -> None:
        op = ours.text("op")
        if op == "recv":
            compare_ours(ours, await self.answer())
        elif op == "state":
            await self._state(ours)
        elif op == "closed":
            await self.ended()
        else:
            await self._serve()

    async def _state(self, wanted: Fields) -> None:
        """Compare the node's state until it is as wanted, for a limited time."""
        # No frame announces that a node has merged what it received.
        until_s = time.monotonic() + _ANSWER_S
        while True:
            live, announced = value_hash(self._node.cursor.get()), self._node.root_hash
            try:
                compare_state(wanted, live, announced)
            except Mismatch:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def _serve(self) -> None:
        """Serve the node's requests for cells until it sends none."""
        payload: bytes | None = await self.answer()
        while payload is not None:
            message, _ = decode_payload(payload)
            if not isinstance(message, DataRequest) or message.fault is not None:
                raise Mismatch(f"a request for cells is needed, got {shown(payload)}")
            found = [(hash, self._cells.get(hash)) for hash in message.hashes]
            self._writer.write(encode_frame(encode_supply(message.id, found)))
            # A node requests depth by depth: silence means that it has all cells.
            payload = await self.frame(QUIET_S)


async def _play(transcript: Fields) -> None:
    steps = checked_steps(transcript)
    async with _node(transcript) as node:
        client = _Client(node, transcript)
        await client.connect()
        try:
            for number, step in enumerate(steps):
                op = step.text("op")
                try:
                    if op in SENDS:
                        await client.send(step)
                    elif op != "note" and await client.expect(step):
                        return  # the node has ended the conversation, as recorded
                except (Mismatch, PeerError) as error:
                    raise Mismatch(f"step {number} ({op}): {error}") from error
        finally:
            await client.close()


def play(transcript: Fields) -> None:
    """Raise `Mismatch` unless our node takes its part as the transcript says."""
    asyncio.run(_play(transcript))


async def _play_all(found: list[Case]) -> list[BaseException | None]:
    # "Those of one file are played at the same time, each against a node of its own: silence takes
    # time." (docs/conformance.md "Node transcripts")
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(case: Case) -> None:
        async with room:
            await _play(case.fields)

    return await asyncio.gather(*map(one, found), return_exceptions=True)


def play_all(found: list[Case]) -> list[BaseException | None]:
    """Play the transcripts of a file, each against a node of its own; return what each raised."""
    return asyncio.run(_play_all(found))


register_kind(TRANSCRIPT_KIND, play)
register_format(VectorFormat("node transcripts", recognises, cases, play_all))
