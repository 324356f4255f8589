"""The run tests what it says it tests: the plain kernel, or the compiled one."""

from __future__ import annotations

import importlib
import os
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXPECTED = os.environ.get("DATALATTICE_EXPECT_COMPILED")


def compiled_modules() -> list[str]:
    """Return the dotted names of the modules that the build script compiles."""
    script = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    sources: list[Path] = script["compiled_sources"](ROOT)
    return [".".join(source.with_suffix("").parts[1:]) for source in sources]


@pytest.mark.skipif(EXPECTED is None, reason="`make test` says which mode it runs")
@pytest.mark.parametrize("name", compiled_modules())
def test_kernel_modules_are_in_the_mode_of_this_run(name: str) -> None:
    found = Path(importlib.import_module(name).__file__ or "")
    assert found.suffix == (".so" if EXPECTED == "1" else ".py"), str(found)
