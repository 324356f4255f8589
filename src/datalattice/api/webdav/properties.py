"""Properties: the properties of a resource for PROPFIND, and their changes by PROPPATCH.

A property that a client sets is stored as the XML inside its element; if the element has
attributes, such as the language, as the element itself. One that another door set is plain text.

Source: RFC 4918 sections 9.1, 9.2, 15.
"""

from __future__ import annotations

import mimetypes
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from datalattice.actions import FileInfo, LockInfo
from datalattice.api.webdav.documents import (
    LANG,
    XMLElement,
    escaped_text,
    read_xml,
    split_name,
    write_children,
    write_xml,
)
from datalattice.errors import BadFormat, LimitExceeded, UsageError

DAV: Final = "{DAV:}"
_TYPES: Final = mimetypes.MimeTypes(())  # without this machine's own list of types
_OCTETS: Final = "application/octet-stream"


class Resource(NamedTuple):
    """One resource as PROPFIND shows it.

    info: None: it is above the drives. locks: that cover it, each with the URL of its root.
    """

    href: str
    name: str
    info: FileInfo | None
    locks: tuple[tuple[LockInfo, str], ...] = ()
    now_ms: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory (a collection in WebDAV)."""
        return self.info is None or self.info.is_directory


def content_type(name: str) -> str:
    """Return the media type for the name of a file."""
    kind, encoding = _TYPES.guess_type(f"./{name}")
    return kind if kind is not None and encoding is None else _OCTETS


def entity_tag(info: FileInfo | None) -> str | None:
    """Return the strong tag of a file's content, its hash; directories have none."""
    if info is None or info.content_hash is None:
        return None
    # In base64 for its length: some clients limit a line with several tags to 200 characters.
    return f'"{urlsafe_b64encode(info.content_hash).decode().rstrip("=")}"'


