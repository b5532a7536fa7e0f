"""Tokens that somebody shows: how they are drawn, and what is kept of them."""

import secrets
from hashlib import sha256


def draw_token() -> str:
    """256 bits from the system's generator, as text."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """What is kept of a token."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()
