"""What integration tests share: one Spark, since each would take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Give a local Spark of two cores with our formats; tests leave it as it is."""
    pytest.importorskip("pyspark")
    from datalattice.pipeline import end_session, register, spark_session

    session = spark_session("tests", cores=2, memory="1g")
    register(session)
    yield session
    end_session(session)
