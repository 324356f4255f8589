"""The C code under the sanitizers of the compiler: no read or write goes astray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
INCLUDE = Path(sysconfig.get_path("include"))

# Messages end at the end of their memory, which the sanitizer watches.
HASHING = """
import hashlib, random, struct, sys
sys.path.insert(0, sys.argv[1])
import datalattice__keccak as keccak
dice = random.Random(3)
def check(messages, lanes):
    expected = [hashlib.sha3_256(one).digest() for one in messages]
    assert keccak.sha3_256_many(messages, lanes) == expected, ([*map(len, messages)], lanes)
    assert [keccak.sha3_256(memoryview(one)) for one in messages] == expected
lengths = (0, 1, 7, 8, 135, 136, 137, 271, 272, 1_000, 40_000)
for lanes in (0, *keccak.LANES):
    for length in range(1_001):
        check([dice.randbytes(length) for _ in range(9)], lanes)
    for count in range(20):
        check([dice.randbytes(dice.choice(lengths)) for _ in range(count)], lanes)
    for _ in range(1_000):
        longest = dice.choice((3, 140, 300, 5_000))
        check([dice.randbytes(dice.randrange(longest)) for _ in range(dice.randrange(40))], lanes)
    for wrong in ([b"a" * 200, None], [1], None):
        try:
            keccak.sha3_256_many(wrong, lanes)
        except TypeError:
            continue
        raise AssertionError(wrong)
for size in lengths[1:]:
    for count in (0, 1, 2, 9, 40):
        data = dice.randbytes(5 + count * size)
        digests, messages = keccak.sha3_256_cut(data, 5, count, size, b"head")
        parts = [b"head" + data[at : at + size] for at in range(5, len(data), size)]
        assert messages == b"".join(parts)
        assert digests == [hashlib.sha3_256(part).digest() for part in parts]
        for wrong in ((6, count, size), (5, count + 1, size), (5, -1, 1), (-1, 1, 1), (0, 1, 0)):
            if wrong[1] == 0:
                continue
            try:
                keccak.sha3_256_cut(data, *wrong, b"head")
            except ValueError:
                continue
            raise AssertionError(wrong)
for count in (0, 1, 2, 9, 300):
    messages = [dice.randbytes(dice.choice(lengths[:9])) for _ in range(count)]
    data, ends = b"".join(messages), [sum(map(len, messages[: i + 1])) for i in range(count)]
    hashes = [hashlib.sha3_256(one).digest() for one in messages]
    digests = keccak.sha3_256_ends(data, ends)
    assert digests == b"".join(hashes)
    for wrong in ([*ends, len(data) + 1], [*ends, -1], [1, 0], [2**70], ["1"]):
        try:
            keccak.sha3_256_ends(data, wrong)
        except (OverflowError, TypeError, ValueError):
            continue
        raise AssertionError(wrong)
    dice.shuffle(hashes)
    found = keccak.find_hashes(digests, [*hashes, bytes(32)])
    assert found.pop() == -1
    assert [digests[32 * i : 32 * i + 32] for i in found] == hashes
    for wrong in ([b"short"], [None]):
        try:
            keccak.find_hashes(digests, wrong)
        except ValueError:
            continue
        raise AssertionError(wrong)
for count in (0, 1, 2, 63, 64, 65, 256, 257, 2_000):
    rows, ends = b"", []
    for _ in range(count):
        rows += dice.randbytes(dice.choice(lengths[:8]))
        ends += [len(rows)]
        rows += dice.randbytes(dice.randrange(3))
        ends += [len(rows)]
    spans = struct.pack(f"<{2 * count}q", *ends)
    begins = [0, *ends[1::2]]
    keys = [rows[begins[i] : ends[2 * i]] for i in range(count)]
    hashes = [hashlib.sha3_256(key).digest() for key in keys]
    found = keccak.sha3_256_sorted(rows, spans)
    assert found[0] == b"".join(sorted(set(hashes))), count
    assert len(found[1]) == struct.unpack("<q", found[2][-8:])[0] if count else found == (b"",) * 4
    for wrong in ((rows, spans + b"1"), (rows, b"\\xff" * 16), (b"", b"\\1" * 16)):
        try:
            keccak.sha3_256_sorted(*wrong)
        except ValueError:
            continue
        raise AssertionError(wrong)
