"""Programs that use the front door type-check, and their mistakes are reported, by mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "typing"
ROOT = FOLDER.parent.parent


def reported(name: str) -> set[int]:
    """Return the numbers of the lines in which mypy finds errors, in a file of `typing`."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(FOLDER / name)]
    environment = {"MYPYPATH": str(ROOT / "src"), "PATH": ""}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode in (0, 1), ran.stderr
    errors = [line.split(":") for line in ran.stdout.splitlines() if ": error: " in line]
    return {int(number) for file, number, *_ in errors if Path(file).name == name}


def test_a_program_without_mistakes_checks() -> None:
    assert reported("checks.py") == set()


def test_each_mistake_is_reported() -> None:
    lines = (FOLDER / "refused.py").read_text().splitlines()
    marked = {at for at, line in enumerate(lines, 1) if line.endswith("# mistake")}
    assert reported("refused.py") == marked
