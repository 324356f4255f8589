"""Errors: the whole hierarchy, one class for each answer to "who must act?".

Every class has a stable `code`, a short word that other surfaces (CLI exit codes, REST, gRPC) map
to their own statuses.
Kernels raise `BadFormat` and its kin without a peer; the session that talks to a peer adds it, so
blame is assigned in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class DataLatticeError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "error"


# --- the caller: fix the call ---------------------------------------------------------------


class UsageError(DataLatticeError, ValueError):
    """The call was wrong; the text names the argument and what is accepted."""

    code = "usage"


class ReadOnly(UsageError):
    """A write to something that can only be read (a view, a read-only store)."""

    code = "read-only"


class NoSigningKey(UsageError):
    """A write below a signing boundary, and the context holds no key (or not an authorised one)."""

    code = "no-signing-key"


class NoSuchPath(UsageError):
    """A path leads nowhere, and nothing says what should be created there."""

    code = "no-such-path"


class AlreadyExists(UsageError):
    """Something is at a path where it was to be made."""

    code = "already-exists"


class NotADirectory(NoSuchPath):
    """A path leads through a file, or a directory was needed and a file is there."""

    code = "not-a-directory"


class IsADirectory(UsageError):
    """A file was needed and a directory is there."""

    code = "is-a-directory"


class DirectoryNotEmpty(UsageError):
    """A directory that still holds something cannot be deleted."""

    code = "not-empty"


class TypeMismatch(UsageError, TypeError):
    """A value of another kind was needed."""

    code = "type-mismatch"


class WrongType(UsageError):
    """An operation of one type on a database key that holds another."""

    code = "wrong-type"


class NotContained(UsageError):
    """A commit would drop what the root of the store has, or a write what another owner signed."""

    code = "not-contained"


class UnsupportedOperation(UsageError):
    """The object does not offer this: a merge without a lattice, a sync without a parent."""

    code = "unsupported"


# --- nobody yet: acquire and retry ----------------------------------------------------------


class MissingData(DataLatticeError):
    """Cells are needed that are not here. `hashes` names them (32 bytes each)."""

    code = "missing-data"

    def __init__(self, hashes: Iterable[bytes]) -> None:
        self.hashes: tuple[bytes, ...] = tuple(hashes)
        first = ", ".join("0x" + h.hex() for h in self.hashes[:3])
        more = f" and {len(self.hashes) - 3} more" if len(self.hashes) > 3 else ""
        super().__init__(f"missing cells: {first}{more}")

    def __reduce__(self) -> tuple[type[MissingData], tuple[tuple[bytes, ...]]]:
        return type(self), (self.hashes,)


# --- the peer: drop, count, maybe ban -------------------------------------------------------


class PeerError(DataLatticeError):
    """A peer sent something illegal. `peer` is filled in by the session that knows it."""

    code = "peer"

    def __init__(self, message: str, peer: str | None = None) -> None:
        super().__init__(message)
        self.peer = peer

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.peer is None else f"{text} (peer {self.peer})"


class BadFormat(PeerError):
    """Bytes that are not the canonical encoding of anything."""

    code = "bad-format"


class BadSignature(PeerError):
    """A signature that does not verify."""

    code = "bad-signature"


class LimitExceeded(PeerError):
    """Something is larger, deeper or more frequent than a named limit allows."""

    code = "limit"


class WorkExceeded(LimitExceeded):
    """A foreign value asks for more work than its size allows; the part in question is dropped."""

    code = "work-exceeded"


class ProtocolViolation(PeerError):
    """A message that is well formed but not allowed here."""

    code = "protocol"


# --- the owner: grant or refuse -------------------------------------------------------------


class Unauthorized(DataLatticeError):
    """The signer may not do this."""

    code = "unauthorized"


# --- the operator ---------------------------------------------------------------------------


class StoreError(DataLatticeError):
    """The store cannot do what was asked; an operator has to look."""

    code = "store"


class Corruption(StoreError):
    """Stored bytes are not what was written. The text names file and offset."""

    code = "corruption"


class StoreLocked(StoreError):
    """Another process is writing to this store."""

    code = "store-locked"


class StoreFull(StoreError):
    """The disk, or a configured bound, is full; nothing of the refused write was kept."""

    code = "store-full"


class StoreClosed(StoreError):
    """The store was closed before the call."""

    code = "store-closed"


class StoreFailed(StoreError):
    """An earlier write or sync failed; the store refuses writes until it is opened again."""

    code = "store-failed"


class StoreVersion(StoreError):
    """The store was written by a newer version of this package."""

    code = "store-version"


class DataLoss(DataLatticeError):
    """Records that a reader still needs are gone.

    An operator decides whether it goes on without.
    """

    code = "data-loss"


# --- time: retry later ----------------------------------------------------------------------


class Unavailable(DataLatticeError):
    """Not now; the same call may work later."""

    code = "unavailable"


class PeerUnavailable(Unavailable):
    """A peer cannot be reached."""

    code = "peer-unavailable"


class Unfenced(Unavailable):
    """A write below an owner before any peer was asked, in a folder that is not where it was."""

    code = "unfenced"


class IdentityCloned(Unavailable):
    """Another node runs with the identity of this one, so neither may append."""

    code = "identity-cloned"


class Timeout(Unavailable):
    """No answer within the stated time."""

    code = "timeout"


class Backpressure(Unavailable):
    """A bounded queue is full."""

    code = "backpressure"
