"""Handshake: who is at the other end of a connection, where the transport does not say.

On a connection that we made, and whose key nothing proves yet, the first message is a challenge. A
good answer makes the session trusted for the key that signed it. Where we insist on a key, nothing
else is said before that, and anything but a good answer ends the connection.
"""

from __future__ import annotations

from typing import Final

from datalattice.crypto import Entropy, KeyPair, SystemEntropy
from datalattice.errors import ProtocolViolation
from datalattice.sync.session import Codec, Pending, Purpose, Session

TOKEN_BYTES: Final = 32
"""Length of a challenge's token: nobody guesses it, and none comes twice."""


class Handshake:
    """Asks for proofs and gives them, on behalf of one node."""

    def __init__(self, codec: Codec, identity: KeyPair | None, entropy: Entropy | None) -> None:
        self._codec = codec
        self._identity = identity
        self._entropy = entropy or SystemEntropy()
        self._asker = identity

    def is_due(self, session: Session) -> bool:
        """Return whether a new session has to prove its key."""
        if not session.outbound or session.public_key is not None:
            return False
        return self._identity is not None or session.pinned is not None

    def is_own(self, public_key: bytes | None) -> bool:
        """Return whether a key is that of this node."""
        return self._identity is not None and public_key == self._identity.public_key

    def ask(self, session: Session, deadline_ms: int) -> bytes:
        """Return the challenge to send; its answer is pending from now on."""
        if self._asker is None:
            # Who insists on a peer's key need not have one of its own: any will do for asking.
            self._asker = KeyPair.generate(self._entropy)
        id, token = session.next_id(), self._entropy.bytes(TOKEN_BYTES)
        session.pending[id] = Pending(Purpose.CHALLENGE, deadline_ms, (), None, token)
        return self._codec.challenge(id, self._asker, token, session.pinned)

    def check(
        self, session: Session, pending: Pending, content: object, error: str | None
    ) -> bytes:
        """Return the key that the answer to a challenge proves.

        Raises: PeerError: it proves nothing, or not the key that we insist on.
        """
        if error is not None:
            raise ProtocolViolation(f"the peer answers a challenge with {error}")
        assert self._asker is not None
        return self._codec.proof(content, self._asker, pending.secret, session.pinned)

    def answer(self, challenge: object) -> bytes:
        """Return our answer to a challenge."""
        return self._codec.prove(challenge, self._identity)
