"""REST: the service over HTTP, described by OpenAPI."""

from __future__ import annotations

from datalattice.api.rest.answers import (
    BASE_PATH as BASE_PATH,
    file_pieces as file_pieces,
    take_upload as take_upload,
)
from datalattice.api.rest.app import (
    HEARTBEAT_S as HEARTBEAT_S,
    LOCAL_HOSTS as LOCAL_HOSTS,
    Enter as Enter,
    RestDoor as RestDoor,
    rest_app as rest_app,
)
from datalattice.api.rest.bodies import (
    JSON_DEPTH_MAX as JSON_DEPTH_MAX,
    JSON_ELEMENTS_MAX as JSON_ELEMENTS_MAX,
)
from datalattice.api.rest.connections import (
    HTTP_LIMITS as HTTP_LIMITS,
    BoundedHttp as BoundedHttp,
    HttpLimits as HttpLimits,
)
from datalattice.api.rest.problems import problem_answer as problem_answer
from datalattice.api.rest.requests import (
    asked_range as asked_range,
    has_body as has_body,
    merged_headers as merged_headers,
    shown_credentials as shown_credentials,
)
from datalattice.api.rest.room import (
    BODIES_BYTES_MAX as BODIES_BYTES_MAX,
    BODY_BYTES_MAX as BODY_BYTES_MAX,
    SMALL_BODY_BYTES as SMALL_BODY_BYTES,
    BodyRoom as BodyRoom,
    read_body as read_body,
)
