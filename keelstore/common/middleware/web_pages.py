"""The pages that staticweb makes: a listing as HTML, and the page that says there is none. Pure.

Whatever comes from names, labels and queries is escaped (``security: S17``); pages forbid scripts (``security: R09``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final
from urllib.parse import quote

PAGE_HEADERS: Final = {
    "Content-Type": "text/html; charset=UTF-8",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src * 'unsafe-inline'; img-src *; font-src *; base-uri 'none'; "
                               "form-action 'none'",
}
_STYLE: Final = """\
  <style type="text/css">
   body {font-family: sans-serif;}
   h1 {font-size: 1.1em;}
   th, td {text-align: left; padding: 0 1em;}
   .colsize {text-align: right;}
   a {text-decoration: none;}
  </style>"""
_UNITS: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_LINK_PARAMS: Final = ("temp_url_prefix", "temp_url_expires", "temp_url_sig", "temp_url_ip_range")


def human_size(count: int) -> str:
    """Bytes in the largest unit that leaves at least 1, rounded: 1536 is ``2Ki``."""
    if count < 1024:
        return str(count)
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if int(value + 0.5) < 1024:
            return f"{int(value + 0.5)}{unit}"
    return f"{int(value + 0.5)}{_UNITS[-1]}"


def link_query(params: Mapping[str, str]) -> str:
    """What the links of a page carry on of a temporary URL's own query; '' unless that has a prefix, so that it is good for
    what the links lead to."""
    if "temp_url_prefix" not in params:
        return ""
    pairs = [f"{name}={quote(params[name].encode('utf-8', 'surrogateescape'))}" for name in _LINK_PARAMS if name in params]
    if "inline" in params:
        pairs.append("inline")
    return "?" + "&".join(pairs)


def listing_page(title: str, prefix: str, entries: Iterable[Mapping[str, Any]], css: str = "", query: str = "",
                 has_parent: bool = False) -> str:
    """A listing of what lies at ``prefix``. ``entries`` are those of a JSON listing with delimiter ``/``; ``query`` goes on
    every link."""
    rows = []
    if has_parent:
        rows.append(_row('id="parent" class="item"', "../", "../" + query))
    directories, files = [], []
    for entry in entries:
        if "subdir" in entry:
            name = str(entry["subdir"])[len(prefix):]
            if name:
                directories.append(_row('class="item subdir"', name, _link(name) + query))
            continue
        name = str(entry["name"])[len(prefix):]
        if name:
            kinds = " ".join(f"type-{part}" for part in str(entry["content_type"]).partition(";")[0].strip().split("/"))
            date = str(entry["last_modified"]).partition(".")[0].replace("T", " ")
            files.append(_row(f'class="{escape(f"item {kinds}")}"', name, _link(name) + query,
                              human_size(int(entry["bytes"])), date))
    body = "\n".join([*rows, *directories, *files])
    shown = escape(f"Listing of {title}")
    return f"""\
<!DOCTYPE html>
<html>
 <head>
  <title>{shown}</title>
{_style(css, prefix)}
 </head>
 <body>
  <h1 id="title">{shown}</h1>
  <table id="listing">
   <tr id="heading">
    <th class="colname">Name</th>
    <th class="colsize">Size</th>
    <th class="coldate">Date</th>
   </tr>
{body}
  </table>
 </body>
</html>
"""


def no_listing_page(title: str, index: str, prefix: str, css: str = "") -> str:
    """What a visitor sees where there is neither an index nor a listing, with a hint for the owner."""
    missing = (f"\n  <p>Its index, <b>{escape(index)}</b> (X-Container-Meta-Web-Index), is not there.</p>" if index else "")
    shown = escape(f"Listing of {title}")
    return f"""\
<!DOCTYPE html>
<html>
 <head>
  <title>{shown}</title>
{_style(css, prefix)}
 </head>
 <body>
  <h1 id="title">No listing</h1>
  <p>This site does not list its files. Its owner can change that with X-Container-Meta-Web-Listings: true.</p>{missing}
 </body>
</html>
"""


def _row(attributes: str, name: str, href: str, size: str = "&nbsp;", date: str = "&nbsp;") -> str:
    return (f"   <tr {attributes}>\n"
            f'    <td class="colname"><a href="{escape(href)}">{escape(_printable(name))}</a></td>\n'
            f'    <td class="colsize">{size}</td>\n'
            f'    <td class="coldate">{escape(date) if date != "&nbsp;" else date}</td>\n'
            f"   </tr>")


def _link(name: str) -> str:
    """A name as a link relative to its directory; dots are quoted so that ``.`` and ``..`` are names, not steps."""
    return "./" + quote(name.encode("utf-8", "surrogateescape")).replace(".", "%2E")


def _printable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _style(css: str, prefix: str) -> str:
    if not css:
        return _STYLE
    if not css.startswith(("/", "http://", "https://")):
        css = "../" * prefix.count("/") + css
    href = quote(css.encode("utf-8", "surrogateescape"), safe="/:?&=%#+,;@~!$()*")
    return f'  <link rel="stylesheet" type="text/css" href="{escape(href)}" />'
