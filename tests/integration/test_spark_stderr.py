"""Spark prints no traceback when it closes the connections of idle Python workers.

Spark closes a worker that was idle for a minute. The worker that looks up data sources imports
nothing of this package but `pyspark_datalattice`, which Spark finds by its name.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datalattice.testing.processes import killing

pytest.importorskip("pyspark")
nbformat: Any = pytest.importorskip("nbformat")
nbclient: Any = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(280)]

IDLE_SECONDS = 75
"""Longer than the minute after which Spark closes idle workers, which it looks for every 10 s."""

WORK = """
import time
import datalattice
from datalattice.pipeline import end_session, read_queue, spark_session

with datalattice.open({folder!r}) as node:
    node.queue("orders").offer_many([{{"n": n}} for n in range(20_000)])
spark = spark_session("idle", cores=2)
orders = read_queue(spark, {folder!r}, topic="orders", value_format="json")
orders.show(2)  # reads a part of the rows and closes the connection
orders.limit(5).collect()
print(orders.groupBy("partition").count().collect()[0]["count"])
time.sleep({idle})
orders.show(2)
end_session(spark)
print("end")
"""


def test_idle_workers_end_without_a_traceback_in_a_script_and_in_a_notebook(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORK.format(folder=str(tmp_path / "a"), idle=IDLE_SECONDS))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with killing(process):
        notebook = nbformat.v4.new_notebook()
        source = WORK.format(folder=str(tmp_path / "b"), idle=IDLE_SECONDS)
        notebook.cells = [nbformat.v4.new_code_cell(source)]
        nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert printed.endswith("end\n")
    assert "20000\n" in printed
    assert errors == ""
    streams = {"stdout": "", "stderr": ""}
    for output in notebook.cells[0].outputs:
        streams[output["name"]] += output["text"]
    assert streams["stdout"].endswith("end\n")
    assert streams["stderr"] == ""
