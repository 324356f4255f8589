"""Build script: pure Python by default, the compiled kernel when DATALATTICE_COMPILE=1.

Everything else about the distribution is in pyproject.toml. `make build` compiles in place and
`make clean` takes it away again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

PACKAGE = Path("src", "datalattice")
KECCAK = Path("src", "keccak")
SIGNATURES = Path("src", "signatures")

COMPILED_PACKAGES = ("cells", "lattice")
"""Packages whose every module is compiled, their `__init__` apart."""

COMPILED_MODULES: tuple[str, ...] = (
    "apps/kv/entries.py",
    "apps/kv/joining.py",
    "apps/kv/keys.py",
    "apps/kv/kinds.py",
    "apps/kv/lattice.py",
    "apps/kv/writing.py",
    "apps/queue/entries.py",
    "engine/group.py",
    "engine/journal.py",
    "engine/lmdb.py",
    "engine/longkeys.py",
    "engine/section.py",
    "pipeline/queue/leaves.py",
    "pipeline/queue/spans.py",
    "pipeline/queue/splice.py",
    "store/base.py",
    "store/cache.py",
    "store/cellstore.py",
    "store/log/hashindex.py",
    "store/log/packing.py",
    "store/reader.py",
    "store/log/segments.py",
    "sync/reconcile/sketchcells.py",
    "weaver/append.py",
    "weaver/heads.py",
    "weaver/ingest.py",
    "weaver/intention.py",
    "weaver/log.py",
    "weaver/op.py",
    "weaver/payloads.py",
    "weaver/replay.py",
    "weaver/rows.py",
    "weaver/state.py",
    "weaver/tables.py",
    "weaver/writing.py",
)
"""Further hot modules, as paths below the package, for example "wire/framing.py"."""


def compiled_sources(root: Path) -> list[Path]:
    """Return the modules that mypyc compiles, those that exist, as paths below the repository."""
    folder = root / PACKAGE
    paths = [
        path
        for package in COMPILED_PACKAGES
        for path in sorted((folder / package).glob("*.py"))
        if path.name != "__init__.py"
    ]
    paths += [folder / name for name in COMPILED_MODULES if (folder / name).exists()]
    return [path.relative_to(root) for path in paths]


def extensions() -> list[object]:
    if os.environ.get("DATALATTICE_COMPILE") != "1":
        return []
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - a pure installation has no mypy
    except ImportError:
        sys.exit("DATALATTICE_COMPILE=1 needs mypy beside setuptools: run `make build`")
    paths = [str(path) for path in compiled_sources(Path())]
    keccak = Extension(
        "datalattice__keccak",  # beside the module of the compiled kernel, `datalattice__mypyc`
        [str(KECCAK / "keccak.c")],
        depends=[str(KECCAK / "lanes.h")],
        extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
    )
    signatures = Extension("datalattice__signatures", [str(SIGNATURES / "signatures.c")])
    kernel = mypycify(paths, opt_level="3", group_name="datalattice")
    if sys.platform != "win32":
        for extension in kernel:
            # gcc's check of indentation reads this one file of 600,000 lines over and over: 60 % of
            # the compiler's time. The code it makes is the same.
            extension.extra_compile_args.append("-Wno-misleading-indentation")
    return [keccak, signatures, *kernel]


if __name__ == "__main__":
    setup(ext_modules=extensions())
