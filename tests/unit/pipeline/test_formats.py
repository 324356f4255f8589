"""Formats: what importing them costs is paid by every process that plans a query."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

PROGRAM = """
import sys
from datalattice.pipeline.formats import sources
assert sources()
print([name for name in ("asyncio", "datalattice.node", "ssl") if name in sys.modules])
"""


def test_what_reads_a_folder_does_not_import_what_belongs_to_nodes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
