"""Checks of what names a server or a secret: URLs, and names of variables in place of what they hold."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from fleet.config.fields import word
from fleet.config.form import Form

URL_EXPECTED = "the URL of a server, for example http://10.0.0.4:8080"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def why_no_url(url: str) -> str:
    """Why a URL is no place of a server; "" when it is one. What could hold a secret is not repeated."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "this is no URL"
    if "@" in parts.netloc:
        return "this URL holds a user or password, which belongs into `key_file`"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return f"'{url[:60]}' is no http:// or https:// URL"
    if parts.query or parts.fragment or any(ord(c) <= 32 or ord(c) > 126 for c in url):
        return "this URL has more than a host, a port and a path"
    return ""


def variable(form: Form) -> str:
    """The name of a variable, never its value: whoever writes the key itself there is told so, without repeating it."""
    expected = "the name of an environment variable, for example TOWER_KEY"
    found = word(form, "", expected)
    if found and not _VARIABLE.fullmatch(found):
        form.wrong("this is no name of an environment variable", expected)
        return ""
    return found
