"""A source tree installs with the compiled kernel where it can, and in one line says where not."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import datalattice
from datalattice.version import VERSION

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "tests" / "scripts" / "wheel.py"), run_name="wheel")
IS_COMPILED = os.environ.get("DATALATTICE_EXPECT_COMPILED") == "1"

pytestmark = [pytest.mark.once, pytest.mark.processes]


def try_wheel(wheel: Path, packages: Path) -> str:
    """Install beside the packages of this environment: no index is asked."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-index", "--no-deps", "--target", str(packages)]
    subprocess.run([*pip, *options, str(wheel)], check=True)
    version: str = SCRIPT["try_installed"](Path(sys.executable), str(packages))
    return version


@pytest.mark.skipif(not IS_COMPILED, reason="the wheel is put together from a compiled kernel")
def test_a_wheel_of_the_compiled_kernel_works_without_a_compiler(tmp_path: Path) -> None:
    compiled = Path(datalattice.__file__).parent.parent
    wheel = SCRIPT["make_wheel"](compiled, tmp_path / "made")
    assert "-none-any" not in wheel.name
    assert ", compiled" in try_wheel(wheel, tmp_path / "packages")


def test_without_a_compiler_an_archive_of_the_sources_installs_as_pure_python(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "settings.cfg"
    settings.write_text(f"[egg_info]\negg_base={tmp_path}\n", encoding="utf-8")
    setup = [sys.executable, "setup.py", "--quiet"]
    env = {name: value for name, value in os.environ.items() if name != "DATALATTICE_COMPILE"}
    env |= {"CC": "false", "DIST_EXTRA_CONFIG": str(settings)}
    subprocess.run([*setup, "sdist", "--dist-dir", tmp_path], cwd=ROOT, env=env, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as held:
        held.extractall(tmp_path, filter="data")
    tree = tmp_path / archive.name.removesuffix(".tar.gz")
    sources = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["plain_extensions"]()
    needed = [name for one in sources for name in [*one.sources, *one.depends]]
    assert [name for name in needed if not (tree / name).exists()] == []

    made = subprocess.run(
        [*setup, "bdist_wheel"], cwd=tree, env=env, capture_output=True, text=True, check=True
    )
    said = [line for line in made.stderr.splitlines() if line.startswith("datalattice:")]
    assert len(said) == 1
    assert "pure Python" in said[0]
    assert "no C compiler" in said[0]
    (wheel,) = (tree / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert try_wheel(wheel, tmp_path / "packages") == f"lattice {VERSION}, pure Python"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("insists", [True, False])
def test_without_mypyc_only_who_insists_on_the_kernel_is_refused(
    insists: bool, tmp_path: Path
) -> None:
    (tmp_path / "mypyc").mkdir()
    (tmp_path / "mypyc" / "__init__.py").write_text("raise ImportError('no mypyc here')")
    env = {name: value for name, value in os.environ.items() if name != "DATALATTICE_COMPILE"}
    env |= {"PYTHONPATH": str(tmp_path)} | ({"DATALATTICE_COMPILE": "1"} if insists else {})
    ran = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path / "lib")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == (1 if insists else 0), ran.stderr
    assert "no mypyc here" in ran.stderr
    assert list(tmp_path.glob("lib/**/*.so")) == []
