"""What the documents show runs as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
"""Its examples go on where the one before ended."""


def blocks_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


EXAMPLES = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate(
        ["\n\n".join(blocks_of(path))] if path == TUTORIAL else blocks_of(path), 1
    )
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_in_documents_run_twice_in_one_folder(example: str, tmp_path: Path) -> None:
    for attempt in ("first", "second"):
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert ran.returncode == 0, f"{attempt} run: {ran.stderr}"


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    source = (ROOT / "examples" / "social.py").read_text(encoding="utf-8").splitlines()
    shown = [
        line for block in blocks_of(TUTORIAL) for line in block.split("# try it")[0].splitlines()
    ]
    differing = set(shown) - set(source) - {"class SocialToo(Social):", "Social = SocialToo"}
    assert not differing
    assert set(source[8:-4]) <= set(shown)
