"""Statuses: one table from each kind of error to HTTP, gRPC and the exit code of a command.

A subclass without a row has the row of its nearest base. Three rules depend on the call and are
code: an error that names a peer is that peer's fault, a refused read is answered as one of an
absent path, and missing cells have one status for a read and another for a write.

Source: docs/design/access.md "Statuses".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from datalattice.errors import (
    AlreadyExists,
    Backpressure,
    BadFormat,
    BadSignature,
    Conflict,
    ConsumerBusy,
    Corruption,
    DataLatticeError,
    DataLoss,
    DirectoryNotEmpty,
    Draining,
    FileLocked,
    IdentityCloned,
    IsADirectory,
    LimitExceeded,
    MissingData,
    NoSigningKey,
    NoSuchPath,
    NotADirectory,
    NotContained,
    OperationFailed,
    OutcomeUnknown,
    PeerError,
    PeerUnavailable,
    ProtocolViolation,
    RateLimited,
    ReadOnly,
    RequestReused,
    StaleToken,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreVersion,
    Timeout,
    TypeMismatch,
    Unauthenticated,
    Unauthorized,
    Unavailable,
    Unfenced,
    UnsupportedOperation,
    UsageError,
    WorkExceeded,
    WrongType,
)

GrpcCode = Literal[
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]

_EXIT_FAILED: Final = 1
_EXIT_WRONG_CALL: Final = 2
# EX_SOFTWARE, EX_TEMPFAIL and EX_NOPERM of sysexits.h.
EXIT_FAULT: Final = 70
EXIT_NOT_NOW: Final = 75
EXIT_NOT_ALLOWED: Final = 77

_RETRY_S: Final = 1.0
"""Seconds after which a caller may try again, for errors without `retry_s`."""

FAULT_CODE: Final = "fault"
HIDDEN_TEXT: Final = "there is nothing here, or the caller may not read it"
FAULT_TEXT: Final = "a fault of the service; its log has the cause"


class Status(NamedTuple):
    """The answer to one kind of error on each surface.

    http: status code. grpc: name of the code. exit_code: of a command. retry_s: seconds after which
    the same call may succeed (Retry-After); None: waiting alone does not help.
    """

    http: int
    grpc: GrpcCode
    exit_code: int
    retry_s: float | None = None


_WRONG: Final = Status(400, "INVALID_ARGUMENT", _EXIT_WRONG_CALL)
_FORBIDDEN: Final = Status(403, "PERMISSION_DENIED", EXIT_NOT_ALLOWED)
_STATE: Final = Status(409, "FAILED_PRECONDITION", _EXIT_WRONG_CALL)
_TOO_LARGE: Final = Status(413, "RESOURCE_EXHAUSTED", _EXIT_WRONG_CALL)
_BUSY: Final = Status(429, "RESOURCE_EXHAUSTED", EXIT_NOT_NOW, _RETRY_S)
_NOT_NOW: Final = Status(503, "UNAVAILABLE", EXIT_NOT_NOW, _RETRY_S)
_BROKEN: Final = Status(500, "INTERNAL", _EXIT_FAILED)
_LOST: Final = Status(500, "DATA_LOSS", _EXIT_FAILED)

_PEER: Final = Status(502, "UNAVAILABLE", _EXIT_FAILED)
_MISSING_FOR_WRITE: Final = Status(422, "FAILED_PRECONDITION", _EXIT_FAILED)
_PRECONDITION_FAILED: Final = 412

FAULT: Final = Status(500, "INTERNAL", EXIT_FAULT)
"""The status of all other exceptions: a fault of the program."""

STATUSES: Final[Mapping[type[DataLatticeError], Status]] = {
    DataLatticeError: _BROKEN,
    # the caller
    UsageError: _WRONG,
    TypeMismatch: _WRONG,
    WrongType: _WRONG,
    UnsupportedOperation: Status(400, "UNIMPLEMENTED", _EXIT_WRONG_CALL),
    ReadOnly: Status(403, "FAILED_PRECONDITION", _EXIT_WRONG_CALL),
    NoSigningKey: Status(403, "FAILED_PRECONDITION", _EXIT_WRONG_CALL),
    # "Or absent: a key, a record, a path" (docs/cli.md "Exit codes").
    NoSuchPath: Status(404, "NOT_FOUND", _EXIT_FAILED),
    AlreadyExists: Status(409, "ALREADY_EXISTS", _EXIT_WRONG_CALL),
    NotADirectory: _STATE,
    IsADirectory: _STATE,
    DirectoryNotEmpty: _STATE,
    NotContained: _STATE,
    Conflict: _STATE,
    RequestReused: _STATE,
    FileLocked: Status(423, "FAILED_PRECONDITION", _EXIT_WRONG_CALL),  # RFC 4918, 11.3
    StaleToken: Status(410, "OUT_OF_RANGE", _EXIT_FAILED),
    OperationFailed: _BROKEN,
    MissingData: Status(404, "NOT_FOUND", _EXIT_FAILED),
    # Without a peer, the bytes are the caller's.
    PeerError: _WRONG,
    BadFormat: _WRONG,
    BadSignature: _WRONG,
    ProtocolViolation: _WRONG,
    LimitExceeded: _TOO_LARGE,
    WorkExceeded: _TOO_LARGE,
    Unauthenticated: Status(401, "UNAUTHENTICATED", EXIT_NOT_ALLOWED),
    Unauthorized: _FORBIDDEN,
    # the operator
    StoreError: _BROKEN,
    StoreClosed: _BROKEN,
    StoreFailed: _BROKEN,
    StoreVersion: _BROKEN,
    StoreFull: Status(507, "RESOURCE_EXHAUSTED", _EXIT_FAILED),
    Corruption: _LOST,
    DataLoss: _LOST,
    StoreLocked: _NOT_NOW,
    # later
    Unavailable: _NOT_NOW,
    Unfenced: _NOT_NOW,
    ConsumerBusy: _NOT_NOW,
    Draining: _NOT_NOW,
    Backpressure: _BUSY,
    RateLimited: _BUSY,
    PeerUnavailable: Status(502, "UNAVAILABLE", EXIT_NOT_NOW, _RETRY_S),
    Timeout: Status(504, "DEADLINE_EXCEEDED", EXIT_NOT_NOW, _RETRY_S),
    # No Retry-After: the write may have happened, so the caller looks before it repeats it.
    OutcomeUnknown: Status(504, "DEADLINE_EXCEEDED", EXIT_NOT_NOW),
    # No Retry-After: it lasts until the operator gives one of the two nodes another key.
    IdentityCloned: Status(503, "FAILED_PRECONDITION", _EXIT_FAILED),
}
"""The status of each kind of error, independent of the call."""


def status_of(error: BaseException, right: str = "r", *, if_match: bool = False) -> Status:
    """Return the status of an error of a call.

    right: the right that the call needs: `r` for a read. if_match: the call named the version that
    it expected.
    """
    if not isinstance(error, DataLatticeError):
        return FAULT
    # "once a peer is set" the bytes were the peer's, not the caller's.
    if isinstance(error, PeerError) and error.peer is not None:
        return _PEER
    # A write is incomplete without these cells; a read or a pin names a value that is absent.
    if isinstance(error, MissingData) and right == "w":
        return _MISSING_FOR_WRITE
    # "A subclass without a row has the row of its nearest base."
    found = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    if isinstance(error, RateLimited):
        return found._replace(retry_s=error.retry_s)
    if (
        if_match
        and isinstance(error, Conflict)
        # Neither is about the version that the call named.
        and not isinstance(error, RequestReused | FileLocked)
    ):
        return found._replace(http=_PRECONDITION_FAILED)
    return found


class ErrorAnswer(NamedTuple):
    """The answer of a door to an error: its code, the text that leaves the machine, the status."""

    code: str
    text: str
    status: Status


def answer_to(error: BaseException, right: str = "r", *, if_match: bool = False) -> ErrorAnswer:
    """Return the answer to a caller from outside; arguments as `status_of`.

    A refused read is answered as one of an absent path, so that no caller learns what exists. The
    text of a fault of the program stays in the log.
    """
    if isinstance(error, Unauthorized) and right == "r":
        return ErrorAnswer(NoSuchPath.code, HIDDEN_TEXT, STATUSES[NoSuchPath])
    status = status_of(error, right, if_match=if_match)
    if not isinstance(error, DataLatticeError):
        return ErrorAnswer(FAULT_CODE, FAULT_TEXT, status)
    return ErrorAnswer(error.code, str(error), status)
