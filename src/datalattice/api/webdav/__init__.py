"""WebDAV: the drives of a node as folders for file managers and other programs."""

from __future__ import annotations

from datalattice.api.webdav.documents import (
    XML_BYTES_MAX as XML_BYTES_MAX,
    XML_DEPTH_MAX as XML_DEPTH_MAX,
    XML_ELEMENTS_MAX as XML_ELEMENTS_MAX,
    XMLElement as XMLElement,
    read_xml as read_xml,
    write_xml as write_xml,
)
from datalattice.api.webdav.door import WEBDAV_BASE as WEBDAV_BASE, WebDavDoor as WebDavDoor
from datalattice.api.webdav.requests import (
    CONDITIONS_MAX as CONDITIONS_MAX,
    DavPath as DavPath,
    IfHeader as IfHeader,
)
from datalattice.api.webdav.resources import PAGE_ENTRIES as PAGE_ENTRIES
