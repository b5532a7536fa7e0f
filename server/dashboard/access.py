"""Who may look: a ticket in a cookie, made from the operator's token and good for a few hours.

The server keeps no sessions. A ticket is a time of expiry and its HMAC-SHA256 under a key derived from the operator's
token, so a new token ends every ticket, and a ticket does not tell the token.
"""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["COOKIE", "SECONDS", "ticket", "valid"]

COOKIE = "idiolect_dashboard"
SECONDS = 12 * 3600
"""How long a ticket is good for."""


def ticket(token: str, now: float) -> str:
    """A ticket for whoever showed the operator's token at ``now``, seconds since the epoch."""
    expiry = str(int(now) + SECONDS)
    return f"{expiry}.{_mark(token, expiry)}"


def valid(found: str, token: str, now: float) -> bool:
    """Whether a ticket was made from this token and has not expired."""
    expiry, _, mark = found.partition(".")
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) < 16):
        return False
    # Compared before the time is looked at, so that a wrong mark tells nothing about either.
    return hmac.compare_digest(mark.encode(), _mark(token, expiry).encode()) and now < int(expiry)


def _mark(token: str, expiry: str) -> str:
    key = hmac.digest(token.encode(), b"idiolect dashboard ticket", "sha256")
    return hmac.new(key, expiry.encode(), hashlib.sha256).hexdigest()