for count in (0, 1, 47, 48, 49, 63, 64, 2_000):
    table, numbers = keccak.HashNumbers(), {}
    hashes = [dice.randbytes(32) for _ in range(count)]
    for _ in range(3):
        given = [dice.randrange(1 - 2**63, 2**63) for _ in hashes]
        table.add(hashes, given)
        numbers |= zip(hashes, given)
        for hash in dice.sample(hashes, count // 3):
            table.remove(hash)
            numbers.pop(hash, None)
        assert len(table) == len(numbers)
        assert sorted(table.items()) == sorted(numbers.items())
        assert table.get_many(hashes, None) == [*map(numbers.get, hashes)]
        assert [table.get(hash) for hash in hashes] == [*map(numbers.get, hashes)]
        assert table.has_any(hashes) == bool(numbers)
        assert not table.has_any([dice.randbytes(32) for _ in range(9)])
        assert table.sorted_rows() == b"".join(
            hash + number.to_bytes(8, "big", signed=True)
            for hash, number in sorted(numbers.items())
        )
    for wrong in (
        ([b"a"], [1]), ([b"a" * 32], []), ([b"a" * 32], [None]), ([b"a" * 32], [-(2**63)]),
        ([b"a" * 32], [2**63]), ((b"a" * 32,), [1]), ([None], [1]), (None, None),
    ):
        try:
            table.add(*wrong)
        except (OverflowError, TypeError, ValueError):
            continue
        raise AssertionError(wrong)
    for call in (table.get, table.remove, table.has_any, lambda one: table.get_many([one], 0)):
        for wrong in (b"a", None, 1):
            try:
                call(wrong)
            except TypeError:
                continue
            raise AssertionError(wrong)
print(keccak.LANES)
"""


VERIFYING = """
import random, sys, threading
sys.path.insert(0, sys.argv[1])
from datalattice__signatures import Verification
from datalattice.crypto import _OPEN_ADDRESS, KeyPair
dice = random.Random(3)
key = KeyPair(bytes(32))
messages = [dice.randbytes(length) for length in (0, 1, 32, 33, 1_000, 40_000)]
signed = [(key.public_key, key.sign(message), message) for message in messages]
for end in range(7):
    assert Verification(_OPEN_ADDRESS, signed[:end]).finish() is None
wrong = [(b"", b"", b""), (key.public_key, bytes(64), b"m"), (key.public_key, b"", b"m")]
for place in range(6):
    for one in wrong:
        mixed = [*signed[:place], one, *signed[place:], one]
        begun = Verification(_OPEN_ADDRESS, mixed)
        begun.assist()
        assert begun.finish() == begun.finish() == place
for many, first in ((signed * 20, None), (signed * 20 + wrong + signed * 20, 120)):
    begun = Verification(_OPEN_ADDRESS, many)
    threads = [threading.Thread(target=begun.assist) for _ in range(4)]
    [one.start() for one in threads]
    assert begun.finish() == first
    [one.join() for one in threads]
Verification(_OPEN_ADDRESS, signed)  # given up
refused = [
    (0, signed), (_OPEN_ADDRESS, tuple(signed)), (_OPEN_ADDRESS,), (_OPEN_ADDRESS, signed, 0),
    (_OPEN_ADDRESS, [None]), (_OPEN_ADDRESS, [(b"", b"")]), (_OPEN_ADDRESS, [(b"", b"", "text")]),
    ("0", signed), (2**70, signed),
]
for arguments in refused:
    try:
        Verification(*arguments)
    except (OverflowError, TypeError, ValueError):
        continue
    raise AssertionError(arguments)
print("refused", len(refused))
"""

# Mutated envelopes: each is decoded as the Python code does, or left to it.
DECODING = """
import random, sys
sys.path.insert(0, sys.argv[1])
import datalattice__intentions
from datalattice.clock import Hlc
from datalattice.crypto import BLAKE3, KeyPair
from datalattice.errors import BadFormat
from datalattice.weaver.intention import Intention, IntentionRefused, LogLimits, SignedIntention
from datalattice.weaver import intention
dice = random.Random(5)
key, store = KeyPair(bytes(32)), bytes(range(16))
kinds = (Hlc, Intention, SignedIntention)
limits = LogLimits(payload_bytes=300, deps=3)
decoded = left = 0
def check(envelopes):
    global decoded, left
    found = datalattice__intentions.decode_many(envelopes, store, 300, 3, BLAKE3, kinds)
    assert len(found) == len(envelopes)
    for one, envelope in zip(found, envelopes):
        left += one is None
        if one is not None:
            assert one == intention._checked(0, envelope, store, limits, 10_000)
            assert hash(one) == hash(intention._checked(0, envelope, store, limits, 10_000))
            assert [type(one), type(one[0]), type(one[0].stamp)] == [*reversed(kinds)]
            decoded += 1
for deps in range(5):
    for size in (0, 1, 20, 127, 128, 300, 301):
        hashes = [dice.randbytes(32) for _ in range(deps)]
        made = Intention.build(
            key.public_key, Hlc(2**64 - 1, 2**32 - 1), store, dice.randbytes(32), hashes,
            dice.randbytes(size),
        )
        envelope = made.sign(key).encode()
        before = decoded
        check([envelope])
        assert (decoded > before) == (deps <= 3 and size <= 300)
        unsorted = made._replace(deps=made.deps[::-1]).sign(key).encode()
        check([unsorted, envelope + b"x", b"", envelope[:1], envelope[:1] + bytes([255]) * 12])
        check([envelope[:end] for end in range(0, len(envelope), 3)])
        for _ in range(60):
            bad = bytearray(envelope)
            for _ in range(dice.randrange(1, 4)):
                bad[dice.randrange(len(bad))] = dice.choice((0, 1, 127, 128, dice.randrange(256)))
            check([bytes(bad), envelope])
assert left > 100
try:
    from _testcapi import remove_mem_hooks, set_nomemory
except ImportError:  # some distributions leave it out
    lacking = ()
else:
    lacking = range(1, 60)
failed = 0
for allocation in lacking:
    set_nomemory(allocation, allocation + 1)
    try:
        datalattice__intentions.decode_many([envelope] * 3, store, 999, 9, BLAKE3, kinds)
    except MemoryError:  # and nothing else
        failed += 1
    finally:
        remove_mem_hooks()
assert failed > 20 or not lacking
refused = [
    (), (None, store, 1, 1, BLAKE3, kinds), ([], b"", 1, 1, BLAKE3, kinds),
    ([], store, -1, 1, BLAKE3, kinds), ([], store, 1, -1, BLAKE3, kinds),
    ([], store, 1, 2**70, BLAKE3, kinds), ([], store, 1, 1, BLAKE3, (Hlc, Intention)),
    ([], store, 1, 1, BLAKE3, (Hlc, Intention, dict)), ([envelope], store, 999, 9, None, kinds),
    ([envelope], store, 999, 9, lambda data: None, kinds),
]
for arguments in refused:
    try:
        datalattice__intentions.decode_many(*arguments)
    except (AttributeError, OverflowError, TypeError, ValueError):
        continue
    raise AssertionError(arguments)
print("refused", len(refused), "decoded", decoded > 1000)
"""

SUMMING = """
import random, sys, zlib
sys.path.insert(0, sys.argv[1])
from datalattice__checksums import crc32_of
dice = random.Random(7)
for length in range(1_001):
    data, start = dice.randbytes(length), dice.getrandbits(32)
    assert crc32_of([data], start) == zlib.crc32(data, start), length
for _ in range(1_000):
    longest = dice.choice((3, 70, 300, 5_000))
    parts = [dice.randbytes(dice.randrange(longest)) for _ in range(dice.randrange(40))]
    start, expected = dice.getrandbits(32), zlib.crc32(b"".join(parts))
    assert crc32_of(parts, 0) == crc32_of(tuple(map(memoryview, parts)), 0) == expected
    assert crc32_of(parts, start) == zlib.crc32(b"".join(parts), start)
refused = [(), ([b"a"],), ([b"a"], None), (None, 0), ([b"a", 1], 0), (["text"], 0), ([b"a"], 0, 0)]
for arguments in refused:
    try:
        crc32_of(*arguments)
    except TypeError:
        continue
    raise AssertionError(arguments)
print("refused", len(refused))
"""


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "program", "said"),
    [
        ("keccak", HASHING, "(1,"),
        ("keccak -DWITHOUT_AVX512", HASHING, "(1,"),
        ("signatures", VERIFYING, "refused 9"),
        ("intentions", DECODING, "refused 10 decoded True"),
        ("checksums", SUMMING, "refused 7"),
    ],
)
def test_no_byte_is_read_beyond_its_end(name: str, program: str, said: str, tmp_path: Path) -> None:
    name, *options = name.split()
    compiler = shutil.which("gcc")
    if compiler is None or not (INCLUDE / "Python.h").exists():
        pytest.skip("there is no gcc with Python headers")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    command = [compiler, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *options]
    sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{INCLUDE}"]
    source = str(SOURCES / name / f"{name}.c")
    made = tmp_path / f"datalattice__{name}{suffix}"
    subprocess.run([*command, *sanitized, source, "-o", str(made)], check=True, timeout=120)
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("gcc has no sanitizers here")
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={
            **os.environ,
            "LD_PRELOAD": ":".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter keeps memory to its end
            "PYTHONMALLOC": "malloc",  # so that each message has memory of its own
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(said)
