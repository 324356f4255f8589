"""Intention: one signed operation of one author, its canonical bytes and what is refused.

    signed = Intention(author, stamp, store_id, store_prev, deps, payload).sign(key)
    signed.hash, signed.encode()
    admit([envelope], store_id)         # checks what others sent, before any transaction

Layout (Borsh, little-endian): author 32, wall time u64, counter u32, store id 16, store_prev 32,
condition variant u8 = 0, count u32, that many hashes of 32 in ascending order, length u32, payload.
The name of an intention is the BLAKE3 hash of these bytes; its author signs that hash. The envelope
is protobuf: field 1 the bytes, field 2 the signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from datalattice.clock import Hlc
from datalattice.crypto import (
    BLAKE3,
    SIGNATURE_BYTES,
    KeyPair,
    blake3,
    verification,
    verify_strict,
)
from datalattice.cursors import collector_paused
from datalattice.errors import BadFormat, PeerError, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import LENGTH, read_fields, read_varint, varint
from datalattice.weaver.storeid import STORE_ID_BYTES

try:
    from datalattice__intentions import decode_many as _decode_many
except ImportError:  # not compiled

    def _decode_many(
        envelopes: list[bytes],
        _store_id: bytes,
        _payload_max: int,
        _deps_max: int,
        _blake3: Callable[[bytes], object],
        _kinds: tuple[type, type, type],
        /,
    ) -> list[SignedIntention | None]:
        return [None] * len(envelopes)  # None: `_checked` decodes it


ZERO_HASH: Final = bytes(HASH_BYTES)
"""The hash that stands for "no predecessor"."""

# author, wall time, counter, store id, store_prev, variant of the condition, number of hashes
_HEAD: Final = Struct("<32sQI16s32sBI")
_LENGTH: Final = Struct("<I")
_FIXED_BYTES: Final = _HEAD.size + _LENGTH.size

_BORSH: Final = 1
_SIGNATURE: Final = 2
"""Fields of the envelope."""

_ENVELOPE_SLACK: Final = 32
"""Tags and lengths of an envelope, with room for a writer that pads its varints."""


def write_envelope(signed: bytes, signature: bytes) -> bytes:
    """Return the encoding of a message whose field 1 was signed; field 2 is the signature."""
    return b"".join((b"\x0a", varint(len(signed)), signed, b"\x12@", signature))


def read_envelope(envelope: bytes) -> tuple[bytes, bytes] | None:
    """Return both fields of what `write_envelope` wrote; None for any other encoding."""
    # Without the general decoder, which costs more than the hash.
    if envelope[:1] != b"\x0a":
        return None
    length, at = read_varint(envelope, 1)
    end = at + length
    if len(envelope) != end + 2 + SIGNATURE_BYTES or envelope[end : end + 2] != b"\x12@":
        return None
    return envelope[at:end], envelope[end + 2 :]


def envelope_hash(envelope: bytes) -> bytes:
    """Return the hash of the intention in an envelope, which `admit` may still refuse.

    Raises: BadFormat: the bytes are not an envelope.
    """
    canonical = read_envelope(envelope)
    return SignedIntention.decode(envelope).hash if canonical is None else blake3(canonical[0])


class LogLimits(NamedTuple):
    """Bounds of one store's log."""

    payload_bytes: int = 1 << 20  # "accept up to 1 MiB"
    """Longest payload that is accepted."""
    deps: int = 1024  # "condition hashes … 1024"
    """Most hashes in a condition."""
    own_payload_bytes: int = 1 << 20
    """Longest payload that is written here; may be lower than `payload_bytes`."""
    # Waiting intentions of strangers are bounded twice: many small ones, and few large ones.
    floating_entries: int = 65_536
    """Most intentions that wait for something. A peer can send any number that never wake."""
    floating_bytes: int = 256 << 20
    """Most bytes of those intentions, signatures included."""


LOG_LIMITS: Final = LogLimits()


class PayloadTooLarge(UsageError):
    """A payload to be written is longer than the limit."""

    code = "payload-too-large"

    def __init__(self, size: int, max: int) -> None:
        super().__init__(f"a payload has at most {max} bytes here, got {size}")
        self.size = size
        self.max = max


class TooManyCausalDeps(UsageError):
    """An intention to be written depends on more hashes than the limit."""

    code = "too-many-deps"

    def __init__(self, count: int, max: int) -> None:
        super().__init__(f"an intention depends on at most {max} hashes, got {count}")
        self.count = count
        self.max = max


