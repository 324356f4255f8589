"""Problems: errors as REST answers them, `application/problem+json`.

Source: docs/rest.md "Errors".
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from datalattice.api.rest.bodies import NotAcceptable, UnknownType
from datalattice.service import answer_to


def problem_body(error: BaseException, right: str, *, if_match: bool = False) -> tuple[Any, bytes]:
    """Return the status and the document of an error; arguments as `status_of`."""
    answer = answer_to(error, right, if_match=if_match)
    status = answer.status
    # These two statuses exist in HTTP only: no other door negotiates media types.
    if isinstance(error, UnknownType):
        status = status._replace(http=415)
    elif isinstance(error, NotAcceptable):
        status = status._replace(http=406)
    document = {
        "type": f"urn:datalattice:error:{answer.code}",
        "title": answer.code.replace("-", " "),
        "status": status.http,
        "detail": answer.text,
        "code": answer.code,
        "error": answer.text,  # the name that venues of other implementations use
    }
    hashes = getattr(error, "hashes", None)
    if hashes:
        document["missing"] = [hash.hex() for hash in hashes]
    return status, json.dumps(document).encode()


def problem_answer(error: BaseException, right: str, *, if_match: bool = False) -> Response:
    """Return the HTTP answer for an error. right: that the call needed."""
    status, body = problem_body(error, right, if_match=if_match)
    headers = {}
    if status.retry_s is not None:
        # In seconds, and at least 1: 0 would say at once.
        headers["retry-after"] = str(max(1, round(status.retry_s)))
    if status.http == 401:
        headers["www-authenticate"] = "Bearer"  # required (RFC 9110, 15.5.2)
    return Response(body, status.http, headers, "application/problem+json")
