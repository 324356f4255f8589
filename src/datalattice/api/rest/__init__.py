"""REST: the service over HTTP, described by OpenAPI."""

from __future__ import annotations

from datalattice.api.rest.answers import BASE, file_pieces, take_upload
from datalattice.api.rest.app import (
    HEARTBEAT_S,
    LOCAL_HOSTS,
    Enter,
    RestDoor,
    rest_app,
)
from datalattice.api.rest.bodies import JSON_DEPTH_MAX, JSON_ELEMENTS_MAX
from datalattice.api.rest.connections import HTTP_LIMITS, BoundedHttp, HttpLimits
from datalattice.api.rest.problems import problem_answer
from datalattice.api.rest.requests import (
    byte_range,
    has_body,
    merged_headers,
    shown_credentials,
)
from datalattice.api.rest.room import (
    BODIES_BYTES_MAX,
    BODY_BYTES_MAX,
    SMALL_BODY_BYTES,
    BodyRoom,
    read_body,
)

__all__ = [
    "BASE",
    "BODIES_BYTES_MAX",
    "BODY_BYTES_MAX",
    "HEARTBEAT_S",
    "HTTP_LIMITS",
    "JSON_DEPTH_MAX",
    "JSON_ELEMENTS_MAX",
    "LOCAL_HOSTS",
    "SMALL_BODY_BYTES",
    "BodyRoom",
    "BoundedHttp",
    "Enter",
    "HttpLimits",
    "RestDoor",
    "byte_range",
    "file_pieces",
    "has_body",
    "merged_headers",
    "problem_answer",
    "read_body",
    "rest_app",
    "shown_credentials",
    "take_upload",
]
