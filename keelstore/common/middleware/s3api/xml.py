"""XML of S3 requests and answers: read without entities, DTDs or network (``security: S08``); written as bytes.

Answers are written by ``Writer``: clients compare little but names and nesting, and a listing of a thousand keys is joined
strings, not a tree. All have the namespace ``NS`` but errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from lxml import etree

from keelstore.common.errors import KeelstoreError

NS: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
DECLARATION: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'
_MAX_DEPTH = 16
# What XML 1.0 cannot hold, not even as a character reference; and the surrogates that stand for octets that are no UTF-8.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_SPECIAL = re.compile('[&<>"\r]')
_REFERENCES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}


class XmlError(KeelstoreError):
    """A document that is not well-formed, or not what was asked for."""


def text_of(text: str) -> bytes:
    """Text as it stands in a document. A character that XML cannot hold becomes a reference, as S3 sends it."""
    if _SPECIAL.search(text):
        text = _SPECIAL.sub(lambda found: _REFERENCES[found[0]], text)
    if not text.isprintable() and _UNFIT.search(text):
        text = _UNFIT.sub(lambda found: f"&#x{ord(found[0]):x};" if ord(found[0]) < 32 else "\ufffd", text)
    return text.encode()


class Writer:
    """Builds one document: ``open`` and ``close`` elements, ``leaf`` values."""

    __slots__ = ("_open", "_parts")

    def __init__(self, root: str, declare: bool = True, namespace: str = NS):
        self._parts = [
            DECLARATION if declare else b"",
            f'<{root} xmlns="{namespace}">'.encode() if namespace else f"<{root}>".encode(),
        ]
        self._open = [root]

    def open(self, name: str, attributes: str = "") -> Writer:
        self._parts.append(f"<{name}{attributes}>".encode())
        self._open.append(name)
        return self

    def close(self) -> Writer:
        self._parts.append(f"</{self._open.pop()}>".encode())
        return self

    def leaf(self, name: str, value: Any) -> Writer:
        """``<name>value</name>``; True and False as S3 spells them; nothing for None."""
        if value is not None:
            text = str(value) if type(value) is not bool else "true" if value else "false"
            self._parts += (b"<%b>" % name.encode(), text_of(text), b"</%b>" % name.encode())
        return self

    def raw(self, data: bytes) -> Writer:
        self._parts.append(data)
        return self

    def owner(self, owner_id: str, name: str = "Owner") -> Writer:
        return self.open(name).leaf("ID", owner_id).leaf("DisplayName", owner_id).close()

    def to_bytes(self) -> bytes:
        while self._open:
            self.close()
        return b"".join(self._parts)


class Element:
    """One element of a request's document, by local names: clients may or may not send the namespace."""

    __slots__ = ("_node",)

    def __init__(self, node: Any):
        self._node = node

    @property
    def name(self) -> str:
        return str(etree.QName(self._node).localname)

    @property
    def text(self) -> str:
        return self._node.text or ""

    def children(self, name: str = "") -> Iterator[Element]:
        for node in self._node:
            if isinstance(node.tag, str):
                child = Element(node)
                if not name or child.name == name:
                    yield child

    def find(self, name: str) -> Element | None:
        return next(self.children(name), None)

    def value(self, name: str) -> str | None:
        """The text of a child; None when there is no such child."""
        found = self.find(name)
        return None if found is None else found.text

    def attribute(self, name: str, namespace: str = "") -> str | None:
        value = self._node.get(f"{{{namespace}}}{name}" if namespace else name)
        return None if value is None else str(value)


def parse(data: bytes, root: str = "") -> Element:
    """The root element of a document, which must be named ``root`` when that is given. Raises XmlError.

    No DTD is allowed at all, so there is no entity to resolve and nothing that grows.
    """
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        collect_ids=False,
    )
    try:
        tree = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise XmlError(str(error)) from None
    if getattr(tree.getroottree().docinfo, "doctype", ""):
        raise XmlError("a document type is not allowed")
    _check_depth(tree)
    found = Element(tree)
    if root and found.name != root:
        raise XmlError(f"the document is {found.name}, not {root}")
    return found


def _check_depth(tree: Any) -> None:
    level = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in node]
        if not level:
            return
    raise XmlError("elements are nested too deep")
