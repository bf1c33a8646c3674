"""Documents of S3 requests: nothing outside them is read, and nothing in them grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from keelstore.common.middleware.s3api.xml import XmlError, parse
from test.support.waiting import quick

LAUGHS = "".join(f'<!ENTITY l{number} "{f"&l{number - 1};" * 10}">' for number in range(1, 12))


@pytest.mark.parametrize("doctype,text", [
    ('<!DOCTYPE Delete [<!ENTITY e SYSTEM "file://{path}">]>', "&e;"),
    ('<!DOCTYPE Delete [<!ENTITY e PUBLIC "p" "file://{path}">]>', "&e;"),
    ('<!DOCTYPE Delete [<!ENTITY % p SYSTEM "file://{path}"> %p;]>', "x"),
    ('<!DOCTYPE Delete SYSTEM "file://{path}">', "x"),
    ('<!DOCTYPE Delete [<!ENTITY l0 "ha">' + LAUGHS + "]>", "&l11;"),
    ('<!DOCTYPE Delete [<!ENTITY e "harmless">]>', "&e;"),
    ("<!DOCTYPE Delete>", "x"),
    ("", "&e;"),
])
def test_security_S08_no_document_type_and_no_entity_is_taken(tmp_path: Path, doctype: str, text: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")

    def read() -> None:
        with pytest.raises(XmlError) as caught:
            parse(f"{doctype.replace('{path}', str(secret))}<Delete><Key>{text}</Key></Delete>".encode(), "Delete")
        assert "the secret" not in str(caught.value)

    quick(read, 1)


def test_security_S08_inclusion_is_only_an_element(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the secret")
    found = parse(f'<Delete xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="file://{tmp_path}/secret" parse="text"/></Delete>'.encode())
    assert [child.text for child in found.children("include")] == [""] or found.find("include") is None


def test_elements_are_not_nested_without_end() -> None:
    with pytest.raises(XmlError):
        parse(b"<a>" * 10_000 + b"</a>" * 10_000)


def test_references_to_characters_are_read() -> None:
    assert parse(b"<Delete><Key>&lt;&#233;&#x20AC;</Key></Delete>", "Delete").value("Key") == "<\u00e9\u20ac"
