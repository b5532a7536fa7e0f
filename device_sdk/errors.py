"""Every error the project raises on purpose, under one root.

An app that embeds the SDK can catch :class:`IdiolectError` and be sure that nothing the project raises on purpose
escapes it. Messages name the file or field, what was found, what was expected and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_sdk.sent import Sent


class IdiolectError(Exception):
    """Root of every error raised by idiolect."""


class AudioError(IdiolectError):
    """Audio that cannot be used: wrong shape, wrong rate, NaN, unreadable file."""


class BundleError(IdiolectError):
    """A bundle that fails a hash, a shape, a value or a version check."""


class ConfigurationError(IdiolectError):
    """A setting outside its domain, or settings that exclude each other."""


class DataError(IdiolectError):
    """A data set or text file that is missing, malformed or empty."""


class FeedbackError(IdiolectError):
    """Feedback that refers to no known utterance or has an impossible value."""


class LearningError(IdiolectError):
    """A local step that diverged or could not be taken; the weights are as they were before it."""


class MissingExtraError(IdiolectError):
    """A feature whose optional dependency is not installed; the message names the extra."""


class PrivacyError(IdiolectError):
    """A release that the privacy settings or the ledger do not allow."""


class ProtocolError(IdiolectError):
    """A message that breaks the wire contract: version, signature, shape or size."""


class SessionError(IdiolectError):
    """A session that is used from two threads at once, or of a device that is closed."""


class CheckInError(IdiolectError):
    """The server could not be reached or refused; what was to be sent is kept for the next check-in. sent: the reports
    of this check-in whose outcome was known before it failed, as in a report of one that did not."""

    sent: tuple[Sent, ...] = ()


class Postponed(CheckInError):
    """Now is no good time to check in: the app's policy says so, or the server wants the device later."""


class StateError(IdiolectError):
    """The state folder is locked, damaged or was written with another key."""
