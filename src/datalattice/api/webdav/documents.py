"""Documents: reads XML from strangers within limits, and writes XML that declares its namespaces.

A name is `{namespace}local`, or `local` without a namespace.

Source: RFC 4918 section 17, section 20.6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from datalattice.errors import BadFormat, LimitExceeded

XML_BYTES_MAX: Final = 131_072
"""Longest XML body, in bytes."""

XML_DEPTH_MAX: Final = 32
"""Most levels of elements."""

XML_ELEMENTS_MAX: Final = 1_000
"""Most elements of one body."""

XML_NAMESPACE: Final = "http://www.w3.org/XML/1998/namespace"
LANG: Final = f"{{{XML_NAMESPACE}}}lang"


@dataclass(slots=True)
class XMLElement:
    """One element: its name, its attributes, and its child texts and elements in order."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[XMLElement | str] = field(default_factory=list)

    def elements(self) -> list[XMLElement]:
        """Return the child elements."""
        return [one for one in self.children if isinstance(one, XMLElement)]

    def named(self, name: str) -> XMLElement | None:
        """Return the first child element with a name; None: no child has it."""
        return next((one for one in self.elements() if one.name == name), None)


def split_name(name: str) -> tuple[str, str]:
    """Return (namespace, local name)."""
    namespace, _, local = name.rpartition("}")
    return namespace.removeprefix("{"), local


def read_xml(body: bytes) -> XMLElement:
    """Return the root element of a body.

    Raises: BadFormat: it is not XML with namespaces, or it has a DOCTYPE. LimitExceeded: it is too
            large or too deep, or has too many elements.
    """
    if len(body) > XML_BYTES_MAX:
        raise LimitExceeded(f"an XML body has at most {XML_BYTES_MAX} bytes, got {len(body)}")
    reader = _XMLTreeBuilder()
    # expat puts it between namespace and name; `_clark` adds the brace in front.
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True  # else a text comes in one piece for each line
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # A DOCTYPE could declare entities that expand without limit or name files.
    parser.StartDoctypeDeclHandler = _refuse_doctype
    try:
        parser.Parse(body, True)
    # LookupError, ValueError: the body names an unknown encoding, or one that is not of bytes.
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise BadFormat(f"the body is not XML: {error}") from error
    return reader.root


def _refuse_doctype(*_: object) -> None:
    raise BadFormat("the body has a DOCTYPE, which is refused; leave it out")


class _XMLTreeBuilder:
    """Builds the tree of elements from the parser's events."""

    def __init__(self) -> None:
        self._top: Final = XMLElement("")
        self._open = [self._top]
        self._count = 0

    @property
    def root(self) -> XMLElement:
        return self._top.elements()[0]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > XML_ELEMENTS_MAX:
            raise LimitExceeded(f"an XML body has at most {XML_ELEMENTS_MAX} elements")
        if len(self._open) > XML_DEPTH_MAX:
            raise LimitExceeded(f"an XML body is at most {XML_DEPTH_MAX} elements deep")
        made = XMLElement(_clark(name), {_clark(key): value for key, value in attributes.items()})
        self._open[-1].children.append(made)
        self._open.append(made)

    def end(self, _name: str) -> None:
        self._open.pop()

    def text(self, data: str) -> None:
        self._open[-1].children.append(data)


def _clark(name: str) -> str:
    return f"{{{name}" if "}" in name else name


def write_xml(element: XMLElement, outer: str = "") -> str:
    """Return an element as text that declares all its namespaces.

    outer: the default namespace of the surrounding text.
    """
    namespace, local = split_name(element.name)
    head = [local]
    if namespace != outer:
        head.append(f"xmlns={quoteattr(namespace)}")
    for number, (name, value) in enumerate(element.attributes.items()):
        space, attribute = split_name(name)
        if space == XML_NAMESPACE:
            attribute = f"xml:{attribute}"  # a prefix that needs no declaration
        elif space:
            head.append(f"xmlns:a{number}={quoteattr(space)}")
            attribute = f"a{number}:{attribute}"
        head.append(f"{attribute}={quoteattr(value)}")
    inside = write_children(element, namespace)
    return f"<{' '.join(head)}>{inside}</{local}>" if inside else f"<{' '.join(head)}/>"


def write_children(element: XMLElement, outer: str = "") -> str:
    """Return the children of an element as text; arguments as of `write_xml`."""
    return "".join(
        escaped_text(one) if isinstance(one, str) else write_xml(one, outer)
        for one in element.children
    )


def escaped_text(text: str) -> str:
    """Return an escaped text; characters that XML does not allow become U+FFFD."""
    # Readers turn an unescaped carriage return into a line feed.
    return escape("".join(map(_allowed, text)), {"\r": "&#13;"})


def _allowed(character: str) -> str:
    # "Char" of XML 1.0 (2.2).
    point = ord(character)
    if point >= 0x20:
        is_allowed = not 0xD800 <= point <= 0xDFFF and point not in (0xFFFE, 0xFFFF)
    else:
        is_allowed = character in "\t\n\r"
    return character if is_allowed else "\ufffd"


def directory_page(title: str) -> tuple[str, str]:
    """Return the text before and after the links on a directory's page for browsers."""
    shown = escaped_text(title)
    head = f'<!doctype html><meta charset="utf-8"><title>{shown}</title><h1>{shown}</h1><ul>'
    return head, "</ul>"


def directory_link(href: str, name: str) -> str:
    """Return one link of a directory, in HTML."""
    return f"<li><a href={quoteattr(href)}>{escaped_text(name)}</a></li>"
