"""Assets: metadata text, its hash as the asset's id, and the content that it declares.

The id of an asset is the SHA-256 of its metadata text, byte for byte, so one more space makes
another asset. Two venues with the same text have the same asset.

Source: COG-4 "Content addressing", "Assets"; docs/grid.md "What is checked", "Assets", "Content";
    COG-5 "Metadata"; COG-2 "Asset references"; COG-6 "Content".
"""

from __future__ import annotations

import hashlib
from typing import Final

from datalattice.cells import Blob, Map, Text, Value, Work, from_json, make_text
from datalattice.errors import BadFormat, UsageError

SHA256_BYTES: Final = 32  # "SHA-256 over the UTF-8 bytes of the exact metadata text"
METADATA: Final = "metadata"
CONTENT: Final = "content"
SHA256: Final = "sha256"

CONTENT_BYTES_MAX: Final = 64 << 20
"""Most bytes of one content or metadata text in the lattice; longer ones are rejected.

A few cells can encode any number of bytes, and every receiver has to hash each of them.
"""

CONTENT_READ_BYTES: Final = 1 << 16
"""Bytes of a long value hashed per step."""


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(data).digest()


def content_hash(value: Value, work: Work | None = None) -> bytes | None:
    """Return the SHA-256 of a Blob, or of the UTF-8 bytes of a String; otherwise None.

    A value of more than `CONTENT_BYTES_MAX` bytes is not read and also gives None.

    Raises: WorkExceeded: `work`, if given, is used up.
    """
    if work is not None:
        size = len(value) if isinstance(value, (bytes, str)) else 0
        # Charged before it is hashed: a peer chose the size.
        work.spend(work.limits.hashed + size // work.limits.hashed_bytes)
    if isinstance(value, bytes):
        return sha256(value)
    if isinstance(value, str):
        # A text from JSON may hold surrogates.
        return sha256(value.encode("utf-8", "surrogateescape"))
    if not isinstance(value, (Blob, Text)) or value.byte_length() > CONTENT_BYTES_MAX:
        return None
    digest = hashlib.sha256()
    for start in range(0, value.byte_length(), CONTENT_READ_BYTES):
        part = value.read(start, start + CONTENT_READ_BYTES, work)
        if work is not None:
            work.spend(len(part) // work.limits.hashed_bytes)
        digest.update(part)
    return digest.digest()


def read_metadata(text: str | bytes) -> Map:
    """Return the JSON object in a metadata text.

    Raises: UsageError: it is not one JSON object, in UTF-8 without a byte-order mark, of at most
            `CONTENT_BYTES_MAX` bytes.
    """
    given: object = text
    if not isinstance(given, (str, bytes)):
        raise UsageError(f"metadata is JSON text, got {type(given).__name__}")
    if len(given) > CONTENT_BYTES_MAX:  # refused by its length, before it is parsed
        raise UsageError(f"metadata has at most {CONTENT_BYTES_MAX} bytes, got {len(given)}")
    try:
        value = from_json(given)
    except BadFormat as error:
        raise UsageError(f"metadata is one JSON object: {error}") from None
    if not isinstance(value, Map):  # "Metadata must parse as one JSON object"
        raise UsageError(f"metadata is one JSON object, got another JSON value: {text!r:.80}")
    return value


def metadata_bytes(text: str | bytes) -> bytes:
    """Return the bytes of a valid metadata text.

    Raises: UsageError: `text` is not valid metadata.
    """
    read_metadata(text)
    raw = text if isinstance(text, bytes) else text.encode()
    if len(raw) > CONTENT_BYTES_MAX:  # in UTF-8 it may be longer than in characters
        raise UsageError(f"metadata has at most {CONTENT_BYTES_MAX} bytes, got {len(raw)}")
    return raw


def asset_id(text: str | bytes) -> bytes:
    """Return the id of the asset with this metadata text.

    Raises: UsageError: `text` is not valid metadata.
    """
    return sha256(metadata_bytes(text))


def asset_record(text: str | bytes) -> tuple[bytes, Map, Value]:
    """Return the id of an asset, its record, and its text as a cell.

    Raises: UsageError: `text` is not valid metadata.
    """
    raw = metadata_bytes(text)
    cell = make_text(raw.decode())
    return sha256(raw), Map.of({METADATA: cell}), cell


def record_text(record: Value) -> str | None:
    """Return the metadata text of an asset record, None if it has none."""
    text = record.get(METADATA) if isinstance(record, Map) else None
    return str(text) if isinstance(text, (str, Text)) else None


def parse_hex(text: object) -> bytes | None:
    """Return the bytes of a text in hex, with or without 0x; None if it is invalid."""
    if not isinstance(text, str):
        return None
    # "Readers accept an optional 0x or 0X and either case, and nothing else": `fromhex` alone would
    # also take spaces.
    digits = text[2:] if text[:2] in {"0x", "0X"} else text
    if len(digits) % 2 or not all(c in "0123456789abcdefABCDEF" for c in digits):
        return None
    return bytes.fromhex(digits)


def parse_hash(text: object) -> bytes | None:
    """Return the 32 bytes of a hash in hex, with or without 0x; None if it is invalid."""
    found = parse_hex(text)
    return found if found is not None and len(found) == SHA256_BYTES else None


def parse_asset_id(given: object) -> bytes:
    """Return an asset id from its bytes or text: hex, `a/<hex>` or `<venue DID>/a/<hex>`.

    Raises: UsageError: it has another form.
    """
    if isinstance(given, bytes) and len(given) == SHA256_BYTES:
        return given
    if isinstance(given, str):
        before, slash, last = given.rpartition("/")
        is_path = before.removeprefix("/") == "a" or (
            before.startswith("did:") and before.endswith("/a")
        )
        # "everything after the last / is the id"
        found = parse_hash(last) if is_path or not slash else None
        if found is not None:
            return found
    raise UsageError(
        "an asset id is 64 hex digits (0x may stand before them), a/<id> or <venue DID>/a/<id>, "
        f"got {given!r}"
    )


def declared_hash(metadata: Map) -> bytes:
    """Return the SHA-256 that metadata declares of its content.

    Raises: UsageError: it declares no content or no valid hash.
    """
    content = metadata.get(CONTENT)
    if not isinstance(content, Map):
        raise UsageError("the metadata declares no content: it has no object 'content'")
    text = content.get(SHA256)
    found = parse_hash(text)
    if found is None:
        raise UsageError(f"'content.sha256' of the metadata is not 64 hex digits: {text!r:.80}")
    return found


def check_content(metadata: Map, data: bytes) -> bytes:
    """Return the SHA-256 of content that matches the metadata.

    Raises: UsageError: the hash differs from the declared one.
    """
    wanted, found = declared_hash(metadata), sha256(data)
    if wanted != found:
        raise UsageError(
            f"the content's SHA-256 is {found.hex()}; its metadata declares {wanted.hex()}"
        )
    return found