class IntentionRefused(PeerError):
    """A received intention is refused, and with it the call that brought it.

    index: its position in the call. stage: "decode", "canonical", "limit", "store_id" or
    "signature".
    """

    code = "intention-refused"

    def __init__(self, index: int, stage: str, text: str) -> None:
        super().__init__(f"intention {index}: {text} ({stage})")
        self.index = index
        self.stage = stage


class Intention(NamedTuple):
    """What an author signs.

    store_prev: the author's intention before this one in the store, ZERO for its first.
    deps: hashes that must be witnessed before this one, ascending. payload: empty is an ack.
    """

    author: bytes
    stamp: Hlc
    store_id: bytes
    store_prev: bytes
    deps: tuple[bytes, ...]
    payload: bytes

    @classmethod
    def build(
        cls,
        author: bytes,
        stamp: Hlc,
        store_id: bytes,
        store_prev: bytes,
        deps: Iterable[bytes],
        payload: bytes,
    ) -> Intention:
        """Return an intention with its dependencies in order; equal ones are kept."""
        # "Hashes are sorted ascending … duplicates are kept"
        return cls(author, stamp, store_id, store_prev, tuple(sorted(deps)), payload)

    def encode(self) -> bytes:
        """Return the Borsh bytes.

        Raises: UsageError: an id or hash has a wrong length, or the stamp does not fit its fields.
        """
        fixed = (self.author, self.store_prev, *self.deps)
        if len(self.store_id) != STORE_ID_BYTES or any(len(x) != HASH_BYTES for x in fixed):
            # An author signs only what every reader can decode.
            raise UsageError("author, store_prev and dependencies have 32 bytes, a store id has 16")
        wall, counter = self.stamp
        # Struct would raise an error without a name.
        if not (0 <= wall < 2**64 and 0 <= counter < 2**32):
            raise UsageError(f"the stamp {self.stamp} does not fit in 64 and 32 bits")
        deps = self.deps
        head = _HEAD.pack(self.author, wall, counter, self.store_id, self.store_prev, 0, len(deps))
        return b"".join((head, *deps, _LENGTH.pack(len(self.payload)), self.payload))

    @classmethod
    def decode(cls, data: bytes) -> Intention:
        """Return the intention of exactly these bytes; the order of the condition is not checked.

        Raises: BadFormat: they are not one intention.
        """
        if len(data) < _FIXED_BYTES:
            raise BadFormat(f"an intention has at least {_FIXED_BYTES} bytes, got {len(data)}")
        author, wall, counter, store_id, store_prev, variant, count = _HEAD.unpack_from(data)
        # "0x00 = V1; other values are reserved and refused": they may mean another condition.
        if variant != 0:
            raise BadFormat(f"the condition has variant {variant}; known: 0")
        at = _HEAD.size + HASH_BYTES * count
        # "lengths beyond the buffer" are refused before anything is sliced.
        if at + _LENGTH.size > len(data):
            raise BadFormat(f"{count} condition hashes are longer than the intention")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        # Bytes behind the payload would give one intention any number of names.
        if at + length != len(data):
            raise BadFormat(f"a payload of {length} bytes, but {len(data) - at} bytes are left")
        # A list comprehension: faster than a generator when compiled.
        deps = tuple([data[i : i + HASH_BYTES] for i in range(_HEAD.size, at - 4, HASH_BYTES)])
        return cls(author, Hlc(wall, counter), store_id, store_prev, deps, data[at:])

    def sign(self, key: KeyPair) -> SignedIntention:
        """Return this intention signed by its author.

        Raises: UsageError: `key` is not the author's.
        """
        if key.public_key != self.author:
            raise UsageError("an intention is signed with the key of its author")
        unsigned = self.unsigned()
        # Whatever is signed is signed as the hash of its bytes, never as the bytes.
        return unsigned._replace(signature=key.sign(unsigned.hash))

    def unsigned(self) -> SignedIntention:
        """Return this intention with its bytes and hash, and an empty signature.

        Raises: as `encode`.
        """
        borsh = self.encode()
        return SignedIntention(self, borsh, b"", blake3(borsh))


