"""Fetching: requests cells by hash from nodes to heal a store, and reports healings and checks."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self

from datalattice.actions import AbsentCell, DamageInfo, HealedStore, StoreCheck, UnsoundCell
from datalattice.cells import MessageCells, Vector, encode, to_cell
from datalattice.client.addresses import parse_address, system_reason
from datalattice.client.network.probing import receive_result
from datalattice.client.network.tls import open_stream
from datalattice.crypto import KeyPair
from datalattice.errors import Corruption, MissingData, PeerError
from datalattice.store import CellStore, CheckReport, Damage, Healing
from datalattice.wire import (
    REQUEST_HASHES_MAX,
    FrameBuffer,
    Result,
    encode_frame,
    encode_request,
)

FETCH_TIMEOUT_S: Final = 10.0


class PeerCells:
    """A blocking source of cells, from the nodes at some addresses; for one thread.

    A call with hashes yields (hash, encoding) pairs. The caller checks each encoding by its hash.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        timeout_s: float = FETCH_TIMEOUT_S,
        key_pair: KeyPair | None = None,
    ) -> None:
        self._waiting = list(addresses)  # not dialled yet
        for address in self._waiting:
            # All addresses are checked before any is dialled.
            parse_address(address)
        self._timeout_s = timeout_s
        self._key_pair = key_pair
        self._streams: dict[str, tuple[socket.socket, FrameBuffer]] = {}
        self._ids = itertools.count(1)
        self.failures: dict[str, str] = {}
        """The reason why a node is not asked any more, by its address."""

    def __call__(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the cells that the nodes have; each node is asked for what earlier ones lack."""
        wanted = dict.fromkeys(hashes)  # each hash once, in order
        self._dial()
        for address in list(self._streams):
            for batch in _batches(list(wanted), REQUEST_HASHES_MAX):
                for hash, encoding in self._ask(address, batch):
                    wanted.pop(hash, None)
                    yield hash, encoding
                if address in self.failures:  # its connection is closed
                    break

    def _dial(self) -> None:
        for address in self._waiting:
            try:
                stream = open_stream(address, self._timeout_s, self._key_pair)
            except (OSError, PeerError) as error:
                self._fail(address, error)
            else:
                self._streams[address] = stream, FrameBuffer()
        self._waiting.clear()  # each address is dialled once; failures are reported

    def _fail(self, address: str, error: Exception) -> None:
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        self.failures[address] = reason
        stream = self._streams.pop(address, None)
        if stream is not None:
            stream[0].close()

    def _ask(self, address: str, batch: list[bytes]) -> list[tuple[bytes, bytes]]:
        stream, buffer = self._streams[address]
        id = next(self._ids)
        try:
            stream.sendall(encode_frame(encode_request(id, batch)))
            return _cells(*receive_result(stream, buffer, id), batch)
        except (OSError, PeerError) as error:
            self._fail(address, error)
            return []  # the other nodes are asked instead

    def close(self) -> None:
        """Close the connections."""
        for stream, _ in self._streams.values():
            stream.close()
        self._streams.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _batches(hashes: list[bytes], size: int) -> Iterator[list[bytes]]:
    for first in range(0, len(hashes), size):
        yield hashes[first : first + size]


def _cells(answer: Result, parts: MessageCells, hashes: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the cells in an answer with the hashes that were requested."""
    value = answer.value
    here = parts.encodings()
    # An answer may contain a requested cell anywhere, also as a part of another one.
    found = [(hash, here[hash]) for hash in hashes if hash in here]
    if isinstance(value, Vector) and len(value) == len(hashes):
        for position, hash in enumerate(hashes):
            if hash not in here:  # embedded in the answer, or nil: the node lacks it
                try:
                    cell = value[position]
                except MissingData:
                    continue
                if cell is not None:
                    found.append((hash, encode(cell)))
    return found


class HealingSources:
    """Sources of cells for a healing: another store on this machine, then nodes.

    key_pair: the key proved to the nodes; default: a new one. It must not be the key of a running
              node, whose peers would take this connection for that node.
    """

    def __init__(
        self, addresses: Iterable[str], folder: str | None, key_pair: KeyPair | None = None
    ) -> None:
        self._store = None if folder is None else CellStore.open(folder, read_only=True)
        self._nodes = PeerCells(addresses, key_pair=key_pair)

    @property
    def failures(self) -> dict[str, str]:
        """The reason why a node could not answer everything, by its address."""
        return self._nodes.failures

    def __call__(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the cells found, as (hash, encoding)."""
        left = list(hashes)
        # The store on this machine first: it costs no network.
        if self._store is not None:
            left = []
            for hash in hashes:
                encoding = self._read(self._store, hash)
                if encoding is None:
                    left.append(hash)
                else:
                    yield hash, encoding
        if left:
            yield from self._nodes(left)

    def _read(self, store: CellStore, hash: bytes) -> bytes | None:
        try:
            return store.get_encoding(hash)
        except Corruption:
            return None  # damaged there too: the nodes are asked

    def close(self) -> None:
        """Close the connections and the store."""
        self._nodes.close()
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def healed_store(healing: Healing, sources: HealingSources) -> HealedStore:
    """Return the results of a healing as the action's answer."""
    return HealedStore(
        rescued=healing.rescued,
        fetched=healing.fetched,
        forgotten=healing.forgotten,
        unreachable=to_cell(dict(sources.failures)),
        check=store_check(healing.report),
    )


def store_check(report: CheckReport) -> StoreCheck:
    """Return the results of a check as the action's answer."""
    return StoreCheck(
        clean=report.is_clean,
        segments=report.segments,
        packs=report.packs,
        cells=report.cells,
        size_bytes=report.size_bytes,
        damaged=tuple(map(_damage_info, report.damage)),
        missing=tuple(
            AbsentCell(hash=one.hash, above=tuple(one.above), below_root=one.below_root)
            for one in report.missing
        ),
        endangered=tuple(hash for hash, _ in report.endangered),
        unserved=tuple(report.unserved),
        scars=tuple(map(_damage_info, report.scars)),
        unsound=tuple(UnsoundCell(hash=hash, reason=reason) for hash, reason in report.unsound),
    )


def _damage_info(damage: Damage) -> DamageInfo:
    return DamageInfo(
        file=damage.file, offset=damage.offset, reason=damage.reason, hash=damage.hash
    )