def http_date(ms: int) -> str:
    """Return a time in the form of HTTP."""
    # Peers choose times, and a year in HTTP has four digits: later times become 9999.
    return formatdate(min(ms // 1_000, 253_402_300_799), usegmt=True)


# --- live properties ------------------------------------------------------------------------------


def _file_only(show: Callable[[FileInfo], str | None]) -> Callable[[Resource], str | None]:
    def shown(resource: Resource) -> str | None:
        info = resource.info
        return None if info is None or info.is_directory else show(info)

    return shown


def _modified(resource: Resource) -> str | None:
    info = resource.info
    # "getlastmodified only when utime > 0"
    return None if info is None or info.modified_ms <= 0 else http_date(info.modified_ms)


def _lock_discovery(resource: Resource) -> str | None:
    return "".join(active_lock(lock, root, resource.now_ms) for lock, root in resource.locks)


_ENTRY: Final = (
    "<D:lockentry><D:lockscope><D:{}/></D:lockscope>"
    "<D:locktype><D:write/></D:locktype></D:lockentry>"
)

_LIVE: Final[Mapping[str, Callable[[Resource], str | None]]] = {
    f"{DAV}displayname": lambda one: escaped_text(one.name),
    f"{DAV}resourcetype": lambda one: "<D:collection/>" if one.is_directory else "",
    f"{DAV}getcontentlength": _file_only(lambda info: str(info.size)),
    f"{DAV}getcontenttype": lambda one: None if one.is_directory else content_type(one.name),
    f"{DAV}getetag": _file_only(entity_tag),
    f"{DAV}getlastmodified": _modified,
    f"{DAV}supportedlock": lambda one: (
        None if one.info is None else _ENTRY.format("exclusive") + _ENTRY.format("shared")
    ),
    f"{DAV}lockdiscovery": _lock_discovery,
}
"""The functions that show the computed properties; they return None if a resource lacks one."""

PROTECTED: Final = frozenset([*_LIVE, f"{DAV}creationdate", f"{DAV}getcontentlanguage"])
"""Properties that clients cannot set."""


def active_lock(lock: LockInfo, root: str, now_ms: int) -> str:
    """Return a lock as XML. root: the URL of the locked file or directory."""
    left_s = max(0, (lock.expires_ms - now_ms) // 1_000)
    return (
        f"<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope>"
        f"<D:{'shared' if lock.is_shared else 'exclusive'}/></D:lockscope>"
        f"<D:depth>{'infinity' if lock.is_deep else '0'}</D:depth>"
        f"<D:owner>{write_children(_read_inside(lock.owner_note))}</D:owner><D:timeout>Second-{left_s}</D:timeout>"
        f"<D:locktoken><D:href>{escaped_text(lock.token)}</D:href></D:locktoken>"
        f"<D:lockroot><D:href>{escaped_text(root)}</D:href></D:lockroot></D:activelock>"
    )


# --- stored properties ----------------------------------------------------------------------------


def stored_text(element: XMLElement, language: str = "") -> str:
    """Return the text in which the value of a property is stored.

    language: of the elements around it.
    """
    if language and LANG not in element.attributes:
        element = XMLElement(element.name, {LANG: language, **element.attributes}, element.children)
    below = element.elements()
    if element.attributes or (len(below) == 1 and below[0].name == element.name):
        return write_xml(element)
    return write_children(element)


@lru_cache(4_096)
def _shown(name: str, value: str) -> str | None:
    """Return the element of a stored property; None: its name is not a name of XML."""
    namespace, local = split_name(name)
    xmlns = f"xmlns={quoteattr(namespace)}"
    try:
        made = read_xml(f"<{local} {xmlns}/>".encode())
    except (BadFormat, LimitExceeded, UnicodeEncodeError):
        return None
    if made.name != name:
        return None  # part of the name was read as an attribute
    # A peer may have stored any text, so it is parsed and written anew.
    held = _read_inside(value)
    below = held.elements()
    if len(below) == 1 == len(held.children) and below[0].name == name:
        return write_xml(below[0])
    return write_xml(XMLElement(name, {}, held.children))


def _read_inside(text: str) -> XMLElement:
    """Return an element that contains a text as XML, or as plain text if it is not XML."""
    try:
        return read_xml(f"<v>{text}</v>".encode())
    except (BadFormat, LimitExceeded, UnicodeEncodeError):
        return XMLElement("v", {}, [text])


# --- PROPFIND -------------------------------------------------------------------------------------


class RequestedProperties(NamedTuple):
    """The properties that a PROPFIND asks for.

    names: of the properties. is_all: all properties, besides those in `names`. is_names: only the
    names of all properties.
    """

    names: tuple[str, ...] = ()
    is_all: bool = False
    is_names: bool = False

    @classmethod
    def parse(cls, body: bytes) -> RequestedProperties:
        """Return the properties that a body asks for; an empty body asks for all.

        Raises: BadFormat: it is not a `propfind`. LimitExceeded: as `read_xml`.
        """
        if not body:
            return cls(is_all=True)
        root = read_xml(body)
        if root.name == f"{DAV}propfind":
            included = root.named(f"{DAV}include")
            more = () if included is None else tuple(one.name for one in included.elements())
            asked = root.named(f"{DAV}prop")
            # A property that is named twice is answered once.
            if asked is not None:
                return cls(tuple(dict.fromkeys(one.name for one in asked.elements())))
            if root.named(f"{DAV}allprop") is not None:
                return cls(more, is_all=True)
            if root.named(f"{DAV}propname") is not None:
                return cls(is_names=True)
        raise BadFormat("the body must be a propfind with prop, allprop or propname in it")

    @property
    def needs_locks(self) -> bool:
        """Whether the answer shows locks."""
        return self.is_all or f"{DAV}lockdiscovery" in self.names


def response(resource: Resource, wanted: RequestedProperties) -> str:
    """Return the `response` element of a resource."""
    held = {} if resource.info is None else {p.name: p.value for p in resource.info.properties}
    found: list[str] = []
    missing: list[str] = []
    names: Iterable[str] = wanted.names
    if wanted.is_all or wanted.is_names:
        names = dict.fromkeys([*_LIVE, *held, *wanted.names])
    for name in names:
        text = _property(resource, held, name)
        if text is None:
            missing.append(name)
        elif wanted.is_names:
            found.append(write_xml(XMLElement(name)))
        else:
            found.append(text)
    # Only properties asked for by name are reported as missing.
    lacking = [one for one in missing if one in wanted.names]
    parts = [f"<D:response><D:href>{escaped_text(resource.href)}</D:href>"]
    if found or not lacking:
        parts.append(_propstat("".join(found), "200 OK"))
    if lacking:
        empty = "".join(write_xml(XMLElement(one)) for one in lacking)
        parts.append(_propstat(empty, "404 Not Found"))
    parts.append("</D:response>")
    return "".join(parts)


def _property(resource: Resource, held: Mapping[str, str], name: str) -> str | None:
    live = _LIVE.get(name)
    if live is not None:
        inside = live(resource)
        local = split_name(name)[1]
        return None if inside is None else f"<D:{local}>{inside}</D:{local}>"
    value = held.get(name)
    return None if value is None else _shown(name, value)


def _propstat(inside: str, status: str, error: str = "") -> str:
    return (
        f"<D:propstat><D:prop>{inside}</D:prop><D:status>HTTP/1.1 {status}</D:status>"
        f"{error}</D:propstat>"
    )


def multistatus() -> tuple[str, str]:
    """Return the text before and after the responses in the body of a 207."""
    head = '<?xml version="1.0" encoding="utf-8"?>\n<D:multistatus xmlns:D="DAV:">'
    return head, "</D:multistatus>"


# --- PROPPATCH ------------------------------------------------------------------------------------


def changes_in(body: bytes) -> dict[str, str | None]:
    """Return the changes of a PROPPATCH by property, in order: a text to set, None to remove.

    Raises: BadFormat: it is not a `propertyupdate`. UsageError: it names no property.
            LimitExceeded: as `read_xml`.
    """
    root = read_xml(body)
    if root.name != f"{DAV}propertyupdate":
        raise BadFormat("the body must be a propertyupdate with set and remove in it")
    found: dict[str, str | None] = {}
    for step in root.elements():
        is_set = step.name == f"{DAV}set"
        if not is_set and step.name != f"{DAV}remove":
            continue  # "unknown elements are ignored" (RFC 4918 section 17)
        for prop in step.elements():
            if prop.name != f"{DAV}prop":
                continue
            above = (one.attributes[LANG] for one in (prop, step, root) if LANG in one.attributes)
            language = next(above, "")
            for one in prop.elements():
                found.pop(one.name, None)  # the last instruction for a property wins
                found[one.name] = stored_text(one, language) if is_set else None
    if not found:
        raise UsageError("the propertyupdate names no property")
    return found


def patched(href: str, names: Iterable[str]) -> str:
    """Return the `response` element of a PROPPATCH.

    If one of the properties is protected, nothing was changed, and the others are reported as
    failed too.
    """
    asked = list(names)
    refused = [one for one in asked if one in PROTECTED]
    others = [one for one in asked if one not in PROTECTED]
    parts = [f"<D:response><D:href>{escaped_text(href)}</D:href>"]
    # RFC 4918, 9.2: either all changes are made or none.
    if refused:
        error = "<D:error><D:cannot-modify-protected-property/></D:error>"
        empty = "".join(write_xml(XMLElement(one)) for one in refused)
        parts.append(_propstat(empty, "403 Forbidden", error))
    if others:
        empty = "".join(write_xml(XMLElement(one)) for one in others)
        parts.append(_propstat(empty, "424 Failed Dependency" if refused else "200 OK"))
    parts.append("</D:response>")
    return "".join(parts)
