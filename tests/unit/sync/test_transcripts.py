"""Recorded conversations with the reference node, replayed against ours without a socket.

The rules are those of the specification's section on running transcripts. Challenges come with
node identity; until then a challenge is an unknown kind and its transcripts are not run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps import queue  # noqa: F401 - registers its section of the root
from datalattice.cells import (
    Keyword,
    Map,
    Value,
    Vector,
    decode,
    decode_message,
    encode,
    value_hash,
)
from datalattice.conformance.typed import build
from datalattice.crypto import KeyPair
from datalattice.errors import PeerError
from datalattice.lattice import (
    DataLattice,
    IndexLattice,
    Lattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MinLattice,
    OwnerLattice,
    SetLattice,
    root_lattice,
)
from datalattice.store import MemoryStore
from datalattice.sync import Dialect, LatticeCodec, LatticeReplica, Replicator
from datalattice.wire import (
    FrameBuffer,
    Ping,
    Request,
    Result,
    decode_payload,
    encode_frame,
    encode_length,
    encode_supply,
)

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
WITH_CHALLENGES = {"challenge-with-key", "challenge-without-key", "challenge-bad-signature"} | {
    "pull-kv-signed"
}

LATTICES: dict[str, Lattice] = {
    "set": SetLattice(),
    "max": MaxLattice(),
    "min": MinLattice(),
    "mapmax": MapLattice(MaxLattice()),
    "mapset": MapLattice(SetLattice()),
    "indexmax": IndexLattice(MaxLattice()),
    "ownerset": OwnerLattice(SetLattice()),
    "data": DataLattice(),
}
# The key-value application comes later; what these transcripts do with its section is to check
# owners and signatures.
KV = OwnerLattice(MapLattice(IndexLattice(LWWLattice())))
ROOT = root_lattice().add_lattice(Keyword("kv"), KV)

DEEP_NESTING = encode_length(40_001) + bytes.fromhex("8001") * 20_000 + b"\x00"
"""The one frame that is described instead of written down."""


class FixedClock:
    def now_ms(self) -> int:
        return 1_800_000_000_000


def transcripts() -> list[Any]:
    found = []
    for path in sorted(VECTORS.glob("node-*.json")):
        for transcript in json.loads(path.read_text("utf-8"))["transcripts"]:
            if transcript["run"] != "skip" and transcript["name"] not in WITH_CHALLENGES:
                name = f"{path.stem}:{transcript['name']}"
                found.append(pytest.param(transcript, id=name))
    return found


class Player:
    """Our node, and the client whose part the transcript plays."""

    def __init__(self, transcript: Any) -> None:
        node = transcript.get("node") or transcript["server"]
        lattice = LATTICES.get(node["lattice"]) or ROOT
        seed = node.get("key_seed")
        key_pair = None if seed is None else KeyPair(bytes.fromhex(seed))
        store = MemoryStore()
        initial = node.get("initial")
        if initial is not None:
            if "message" in initial:
                store.commit(decode_message(bytes.fromhex(initial["message"])))
            else:
                store.commit(build(initial["v"]))
        self.cells = self._cells(transcript)
        self.replica = LatticeReplica(store, lattice, MergeContext(key_pair=key_pair))
        dialect = Dialect(ping_reply="timestamp")
        self.node = Replicator(self.replica, LatticeCodec(self.replica, FixedClock(), dialect))
        self.buffer = FrameBuffer()
        self.received: list[bytes] = []
        self.closed = False
        self.pings: set[bytes] = set()
        self.now_ms = 0
        self.node.open("client", 0, outbound=False)

    @staticmethod
    def _cells(transcript: Any) -> dict[bytes, Value]:
        cells = transcript.get("cells") or []
        texts = cells.values() if isinstance(cells, dict) else cells
        values = [decode(bytes.fromhex(text)) for text in texts]
        return {value_hash(value): value for value in values}

    def send(self, step: Any) -> None:
        if "skip" in step or self.closed:
            return
        if step.get("closed"):
            self.node.closed("client", self.now_ms)
            return
        data = DEEP_NESTING if "construct" in step else bytes.fromhex(step["bytes"])
        self.buffer.feed(data)
        try:
            while (payload := self.buffer.next_payload()) is not None:
                self._note(payload)
                self.node.receive("client", payload, self.now_ms)
                self._take()
        except PeerError:
            self.closed = True

    def _note(self, payload: bytes) -> None:
        try:
            message, _ = decode_payload(payload)
        except PeerError:
            return
        if isinstance(message, Ping):
            self.pings.add(encode(message.id))

    def _take(self) -> None:
        effects = self.node.take_effects()
        self.received.extend(payload for _, payload in effects.sends)
        self.closed = self.closed or bool(effects.closes)

    def expect(self, step: Any) -> bool:
        """Compare one step with what our node did; return whether the transcript is over."""
        expected = step.get("expect", "match")
        if expected == "differ":
            ours = step["ours"]
            getattr(self, "ours_" + ours["op"])(ours)
            return bool(ours.get("end"))
        op = step["op"]
        if step.get("closed"):
            return False
        if op in ("recv", "server_to_client"):
            got = self.received.pop(0)
            if expected == "volatile":
                self._compare_volatile(step, got)
            else:
                assert _structure(encode_frame(got)) == _structure(bytes.fromhex(step["bytes"]))
        elif op == "silence":
            assert self.received == []
        elif op == "peer_closed":
            assert self.closed
        elif op == "state":
            self.ours_state(step)
        return False

    def ours_recv(self, ours: Any) -> None:
        result = _result(self.received.pop(0))
        if "id" in ours:
            assert encode(result.id).hex() == ours["id"]
        if "error" in ours:
            name = None if result.error is None else result.error.name
            assert name == ours["error"]
        if "value" in ours:
            assert encode(result.value).hex() == ours["value"]
        if "value_hash" in ours:
            assert value_hash(result.value).hex() == ours["value_hash"]

    def ours_state(self, ours: Any) -> None:
        assert value_hash(self.replica.cursor.get()).hex() == ours["root_hash"]
        assert self.replica.announced_hash.hex() == ours["announced_hash"]

    def ours_closed(self, ours: Any) -> None:
        assert self.closed

    def ours_serve(self, ours: Any) -> None:
        asked = 0
        while self.received:
            message, _ = decode_payload(self.received.pop(0))
            assert isinstance(message, Request)
            asked += 1
            found = [
                (hash, encode(self.cells[hash]) if hash in self.cells else None)
                for hash in message.hashes
            ]
            self.node.receive("client", encode_supply(message.id, found), self.now_ms)
            self._take()
        assert asked

    def _compare_volatile(self, step: Any, got: bytes) -> None:
        result = _result(got)
        recorded = _result(_payload(bytes.fromhex(step["bytes"])))
        slots = {entry["field"] for entry in step["volatile"]}
        allowed = {word for entry in step["volatile"] for word in entry.get("allow", ())}
        if "id" not in slots:
            assert encode(result.id) == encode(recorded.id)
        if "result" not in slots:
            assert value_hash(result.value) == value_hash(recorded.value)
        elif encode(result.id) in self.pings:
            assert type(result.value) is int
        if "error" not in slots:
            assert result.error == recorded.error
        elif allowed:
            assert result.error is not None
            assert result.error.name in allowed


def _payload(frame: bytes) -> bytes:
    buffer = FrameBuffer()
    buffer.feed(frame)
    payload = buffer.next_payload()
    assert payload is not None
    return payload


def _structure(frame: bytes) -> tuple[bytes, frozenset[bytes]]:
    payload = _payload(frame)
    value = decode_message(payload)
    _, parts = decode_payload(payload)
    return encode(value), frozenset(parts.encodings())


def _result(payload: bytes) -> Result:
    message, _ = decode_payload(payload)
    assert isinstance(message, Result), message
    return message


@pytest.mark.parametrize("transcript", transcripts())
def test_our_node_takes_its_part(transcript: Any) -> None:
    player = Player(transcript)
    for step in transcript["steps"]:
        if step["op"] in ("send", "client_to_server"):
            player.send(step)
        elif step["op"] != "note" and player.expect(step):
            return


def test_a_challenge_is_an_unknown_kind_for_now() -> None:
    replica = LatticeReplica(MemoryStore(), SetLattice())
    node = Replicator(replica, LatticeCodec(replica, FixedClock()))
    node.open("client", 0, outbound=False)
    node.receive("client", encode(Vector.of([Keyword("CH"), 1, Map.of({})])), 0)
    effects = node.take_effects()
    assert effects.sends == []
    assert [note.kind for note in effects.notes] == ["ignored"]
