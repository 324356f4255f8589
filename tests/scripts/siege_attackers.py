"""Attackers of a siege, all in one process, a thread each: strangers with free keys.

siege_attackers.py SEED KINDS HTTP,HTTP,... ADDRESS [ADDRESS ...]

KINDS are names with commas, or `all`. Each attacks until standard input ends. Lines of JSON on
standard output give the key of each attacker, and once a second how much each has sent. An attacker
that is cut comes back with another key.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics, make_entry
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    decode_parts,
    encode,
    is_embedded,
    join_cells,
    novelty,
    references,
    value_hash,
)
from datalattice.client.network import open_stream
from datalattice.crypto import KeyPair, sha3_256
from datalattice.cursors import RootLattice
from datalattice.errors import BadFormat, DataLatticeError
from datalattice.lattice import MergeContext, get_in, root_lattice
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.wire import (
    FrameBuffer,
    Result,
    decode_payload,
    encode_announcement,
    encode_frame,
    encode_length,
    encode_query,
)

DATA, QUEUE, KV, FS, VALUE = (Keyword(name) for name in ("data", "queue", "kv", "fs", "value"))
IDLE_COUNT: Final = 1_000
SLOW_MONITORS: Final = 32
TIMEOUT_S: Final = 5.0
_VECTOR: Final = b"\x80"
_REF: Final = b"\x20"

Kind = Callable[["Attacker"], Iterator[tuple[int, bytes]]]
"""An attack: yields (number of the victim, payload), and sleeps in between as it likes."""

ended = threading.Event()
_lock = threading.Lock()
sent_bytes: Counter[str] = Counter()
sent_frames: Counter[str] = Counter()
cuts: Counter[str] = Counter()


def tell(line: dict[str, object]) -> None:
    """Write one line to whoever runs the siege."""
    with _lock:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


# --- messages -------------------------------------------------------------------------------------


def said(path: list[Value], value: Value) -> bytes:
    """Return the announcement of a value with all its cells."""
    cells = [encoding for _, encoding, _ in novelty(value)]
    return encode_announcement(path, value, cells)


def honest_slot(keys: KeyPair, dice: random.Random, size: int) -> Signed:
    """Return a signed database of `size` keys."""
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    entries: dict[str, object] = {f"k{dice.getrandbits(64):x}": "v" * 60 for _ in range(size)}
    Database.at(root, keys.public_key, "d").update(entries)
    slot = root.get(KV, keys.public_key)
    assert isinstance(slot, Signed)
    return slot


def malformed(keys: KeyPair, dice: random.Random) -> bytes:
    """Return the announcement of a correctly signed database with one malformed cell.

    A child is replaced, two children change places, or a count is changed; the cells above are
    hashed again, so every hash is right and every cell decodes.
    """
    while True:
        value = honest_slot(keys, dice, 60).value
        cells = {hash: encoding for hash, encoding, _ in novelty(value)}
        cells[value_hash(value)] = encode(value)
        inner = [hash for hash, encoding in cells.items() if len(references(encoding)) > 1]
        victim = dice.choice(inner)
        made: dict[bytes, bytes] = {}
        top = _rebuilt(value_hash(value), cells, victim, dice, made)
        branches = [
            encoding
            for hash, encoding in made.items()
            if hash != top and len(encoding) > EMBEDDED_BYTES_MAX
        ]
        try:
            loaded, _ = decode_parts(join_cells(made[top], branches))
        except BadFormat:
            continue
        slot = Signed.sign(keys, loaded)
        branches = [encoding for encoding in made.values() if len(encoding) > EMBEDDED_BYTES_MAX]
        if not is_embedded(slot):
            branches.append(encode(slot))
        return encode_announcement([KV], Map.of([(keys.public_key, slot)]), branches)


def _rebuilt(
    name: bytes,
    cells: dict[bytes, bytes],
    victim: bytes,
    dice: random.Random,
    made: dict[bytes, bytes],
) -> bytes:
    """Rebuild a cell and those below it, with a fault in one of them; return its hash."""
    encoding = cells[name]
    for ref in references(encoding):
        encoding = encoding.replace(ref, _rebuilt(ref, cells, victim, dice, made))
    if name == victim:
        encoding = _spoilt(encoding, dice, made)
    made[sha3_256(encoding)] = encoding
    return sha3_256(encoding)


def _spoilt(encoding: bytes, dice: random.Random, made: dict[bytes, bytes]) -> bytes:
    refs = references(encoding)
    kind = dice.randrange(3)
    if kind == 0:
        stray = b"\x31\x81\x40" + dice.randbytes(192)
        made[sha3_256(stray)] = stray
        return encoding.replace(dice.choice(refs), sha3_256(stray), 1)
    if kind == 1:
        a, b = refs[0], refs[-1]
        return encoding.replace(a, bytes(32)).replace(b, a).replace(bytes(32), b)
    return encoding[:1] + bytes([encoding[1] ^ 1]) + encoding[2:]


def queue_bomb(keys: KeyPair, dice: random.Random, partitions: int = 8) -> Iterator[bytes]:
    """Yield two states of topics whose logs of a few cells stand for 65,536 records each."""
    leaf_record = make_entry(None, dice.getrandbits(60), 1)
    encoding, count = _VECTOR + b"\x10" + encode(leaf_record) * 16, 16
    cells: dict[bytes, bytes] = {}
    for _ in range(3):
        name = sha3_256(encoding)
        cells[name] = encoding
        count *= 16
        encoding = _VECTOR + encode_length(count) + (_REF + name) * 16
    log, _ = decode_parts(join_cells(encoding, cells.values()))
    assert isinstance(log, Vector)
    for start in (0, 1 + dice.randrange(15)):
        state = Vector.of((log, Map.of([]), 5 + start, start))
        held = Map.of([(number, state) for number in range(partitions)])
        topics = Map.of([("t", Index.of([(Keyword("partitions"), held)]))])
        yield said([QUEUE], Map.of([(keys.public_key, Signed.sign(keys, topics))]))


def drive_bomb(keys: KeyPair, dice: random.Random) -> Iterator[bytes]:
    """Yield two drives of a few hundred directories each, with 4 ** 24 paths."""
    for version in range(2):
        layer: list[Vector] = [
            Vector.of((None, dice.randbytes(8), None, 10 + version + i)) for i in range(6)
        ]
        for level in range(24):
            layer = [
                Vector.of(
                    (
                        Index.of([(f"n{j}", layer[(i * 3 + j) % 6]) for j in range(4)]),
                        None,
                        None,
                        level + version,
                    )
                )
                for i in range(6)
            ]
        slot = Signed.sign(keys, Map.of([("drive", layer[0])]))
        yield said([FS], Map.of([(keys.public_key, slot)]))


def log_of(keys: KeyPair, records: list[object]) -> Signed:
    """Return signed topics with one log."""
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    Topics.at(root, keys.public_key).partition("t", 0).offer_many(records)
    slot = root.get(QUEUE, keys.public_key)
    assert isinstance(slot, Signed)
    return slot


# --- attackers ------------------------------------------------------------------------------------


class Attacker:
    """A stranger with connections to every victim."""

    def __init__(self, kind: str, attack: Kind, victims: list[str], seed: str) -> None:
        self.kind = kind
        self.attack = attack
        self.victims = victims
        self.dice = random.Random(f"{seed} {kind}")
        self.links: dict[int, socket.socket] = {}
        self.renew()

    def renew(self) -> None:
        """Take another key."""
        self.keys = KeyPair(self.dice.randbytes(32))
        tell({"key": self.keys.public_key.hex(), "kind": self.kind})

    def pause(self, seconds: float) -> None:
        """Wait, unless the siege ends."""
        ended.wait(seconds)

    def run(self) -> None:
        """Attack until the siege ends."""
        while not ended.is_set():
            try:
                for victim, payload in self.attack(self):
                    if ended.is_set():
                        return
                    self.send(victim, payload)
            except (OSError, DataLatticeError):
                cuts[self.kind] += 1
                for link in self.links.values():
                    link.close()
                self.links.clear()
                self.pause(1.0)
                self.renew()

    def link(self, victim: int) -> socket.socket:
        """Return the connection with a victim."""
        if victim not in self.links:
            self.links[victim] = open_stream(self.victims[victim], TIMEOUT_S, self.keys)
        return self.links[victim]

    def send(self, victim: int, payload: bytes, *, framed: bool = True) -> None:
        """Send a frame, and drop the answers that have come."""
        link = self.link(victim)
        data = encode_frame(payload) if framed else payload
        link.settimeout(TIMEOUT_S)
        link.sendall(data)
        sent_bytes[self.kind] += len(data)
        sent_frames[self.kind] += 1
        link.settimeout(0.001)
        with suppress(TimeoutError):
            if not link.recv(1 << 20):
                raise ConnectionError("cut")

    def query(self, victim: int, path: list[Value]) -> Value:
        """Return a victim's value at a path."""
        link = self.link(victim)
        link.settimeout(TIMEOUT_S)
        link.sendall(encode_frame(encode_query(1, path)))
        buffer = FrameBuffer(50_000_000)
        while True:
            while (payload := buffer.next_payload()) is not None:
                message, _ = decode_payload(payload)
                if isinstance(message, Result):
                    return message.value
            data = link.recv(1 << 20)
            if not data:
                raise ConnectionError("cut")
            buffer.feed(data)


