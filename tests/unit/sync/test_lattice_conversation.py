"""The node protocol with one peer, as scenario texts: a command, and what it is answered with.

    == title                     a new conversation begins
    # text                       why the next command is answered so
    accepted key=p               it was accepted, and the transport proved the key p
    > Greet()                    the replicator says something
    < ping(1, PEER)              the peer sends something
    t=5000                       time passes, and what was not answered in time is given up
    close                        the connection is gone

Below each command stand the messages that it sends, and the events that it causes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from datalattice.cells import (
    Keyword,
    Map,
    Signed,
    Text,
    Value,
    Vector,
    decode,
    encode,
    to_text,
    value_hash,
)
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.errors import BadFormat
from datalattice.lattice import SetLattice
from datalattice.store import MemoryStore
from datalattice.sync import (
    Dialect,
    LatticeProtocol,
    LatticeReplica,
    Offer,
    Part,
    Peer,
    Probe,
    Replicator,
    Step,
    Want,
    conversation as said,
    sign_start,
)
from datalattice.sync.lattice.absorption import Absorption
from datalattice.sync.lattice.incoming import (
    Incoming,
    Lookup,
    LookupResult,
    PatchedRoot,
    QueriedValue,
    Question,
    StatedRoot,
    unpatched,
)
from datalattice.sync.lattice.patch import write_patch
from datalattice.sync.lattice.starts import START_TAG, TWIN_TAG, NodeStart
from datalattice.sync.replica import Reply, Undecodable
from datalattice.testing.clocks import StoppedClock
from datalattice.wire import (
    Challenge,
    DataRequest,
    ErrorCode,
    Patched,
    Result,
    answer_challenge,
    decode_payload,
    encode_announcement,
    encode_challenge,
    encode_failure,
    encode_patched,
    encode_ping,
    encode_query,
    encode_request,
    encode_result,
    encode_supply,
)

SCENARIOS: Final = Path(__file__).parent / "scenarios"
NOW_MS: Final = 1_800_000_000_000
LONG, OTHER = Text.of("long " * 100), Text.of("other " * 100)
KEYS: Final = {name: KeyPair(name.encode() * 32) for name in "opx"}
NAMES: Final = {value_hash(LONG): "LONG", value_hash(OTHER): "OTHER"} | {
    pair.public_key: f"key {name}" for name, pair in KEYS.items()
}


# --- running scenarios ----------------------------------------------------------------------------


def scenarios() -> list[Any]:
    """Return each scenario of each file: its lines below the title."""
    found = []
    for path in sorted(SCENARIOS.glob("*.txt")):
        for text in path.read_text(encoding="utf-8").split("\n== ")[1:]:
            title, _, body = text.partition("\n")
            found.append(pytest.param(body, id=title))
    return found


@pytest.mark.parametrize("text", scenarios())
def test_scenario(text: str) -> None:
    assert played(text) == text.strip()


def played(text: str) -> str:
    """Return a scenario as it really goes."""
    stage = Stage()
    lines: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {one}" for one in stage.do(line)]
    return "\n".join(lines)


class Stage:
    """A conversation, and the words of the commands."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.talk = LatticeProtocol().converse(Peer("c"), None)
        self.challenge: Challenge | None = None

    def do(self, line: str) -> list[str]:
        """Carry out a command; return what came of it."""
        word, _, rest = line.partition(" ")
        exchange = None
        if word in ("dialled", "accepted"):
            self.open(word == "dialled", dict(one.split("=") for one in rest.split()))
        elif word == ">":
            exchange = self.talk.send(self.value(rest), self.now_ms)
        elif word == "<":
            self.talk.receive(self.value(rest), self.now_ms)
        elif word == "close":
            self.talk.close()
        else:
            self.now_ms = int(word.removeprefix("t="))
            self.talk.expire(self.now_ms)
        sent = [f"sends {self.message(payload)}" for payload in self.talk.frames()]
        happened = [shown(event, self.talk.peer) for event in self.talk.events()]
        return sent + happened + ([] if exchange is None else [f"exchange {exchange}"])

    def open(self, is_dialled: bool, given: dict[str, str]) -> None:
        """Begin a conversation: `key` is proved, `pinned` wanted, and `own` ours."""
        keys = {name: KEYS[given[name]] for name in ("key", "pinned", "own") if name in given}
        node = LatticeProtocol(
            StoppedClock(NOW_MS),
            Dialect(given.get("ping", "pong"), accept_bare_values="bare" in given),
            identity=keys.get("own"),
            entropy=SeededEntropy(1),
            start=sign_start(KEYS["o"], int(given["start"]), 0) if "start" in given else None,
        )
        key, pinned = keys.get("key"), keys.get("pinned")
        peer = Peer("c", is_dialled, None if key is None else key.public_key)
        self.talk = node.converse(peer, None if pinned is None else pinned.public_key)

    def value(self, text: str) -> Any:
        """Return what an expression stands for."""
        words = {name: getattr(said, name) for name in dir(said)} | WORDS
        return eval(text, words | {"prove": self.prove})

    def prove(self, name: str) -> bytes:
        """Return the answer to the last challenge with a key."""
        assert self.challenge is not None
        return answer_challenge(self.challenge, KEYS[name])

    def message(self, payload: bytes) -> str:
        """Print a message that was sent, with names in the place of long values."""
        message, parts = decode_payload(payload)
        if isinstance(message, Challenge):
            self.challenge = message
            return "a challenge"
        encodings = parts.encodings().values()
        cells = ", ".join(NAMES.get(value_hash(decode(one)), "a cell") for one in encodings)
        return f"{message_text(message)}{' with ' + cells if cells else ''}"


