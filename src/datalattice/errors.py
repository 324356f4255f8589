"""Errors: the full hierarchy, grouped by who must act.

Every class has a stable `code`, a short word that other surfaces (CLI exit codes, REST, gRPC) map
to their own statuses. Decoders raise `PeerError` and its subclasses without a peer; the connection
sets `peer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

STEP_LENGTH_MAX: Final = 60  # a string used as a key may be long
"""Characters shown of one subscript in an error's text."""


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
    """A write below a signing boundary without a key that is authorised to sign there."""

    code = "no-signing-key"


class NoSuchPath(UsageError):
    """A path that does not exist, with no rule for creating it."""

    code = "no-such-path"


class AlreadyExists(UsageError):
    """The path to create exists already."""

    code = "already-exists"


class NotADirectory(NoSuchPath):
    """A path leads through a file, or names a file where a directory is required."""

    code = "not-a-directory"


class IsADirectory(UsageError):
    """A path names a directory where a file is required."""

    code = "is-a-directory"


class DirectoryNotEmpty(UsageError):
    """A directory with entries cannot be deleted."""

    code = "not-empty"


class TypeMismatch(UsageError, TypeError):
    """A value of another type is required.

    `path` has the subscripts that lead from the given value to the part that does not fit; it is
    empty for the value itself.
    """

    code = "type-mismatch"

    def __init__(self, text: str = "", path: tuple[object, ...] | None = None) -> None:
        super().__init__(text if path is None else f"value{_subscripts(path)}: {text}")
        self.path: tuple[object, ...] = path or ()
        self._reason: str | None = None if path is None else text

    def below(self, *steps: object) -> TypeMismatch:
        """Return this error for a container that holds the refused value at `steps`.

        An error made without a path is returned unchanged.
        """
        if self._reason is None:  # the text has no path that could be extended
            return self
        return TypeMismatch(self._reason, (*steps, *self.path))


def _subscripts(path: tuple[object, ...]) -> str:
    return "".join([f"[{_step(step)}]" for step in path])


def _step(step: object) -> str:
    text = f'"{step}"' if type(step) is str else repr(step)
    return text if len(text) <= STEP_LENGTH_MAX else f"{text[:STEP_LENGTH_MAX]}..."


class WrongType(UsageError):
    """An operation of one type on a database key that holds another type."""

    code = "wrong-type"


class NotContained(UsageError):
    """A commit would drop data of the current root, or a write would drop another owner's data."""

    code = "not-contained"


class Conflict(UsageError):
    """Another call has changed the state that this call expected."""

    code = "conflict"


class RequestReused(Conflict):
    """A request has the id of an earlier, different request."""

    code = "request-reused"


class FileLocked(Conflict):
    """Another caller holds a lock on the file, or the call lacks the token of the lock."""

    code = "locked"


class StaleToken(UsageError):
    """A stream cannot resume here: the items behind it are gone, or the node has started again."""

    code = "stale-token"


class UnsupportedOperation(UsageError):
    """The object does not support this: a merge without a lattice, a sync without a parent."""

    code = "unsupported"


# --- the venue: read the text of the job ----------------------------------------------------


class OperationFailed(DataLatticeError):
    """A job of a venue ended in a status other than COMPLETE; the text is the job's error."""

    code = "operation-failed"


# --- missing data: acquire the cells and retry ----------------------------------------------


class MissingData(DataLatticeError):
    """Required cells are missing from the store. `hashes` lists their 32-byte hashes."""

    code = "missing-data"

    def __init__(self, hashes: Iterable[bytes]) -> None:
        self.hashes: tuple[bytes, ...] = tuple(hashes)
        first = ", ".join("0x" + h.hex() for h in self.hashes[:3])
        more = f" and {len(self.hashes) - 3} more" if len(self.hashes) > 3 else ""
        super().__init__(f"missing cells: {first}{more}")

    # Exceptions are pickled with `args`, which hold the text and not the hashes.
    def __reduce__(self) -> tuple[type[MissingData], tuple[tuple[bytes, ...]]]:
        return type(self), (self.hashes,)


