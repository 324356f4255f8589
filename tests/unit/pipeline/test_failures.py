"""Failures: the error inside Spark's exception is found and raised as what it is."""

from __future__ import annotations

import pytest

from datalattice.errors import DataLatticeError, DataLoss, UsageError
from datalattice.pipeline import clear_errors
from datalattice.pipeline.spark.failures import lattice_error

SPARKS = """[PYTHON_DATA_SOURCE_ERROR] Failed to create: Traceback (most recent call last):
  File "options.py", line 1, in parse
datalattice.errors.UsageError: first

During handling of the above exception, another exception occurred:

datalattice.errors.{name}: {text}
 SQLSTATE: 38000"""


@pytest.mark.parametrize("kind", [UsageError, DataLoss])
def test_the_last_error_named_is_raised(kind: type[DataLatticeError]) -> None:
    with pytest.raises(kind) as caught, clear_errors():
        raise RuntimeError(SPARKS.format(name=kind.__name__, text="option x='y' is not accepted"))
    assert str(caught.value) == "option x='y' is not accepted"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_missing_data_keeps_its_text() -> None:
    error = lattice_error(RuntimeError(SPARKS.format(name="MissingData", text="missing cells: 0x")))
    assert type(error) is DataLatticeError
    assert str(error) == "missing cells: 0x"


@pytest.mark.parametrize("text", ["other", "datalattice.errors.Nothing: x", "errors.UsageError: x"])
def test_other_errors_pass(text: str) -> None:
    with pytest.raises(RuntimeError), clear_errors():
        raise RuntimeError(text)