def message_text(message: object) -> str:
    """Print a message: its kind, and what it says."""
    fields = {name: getattr(message, name) for name in message.__slots__}  # type: ignore[attr-defined]
    texts = [plain(one) for one in fields.values() if one not in (None, (), False)]
    return " ".join([type(message).__name__, *texts])


def plain(value: object) -> str:
    """Print a value of a message or an event."""
    if isinstance(value, bytes):
        return NAMES.get(value, value.hex()[:8])
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(plain, value))}]"
    if isinstance(value, Part):
        return plain(value.hash)
    if isinstance(value, Offer):
        data = None if value.probe is None else value.probe.data
        if isinstance(data, Incoming):
            top = plain(data.absent) + " by its hash" if data.absent else plain(data.value)
            return f"{top} at {plain(data.path)}"
        return type(data).__name__
    if isinstance(value, QueriedValue):
        if value.error is not None:
            return f"at {plain(value.path)}: {value.error}"
        return f"at {plain(value.path)}: {plain(value.absent or value.value)}"
    if isinstance(value, NodeStart):
        return f"start {value.number}"
    if isinstance(value, Lookup | Want):
        return message_text(value)
    if isinstance(value, str):  # a Text reads as one
        return NAMES.get(value_hash(value), value)
    if isinstance(value, Vector):
        return plain(tuple(value))
    if isinstance(value, Signed):
        said = value.value
        return plain(said) if isinstance(said, Vector) else f"signed by {plain(value.public_key)}"
    if isinstance(value, Map):
        return f"{{{', '.join(f'{plain(key)} {plain(one)}' for key, one in value.entries())}}}"
    return to_text(value) if isinstance(value, Keyword | int) else repr(value)


def shown(event: object, peer: Peer) -> str:
    """Print an event."""
    if isinstance(event, said.Answered):
        return f"Answered {type(event.saying).__name__}"
    if isinstance(event, said.Met):
        how = "answered" if event.answered else "greeted"
        return f"Met, it {how}: {' '.join(sorted(peer.features)) or 'no features'}"
    if isinstance(event, said.Fault):
        return f"Fault {event.kind}{', fatal' if event.is_fatal else ''}: {event.text}"
    return message_text(event)


def query(*path: Value) -> bytes:
    return encode_query(7, path)


def supply(id: int, *cells: Value) -> bytes:
    return encode_supply(
        id, [(value_hash(cell), None if cell is None else encode(cell)) for cell in cells]
    )


