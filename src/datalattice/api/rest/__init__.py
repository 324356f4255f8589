"""REST: the service over HTTP, described by OpenAPI."""

from __future__ import annotations

from datalattice.api.rest.app import (
    BASE,
    BODY_BYTES_MAX,
    HEARTBEAT_S,
    LOCAL_HOSTS,
    Enter,
    RestDoor,
    merged_headers,
    read_body,
    rest_app,
)
from datalattice.api.rest.bodies import JSON_DEPTH_MAX, JSON_ELEMENTS_MAX
from datalattice.api.rest.problems import problem_answer
from datalattice.api.rest.requests import byte_range

__all__ = [
    "BASE",
    "BODY_BYTES_MAX",
    "HEARTBEAT_S",
    "JSON_DEPTH_MAX",
    "JSON_ELEMENTS_MAX",
    "LOCAL_HOSTS",
    "Enter",
    "RestDoor",
    "byte_range",
    "merged_headers",
    "problem_answer",
    "read_body",
    "rest_app",
]
