"""The faults that `tests/scripts/mutations.py` puts into the product still fit it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

SCRIPT = Path(__file__).resolve().parent / "scripts" / "mutations.py"


def script(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_every_mutation_fits_one_place_and_names_tests_that_exist() -> None:
    assert script("--check") == (0, "")


def test_a_choice_of_nothing_is_no_success() -> None:
    code, told = script("--check", "no such title")
    assert code == 1
    assert "no mutation has such a title" in told
