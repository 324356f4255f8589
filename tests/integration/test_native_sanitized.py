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
import hashlib, random, sys
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
print(keccak.LANES)
"""


VERIFYING = """
import random, sys
sys.path.insert(0, sys.argv[1])
from datalattice__signatures import first_unverified
from datalattice.crypto import _OPEN_ADDRESS, KeyPair
dice = random.Random(3)
key = KeyPair(bytes(32))
messages = [dice.randbytes(length) for length in (0, 1, 32, 33, 1_000, 40_000)]
signed = [(key.public_key, key.sign(message), message) for message in messages]
for begin in range(7):
    for end in range(begin, 7):
        assert first_unverified(_OPEN_ADDRESS, signed, begin, end) == -1
wrong = [(b"", b"", b""), (key.public_key, bytes(64), b"m"), (key.public_key, b"", b"m")]
for place in range(6):
    for one in wrong:
        mixed = [*signed[:place], one, *signed[place:], one]
        assert first_unverified(_OPEN_ADDRESS, mixed, 0, 8) == place
        assert first_unverified(_OPEN_ADDRESS, mixed, place + 1, 8) == 7
refused = [
    (0, signed, 0, 1), (_OPEN_ADDRESS, signed, 0, 7), (_OPEN_ADDRESS, signed, -1, 1),
    (_OPEN_ADDRESS, signed, 2, 1), (_OPEN_ADDRESS, tuple(signed), 0, 1),
    (_OPEN_ADDRESS, [None], 0, 1), (_OPEN_ADDRESS, [(b"", b"")], 0, 1),
    (_OPEN_ADDRESS, [(b"", b"", "text")], 0, 1), ("0", signed, 0, 1), (2**70, signed, 0, 1),
]
for arguments in refused:
    try:
        first_unverified(*arguments)
    except (OverflowError, TypeError, ValueError):
        continue
    raise AssertionError(arguments)
print("refused", len(refused))
"""


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "program", "said"),
    [("keccak", HASHING, "(1,"), ("signatures", VERIFYING, "refused 10")],
)
def test_no_byte_is_read_beyond_its_end(name: str, program: str, said: str, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None or not (INCLUDE / "Python.h").exists():
        pytest.skip("there is no gcc with Python headers")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    command = [compiler, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
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
