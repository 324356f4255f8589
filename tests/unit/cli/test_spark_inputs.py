"""Commands `lattice spark merge` and `diff`: inputs that are not there."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from datalattice.cli.main import EXIT_WRONG_CALL, run

pytest.importorskip("pyspark")
from datalattice.pipeline import jobs


@pytest.mark.parametrize(
    "arguments", [["merge", "missing.archive", "--store", "made"], ["diff", "missing", "other"]]
)
def test_an_input_that_is_not_there_is_told_before_spark_starts(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Mock()
    monkeypatch.setattr(jobs, "job_session", started)
    assert run(["spark", *arguments]) == EXIT_WRONG_CALL
    assert f"{arguments[1]}: no store, folder of a node, or archive here" in capsys.readouterr().err
    started.assert_not_called()
