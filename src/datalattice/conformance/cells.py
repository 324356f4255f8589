"""Cell vectors: values, decoding, signatures, JSON (files with schema `datalattice-cells-1`).

Source: docs/conformance.md "Kinds of vectors".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from datalattice.cells import (
    Signed,
    Value,
    branch_hashes,
    decode,
    decode_message,
    encode,
    encode_message,
    from_json,
    is_embedded,
    memory_size,
    same,
    to_json,
    to_text,
    validate,
    value_hash,
)
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    expect,
)
from datalattice.conformance.notation import check_message, children_of
from datalattice.conformance.registry import Case, VectorFormat, register_format, register_kind
from datalattice.conformance.runner import listed_vectors
from datalattice.conformance.typed import build
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, DataLatticeError, MissingData, UsageError

_SCHEMA: Final = "datalattice-cells-1"

MESSAGE_SHOWN_MAX: Final = 20_480
"""Longest message that a vector holds in full."""

VALUE_FIELDS: Final = ("id", "v", "embedded", "enc", "hash", "branches", "mem", "print")
MESSAGE_FIELDS: Final = ("cells", "mclen", "mc")
SIGNED_FIELDS: Final = ("seed", "key", "sig", "msg", "valid")

FAULTS_OF_ONE_CELL: Final = ("map-tree-onechild", "map-tree-shift64")
"""Vectors marked `missing` that a decoder may also reject: the fault shows in the cell itself."""

# A cell that this implementation reads and keeps, and never writes
TAG_SIGNED_WITHOUT_KEY: Final = 0x91


def _cases(document: Fields) -> Iterable[Case]:
    found = list(listed_vectors(document))
    count = document.integer("count")
    # "A cells file states their `count`." (docs/conformance.md "How to add"), so a vector that was
    # cut out is noticed.
    if count != len(found):
        raise Mismatch(f"the file says it holds {count} vectors, but holds {len(found)}")
    return [Case(name, _kind(fields), fields) for name, fields in found]


def _kind(fields: Fields) -> str:
    """Return the kind of a vector: its field `kind`, else what its other fields show."""
    # "In the cells family the kind follows from the fields, unless `kind` names it."
    # (docs/conformance.md "Kinds of vectors"): a cell and a message have the same fields.
    if "kind" in fields:
        return str(fields["kind"])
    if "parse" in fields:
        return "json-parse"
    if "out" in fields:
        return "json-write"
    if "v" in fields:
        return "value"
    return "signature" if "valid" in fields else "(none)"


# --- values -----------------------------------------------------------------------------------


def run_value(fields: Fields) -> None:
    """Check a value vector: encoding, hash, sizes, printed form, messages, and any signature."""
    # Fields of a signature are accepted on a signed value only.
    signed = "seed" in fields or "sig" in fields
    fields.only(*VALUE_FIELDS + MESSAGE_FIELDS + (SIGNED_FIELDS if signed else ()))
    value = build(fields.need("v"))
    encoding = fields.hex("enc")
    expect("enc", encoding, encode(value))
    fields.expect("hash", value_hash(value).hex())
    fields.expect("embedded", is_embedded(value))
    fields.expect("branches", len(branch_hashes(encoding)))
    fields.expect("mem", memory_size(value))
    if "print" in fields:
        fields.expect("print", to_text(value))
    # One encoding for each value: what was read is written back as it was.
    again = decode(encoding)
    expect("enc decoded and encoded again", encoding, encode(again))
    _check_whole(fields, value)
    if validate(value):
        raise Mismatch("a complete value has missing branches")
    if signed:
        _check_signature(fields, value)


def _check_whole(fields: Fields, value: Value) -> None:
    """Check the message of a value; a value without branches has no fields about it."""
    # "First the encoding of the top cell, then each branch below it once" (docs/cells.md
    # "Messages").
    if not branch_hashes(encode(value)):
        fields.only(*set(fields) - set(MESSAGE_FIELDS))
        expect("message without branches", fields.hex("enc"), encode_message(value))
        return
    children = children_of(value)
    fields.expect("cells", 1 + len(children))
    length = fields.integer("mclen")
    expect("mclen", length, len(encode_message(value)))
    if length <= MESSAGE_SHOWN_MAX:  # of longer messages the file has the length only
        message = fields.hex("mc")
        whole = decode_message(message)
        expect("hash of mc decoded", value_hash(value).hex(), value_hash(whole).hex())
        check_message("mc", message, value)
    whole = decode_message(encode_message(value))
    if validate(whole):
        raise Mismatch("our own message is incomplete")
    expect("message decoded and written again", encode_message(value), encode_message(whole))


def _check_signature(fields: Fields, value: Value) -> None:
    if not isinstance(value, Signed):
        raise Mismatch("fields of a signature on a value that is not signed")
    pair = KeyPair(fields.hex("seed"))
    message = fields.hex("msg")
    fields.expect("key", pair.public_key)
    expect("key of the cell", pair.public_key, value.public_key)
    fields.expect("sig", value.signature)
    expect("msg", message, value.message())
    valid = fields.truth("valid")
    expect("valid", valid, value.verify())
    expect("valid after decoding", valid, _verify_decoded(encode(value)))
    # Ed25519 is deterministic: the same key and message give the same signature.
    if valid:
        expect("sig made here", value.signature, pair.sign(message))
        expect("cell signed here", encode(value), encode(Signed.sign(pair, value.value)))


def _verify_decoded(encoding: bytes) -> bool:
    cell = decode(encoding)
    return isinstance(cell, Signed) and cell.verify()


def run_signature(fields: Fields) -> None:
    """Check a signed cell given only by its encoding, normally one whose signature is wrong."""
    fields.only("id", "enc", "hash", "valid")
    encoding = fields.hex("enc")
    cell = decode(encoding)
    if not isinstance(cell, Signed):
        raise Mismatch("enc is not a signed cell")
    expect("enc written again", encoding, encode(cell))
    fields.expect("hash", value_hash(cell).hex())
    fields.expect("valid", cell.verify())


# --- decoding ---------------------------------------------------------------------------------


def run_cell(fields: Fields) -> None:
    """Check what the decoder says about the bytes of one cell."""
    _run_decode(fields, message=False)


def run_message(fields: Fields) -> None:
    """Check what the decoder says about the bytes of a message."""
    _run_decode(fields, message=True)


def _run_decode(fields: Fields, *, message: bool) -> None:
    fields.only("id", "kind", "hex", "decode", "why", "validate", "reencode")
    data = fields.hex("hex")
    verdict = fields.text("decode")
    wanted = {"reject": "reject", "partial": "partial"}.get(verdict)
    if wanted is None:
        expect("decode", "accept", verdict)
        wanted = fields.text("validate")
    else:
        # What is not accepted as a whole can be neither validated nor written again.
        fields.only(*set(fields) - {"validate", "reencode"})
    got, value = _decode_whole(data, message=message)
    # A fault inside one cell may be found at once; one between cells needs `validate`.
    allowed = {
        "reject": {"reject"},
        "partial": {"missing"},
        "ok": {"ok"},
        "invalid": {"reject", "invalid"},
        "missing": {"missing"},
    }.get(wanted)
    if allowed is None:
        raise Mismatch(f"validate: expected ok, invalid or missing, got {wanted!r}")
    if fields.get("id") in FAULTS_OF_ONE_CELL:
        allowed = {*allowed, "reject"}
    if got not in allowed:
        raise Mismatch(f"expected {wanted}, got {got}")
    if verdict == "accept" and got != "reject":
        _check_written_again(fields, data, value, message=message)


def _decode_whole(data: bytes, *, message: bool) -> tuple[str, Value]:
    """Return what decoding and validation say (reject, invalid, missing, ok), and the value."""
    try:
        value = decode_message(data) if message else decode(data)
    except BadFormat:
        return "reject", None
    except MissingData as missing:
        return ("missing" if missing.hashes else "missing without hashes"), None
    try:
        hashes = validate(value)
    except BadFormat:
        return "invalid", value
    except MissingData as missing:
        hashes = list(missing.hashes)
    return ("missing" if hashes else "ok"), value


def _check_written_again(fields: Fields, data: bytes, value: Value, *, message: bool) -> None:
    again = fields.text("reencode")
    # Tag 91: "read and kept, never verified, never written here" (docs/cells.md "Encoding table").
    if again != "same":
        if not again.startswith("error:"):
            raise Mismatch(f"reencode: expected same or an error, got {again!r}")
        expect("tag of what cannot be written", TAG_SIGNED_WITHOUT_KEY, data[0])
        try:
            encode(value)
        except DataLatticeError:
            return  # a refusal to write it is right, too
        expect("written again", data, encode(value))
        return
    if not message:
        expect("written again", data, encode(value))
    # Only the top cell: the order of the branches behind it is free.
    elif not data.startswith(encode(value)):
        raise Mismatch("the top cell of the message is not written again as it was")


# --- JSON -------------------------------------------------------------------------------------


def run_json_parse(fields: Fields) -> None:
    """Check JSON text: refused, or read to a value and written back."""
    text = fields.text("parse")
    if "result" in fields:
        fields.only("id", "parse", "result")
        expect("result", "reject", fields.text("result"))
        try:
            value = from_json(text)
        except (BadFormat, UsageError):
            return  # refused, as recorded
        raise Mismatch(f"expected a refusal, got {to_text(value)}")
    fields.only("id", "parse", "enc", "out")
    value = from_json(text)
    fields.expect("enc", encode(value))
    out = fields.text("out")
    expect("out", out, to_json(value))
    # `same`, since True, 1 and 1.0 are equal in Python and three values here.
    if not same(from_json(out), value):
        raise Mismatch("the text written back reads as another value")


def run_json_write(fields: Fields) -> None:
    """Check the JSON and JSON5 text of a value."""
    fields.only("id", "v", "out", "out5")
    value = build(fields.need("v"))
    fields.expect("out", to_json(value))
    fields.expect("out5", to_json(value, json5=True))


register_format(VectorFormat(_SCHEMA, lambda document: document.get("schema") == _SCHEMA, _cases))
register_kind("value", run_value)
register_kind("signature", run_signature)
register_kind("cell", run_cell)
register_kind("message", run_message)
register_kind("json-parse", run_json_parse)
register_kind("json-write", run_json_write)
