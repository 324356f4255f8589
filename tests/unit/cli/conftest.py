"""The command line, run in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from datalattice.cli.main import run


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """Return the error that `--json` prints: one line, nothing else."""
        assert self.out == ""
        assert self.err.count("\n") == 1
        found = json.loads(self.err)
        assert set(found) == {"error", "message"}
        return found

    def line(self) -> str:
        """Return the one line of an error for people."""
        assert self.err.startswith("lattice: ")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.err
        return self.err.removeprefix("lattice: ").rstrip("\n")


Lattice = Callable[..., Ran]


@pytest.fixture
def lattice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Lattice:
    """Run `lattice ARGUMENTS` over the folder `home` in `tmp_path`."""
    monkeypatch.setenv("DATALATTICE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DATALATTICE_DEBUG", raising=False)

    def lattice(*arguments: object, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = run([str(one) for one in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return lattice


@pytest.fixture
def owner(lattice: Lattice) -> str:
    """Make the node's key, and return its public part in hex."""
    found = lattice("key", "new", "--json").document["public_key"]
    assert isinstance(found, str)
    return found
