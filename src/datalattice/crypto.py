"""Crypto: hashes (SHA3-256, BLAKE3), Ed25519 key pairs and the source of randomness.

A 32-byte public key serves as owner, author and node id. Signing is deterministic (RFC 8032), so
all nodes of one owner compute the same signature for the same value.

Length: what the C modules do stands here a second time in Python, for installations without them.
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


class PlainHashNumbers(dict[bytes, int]):
    """Numbers from -(2**63 - 1) to 2**63 - 1 by hashes of 32 bytes, in pure Python.

    The compiled `HashNumbers` takes 53 to 107 bytes a hash, a dict 133.
    """

    def get_many(self, hashes: list[bytes], absent: int, /) -> list[int]:
        """Return the numbers of hashes in their order, `absent` for those that have none."""
        return [self.get(hash, absent) for hash in hashes]

    def has_any(self, hashes: list[bytes], /) -> bool:
        """Return whether one of several hashes has a number."""
        return not self.keys().isdisjoint(hashes)

    def add(self, hashes: list[bytes], numbers: list[int], /) -> None:
        """Set the number of each hash. Raises: ValueError: there are not as many of both."""
        self.update(zip(hashes, numbers, strict=True))

    def remove(self, hash: bytes, /) -> None:
        """Remove a hash and its number, if it has one."""
        self.pop(hash, None)

    def sorted_rows(self) -> bytes:
        """Return all hashes in order, each with its number in 8 bytes, big-endian, end to end."""
        return b"".join(
            [hash + self[hash].to_bytes(8, "big", signed=True) for hash in sorted(self)]
        )


try:
    from datalattice__keccak import (
        LANES as _LANES,
        HashNumbers as _HashNumbers,
        find_hashes as _find_hashes,
        sha3_256 as _sha3_256,
        sha3_256_cut as _sha3_256_cut,
        sha3_256_ends as _sha3_256_ends,
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

    def _sha3_256_ends(data: bytes, ends: list[int], /) -> bytes:
        if [0, *ends, len(data)] != sorted([0, *ends, len(data)]):
            raise ValueError("the ends decrease or lie outside of the bytes")
        return b"".join(
            hashlib.sha3_256(data[begin:end]).digest()
            for begin, end in itertools.pairwise((0, *ends))
        )

    def _find_hashes(digests: bytes, hashes: list[bytes], /) -> list[int]:
        numbers = {digests[32 * i : 32 * i + 32]: i for i in range(len(digests) // 32)}
        for i, hash in enumerate(hashes):
            if type(hash) is not bytes or len(hash) != 32:
                raise ValueError(f"hash {i} is not 32 bytes")
        return [numbers.get(hash, -1) for hash in hashes]

    def _sha3_256_cut(
        data: bytes, start: int, count: int, size: int, head: bytes, /
    ) -> tuple[list[bytes], bytes]:
        if start < 0 or count < 0 or size < 1 or count * size > len(data) - start:
            raise ValueError("the parts lie outside of the bytes")
        stop = start + count * size
        messages = [head + data[at : at + size] for at in range(start, stop, size)]
        return _sha3_256_many(messages), b"".join(messages)

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

    _HashNumbers = PlainHashNumbers  # type: ignore[misc, assignment]


try:
    import datalattice__signatures as _signatures
except ImportError:  # not compiled
    _signatures = None  # type: ignore[assignment]

# Bytes of a public key, a seed, a signature (RFC 8032) and a seal (`KeyPair.seal`).
PUBLIC_KEY_BYTES = 32
SEED_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_BYTES = 32

VERIFIED_PER_THREAD = 64
"""Signatures for each thread that is started: a start costs as much as verifying two."""

_PROCESSORS = os.cpu_count() or 1
# The compiled loop calls libsodium's function by its address: the code that `verify_strict` calls.
_OPEN_ADDRESS: Final = int(
    _sodium.ffi.cast("uintptr_t", _sodium.ffi.addressof(_sodium.lib, "crypto_sign_open"))
)
# BLAKE3's key derivation: keys of another context are unrelated to these.
_SEAL_CONTEXT = "datalattice 2026 KeyPair.seal"


HashNumbers = _HashNumbers

HASH_LANES: Final = _LANES
"""The values of `lanes` that `sha3_256_many` accepts, from 1 to 8; empty if not compiled."""

# The functions themselves, without a wrapper: a Python call costs as much as a round of the hash.
sha3_256: Final = _sha3_256
"""Returns the 32-byte SHA3-256 hash (FIPS 202) of bytes."""

sha3_256_many: Final = _sha3_256_many
"""Returns the SHA3-256 hashes of messages, in their order. Where it is compiled, messages are
hashed side by side in the processor's vector lanes, in a fourth of the time."""

sha3_256_ends: Final = _sha3_256_ends
"""Returns the SHA3-256 hashes of the messages in `data`, 32 bytes each, end to end. `ends` are
where the messages end: the first begins at 0, and every other where the one before it ends.

Raises: ValueError: an end is less than the one before it, or outside of `data`."""

find_hashes: Final = _find_hashes
"""Returns the number of each hash among `digests`, which are 32 bytes each, end to end; -1 for a
hash that is not there. Where it is compiled, it is fast if both have about the same order.

Raises: ValueError: a hash is not 32 bytes."""

sha3_256_cut: Final = _sha3_256_cut
"""Cuts `count` parts of `size` bytes out of `data`, from the byte `start` on, and puts `head`
before each. Returns (the SHA3-256 of each of these messages, the messages end to end).

Raises: ValueError: a part lies outside of `data`."""

