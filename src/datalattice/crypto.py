"""Crypto: hashes (SHA3-256, BLAKE3), Ed25519 key pairs and the source of randomness.

A 32-byte public key serves as owner, author and node id. Signing is deterministic (RFC 8032), so
all nodes of one owner compute the same signature for the same value.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Protocol, Self

from blake3 import blake3 as _blake3
from nacl import _sodium, bindings
from nacl.exceptions import CryptoError

from datalattice.errors import UsageError

try:
    from datalattice__keccak import (
        LANES as _LANES,
        sha3_256 as _sha3_256,
        sha3_256_many as _sha3_256_many,
        sha3_256_sorted as _sha3_256_sorted,
    )
except ImportError:  # not compiled
    _LANES = ()

    def _sha3_256(message: bytes | bytearray | memoryview, /) -> bytes:
        return hashlib.sha3_256(message).digest()

    def _sha3_256_many(
        messages: Iterable[bytes],
        lanes: int = 0,  # noqa: ARG001 - one at a time
    ) -> list[bytes]:
        return [hashlib.sha3_256(message).digest() for message in tuple(messages)]

    def _sha3_256_sorted(rows: bytes, spans: bytes, /) -> tuple[bytes, bytes, bytes, bytes]:
        ends = struct.unpack(f"<{len(spans) // 16 * 2}q", spans[: len(spans) // 16 * 16])
        if len(spans) % 16 or [0, *ends, len(rows)] != sorted([0, *ends, len(rows)]):
            raise ValueError("the spans decrease or end outside of the rows")
        found: dict[bytes, tuple[int, bytes]] = {}
        begin = 0
        for number in range(len(ends) // 2):
            key_end, end = ends[2 * number : 2 * number + 2]
            found[_sha3_256(rows[begin:key_end])] = (number, rows[begin:end])
            begin = end
        hashes = sorted(found)
        kept = [found[hash][1] for hash in hashes]
        numbers = struct.Struct(f"<{len(kept)}q")
        return (
            b"".join(hashes),
            b"".join(kept),
            numbers.pack(*itertools.accumulate(map(len, kept))),
            numbers.pack(*(found[hash][0] for hash in hashes)),
        )


try:
    import datalattice__signatures as _signatures
except ImportError:  # not compiled
    _signatures = None  # type: ignore[assignment]

PUBLIC_KEY_BYTES = 32
SEED_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_BYTES = 32

VERIFIED_PER_THREAD = 64
"""Signatures that are worth a thread of their own: starting one costs about as much as two."""

_PROCESSORS = os.cpu_count() or 1
# libsodium's function for the compiled loop: libsodium is loaded, and this calls the same code.
_OPEN_ADDRESS: Final = int(
    _sodium.ffi.cast("uintptr_t", _sodium.ffi.addressof(_sodium.lib, "crypto_sign_open"))
)
# Keeps these keys apart from all other uses of the seed.
_SEAL_CONTEXT = "datalattice 2026 KeyPair.seal"


HASH_LANES: Final = _LANES
"""How many messages are hashed side by side at will: 1 to 8; none where it is not compiled."""

# Names for the functions themselves: a call of Python in between would cost as much as a round.
sha3_256: Final = _sha3_256
"""Returns the 32-byte SHA3-256 hash (FIPS 202) of bytes."""

sha3_256_many: Final = _sha3_256_many
"""Returns the SHA3-256 hash of each of some messages, in order. Messages that are there together
are hashed side by side, in as many lanes as the processor has: that takes a fourth of the time."""

sha3_256_sorted: Final = _sha3_256_sorted
"""Sorts rows of a key and anything else by the SHA3-256 hash of their keys.

Takes the rows end to end, and the end of the key and of the row of each. Returns (the hashes in
increasing order, the rows in this order, their ends, the number of each among those that came
in), all end to end. Of rows with equal keys, the last alone. Numbers are 8 bytes, little-endian."""


BLAKE3: Final = _blake3
"""Makes the object whose `digest` is the BLAKE3 hash of bytes, for compiled code to call."""


def blake3(data: bytes) -> bytes:
    """Return the 32-byte BLAKE3 hash of `data`."""
    return _blake3(data).digest()


def siphash(key: bytes, data: bytes) -> bytes:
    """Return the 8-byte SipHash-2-4 of `data` under a 16-byte key."""
    hash: bytes = bindings.crypto_shorthash_siphash24(data, key)
    return hash


class Blake3:
    """A BLAKE3 hash of bytes that come in parts."""

    __slots__ = ("_hasher",)

    def __init__(self) -> None:
        self._hasher = _blake3()

    def update(self, data: bytes | bytearray) -> None:
        """Add bytes."""
        self._hasher.update(data)

    def digest(self) -> bytes:
        """Return the 32-byte hash of all bytes so far."""
        return self._hasher.digest()


class Entropy(Protocol):
    """A source of random bytes."""

    def bytes(self, count: int) -> bytes:
        """Return `count` random bytes."""
        ...


class SystemEntropy:
    """The operating system's random bytes."""

    def bytes(self, count: int) -> bytes:
        """Return `count` random bytes."""
        return os.urandom(count)