class SignedIntention(NamedTuple):
    """An intention with its bytes, as signed, and its hash."""

    intention: Intention
    borsh: bytes
    signature: bytes
    hash: bytes

    @classmethod
    def of(cls, borsh: bytes, signature: bytes) -> SignedIntention:
        """Return the intention of these bytes; the signature is not verified.

        Raises: BadFormat: they are not one intention, or the signature is not 64 bytes.
        """
        if len(signature) != SIGNATURE_BYTES:  # before the hash is computed
            raise BadFormat(f"a signature has {SIGNATURE_BYTES} bytes, got {len(signature)}")
        return cls(Intention.decode(borsh), borsh, signature, blake3(borsh))

    @classmethod
    def decode(cls, envelope: bytes) -> SignedIntention:
        """Return the intention in an envelope; the signature is not verified.

        Raises: BadFormat: the bytes are not an envelope of one intention.
        """
        canonical = read_envelope(envelope)
        if canonical is not None:
            return cls.of(*canonical)
        # By hand: mypyc takes no class with parameters, as messages are.
        parts = {_BORSH: b"", _SIGNATURE: b""}
        # "the Borsh bytes travel unchanged": unknown fields are skipped, known ones kept as bytes.
        for number, wire, value in read_fields(envelope):
            if number in parts:
                if wire != LENGTH or not isinstance(value, bytes):
                    raise BadFormat(f"envelope: field {number} has wire type {wire}, not {LENGTH}")
                parts[number] = value
        return cls.of(parts[_BORSH], parts[_SIGNATURE])

    def encode(self) -> bytes:
        """Return the envelope: the bytes as they were signed, and the signature."""
        return write_envelope(self.borsh, self.signature)

    @property
    def size(self) -> int:
        """Bytes counted against the bound of waiting intentions."""
        return len(self.borsh) + SIGNATURE_BYTES

    def verify(self) -> bool:
        """Return whether the author signed it: strictly, so that no second signature exists."""
        return verify_strict(self.intention.author, self.signature, self.hash)


def admit(
    envelopes: Sequence[bytes], store_id: bytes, limits: LogLimits = LOG_LIMITS
) -> list[SignedIntention]:
    """Return the intentions of received envelopes once every one has passed every check.

    Verifies signatures, most of the cost of an ingest: call it outside of any transaction.

    Raises: IntentionRefused: the first one that fails a check, signatures after all others; none
            of the call may be kept.
    """
    return admission(envelopes, store_id, limits)()


def admission(
    envelopes: Sequence[bytes], store_id: bytes, limits: LogLimits = LOG_LIMITS
) -> Callable[[], list[SignedIntention]]:
    """Check received envelopes but for their signatures, and begin to verify these.

    Returns: a function that waits for that, and returns the intentions; call it once.
    Raises: IntentionRefused: as `admit`; for a signature the returned function raises it.
    """
    longest = (
        _FIXED_BYTES
        + limits.payload_bytes
        + HASH_BYTES * limits.deps
        + SIGNATURE_BYTES
        + _ENVELOPE_SLACK
    )
    with collector_paused:  # no cycles are made
        read = _decode_many(
            list(envelopes),
            store_id,
            limits.payload_bytes,
            limits.deps,
            BLAKE3,
            (Hlc, Intention, SignedIntention),
        )
        found = [
            _checked(index, envelopes[index], store_id, limits, longest) if one is None else one
            for index, one in enumerate(read)
        ]
        signed = [(one.intention.author, one.signature, one.hash) for one in found]
    first_unverified = verification(signed)

    def finish() -> list[SignedIntention]:
        # "any failure refuses the whole call and inserts nothing"
        refused = first_unverified()
        if refused is not None:
            raise IntentionRefused(refused, "signature", "the signature does not verify")
        return found

    return finish


def _checked(
    index: int, envelope: bytes, store_id: bytes, limits: LogLimits, longest: int
) -> SignedIntention:
    # Before anything is decoded: a frame holds far more than the longest intention.
    if len(envelope) > longest:
        raise IntentionRefused(
            index, "limit", f"an envelope of {len(envelope)} bytes, {longest} at most"
        )
    try:
        signed = SignedIntention.decode(envelope)
    except BadFormat as error:
        raise IntentionRefused(index, "decode", str(error)) from error
    intention = signed.intention
    deps = intention.deps
    if len(deps) > limits.deps:
        raise IntentionRefused(
            index, "limit", f"it depends on {len(deps)} hashes, {limits.deps} at most"
        )
    if len(intention.payload) > limits.payload_bytes:
        raise IntentionRefused(
            index,
            "limit",
            f"a payload of {len(intention.payload)} bytes, {limits.payload_bytes} at most",
        )
    # Two orders of one condition would be two names of one intention. Equal neighbours are allowed.
    if len(deps) > 1 and any(deps[i] > deps[i + 1] for i in range(len(deps) - 1)):
        raise IntentionRefused(index, "canonical", "the condition is not in ascending order")
    if intention.store_id != store_id:
        raise IntentionRefused(
            index, "store_id", f"it is for store {intention.store_id.hex()}, not {store_id.hex()}"
        )
    return signed
