"""What the documents show runs as shown."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from datalattice.testing.ports import held_port

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "tests" / "scripts" / "forking_server.py"
TUTORIAL = ROOT / "docs" / "tutorial.md"
TUTORIALS = {TUTORIAL, ROOT / "docs" / "start" / "inventory.md"}
"""Their examples go on where the one before ended."""


def blocks_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


EXAMPLES = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate(
        ["\n\n".join(blocks_of(path))] if path in TUTORIALS else blocks_of(path), 1
    )
]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the command behind which `lattice ARGUMENTS` or `program CODE` runs as a process."""
    path = str(tmp_path_factory.mktemp("server") / "socket")
    command = [sys.executable, str(SERVER), path]
    with subprocess.Popen(command, start_new_session=True) as server:
        try:
            while not Path(path).exists():
                assert server.poll() is None, "it ended while it imported the package"
            # Without site packages: the server has them.
            yield [sys.executable, "-I", "-S", *command[1:]]
        finally:
            os.killpg(server.pid, signal.SIGKILL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_in_documents_run_twice_in_one_folder(
    shim: list[str], example: str, tmp_path: Path
) -> None:
    for attempt in ("first", "second"):
        ran = subprocess.run(
            [*shim, "program", example],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert ran.returncode == 0, f"{attempt} run: {ran.stderr}"


SHELL_PAGES = [
    page
    for page in [
        ROOT / "README.md",
        ROOT / "docs" / "repl.md",
        *sorted((ROOT / "docs" / "start").glob("*.md")),
        *sorted((ROOT / "docs" / "guides").glob("*.md")),
    ]
    if "```sh\n" in page.read_text(encoding="utf-8")
]
PORT = "18888"
"""At which nodes listen on the pages; a test takes a free one."""


def script_of(page: Path, folder: Path) -> str:
    """Return the `sh` and `python` blocks of a page in order, as one script.

    Where the page waits some seconds for a node, the script waits until its peer has equal data.
    """
    blocks = re.findall(
        r"^```(sh|python)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    lines = ["set -e", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for number, (language, text) in enumerate(blocks):
        if language == "sh":
            lines.append(text)
        else:
            (folder / f"block{number}.py").write_text(text, encoding="utf-8")
            lines.append(f'program "$(cat block{number}.py)"')
    return re.sub(
        r"(node start -d (\w+).*\n)sleep .*",
        r"\1until test -e \2/running.json; do sleep 0.1; done\n"
        r"until lattice node peers -d \2 | grep -q equal; do sleep 0.2; done",
        "\n".join(lines),
    )


@pytest.mark.once
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", SHELL_PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_run_in_order_twice_in_one_folder(
    shim: list[str], page: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("lattice", "program"):
        text = f'#!/bin/sh\nexec {shlex.join([*shim, name])} "$@"\n'
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    environment = {
        **{name: text for name, text in os.environ.items() if name != "DATALATTICE_HOME"},
        "HOME": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    for attempt in ("first", "second"):
        with held_port() as port:
            ran = subprocess.run(
                ["bash", "-c", script_of(page, tmp_path).replace(PORT, str(port))],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=110,
                check=False,
            )
        assert ran.returncode == 0, f"{attempt} run: {ran.stdout}{ran.stderr}"


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    source = (ROOT / "examples" / "social.py").read_text(encoding="utf-8").splitlines()
    shown = [
        line for block in blocks_of(TUTORIAL) for line in block.split("# try it")[0].splitlines()
    ]
    differing = set(shown) - set(source) - {"class SocialToo(Social):", "Social = SocialToo"}
    assert not differing
    assert set(source[8:-4]) <= set(shown)
