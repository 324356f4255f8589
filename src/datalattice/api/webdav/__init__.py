"""WebDAV: the drives of a node as folders for file managers and other programs."""

from __future__ import annotations

from datalattice.api.webdav.documents import (
    XML_BYTES_MAX,
    XML_DEPTH_MAX,
    XML_ELEMENTS_MAX,
    Element,
    read_xml,
    write_xml,
)
from datalattice.api.webdav.door import WEBDAV_BASE, WebDavDoor
from datalattice.api.webdav.requests import CONDITIONS_MAX, DavPath, IfHeader
from datalattice.api.webdav.resources import PAGE_ENTRIES

__all__ = [
    "CONDITIONS_MAX",
    "PAGE_ENTRIES",
    "WEBDAV_BASE",
    "XML_BYTES_MAX",
    "XML_DEPTH_MAX",
    "XML_ELEMENTS_MAX",
    "DavPath",
    "Element",
    "IfHeader",
    "WebDavDoor",
    "read_xml",
    "write_xml",
]