# --- the peer: drop, count, maybe ban -------------------------------------------------------


class PeerError(DataLatticeError):
    """A peer sent invalid data. `peer` names it; None until the connection sets it."""

    code = "peer"

    def __init__(self, message: str, peer: str | None = None) -> None:
        super().__init__(message)
        self.peer = peer

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.peer is None else f"{text} (peer {self.peer})"


class BadFormat(PeerError):
    """Bytes that are not a canonical encoding."""

    code = "bad-format"


class BadSignature(PeerError):
    """A signature that does not verify."""

    code = "bad-signature"


class LimitExceeded(PeerError):
    """Data is larger, deeper or more frequent than a named limit allows."""

    code = "limit"


class WorkExceeded(LimitExceeded):
    """Merging a foreign value costs more than its size pays for; the costly part is dropped."""

    code = "work-exceeded"


class ProtocolViolation(PeerError):
    """A well-formed message that is not allowed in the present state."""

    code = "protocol"


# --- the owner: grant or refuse -------------------------------------------------------------


class Unauthorized(DataLatticeError):
    """The signer is not permitted to do this."""

    code = "unauthorized"


class Unauthenticated(DataLatticeError):
    """A required credential is missing, or the given one is invalid."""

    code = "unauthenticated"


# --- the operator ---------------------------------------------------------------------------


class StoreError(DataLatticeError):
    """The store cannot serve the call until an operator acts."""

    code = "store"


class Corruption(StoreError):
    """Stored bytes differ from what was written. The text names file and offset."""

    code = "corruption"


class StoreLocked(StoreError):
    """Another process is writing to this store."""

    code = "store-locked"


class StoreFull(StoreError):
    """The disk or a configured bound is full; the refused write left nothing behind."""

    code = "store-full"


class StoreClosed(StoreError):
    """The store is closed."""

    code = "store-closed"


class StoreFailed(StoreError):
    """An earlier write or sync failed; the store refuses writes until it is opened again."""

    code = "store-failed"


class StoreVersion(StoreError):
    """The store was written by a newer version of this package."""

    code = "store-version"


class DataLoss(DataLatticeError):
    """Records that a reader still needs are gone; an operator decides whether to skip them.

    Shapes: lost: the offsets of truncated records, a range for each partition. forked: for each
            partition whose log was replaced, the first offset that differs from what was read.
            Both are empty if the lost data is not in queues.
    """

    code = "data-loss"

    def __init__(
        self,
        message: str,
        lost: Mapping[Any, range] | None = None,
        forked: Mapping[Any, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.lost: dict[Any, range] = dict(lost or {})
        self.forked: dict[Any, int] = dict(forked or {})


# --- time: retry later ----------------------------------------------------------------------


class Unavailable(DataLatticeError):
    """A temporary failure; the same call may succeed later."""

    code = "unavailable"


class PeerUnavailable(Unavailable):
    """A peer cannot be reached."""

    code = "peer-unavailable"


class Unfenced(Unavailable):
    """A write below an owner in a moved or copied folder, before any peer has been asked."""

    code = "unfenced"


class IdentityCloned(Unavailable):
    """Another node runs with the same identity, so neither may append."""

    code = "identity-cloned"


class Timeout(Unavailable):
    """No answer came within the stated time."""

    code = "timeout"


class ConsumerBusy(Unavailable):
    """Another program on this machine reads with the same consumer name."""

    code = "consumer-busy"


class OutcomeUnknown(Unavailable):
    """A write may or may not have happened: its answer was lost, and the root does not show it."""

    code = "outcome-unknown"


class Backpressure(Unavailable):
    """A bounded queue is full."""

    code = "backpressure"


class RateLimited(Backpressure):
    """A caller makes more calls than allowed. `retry_s`: seconds until the next is accepted."""

    code = "rate-limited"

    def __init__(self, message: str, retry_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class Draining(Unavailable):
    """The doors of the node are closing and accept no new calls."""

    code = "draining"
