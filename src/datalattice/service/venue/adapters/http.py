"""Adapter `http`: sends requests to hosts that the operator allows.

Callers put secrets into `headers`, which records hide. Errors and logs contain no headers, bodies,
paths or queries; results contain no `set-cookie`.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import ssl
import urllib.parse
from collections.abc import Sequence
from email.message import Message
from typing import TYPE_CHECKING, Final

from datalattice.client.settings import VenueHttpConfig
from datalattice.errors import UsageError
from datalattice.service.venue import (
    JobContext,
    Json,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    VenueOperation,
)
from datalattice.service.venue.adapters.hosts import HostRules
from datalattice.service.venue.adapters.inputs import members, sub_operation, text_member

if TYPE_CHECKING:
    import httpcore

    from datalattice.service.venue.adapters.guarded import HttpAnswer, HttpTarget, ResolveHost

_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH")

URL_CHARS_MAX: Final = 8_192
"""Longest URL with `queryParams`, in characters."""

FIELDS_MAX: Final = 50
"""Most header fields that a caller gives."""

FIELD_CHARS_MAX: Final = 8_192
"""Longest header field of a request, name and value, in characters."""

REDIRECTS_MAX: Final = 5
"""Most redirects that are followed; each is checked like the first URL."""

_MEMBERS: Final = ("url", "method", "headers", "queryParams", "body")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # "token" (RFC 9110)
_VALUE: Final = re.compile(r"(?![\t ])[\t\x20-\x7e\x80-\xff]*(?<![\t ])")
"""A "field-value" of RFC 9110: no line break, and no blank at either end."""
_OWN_FIELDS: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Fields that callers may not set: those of the connection, and those that the venue sets."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class HttpAdapter(PlainAdapter):
    """Runs `http:get`, `http:post` and `http:any`.

    config: the allowed hosts, and the limits of one request. tls: the trusted certificates.
    resolve, connections: for tests; by default those of the operating system.
    Raises: UsageError: the package httpcore is not installed.
    """

    name = "http"

    def __init__(
        self,
        config: VenueHttpConfig,
        *,
        resolve: ResolveHost | None = None,
        connections: httpcore.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        try:
            from datalattice.service.venue.adapters import guarded
        except ModuleNotFoundError as error:
            raise UsageError(
                f"http operations need {error.name}: pip install 'datalattice[venue]'"
            ) from error
        self._guarded: Final = guarded
        self._rules: Final = HostRules(config.allow, config.block, config.private)
        self._limits: Final = config
        self._tls: Final = tls or ssl.create_default_context()
        self._network: Final = guarded.GuardedNetwork(
            self._rules, resolve or guarded.resolve_host, connections
        )

    def operations(self) -> Sequence[VenueOperation]:
        """Return the three operations."""
        properties: dict[str, Json] = {
            "url": {"type": "string"},
            "headers": {"type": "object"},
            "queryParams": {"type": "object"},
        }
        with_body: dict[str, Json] = {**properties, "body": {}}
        each: dict[str, tuple[str, dict[str, Json], bool]] = {
            "get": ("Gets a resource", properties, False),
            "post": ("Posts a JSON body", with_body, True),
            "any": (
                "Sends a request with any method",
                {**with_body, "method": {"enum": list(_METHODS)}},
                True,
            ),
        }
        return [
            VenueOperation(
                f"http/{name}",
                {
                    "name": f"HTTP {name}",
                    "description": description,
                    "operation": {
                        "adapter": f"http:{name}",
                        "input": {"type": "object", "properties": known, "required": ["url"]},
                        "secretFields": ["headers"],
                    },
                },
                has_effects=has_effects,  # "safe methods" (RFC 9110): GET asks for no change
            )
            for name, (description, known, has_effects) in each.items()
        ]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse a malformed request, and a host whose name is not allowed."""
        _, to, _, _ = self._request(meta, input)
        # By name alone: the addresses are checked when the job connects.
        why = self._rules.refused_name(to.host)
        if why is not None:
            raise UsageError(why)

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Send the request; return `status`, `body` as text, and `headers`, also of an error.

        Raises: OperationFailed: the rules refuse the host, or the answer exceeds a limit.
                PeerUnavailable: the host does not answer.
        """
        method, to, fields, body = self._request(meta, input)
        # The effect key is equal in every attempt: "a service that knows this field does it once".
        fields += [("idempotency-key", job.effect_key().hex()), ("accept-encoding", "identity")]
        try:
            async with asyncio.timeout(self._limits.time_s):
                answer = await self._follow(method, to, fields, body)
        except TimeoutError:
            raise OperationFailed(f"{to} did not answer within {self._limits.time_s:g} s") from None
        return _shown(answer)

    def _request(
        self, meta: OperationMetadata, given: Json
    ) -> tuple[str, HttpTarget, list[tuple[str, str]], bytes]:
        """Return method, target, header fields and body of a request."""
        kind = sub_operation(meta, ["get", "post", "any"])
        request = members(given, _MEMBERS)
        method = text_member(request, "method", "POST" if kind == "post" else "GET").upper()
        if method not in _METHODS or (kind != "any" and method != kind.upper()):
            allowed = ", ".join(_METHODS) if kind == "any" else kind.upper()
            raise UsageError(f"`method` of http:{kind} is {allowed}, got {method[:20]!r}")
        to = self._target(_with_query(text_member(request, "url"), request.get("queryParams")))
        fields = _fields(request.get("headers"))
        body = b""
        if request.get("body") is not None:
            if method == "GET":
                raise UsageError("`body`: a GET has no body; use POST, PUT or PATCH")
            body = json.dumps(request["body"], ensure_ascii=False, allow_nan=False).encode()
            most = self._limits.body_bytes
            # The limit counts bytes, so it is checked on the encoded body.
            if len(body) > most:
                raise UsageError(f"`body` has at most {most} bytes, got {len(body)}")
            if all(name != "content-type" for name, _ in fields):
                fields.append(("content-type", "application/json"))
        return method, to, fields, body

    async def _follow(
        self, method: str, to: HttpTarget, fields: list[tuple[str, str]], body: bytes
    ) -> HttpAnswer:
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._guarded.fetch(
                self._network, self._tls, method, to, fields, body, self._limits.answer_bytes
            )
            place = dict(answer.fields).get("location")
            if answer.status not in _REDIRECTS or place is None:
                return answer
            after = self._redirected(to, place)
            if after.origin != to.origin:
                # Other fields of the caller may be secrets for the first host.
                kept = ("accept-encoding", "content-type", "idempotency-key")
                fields = [(name, value) for name, value in fields if name in kept]
            # "a user agent MAY change the request method from POST to GET" (RFC 9110) for 301 and
            # 302, as all do; 303 asks for it.
            if answer.status not in {307, 308} and method != "GET":
                method, body = "GET", b""
                fields = [(name, value) for name, value in fields if name != "content-type"]
            to = after
        raise OperationFailed(f"{to} redirects again after {REDIRECTS_MAX} redirects")

    def _redirected(self, to: HttpTarget, place: str) -> HttpTarget:
        base = str(to) + to.target.decode("ascii")
        try:
            after = self._target(urllib.parse.urljoin(base, place))
        except (UsageError, ValueError):
            raise OperationFailed(f"{to} redirects to a text that is not an http URL") from None
        # A redirect must not send the request, or its answer, over an unencrypted connection.
        if to.scheme == "https" and after.scheme != "https":
            raise OperationFailed(f"{to} redirects to {after}, which is not encrypted")
        return after

    def _target(self, url: str) -> HttpTarget:
        """Return the target of a URL. Raises: UsageError: it is not a valid http or https URL."""
        # Parsers disagree on these characters, and all must find the same host.
        if len(url) > URL_CHARS_MAX or re.search(r"[\x00-\x20\x7f\\]", url):
            raise UsageError(f"`url` has at most {URL_CHARS_MAX} characters, without blanks and \\")
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError:
            raise UsageError(
                "`url` is malformed; it is http://host/path or https://host/path"
            ) from None
        # "Only http and https."
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError("`url` begins with http:// or https:// and a host")
        if "@" in parts.netloc:  # records show the URL
            raise UsageError("`url` contains user or password; send them in `headers`")
        # `%` is kept: what the caller has escaped stays as it is.
        path = urllib.parse.quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
        query = urllib.parse.quote(parts.query, safe="/?%:@!$&'()*+,;=~")
        return self._guarded.HttpTarget(
            parts.scheme,
            _host(parts.hostname),
            port or (443 if parts.scheme == "https" else 80),
            (path + ("?" + query if query else "")).encode("ascii"),
        )


def _host(name: str) -> str:
    """Return a host as in DNS: ASCII in lower case, without the dot at the end."""
    if ":" in name:  # an IPv6 address, which urlsplit has checked
        return name.lower()
    try:
        host = name.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError:
        host = ""
    if not re.fullmatch(r"[a-z0-9_.-]{1,253}", host):
        raise UsageError("`url`: its host is not a valid name of DNS")
    return host


def _with_query(url: str, given: Json) -> str:
    if given is None:
        return url
    if not isinstance(given, dict):
        raise UsageError("`queryParams` is an object of texts, numbers and booleans, or lists")
    pairs = []
    for name, values in given.items():
        for value in values if isinstance(values, list) else [values]:
            if value is None or isinstance(value, (list, dict)):
                raise UsageError(f"`queryParams.{name}` is a text, a number or a boolean")
            # `true`, as the schema of the input writes it, and not `True`.
            text = json.dumps(value) if isinstance(value, (bool, float)) else str(value)
            pairs.append((name, text))
    front, hash_sign, fragment = url.partition("#")
    # "appended with `?` or `&`"
    joint = "&" if "?" in front else "?"
    query = urllib.parse.urlencode(pairs)
    return front + (joint + query if query else "") + hash_sign + fragment


def _fields(given: Json) -> list[tuple[str, str]]:
    if given is None:
        return []
    if not isinstance(given, dict) or len(given) > FIELDS_MAX:
        raise UsageError(f"`headers` is an object of at most {FIELDS_MAX} texts")
    fields = []
    for name, value in given.items():
        low = name.lower()
        if not _TOKEN.fullmatch(name) or low in _OWN_FIELDS or low.startswith("proxy-"):
            raise UsageError(
                f"`headers`: {name[:80]!r} is set by the venue, or is not the name of a field"
            )
        # Without the value, which may be a secret.
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise UsageError(
                f"`headers.{name}` is one line of Latin-1 text without blanks at its ends"
            )
        if len(name) + len(value) > FIELD_CHARS_MAX:
            raise UsageError(
                f"`headers.{name}` has at most {FIELD_CHARS_MAX} characters, got "
                f"{len(name) + len(value)}"
            )
        fields.append((low, value))
    return fields


def _shown(answer: HttpAnswer) -> Json:
    joined: dict[str, str] = {}
    for name, value in answer.fields:
        # "Repeated values joined with `, `"; cookies are secrets of a session.
        if name != "set-cookie":
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    headers: dict[str, Json] = {**joined}
    charset = _charset(joined.get("content-type", ""))
    return {
        "status": answer.status,
        "body": answer.body.decode(charset, "replace"),
        "headers": headers,
    }


def _charset(content_type: str) -> str:
    message = Message()
    message["content-type"] = content_type
    charset = message.get_content_charset("utf-8")
    try:
        # Only codecs of text: zlib and others could turn a few bytes into many.
        return charset if codecs.lookup(charset)._is_text_encoding else "utf-8"
    except (LookupError, ValueError):
        return "utf-8"
