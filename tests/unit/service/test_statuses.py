"""The one table from errors to HTTP, gRPC and exit codes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import get_args

import pytest

from datalattice import errors
from datalattice.errors import (
    BadFormat,
    Conflict,
    Corruption,
    DataLatticeError,
    LimitExceeded,
    MissingData,
    NoSuchPath,
    PeerError,
    RateLimited,
    RequestReused,
    StoreFull,
    StoreLocked,
    TypeMismatch,
    Unauthenticated,
    Unauthorized,
    UsageError,
)
from datalattice.service import FAULT, STATUSES, Status, answer_to, status_of
from datalattice.service.statuses import FAULT_TEXT, HIDDEN_TEXT, GrpcCode

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, DataLatticeError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_row_of_its_own(kind: type[DataLatticeError]) -> None:
    assert kind in STATUSES, f"{kind.__name__} has no row in service/statuses.py"


def test_the_table_has_no_row_for_anything_else() -> None:
    assert set(STATUSES) == set(KINDS)


def test_the_names_are_those_of_grpc() -> None:
    grpc = pytest.importorskip("grpc")
    assert set(get_args(GrpcCode)) <= {code.name for code in grpc.StatusCode}
    assert {status.grpc for status in STATUSES.values()} <= set(get_args(GrpcCode))


@pytest.mark.parametrize(
    ("error", "http", "code", "exit_code"),
    [
        (UsageError("x"), 400, "INVALID_ARGUMENT", 2),
        (TypeMismatch("x"), 400, "INVALID_ARGUMENT", 2),
        (errors.UnsupportedOperation("x"), 400, "UNIMPLEMENTED", 2),
        (BadFormat("x"), 400, "INVALID_ARGUMENT", 2),
        (errors.BadSignature("x"), 400, "INVALID_ARGUMENT", 2),
        (errors.ProtocolViolation("x"), 400, "INVALID_ARGUMENT", 2),
        (Unauthenticated("x"), 401, "UNAUTHENTICATED", 77),
        (Unauthorized("x"), 403, "PERMISSION_DENIED", 77),
        (errors.ReadOnly("x"), 403, "FAILED_PRECONDITION", 2),
        (errors.NoSigningKey("x"), 403, "FAILED_PRECONDITION", 2),
        (NoSuchPath("x"), 404, "NOT_FOUND", 1),
        (errors.AlreadyExists("x"), 409, "ALREADY_EXISTS", 2),
        (Conflict("x"), 409, "FAILED_PRECONDITION", 2),
        (RequestReused("x"), 409, "FAILED_PRECONDITION", 2),
        (errors.FileLocked("x"), 423, "FAILED_PRECONDITION", 2),
        (errors.NotADirectory("x"), 409, "FAILED_PRECONDITION", 2),
        (errors.IsADirectory("x"), 409, "FAILED_PRECONDITION", 2),
        (errors.DirectoryNotEmpty("x"), 409, "FAILED_PRECONDITION", 2),
        (errors.StaleToken("x"), 410, "OUT_OF_RANGE", 1),
        (LimitExceeded("x"), 413, "RESOURCE_EXHAUSTED", 2),
        (errors.Backpressure("x"), 429, "RESOURCE_EXHAUSTED", 75),
        (RateLimited("x"), 429, "RESOURCE_EXHAUSTED", 75),
        (errors.Unavailable("x"), 503, "UNAVAILABLE", 75),
        (errors.Draining("x"), 503, "UNAVAILABLE", 75),
        (StoreLocked("x"), 503, "UNAVAILABLE", 75),
        (errors.PeerUnavailable("x"), 502, "UNAVAILABLE", 75),
        (errors.Timeout("x"), 504, "DEADLINE_EXCEEDED", 75),
        (StoreFull("x"), 507, "RESOURCE_EXHAUSTED", 1),
        (Corruption("x"), 500, "DATA_LOSS", 1),
        (errors.DataLoss("x"), 500, "DATA_LOSS", 1),
        (errors.StoreFailed("x"), 500, "INTERNAL", 1),
        (ZeroDivisionError("x"), 500, "INTERNAL", 70),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_an_error_has_its_status(error: Exception, http: int, code: str, exit_code: int) -> None:
    status = status_of(error)
    assert (status.http, status.grpc, status.exit_code) == (http, code, exit_code)


@pytest.mark.parametrize("kind", [one for one in KINDS if issubclass(one, PeerError)])
def test_what_a_peer_did_is_not_the_caller_s_fault(kind: type[PeerError]) -> None:
    error = kind("the cell is cut")
    assert status_of(error).http in (400, 413)
    error.peer = "0123"
    assert status_of(error) == Status(502, "UNAVAILABLE", 1)


def test_a_subclass_has_the_status_of_its_nearest_base() -> None:
    class TooOld(errors.StaleToken):
        code = "too-old"

    assert status_of(TooOld("x")) == STATUSES[errors.StaleToken]
    assert answer_to(TooOld("x")).code == "too-old"


def test_missing_cells_are_not_found_by_a_read_and_refused_by_a_write() -> None:
    error = MissingData([b"h" * 32])
    assert status_of(error, "r") == status_of(error, "p") == Status(404, "NOT_FOUND", 1)
    assert status_of(error, "w") == Status(422, "FAILED_PRECONDITION", 1)


def test_a_version_that_does_not_match_is_412_where_one_was_named() -> None:
    assert status_of(Conflict("x"), "w", if_match=True).http == 412
    assert status_of(RequestReused("x"), "w", if_match=True).http == 409
    assert status_of(errors.FileLocked("x"), "w", if_match=True).http == 423
    assert status_of(UsageError("x"), "w", if_match=True).http == 400


def test_the_time_of_the_next_try_is_the_error_s_own() -> None:
    assert status_of(RateLimited("x", 7.5)).retry_s == 7.5
    assert status_of(Unauthorized("x")).retry_s is None
    for kind in (errors.Unavailable, errors.Draining, errors.Backpressure, StoreLocked):
        assert status_of(kind("x")).retry_s == 1.0
    assert status_of(errors.OutcomeUnknown("x")).retry_s is None


def test_a_read_that_is_not_allowed_looks_like_one_of_nothing() -> None:
    hidden = answer_to(Unauthorized("did:key:z1 may not read lattice/kv/secret"), "r")
    assert hidden == (NoSuchPath.code, HIDDEN_TEXT, STATUSES[NoSuchPath])
    shown = answer_to(Unauthorized("may not write"), "w")
    assert shown == ("unauthorized", "may not write", STATUSES[Unauthorized])


def test_a_fault_keeps_its_text_to_itself() -> None:
    assert answer_to(ZeroDivisionError("secret")) == ("fault", FAULT_TEXT, FAULT)


def test_the_table_is_there_without_the_handlers() -> None:
    """A command that fails asks for it; loading all actions would take longer than the command."""
    program = (
        "import sys; from datalattice.service import status_of; "
        "print(*[name for name in sys.modules if name.startswith('datalattice.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "datalattice.service.statuses" in loaded
    assert not loaded & {"datalattice.service.service", "datalattice.client", "datalattice.cells"}
