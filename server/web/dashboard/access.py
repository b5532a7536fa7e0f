"""Who may look: a ticket in a cookie, made for an operator and good for a few hours.

The server keeps no sessions. A ticket is a time of expiry, an operator's name and their HMAC-SHA256 under a key that
the server draws when it starts: it has nothing to do with any token, at which a holder could guess otherwise, and a
restart ends every ticket. Whether the operator is still one is looked up whenever a ticket is shown: revoking an
operator ends their tickets.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

__all__ = ["COOKIE", "SECONDS", "from_own_site", "holder", "ticket"]

COOKIE = "idiolect_dashboard"
SECONDS = 12 * 3600
"""How long a ticket is good for."""


def ticket(name: str, secret: str, now: float) -> str:
    """A ticket for the operator ``name``, who showed a token at ``now``, seconds since the epoch."""
    expiry = str(int(now) + SECONDS)
    return f"{expiry}.{_mark(secret, expiry, name)}.{name}"


def holder(found: str, secret: str, now: float) -> str | None:
    """Whose ticket this is; None where it was not made with this secret or has expired."""
    expiry, mark, name = (*found.split(".", 2), "", "", "")[:3]
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) < 16):
        return None
    # Compared before the time is looked at, so that a wrong mark tells nothing about either.
    good = hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(secret, expiry, name).encode())
    return name if good and now < int(expiry) else None


def from_own_site(headers: Mapping[str, str]) -> bool:
    """Whether a form was sent by a page of this server, or by no page at all.

    Browsers say so themselves (Sec-Fetch-Site), where they do not speak plain HTTP to another machine; else they name
    the page's site, which is then compared with the one that was asked. A program that is no browser says neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""


def _mark(secret: str, expiry: str, name: str) -> str:
    key = hmac.digest(secret.encode(), b"idiolect dashboard ticket", "sha256")
    return hmac.new(key, f"{expiry}.{name}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()