def sign_malformed(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Sign trees whose cells do not fit together."""
    while True:
        payload = malformed(one.keys, one.dice)
        for victim in range(len(one.victims)):
            yield victim, payload
        one.pause(0.3)


def bomb_queues(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Sign small logs that stand for many records."""
    while True:
        for payload in queue_bomb(one.keys, one.dice):
            for victim in range(len(one.victims)):
                yield victim, payload
        one.pause(0.5)


def bomb_drives(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Sign small drives with many paths."""
    while True:
        for payload in drive_bomb(one.keys, one.dice):
            for victim in range(len(one.victims)):
                yield victim, payload
        one.pause(0.5)


def flood_slots(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Sign large values, a new one each time."""
    while True:
        slot = log_of(one.keys, [one.dice.randbytes(300_000)])
        for victim in range(len(one.victims)):
            yield victim, said([QUEUE], Map.of([(one.keys.public_key, slot)]))
        one.pause(0.5)


def flood_contents(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Put large contents into the section without owners."""
    while True:
        blob = one.dice.randbytes(300_000)
        yield (
            one.dice.randrange(len(one.victims)),
            said([DATA], Index.of([(value_hash(blob), blob)])),
        )
        one.pause(0.3)


def equivocate(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Send each node another history of one log."""
    length = 0
    while True:
        length += 1
        for victim in range(len(one.victims)):
            records: list[object] = [f"{victim} {n}" for n in range(length % 50 + victim)]
            slot = log_of(one.keys, [*records, one.dice.getrandbits(60)])
            yield victim, said([QUEUE], Map.of([(one.keys.public_key, slot)]))
        one.pause(0.5)


def replay(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Send again what honest nodes signed before."""
    captured: list[bytes] = []
    while True:
        victim = one.dice.randrange(len(one.victims))
        slots = one.query(victim, [QUEUE])
        if isinstance(slots, Map):
            captured.append(said([QUEUE], slots))
        del captured[1:-20]
        for said_before in one.dice.choices(captured, k=3) if captured else ():
            yield one.dice.randrange(len(one.victims)), said_before
        one.pause(0.7)


def babble(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Send random bytes."""
    while True:
        yield one.dice.randrange(len(one.victims)), one.dice.randbytes(40)
        one.pause(0.2)


def forge(one: Attacker) -> Iterator[tuple[int, bytes]]:
    """Send values of other owners that they did not sign."""
    while True:
        victim = one.dice.randrange(len(one.victims))
        slots = one.query(victim, [QUEUE])
        if isinstance(slots, Map) and len(slots):
            owner = one.dice.choice([key for key, _ in slots.entries()])
            slot = log_of(one.keys, ["forged"])
            yield victim, said([QUEUE], Map.of([(owner, slot)]))
            stolen = (
                Signed(owner, bytes(64), get_in(slot, [])) if isinstance(owner, bytes) else slot
            )
            yield victim, said([QUEUE], Map.of([(owner, stolen)]))
        one.pause(0.5)


ATTACKS: Final[tuple[Kind, ...]] = (
    sign_malformed,
    bomb_queues,
    bomb_drives,
    flood_slots,
    flood_contents,
    equivocate,
    replay,
    babble,
    forge,
)


def idle(victims: list[str], seed: str) -> None:
    """Hold as many idle connections as nodes accept, up to a thousand."""
    dice = random.Random(f"{seed} idle")
    held: list[socket.socket] = []
    number = 0
    while not ended.is_set():
        if len(held) < IDLE_COUNT:
            number += 1
            try:
                keys = KeyPair(dice.randbytes(32))
                held.append(open_stream(victims[number % len(victims)], TIMEOUT_S, keys))
                sent_frames["idle"] += 1
            except (OSError, DataLatticeError):
                cuts["idle"] += 1
                ended.wait(0.05)
        else:
            ended.wait(0.5)
        if number % 50 == 0:
            held = [one for one in held if _is_open(one)]


def _is_open(stream: socket.socket) -> bool:
    try:
        stream.settimeout(0.0005)
        return bool(stream.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


def watch_slowly(monitors: list[str]) -> None:
    """Ask for health a byte at a time, from many connections, and read no answer."""
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    open_ones: list[tuple[socket.socket, int]] = []
    while not ended.is_set():
        while len(open_ones) < SLOW_MONITORS * len(monitors):
            host, _, port = monitors[len(open_ones) % len(monitors)].rpartition(":")
            try:
                open_ones.append((socket.create_connection((host, int(port)), TIMEOUT_S), 0))
            except OSError:
                cuts["slow_monitors"] += 1
                break
        left: list[tuple[socket.socket, int]] = []
        for stream, position in open_ones:
            try:
                stream.sendall(request[position % len(request) :][:1])
                sent_frames["slow_monitors"] += 1
                left.append((stream, position + 1))
            except OSError:
                cuts["slow_monitors"] += 1
                stream.close()
        open_ones = left
        ended.wait(0.5)


def _await_end() -> None:
    sys.stdin.read()
    ended.set()


def main(seed: str, kinds: str, monitors: str, *victims: str) -> None:
    """Attack until standard input ends."""
    works: dict[str, Callable[[], None]] = {
        "idle": lambda: idle(list(victims), seed),
        "slow_monitors": lambda: watch_slowly(monitors.split(",")),
    }
    chosen = [*(attack.__name__ for attack in ATTACKS), *works]
    if kinds != "all":
        chosen = [kind for kind in kinds.split(",") if kind]
    for attack in ATTACKS:
        if attack.__name__ in chosen:
            works[attack.__name__] = Attacker(attack.__name__, attack, list(victims), seed).run
    for kind in chosen:
        threading.Thread(target=works[kind], daemon=True).start()
    threading.Thread(target=_await_end, daemon=True).start()
    while not ended.wait(1.0):
        tell(
            {
                "time": time.time(),
                "bytes": dict(sent_bytes),
                "frames": dict(sent_frames),
                "cuts": dict(cuts),
            }
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
