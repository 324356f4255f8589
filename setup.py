"""Build script: with the compiled kernel where this machine can compile, else pure Python.

DATALATTICE_COMPILE=1 fails instead of going without, DATALATTICE_COMPILE=0 is always pure. So is an
editable installation: compiled modules hide later edits of the source. Everything else about the
distribution is in pyproject.toml. `make build` compiles in place, `make clean` takes it away again.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import tempfile
from contextlib import suppress
from distutils.ccompiler import new_compiler
from distutils.sysconfig import customize_compiler
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

PACKAGE = Path("src", "datalattice")
KECCAK = Path("src", "keccak")
SMALL = ("signatures", "intentions", "checksums")
"""C modules that are one file each, `src/NAME/NAME.c`."""

COMPILED_PACKAGES = ("cells", "lattice")
"""Packages whose every module is compiled, their `__init__` apart."""

COMPILED_MODULES: tuple[str, ...] = (
    "apps/kv/entries.py",
    "apps/kv/joining.py",
    "apps/kv/keys.py",
    "apps/kv/kinds.py",
    "apps/kv/lattice.py",
    "apps/kv/showing.py",
    "apps/kv/writing.py",
    "apps/queue/entries.py",
    "apps/queue/lattice.py",
    "apps/queue/metadata.py",
    "apps/queue/state.py",
    "cursors/base.py",
    "cursors/collector.py",
    "cursors/lattices.py",
    "engine/group.py",
    "engine/journal.py",
    "engine/lmdb.py",
    "engine/longkeys.py",
    "engine/section.py",
    "arrow/leaves.py",
    "arrow/spans.py",
    "pipeline/queue/splice.py",
    "store/base.py",
    "store/cache.py",
    "store/cellstore.py",
    "store/kept/history.py",
    "store/log/committer.py",
    "store/log/hashindex.py",
    "store/log/logend.py",
    "store/log/logstate.py",
    "store/log/packing.py",
    "store/log/removed.py",
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
    "wire/answers.py",
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


MYPY = "mypy>=2.4,<3"  # as in pyproject.toml
# What is installed beside it has no say in the code: missing or there, it is compiled alike.
MYPY_OPTIONS = ["--follow-imports=silent", "--no-site-packages"]


def plain_extensions() -> list[Extension]:
    """Return the C modules of our own: they stand beside `datalattice__mypyc`, the kernel's."""
    keccak = Extension(
        "datalattice__keccak",
        [str(KECCAK / "keccak.c")],
        depends=[str(KECCAK / "lanes.h")],
        extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
    )
    small = [
        Extension(f"datalattice__{name}", [str(Path("src", name, f"{name}.c"))]) for name in SMALL
    ]
    return [keccak, *small]


def kernel_extensions() -> list[Extension]:
    from mypyc.build import mypycify  # noqa: PLC0415 - a pure installation has no mypy

    paths = [str(path) for path in compiled_sources(Path())]
    kernel: list[Extension] = mypycify(
        [*MYPY_OPTIONS, *paths], opt_level="3", debug_level="0", group_name="datalattice"
    )
    if sys.platform != "win32":
        # gcc's check of indentation reads this one file of 600,000 lines over and over: 60 % of
        # the compiler's time. The code it makes is the same.
        for extension in kernel:
            extension.extra_compile_args = [
                *extension.extra_compile_args,
                "-Wno-misleading-indentation",
                # Else every function may be replaced by one of another library: all calls go
                # through a table, and none is inlined.
                "-fvisibility=hidden",
            ]
    gc.freeze()  # else the interpreter, before it ends, looks through all that mypy left
    return kernel


def obstacle() -> str:
    """Return why this machine cannot compile, empty where it can."""
    if sys.implementation.name != "cpython":
        return "mypyc compiles for CPython alone"
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text("#include <Python.h>\n", encoding="utf-8")
        try:
            compiler = new_compiler()
            customize_compiler(compiler)
            compiler.compile(
                [str(probe)], output_dir=folder, include_dirs=[sysconfig.get_path("include")]
            )
        except (BaseError, CCompilerError):
            return "no C compiler with Python headers (on Debian: apt-get install gcc python3-dev)"
    return ""


def say_pure(reason: str) -> None:
    line = f"datalattice: pure Python, without the compiled kernel: {reason}"
    print(line, file=sys.stderr)
    if not sys.stderr.isatty():
        # pip keeps the output of a build that succeeds to itself; there may be no terminal either.
        with suppress(OSError), Path("/dev/tty").open("w", encoding="utf-8") as terminal:
            print(line, file=terminal)


class BuildKernel(build_ext):  # type: ignore[misc]
    """Translates the kernel when extensions are built, not whenever pip asks for metadata."""

    extensions: list[Extension]

    def run(self) -> None:
        must = os.environ.get("DATALATTICE_COMPILE") == "1"
        if self.editable_mode and not must:
            self.extensions = []
            return
        try:
            self.distribution.ext_modules = [*plain_extensions(), *kernel_extensions()]
            self.swig_opts = None  # the first call has made a list of this option
            self.finalize_options()
            super().run()
        except (ImportError, SystemExit, BaseError, CCompilerError) as error:
            if must:
                raise
            # Some modules of the kernel without the others would not import.
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            say_pure(" ".join(str(error).split()) or "it does not compile")


def main() -> None:
    wish = os.environ.get("DATALATTICE_COMPILE", "")
    reason = "" if wish else obstacle()
    if reason and "bdist_wheel" in sys.argv:
        say_pure(reason)
    compiles = wish == "1" or not (wish or reason)
    setup(
        ext_modules=plain_extensions() if compiles else [],
        setup_requires=[MYPY] if compiles and not wish else [],
        cmdclass={"build_ext": BuildKernel},
    )


if __name__ == "__main__":
    main()
