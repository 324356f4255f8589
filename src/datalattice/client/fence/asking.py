"""Asking: the fence of a program that writes to a store while no node runs on it.

The peers in the folder's settings are dialled at once, each by its own thread, and asked for the
slots of the folder's owners. The answers are merged into the store on the caller's thread, which
waits no longer than a node would, and stops when every connected peer has answered or none can be
reached.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections import deque
from contextlib import closing
from typing import Final

from datalattice.client.addresses import PeerAddress, parse_ticket, system_reason
from datalattice.client.fence.rules import WITHOUT_ASKING, OwnHistory, owned_paths
from datalattice.client.folder import Folder, OwnKeys
from datalattice.client.network import open_stream, proven_key
from datalattice.client.replicas import replica_on
from datalattice.client.settings import NodeConfig, partial_paths
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, SystemEntropy
from datalattice.cursors import collector_paused
from datalattice.errors import PeerError
from datalattice.lattice import ValuePath, root_lattice
from datalattice.store import CellStore
from datalattice.sync import Effects, LatticeProtocol, LatticeReplica, NodeStart, Pull, Replicator
from datalattice.wire import FRAME_READ_BYTES, FrameBuffer, encode_frame

_DIAL_TIMEOUT_S: Final = 10.0
"""Longest time for a connection with its handshake."""

_AGAIN_S: Final = 1.0
"""Pause before a peer whose answer failed is asked again."""

_PIECE_BYTES: Final = 1 << 14
"""Most bytes given to a stream at once: after a partial send TLS wants the same bytes again."""

OWN_KEY: Final = "a node with this folder's own key answers there: it runs on a copy of the folder"


def ask_peers(
    folder: Folder,
    store: CellStore,
    keys: OwnKeys,
    config: NodeConfig,
    *,
    offline: bool = False,
) -> str | None:
    """Merge the slots of a folder's owners from its peers into its store.

    Returns: None if a peer answered, else why none did. The store records that no peer was asked,
             and its node is degraded until one has answered.
    Raises: Unfenced, DataLoss: the folder was copied, restored or moved, or has lost commits, and
            no peer answers; not with `offline`. IdentityCloned: another node runs with this
            identity.
    """
    # `--offline` asks no peer, and the next node is degraded until one has answered (docs/node.md
    # "Fence").
    if offline:
        store.place().settle(SystemClock().now_ms())
        return WITHOUT_ASKING
    paths = owned_paths(root_lattice(), keys.context(), has_venue=config.venue)
    history = OwnHistory(keys.identity, SystemClock(), SystemEntropy(), is_writer=bool(paths))
    history.look(store)
    doubt = None if config.accept_unfenced else history.doubt()
    with (
        replica_on(folder, store) as replica,
        closing(_Asker(replica, config, keys.identity, history, paths)) as asker,
    ):
        is_asked = asker.run(history.wait_s(config))
    # "Then fail with `Unfenced` until a peer has answered, or `accept_unfenced` is set"
    # (docs/node.md "Fence").
    if not is_asked and doubt is not None:
        raise doubt
    history.settle(asked=is_asked, unasked=not is_asked)
    return None if is_asked else f"{WITHOUT_ASKING} ({asker.reasons})"


class _Peer:
    """A peer of the settings, and its stream while it is connected.

    reason:     its state in words.
    unanswered: requested paths without an answer.
    """

    def __init__(self, address: PeerAddress, bytes_max: int) -> None:
        self.address = address
        self.id = str(address)
        self.reason = "not dialled yet"
        self.stream: socket.socket | None = None
        self.is_over = False  # it cannot be reached, or the connection has ended
        self.is_own = False
        self.has_answered = False  # stays True after it has closed the connection
        self.is_closing = False
        self.is_deaf = False  # sending failed; what it sent before is still read
        self.buffer = FrameBuffer(bytes_max)
        self.outbox: deque[memoryview] = deque()
        self.unanswered: set[ValuePath] = set()
        self.error: str | None = None
        self.again_s: float | None = None

    @property
    def is_connected(self) -> bool:
        return self.stream is not None and not self.is_own


class _Asker:
    """Asks peers for paths on one thread; other threads only dial."""

    def __init__(
        self,
        replica: LatticeReplica,
        config: NodeConfig,
        identity: KeyPair,
        history: OwnHistory,
        paths: list[ValuePath],
    ) -> None:
        self._replica = replica
        self._identity = identity
        self._history = history
        self._paths = paths
        self._partial = partial_paths(config, root_lattice())
        protocol = LatticeProtocol(
            SystemClock(), config.dialect, config.pace, identity, SystemEntropy(), history.start
        )
        self._replicator = Replicator(replica, protocol, config.pace)
        addresses = dict.fromkeys(one for peer in config.peers for one in parse_ticket(peer))
        self._peers = {
            str(address): _Peer(address, config.message_bytes_max) for address in addresses
        }
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._lock = threading.Lock()  # guards the next two
        self._dialled: list[tuple[_Peer, socket.socket | str]] = []
        self._is_closed = False

    @property
    def reasons(self) -> str:
        """The state of each peer, in words."""
        return "; ".join(f"{peer.id}: {peer.reason}" for peer in self._peers.values())

    def run(self, wait_s: float) -> bool:
        """Ask all peers; return whether one has answered within `wait_s`.

        Raises: IdentityCloned: a peer knows another node with the identity of this folder.
        """
        until_s = time.monotonic() + wait_s
        peers = self._peers.values()
        for peer in peers:
            threading.Thread(
                target=self._dial, args=(peer, min(wait_s, _DIAL_TIMEOUT_S)), daemon=True
            ).start()
        while True:
            is_asked = any(peer.has_answered for peer in peers)
            # "All connected wanted peers have answered": what the last of them brings counts, too.
            if is_asked and all(peer.has_answered for peer in peers if peer.is_connected):
                return True
            left_s = until_s - time.monotonic()
            # It "does not wait for a peer that refuses the connection" (docs/node.md "Fence").
            if left_s <= 0 or all(peer.is_over for peer in peers):
                return is_asked
            self._step(left_s)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed = True
            dialled, self._dialled = self._dialled, []
        streams = [peer.stream for peer in self._peers.values()]
        for stream in (*streams, *(found for _, found in dialled), self._woken, self._waker):
            if isinstance(stream, socket.socket):
                stream.close()
        self._selector.close()

    # --- dialling -----------------------------------------------------------------------------

    def _dial(self, peer: _Peer, timeout_s: float) -> None:
        """Connect to a peer, on a thread of its own."""
        found: socket.socket | str
        try:
            found = open_stream(peer.id, timeout_s, self._identity)
        except TimeoutError:
            found = f"no answer from {peer.id}"
        except OSError as error:
            found = system_reason(error)
        except UnicodeError:
            found = f"no such host: {peer.id}"
        with self._lock:
            # The asking thread handles it; the byte ends its `select`.
            if not self._is_closed:
                self._dialled.append((peer, found))
                self._waker.send(b"\0")
            elif isinstance(found, socket.socket):
                found.close()

    def _greet(self, peer: _Peer, stream: socket.socket) -> None:
        """Register a connection with the replicator, and ask the peer."""
        stream.setblocking(False)
        peer.stream, peer.reason = stream, "connected"
        self._selector.register(stream, selectors.EVENT_READ, peer)
        # A plain stream proves no key.
        key = proven_key(stream, "") if isinstance(stream, ssl.SSLSocket) else None
        # A node on a copy of this folder may lack what was written here since.
        peer.is_own = key == self._identity.public_key
        if peer.is_own:
            peer.reason = OWN_KEY
        # A peer of the settings was named, so its unsigned data is accepted: "known: own keys,
        # peers that were named, and `allow`" (docs/node.md "Hosting").
        self._replica.charges.introduce(peer.id, key or peer.id, is_wanted=True, is_known=True)
        # "The peer must have proved its key before anything else is said: by TLS, or at a pinned
        # address." (docs/node.md "Partial replication")
        paths = self._partial.get(key or peer.address.public_key or b"")
        if paths is not None:
            self._replica.views.restrict(peer.id, paths)
        pinned = peer.address.public_key
        self._replicator.open(peer.id, _now_ms(), outbound=True, public_key=key, pinned=pinned)
        if not peer.is_own:
            self._ask(peer)

    def _ask(self, peer: _Peer) -> None:
        peer.unanswered, peer.error, peer.again_s = set(self._paths), None, None
        for path in self._paths:
            self._replicator.pull(peer.id, Pull((peer.id, path), path, True), _now_ms())

    # --- the exchange -------------------------------------------------------------------------

    def _step(self, left_s: float) -> None:
        """Wait for an event of a stream, a dialler or a timer, and handle it."""
        deadline_ms = self._replicator.deadline_ms
        now_s = time.monotonic()
        again = (peer.again_s for peer in self._peers.values())
        waits_s = [left_s, *(again_s - now_s for again_s in again if again_s is not None)]
        if deadline_ms is not None:
            waits_s.append((deadline_ms - _now_ms()) / 1e3)
        for key, events in self._selector.select(max(0.0, min(waits_s))):
            if key.data is None:
                self._take_dialled()
            else:
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
                if events & selectors.EVENT_READ:
                    self._read(key.data)
        for peer in self._peers.values():
            if peer.again_s is not None and time.monotonic() >= peer.again_s:
                self._ask(peer)
        deadline_ms = self._replicator.deadline_ms
        if deadline_ms is not None and deadline_ms <= _now_ms():
            self._replicator.tick(_now_ms())
        self._carry_out()

    def _take_dialled(self) -> None:
        self._woken.recv(FRAME_READ_BYTES)
        with self._lock:
            dialled, self._dialled = self._dialled, []
        for peer, found in dialled:
            if isinstance(found, str):
                peer.reason, peer.is_over = found, True
            else:
                self._greet(peer, found)

    def _read(self, peer: _Peer) -> None:
        """Receive from a peer."""
        stream = peer.stream
        if stream is None:
            return
        try:
            data = stream.recv(FRAME_READ_BYTES)
            # `select` does not see bytes that TLS has decrypted and not given out yet.
            while isinstance(stream, ssl.SSLSocket) and stream.pending():
                data += stream.recv(FRAME_READ_BYTES)
            peer.buffer.feed(data)
            while peer.stream is not None and (payload := peer.buffer.next_payload()) is not None:
                with collector_paused:
                    self._replicator.receive(peer.id, payload, _now_ms())
                self._carry_out()
            if not data:
                self._end(peer, "closed by the peer")
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return  # an incomplete TLS record
        except OSError as error:
            self._end(peer, f"broken: {system_reason(error)}")
        except PeerError as error:
            self._end(peer, str(error))

    def _write(self, peer: _Peer) -> None:
        """Send as much as the peer's stream accepts, and wait to send the rest."""
        stream = peer.stream
        if stream is None or peer.is_deaf:
            return
        try:
            while peer.outbox:
                frame = peer.outbox[0]
                sent = stream.send(frame[:_PIECE_BYTES])
                if sent < len(frame):
                    peer.outbox[0] = frame[sent:]
                else:
                    peer.outbox.popleft()
                    self._replicator.written(peer.id, 1, _now_ms())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            peer.is_deaf = True
            peer.outbox.clear()
        if peer.outbox:
            # Only while bytes wait: a writable stream would make every `select` return at once.
            self._selector.modify(stream, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        elif peer.is_closing:
            self._end(peer, peer.reason)
        else:
            self._selector.modify(stream, selectors.EVENT_READ, peer)

    def _end(self, peer: _Peer, reason: str) -> None:
        """Close a connection, and note the peer's reason."""
        stream = peer.stream
        if stream is not None:
            self._selector.unregister(stream)
            stream.close()
            peer.stream, peer.is_over, peer.again_s = None, True, None
            peer.reason = OWN_KEY if peer.is_own else peer.error or reason
            self._replicator.closed(peer.id, _now_ms())
            self._replica.charges.leave(peer.id)

    def _carry_out(self) -> None:
        """Carry out the effects of the replicator."""
        is_more = True
        while is_more:
            effects = self._replicator.take_effects()
            # Sending and closing may have effects of their own.
            is_more = bool(effects)
            for twin in effects.twins:
                assert isinstance(twin, NodeStart)
                error = self._history.twin(twin)
                # "Another node runs with the same identity": writes of both would fork the owner.
                if error is not None:
                    raise error
            self._note(effects)
            for id, payload in effects.sends:
                self._peers[id].outbox.append(memoryview(encode_frame(payload)))
            for id, reason in effects.closes:
                self._peers[id].is_closing, self._peers[id].reason = True, reason
            for id in {id for id, _ in (*effects.sends, *effects.closes)}:
                self._write(self._peers[id])

    def _note(self, effects: Effects) -> None:
        """Note proved keys and delivered paths."""
        for id, key in effects.identified:
            self._peers[id].is_own = key == self._identity.public_key
        for token, error in effects.finished:
            assert isinstance(token, tuple)
            id, path = token
            peer = self._peers[id]
            peer.unanswered.discard(path)
            if error is None:
                # "A peer in whose answer an owner's slot had to be dropped counts as not asked".
                peer.has_answered = not peer.unanswered and peer.error is None
            elif peer.stream is not None:
                peer.reason = peer.error = error
                peer.again_s = time.monotonic() + _AGAIN_S


def _now_ms() -> int:
    """Return milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000
