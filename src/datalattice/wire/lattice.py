"""Lattice messages: what two nodes say to each other, as cells.

    [:PING id ...]              Result(id, "PONG" or a clock)
    [:LQ id path ...]           Result(id, value at the path, with its cells)
    [:LV path value]            nothing
    [:LP base hash patch]       nothing; the value with this hash, as a patch of another one
    [:DR id hash ...]           Result(id, [cell or nil ...])
    [:CH id signed]             Result(id, signed), which prove who signed them
    [:BYE ...]                  nothing
    Result                      record `dd` of id, value, error, log, info

A payload is one cell and, behind it, branches that it refers to. The kind is inferred from the
cell: the numbers in `MessageNumber` are those of the specification and never travel. A message that
is none of these is `Unknown`: whoever sent it speaks a richer dialect, which is no fault.

Everything here is a function of bytes. Whether a message is welcome is decided by the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from datalattice.cells import (
    Blob,
    Keyword,
    Loader,
    MessageCells,
    Record,
    Signed,
    Value,
    Vector,
    decode_parts,
    encode,
    encode_message,
    make_blob,
    novelty,
)
from datalattice.errors import BadFormat, MissingData, ProtocolViolation
from datalattice.limits import HASH_BYTES, MESSAGE_BYTES_MAX
from datalattice.wire.framing import encode_length

REQUEST_HASHES_MAX: Final = 254
"""Most hashes in one DATA_REQUEST."""

PATH_KEYS_MAX: Final = 1_000
"""Most keys of a path. A vector whose parts repeat has any length in a few hundred bytes."""

EXTRA_MAX: Final = 16
"""Elements behind those of a PING or a LATTICE_QUERY that are looked at."""

PATCH_BYTES_MAX: Final = 8_000_000
"""Longest patch, and the most bytes of cells it may make: a larger difference is not pushed."""

STATEMENT_MIN: Final = 2
STATEMENT_MAX: Final = 3
"""Elements of what a challenge and its answer sign: a token, a key, and perhaps a context."""

RESULT_DIGIT: Final = 0xD
RESULT_FIELDS: Final = 5


class MessageNumber(IntEnum):
    """The numbers that the specification gives to message kinds.

    Nothing on the wire carries them.
    """

    DATA_REQUEST = 5
    PING = 12
    LATTICE_VALUE = 14
    LATTICE_QUERY = 15


class ErrorCode:
    """The error keywords of a Result that a node of ours sends."""

    FORMAT: Final = Keyword("FORMAT")
    ARGUMENT: Final = Keyword("ARGUMENT")
    TRUST: Final = Keyword("TRUST")
    MISSING: Final = Keyword("MISSING")
    LOAD: Final = Keyword("LOAD")


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? `extra` holds what follows the id."""

    id: Value
    extra: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """What is at `path`? `extra` holds what follows the path.

    `fault` says why it cannot be answered.
    """

    id: Value
    path: tuple[Value, ...] = ()
    extra: tuple[Value, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Announcement:
    """A LATTICE_VALUE: this is what I have at `path`.

    `absent` is the hash of a value whose own cell did not come along; `value` is None then.
    """

    path: tuple[Value, ...]
    value: Value
    absent: bytes | None = None


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A DATA_REQUEST: the cells with these hashes. `fault` says why it cannot be answered."""

    id: Value
    hashes: tuple[bytes, ...]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """An answer, matched to its request by `id`. `value` is the error text where `error` is set.

    `absent` is the hash of a value whose own cell did not come along; `value` is None then.
    """

    id: Value
    value: Value
    error: Keyword | None = None
    log: Value = None
    info: Value = None
    absent: bytes | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """A CHALLENGE: prove that you hold a key.

    terms: token, wanted key or nil, and perhaps a context: what `signed` states.
    fault: why it cannot be answered; `signed` is nil then.
    """

    id: Value
    signed: Signed | None
    terms: tuple[Value, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Patched:
    """I have the value with this hash; `patch` makes it of `base`, which you should have.

    base, absent: the base value, or its hash when its cell stands elsewhere.
    """

    hash: bytes
    patch: bytes | Blob
    base: Value
    absent: bytes | None = None


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The other side will close."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message that is no part of this protocol, or lacks what an answer would need."""

    value: Value
    reason: str


Message = (
    Ping | Query | Announcement | Patched | DataRequest | Result | Challenge | Goodbye | Unknown
)

_PING: Final = Keyword("PING")
_QUERY: Final = Keyword("LQ")
_VALUE: Final = Keyword("LV")
_PATCH: Final = Keyword("LP")
_REQUEST: Final = Keyword("DR")
CHALLENGE: Final = Keyword("CH")
_GOODBYE: Final = Keyword("BYE")


def decode_payload(
    payload: bytes,
    loader: Loader | None = None,
    limit: int = MESSAGE_BYTES_MAX,
    *,
    ordered: bool = True,
) -> tuple[Message, MessageCells]:
    """Return (message, the cells that came with it); `loader` has those that did not.

    ordered: as for `decode_parts`.
    Raises: BadFormat: not a canonical message, or its first level is not all there.
    Source: docs/node.md "Messages": the kind is inferred from the decoded payload.
    """
    value, parts = decode_parts(payload, loader, limit, ordered=ordered)
    try:
        return _read(value), parts
    except MissingData as error:
        # Without the elements of the message itself nobody can tell what it is.
        msg = "a message lacks cells of its own"
        raise BadFormat(msg) from error


def _read(value: Value) -> Message:
    if isinstance(value, Record):
        return _read_result(value)
    if not isinstance(value, Vector) or not len(value):
        return Unknown(value, "not a vector that starts with a keyword")
    reader = _READERS.get(_name(value[0]))
    return Unknown(value, "an unknown kind of message") if reader is None else reader(value)


def _name(value: Value) -> str:
    return value.name if isinstance(value, Keyword) else ""


def _read_result(value: Record) -> Message:
    if value.digit != RESULT_DIGIT or len(value) != RESULT_FIELDS:
        return Unknown(value, "a record that is not a Result")
    answer, absent = _element(value, 1)
    error = value[2]
    if error is not None and not isinstance(error, Keyword):
        return Unknown(value, "a Result whose error is not a keyword")
    return Result(value[0], answer, error, value[3], value[4], absent)


def _element(cell: Vector | Record, position: int) -> tuple[Value, bytes | None]:
    """Return (element, None), or (None, its hash) when its cell is not here."""
    try:
        return cell[position], None
    except MissingData as error:
        return None, error.hashes[0]


def _id(message: Vector) -> Value:
    """Return the id of a request: it goes back as it came, so all of it has to be here."""
    id = message[1]
    novelty(id)
    return id


def _read_ping(value: Vector) -> Message:
    if len(value) < 2:
        return Unknown(value, "a PING without an id")
    return Ping(_id(value), tuple(value.iter_range(2, 2 + EXTRA_MAX)))


def _read_query(value: Vector) -> Message:
    if len(value) < 2:
        return Unknown(value, "a LATTICE_QUERY without an id")
    path = value[2] if len(value) > 2 else None
    # The reference checks two elements and takes anything but a vector as the root.
    if isinstance(path, Vector) and len(path) > PATH_KEYS_MAX:
        fault = f"a path of {len(path)} keys, at most {PATH_KEYS_MAX} are followed"
        return Query(_id(value), fault=fault)
    keys = tuple(path) if isinstance(path, Vector) else ()
    return Query(_id(value), keys, tuple(value.iter_range(3, 3 + EXTRA_MAX)))


def _read_value(value: Vector) -> Message:
    carried, absent = _element(value, 2) if len(value) > 2 else (None, None)
    if carried is None and absent is None:
        return Unknown(value, "a LATTICE_VALUE without a value")
    path = value[1]
    if path is None:
        return Announcement((), carried, absent)
    if isinstance(path, Vector) and len(path) > PATH_KEYS_MAX:
        return Unknown(value, f"a LATTICE_VALUE with a path of more than {PATH_KEYS_MAX} keys")
    # Quoting the reference's behaviour: any other non-vector value counts as a one-key path.
    keys = tuple(path) if isinstance(path, Vector) else (path,)
    return Announcement(keys, carried, absent)


def _read_patch(value: Vector) -> Message:
    if len(value) != 4:
        return Unknown(value, "a LATTICE_PATCH that is not [:LP base hash patch]")
    base, absent = _element(value, 1)
    hash, patch = value[2], value[3]
    if not isinstance(hash, bytes) or len(hash) != HASH_BYTES:
        return Unknown(value, f"a LATTICE_PATCH without a hash of {HASH_BYTES} bytes")
    if not isinstance(patch, (bytes, Blob)):
        return Unknown(value, "a LATTICE_PATCH whose patch is no blob")
    if len(patch) > PATCH_BYTES_MAX:
        return Unknown(value, f"a LATTICE_PATCH of more than {PATCH_BYTES_MAX} bytes")
    return Patched(hash, patch, base, absent)


def _read_request(value: Vector) -> Message:
    if len(value) < 2:
        return Unknown(value, "a DATA_REQUEST without an id")
    id = _id(value)
    count = len(value) - 2
    if count > REQUEST_HASHES_MAX:
        fault = f"{count} hashes requested, at most {REQUEST_HASHES_MAX} are answered"
        return DataRequest(id, (), fault)
    hashes: list[bytes] = []
    for element in value.iter_range(2, len(value)):
        if not isinstance(element, bytes) or len(element) != HASH_BYTES:
            return DataRequest(id, (), f"a hash is a blob of {HASH_BYTES} bytes")
        hashes.append(element)
    return DataRequest(id, tuple(hashes))


def _read_challenge(value: Vector) -> Message:
    if len(value) < 2:
        return Unknown(value, "a CHALLENGE without an id")
    id = _id(value)
    if len(value) < 3:
        return Challenge(id, None, (), "a challenge is [:CH id signed]")
    try:
        signed, terms = read_statement(_element(value, 2)[0])
    except ProtocolViolation as error:
        return Challenge(id, None, (), f"what a challenge carries is {error}")
    return Challenge(id, signed, terms)


def read_statement(signed: Value) -> tuple[Signed, tuple[Value, ...]]:
    """Return signed data and the two or three values it states.

    Raises: ProtocolViolation: it is not of that form, or not all here.
    Source: docs/node.md "Identity".
    """
    try:
        stated = signed.value if isinstance(signed, Signed) else None
        if not isinstance(signed, Signed) or not isinstance(stated, Vector):
            raise ProtocolViolation("signed data of a vector")
        if not STATEMENT_MIN <= len(stated) <= STATEMENT_MAX:
            raise ProtocolViolation("signed data of a vector of two or three elements")
        return signed, tuple(stated)
    except MissingData as error:
        raise ProtocolViolation("complete, with all its cells") from error


def _read_goodbye(_value: Vector) -> Message:
    return Goodbye()


_READERS: Final[dict[str, Callable[[Vector], Message]]] = {
    "PING": _read_ping,
    "LQ": _read_query,
    "LV": _read_value,
    "LP": _read_patch,
    "DR": _read_request,
    "CH": _read_challenge,
    "BYE": _read_goodbye,
}


# --- writing ------------------------------------------------------------------------------------


def join_cells(top: bytes, branches: Iterable[bytes]) -> bytes:
    """Return the message of one cell and branches, all given as encodings.

    Source: docs/node.md "Frames": the top cell bare, every child behind its length.
    """
    out = [top]
    for encoding in branches:
        out.append(encode_length(len(encoding)))
        out.append(encoding)
    return b"".join(out)


def encode_ping(id: Value, *extra: Value) -> bytes:
    """Return a PING. What follows the id is ignored by nodes that do not know it.

    Source: docs/node.md "Messages": extra elements ignored.
    """
    return encode_message(Vector.of((_PING, id, *extra)))


def encode_query(id: Value, path: Sequence[Value], *extra: Value) -> bytes:
    """Return a LATTICE_QUERY.

    Source: docs/node.md "Queries".
    """
    return encode_message(Vector.of((_QUERY, id, Vector.of(path), *extra)))


def encode_announcement(path: Sequence[Value], value: Value, branches: Iterable[bytes]) -> bytes:
    """Return a LATTICE_VALUE with just these branches, whatever else is below the value.

    Shapes: branches: the encodings to send along; the value's own cell is one of them if it is to
            be sent and not embedded.
    Source: docs/node.md "What is sent when": complete, delta and root-only are all legal.
    """
    return join_cells(encode(Vector.of((_VALUE, Vector.of(path), value))), branches)


def encode_complete(path: Sequence[Value], value: Value, cells: Iterable[bytes]) -> bytes:
    """Return a LATTICE_VALUE that needs nothing else.

    Shapes: cells: the encodings at and below the value, those that are not embedded.
    Source: docs/node.md "Plain peers": complete in itself.
    """
    keys = Vector.of(path)
    of_path = (encoding for _, encoding, _ in novelty(keys))
    return join_cells(encode(Vector.of((_VALUE, keys, value))), [*of_path, *cells])


def encode_patched(base: Value, hash: bytes, patch: bytes) -> bytes:
    """Return a LATTICE_PATCH. The base itself is named, not sent.

    Source: docs/node.md "Patches".
    """
    blob = make_blob(patch)
    top = encode(Vector.of((_PATCH, base, hash, blob)))
    return join_cells(top, [encoding for _, encoding, _ in novelty(blob)])


def encode_request(id: Value, hashes: Sequence[bytes]) -> bytes:
    """Return a DATA_REQUEST for at most `REQUEST_HASHES_MAX` hashes.

    Source: docs/node.md "Messages".
    """
    assert len(hashes) <= REQUEST_HASHES_MAX
    return encode_message(Vector.of((_REQUEST, id, *hashes)))


def encode_goodbye() -> bytes:
    """Return a GOODBYE.

    Source: docs/node.md "Messages".
    """
    return encode(Vector.of((_GOODBYE,)))


def result_cell(result: Result) -> Record:
    """Return the cell of a Result.

    Source: docs/node.md "Results": id, value, error code, log, info.
    """
    return Record(RESULT_DIGIT, [result.id, result.value, result.error, result.log, result.info])


def encode_result(result: Result) -> bytes:
    """Return a Result with all its cells.

    Raises: MissingData: the value is not complete.
    Source: docs/node.md "Results".
    """
    return encode_message(result_cell(result))


def encode_failure(id: Value, code: Keyword, text: str) -> bytes:
    """Return a Result that refuses a request.

    Source: docs/node.md "Results": on an error the value is its text.
    """
    return encode_result(Result(id, text, code))
