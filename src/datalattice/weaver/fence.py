"""Fence: whether this node may write to a store, or must ask a peer first what it wrote elsewhere.

A node's intentions in a store are one chain. A folder that was restored or copied holds an old end
of it, and what is written there is a second branch. So a store in doubt refuses writes of this node
until it was compared with a peer of the store and all that the peer has is here.

    moved     the engine's file is not where it was: it was copied, restored or moved
    behind    a peer sent intentions of this node that were not here
    cloned    another node runs with this key; until the next start
    unasked   the user allowed writes before a peer was asked, and none was asked since

A doubt is a row of the engine, so it holds for all processes on the folder. A store without other
peers is never in doubt: no other node can have intentions of it.

Source: docs/design/forks.md "Weaver stores"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from datalattice.engine import ReadTxn, WriteTxn
from datalattice.errors import Corruption, IdentityCloned, Unfenced
from datalattice.weaver.storeid import store_id_text

FENCE: Final = "fence"
"""Table with three kinds of rows: a store's id to its doubt; `_PLACE_KEY` to author and place of
the engine; and for each fork of this node that was ended, a store's id with the hash of the branch
that is not in the log."""

_PLACE_KEY: Final = b"place"
"""Key of the author and the place where the engine was last found; shorter than any store id."""

_KEY_BYTES: Final = 32


class Doubt(Enum):
    """Why a node may lack intentions of its own."""

    MOVED = "moved"
    BEHIND = "behind"
    CLONED = "cloned"
    UNASKED = "unasked"

    @property
    def refuses(self) -> bool:
        """Whether writes are refused."""
        return self is not Doubt.UNASKED

    @property
    def text(self) -> str:
        """What is known, and what to do."""
        return _TEXTS[self]


_ASK: Final = (
    "run `lattice node start` until it has reached a peer of the store, or accept that: a node "
    "with --accept-unfenced, a command with --offline"
)
_TEXTS: Final = {
    Doubt.MOVED: "the folder was copied, restored or moved, and no peer has said what was written "
    f"since; {_ASK}",
    Doubt.BEHIND: "a peer has writes of this node that were not here: the folder was set back, or "
    f"a copy of it is in use; {_ASK}",
    Doubt.CLONED: "another node runs with the key of this one; stop one of them and run `lattice "
    "key identity new` in its folder, then start both again",
    Doubt.UNASKED: "it was written to without having asked a peer; no answer since",
}


def doubt_of(txn: ReadTxn, store_id: bytes) -> Doubt | None:
    """Return why a store is in doubt, None if it is not.

    Raises: Corruption: the row holds none of the words of `Doubt`.
    """
    row = txn.get(FENCE, store_id)
    if row is None:
        return None
    try:
        return Doubt(row.decode(errors="replace"))
    except ValueError:
        raise Corruption(f"{FENCE} {store_id.hex()}: it holds {row!r}") from None


def check_fence(txn: ReadTxn, store_id: bytes) -> None:
    """Check that this node may write to a store. Cost: one look-up.

    Raises: Unfenced, IdentityCloned: it may not; the text says why and what to do.
    """
    doubt = doubt_of(txn, store_id)
    if doubt is None or not doubt.refuses:
        return
    error = IdentityCloned if doubt is Doubt.CLONED else Unfenced
    raise error(f"store {store_id_text(store_id)} is not written to: {doubt.text}")


def suspect(txn: WriteTxn, store_id: bytes, doubt: Doubt) -> None:
    """Put a store in doubt; one that refuses writes until a peer was asked keeps its reason."""
    found = doubt_of(txn, store_id)
    if found not in (Doubt.MOVED, Doubt.BEHIND) or doubt is Doubt.CLONED:
        txn.put(FENCE, store_id, doubt.value.encode())


def settle(txn: WriteTxn, store_id: bytes, *, asked: bool) -> None:
    """End a doubt: a peer was asked, or the user accepts that none was."""
    found = doubt_of(txn, store_id)
    if found is None or (asked and found is Doubt.CLONED):
        return  # a peer's answer says nothing about the other node that runs with this key
    if asked:
        txn.delete(FENCE, store_id)
    else:
        txn.put(FENCE, store_id, Doubt.UNASKED.value.encode())


def arrive(txn: WriteTxn, author: bytes, place: str, shared: Callable[[], Iterable[bytes]]) -> bool:
    """Store where the engine is; if it was elsewhere before, put the stores of `shared` in doubt.

    shared: yields the stores that have other peers. Returns: whether the author has changed.
    """
    before = txn.get(FENCE, _PLACE_KEY)
    is_new_author = before is not None and before[:_KEY_BYTES] != author
    if is_new_author:
        txn.delete_range(FENCE)  # a new key has no chain, so nothing of it can be elsewhere
    elif before is not None and not is_at(txn, author, place):
        for store_id in shared():
            suspect(txn, store_id, Doubt.MOVED)
    txn.put(FENCE, _PLACE_KEY, author + place.encode())
    return is_new_author


def is_at(txn: ReadTxn, author: bytes, place: str) -> bool:
    """Return whether the engine was last found at this place, with this author."""
    return txn.get(FENCE, _PLACE_KEY) == author + place.encode()


def end_fork(txn: WriteTxn, store_id: bytes, other: bytes) -> None:
    """Note that the operations of a branch outside the log were written again at the log's end."""
    txn.put(FENCE, store_id + other, b"ended")


def is_fork_ended(txn: ReadTxn, store_id: bytes, other: bytes) -> bool:
    """Return whether `end_fork` was called for a branch."""
    return txn.get(FENCE, store_id + other) is not None