WORDS: Final[dict[str, Any]] = {
    "LONG": LONG,
    "OTHER": OTHER,
    "PEER": Keyword("PEER"),
    "LP": Keyword("LP"),
    "TWIN": TWIN_TAG,
    "start": lambda number: sign_start(KEYS["o"], number, 0).signed,
    "told": lambda number: Map.of([(START_TAG, sign_start(KEYS["o"], number, 0).signed)]),
    "Compare": lambda *say: said.Compare(Step(say)),
    "Want": lambda *cells: said.Request(Want(tuple(map(value_hash, cells)))),
    "StatedRoot": lambda value: StatedRoot(Offer(Probe(value_hash(value), value))),
    "Push": lambda value: said.Push(Offer(Probe(value_hash(value), value))),
    "Ask": lambda *path: Question(path, 0),
    "Parts": lambda id, *cells: said.Answer(
        (id, tuple(map(value_hash, cells))),
        Reply([Part(value_hash(cell), encode(cell)) for cell in cells]),
    ),
    "Lacks": lambda id: said.Answer((id, 1_000), Reply(LookupResult(error="nothing is there"))),
    "ping": encode_ping,
    "result": lambda id, value, info=None: encode_result(Result(id, value, info=info)),
    "failure": lambda id, name, text: encode_failure(id, getattr(ErrorCode, name), text),
    "info": Map.of([(Keyword("LP"), True)]),
    "value": lambda value, *path: encode_announcement(path, value, []),
    "request": lambda id, *cells: encode_request(id, list(map(value_hash, cells))),
    "query": query,
    "supply": supply,
    "bare": encode,
    "vector": lambda *items: Vector.of(items),
    "challenge": lambda name: encode_challenge(9, KEYS[name], b"t" * 32, None),
}


# --- what an answer has to be ---------------------------------------------------------------------


def parts_of(payload: bytes, *wanted: Value) -> tuple[tuple[Part, ...], list[str]]:
    """Return (the parts in an answer to a request for these values, what is wrong with it)."""
    one = LatticeProtocol().converse(Peer("p"), None)
    want = Want(tuple(value_hash(value) for value in wanted))
    one.send(said.Request(want), 0)
    one.receive(payload, 0)
    events = one.events()
    (delivered,) = [event for event in events if isinstance(event, said.Delivered)]
    return delivered.parts, [event.text for event in events if isinstance(event, said.Fault)]


def test_cells_come_by_their_hash_embedded_ones_too() -> None:
    parts, faults = parts_of(supply(1, LONG, 5, None), LONG, 5, OTHER)
    assert parts == (Part(value_hash(LONG), encode(LONG)), Part(value_hash(5), encode(5)))
    assert faults == []


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (supply(1, LONG), "the answer to a request for 2 cells"),
        (supply(1, LONG, LONG, LONG), "the answer to a request for 2 cells"),
        (encode_result(Result(1, 5)), "the answer to a request for 2 cells"),
        (supply(1, LONG, 5), "another cell in place of"),
        (encode_result(Result(1, Vector.of([LONG, LONG]))), "another cell in place of"),
    ],
)
def test_an_answer_of_another_form_or_with_other_cells_is_refused(
    payload: bytes, text: str
) -> None:
    parts, faults = parts_of(payload, LONG, OTHER)
    assert parts == ()
    assert [text in fault for fault in faults] == [True]


def test_a_reference_whose_cell_did_not_come_along_is_none() -> None:
    bare = b"\xdd\x05" + encode(1) + encode(Vector.of([LONG, OTHER])) + bytes(3)
    assert parts_of(bare, LONG, OTHER) == ((), [])


def test_who_sends_other_cells_is_blamed_and_others_are_asked() -> None:
    replica = LatticeReplica(MemoryStore(), SetLattice())
    node = Replicator(replica, LatticeProtocol(StoppedClock(NOW_MS)))
    for peer in "pq":
        node.open(peer, 0, outbound=True)
    node.take_effects()
    # A root that is not there: both peers may have it, and p named it.
    node.receive("p", encode_announcement((), Text.of("root " * 100), ()), 0)
    ((peer, payload),) = node.take_effects().sends
    message, _ = decode_payload(payload)
    assert isinstance(message, DataRequest)
    assert peer == "p"
    node.receive("p", encode_result(Result(message.id, Vector.of([OTHER]))), 1)
    effects = node.take_effects()
    assert [note.kind for note in effects.notes] == ["refused", "undelivered"]
    assert "(peer p)" in effects.notes[0].text
    assert [peer for peer, _ in effects.sends] == ["q"]


