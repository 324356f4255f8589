"""Cells of a running node, fetched by hash over one connection.

A reader needs one cell after another, in depth-first order. A round trip for each would take longer
than the reading. So a request also names the cells that are likely to be needed next: the siblings
of the cell, and later the cells below them. Every received cell is compared with its hash.

Source: docs/spark.md "Where to read"; docs/node.md.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from datalattice.cells import (
    MessageCells,
    Value,
    Vector,
    branch_hashes,
    decode_trusted,
    encode,
    value_hash,
)
from datalattice.client.network import open_stream, receive_result, unreached_text
from datalattice.crypto import KeyPair
from datalattice.errors import MissingData, PeerError, PeerUnavailable
from datalattice.limits import CELL_BYTES_MAX
from datalattice.wire import (
    REQUEST_HASHES_MAX,
    FrameBuffer,
    Result,
    encode_frame,
    encode_query,
    encode_request,
)

ANSWER_TIMEOUT_S: Final = 30.0
"""Longest time without a byte from a connected node while an answer is expected."""

WHOLE_ANSWER_S: Final = 120.0
"""Longest time from a request to the last byte of its answer."""

PATIENCE_S: Final = 20.0
"""How long a reader retries an unreachable node; long enough for a restart of the node."""

FIRST_PATIENCE_S: Final = 1.5
"""The same for a planner that has never reached the node: the address may be wrong."""

FIRST_PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0

_ANSWER_BYTES_MAX: Final = (REQUEST_HASHES_MAX + 64) * (CELL_BYTES_MAX + 64)
"""Longest accepted frame: an answer with as many cells as one request may name."""

RECENT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest cache of fetched cells, in bytes of encodings and `RECENT_OVERHEAD_BYTES` for each."""

RECENT_OVERHEAD_BYTES: Final = 200
"""Memory counted for a cached cell in addition to its encoding."""

AHEAD_MIN: Final = 16
"""Most cells of a request for what may be a single look-up: the fan-out of a tree node."""

EXPECTED_HASHES_MAX: Final = 65_536
"""Most hashes that are remembered as likely to be needed; those needed last are dropped."""

_log: Final = logging.getLogger("datalattice.pipeline")


class ReadAhead:
    """Predicts the next requests of a reader that goes depth first.

    The size of a batch doubles with each right prediction, and is reset by a wrong one.
    """

    def __init__(self) -> None:
        self._stack: list[bytes] = []  # the next one last
        self._expected: set[bytes] = set()
        self._size = AHEAD_MIN

    def batch(self, hash: bytes) -> list[bytes]:
        """Return the hashes to request together with `hash`, itself first."""
        if hash not in self._expected:
            # The hash was not predicted, so this is a look-up: what it needs next is unknown.
            self._size = AHEAD_MIN
            return [hash]
        while self._pop() != hash:
            pass  # the reader has skipped it
        batch = [hash]
        while self._stack and len(batch) < self._size:
            batch.append(self._pop())
        # After a right prediction a scan is likely, so the next request names more cells.
        self._size = min(2 * self._size, REQUEST_HASHES_MAX)
        return batch

    def _pop(self) -> bytes:
        hash = self._stack.pop()
        self._expected.discard(hash)
        return hash

    def came(self, encodings: Sequence[bytes]) -> None:
        """Record received cells: the reader will need the cells below them next."""
        # Pushed in reverse, so that the first child is requested first.
        for encoding in reversed(encodings):
            for hash in reversed(branch_hashes(encoding)):
                if hash not in self._expected:
                    self._expected.add(hash)
                    self._stack.append(hash)
        # A depth-first reader needs the bottom of the stack last.
        excess = len(self._stack) - EXPECTED_HASHES_MAX
        if excess > 0:
            self._expected.difference_update(self._stack[:excess])
            del self._stack[:excess]


def connection_problem(host: str, port: int, seconds: float) -> OSError | None:
    """Return the error of a connection to an address, or None if it succeeds."""
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError as error:
        return error
    return None


