"""Make a wheel of the compiled package, and try it in a fresh environment without a compiler.

    python tests/scripts/wheel.py build/compiled build/wheel

`make wheel` runs this. The wheel is made from the compiled modules in the first folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

SMOKE = """
import hashlib, sys
import datalattice
from datalattice.crypto import HASH_LANES, sha3_256_many

with datalattice.open(sys.argv[1]) as node:
    node.database("shop")["opened"] = True
    node.queue("log").offer("hello")
with datalattice.open(sys.argv[1]) as node:
    assert node.database("shop")["opened"] is True
    assert node.queue("log")[0] == "hello"
messages = [bytes([size]) * size * 5 for size in range(40)]
for lanes in HASH_LANES:
    assert sha3_256_many(messages, lanes) == [hashlib.sha3_256(m).digest() for m in messages]
print(datalattice.__file__)
"""


def make_wheel(compiled: Path, out: Path) -> Path:
    """Make the wheel of the package in `compiled`, in the folder `out`; return its path."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        lib = Path(folder, "lib")
        shutil.copytree(compiled, lib, ignore=shutil.ignore_patterns(".ready", "__pycache__"))
        settings = Path(folder, "wheel.cfg")
        settings.write_text(
            f"[build]\nbuild_base={folder}\nbuild_lib={lib}\n[egg_info]\negg_base={folder}\n"
            f"[bdist_wheel]\ndist_dir={out.resolve()}\n",
            encoding="utf-8",
        )
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--skip-build"],
            cwd=ROOT,
            env={
                **os.environ,
                "DATALATTICE_COMPILE": "1",
                "DIST_EXTRA_CONFIG": str(settings),
            },
            capture_output=True,
            check=True,
        )
    (wheel,) = out.glob("datalattice-*.whl")
    return wheel


def try_installed(python: Path, packages: str = "") -> str:
    """Return what `lattice --version` prints, after a write, a read and hashes in every width.

    `packages` is where `python` finds the installed wheel, if not in its own environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        # No compiler is found: the search path is an empty folder.
        env = {"PATH": folder, "HOME": folder, "PYTHONPATH": packages}

        def run(*arguments: str) -> str:
            return subprocess.run(
                [python, "-P", *arguments],
                env=env,
                cwd=folder,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout

        found = run("-c", SMOKE, str(Path(folder, "data")))
        if not Path(found.strip()).is_relative_to(packages or python.parent.parent):
            raise SystemExit(f"make wheel: {found.strip()} was tried, not the installed wheel")
        return run("-m", "datalattice.cli", "--version").strip()


def main() -> None:
    compiled, out = map(Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    wheel = make_wheel(compiled, out)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "install",
        ]
        pip += ["--only-binary=:all:", "--constraint", ROOT / "constraints.txt", wheel]
        subprocess.run(pip, check=True)
        version = try_installed(python)
    if ", compiled" not in version:
        raise SystemExit(f"make wheel: {version}: the kernel is missing")
    sys.stdout.write(f"make wheel: {wheel}: {version}\n")


if __name__ == "__main__":
    main()
