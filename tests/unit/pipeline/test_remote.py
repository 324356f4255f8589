"""Remote: cells of a running node, few round trips, and nothing believed that does not fit."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from datalattice.cells import (
    Blob,
    CellRange,
    Keyword,
    Map,
    Value,
    Vector,
    element_runs,
    encode,
    make_blob,
    none_missing,
    same,
    value_hash,
    whole_cells,
)
from datalattice.crypto import KeyPair, sha3_256
from datalattice.errors import MissingData, PeerUnavailable
from datalattice.lattice import get_in
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.pipeline import remote
from datalattice.pipeline.read_targets import ReadTarget, open_target
from datalattice.pipeline.remote import (
    AHEAD_MIN,
    EXPECTED_HASHES_MAX,
    RECENT_BYTES_MAX,
    ReadAhead,
    RemoteCells,
)
from datalattice.testing.background import BackgroundNode
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.ports import held_port
from datalattice.wire import (
    REQUEST_HASHES_MAX,
    DataRequest,
    FrameBuffer,
    Query,
    Result,
    decode_payload,
    encode_frame,
    encode_result,
    encode_supply,
)

KEYS = KeyPair(bytes([7]) * 32)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BackgroundNode]:
    with BackgroundNode(tmp_path / "store", KEYS) as running:
        yield running


def put(node: BackgroundNode, value: Value) -> bytes:
    """Let a node have a value, in a place that it announces; return its hash."""
    node.edit(lambda cursor: cursor.assoc_in(value, "data", value_hash(value)))
    return value_hash(value)


def get(cells: RemoteCells, hash: bytes) -> Value:
    """Return a value that was put, found from the root on."""
    root = cells.root_hash()
    assert root is not None
    return get_in(cells.load(root), [Keyword("data"), hash])


@pytest.fixture
def cells(node: BackgroundNode) -> Iterator[RemoteCells]:
    found = RemoteCells(node.address, patience_s=0.2)
    yield found
    found.close()


def test_a_value_is_read_with_all_below_it(node: BackgroundNode, cells: RemoteCells) -> None:
    value = Vector.of(range(5_000))
    found = get(cells, put(node, value))
    assert same(found, value)
    assert list(found) == list(range(5_000))  # type: ignore[call-overload]


def test_reading_in_order_takes_few_round_trips(node: BackgroundNode, cells: RemoteCells) -> None:
    count = 40_000
    found = get(cells, put(node, Vector.of(range(count))))
    assert isinstance(found, Vector)
    assert sum(found) == count * (count - 1) // 2  # type: ignore[arg-type]
    # 2,667 cells; the batches begin small, so it is somewhat more than 11 requests.
    assert cells.requests <= 40
    assert cells.requests * AHEAD_MIN < count / 16


def test_leaves_that_are_fetched_together_take_few_round_trips(
    node: BackgroundNode, cells: RemoteCells
) -> None:
    count = 40_000
    hash = put(node, Vector.of(range(count)))

    def fetch(hash: bytes) -> bytes:
        encoding = cells.get_encoding(hash)
        assert encoding is not None
        return encoding

    def many(hashes: list[bytes], _below: int) -> list[CellRange]:
        return none_missing(hashes, whole_cells(cells.get_encodings(hashes)))

    get(cells, hash)
    found = element_runs(fetch(hash), 0, count, fetch, many)
    assert sum(run.count for run in found) == count
    assert cells.requests <= 40


def test_a_large_blob_comes_in_few_round_trips(node: BackgroundNode, cells: RemoteCells) -> None:
    data = bytes(range(256)) * 8_192
    found = get(cells, put(node, make_blob(data)))
    assert isinstance(found, Blob)
    assert bytes(found) == data
    assert cells.requests <= 30


def test_what_stands_in_many_places_comes_once(
    node: BackgroundNode, cells: RemoteCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    fetch = cells._fetch

    def noted(hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        asked.extend(hashes)
        return fetch(hashes)

    monkeypatch.setattr(cells, "_fetch", noted)
    texts = ["a" * 500, "b" * 500, "c" * 500]
    found = get(cells, put(node, Vector.of(text for _ in range(2_000) for text in texts)))
    assert isinstance(found, Vector)
    assert list(found) == 2_000 * texts
    assert len(asked) == len(set(asked))


def test_a_look_up_does_not_fetch_all(node: BackgroundNode, cells: RemoteCells) -> None:
    found = get(cells, put(node, Map.of((i, i) for i in range(20_000))))
    assert isinstance(found, Map)
    assert found.get(12_345) == 12_345
    assert cells.requests <= 6


def test_the_root_is_the_announced_one(node: BackgroundNode, cells: RemoteCells) -> None:
    assert cells.root_hash() == node.node.root_hash
    put(node, "new")
    root = cells.root_hash()
    assert root == node.node.root_hash
    assert root is not None
    assert same(cells.load(root), node.node.root)


def test_cells_that_a_node_lacks_are_reported(node: BackgroundNode, cells: RemoteCells) -> None:
    there = put(node, "x" * 1_000)
    lost = bytes(32)
    assert cells.get_encoding(lost) is None
    assert cells.get_encodings([lost, there]) == [None, encode("x" * 1_000)]
    with pytest.raises(MissingData, match="00000000"):
        cells.load(lost)


def test_many_cells_come_in_batches(node: BackgroundNode, cells: RemoteCells) -> None:
    texts = [f"{i:04d}" * 100 for i in range(REQUEST_HASHES_MAX + 1)]
    put(node, Vector.of(texts))
    before = cells.requests
    found = cells.get_encodings(value_hash(text) for text in texts)
    assert found == [encode(text) for text in texts]
    assert cells.requests == before + 2
    assert cells.get_encodings(value_hash(text) for text in texts) == found
    assert cells.requests == before + 2  # remembered


def test_a_short_cell_stands_in_the_answer(node: BackgroundNode, cells: RemoteCells) -> None:
    put(node, 5)
    root = node.node.root
    assert len(encode(root)) <= EMBEDDED_BYTES_MAX
    assert cells.get_encoding(node.node.root_hash) == encode(root)


def test_memory_is_bounded(node: BackgroundNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RECENT_BYTES_MAX", 100_000)
    cells = RemoteCells(node.address)
    data = bytes(2_000_000)
    blob = get(cells, put(node, make_blob(data + bytes(range(256)) * 4_000)))
    assert isinstance(blob, Blob)
    assert len(bytes(blob)) == len(data) + 1_024_000
    assert cells._recent_bytes <= 100_000 < RECENT_BYTES_MAX
    cells.close()


def test_a_node_that_is_started_anew_is_found_again(
    node: BackgroundNode, cells: RemoteCells
) -> None:
    texts = ["a" * 500, "b" * 500, "c" * 500]
    put(node, Vector.of(texts))
    assert cells.get_encoding(value_hash(texts[0])) is not None
    node.stop()
    with pytest.raises(PeerUnavailable, match=rf"{node.address} cannot be reached.*tried for"):
        cells.get_encoding(value_hash(texts[1]))
    patient = RemoteCells(node.address)
    again = threading.Timer(0.3, node.start)
    again.start()
    assert patient.get_encoding(value_hash(texts[1])) is not None
    again.join()
    patient.close()
    assert cells.get_encoding(value_hash(texts[2])) is not None


def test_nobody_there_is_a_clear_error() -> None:
    with held_port() as port:
        cells = RemoteCells(f"tcp://127.0.0.1:{port}", patience_s=0.1)
        text = rf"node tcp://127\.0\.0\.1:{port} cannot be reached.*; tried for 0\.1 s"
        with pytest.raises(PeerUnavailable, match=text):
            cells.root_hash()


def test_a_planner_that_has_never_reached_the_node_does_not_wait_long(
    node: BackgroundNode, cells: RemoteCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FIRST_PATIENCE_S", 0.1)
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        never = RemoteCells(address)
        target = open_target(ReadTarget(node=address, as_of="0x" + "00" * 32))
        for ask in (never.root_hash, never.reach, target.root_hash):
            with pytest.raises(PeerUnavailable, match=r"tried for 0\.1 s"):
                ask()
    cells.reach()
    requests = cells.requests
    cells.reach()
    assert cells.requests == requests
    node.stop()
    with pytest.raises(PeerUnavailable, match=r"tried for 0\.2 s"):
        cells.root_hash()


def test_a_process_that_ends_closes_what_it_reads_from(node: BackgroundNode) -> None:
    program = (
        "import sys\n"
        "from datalattice.pipeline.read_targets import ReadTarget, open_target\n"
        "open_target(ReadTarget(node=sys.argv[1])).root_hash()\n"
    )
    command = [sys.executable, "-X", "dev", "-c", program, node.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert "unclosed" not in done.stderr


_ENDLESS = {"others": encode_frame(encode_result(Result(1_000_000, None))), "drops": b"\x00"}


class Liar:
    """A peer that answers as `reply` says."""

    def __init__(self, reply: str) -> None:
        self._reply = reply
        self._ended = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._server.accept()
            except OSError:
                return
            with stream:
                buffer = FrameBuffer()
                while data := stream.recv(65_536):
                    if self._reply in _ENDLESS:
                        self._go_on(stream)
                        break
                    buffer.feed(data)
                    while (payload := buffer.next_payload()) is not None:
                        stream.sendall(self._answer(payload))

    def _go_on(self, stream: socket.socket) -> None:
        """Send again and again, until nobody takes it."""
        with suppress(OSError):
            if self._reply == "drops":
                stream.sendall(b"\xff\x7f")  # a long frame begins
            while not self._ended.wait(0.001):
                stream.sendall(_ENDLESS[self._reply])

    def _answer(self, payload: bytes) -> bytes:
        message, _ = decode_payload(payload)
        assert isinstance(message, (DataRequest, Query))
        wrong = encode("w" * 500)
        if self._reply == "junk":
            return encode_frame(b"\xff\xff\xff")
        if self._reply == "long":
            return b"\xff\xff\xff\x7f"
        if self._reply == "other" and isinstance(message, DataRequest):
            pairs = [(sha3_256(wrong), wrong) for _ in message.hashes]
            return encode_frame(encode_supply(message.id, pairs))
        if self._reply == "fewer" and isinstance(message, DataRequest):
            return encode_frame(encode_supply(message.id, []))
        return encode_frame(encode_result(Result(message.id, None)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(LIMIT_S)


@pytest.mark.parametrize("reply", ["junk", "long", "fewer", "nil"])
def test_what_is_not_an_answer_is_refused(reply: str) -> None:
    with Liar(reply) as liar:
        cells = RemoteCells(liar.address, patience_s=0.1)
        with pytest.raises(PeerUnavailable, match=liar.address):
            cells.get_encoding(bytes([1]) * 32)
        cells.close()


@pytest.mark.parametrize("reply", ["others", "drops"])
def test_who_sends_without_end_is_given_up(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WHOLE_ANSWER_S", 0.3)
    with Liar(reply) as liar:
        cells = RemoteCells(liar.address, patience_s=0.1)
        with pytest.raises(PeerUnavailable, match=r"no whole answer within 0\.3 s"):
            cells.root_hash()
        cells.close()


def test_another_cell_than_the_wanted_is_not_taken() -> None:
    with Liar("other") as liar:
        cells = RemoteCells(liar.address, patience_s=0.1)
        assert cells.get_encoding(bytes([1]) * 32) is None
        assert cells.root_hash() is None  # a node without a root says nil
        cells.close()


# --- what is read ahead -------------------------------------------------------------------------


def hashes(name: str, count: int) -> list[bytes]:
    return [sha3_256(f"{name}{i}".encode()) for i in range(count)]


def above(below: list[bytes]) -> bytes:
    """Return the encoding of a cell that refers to these."""
    return b"\x80" + bytes([len(below)]) + b"".join(b"\x20" + hash for hash in below)


def test_the_first_batch_is_one_node_and_later_ones_grow() -> None:
    ahead = ReadAhead()
    top = hashes("top", 16)
    assert ahead.batch(sha3_256(b"root")) == [sha3_256(b"root")]
    ahead.came([above(top)])
    assert ahead.batch(top[0]) == top
    inner = [hashes(f"in{i}-", 16) for i in range(16)]
    ahead.came([above(one) for one in inner])
    flat = [hash for one in inner for hash in one]
    assert ahead.batch(flat[0]) == flat[:32]  # in the order of reading, across their parents
    assert ahead.batch(flat[32]) == flat[32:96]


def test_what_is_passed_over_is_forgotten() -> None:
    ahead = ReadAhead()
    top = hashes("top", 16)
    ahead.came([above(top)])
    assert ahead.batch(top[5]) == top[5:]
    assert ahead.batch(top[2]) == [top[2]]  # behind the reader: a look-up


def test_batches_are_bounded() -> None:
    ahead = ReadAhead()
    found = [hashes(f"n{i}-", 16) for i in range(EXPECTED_HASHES_MAX // 16 + 10)]
    ahead.came([above(one) for one in found])
    flat = [hash for one in found for hash in one]
    at, sizes = 0, []
    for _ in range(8):
        batch = ahead.batch(flat[at])
        assert batch == flat[at : at + len(batch)]
        at += len(batch)
        sizes.append(len(batch))
    assert sizes == [16, 32, 64, 128, *[REQUEST_HASHES_MAX] * 4]
    assert ahead.batch(flat[-1]) == [flat[-1]]  # too far ahead to be remembered
