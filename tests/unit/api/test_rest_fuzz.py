"""The REST door under generated requests: no server error, no answer that is not described."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.service.cases import World

pytest.importorskip("starlette")
schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, settings  # noqa: E402 - behind what may be missing
from schemathesis.checks import CHECKS  # noqa: E402

from datalattice.api.rest import rest_app  # noqa: E402
from datalattice.service.access import Principal  # noqa: E402

WORLD = World()
APP, _ = rest_app(WORLD.service, lambda _: Principal(None, "socket"), heartbeat_s=0.01)
SCHEMA = schemathesis.openapi.from_asgi("/api/v1/openapi.json", APP)


@SCHEMA.exclude(path_regex="follow|watch|events|streams/").parametrize()  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings("ignore:Skipped test cases with unsupported payload")
@settings(max_examples=15, deadline=timedelta(seconds=30), suppress_health_check=list(HealthCheck))
def test_no_request_is_a_fault(case: Any) -> None:
    checks = [CHECKS.get_one(name) for name in ("not_a_server_error", "status_code_conformance")]
    response = case.call()
    if response.status_code in (502, 503, 504):
        return  # no node runs here, so no peers can be asked
    case.validate_response(response, checks=checks)