sha3_256_sorted: Final = _sha3_256_sorted
"""Sorts rows, each a key and a payload, by the SHA3-256 hash of their keys.

Takes the rows end to end, and for each row the end of its key and its own end. Returns four byte
strings: the hashes in increasing order, the rows in that order, the ends of the rows, and the index
of each row in the input. Of rows with equal keys, only the last is returned. Numbers are 8 bytes,
little-endian."""


BLAKE3: Final = _blake3
"""The constructor of a BLAKE3 hasher, for compiled code that calls `digest` itself."""


def blake3(data: bytes) -> bytes:
    """Return the 32-byte BLAKE3 hash of `data`."""
    return _blake3(data).digest()


def siphash(key: bytes, data: bytes) -> bytes:
    """Return the 8-byte SipHash-2-4 of `data` under a 16-byte key."""
    hash: bytes = bindings.crypto_shorthash_siphash24(data, key)
    return hash


class Blake3:
    """The BLAKE3 hash of bytes that arrive in parts."""

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
            # Counter mode: each block is the hash of the seed and its number.
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

        Use it where the same key pair later checks it: it costs a twentieth of a signature.
        """
        key = self._seal_key
        if key is None:
            # A derived key: the seed itself is used for signatures only.
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
    """A text that prints, joins and encodes as `***`; `reveal` returns it.

    As a string it is `***`, so that it is hidden in JSON, in joined texts and in logs, too.
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
        if not isinstance(other, Secret):  # a plain str equals `***` at most, never the text
            return False
        # In constant time, so that the duration reveals nothing about the text.
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

    Refuses keys and signatures with which two messages share a signature, or one message has two:
    a key or an R of small order, a key that is not reduced, an S that is not below the group order.
    """
    # A peer may send keys and signatures of any length; libsodium's binding raises for others.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        bindings.crypto_sign_open(signature + message, public_key)  # makes all these checks
    except CryptoError:
        return False
    return True


def first_unverified(signed: Sequence[tuple[bytes, bytes, bytes]]) -> int | None:
    """Return the index of the first (public key, signature, message) that fails `verify_strict`.

    None: all pass. Many signatures are verified by as many threads as there are processors.
    """
    return verification(signed)()


class Verification(Protocol):
    """Signatures that any number of threads verify together."""

    def assist(self) -> None:
        """Verify signatures until each is taken by some thread."""

    def finish(self) -> int | None:
        """Verify the rest; return the index of the first that fails, or None."""


class PlainVerification:
    """`Verification` in pure Python.

    It takes the interpreter's lock for each signature; the compiled class takes it once for many.
    """

    def __init__(self, _function: int, signed: list[tuple[bytes, bytes, bytes]], /) -> None:
        """Hold the signatures; no thread verifies yet. _function: for the compiled class alone."""
        self._signed = signed
        self._changed = threading.Condition()
        self._next = 0  # the first that no thread has taken
        self._running = 0
        self._unverified: list[int] = []
        self._error: BaseException | None = None

    def assist(self) -> None:
        """Verify signatures until each is taken by some thread."""
        while True:
            with self._changed:
                index = self._next
                # Taken in order, so the least index among the failures is the first of all.
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
        """Verify the rest; return the index of the first that fails, or None."""
        self.assist()
        with self._changed:
            self._changed.wait_for(lambda: not self._running)  # other threads finish theirs
        if self._error is not None:
            raise self._error
        return min(self._unverified, default=None)


class _Assistants:
    """Threads that verify beside their callers: at most one less than there are processors.

    A thread takes the oldest open work, then the next, so that processors stay busy while a
    caller waits for the disk. It ends when no work is open.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start with no work and no threads."""
        self._lock = threading.Lock()
        self._open: list[Verification] = []
        self._running = 0

    def add(self, work: Verification, most: int) -> None:
        """Open work to the threads, and start up to `most` of them."""
        with self._lock:
            count = min(_PROCESSORS - 1 - self._running, most)
            if _PROCESSORS > 1 and most > 0:
                self._open.append(work)
            self._running += max(count, 0)
        for _ in range(count):
            try:
                threading.Thread(target=self._assist).start()
            except RuntimeError:  # the system has no more threads: the caller verifies alone
                with self._lock:
                    self._running -= 1

    def remove(self, work: Verification) -> None:
        """Close work: no further thread takes it."""
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
# A forked child has none of these threads, and the lock may have been held at the fork.
os.register_at_fork(after_in_child=_assistants.begin)
_begin: Callable[[int, list[tuple[bytes, bytes, bytes]]], Verification] = getattr(
    _signatures, "Verification", PlainVerification
)


def verification(signed: Sequence[tuple[bytes, bytes, bytes]]) -> Callable[[], int | None]:
    """Start to verify (public key, signature, message) strictly, in threads on free processors.

    Returns: a function to be called once: it verifies the rest in its thread and returns the index
             of the first that fails; None: all pass.
    """
    work = _begin(_OPEN_ADDRESS, list(signed))
    # The caller's thread is one of them: below twice `VERIFIED_PER_THREAD` it verifies alone.
    _assistants.add(work, len(signed) // VERIFIED_PER_THREAD - 1)

    def finish() -> int | None:
        try:
            return work.finish()
        finally:
            _assistants.remove(work)

    return finish


@lru_cache(1_024)  # a received slot is decoded several times, each time as a new object
def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return `verify_strict(public_key, signature, message)`, cached.

    The cache keeps `message`: pass a short one, such as a hash or an encoded reference.
    """
    return verify_strict(public_key, signature, message)


def verify_lenient(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the signature satisfies RFC 8032, small-order points included.

    For records of a known signer that other implementations check in this way.
    """
    # Imported here: few programs read such records, and loading OpenSSL is slow.
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _measure(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