class RemoteCells:
    """The cells of the node at an address. Blocking; connects at the first request.

    Over TLS it authenticates with `key_pair`, by default a temporary one. Do not give the key pair
    of a running node: other nodes would take this connection for that node.
    If the node disconnects, requests are retried for `patience_s`, so the node may be restarted.
    """

    def __init__(
        self,
        address: str,
        key_pair: KeyPair | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._address = address
        self._key_pair = key_pair
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._lock = threading.RLock()
        self._stream: socket.socket | None = None
        self._buffer = FrameBuffer(_ANSWER_BYTES_MAX)
        self._ids = itertools.count(1)
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._root = b"", b""
        self._was_reached = False
        self._ahead = ReadAhead()
        self.requests = 0
        """Round trips so far."""

    def root_hash(self) -> bytes | None:
        """Return the hash of the root that the node announces; None if it has none.

        Raises: PeerUnavailable: the node cannot be reached, or is not a node.
        """
        with self._lock:
            patience_s = self._patience_s
            # "A planner that has never reached the node gives up after 1.5 seconds"
            # (docs/spark.md).
            if not self._was_reached:
                patience_s = min(FIRST_PATIENCE_S, patience_s)
            answer, _ = self._ask(lambda id: encode_query(id, (), 0), patience_s)
            # A node must serve the root that it announces.
            if answer.absent is not None:
                raise PeerUnavailable(f"node {self._address} names a root and does not send it")
            if answer.value is None:
                return None
            encoding = encode(answer.value)
            hash = value_hash(answer.value)
            # Not kept in the cache, which might drop it: every plan needs the root again.
            self._root = hash, encoding
            self._ahead.came([encoding])
            return hash

    def reach(self) -> None:
        """Send a request, unless the node has answered before. Raises: as `root_hash`."""
        if not self._was_reached:
            self.root_hash()

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell; None if the node does not have it.

        verify: as for a store; a node may send anything, so its cells are always verified.
        Raises: PeerUnavailable: the node cannot be reached, or its answer is malformed.
        """
        with self._lock:
            found = self._find(hash)
            if found is not None:
                return found
            # A cell may be referenced several times, so some of the batch may be in the cache.
            batch = [one for one in self._ahead.batch(hash) if one not in self._recent]
            return self._fetch(batch).get(hash)

    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        """Return the encodings of cells in the order of `hashes`, None for absent ones.

        Cells that are likely to be needed next are fetched along, as in `get_encoding`.
        Raises: PeerUnavailable: the node cannot be reached, or its answer is malformed.
        """
        wanted = list(hashes)
        with self._lock:
            found = {hash: self._find(hash) for hash in wanted}
            lacking = [hash for hash, encoding in found.items() if encoding is None]
            for first in range(0, len(lacking), REQUEST_HASHES_MAX):
                batch = lacking[first : first + REQUEST_HASHES_MAX]
                likely = [one for one in self._ahead.batch(batch[0]) if one not in self._recent]
                together = dict.fromkeys([*batch, *likely])
                found |= self._fetch(list(together)[:REQUEST_HASHES_MAX])
            return [found[hash] for hash in wanted]

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash; the cells below it are fetched on access.

        Raises: MissingData: the node does not have it. PeerUnavailable.
        """
        encoding = self.get_encoding(hash)
        if encoding is None:
            raise MissingData([hash])
        return decode_trusted(encoding, hash, self)

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        with self._lock:
            self._hang_up()
            self._recent.clear()
            self._recent_bytes = 0

    # --- the cache ---

    def _find(self, hash: bytes) -> bytes | None:
        found = self._recent.get(hash)
        if found is not None:
            self._recent.move_to_end(hash)
            return found
        return self._root[1] if hash == self._root[0] else None

    def _fetch(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return those of the cells that the node has, and cache them."""
        answer, parts = self._ask(lambda id: encode_request(id, hashes), self._patience_s)
        cells = self._checked(answer.value, parts, hashes)
        for hash, encoding in cells.items():
            if hash not in self._recent:
                self._recent[hash] = encoding
                self._recent_bytes += len(encoding) + RECENT_OVERHEAD_BYTES
        # The least recently used ones go first.
        while self._recent_bytes > RECENT_BYTES_MAX:
            _, encoding = self._recent.popitem(last=False)
            self._recent_bytes -= len(encoding) + RECENT_OVERHEAD_BYTES
        self._ahead.came(list(cells.values()))
        return cells

    def _checked(
        self, answer: Value, parts: MessageCells, hashes: Sequence[bytes]
    ) -> dict[bytes, bytes]:
        """Return the cells of an answer by hash, in the order requested."""
        if not isinstance(answer, Vector) or len(answer) != len(hashes):
            raise PeerUnavailable(
                f"node {self._address} was asked for {len(hashes)} cells and answered with another "
                "number of them"
            )
        # "Every cell is compared with its hash" (docs/spark.md).
        here = parts.encodings()  # under their computed hashes
        cells: dict[bytes, bytes] = {}
        for position, hash in enumerate(hashes):
            encoding = here.get(hash)
            if encoding is None:
                encoding = _embedded(answer, position, hash)
            if encoding is not None:
                cells[hash] = encoding
        return cells

    # --- the connection ---

    def _ask(
        self, question: Callable[[int], bytes], patience_s: float
    ) -> tuple[Result, MessageCells]:
        """Return the answer to a request with its cells; retry while the node is unreachable."""
        give_up_s: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            had_stream = self._stream is not None
            try:
                return self._exchange(question)
            # Another try would get the same malformed answer. The connection is closed because the
            # start of its next frame is unknown.
            except PeerError as error:
                self._hang_up()
                raise PeerUnavailable(
                    f"node {self._address} gives no usable answer: {error}"
                ) from error
            except OSError as error:
                self._hang_up()
                # If a connection was open, it is opened again at once.
                if had_stream:
                    continue  # the node closed an idle connection, or is restarting
                now_s = time.monotonic()
                if give_up_s is None:
                    give_up_s = now_s + patience_s
                    _log.warning("%s; trying again", self._unreached(error))
                if now_s >= give_up_s:
                    raise PeerUnavailable(
                        f"{self._unreached(error)}; tried for {patience_s:g} s"
                    ) from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _exchange(self, question: Callable[[int], bytes]) -> tuple[Result, MessageCells]:
        if self._stream is None:
            self._stream = open_stream(self._address, ANSWER_TIMEOUT_S, self._key_pair)
            self._buffer = FrameBuffer(_ANSWER_BYTES_MAX)
        id = next(self._ids)
        self._stream.sendall(encode_frame(question(id)))
        self.requests += 1
        answer = receive_result(self._stream, self._buffer, id, WHOLE_ANSWER_S)
        self._was_reached = True
        return answer

    def _unreached(self, error: OSError) -> str:
        text = unreached_text(self._address, error)
        return f"node {text}" if text.startswith(self._address) else text

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _embedded(answer: Vector, position: int, hash: bytes) -> bytes | None:
    """Return a small cell embedded in the answer; None if it is absent or another one."""
    try:
        cell = answer[position]
    except MissingData:
        return None
    # None marks a cell that the node lacks.
    return None if cell is None or value_hash(cell) != hash else encode(cell)
