"""The session of a command: what Spark says of a failure, in one line."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from datalattice.errors import DataLatticeError, UsageError

pytest.importorskip("pyspark")
from pyspark.errors import AnalysisException, PySparkException

from datalattice.pipeline.jobs import job_session, running


@pytest.mark.parametrize(
    ("failure", "kind"), [(AnalysisException, UsageError), (PySparkException, DataLatticeError)]
)
def test_an_error_of_spark_is_reported_in_one_line(
    failure: type[PySparkException],
    kind: type[DataLatticeError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "_active", Mock(return_value=None))
    for name in ("spark_session", "register", "end_session"):
        monkeypatch.setattr(running, name, Mock())
    with (
        pytest.raises(kind, match=r"^Spark: \[PATH_NOT_FOUND\] x\.$") as found,
        job_session("test", master=None, memory="1g", package=None),
    ):
        raise failure(message="[PATH_NOT_FOUND] x.\nJVM stacktrace")
    assert type(found.value) is kind
