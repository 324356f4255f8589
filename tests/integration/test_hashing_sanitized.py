"""The C code that hashes, under the sanitizers of the compiler: no read or write goes astray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "keccak" / "keccak.c"
INCLUDE = Path(sysconfig.get_path("include"))

# Messages end at the end of their memory, which the sanitizer watches.
PROGRAM = """
import hashlib, random, sys
sys.path.insert(0, sys.argv[1])
import datalattice__keccak as keccak
dice = random.Random(3)
lengths = (0, 1, 7, 8, 135, 136, 137, 271, 272, 1_000, 40_000)
for lanes in (0, *keccak.LANES):
    for count in range(20):
        messages = [dice.randbytes(dice.choice(lengths)) for _ in range(count)]
        expected = [hashlib.sha3_256(one).digest() for one in messages]
        assert keccak.sha3_256_many(messages, lanes) == expected
        assert [keccak.sha3_256(memoryview(one)) for one in messages] == expected
    for wrong in ([b"a" * 200, None], [1], None):
        try:
            keccak.sha3_256_many(wrong, lanes)
        except TypeError:
            continue
        raise AssertionError(wrong)
print(keccak.LANES)
"""


@pytest.mark.once
def test_no_message_is_read_beyond_its_end(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None or not (INCLUDE / "Python.h").exists():
        pytest.skip("there is no gcc with Python headers")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    command = [compiler, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{INCLUDE}"]
    made = tmp_path / f"datalattice__keccak{suffix}"
    subprocess.run([*command, *sanitized, str(SOURCE), "-o", str(made)], check=True, timeout=120)
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("gcc has no sanitizers here")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
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
    assert ran.stdout.startswith("(1,")