class SeededEntropy:
    """Reproducible bytes from a seed, for simulations and tests; never for real keys."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counter = 0

    def bytes(self, count: int) -> bytes:
        """Return the next `count` bytes of the stream."""
        out = b""
        while len(out) < count:
            # Counter mode: each block hashes another text.
            out += sha3_256(f"datalattice-entropy:{self._seed}:{self._counter}".encode())
            self._counter += 1
        return out[:count]


class KeyPair:
    """An Ed25519 key pair made from a 32-byte seed."""

    __slots__ = ("_is_sound", "_seal_key", "_secret", "public_key", "seed")

    def __init__(self, seed: bytes) -> None:
        given: object = seed
        if not isinstance(given, bytes) or len(given) != SEED_BYTES:
            msg = f"a key seed is {SEED_BYTES} bytes, got {_measure(seed)}"
            raise UsageError(msg)
        self.seed = seed
        self.public_key, self._secret = bindings.crypto_sign_seed_keypair(seed)
        self._seal_key: bytes | None = None  # made when it is needed: most pairs never seal
        self._is_sound: bool | None = None

    @classmethod
    def generate(cls, entropy: Entropy | None = None) -> KeyPair:
        """Return a new key pair from `entropy` (default: the operating system)."""
        return cls((entropy or SystemEntropy()).bytes(SEED_BYTES))

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of `message`."""
        signed: bytes = bindings.crypto_sign(message, self._secret)
        return signed[:SIGNATURE_BYTES]  # libsodium returns the signature and the message

    @property
    def is_sound(self) -> bool:
        """Whether the public key verifies what the pair signs; tried once."""
        if self._is_sound is None:
            self._is_sound = verify_strict(self.public_key, self.sign(self.seed), self.seed)
        return self._is_sound

    def seal(self, message: bytes) -> bytes:
        """Return the 32-byte keyed hash of `message`, which only the holder of the seed can make.

        For what this key pair itself checks later, at a twentieth of the cost of a signature.
        """
        key = self._seal_key
        if key is None:
            # A key of its own: the seed itself serves signatures only.
            key = _blake3(self.seed, derive_key_context=_SEAL_CONTEXT).digest()
            self._seal_key = key
        return _blake3(message, key=key).digest()

    def __reduce__(self) -> tuple[type[KeyPair], tuple[bytes]]:
        return KeyPair, (self.seed,)

    def __eq__(self, other: object) -> bool:
        # The seed determines everything else.
        return isinstance(other, KeyPair) and other.seed == self.seed

    def __hash__(self) -> int:
        return hash(self.public_key)

    def __repr__(self) -> str:
        return f"KeyPair({self.public_key.hex()})"  # never the seed


class KeyRing:
    """The key pairs of the owners this machine writes for, ordered by public key."""

    __slots__ = ("_pairs",)

    def __init__(self, *pairs: KeyPair) -> None:
        found: dict[bytes, KeyPair] = {}
        for pair in pairs:
            given: object = pair
            if not isinstance(given, KeyPair):
                raise UsageError(f"a key ring holds KeyPairs, got {type(given).__name__}")
            # Pairs given twice count once.
            found[pair.public_key] = pair
        self._pairs = dict(sorted(found.items()))

    def get(self, public_key: bytes) -> KeyPair | None:
        """Return the pair with this public key, or None."""
        return self._pairs.get(public_key)

    def __iter__(self) -> Iterator[KeyPair]:
        return iter(self._pairs.values())

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, public_key: object) -> bool:
        return public_key in self._pairs

    def __reduce__(self) -> tuple[object, ...]:
        return KeyRing, tuple(self._pairs.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRing) and other._pairs == self._pairs

    def __hash__(self) -> int:
        return hash(tuple(self._pairs))

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.hex() for key in self._pairs)})"  # never the seeds


class Secret(str):
    """A text that is not shown: what prints, joins or encodes it gets `***`. `reveal` returns it.

    As a string it is `***`, so it stays hidden in JSON, in joined texts and in logs, too.
    """

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> Self:
        """Hide a text."""
        secret = super().__new__(cls, "***")
        secret._text = text.reveal() if isinstance(text, Secret) else text
        return secret

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):  # a plain text is never compared with one in the open
            return False
        # In constant time: how long it takes tells nothing of the text.
        return hmac.compare_digest(self._bytes(), other._bytes())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self._text,)

    def _bytes(self) -> bytes:
        return self._text.encode("utf-8", "surrogatepass")


NO_KEYS: Final = KeyRing()
"""The key ring of a machine that writes for no owner."""