# --- patches --------------------------------------------------------------------------------------


def read(payload: bytes, replica: LatticeReplica | None = None) -> tuple[Incoming, bool]:
    """Return (the value that a patch carries, whether it could not be read)."""
    replica = replica or LatticeReplica(MemoryStore(), SetLattice())
    message, _ = decode_payload(payload)
    assert isinstance(message, Patched)
    outcome = Absorption()
    root = PatchedRoot(message, len(payload), Dialect().message_bytes_max)
    offer = unpatched(Offer(Probe(message.hash, root)), replica.views.load, outcome)
    assert offer.probe is not None
    incoming = offer.probe.data
    assert isinstance(incoming, Incoming)
    return incoming, outcome.unread


def patched(hash: bytes) -> tuple[Incoming, bool]:
    """Return what a patch from a short value to a long one says, when it claims this hash."""
    base, value = Vector.of([1]), Vector.of([1, "x" * 50])
    patch = write_patch(encode(value), {}, encode(base), lambda _: None)
    return read(encode_patched(base, hash, patch))


def test_a_patch_that_makes_something_else_counts_as_its_hash_alone() -> None:
    made = Vector.of([1, "x" * 50])
    incoming, is_unread = patched(value_hash(made))
    assert (incoming.value, is_unread) == (made, False)
    claimed = value_hash(OTHER)
    incoming, is_unread = patched(claimed)
    assert (incoming.value, incoming.absent, is_unread) == (None, claimed, True)


def test_a_patch_brings_the_bytes_of_its_message_and_none_that_it_stands_for() -> None:
    base = Vector.of(["x" * 3_000, 1])
    replica = LatticeReplica(MemoryStore(), SetLattice())
    replica.store.commit(base)
    text, changed = "x" * 2_999 + "y", "z" * 150
    value = Vector.of([text, changed])
    cells = {value_hash(one): encode(one) for one in (text, changed)}
    load = replica.store.get_encoding
    payload = encode_patched(
        base, value_hash(value), write_patch(encode(value), cells, encode(base), load)
    )
    incoming, _ = read(payload, replica)
    assert incoming.value == value
    assert incoming.size_bytes == len(payload) < 600
    replica.store.commit(value)  # what is here already is not made once more
    known, is_unread = read(payload, replica)
    assert (known.value, known.absent, is_unread) == (None, value_hash(value), False)
    assert known.size_bytes == len(payload)


def test_a_patch_of_more_bytes_than_its_message_counts_as_its_hash_alone() -> None:
    base, claimed = Vector.of([1]), value_hash(OTHER)
    payload = encode_patched(base, claimed, b"\x02" * 4_096 * 300)
    assert len(payload) < 10_000
    incoming, is_unread = read(payload)
    assert (incoming.value, incoming.absent, is_unread) == (None, claimed, True)


def test_what_is_no_patch_counts_as_a_frame_that_cannot_be_read() -> None:
    base, claimed = Vector.of([1]), value_hash(OTHER)
    payload = encode_patched(base, claimed, b"\x02" * 100)
    with pytest.raises(Undecodable):  # as long as the message has room for it, it is read
        read(payload)
    node = Replicator(LatticeReplica(MemoryStore(), SetLattice()), LatticeProtocol())
    node.open("p", 0, outbound=False)
    node.receive("p", payload, 0)
    effects = node.take_effects()
    assert [note.kind for note in effects.notes] == ["malformed"]
    (refusal, _) = decode_payload(effects.sends[0][1])
    assert isinstance(refusal, Result)
    assert refusal.error is not None
    assert refusal.error.name == "FORMAT"
    assert issubclass(Undecodable, BadFormat)
