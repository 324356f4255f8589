"""DIDs: the names of venues, the keys that may sign for them, and the URLs of their documents.

A `did:key` carries its Ed25519 key in its text. A `did:web` names a host whose document lists keys;
`authority` fetches it. A `did:convex` is accepted as a name, but no key can be shown to sign for
it. Method names and identifiers are compared as written.

Source: W3C DID Core "DID URL Syntax"; docs/grid.md "DIDs", "Who may write"; COG-2 "Identifiers",
    "DID documents"; COG-4 "Venues", "Security"; DID method web "Read".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from datalattice.cells import Value
from datalattice.errors import UsageError
from datalattice.lattice import did_of, is_bare_did, public_key_of

_METHODS: Final = ("key", "web", "convex")
"""DID methods that venues may use."""

_KEY_PREFIX: Final = "did:key:"
WEB_PREFIX: Final = "did:web:"
DOCUMENT: Final = "did.json"

# Letters, digits, dots and hyphens: what a URL host may be.
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SEGMENT: Final = re.compile(r"([A-Za-z0-9._-]|%[0-9A-Fa-f]{2})+")
_PORT_MAX: Final = 65_535
_METHODS_LISTED_MAX: Final = 100  # a document is fetched from a stranger
"""Most keys of one document that are read."""


@dataclass(frozen=True, slots=True)
class DIDUrl:
    """The parts of a DID URL, without their marks; None if the mark is absent."""

    did: str
    path: str | None = None
    query: str | None = None
    fragment: str | None = None


def split_did_url(text: str) -> DIDUrl:
    """Return the parts of a DID URL. Raises: UsageError: it does not begin with a DID."""
    rest, mark, fragment = text.partition("#")
    rest, asked, query = rest.partition("?")
    did, slash, path = rest.partition("/")
    if not is_bare_did(did):  # "only its canonical one appears": no path, query or fragment
        raise UsageError(f"a DID URL does not begin with did:<method>:<name>: {text[:80]!r}")
    return DIDUrl(
        did,
        path if slash else None,
        query if asked else None,
        fragment if mark else None,
    )


def did_method(did: Value) -> str | None:
    """Return the method of a bare DID, None for another value or a `did:key` without a key."""
    if not is_bare_did(did):
        return None
    assert isinstance(did, str)
    method = did.split(":", 2)[1]
    # A did:key without a valid key can never sign.
    return None if method == "key" and public_key_of(did) is None else method


def is_venue_did(did: Value) -> bool:
    """Return whether a value is a bare DID of a method that venues may use: a key of `:venues`."""
    return did_method(did) in _METHODS


def checked_did(did: object) -> str:
    """Return `did` if a venue can have it. Raises: UsageError: it cannot."""
    if isinstance(did, str) and is_venue_did(did):
        return did
    raise UsageError(
        f"the DID of a venue is not did:key:z..., did:web:... or did:convex:... without path, "
        f"query or fragment: {did!r}"
    )


def document_url(did: str, *, allow_http: bool = False) -> str:
    """Return the URL of the document of a `did:web`; `allow_http` uses HTTP for loopback hosts.

    Raises: UsageError: it is not a `did:web`, or its host, port or path is invalid.
    """
    if not is_bare_did(did) or not did.startswith(WEB_PREFIX):
        raise UsageError(f"a did:web is did:web:<host>, with :<segment> for a path, got {did!r}")
    authority, *segments = did.removeprefix(WEB_PREFIX).split(":")
    # The colon of a port is written %3A.
    host, mark, port = authority.replace("%3a", "%3A").partition("%3A")
    if not _HOST.fullmatch(host) or ".." in host:  # the host goes into a URL: nothing else may
        raise UsageError(
            f"the host of {did!r} is not letters, digits, dots and hyphens: {host[:80]!r}"
        )
    if mark and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _PORT_MAX):
        raise UsageError(f"the port of {did!r} is not 1 to {_PORT_MAX}: {port!r}")
    for segment in segments:
        # A segment must not lead out of the path.
        if not _SEGMENT.fullmatch(segment) or segment in {".", ".."} or "%2f" in segment.lower():
            raise UsageError(
                f"a path segment of {did!r} is not letters, digits, `.`, `_`, `-` and %XX other "
                f"than %2F: {segment!r}"
            )
    # "`allow_http=True` ... lets it use HTTP to loopback hosts" (docs/grid.md "Who may write").
    scheme = "http" if allow_http and is_loopback(host) else "https"
    # "`https://host/a/b/did.json`, without path at `/.well-known/did.json`" (docs/grid.md "DIDs").
    path = "/".join([*segments, DOCUMENT] if segments else [".well-known", DOCUMENT])
    return f"{scheme}://{host}{':' + port if mark else ''}/{path}"


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address, without resolving names."""
    if host.lower() == "localhost":
        return True
    try:  # an address, if it is not the name
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def venue_document(did: str, public_key: bytes, endpoint: str | None = None) -> dict[str, Any]:
    """Return the DID document of a venue with this key, for its web server."""
    multikey = did_of(public_key).removeprefix(_KEY_PREFIX)
    name = f"{checked_did(did)}#{multikey}"
    method = {
        "id": name,
        "type": "Multikey",
        "controller": did,
        "publicKeyMultibase": multikey,
    }
    document: dict[str, Any] = {
        "@context": "https://www.w3.org/ns/did/v1",
        "id": did,
        "verificationMethod": [method],
        "authentication": [name],
        "assertionMethod": [name],
        "capabilityDelegation": [name],
        "capabilityInvocation": [name],
    }
    if endpoint is not None:
        document["service"] = [
            {"id": f"{did}#covia", "type": "Covia.API.v1", "serviceEndpoint": endpoint}
        ]
    return document


def assertion_keys(did: str, document: object) -> frozenset[bytes]:
    """Return the Ed25519 keys that may sign for a DID, by its resolved document.

    They are under `assertionMethod`, in full or by reference to a `verificationMethod` of the same
    document. A document of another DID has none.
    """
    # "Its `id` must be the DID" (docs/grid.md "Who may write").
    if not isinstance(document, Mapping) or document.get("id") != did:
        return frozenset()
    known: dict[str, bytes] = {}
    for method in _listed(document, "verificationMethod"):
        key = _method_key(method)
        if key is not None and isinstance(method.get("id"), str):
            known[_absolute(did, method["id"])] = key
    found: set[bytes] = set()
    for entry in _listed(document, "assertionMethod"):
        key = known.get(_absolute(did, entry)) if isinstance(entry, str) else _method_key(entry)
        if key is not None:
            found.add(key)
    return frozenset(found)


def may_write(did: Value, signer: bytes, document: object = None) -> bool:
    """Return whether a key may write for a DID; a `did:web` needs its document."""
    method = did_method(did)
    if method is None or not isinstance(did, str):
        return False
    if method == "key":
        return public_key_of(did) == signer  # the key is in the DID itself
    return method == "web" and signer in assertion_keys(did, document)


def _listed(document: Mapping[str, Any], member: str) -> Iterator[Any]:
    entries = document.get(member)
    if isinstance(entries, list):
        yield from entries[:_METHODS_LISTED_MAX]  # bounded: the document is a stranger's


def _absolute(did: str, name: str) -> str:
    # A reference may leave the DID out.
    return did + name if name.startswith("#") else name


def _method_key(method: object) -> bytes | None:
    if not isinstance(method, Mapping):
        return None
    multikey = method.get("publicKeyMultibase")
    # Other methods and key types give no key.
    return public_key_of(_KEY_PREFIX + multikey) if isinstance(multikey, str) else None
