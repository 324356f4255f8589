"""Lattice messages: the messages of two nodes, as cells.

    [:PING id ...]              Result(id, "PONG" or a clock)
    [:LQ id path ...]           Result(id, value at the path, with its cells)
    [:LV path value]            nothing
    [:LP base hash patch]       nothing; the value with this hash, as a patch of another one
    [:DR id hash ...]           Result(id, [cell or nil ...])
    [:CH id signed]             Result(id, signed); both prove the identity of their signer
    [:BYE ...]                  nothing
    Result                      record `dd` of id, value, error, log, info

A payload is one cell followed by branches that it refers to. The first element decides the kind.
Any other cell is `Unknown`, which is not an error: the sender may speak a later version of the
protocol.

Everything here is a function of bytes; the conversation decides whether a message is welcome.

Source: docs/protocol.md "Messages", "Results", "Identity", "Queries", "Patches".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    join_cells,
    make_blob,
    novelty,
)
from datalattice.errors import BadFormat, MissingData, ProtocolViolation
from datalattice.limits import HASH_BYTES, MESSAGE_BYTES_MAX

REQUEST_HASHES_MAX: Final = 254
"""Most hashes in one DATA_REQUEST."""

PATH_KEYS_MAX: Final = 1_000
"""Most keys of a path. A vector of equal parts can have any length in a few hundred bytes."""

EXTRA_MAX: Final = 16
"""Most extra elements of a PING or LATTICE_QUERY that are read."""

PATCH_BYTES_MAX: Final = 8_000_000
"""Most bytes of a patch, and of the cells made from it. Larger differences are not sent as
patches."""

STATEMENT_MIN: Final = 2
STATEMENT_MAX: Final = 3
"""Elements that a challenge and its answer sign: a token, a key, and an optional context."""

RESULT_DIGIT: Final = 0xD
RESULT_FIELDS: Final = 5


class ErrorCode:
    """Error keywords of the Results that our nodes send."""

    FORMAT: Final = Keyword("FORMAT")
    ARGUMENT: Final = Keyword("ARGUMENT")
    TRUST: Final = Keyword("TRUST")
    MISSING: Final = Keyword("MISSING")
    LOAD: Final = Keyword("LOAD")


@dataclass(frozen=True, slots=True)
class Ping:
    """A PING: are you there? `extra` holds what follows the id."""

    id: Value
    extra: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """A LATTICE_QUERY: what is at `path`? `extra` holds what follows the path.

    fault: why it cannot be answered.
    """

    id: Value
    path: tuple[Value, ...] = ()
    extra: tuple[Value, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Announcement:
    """A LATTICE_VALUE: the sender has this at `path`.

    absent: the hash of a value whose own cell was not sent; `value` is None then.
    """

    path: tuple[Value, ...]
    value: Value
    absent: bytes | None = None


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A DATA_REQUEST for the cells with these hashes. `fault`: why it cannot be answered."""

    id: Value
    hashes: tuple[bytes, ...]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """An answer to the request with this id.

    value:  the answer, or the error's text if `error` is set.
    absent: the hash of a value whose own cell was not sent; `value` is None then.
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

    terms: what `signed` states: a token, the wanted key or None, and an optional context.
    fault: why it cannot be answered; `signed` is None then.
    """

    id: Value
    signed: Signed | None
    terms: tuple[Value, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Patched:
    """A LATTICE_PATCH: the sender has the value with this hash; `patch` makes it from `base`.

    base, absent: the base value, or its hash if its cell was not sent.
    """

    hash: bytes
    patch: bytes | Blob
    base: Value
    absent: bytes | None = None


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A GOODBYE: the sender will close."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message outside this protocol, or one that lacks what an answer needs."""

    value: Value
    reason: str


LatticeMessage = (
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
) -> tuple[LatticeMessage, MessageCells]:
    """Return (message, the cells that came with it).

    loader:  has the other cells.
    ordered: as for `decode_parts`.
    Raises: BadFormat: not a canonical message, or cells of its first level are missing.
    """
    # The codec checks canonical form and every hash: past this line cells can be trusted.
    value, parts = decode_parts(payload, loader, limit, ordered=ordered)
    try:
        return _read(value), parts
    except MissingData as error:
        # The kind is inferred from the first level, so all of that must be here.
        raise BadFormat("a message lacks cells of its own") from error


def _read(value: Value) -> LatticeMessage:
    # "Record `d` of five" is a Result, whatever its fields; all other kinds begin with a keyword.
    if isinstance(value, Record):
        return _read_result(value)
    # "The kind is inferred from the decoded payload. There are no numbers on the wire."
    if not isinstance(value, Vector) or not len(value):
        return Unknown(value, "not a vector that starts with a keyword")
    reader = _READERS.get(_name(value[0]))
    return Unknown(value, "an unknown kind of message") if reader is None else reader(value)


def _name(value: Value) -> str:
    return value.name if isinstance(value, Keyword) else ""


def _read_result(value: Record) -> LatticeMessage:
    # Record dd: id, value, error, log, info.
    if value.digit != RESULT_DIGIT or len(value) != RESULT_FIELDS:
        return Unknown(value, "a record that is not a Result")
    # The answer's own cell may be missing: then its hash is known, and the cell is asked for.
    answer, absent = _element(value, 1)
    error = value[2]
    # "On success the error is nil. Otherwise the value is a text and the error one of these
    # Keywords."
    if error is not None and not isinstance(error, Keyword):
        return Unknown(value, "a Result whose error is not a keyword")
    return Result(value[0], answer, error, value[3], value[4], absent)


def _element(cell: Vector | Record, position: int) -> tuple[Value, bytes | None]:
    """Return (element, None), or (None, its hash) if its cell is missing."""
    try:
        return cell[position], None
    except MissingData as error:
        return None, error.hashes[0]


def _id(message: Vector) -> Value:
    id = message[1]
    novelty(id)  # an answer repeats the id, so all its cells must be here
    return id


def _read_ping(value: Vector) -> LatticeMessage:
    if len(value) < 2:
        return Unknown(value, "a PING without an id")  # without an id no answer is possible
    return Ping(_id(value), tuple(value.iter_range(2, 2 + EXTRA_MAX)))


def _read_query(value: Vector) -> LatticeMessage:
    if len(value) < 2:
        return Unknown(value, "a LATTICE_QUERY without an id")
    path = value[2] if len(value) > 2 else None
    # As the reference: any path other than a vector means the root.
    if isinstance(path, Vector) and len(path) > PATH_KEYS_MAX:
        fault = f"a path of {len(path)} keys, at most {PATH_KEYS_MAX} are followed"
        return Query(_id(value), fault=fault)
    keys = tuple(path) if isinstance(path, Vector) else ()
    return Query(_id(value), keys, tuple(value.iter_range(3, 3 + EXTRA_MAX)))


def _read_value(value: Vector) -> LatticeMessage:
    # `[:LV path value]`: the value's own cell may be missing, for example in a root-only message.
    carried, absent = _element(value, 2) if len(value) > 2 else (None, None)
    if carried is None and absent is None:
        # "Value nil or missing: ignored."
        return Unknown(value, "a LATTICE_VALUE without a value")
    path = value[1]
    if path is None:
        return Announcement((), carried, absent)
    if isinstance(path, Vector) and len(path) > PATH_KEYS_MAX:
        return Unknown(value, f"a LATTICE_VALUE with a path of more than {PATH_KEYS_MAX} keys")
    # As the reference: nil is the root, and any other value than a vector is a path of one key.
    keys = tuple(path) if isinstance(path, Vector) else (path,)
    return Announcement(keys, carried, absent)


def _read_patch(value: Vector) -> LatticeMessage:
    if len(value) != 4:  # [:LP base hash patch]
        return Unknown(value, "a LATTICE_PATCH that is not [:LP base hash patch]")
    base, absent = _element(value, 1)
    hash, patch = value[2], value[3]
    # [:LP base hash patch]: the base may be absent, hash and patch must have come along.
    if not isinstance(hash, bytes) or len(hash) != HASH_BYTES:
        return Unknown(value, f"a LATTICE_PATCH without a hash of {HASH_BYTES} bytes")
    if not isinstance(patch, (bytes, Blob)):
        return Unknown(value, "a LATTICE_PATCH whose patch is no blob")
    # "A patch, and the cells that it makes: 8,000,000 bytes each" (docs/protocol.md, Limits).
    if len(patch) > PATCH_BYTES_MAX:
        return Unknown(value, f"a LATTICE_PATCH of more than {PATCH_BYTES_MAX} bytes")
    return Patched(hash, patch, base, absent)


def _read_request(value: Vector) -> LatticeMessage:
    if len(value) < 2:
        return Unknown(value, "a DATA_REQUEST without an id")
    id = _id(value)
    count = len(value) - 2
    # Counted before any element is read: a vector of equal parts can be long in few bytes.
    if count > REQUEST_HASHES_MAX:
        fault = f"{count} hashes requested, at most {REQUEST_HASHES_MAX} are answered"
        return DataRequest(id, (), fault)
    hashes: list[bytes] = []
    for element in value.iter_range(2, len(value)):
        # "A malformed DATA_REQUEST" gets `:ARGUMENT`, so the id is kept and the fault named.
        if not isinstance(element, bytes) or len(element) != HASH_BYTES:
            return DataRequest(id, (), f"a hash is a blob of {HASH_BYTES} bytes")
        hashes.append(element)
    return DataRequest(id, tuple(hashes))


def _read_challenge(value: Vector) -> LatticeMessage:
    if len(value) < 2:
        return Unknown(value, "a CHALLENGE without an id")
    id = _id(value)
    # Without signed data there is nothing to answer but `:FORMAT`.
    if len(value) < 3:
        return Challenge(id, None, (), "a challenge is [:CH id signed]")
    try:
        signed, terms = read_statement(_element(value, 2)[0])
    except ProtocolViolation as error:
        return Challenge(id, None, (), f"in [:CH id signed], signed is {error}")
    return Challenge(id, signed, terms)


def read_statement(signed: Value) -> tuple[Signed, tuple[Value, ...]]:
    """Return signed data and the two or three values it states.

    Raises: ProtocolViolation: another form, or cells are missing. The text says what it must be.
    """
    try:
        stated = signed.value if isinstance(signed, Signed) else None
        if not isinstance(signed, Signed) or not isinstance(stated, Vector):
            raise ProtocolViolation("signed data of a vector")
        # "[token wanted-key context?]": no longer vector is ever signed for a stranger.
        if not STATEMENT_MIN <= len(stated) <= STATEMENT_MAX:
            raise ProtocolViolation("signed data of a vector of two or three elements")
        return signed, tuple(stated)
    except MissingData as error:
        raise ProtocolViolation("complete, with all its cells") from error


_READERS: Final[dict[str, Callable[[Vector], LatticeMessage]]] = {
    "PING": _read_ping,
    "LQ": _read_query,
    "LV": _read_value,
    "LP": _read_patch,
    "DR": _read_request,
    "CH": _read_challenge,
    "BYE": lambda _value: Goodbye(),
}


# --- writing ------------------------------------------------------------------------------------


def encode_ping(id: Value, *extra: Value) -> bytes:
    """Return a PING. Nodes ignore extra elements that they do not know."""
    return encode_message(Vector.of((_PING, id, *extra)))


def encode_query(id: Value, path: Sequence[Value], *extra: Value) -> bytes:
    """Return a LATTICE_QUERY."""
    return encode_message(Vector.of((_QUERY, id, Vector.of(path), *extra)))


def encode_announcement(path: Sequence[Value], value: Value, branches: Iterable[bytes]) -> bytes:
    """Return a LATTICE_VALUE with only these branches, even if the value has more cells.

    Shapes: branches: the encodings to send, with the value's own cell unless it is embedded or
            stays behind.
    """
    # "The receiver looks them up in its store, and asks for those that it lacks."
    return join_cells(encode(Vector.of((_VALUE, Vector.of(path), value))), branches)


def encode_complete(path: Sequence[Value], value: Value, cells: Iterable[bytes]) -> bytes:
    """Return a LATTICE_VALUE that is complete in itself, as plain peers need it.

    Shapes: cells: the encodings at and below the value that are not embedded.
    """
    keys = Vector.of(path)
    # A plain peer fetches nothing, not even the cells of a long path.
    of_path = (encoding for _, encoding, _ in novelty(keys))
    return join_cells(encode(Vector.of((_VALUE, keys, value))), [*of_path, *cells])


def encode_patched(base: Value, hash: bytes, patch: bytes) -> bytes:
    """Return a LATTICE_PATCH. It names the base without sending its cells."""
    # A patch longer than one cell is a blob of several cells: all are sent with it.
    blob = make_blob(patch)
    top = encode(Vector.of((_PATCH, base, hash, blob)))
    return join_cells(top, [encoding for _, encoding, _ in novelty(blob)])


def encode_request(id: Value, hashes: Sequence[bytes]) -> bytes:
    """Return a DATA_REQUEST for at most `REQUEST_HASHES_MAX` hashes."""
    # "Give me these cells, at most 254": the receiver refuses a longer request as a whole.
    assert len(hashes) <= REQUEST_HASHES_MAX
    return encode_message(Vector.of((_REQUEST, id, *hashes)))


def encode_goodbye() -> bytes:
    """Return a GOODBYE."""
    return encode(Vector.of((_GOODBYE,)))


def result_cell(result: Result) -> Record:
    """Return the cell of a Result."""
    return Record(RESULT_DIGIT, [result.id, result.value, result.error, result.log, result.info])


def encode_result(result: Result) -> bytes:
    """Return a Result with all its cells.

    Raises: MissingData: the value is not complete.
    """
    return encode_message(result_cell(result))


def encode_failure(id: Value, code: Keyword, text: str) -> bytes:
    """Return a Result that refuses a request: its value is the error's text."""
    return encode_result(Result(id, text, code))