def verify_strict(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether `signature` is the signature of `message` by `public_key`.

    Refuses what lets two messages share a signature, or one have two: a key or an R of small
    order, a key that is not reduced, an S that is not below the group order.
    """
    # A caller may pass bytes of any length; these are the only ones that can verify.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        bindings.crypto_sign_open(signature + message, public_key)  # libsodium checks all of it
    except CryptoError:
        return False
    return True


def first_unverified(signed: Sequence[tuple[bytes, bytes, bytes]]) -> int | None:
    """Return the index of the first (public key, signature, message) that is not verified strictly.

    None: all are. Many are shared between this thread and others, so that as many threads verify
    as there are processors.
    """
    return verification(signed)()


class Verification(Protocol):
    """Signatures that any number of threads verify together."""

    def assist(self) -> None:
        """Verify what no thread has begun; return once nothing is left to begin."""

    def finish(self) -> int | None:
        """Verify the rest; return the first index that is not verified, or None."""


class PlainVerification:
    """Signatures that any number of threads verify together, where nothing is compiled.

    The compiled one takes the interpreter's lock once for many, and this one for each.
    """

    def __init__(self, _function: int, signed: list[tuple[bytes, bytes, bytes]], /) -> None:
        """Begin nothing yet. function: what the compiled one calls."""
        self._signed = signed
        self._changed = threading.Condition()
        self._next = 0  # the first that no thread has begun
        self._running = 0
        self._unverified: list[int] = []
        self._error: BaseException | None = None

    def assist(self) -> None:
        """Verify what no thread has begun; return once nothing is left to begin."""
        while True:
            with self._changed:
                index = self._next
                # Begun in order, so the least index of all that are found is the first.
                if index >= len(self._signed) or self._unverified or self._error:
                    return
                self._next += 1
                self._running += 1
            is_verified, raised = False, None
            try:
                is_verified = verify_strict(*self._signed[index])
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                raised = error
            with self._changed:
                self._running -= 1
                self._error = raised or self._error
                if not is_verified:
                    self._unverified.append(index)
                self._changed.notify_all()

    def finish(self) -> int | None:
        """Verify the rest; return the first index that is not verified, or None."""
        self.assist()
        with self._changed:
            self._changed.wait_for(lambda: not self._running)  # what other threads have begun
        if self._error is not None:
            raise self._error
        return min(self._unverified, default=None)


class _Assistants:
    """Threads that verify with those that ask for it: one less than there are processors.

    Each goes on with what another caller has asked for once nothing is left of the first, so
    that no processor is idle while a caller waits for the disk.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with no work and no threads."""
        self._lock = threading.Lock()
        self._open: list[Verification] = []
        self._running = 0

    def add(self, work: Verification, most: int) -> None:
        """Have work done; most: threads that are worth it."""
        with self._lock:
            count = min(_PROCESSORS - 1 - self._running, most)
            if _PROCESSORS > 1 and most > 0:
                self._open.append(work)
            self._running += max(count, 0)
        for _ in range(count):
            try:
                threading.Thread(target=self._assist).start()
            except RuntimeError:  # no thread is to be had: the caller verifies alone
                with self._lock:
                    self._running -= 1

    def remove(self, work: Verification) -> None:
        """Begin nothing more of it."""
        with self._lock:
            self._open = [one for one in self._open if one is not work]

    def _assist(self) -> None:
        while True:
            with self._lock:
                if not self._open:
                    self._running -= 1
                    return
                work = self._open[0]
            work.assist()
            self.remove(work)


_assistants: Final = _Assistants()
# A forked child has none of the threads, and may have been forked while one held the lock.
os.register_at_fork(after_in_child=_assistants.begin)
_begin: Callable[[int, list[tuple[bytes, bytes, bytes]]], Verification] = getattr(
    _signatures, "Verification", PlainVerification
)


def verification(signed: Sequence[tuple[bytes, bytes, bytes]]) -> Callable[[], int | None]:
    """Begin to verify (public key, signature, message) strictly, as far as processors are free.

    Returns: a function that verifies the rest in the thread that calls it, once. It returns the
             index of the first one that is not verified; None: all are.
    """
    work = _begin(_OPEN_ADDRESS, list(signed))
    # Few signatures are verified by the caller alone.
    _assistants.add(work, len(signed) // VERIFIED_PER_THREAD - 1)

    def finish() -> int | None:
        try:
            return work.finish()
        finally:
            _assistants.remove(work)

    return finish


@lru_cache(1_024)  # a slot is decoded several times on its way in, each time as a new object
def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return `verify_strict(public_key, signature, message)`, from a cache where it is known.

    `message` should be short: a hash or an encoded reference.
    """
    return verify_strict(public_key, signature, message)


def verify_lenient(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the signature satisfies RFC 8032, small-order points included.

    For records whose signer is known beforehand, where other implementations check no more.
    """
    # Loaded here: few programs read foreign records, and OpenSSL takes a while to load.
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _measure(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
