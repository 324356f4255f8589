"""Keys: which of the key pairs given to a node proves it, and which sign for owners."""

from __future__ import annotations

from collections.abc import Iterable

from datalattice.crypto import KeyPair, KeyRing
from datalattice.errors import UsageError


def node_keys(
    key_pair: KeyPair | None, identity: KeyPair | None, keys: Iterable[KeyPair]
) -> tuple[KeyPair | None, KeyPair | None, KeyRing]:
    """Return (identity, key that the node's own operations write under, ring of owners' keys).

    Raises: UsageError: `key_pair` beside the other two, or owners' keys without an identity.
    """
    given = tuple(keys)
    if key_pair is not None:
        if identity is not None or given:
            raise UsageError("key_pair stands for identity and keys: give it, or these two")
        return key_pair, key_pair, KeyRing(key_pair)
    if given and identity is None:
        # An identity made for one run would count as a new device at each start.
        raise UsageError("a node with owners' keys needs an identity of its own: give identity=")
    return identity, given[0] if given else identity, KeyRing(*given)
